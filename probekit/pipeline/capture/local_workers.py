"""Capturing with several processes on this machine that share one cache."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from joblib import cpu_count

from probekit.activations.upkeep import remove_dead_locks
from probekit.activations.work import MissingSites, OnRows, Work
from probekit.pipeline.capture.jobs import Job, close_job, put_job
from probekit.terminal import Watcher

Workers = Callable[[Job, Work, MissingSites, OnRows], None]
_SECONDS_TO_LEAVE = 20
# On Windows only a whole process group can be interrupted, so each worker gets its own group.
_INTERRUPT = getattr(signal, "CTRL_BREAK_EVENT", signal.SIGINT)
_OWN_GROUP = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
_CODE = str(Path(__file__).resolve().parents[3])  # workers must import the same code


def by_processes(
    job: Job,
    work: Work,
    lacking: MissingSites,
    on_rows: OnRows,
    *,
    n_workers: int,
    device: str,
    watcher: Watcher,
    n_threads: int | None = None,
) -> None:
    """Compute the missing shards with `probekit worker` processes; each loads the model once.

    Args:
        job: job of the cache.
        work: the capture.
        lacking: missing sites of each shard.
        on_rows: called with the number of newly computed rows.
        n_workers: maximum number of processes; at most one per shard is started.
        device: compute device.
        watcher: receives a message about processes that failed.
        n_threads: threads per process; None for an equal share of the cores.

    Raises:
        StoreError: shards are missing after all processes ended, or the store does not support
            several writers.
    """
    n_processes = min(n_workers, len(lacking))
    put_job(job, work)
    threads = n_threads or max(1, cpu_count() // n_processes)
    try:
        with _start_workers(job, work, n_processes, device, threads) as (workers, lines):
            for line in lines:
                on_rows(json.loads(line)["rows"])
            failures = [worker.wait() for worker in workers]
    finally:  # a signal may kill a worker before it releases its lock
        remove_dead_locks(work.store.files)
    close_job(job, work, [reason for reason in failures if reason], n_processes, watcher)


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    def wait(self) -> str:
        """Wait for the process; return its error message, or "" if it succeeded."""
        code = self.process.wait()
        if code == 0:
            return ""
        if code < 0:
            return f"killed by signal {-code} ({signal.strsignal(-code)})."
        self.errors.seek(0)
        message = self.errors.read().decode(errors="replace").strip()
        return message.rpartition("Error: ")[2] or f"exit code {code}."


@contextmanager
def _start_workers(
    job: Job, work: Work, number: int, device: str, threads: int
) -> Iterator[tuple[list[_Worker], Iterator[str]]]:
    """Start worker processes; yield them and the lines of their output until all have ended."""
    command = [sys.executable, "-P", "-m", "probekit", "worker", str(work.store.folder), "--json"]
    command += ["--job", job.name, "--device", device, "--threads", str(threads)]
    command += ["--parent", str(os.getpid())]
    paths = os.pathsep.join([_CODE, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": paths}
    with ExitStack() as stack:
        reading, writing = os.pipe()
        lines = stack.enter_context(os.fdopen(reading))
        workers: list[_Worker] = []
        stack.callback(_stop, workers)
        for seed in range(number):
            errors = stack.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen(
                [*command, "--seed", str(seed)],
                env=environment,
                start_new_session=True,
                creationflags=_OWN_GROUP,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=errors,
            )
            workers.append(_Worker(process, errors))
        os.close(writing)
        yield workers, lines


def _stop(workers: Sequence[_Worker]) -> None:
    """Interrupt running workers so that they clean up; kill those that do not exit in time."""
    for worker in workers:
        worker.process.send_signal(_INTERRUPT)
    for worker in workers:
        try:
            worker.process.wait(_SECONDS_TO_LEAVE)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
