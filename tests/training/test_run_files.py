"""Any changed byte of a training state or its log is detected."""

from dataclasses import replace

import pytest
import torch

from probekit.errors import CheckpointError
from probekit.training.loop import write_state
from probekit.training.run_files import LogRow, Progress, read_log, read_progress, write_log
from tests.damage import cut, flipped
from tests.training.recipes import tiny_recipe

ROWS = [LogRow(step, 128 * step, 0, 9 / step, 1e-9, 5000.25) for step in range(1, 21)]
ROWS[9] = replace(ROWS[9], held_out_loss=4.5, repeated_first=0.0)
WEIGHT = torch.arange(40.0).reshape(8, 5)
TENSORS = {"model.wte.weight": WEIGHT, "optimizer.0.1.step": torch.ones(())}


def write_run(folder, seed=0):
    """Write log and state of a run of 20 steps, and return its progress."""
    logged = write_log(folder / "log.csv", [replace(row, loss=row.loss + seed) for row in ROWS])
    progress = Progress.of(20, tiny_recipe("texts", seed=seed), "corpus", "tokens", logged)
    write_state(folder / "state.safetensors", TENSORS, progress)
    return progress


@pytest.fixture
def progress(tmp_path):
    return write_run(tmp_path)


def test_progress_is_read_as_it_was_written(tmp_path, progress):
    assert read_progress(tmp_path) == progress
    assert list(read_log(tmp_path / "log.csv", progress)) == read_log(tmp_path / "log.csv")


@pytest.mark.parametrize("name", ["state.safetensors", "log.csv"])
def test_a_changed_or_cut_file_is_refused_with_a_way_out(tmp_path, progress, name):
    path = tmp_path / name
    content = path.read_bytes()
    is_log = name == "log.csv"  # its length is in the state
    longer = () if is_log else (content + b"\0", content + content)
    remedy = r"delete state\.safetensors" if is_log else "Delete it"
    for damaged in (*flipped(content, 200), *cut(content, 40), *longer):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=rf"{name} is damaged.*{remedy}"):
            read_log(path, progress) if is_log else read_progress(tmp_path)


def test_a_log_that_was_read_is_written_as_the_same_bytes(tmp_path, progress):
    """Otherwise a run killed between log and state could not be resumed."""
    rows = read_log(tmp_path / "log.csv")
    assert write_log(tmp_path / "again.csv", rows) == progress.log
    assert write_log(tmp_path / "again.csv", rows[:7]) != progress.log


def test_later_steps_of_a_log_are_left_out(tmp_path, progress):
    path = tmp_path / "log.csv"
    path.write_bytes(path.read_bytes() + b"21,2688,0.0,\xff\n22,")
    assert [row.step for row in read_log(path, progress)] == list(range(1, 21))


def test_a_log_of_another_run_is_refused(tmp_path, progress, refused):
    write_run(tmp_path, seed=1)
    refused(read_log, tmp_path / "log.csv", progress)


def test_a_state_of_another_release_is_refused(tmp_path, progress, refused):
    refused(replace(progress, recipe="{}").check_recipe, tiny_recipe("texts"), tmp_path)
