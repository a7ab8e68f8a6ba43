"""Parallel jobs: order, errors and threads."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed

from probekit import workers
from probekit.errors import ConfigError, DataError
from probekit.workers import parallel_map


@pytest.fixture
def eager(monkeypatch):
    """Start processes even for short jobs, on a machine of two cores."""
    monkeypatch.setattr(workers, "START_UP", -1.0)
    monkeypatch.setattr(workers, "cpu_count", lambda: 2)


@pytest.fixture
def handler():
    """Make Ctrl-C raise, even if the tests were started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def where(item):
    return item, os.getpid(), torch.get_num_threads()


class InBoth:
    """A job that the parent does only once a helper has begun it, so that both do some of it."""

    def __init__(self, folder, job):
        self.begun, self.job, self.parent = folder / secrets.token_hex(8), job, os.getpid()

    def __call__(self, item):
        if os.getpid() != self.parent:
            self.begun.touch()
        while item and not self.begun.exists():  # the parent does the first item alone
            time.sleep(0.01)
        time.sleep(0.01)
        return self.job(item)


def fails(item):
    if item == 2:
        raise DataError("two is not allowed")
    return item


def killed_elsewhere(item, here):
    if os.getpid() != here:
        os.kill(os.getpid(), signal.SIGKILL)


def slept(item, seconds):
    time.sleep(seconds)
    return item, os.getpid()


def test_results_of_all_processes_are_ordered_and_use_their_share_of_threads(eager, tmp_path):
    found = list(parallel_map(InBoth(tmp_path, where), range(20)))
    assert [item for item, _, _ in found] == list(range(20))
    assert found[0][1] == os.getpid()
    assert len({pid for _, pid, _ in found}) == 2
    assert {n for _, _, n in found} == {1}


def begun(item, folder):
    (folder / str(item)).touch()
    time.sleep(0.05)


def test_results_come_about_as_fast_as_items_are_done(eager, tmp_path):
    folder = tmp_path / "items"
    folder.mkdir()
    results = parallel_map(InBoth(tmp_path, partial(begun, folder=folder)), range(20))
    for _ in range(10):
        next(results)
    assert len(list(folder.iterdir())) < 16  # so that a count of the results shows the progress
    list(results)


def test_one_worker_runs_in_this_process_with_all_threads(eager):
    before = torch.get_num_threads()
    found = list(parallel_map(where, range(3), workers=1))
    assert {pid for _, pid, _ in found} == {os.getpid()}
    assert {n for _, _, n in found} == {2}
    assert torch.get_num_threads() == before


def test_short_jobs_start_no_process():
    assert {pid for _, pid, _ in parallel_map(where, range(4), workers=4)} == {os.getpid()}


def test_long_jobs_start_processes(monkeypatch):
    monkeypatch.setattr(workers, "START_UP", 0.2)
    found = list(parallel_map(partial(slept, seconds=0.2), range(4), workers=2))
    assert len({pid for _, pid in found[1:]} - {os.getpid()}) > 0


def test_an_error_of_a_job_is_raised_unchanged(eager):
    with pytest.raises(DataError, match="two is not allowed"):
        list(parallel_map(fails, range(4)))


def test_a_killed_process_is_reported_with_advice(eager, tmp_path):
    job = InBoth(tmp_path, partial(killed_elsewhere, here=os.getpid()))
    with pytest.raises(DataError, match="--workers"):
        list(parallel_map(job, range(20)))


def test_scikit_learn_can_start_its_own_processes_afterwards(eager, tmp_path):
    job = InBoth(tmp_path, where)
    assert len({pid for _, pid, _ in parallel_map(job, range(20))}) == 2
    assert Parallel(n_jobs=2)(delayed(abs)(number) for number in range(-3, 0)) == [3, 2, 1]


def test_processes_are_reused_and_replaced_after_idling_or_failing(eager, monkeypatch, tmp_path):
    monkeypatch.setattr(workers, "IDLE", 0.5)
    workers._processes.cache_clear()
    others = []
    for pause in (0, 0, 3, 0):
        time.sleep(pause)
        found = {pid for _, pid, _ in parallel_map(InBoth(tmp_path, where), range(20))}
        others += found - {os.getpid()}
        if len(others) == 3:
            with pytest.raises(DataError, match="two"):
                list(parallel_map(InBoth(tmp_path, fails), range(20)))
    first, again, after_idle, after_failure = others
    assert first == again
    assert len({first, after_idle, after_failure}) == 3
    workers._processes.cache_clear()


def folder_of_process(_):
    return Path.cwd(), os.getpid()


def test_a_reused_process_has_the_working_directory_of_the_caller(eager, monkeypatch, tmp_path):
    workers._processes.cache_clear()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        job = InBoth(tmp_path, folder_of_process)
        found = set(parallel_map(job, range(20)))
        assert {folder for folder, _ in found} == {tmp_path / name}
        assert len(found) == 2


def hears_ctrl_c(_):
    return os.getpid(), signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_ctrl_c_is_answered_by_this_process_alone(eager, tmp_path):
    """A terminal sends Ctrl-C to all processes; only the parent may print."""
    hearing = dict(parallel_map(InBoth(tmp_path, hears_ctrl_c), range(20)))
    assert hearing.pop(os.getpid())
    assert set(hearing.values()) == {False}


def fits_until_interrupted(item, here, folder):
    """Fit an MLP in the helper; interrupt this process once the helper has begun."""
    if os.getpid() != here:
        from probekit.probes.kinds.mlp import MlpProbe  # not in the start of every helper

        (folder / "begun").touch()
        X = np.random.default_rng(0).normal(size=(200, 5))
        for seed in range(100_000):
            MlpProbe(alpha=0.1, random_state=seed).fit(X, X[:, 0] > 0)
        (folder / "ended").touch()
    elif item:
        while not (folder / "begun").exists():
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_during_an_mlp_fit_in_a_helper_ends_the_helper(eager, tmp_path, handler):
    job = partial(fits_until_interrupted, here=os.getpid(), folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        list(parallel_map(job, range(3)))
    assert not (tmp_path / "ended").exists()
    assert workers._processes.cache_info().currsize == 0


def test_a_job_ends_with_the_interrupt_that_a_library_caught(handler):
    def careless(item):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        list(parallel_map(careless, [1]))


def test_nothing_to_do_and_no_workers():
    assert list(parallel_map(fails, [])) == []
    with pytest.raises(ConfigError, match="workers is 0"):
        list(parallel_map(fails, [1], workers=0))


_KILLED = """
import os, time
from probekit import workers
workers.START_UP, workers.cpu_count = -1.0, lambda: 2
def job(item):
    print(os.getpid(), flush=True)
    time.sleep(1000 if item else 0)
list(workers.parallel_map(job, range(3)))
"""


def test_a_killed_run_leaves_no_process_behind():
    with subprocess.Popen([sys.executable, "-c", _KILLED], stdout=subprocess.PIPE) as run:
        pids = {int(run.stdout.readline()) for _ in range(3)}
        run.kill()
        # The end of the pipe comes when the last process that holds it has ended.
        assert run.communicate(timeout=50)[0] == b""
    assert len(pids) == 2
