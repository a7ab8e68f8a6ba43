"""A second run reuses complete results of the same inputs and recomputes all others."""

import json
import os
import re
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from probekit.activations.store import ActivationStore
from probekit.model.weights.sources import MINI
from probekit.pipeline.experiment.record import run_key
from probekit.pipeline.experiment.source import model_source
from probekit.provenance import PACKAGE, PART_VERSIONS


def test_second_run_recomputes_nothing(experiment, go, monkeypatch):
    first = go(experiment())
    content = first.results.read_bytes()
    monkeypatch.setattr("probekit.probes.prober.Prober.site", None)  # would fail if it were called
    monkeypatch.setattr(ActivationStore, "writing", None)  # a capture would call it
    second = go(experiment())
    assert second.folder == first.folder
    assert second.results.read_bytes() == content


def test_interrupted_run_resumes_with_the_remaining_sites(experiment, go):
    whole = go(experiment())
    content = whole.results.read_bytes()
    sites = sorted((whole.folder / "sites").iterdir())
    kept = whole.folder / "sites" / "blocks.0.hook_resid_pre.json"
    lost = [path for path in sites if path.stem != kept.stem]
    before = kept.stat().st_mtime_ns
    for path in (*lost, whole.results, whole.folder / "run.json"):
        path.unlink()
    assert go(experiment()).results.read_bytes() == content
    assert kept.stat().st_mtime_ns == before


def test_incomplete_site_results_are_recomputed(experiment, go):
    """A run may be killed after the answers of a site are written, and before its numbers are."""
    first = go(experiment(), page=False)
    content = first.results.read_bytes()
    answers = first.folder / "sites" / "blocks.3.hook_resid_post.safetensors"
    whole = answers.read_bytes()
    for damage in (whole[:-5], whole[:3], b"", whole.replace(b"logs", b"logz", 1)):
        answers.write_bytes(damage)
        assert go(experiment(), page=False).results.read_bytes() == content
        assert answers.read_bytes() == whole
    answers.with_suffix("").with_name("blocks.3.hook_resid_post.json").unlink()
    assert go(experiment(), page=False).results.read_bytes() == content


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", "[" * 100_000, '{"digest": "0", "measurements": []}', "altered", "lost"],
)
def test_damaged_site_results_are_recomputed(experiment, go, damage):
    first = go(experiment(), page=False)
    content = first.results.read_bytes()
    path = first.folder / "sites" / "blocks.3.hook_resid_post.json"
    whole = path.read_text()
    if damage == "lost":
        path.unlink()
    else:
        altered = re.sub(r'"value": [\d.]+', '"value": 0.123', whole, count=1)
        path.write_text(altered if damage == "altered" else damage)
    assert go(experiment(), page=False).results.read_bytes() == content
    assert path.read_text() == whole


def test_saved_results_of_another_site_are_recomputed(experiment, go):
    first = go(experiment(), page=False)
    content = first.results.read_bytes()
    one, other = (first.folder / "sites" / f"blocks.{n}.hook_resid_post.json" for n in (0, 3))
    shutil.copy(one, other)
    assert go(experiment(), page=False).results.read_bytes() == content


def test_changed_code_or_sizes_reuse_no_result(experiment, go, tmp_path, monkeypatch):
    folders = {go(experiment(), page=False).folder}
    model = tmp_path / "model"
    shutil.copytree(MINI, model)
    (model / "digests.json").unlink()
    config = json.loads((model / "config.json").read_text())
    for change in ({}, {"layer_norm_epsilon": 0.5}, {"n_head": 8}):
        (model / "config.json").write_text(json.dumps(config | change))
        folders.add(go(experiment(f"model.source={model}"), page=False).folder)
    for part in PART_VERSIONS:
        with monkeypatch.context() as patch:
            patch.setitem(PART_VERSIONS, part, 2)
            folders.add(run_key(model_source(experiment(), "cpu"), None))
    assert len(folders) == 4 + len(PART_VERSIONS)


def test_a_refactoring_reuses_activations_and_no_result(experiment, go, tmp_path):
    """A comment in a copy of the package changes the key of the run, but not that of the caches."""
    first = go(experiment(), page=False)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.safetensors")}
    package = tmp_path / "code" / "probekit"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    with (package / "model" / "families" / "gpt2.py").open("a") as file:
        file.write("# A comment.\n")
    options = ["planted.yaml", "--out", "runs", "--cache", "cache", "--no-page"]
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


def test_settings_that_affect_numbers_change_the_key(experiment, go, tmp_path):
    first = go(experiment())
    folders = {go(experiment(change)).folder for change in ("probe.seed=1", "split.seed=1")}
    assert len(folders | {first.folder}) == 3
    text = (tmp_path / "rows.csv").read_text()
    (tmp_path / "rows.csv").write_text(text.replace("carriage", "coach"))
    assert go(experiment()).folder != first.folder


def test_new_labels_recompute_no_activation(experiment, go, tmp_path, monkeypatch):
    go(experiment())
    rows = pd.read_csv(tmp_path / "rows.csv")
    rows["label"] = rows["label"].map({"red": "A", "black": "B"})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    monkeypatch.setattr(ActivationStore, "writing", None)  # a capture would call it
    assert set(go(experiment()).record["data"]["labels"]["train"]) == {"A", "B"}


def test_data_folder_is_not_part_of_the_key(experiment, go, tmp_path):
    first = go(experiment())
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.copy(tmp_path / "rows.csv", moved)
    assert go(experiment(f"data.root={moved}")).folder == first.folder
