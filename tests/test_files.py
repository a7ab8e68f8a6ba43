"""Files on the disk: locks, reasons of errors, and tables that are safe in a spreadsheet."""

import csv
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from probekit import files
from probekit.activations.given.formats import find_arrays
from probekit.activations.local import LocalFiles
from probekit.activations.upkeep import caches_in
from probekit.data.readers import read_dataset, read_texts
from probekit.data.table import Columns
from probekit.errors import ConfigError, ProbekitError, StoreError
from probekit.experiment.loader import load_any_experiment
from probekit.files import Waiting, csv_text, inside, is_on_network, parse_csv
from probekit.model.weights.checkpoint import open_weights
from probekit.pipeline.compare.compare import FinishedRun, compare
from probekit.pipeline.measure.run_folder import do_task, pause, until_done
from probekit.probes.saved_probe import SavedProbe
from probekit.provenance import digest, digest_json
from probekit.report.pages.compare_page import load_runs
from probekit.report.pages.index_page import index_page
from probekit.report.pages.losses import write_losses
from probekit.report.pages.run_page import report_page
from probekit.results.record import pack_record
from probekit.training.corpus import read_corpus
from probekit.training.run_files import read_log
from tests.pipeline.finished import SITES, guesses, made_rows, write_run
from tests.report.conftest import HOSTILE, seal_run, write_shown
from tests.report.pages.test_losses import write_pretraining
from tests.report.pages.test_texts_page import make_facts

REPORTED = "run.json config.yaml results.csv differences.csv"
OF_PAGE = "attention.safetensors training.csv features.csv confusion.csv scatter.csv cosines.csv"
OTHERS = "reliability.csv wrong.json"
COMPARED = "run.json config.yaml results.csv predictions.csv sites sites/baselines.json"
OF_SITES = f"sites/{SITES[0]}.json sites/{SITES[1]}.safetensors"


