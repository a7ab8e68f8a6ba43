"""A second run reuses complete results of the same inputs and recomputes all others."""

import json
import os
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from probekit.activations.store import ActivationStore
from probekit.experiment.schema import Experiment
from probekit.model.weights.sources import MINI
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.experiment.finished import find_finished, inputs_digest
from probekit.pipeline.measure.record import run_key
from probekit.provenance import PACKAGE, PART_VERSIONS
from tests.pipeline.planted import QUICK, Planted


@pytest.fixture
def again(planted, own):
    """The bytes of results.csv of a finished run, and a copy of its folder to run in again."""
    finished = planted.run()
    return finished.results.read_bytes(), own.take(finished.folder)


def key(place, *overrides):
    """The name of the folder of a run."""
    return run_key(prepare(place.load(*overrides)).ready("cpu"), None)


def test_second_run_recomputes_nothing(own, again, monkeypatch):
    content, folder = again
    monkeypatch.setattr("probekit.probes.prober.Prober.site", None)  # would fail if it were called
    monkeypatch.setattr(ActivationStore, "writing", None)  # a capture would call it
    second = own.run()
    assert (second.folder, second.results.read_bytes()) == (folder, content)


def test_interrupted_run_resumes_with_the_remaining_sites(own, again):
    content, folder = again
    kept = folder / "sites" / "blocks.0.hook_resid_pre.json"
    lost = [path for path in (folder / "sites").iterdir() if path.stem != kept.stem]
    before = kept.stat().st_mtime_ns
    for path in (*lost, folder / "results.csv", folder / "run.json"):
        path.unlink()
    assert own.run().results.read_bytes() == content
    assert kept.stat().st_mtime_ns == before


def test_changed_code_or_sizes_reuse_no_result(planted, tmp_path, monkeypatch):
    keys = {planted.run().folder.name}
    model = tmp_path / "model"
    shutil.copytree(MINI, model)
    (model / "digests.json").unlink()
    config = json.loads((model / "config.json").read_text())
    for change in ({}, {"layer_norm_epsilon": 0.5}, {"n_head": 8}):
        (model / "config.json").write_text(json.dumps(config | change))
        keys.add(key(planted, f"model.source={model}"))
    for part in PART_VERSIONS:
        with monkeypatch.context() as patch:
            patch.setitem(PART_VERSIONS, part, PART_VERSIONS[part] + 1)
            keys.add(key(planted))
    assert len(keys) == 4 + len(PART_VERSIONS)


def test_a_refactoring_reuses_activations_and_no_result(tmp_path):
    """A comment in a copy of the package changes the key of the run, but not that of the caches."""
    first = Planted(tmp_path).run(*QUICK, page=False)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.safetensors")}
    package = tmp_path / "code" / "probekit"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    with (package / "model" / "families" / "gpt2.py").open("a") as file:
        file.write("# A comment.\n")
    options = ["planted.yaml", "--out", "runs", "--cache", "cache", "--no-page"]
    options += [part for setting in QUICK for part in ("--set", setting)]
    subprocess.run(
        [sys.executable, "-m", "probekit", "run", *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"},
        check=True,
    )
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.safetensors")}
    assert after == before
    [second] = set(first.folder.parent.iterdir()) - {first.folder}
    assert (second / "results.csv").read_bytes() == first.results.read_bytes()


def test_contents_and_settings_make_the_key_and_the_data_folder_does_not(planted, own):
    first = planted.run().folder.name
    assert key(own) == first
    assert len({first, *(key(own, change) for change in ("probe.seed=1", "split.seed=1"))}) == 3
    text = (own.folder / "rows.csv").read_text()
    (own.folder / "rows.csv").write_text(text.replace("carriage", "coach"))
    assert key(own) != first


def test_new_labels_recompute_no_activation(planted, own, monkeypatch):
    planted.run(*QUICK, page=False)
    rows = pd.read_csv(own.folder / "rows.csv")
    rows["label"] = rows["label"].map({"red": "A", "black": "B"})
    rows.to_csv(own.folder / "rows.csv", index=False)
    monkeypatch.setattr(ActivationStore, "writing", None)  # a capture would call it
    assert set(own.run(*QUICK, page=False).record["data"]["labels"]["train"]) == {"A", "B"}


YAML = """
name: a
model: {source: ./model}
data: {name: rows, format: csv, file: rows.csv, card: card.md}
tokens: {bos: false, position: {at: last}}
"""


@pytest.fixture
def digest(tmp_path):
    """A function that returns the digest of the inputs of an experiment in a folder."""
    shutil.copytree(MINI, tmp_path / "model")
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    (tmp_path / "card.md").write_text("Rows.")
    (tmp_path / "a.yaml").write_text(YAML)
    return lambda device="cpu": inputs_digest(Experiment.from_file(tmp_path / "a.yaml"), device)


def test_every_input_changes_the_digest(digest, tmp_path):
    first = digest()
    assert first == digest("cpu:0") != digest("cuda")
    for name, text in {
        "rows.csv": "text,label\na,c\n",
        "card.md": "Other rows.",
        "model/config.json": (MINI / "config.json").read_text() + " ",
        "a.yaml": YAML.replace("bos: false", "bos: true"),
    }.items():
        path = tmp_path / name
        before = path.read_text()
        path.write_text(text)
        assert digest() != first, name
        path.write_text(before)
    weights = tmp_path / "model" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert digest() != first
    weights.write_bytes(content)
    (tmp_path / "model" / "vocab.json").rename(tmp_path / "model" / "other.json")
    assert digest() != first
    (tmp_path / "model" / "other.json").rename(tmp_path / "model" / "vocab.json")
    assert digest() == first


def test_inputs_that_are_no_files_have_no_digest(digest, tmp_path):
    (tmp_path / "rows.csv").unlink()
    assert digest() is None
    if hasattr(os, "mkfifo"):  # reading one would never end
        os.mkfifo(tmp_path / "rows.csv")
        assert digest() is None


def test_damaged_records_are_not_found(tmp_path):
    for name, text in {"a": "[" * 200_000, "b": "{", "c": json.dumps({"inputs": "x"})}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    assert find_finished(tmp_path, "x") is None
