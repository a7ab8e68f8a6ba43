"""The page of a pretraining run shows the contents of its log, during the run and afterwards."""

import json
import math
import re
import time
from functools import partial

import pytest

from probekit.errors import CheckpointError, DataError, MissingError
from probekit.report.pages.index_page import entry
from probekit.report.pages.pretraining_page import write_pretraining_report
from probekit.results.record import pack_record
from probekit.training.log import LogRow, read_log, write_log
from probekit.training.progress import Progress
from probekit.training.state import write_state
from tests.training.recipes import tiny_recipe


def a_log(steps):
    return [
        LogRow(
            step,
            1024 * step,
            0.001,
            9 / step**0.1,
            2.0,
            5000.0,
            *((8.0 - step / 1000, 2.0 - step / 4000, 9.1, 7.1) if step % 100 == 0 else ()),
        )
        for step in range(1, steps + 1)
    ]


def write_pretraining(folder, hostile):
    """Write a run with 700 of 1,000 steps completed, and return its folder."""
    folder.mkdir(exist_ok=True)
    write_log(folder / "log.csv", a_log(700))
    record = {
        "run": hostile,
        "steps": 1000,
        "tokens_per_step": 1024,
        "texts": [hostile, "b.txt"],
        "tokens": {"train": 358_400, "held_out": 2000},
        "characters": {"train": 1_000_000, "held_out": 8000},
        "vocabulary": 300,
        "parameters": 12_345,
        "digests": {"corpus": "ab12", "tokens": "cd34"},
        "versions": {"torch": "2"},
    }
    (folder / "run.json").write_bytes(pack_record(record))
    (folder / "recipe.yaml").write_text(f"name: {hostile}\n")
    return folder


@pytest.fixture
def folder(tmp_path, hostile):
    return write_pretraining(tmp_path, hostile)


def test_the_page_states_progress_and_losses(folder):
    page = write_pretraining_report(folder).read_text()
    assert "After 700 of 1,000 steps (716,800 tokens) the held-out loss is 7.30 nats" in page
    assert re.search(r"nats per token; it was \d\.\d\d at step 600\.", page)
    for name, value in {
        "held-out loss": "7.300",
        "held-out loss per character": "1.8250",
        "second occurrence": "7.10",
        "passes over the training text": "2.0",
    }.items():
        assert f"<bdi>{name}</bdi></th><td>{value}</td>" in page


def test_the_table_has_every_evaluation(folder):
    page = write_pretraining_report(folder).read_text()
    table = page[page.index("All 7 evaluations") : page.index("2 texts")]
    assert table.count("<tr>") == 1 + 7
    assert "<td>7.9000</td><td>1.9750</td><td>9.100</td><td>7.100</td>" in table


def figures(page):
    parts = page.split('<script type="application/json">')[1:]
    return [json.loads(part.partition("</script>")[0]) for part in parts]


def test_the_curve_of_the_batches_is_their_mean_over_neighbouring_steps(folder):
    batches, held_out, *_ = figures(write_pretraining_report(folder).read_text())[0]["data"]
    assert held_out["x"] == [100 * n for n in range(1, 8)]
    assert held_out["y"] == [pytest.approx(8.0 - n / 10) for n in range(1, 8)]
    assert len(batches["x"]) < 200
    log = {row.step: row.loss for row in read_log(folder / "log.csv")}
    assert batches["y"][0] == log[1]
    assert min(log.values()) < batches["y"][-1] < batches["y"][0]


def test_hostile_names_are_escaped(folder, hostile):
    page = write_pretraining_report(folder).read_text()
    assert hostile not in page
    assert "<h1>" in page


def test_a_run_without_evaluation_says_so(folder):
    write_log(folder / "log.csv", a_log(5))
    page = write_pretraining_report(folder).read_text()
    assert "has not been measured yet" in page
    assert "evaluations</summary>" not in page


def test_a_run_without_a_step_is_refused(folder):
    write_log(folder / "log.csv", [])
    with pytest.raises(DataError, match="no step yet"):
        write_pretraining_report(folder)


@pytest.mark.parametrize("name", ["log.csv", "run.json", "recipe.yaml"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(MissingError, match=name):
        write_pretraining_report(folder)


def test_a_damaged_log_is_refused(folder):
    (folder / "log.csv").write_text("step,tokens\n1,x\n")
    with pytest.raises(DataError, match=r"log.csv"):
        write_pretraining_report(folder)


def test_a_log_reads_as_it_was_written(folder):
    rows = read_log(folder / "log.csv")
    for row, other in zip(rows, a_log(700), strict=True):
        assert row == other or math.isnan(row.held_out_loss)
    assert rows[99] == a_log(100)[99]


def test_a_log_that_is_not_that_of_the_state_is_refused(folder):
    logged = write_log(folder / "log.csv", a_log(20))
    progress = Progress.of(20, tiny_recipe("texts"), "ab12", "cd34", logged)
    write_state(folder / "state.safetensors", {}, progress)
    assert write_pretraining_report(folder)
    write_log(folder / "log.csv", a_log(19))
    with pytest.raises(CheckpointError, match=r"log\.csv is damaged or belongs to another run"):
        write_pretraining_report(folder)


def test_a_damaged_log_is_not_listed_as_a_result(tmp_path):
    folder = write_pretraining(tmp_path / "little", "little")
    logged = write_log(folder / "log.csv", a_log(20))
    progress = Progress.of(20, tiny_recipe("texts"), "ab12", "cd34", logged)
    write_state(folder / "state.safetensors", {}, progress)
    listed = partial(entry, tmp_path, folder, now=time.time())
    assert "After 20 of 1,000 steps" in listed().summary
    write_log(folder / "log.csv", a_log(15))
    assert (listed().state, listed().url) == ("damaged", "")
    assert "log.csv is damaged or belongs to another run" in listed().summary


def test_a_damaged_record_is_explained(folder):
    (folder / "run.json").write_text('{"run": "a", "steps": "many"}')
    with pytest.raises(
        DataError, match=r"run\.json is damaged.*steps: Input should be.*and \d+ more"
    ):
        write_pretraining_report(folder)
