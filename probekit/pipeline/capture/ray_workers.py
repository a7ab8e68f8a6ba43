"""Capturing and probing with a Ray cluster, whose processes exchange names but never rows."""

from __future__ import annotations

import importlib
import os
import platform
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from probekit.activations.capture import MissingSites, OnRows, Work
from probekit.activations.records import Location
from probekit.amounts import counted
from probekit.errors import ConfigError, MissingError, ProbekitError, StoreError
from probekit.pipeline.capture.jobs import Job, close_job, put_job
from probekit.pipeline.experiment.run_job import RunJob, work_on
from probekit.products import threads
from probekit.provenance import install_command
from probekit.terminal import Watcher

_DEATHS_IN_A_ROW = 3  # per actor, without a finished shard in between; the driver gives up after
_SECONDS_BETWEEN_LOOKS = 1  # at the sites that tasks have measured
_SECONDS_TO_PLACE = 20  # waiting time for resources before a message, and for a connection


class ShardActor:
    """Computes shards of one cache with a model that is loaded once.

    Args:
        place: path or URL of the cache, the same on every node.
        job: job of the cache.
        device: compute device.
        n_threads: number of threads.
    """

    def __init__(self, place: Location, job: Job, device: str, n_threads: int) -> None:
        self._open = partial(job.open, place, device)
        self._work: Work | None = None
        self._n_threads = n_threads

    def open(self) -> None:
        """Load the model and check that it is the model of the cache."""
        with threads(self._n_threads):
            self._work = self._open()

    def compute(self, shard: int, sites: Sequence[str]) -> int:
        """Compute and commit a shard at the sites that still lack it; return its number of rows."""
        work = self._work
        assert work is not None
        lacking = work.store.missing_sites(sites, shard)
        if lacking:
            with threads(self._n_threads):
                work.compute({shard: lacking})
        return work.n_rows_of(shard)


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
    """Compute the missing shards with the actors of a Ray cluster.

    An actor that dies, alone or with its node, is replaced, and its shard is queued again, unless
    too many died in a row.

    Args:
        job: job of the cache.
        work: the capture.
        lacking: missing sites of each shard that lacks some; not empty.
        on_rows: called with the number of newly computed rows.
        n_workers: number of actors; None for as many as the cluster has resources for. At most one
            per shard is started.
        device: compute device of each actor; `cuda` reserves one GPU per actor, and several, such
            as `cuda:0,cuda:1`, as many.
        watcher: receives a message about actors that die.
        n_threads: threads, and reserved CPUs, per actor; None for 1.
        address: address of the cluster; None for RAY_ADDRESS, or this machine.

    Raises:
        ConfigError: Ray is not installed, the cluster cannot be reached, or the rows are in the
            memory of this process.
        StoreError: actors die repeatedly, or the cache cannot be written.
        ProbekitError: an actor cannot load the model or the data.
    """
    put_job(job, work)
    n_cpus = n_threads or 1
    n_gpus = _n_gpus(device)
    with _connected(address) as ray:
        actor_class = ray.remote(num_cpus=n_cpus, num_gpus=n_gpus)(ShardActor)
        place = work.store.folder
        place = place.absolute() if isinstance(place, Path) else place
        start = partial(actor_class.remote, place, job, device, n_cpus)
        crew = _Crew(ray, watcher, start)
        needs = {"CPU": n_cpus, "GPU": n_gpus}
        n_actors = min(n_workers or _room(ray, needs), len(lacking))
        try:
            crew.run(lacking, n_actors, on_rows)
        finally:
            crew.kill_all()
    # Each dead actor was replaced.
    close_job(job, work, crew.deaths, n_actors + len(crew.deaths), watcher)


@contextmanager
def tasks_by_ray(
    folder: Path,
    watcher: Watcher,
    *,
    n_workers: int | None,
    device: str,
    address: str | None = None,
) -> Iterator[Callable[[], None]]:
    """Do the tasks of a run with processes of a Ray cluster; yield a function that waits for them.

    The function returns after a pause, and raises the error of a process. Ray starts a process
    again if it dies.

    Args:
        folder: folder of the run, the same on every node.
        watcher: receives the number of processes.
        n_workers: maximum number of processes; None for as many as the cluster has room for.
        device: device that networks run on and probes are fitted on.
        address: address of the cluster; None for RAY_ADDRESS, or this machine.

    Raises:
        ConfigError: Ray is not installed, or the cluster cannot be reached.
    """
    job, folder = RunJob.read(folder), folder.absolute()  # processes start in another folder
    with _connected(address) as ray:
        needs = {"CPU": job.n_threads, "GPU": _n_gpus(device), "memory": job.bytes}
        n_tasks = n_workers or _room(ray, needs)
        watcher.tell(f"{counted(n_tasks, 'worker')} of the Ray cluster")
        task = ray.remote(
            num_cpus=needs["CPU"],
            num_gpus=needs["GPU"],
            memory=needs["memory"],
            max_retries=_DEATHS_IN_A_ROW * n_tasks,
        )(_do_tasks)
        running = [task.remote(folder, device, seed) for seed in range(n_tasks)]

        def wait() -> None:
            nonlocal running
            ended, running = ray.wait(running, timeout=_SECONDS_BETWEEN_LOOKS)
            for one in ended:
                try:
                    ray.get(one)
                except ray.exceptions.RayTaskError as error:
                    if isinstance(error.cause, ProbekitError):
                        raise error.cause from error
                    raise
            if not running:  # they ended before this process began to wait for edits
                running = [task.remote(folder, device, n_tasks)]

        try:
            yield wait
        finally:
            for one in running:
                ray.cancel(one, force=True)