def link_out(path, outside):
    """Move a file or folder out of the run and replace it with a link."""
    path.symlink_to(shutil.move(path, outside / f"of-{path.name}"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with all that a page shows, a pretraining run, and one that can be compared."""
    folder, rows = tmp_path_factory.mktemp("made"), made_rows(6, 2)
    guess = {site: guesses(rows, 0.8, seed) for seed, site in enumerate(SITES)}
    return {
        "shown": write_shown(folder / "shown"),
        "trained": write_pretraining(folder / "trained", HOSTILE),
        "compared": write_run(folder / "compared", rows, guess),
    }


# What reads the files of a run after those of a whole one: the run, and the files.
READERS_OF_RUNS = {
    "page": (lambda _, run: report_page(run), "shown", f"{REPORTED} {OF_PAGE} {OTHERS}"),
    "pages": (lambda *runs: load_runs(runs), "shown", REPORTED),
    "losses": (lambda _, run: write_losses(run), "trained", "log.csv"),
    "comparison": (compare, "compared", f"{COMPARED} {OF_SITES}"),
}


@pytest.mark.parametrize(
    ("what", "name"),
    [(what, name) for what, (*_, names) in READERS_OF_RUNS.items() for name in names.split()],
)
def test_no_file_of_another_folder_is_read(made, tmp_path, refused, what, name):
    read, of, _ = READERS_OF_RUNS[what]
    run = Path(shutil.copytree(made[of], tmp_path / "run"))
    if not (run / name).exists():
        (run / name).touch()
        seal_run(run)
    link_out(run / name, tmp_path)
    before = set(run.rglob("*"))
    refused(read, made[of], run)
    assert set(run.rglob("*")) == before


def test_a_record_that_names_files_of_other_folders_is_refused(made, tmp_path, refused):
    run = Path(shutil.copytree(made["compared"], tmp_path / "run"))
    (tmp_path / "mine.txt").write_text("mine")
    record = json.loads((run / "run.json").read_text())
    del record["format"], record["seal"]
    for name in ("../mine.txt", str(tmp_path / "mine.txt")):
        record["files"] = {name: digest([b"mine"])}
        (run / "run.json").write_bytes(pack_record(record))
        refused(FinishedRun, run)


@pytest.mark.parametrize("name", ["probe.json", "probe.safetensors", "."])
def test_a_probe_of_a_run_is_read_from_its_run(tmp_path, name, refused):
    folder = tmp_path / "run" / "probes" / "site"
    folder.mkdir(parents=True)
    probe = SavedProbe(((np.zeros((1, 48)), np.zeros(1)),), ("no", "yes"), make_facts())
    probe.save(folder / "probe")
    link_out(folder if name == "." else folder / name, tmp_path)
    SavedProbe.load(folder / "probe")  # a link of my own: there is no run around it
    (tmp_path / "run" / "run.json").write_text("{}")
    refused(SavedProbe.load, folder / "probe")


def test_the_index_reports_it_and_shows_nothing(tmp_path):
    run = write_shown(tmp_path / "runs" / "n" / "key")
    (tmp_path / "mine.csv").write_text("my secret\n")
    (run / "results.csv").unlink()
    (run / "results.csv").symlink_to(tmp_path / "mine.csv")
    page = index_page(tmp_path / "runs")
    assert "leads out of" in page
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


# What a spreadsheet would take for a formula, and what it would not.
FORMULAS = ["=cmd|' /C calc'!A0", "\t=1", "\r=1", "\n=1", "=1\r2"]
FORMULAS += ["@SUM(1)", "+1", "-1", "-1.5", "-", "=", "\uff1d1", "\uff0b1", "\uff0d1", "\uff201"]
PLAIN = ["", " =1", 'say "a"', "a\nb", "a\rb", "a\r\nb", "\x1b[2J", "\u202e", "a\0b"]
PLAIN += ["a", "'", "'a", "''", "it's", "a=1", "1", "1.5", "NA", "nan", "None", "True", "a,b"]
PLAIN += ["</script><b>", "%{x}"]
TEXTS = [*FORMULAS, *PLAIN, *(f"'{text}" for text in FORMULAS), *(f"''{t}" for t in FORMULAS)]
AS_TEXT = {"dtype": str, "keep_default_na": False}


def cells(text):
    return list(csv.reader(StringIO(text, newline="")))


@pytest.mark.parametrize("text", TEXTS, ids=repr)
def test_a_text_is_escaped_and_restored(text):
    table = pd.DataFrame({text: [text, "b"], "x": [-1.5, 2.0]})
    written = csv_text(table)
    for row in cells(written):
        assert not row[0] or row[0][0] not in "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
    assert [row[1] for row in cells(written)] == ["x", "-1.5", "2.0"]
    again = parse_csv(written.encode(), **AS_TEXT)
    if text:  # pandas names a column without a name
        assert list(again.columns) == [text, "x"]
    assert again.iloc[:, 0].tolist() == [text, "b"]
    assert cells(csv_text(pd.DataFrame({text: [1]})))[1:] == [["1"]]


def test_numbers_are_written_as_they_are():
    table = pd.DataFrame(
        {
            "float": [-1.5, np.nan],
            "single": np.array([-0.1, 1e-30], np.float32),
            "whole": [-1, 2],
            "either": pd.Series([-1, None], dtype=object),
            "flag": [True, False],
            "maybe": pd.array([True, None], "boolean"),
            "mixed": pd.Series([-1, "-1"], dtype=object),
        }
    )
    expected = table.to_csv(index=False, lineterminator="\n")
    assert csv_text(table) == expected.removesuffix("-1\n") + "'-1\n"
    assert csv_text(table.iloc[:0]) == expected.partition("\n")[0] + "\n"


def test_a_column_of_negative_labels_stays_text():
    """Without the quote pandas would read numbers, and '-1' and '-1.0' would be one label."""
    written = csv_text(pd.DataFrame({"label": ["-1", "-1.0"], "n": [-1, -2]}))
    again = parse_csv(written.encode(), keep_default_na=False)
    assert again["label"].tolist() == ["-1", "-1.0"]
    assert again["n"].tolist() == [-1, -2]


def test_files_of_other_programs_are_read_as_they_are():
    again = parse_csv(b"label,n\n=1,-1\n-1,2\n'a,3\n", **AS_TEXT)
    assert again["label"].tolist() == ["=1", "-1", "'a"]


_HOLDER = """
import sys, time
from pathlib import Path
from probekit.files import try_lock
with try_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(100)
"""


@contextmanager
def stopped(lock):
    """A stopped process that holds a lock."""
    command = [sys.executable, "-c", _HOLDER, lock]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        holder.send_signal(signal.SIGSTOP)
        yield holder


def wait_for_cache(folder, tell):
    with LocalFiles(folder).lock(tell):
        return


def wait_for_task(folder, tell):
    task = folder, Path("sites/a.json")
    wait = partial(pause, Waiting(folder, tell), folder)
    list(until_done([task], lambda tasks: [do_task(*tasks[0], lambda: None, str)], wait))


@pytest.mark.parametrize(
    ("name", "wait"),
    [(".lock", wait_for_cache), (f"claims/{digest_json('sites/a.json')[:24]}.lock", wait_for_task)],
)
def test_a_stopped_holder_of_a_lock_is_named_with_the_way_to_continue(
    tmp_path, monkeypatch, name, wait
):
    monkeypatch.setattr(files, "WAITED", 0.2)
    messages = []
    with stopped(tmp_path / name) as holder:

        def tell(message):
            messages.append(message)
            holder.kill()  # as the message proposes

        wait(tmp_path, tell)
    process = f"process {holder.pid} on {platform.node()}"
    named = f"waiting for {process}, which has locked {tmp_path} since 20"
    (message,) = messages
    assert message.startswith(named)
    assert f"`kill -CONT {holder.pid}`, or end it with `kill -KILL {holder.pid}`" in message


def test_a_second_process_is_refused_with_the_number_of_the_first(tmp_path):
    with stopped(tmp_path / ".lock") as holder:
        with pytest.raises(ConfigError) as caught, files.exclusive(tmp_path, "study"):
            pass
        holder.kill()
    named = f"running this study in {tmp_path}: process {holder.pid} on {platform.node()} since 20"
    assert named in str(caught.value)
    assert f"continue it on its machine with `kill -CONT {holder.pid}`" in str(caught.value)


READERS = {
    "csv": lambda path: read_dataset(path, format="csv"),
    "jsonl": lambda path: read_dataset(path, format="jsonl"),
    "parquet": lambda path: read_dataset(path, format="parquet"),
    "conllu": lambda path: read_dataset(path, format="conllu", columns=Columns(label="UPOS")),
    "txt": read_texts,
    "yaml": load_any_experiment,
    "npy": lambda path: find_arrays(path.parent),
    "safetensors": lambda path: find_arrays(path.parent),
    "corpus": partial(read_corpus, files=(), unwrap=False, held_out=0.1, max_megabytes=1),
    "weights.safetensors": open_weights,
    "weights.bin": open_weights,
    "json": SavedProbe.load,
    "log.csv": read_log,
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", READERS)
def test_pipes_are_refused_by_every_reader(tmp_path, name):
    path = tmp_path / f"x.{name}"
    os.mkfifo(path)
    with pytest.raises(ProbekitError, match=r"is a (named )?pipe"):
        READERS[name](path)


def test_a_loop_of_links_is_on_no_network(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert not is_on_network(tmp_path / "loop")
    with pytest.raises(StoreError, match="Too many levels of symbolic links"):
        caches_in(tmp_path / "loop")
