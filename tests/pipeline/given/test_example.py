"""The example of the documentation runs: activations that transformers has computed."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from probekit.experiment.loader import load_any_experiment, load_experiment
from probekit.model.weights.sources import find_model
from probekit.pipeline.capture.captures import capture_only
from probekit.pipeline.experiment.run import run

FAST = {"C": [0.1], "folds": 2, "description": False, "permutations": 0, "control_draws": 1}
FAST_YAML = json.dumps(FAST)


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
    experiment = load_any_experiment(folder / "mine.yaml", ["split.folds=2", f"probe={FAST_YAML}"])
    filed = run(experiment, out=folder / "runs", workers=1, page=False)
    both = []
    for result in (called, filed):
        table = result.table[result.table["metric"] == "accuracy"]
        table = table[table["split"] == "test"]
        both.append(table.set_index(["site", "probe", "target"])["value"].to_dict())
    assert both[0] == both[1]
    assert called.best.value > called.best.chance
    sites = called.table.loc[called.table["site"] != "", "site"].unique()
    assert list(sites) == [f"layer_{n}" for n in range(len(sites))]


def test_the_activations_are_those_of_a_capture(place, repository):
    """Hidden state n of transformers is the residual stream before block n."""
    from safetensors.numpy import load_file

    folder, _ = place
    given = load_file(folder / "acts" / "layers.safetensors")
    experiment = load_experiment(
        repository / "experiments" / "quickstart.yaml",
        (
            f"data.root={folder}",
            "data.file=rows.csv",
            "data.card=null",
            "capture.sites=[blocks.*.hook_resid_pre]",
            "model.random_weights=0",
        ),
    )
    store = capture_only(experiment, cache_root=folder / "cache")["task"].store
    for number in range(6):
        own = store.read(f"blocks.{number}.hook_resid_pre")
        np.testing.assert_allclose(given[f"layer_{number}"], own, rtol=1e-4, atol=1e-4)
