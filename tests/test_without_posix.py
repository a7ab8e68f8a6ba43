"""The package on systems without POSIX calls, such as Windows."""

import os
import signal
import subprocess
import sys

import pytest

from probekit import workers
from probekit.cli import main as command
from probekit.workers import parallel_map
from tests import without_posix
from tests.pipeline.planted import YAML, write_rows


@pytest.mark.nightly
def test_a_probe_and_an_experiment_run_without_posix(tmp_path):
    (tmp_path / "experiment.yaml").write_text(YAML)
    write_rows(tmp_path / "rows.csv")
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", without_posix.__file__, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    score, n_rows, is_ours = done.stdout.split()
    assert float(score) > 0.9
    assert int(n_rows) > 10
    assert is_ours == "True"


def test_a_child_ignores_ctrl_c_where_signals_cannot_be_blocked(monkeypatch):
    monkeypatch.delattr(signal, "pthread_sigmask")
    before = signal.getsignal(signal.SIGINT)
    try:
        with workers._sigint_blocked_in_children():
            assert signal.getsignal(signal.SIGINT) == before
        workers._ignore_ctrl_c()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def process_id(_):
    return os.getpid()


def test_without_loky_all_jobs_run_in_this_process(monkeypatch):
    monkeypatch.setattr(workers, "START_UP", -1.0)
    monkeypatch.setattr(workers, "ProcessPoolExecutor", None)
    assert set(parallel_map(process_id, range(4), workers=2)) == {os.getpid()}


def test_every_signal_that_ends_a_command_lets_it_clean_up(monkeypatch):
    """Windows has SIGBREAK in addition to SIGTERM."""
    monkeypatch.setattr(command, "_TERMINATE", [signal.SIGTERM, signal.SIGUSR1])
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(command._Terminated), command._sigterm_raises():
        signal.raise_signal(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) == before
