"""Capturing and probing with a Ray cluster, whose processes exchange names but never rows."""

import importlib
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from probekit.activations.capture import MissingSites, OnRows, Work
from probekit.activations.records import Location
from probekit.amounts import counted
from probekit.errors import ConfigError, ProbekitError, StoreError
from probekit.pipeline.capture.jobs import Job, close_job, put_job, work_at
from probekit.pipeline.experiment.run_job import RunJob, work_on
from probekit.provenance import install_command
from probekit.terminal import Watcher

_DEATHS_IN_A_ROW = 3  # per worker, while no other one finishes a shard or task; then an error
_SECONDS_TO_WAIT = 1  # for a worker, before the folder of its run is read again
_SECONDS_TO_PLACE = 20  # waiting time for resources before a message, and for a connection


def by_ray(
    job: Job,
    work: Work,
    lacking: MissingSites,
    on_rows: OnRows,
    *,
    n_workers: int | None,
    device: str,
    watcher: Watcher,
    n_threads: int | None = None,
    address: str | None = None,
) -> None:
    """Compute the missing shards with workers of a Ray cluster; one that dies is replaced.

    Args:
        job: job of the cache.
        work: the capture.
        lacking: missing sites of each shard that lacks some; not empty.
        on_rows: called with the number of rows of each newly computed shard.
        n_workers: number of workers; None for as many as the cluster has resources for. At most one
            per shard is started.
        device: compute device of each worker; `cuda` reserves one GPU per worker, and several, such
            as `cuda:0,cuda:1`, as many.
        watcher: receives a message about workers that die.
        n_threads: threads, and reserved CPUs, per worker; None for 1.
        address: address of the cluster; None for RAY_ADDRESS, or this machine.

    Raises:
        ConfigError: Ray is not installed, the cluster cannot be reached, or the rows are in the
            memory of this process.
        StoreError: workers die repeatedly, or the cache cannot be written.
        ProbekitError: a worker cannot load the model or the data.
    """
    put_job(job, work)
    n_cpus = n_threads or 1
    needs = {"CPU": n_cpus, "GPU": _n_gpus(device)}
    options = {"only": job.name, "device": device, "n_threads": n_cpus}
    with _connected(address) as ray:
        n_workers = min(n_workers or _room(ray, needs), len(lacking))
        workers = _Workers(ray, work_at, work.store.folder, options, needs, n_workers, watcher)
        try:
            while workers.running:
                for done in workers.wait():
                    on_rows(done.rows)
        finally:
            workers.stop()
    close_job(job, work, [], n_workers, watcher)


@contextmanager
def tasks_by_ray(
    folder: Path,
    watcher: Watcher,
    *,
    n_workers: int | None,
    device: str,
    address: str | None = None,
) -> Iterator[Callable[[], None]]:
    """Do the tasks of a run with workers of a Ray cluster; yield a function that waits for them.

    The function returns after a second at most, and raises the error of a worker. A worker that
    dies is replaced.

    Args:
        folder: folder of the run, the same on every node.
        watcher: receives the number of workers, and messages about those that die.
        n_workers: maximum number of workers; None for as many as the cluster has room for.
        device: device that networks run on and probes are fitted on.
        address: address of the cluster; None for RAY_ADDRESS, or this machine.

    Raises:
        ConfigError: Ray is not installed, or the cluster cannot be reached.
        StoreError: workers die repeatedly.
    """
    job = RunJob.read(folder)
    assert job is not None, "the process of the run has written it"
    needs = {"CPU": job.n_threads, "GPU": _n_gpus(device), "memory": job.bytes}
    with _connected(address) as ray:
        n_workers = n_workers or _room(ray, needs)
        watcher.tell(f"{counted(n_workers, 'worker')} of the Ray cluster")
        workers = _Workers(ray, work_on, folder, {"device": device}, needs, n_workers, watcher)

        def wait() -> None:
            if not workers.running:  # they ended before this process began to wait for edits
                workers.start()
            workers.wait()

        try:
            yield wait
        finally:
            workers.stop()


def _n_gpus(device: str) -> int:
    """Return the number of GPUs that a worker on a device, or on several, reserves."""
    return len(device.split(",")) if device.startswith("cuda") else 0


