"""Runs on rows and networks in memory: the results and caches of a file or model with them."""

import pickle
import shutil
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML

from probekit.errors import ConfigError
from probekit.experiment.schema import Experiment
from probekit.model.families.table import load_model
from probekit.pipeline.capture.jobs import Job, put_job
from probekit.pipeline.compare.compare import compare
from probekit.pipeline.experiment.run import run
from probekit.pipeline.experiment.validate import validate
from probekit.pipeline.look.apply import apply_probe
from probekit.probes.saved_probe import SavedProbe
from tests.pipeline.planted import YAML as PLANTED
from tests.pipeline.planted import write_rows


def settings(columns):
    values = YAML(typ="safe").load(PLANTED)
    values["data"] = {"name": "planted", "columns": columns}
    values["model"]["random_weights"] = 0
    values["capture"] = {"sites": ["blocks.3.hook_resid_post"]}
    values["probe"] = {"folds": 2, "C": [1], "control_draws": 1, "permutations": 0}
    return values | {"attention": {}}


GROUPED = settings({"group": "group"})


@pytest.fixture
def frame(tmp_path, monkeypatch):
    """The rows, which are in a file of the working folder, too."""
    monkeypatch.chdir(tmp_path)
    return write_rows(tmp_path / "rows.csv")


def go(values, **options):
    return run(values, out="runs", cache_root=Path("cache"), page=False, **options)


@pytest.mark.parametrize("columns", [{"group": "group"}, {}])
def test_results_are_those_of_the_file(frame, columns):
    values = settings(columns)
    of_file = go(values | {"data": values["data"] | {"format": "csv", "file": "rows.csv"}})
    of_frame = go(values, data=frame.set_index("text", drop=False))
    assert of_frame.results.read_bytes() == of_file.results.read_bytes()
    digests = of_frame.record["digests"]
    assert digests == of_file.record["digests"] | {"config": digests["config"]}
    assert of_frame.record["caches"] == of_file.record["caches"]
    assert len(list(Path("cache").iterdir())) == 1


def test_the_config_of_a_run_describes_its_rows(frame, call):
    report = validate(GROUPED, data=frame)
    assert (report.ok, report.n_examples) == (True, 96)
    first = go(GROUPED, data=frame)
    config = first.folder / "config.yaml"
    assert YAML(typ="safe").load(config.read_text())["data"]["format"] == "memory"
    assert go(config, data=frame).folder == first.folder
    for command in ("run", "validate"):
        shown = call(command, config).stderr
        assert "config.yaml, line" in shown
        assert "the rows of this run were passed in Python" in " ".join(shown.split())


def test_other_processes_cannot_read_what_is_in_memory(frame, refused):
    experiment = Experiment.from_dict(settings({}))
    with pytest.raises(ConfigError, match="passed in Python"):
        go(GROUPED, data=frame, workers=0)
    refused(put_job, Job(experiment.with_data(frame), "task"), None)
    with pytest.raises(ConfigError, match="save the network with `save_pretrained`"):
        put_job(Job(experiment.with_model(load_model("mini")), "task"), None)


def test_a_network_in_memory_is_known_by_its_weights(frame, refused, call):
    values = settings({})
    values["model"]["random_weights"] = 1
    network, changed = load_model("mini"), load_model("mini")
    changed.get_parameter("h.2.mlp.c_fc.bias").add_(1)
    by_name, same, other = [
        go(values, data=frame, model=model) for model in (None, network, changed)
    ]
    # The run by name keeps its record, which names a model that can be loaded again.
    assert same.folder != by_name.folder
    assert (same.answer, same.record["digests"]) == (by_name.answer, by_name.record["digests"])
    assert same.record["caches"] == by_name.record["caches"]
    # Untrained networks depend on the config alone.
    caches, others = by_name.record["caches"], other.record["caches"]
    assert [name for name, cache in caches.items() if others[name] != cache] == ["task"]
    digest = other.record["digests"]["weights (task)"]
    name = other.record["model"]["source"]
    assert name == f"GPT2 in memory {digest[:8]}"
    compared = compare(by_name.folder, other.folder)
    assert compared.names == ("model.source mini", f"model.source {name}")
    config = Path(shutil.copy(other.folder / "config.yaml", "."))
    assert go(config, data=frame, model=changed).folder == other.folder
    refused(run, config, data=frame)
    refused(run, config, data=frame, model=network)
    refused(run, values, data=frame, model=torch.nn.Linear(1, 1))
    values["model"] = {"source": "EleutherAI/pythia-70m", "checkpoints": [0, 512]}
    refused(run, values, data=frame, model=network)
    probe = SavedProbe.load(other.folder / "probes" / "blocks.3.hook_resid_post" / "logistic")
    refused(apply_probe, probe, "The door")
    (reading,) = apply_probe(probe, "The door", model=changed)
    assert len(reading.answers) == 2


def test_a_network_in_memory_is_used_as_it_is_and_stays_in_its_process(frame):
    network = load_model("mini", "float64")
    experiment = Experiment.from_dict(settings({})).with_model(network).with_data(frame)
    assert experiment.model.in_memory is network
    assert experiment.model.dtype == "float64"
    copy = pickle.loads(pickle.dumps(experiment))  # noqa: S301
    assert (copy.model.in_memory, copy.data.in_memory) == (None, None)
