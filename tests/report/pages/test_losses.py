"""The figure of a pretraining run shows its log, during the run and afterwards."""

from functools import partial

import pytest

from probekit.report.pages.index_page import entry
from probekit.report.pages.losses import loss_figure, write_losses
from probekit.results.record import pack_record
from probekit.training.loop import write_state
from probekit.training.run_files import LogRow, Progress, read_log, write_log
from tests.report.page_text import text_of
from tests.stored import portable
from tests.training.recipes import tiny_recipe


def a_log(steps):
    """A log whose losses fall; every hundredth step has those of held-out text and of repeats."""
    rows = []
    for step in range(1, steps + 1):
        measured = (8.0 - step / 1000, 2.0 - step / 4000, 9.1, 7.1) if step % 100 == 0 else ()
        rows.append(LogRow(step, 1024 * step, 0.001, 9 / step**0.1, 2.0, 5000.0, *measured))
    return rows


def write_pretraining(folder, hostile):
    """Write a run with 700 of 1,000 steps completed, and return its folder."""
    folder.mkdir(exist_ok=True)
    write_log(folder / "log.csv", a_log(700))
    record = {"run": hostile, "steps": 1000, "tokens_per_step": 1024, "vocabulary": 300}
    record |= {
        "texts": [hostile, "b.txt"],
        "tokens": {"train": 358_400, "held_out": 2000},
        "characters": {"train": 1_000_000, "held_out": 8000},
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


def test_batches_are_averaged_and_other_losses_are_drawn_as_measured(folder):
    log = read_log(folder / "log.csv")
    batches, held_out, first, second, *_ = loss_figure(log, 8192).data
    assert held_out.x == first.x == second.x == tuple(100 * n for n in range(1, 8))
    assert held_out.y == pytest.approx([8.0 - n / 10 for n in range(1, 8)])
    assert (set(first.y), set(second.y)) == ({9.1}, {7.1})
    assert len(batches.x) < 200
    losses = [row.loss for row in log]
    assert batches.y[0] == losses[0]
    assert min(losses) < batches.y[-1] < batches.y[0]
    names = [line.name or "" for line in loss_figure(a_log(5), 8192).data]
    assert not any(
        "held-out" in name or "repeats" in name for name in names
    )  # nothing was measured on held-out text yet


def test_the_file_needs_no_network_and_no_name_of_the_run(folder, hostile):
    page = write_losses(folder).read_text()
    words = " ".join(text_of(page).split())
    assert "After 700 of 1,000 steps, the held-out loss is 7.30 nats per token; the" in words
    assert "a uniform guess over 300 tokens has 5.70" in words
    assert len(page) < 2_000_000
    assert hostile not in page
    assert 'src="http' not in page


def test_an_empty_damaged_or_missing_log_is_refused(folder, refused):
    write_log(folder / "log.csv", [])
    refused(write_losses, folder)
    (folder / "log.csv").write_text("step,tokens\n1,x\n")
    refused(write_losses, folder)
    (folder / "log.csv").unlink()
    refused(write_losses, folder)


def test_a_log_that_is_not_that_of_the_state_is_no_result(tmp_path, refused, snapshot):
    folder = write_pretraining(tmp_path / "little", "little")
    logged = write_log(folder / "log.csv", a_log(20))
    progress = Progress.of(20, tiny_recipe("texts"), "ab12", "cd34", logged)
    write_state(folder / "state.safetensors", {}, progress)
    listed = partial(entry, tmp_path, folder)
    assert write_losses(folder)
    assert listed().summary == snapshot
    write_log(folder / "log.csv", a_log(15))
    refused(write_losses, folder)
    assert (listed().state, listed().url) == ("damaged", "")
    assert portable(listed().summary, tmp_path) == snapshot
    (folder / "run.json").write_text('{"run": "a", "steps": "many"}')
    assert "run.json is damaged" in listed().summary
