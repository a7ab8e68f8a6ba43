"""Captures by several workers of this machine: processes that share one cache."""

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

from probekit.activations.files.places import files_at
from probekit.activations.shared.locks import remove_dead_locks
from probekit.activations.shared.work import MissingSites, OnRows, Work
from probekit.errors import StoreError
from probekit.pipeline.capture.jobs import Job, finish
from probekit.watcher import Watcher

Workers = Callable[[Job, Work, MissingSites, OnRows], None]
_SECONDS_TO_LEAVE = 20
# On Windows a process can be interrupted only together with its group: each worker is one.
_INTERRUPT = getattr(signal, "CTRL_BREAK_EVENT", signal.SIGINT)
_OWN_GROUP = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
_CODE = str(Path(__file__).resolve().parents[3])  # that the workers run, too


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
    """Let processes compute what is lacking; each is a `probekit worker` that loads the model once.

    Args:
        job: of the cache.
        work: which is to be done.
        lacking: for each shard the sites that it lacks.
        on_rows: hears how many rows more are computed.
        n_workers: how many processes there are, if there are as many shards.
        device: where they compute.
        watcher: is told of processes that ended before their time.
        n_threads: how many threads each has, None for its share of the cores.

    Raises:
        StoreError: all of them ended before nothing was missing, or the store cannot have several
            writers.
    """
    at_once = min(n_workers, len(lacking))
    put_job(job, work)
    threads = n_threads or max(1, cpu_count() // at_once)
    try:
        with _several(job, work, at_once, device, threads) as (workers, lines):
            for line in lines:
                on_rows(json.loads(line)["rows"])
            ends = [worker.end() for worker in workers]
    finally:  # a signal may end a worker before it lets its claim go
        remove_dead_locks(work.store.files)
    close_job(job, work, [end for end in ends if end], at_once, watcher)


def put_job(job: Job, work: Work) -> None:
    """Write what the workers are told, where several can write.

    Raises:
        StoreError: the store cannot tell several writers apart.
    """
    files = files_at(work.store.folder)  # anew: without our lock, as the workers have it
    files.begin(work.sites[0])
    job.put(files)


def close_job(job: Job, work: Work, ends: list[str], n_workers: int, watcher: Watcher) -> None:
    """Close a job whose workers have left.

    Args:
        job: of the cache.
        work: that was to be done.
        ends: of each worker that ended before its time, why.
        n_workers: how many there were.
        watcher: is told of them, if the others have done their work.

    Raises:
        StoreError: something is missing.
    """
    why = (
        f"{len(ends)} of {n_workers} workers ended before their time, the last one: {ends[-1]}"
        if ends
        else ""
    )
    missing = len(work.missing_sites())
    if missing:
        raise StoreError(
            f"{missing} of {len(work.shards)} shards are missing in {work.store.folder}. {why} "
            "What was committed is kept; the same command goes on from there."
        )
    if why:
        watcher.tell(f"{why} The others did their work.")
    finish(work.store, job)


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    def end(self) -> str:
        """Return why it ended before its time, in its own words; nothing if it did not."""
        code = self.process.wait()
        if code == 0:
            return ""
        if code < 0:
            return f"killed by signal {-code} ({signal.strsignal(-code)})."
        self.errors.seek(0)
        told = self.errors.read().decode(errors="replace").strip()
        return told.rpartition("Error: ")[2] or f"exit code {code}."


@contextmanager
def _several(
    job: Job, work: Work, number: int, device: str, threads: int
) -> Iterator[tuple[list[_Worker], Iterator[str]]]:
    """Give some workers and the lines that they write, which end when the last of them does."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "probekit",
        "worker",
        str(work.store.folder),
        "--json",
        "--job",
        job.name,
        "--device",
        device,
        "--threads",
        str(threads),
        "--parent",
        str(os.getpid()),
    ]
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
    """Have those leave that are still there, and clean up behind themselves if they can."""
    for worker in workers:
        worker.process.send_signal(_INTERRUPT)
    for worker in workers:
        try:
            worker.process.wait(_SECONDS_TO_LEAVE)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
