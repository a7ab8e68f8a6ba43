"""Activations in files: those of the documentation, and exported ones, give a run's scores."""

import json
import re

import pandas as pd
import pytest

from probekit.activations.store import ActivationStore
from probekit.activations.upkeep import FORMATS, export_cache
from probekit.experiment.loader import load_any_experiment, load_experiment
from probekit.model.weights.hub import find_model
from probekit.pipeline.experiment.probe import probe
from probekit.pipeline.experiment.run import run
from tests.pipeline.texts import text_of

FAST = {"C": [0.1], "folds": 2, "description": False, "permutations": 0, "control_draws": 1}


SITES = ("blocks.0.hook_resid_pre", "blocks.1.attn.hook_z", "blocks.1.hook_resid_post")
PROBE = "{C: [0.01, 0.1], folds: 2, control_draws: 0, permutations: 50, description: false}"


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def page(repository):
    return (repository / "docs" / "howto" / "given_activations.md").read_text()


@pytest.fixture(scope="module")
def place(tmp_path_factory, repository, page):
    """A folder with rows and activations, saved by the script of the page."""
    folder = tmp_path_factory.mktemp("example")
    rows = pd.read_csv(repository / "data" / "subject_number.csv")[::37]
    rows[["text", "label", "group"]].to_csv(folder / "rows.csv", index=False)
    script, probing = blocks(page, "python")
    script = script.replace('"gpt2"  # any model', f"{str(find_model('mini'))!r}  # any model")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(script, {})  # the example of the page
        (folder / "mine.yaml").write_text(blocks(page, "yaml")[0])
        names = {}
        probing = probing.replace('{"C": [0.01, 0.1, 1]}', str(FAST)).replace("5", "2")
        exec(probing.replace("name=", "workers=1, page=False, name="), names)
        assert not names["result"].table.empty  # read here, where its folder is
    return folder, names["result"]


def test_the_call_and_the_file_give_the_same_scores(place):
    folder, called = place
    overrides = ["split.folds=2", f"probe={json.dumps(FAST)}"]
    experiment = load_any_experiment(folder / "mine.yaml", overrides)
    both = []
    for result in (called, run(experiment, out=folder / "runs", workers=1, page=False)):
        table = result.table[result.table["metric"] == "accuracy"]
        table = table[table["split"] == "test"]
        both.append(table.set_index(["site", "probe", "target"])["value"].to_dict())
    assert both[0] == both[1]
    assert {"bag_of_words", "length", "control"} < {target for *_, target in both[0]}
    assert called.best.value > called.best.chance
    sites = called.table.loc[called.table["site"] != "", "site"].unique()
    assert list(sites) == [*(f"layer_{n}" for n in range(len(sites) - 1)), "layer_norm"]


def test_the_saved_tensors_are_those_of_their_names(place):
    folder, _ = place
    rows = pd.read_csv(folder / "rows.csv")
    read = {"texts": rows["text"], "bos": False, "verify": "mini", "out": folder / "verified"}
    found = probe(str(folder / "acts"), rows["label"], probe=FAST, page=False, **read)
    labels = {name: one["label"] for name, one in found.record["identities"].items()}
    assert labels.pop("layer_norm") == "verified as after the final norm"
    expected = ["blocks.0.hook_resid_pre"]
    expected += [f"blocks.{n}.hook_resid_post" for n in range(len(labels) - 1)]
    assert list(labels.values()) == [f"verified as {site}" for site in expected]


@pytest.fixture(scope="module")
def captured(tmp_path_factory, repository):
    """A run on texts, and the folder with its rows and the last word of each text."""
    folder = tmp_path_factory.mktemp("texts")
    rows = pd.read_csv(repository / "data" / "subject_number.csv", dtype=str)[::18]
    rows = rows.assign(word=rows["text"].str.split().str[-1])
    rows.to_csv(folder / "subject_number.csv", index=False)
    overrides = [f"data.root={folder}", "data.card=null", f"capture.sites={list(SITES)}"]
    overrides += ["model.random_weights=0", "attention.texts=[]", "split.folds=2"]
    experiment = load_experiment("quickstart", [*overrides, f"probe={PROBE}"])
    return folder, run(experiment, out=folder / "runs", cache_root=folder / "cache", page=False)


def comparable(result):
    """Scores that do not need the model, among them those of baselines that read the texts."""
    table = result.table
    baselines = ["majority", "word_identity", "bag_of_words", "n_grams", "length"]
    table = table[table["target"].isin(["task", "chosen", *baselines])]
    assert set(baselines) < set(table["target"])
    return table.drop(columns=["model", "position"]).reset_index(drop=True)


@pytest.mark.parametrize("format", FORMATS)
def test_imported_rows_give_the_scores_of_the_run(captured, format):
    folder, original = captured
    store = ActivationStore.open(original.record["caches"]["task"])
    export_cache(store, folder / format / "exported", format)
    (folder / format / "given.yaml").write_text(text_of("exported.yaml") % PROBE)
    data = (folder / "subject_number.csv").read_bytes()
    (folder / format / "subject_number.csv").write_bytes(data)
    experiment = load_any_experiment(folder / format / "given.yaml")
    imported = run(experiment, out=folder / "given", page=False)
    pd.testing.assert_frame_equal(comparable(imported), comparable(original), check_exact=True)
    assert len(comparable(imported)) > 20
    # Exported activations have no numbers of the output.
    rows = [imported.predictions, original.predictions.drop(columns="guess_output")]
    pd.testing.assert_frame_equal(*(one.drop(columns="position") for one in rows), check_exact=True)
    # The format of the files does not change the key.
    assert len(list((folder / "given" / "quickstart").glob("*/run.json"))) == 1