def _room(ray: Any, needs: Mapping[str, int]) -> int:
    """Return how many workers with these needs the cluster has room for, at least 1."""
    total = ray.cluster_resources()
    return max(1, min(int(total.get(name, 0) // need) for name, need in needs.items() if need))


class _Workers:
    """Workers of a cache or run on a Ray cluster; each has a seed of its own.

    Args:
        ray: the connected module.
        function: does shards or tasks until none is missing, and yields each that it has done.
        place: the cache or the run, the first argument of the function.
        options: its other arguments, besides `seed`.
        needs: CPUs, GPUs and bytes of memory that a worker reserves.
        n_workers: number of workers.
        watcher: receives messages about waiting, and about workers that die.
    """

    def __init__(
        self,
        ray: Any,
        function: Callable[..., Iterator[Any]],
        place: Location,
        options: Mapping[str, Any],
        needs: Mapping[str, int],
        n_workers: int,
        watcher: Watcher,
    ) -> None:
        remote = ray.remote(
            num_cpus=needs["CPU"],
            num_gpus=needs["GPU"],
            memory=needs.get("memory"),
            num_returns="streaming",
            max_retries=0,  # `wait` starts them again
        )(function)
        self._ray, self._watcher, self._seeds = ray, watcher, count()
        # Its processes start in another folder.
        place = place.absolute() if isinstance(place, Path) else place
        self._new = partial(remote.remote, place, **options)
        self._most_deaths, self._deaths = _DEATHS_IN_A_ROW * n_workers, 0
        self._silent_since = time.monotonic()  # infinite after the first shard or task
        self.running = list[Any]()
        for _ in range(n_workers):
            self.start()

    def start(self) -> None:
        """Start a worker."""
        self.running.append(self._new(seed=next(self._seeds)))

    def wait(self) -> list[Any]:
        """Wait a second at most; return the shards or tasks that were done, often none.

        Raises:
            StoreError: too many workers died in a row.
            ProbekitError: the error of a worker.
        """
        errors, found = self._ray.exceptions, []
        for worker in self._ray.wait(self.running, timeout=_SECONDS_TO_WAIT)[0]:
            try:
                found.append(self._ray.get(next(worker)))
                self._deaths, self._silent_since = 0, math.inf
            except StopIteration:
                self.running.remove(worker)
            except errors.RayTaskError as error:
                if isinstance(error.cause, ProbekitError):
                    raise error.cause from error
                raise
            except errors.RayError as error:
                why = (str(error).strip().splitlines() or [type(error).__name__])[0]
                self._deaths += 1
                if self._deaths > self._most_deaths:
                    raise StoreError(
                        f"{self._deaths} workers died in a row, the last one with: {why} Finished "
                        "shards and tasks are saved; run the same command to continue."
                    ) from error
                self._watcher.tell(f"a worker died and is replaced: {why}")
                self.running.remove(worker)
                self.start()
        if time.monotonic() - self._silent_since > _SECONDS_TO_PLACE:
            self._silent_since = time.monotonic()
            self._watcher.tell(
                "waiting for resources of the cluster, or loading the model: "
                f"{counted(len(self.running), 'worker')}"
            )
        return found

    def stop(self) -> None:
        """Stop all workers without waiting for their current shards or tasks."""
        for worker in self.running:
            self._ray.cancel(worker, force=True)


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Yield the connected ray module; disconnect afterwards if it was not connected before."""
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(f"--engine ray needs Ray: {install_command('ray')}.") from error
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics
    before = signal.getsignal(signal.SIGTERM)
    try:
        # Ray itself would try for minutes to reach an address, such as ray://host:port, where
        # nothing listens.
        host, _, port = (address or "").rpartition("/")[2].rpartition(":")
        if port.isdigit():
            socket.create_connection((host, int(port)), _SECONDS_TO_PLACE).close()
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        where = "a cluster" if address is None else f"the cluster at {address}"
        raise ConfigError(
            f"Cannot reach {where}: {str(error).rstrip('.')}. Start one with `ray start --head`; "
            "without --address and RAY_ADDRESS, one is started on this machine."
        ) from error
    finally:
        # `ray.init` replaces our handler with one that exits without cleaning up. Only the main
        # thread can set handlers; None means that C code has set the handler.
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
    try:
        yield ray
    finally:
        ray.shutdown()
