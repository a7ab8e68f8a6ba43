"""The exporter of a cache and the importer of activations are inverse to each other."""

import pandas as pd
import pytest

from probekit.activations.export import FORMATS, export_cache
from probekit.activations.store import ActivationStore
from probekit.experiment.loader import load_any_experiment, load_experiment
from probekit.pipeline.experiment.run import run

SITES = ("blocks.0.hook_resid_pre", "blocks.1.attn.hook_z", "blocks.1.hook_resid_post")
PROBE = "{C: [0.01, 0.1], folds: 2, control_draws: 0, permutations: 50, description: false}"
YAML = """
name: quickstart
activations: {folder: exported}
data:
  name: subject_number
  format: csv
  file: subject_number.csv
  columns: {label: label, group: group, token: word}
split: {folds: 2}
probe: %s
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory, repository):
    """A run on texts, and the folder with its rows and the last word of each text."""
    folder = tmp_path_factory.mktemp("texts")
    rows = pd.read_csv(repository / "data" / "subject_number.csv", dtype=str)[::18]
    rows.assign(word=rows["text"].str.split().str[-1]).to_csv(
        folder / "subject_number.csv", index=False
    )
    experiment = load_experiment(
        repository / "experiments" / "quickstart.yaml",
        (
            f"data.root={folder}",
            "data.card=null",
            f"capture.sites={list(SITES)}",
            "model.random_weights=0",
            "attention.texts=[]",
            "split.folds=2",
            f"probe={PROBE}",
        ),
    )
    return folder, run(experiment, out=folder / "runs", cache_root=folder / "cache", page=False)


def comparable(result):
    """Scores that need neither the model nor the texts."""
    table = result.table
    table = table[table["target"].isin(["task", "chosen", "majority", "word_identity"])]
    return table.drop(columns=["model", "position"]).reset_index(drop=True)


@pytest.mark.parametrize("format", FORMATS)
def test_imported_rows_give_the_scores_of_the_run(captured, format):
    folder, original = captured
    store = ActivationStore.open(original.record["caches"]["task"])
    exported = folder / format / "exported"
    export_cache(store, exported, format)
    (folder / format / "given.yaml").write_text(YAML % PROBE)
    data = (folder / "subject_number.csv").read_bytes()
    (folder / format / "subject_number.csv").write_bytes(data)
    experiment = load_any_experiment(folder / format / "given.yaml")
    imported = run(experiment, out=folder / "given", page=False)
    pd.testing.assert_frame_equal(comparable(imported), comparable(original), check_exact=True)
    assert len(comparable(imported)) > 20


def test_the_format_of_the_files_does_not_change_the_key(captured):
    folder, _ = captured
    assert len(list((folder / "given" / "quickstart").glob("*/run.json"))) == 1
