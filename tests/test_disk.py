"""Links out of a run folder are refused for every file of a run."""

import json
import os
import shutil

import numpy as np
import pytest

from probekit.disk import inside
from probekit.errors import DataError, ProbekitError
from probekit.experiment.loader import load_experiment
from probekit.pipeline.compare.compare import compare
from probekit.probes.saved.saved_probe import SavedProbe
from probekit.provenance import digest
from probekit.report.pages.index_page import index_page
from probekit.report.pages.pretraining_page import write_pretraining_report
from probekit.report.pages.run_page import report_page
from probekit.report.pages.runs_page import load_runs
from probekit.results.finished_run import FinishedRun
from probekit.results.record import pack_record
from tests.pipeline.finished import SITES, guesses, made_rows, write_run
from tests.report.conftest import HOSTILE, seal_run, write_shown
from tests.report.pages.test_pretraining_page import write_pretraining
from tests.report.pages.test_texts_page import make_facts

REPORTED = (
    "run.json",
    "config.yaml",
    "results.csv",
    "attention.safetensors",
    "differences.csv",
    "reliability.csv",
    "training.csv",
    "features.csv",
    "confusion.csv",
    "scatter.csv",
    "cosines.csv",
    "wrong.json",
)
COMPARED = (
    "run.json",
    "config.yaml",
    "results.csv",
    "test_rows.csv",
    "sites",
    f"sites/{SITES[0]}.json",
    f"sites/{SITES[1]}.safetensors",
    "sites/baselines.json",
)
OUT = "leads out of"


def link_out(path, outside):
    """Move a file or folder out of the run and replace it with a link."""
    target = outside / f"of-{path.name}"
    if path.exists():
        shutil.move(path, target)
    else:
        target.write_text("")
    path.symlink_to(target)


@pytest.mark.parametrize("name", REPORTED)
def test_a_page_is_made_of_the_files_of_its_run_alone(tmp_path, name):
    run = write_shown(tmp_path / "run")
    if not (run / name).exists():
        (run / name).touch()
        seal_run(run)
    link_out(run / name, tmp_path)
    with pytest.raises(DataError, match=f"{name} {OUT}"):
        report_page(run)


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "results.csv", "differences.csv"])
def test_a_page_of_several_runs_too(tmp_path, name):
    runs = [write_shown(tmp_path / key) for key in "ab"]
    link_out(runs[1] / name, tmp_path)
    with pytest.raises(DataError, match=f"{name} {OUT}"):
        load_runs(runs)


@pytest.mark.parametrize("name", ["run.json", "recipe.yaml", "log.csv"])
def test_the_page_of_a_pretraining_run_too(tmp_path, name):
    run = write_pretraining(tmp_path / "run", HOSTILE)
    link_out(run / name, tmp_path)
    with pytest.raises(DataError, match=f"{name.replace('.', '[.]')} {OUT}"):
        write_pretraining_report(run)
    assert not (run / "report.html").exists()


@pytest.fixture
def two(tmp_path):
    rows = made_rows(6, 2)
    guess = {site: guesses(rows, 0.8, seed) for seed, site in enumerate(SITES)}
    return [write_run(tmp_path / key, rows, guess) for key in "ab"]


@pytest.mark.parametrize("name", COMPARED)
def test_a_comparison_reads_no_file_of_another_folder(two, tmp_path, name):
    compare(*two)
    link_out(two[1] / name, tmp_path)
    with pytest.raises(DataError, match=OUT):
        compare(*two)


def test_a_record_that_names_files_of_other_folders_is_refused(two, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    path = two[0] / "run.json"
    record = {k: v for k, v in json.loads(path.read_text()).items() if k not in ("format", "seal")}
    for name in ("../mine.txt", str(tmp_path / "mine.txt")):
        record["files"] = {name: digest([b"mine"])}
        path.write_bytes(pack_record(record))
        with pytest.raises(DataError, match="is outside the folder"):
            FinishedRun.open(two[0], load_experiment)


@pytest.mark.parametrize("name", ["probe.json", "probe.safetensors", "."])
def test_a_probe_of_a_run_is_read_from_its_run(tmp_path, name):
    folder = tmp_path / "run" / "probes" / "site"
    folder.mkdir(parents=True)
    probe = SavedProbe(((np.zeros((1, 48)), np.zeros(1)),), ("no", "yes"), make_facts())
    probe.save(folder / "probe")
    link_out(folder if name == "." else folder / name, tmp_path)
    SavedProbe.load(folder / "probe")  # a link of my own: there is no run around it
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(DataError, match=OUT):
        SavedProbe.load(folder / "probe")


def test_the_index_reports_it_and_shows_nothing(tmp_path):
    run = write_shown(tmp_path / "runs" / "n" / "key")
    (tmp_path / "mine.csv").write_text("my secret\n")
    (run / "results.csv").unlink()
    (run / "results.csv").symlink_to(tmp_path / "mine.csv")
    page = index_page(tmp_path / "runs")
    assert OUT in page
    assert "my secret" not in page


def test_links_within_the_folder_and_to_the_folder_are_followed(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "a").write_text("a")
    (run / "b").symlink_to("a")
    (tmp_path / "link").symlink_to(run)
    for path in (run / "b", tmp_path / "link" / "b", run / "none", run / ".." / "run" / "a"):
        assert inside(path) == path
    assert inside(tmp_path / "link" / "b", run).read_text() == "a"


@pytest.mark.parametrize("kind", ["circle", "dangling", "pipe", "pipe behind a link", "above"])
def test_what_is_no_file_of_the_folder_is_refused(tmp_path, kind):
    path = tmp_path / "run" / "file"
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "pipe behind a link":
        os.mkfifo(path.parent / "pipe")
        path.symlink_to("pipe")
    else:
        path.symlink_to({"circle": "file", "dangling": "/none", "above": ".."}[kind])
    with pytest.raises(ProbekitError, match=r"file (is|leads)"):
        inside(path)