def _do_tasks(folder: Path, device: str, seed: int) -> int:
    """Do tasks of a run until none is missing; return their number.

    Raises:
        MissingError: this node does not have the folder of the run.
    """
    if not folder.is_dir():
        raise MissingError(
            f"{folder} does not exist on node {platform.node()} of the Ray cluster. Give an --out "
            "that all nodes share."
        )
    return sum(1 for _ in work_on(folder, device=device, seed=seed))


def _n_gpus(device: str) -> int:
    """Return the number of GPUs that a worker on a device, or on several, reserves."""
    return len(device.split(",")) if device.startswith("cuda") else 0


def _room(ray: Any, needs: Mapping[str, int]) -> int:
    """Return how many workers with these needs the cluster has room for, at least 1."""
    total = ray.cluster_resources()
    return max(1, min(int(total.get(name, 0) // need) for name, need in needs.items() if need))


class _Crew:
    """The actors of a capture, their current shards, and the reasons of their deaths."""

    def __init__(self, ray: Any, watcher: Watcher, start: Callable[[], Any]) -> None:
        self._ray = ray
        self._watcher = watcher
        self._start = start
        # Actor and its shard, by the future of the result; None while it loads the model.
        self._busy: dict[Any, tuple[Any, int | None]] = {}
        self._idle: list[Any] = []
        self._deaths_in_a_row = 0
        self.deaths: list[str] = []

    def run(self, lacking: MissingSites, n_actors: int, on_rows: OnRows) -> None:
        """Compute all shards with a number of actors; shards of dead actors are queued again.

        Raises:
            StoreError: too many actors died in a row, or an actor cannot write the cache.
            ProbekitError: an actor cannot load the model or the data.
        """
        todo = deque(lacking)
        for _ in range(n_actors):
            self._begin()
        while todo or any(shard is not None for _, shard in self._busy.values()):
            while todo and self._idle:
                actor, next_shard = self._idle.pop(), todo.popleft()
                answer = actor.compute.remote(next_shard, lacking[next_shard])
                self._busy[answer] = (actor, next_shard)
            answers, _ = self._ray.wait(list(self._busy), timeout=_SECONDS_TO_PLACE)
            if not answers and all(shard is None for _, shard in self._busy.values()):
                self._watcher.tell(
                    "waiting for resources of the cluster, or loading the model: "
                    f"{counted(len(self._busy), 'actor')}"
                )
            for answer in answers:
                actor, shard = self._busy.pop(answer)
                try:
                    n_rows = self._ray.get(answer)
                except self._ray.exceptions.RayActorError as error:
                    if shard is not None:
                        todo.append(shard)
                    lines = str(error).strip().splitlines()
                    self.deaths.append(lines[0] if lines else type(error).__name__)
                    self._deaths_in_a_row += 1
                    if self._deaths_in_a_row > _DEATHS_IN_A_ROW * n_actors:
                        raise StoreError(
                            f"{self._deaths_in_a_row} actors died in a row, the last one with: "
                            f"{self.deaths[-1]} Committed shards are saved; run the same command "
                            "to continue."
                        ) from error
                    self._watcher.tell(f"an actor died and is replaced: {self.deaths[-1]}")
                    self._begin()
                except self._ray.exceptions.RayTaskError as error:
                    if isinstance(error.cause, ProbekitError):
                        raise error.cause from error
                    raise
                else:
                    self._idle.append(actor)
                    if shard is not None:
                        self._deaths_in_a_row = 0
                        on_rows(n_rows)

    def _begin(self) -> None:
        """Start an actor, which first loads the model."""
        actor = self._start()
        self._busy[actor.open.remote()] = (actor, None)

    def kill_all(self) -> None:
        """Kill all actors without waiting for their current shards."""
        for actor in [*self._idle, *(actor for actor, _ in self._busy.values())]:
            self._ray.kill(actor)


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
    try:
        # Ray itself would try for minutes to reach an address, such as ray://host:port, where
        # nothing listens.
        host, _, port = (address or "").rpartition("/")[2].rpartition(":")
        if port.isdigit():
            socket.create_connection((host, int(port)), _SECONDS_TO_PLACE).close()
        with _sigterm_handler_restored():
            ray.init(address, include_dashboard=False, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        where = "a cluster" if address is None else f"the cluster at {address}"
        raise ConfigError(
            f"Cannot reach {where}: {str(error).rstrip('.')}. Start one with `ray start --head`; "
            "without --address and RAY_ADDRESS, one is started on this machine."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _sigterm_handler_restored() -> Iterator[None]:
    """Keep our SIGTERM handler: `ray.init` replaces it with one that exits without cleaning up."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # Only the main thread can set handlers; None means that C code has set the handler.
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
