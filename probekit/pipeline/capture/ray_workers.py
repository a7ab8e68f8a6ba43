"""Captures by the actors of a Ray cluster: numbers of shards travel, rows never do."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from probekit.activations.files.local import Location
from probekit.activations.shared.work import MissingSites, OnRows, Work
from probekit.amounts import counted
from probekit.errors import ConfigError, ProbekitError, StoreError
from probekit.pipeline.capture.jobs import Job
from probekit.pipeline.capture.local_workers import close_job, put_job
from probekit.watcher import Watcher
from probekit.workers import threads

_DEATHS_IN_A_ROW = 3  # of each actor, with no shard done in between, until the driver gives up
_SECONDS_TO_PLACE = 20  # after which a user is told that actors wait for a place


class ShardActor:
    """Computes shards of one cache, with a model that is loaded once.

    Args:
        place: of the cache, as every node sees it.
        job: of the cache.
        device: where to compute.
        n_threads: how many threads compute.
    """

    def __init__(self, place: Location, job: Job, device: str, n_threads: int) -> None:
        self._open = partial(job.open, place, device)
        self._work: Work | None = None
        self._n_threads = n_threads

    def open(self) -> None:
        """Load the model, and look whether it is that of the cache."""
        with threads(self._n_threads):
            self._work = self._open()

    def compute(self, shard: int, sites: Sequence[str]) -> int:
        """Return how many rows a shard has, which is now committed at the sites."""
        work = self._work
        assert work is not None
        lacking = work.store.missing_sites(sites, shard)
        if lacking:
            with threads(self._n_threads):
                work.compute(shard, lacking)
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
    """Let the actors of a Ray cluster compute what is lacking.

    An actor that dies, with its node or alone, gets a successor, and its shard goes to another.

    Args:
        job: of the cache.
        work: which is to be done.
        lacking: for each shard the sites that it lacks.
        on_rows: hears how many rows more are computed.
        n_workers: how many actors there are; None for as many as the cluster has room for.
        device: where each computes: `cuda` takes a GPU of the cluster for each.
        watcher: is told of actors that die.
        n_threads: how many threads, and thereby CPUs of the cluster, each actor has; None for 1.
        address: of the cluster; None for the one that RAY_ADDRESS names, or this machine.

    Raises:
        ConfigError: Ray is not installed, or the cluster cannot be reached.
        StoreError: actors die again and again, or the cache cannot be written.
    """
    put_job(job, work)
    n_cpus = n_threads or 1
    needs = {"num_cpus": n_cpus, "num_gpus": int(device.startswith("cuda"))}
    with _connected(address) as ray:
        kind = ray.remote(**needs)(ShardActor)
        crew = _Crew(ray, watcher, lambda: kind.remote(work.store.folder, job, device, n_cpus))
        number = min(n_workers or _room(ray, needs), len(lacking))
        try:
            crew.run(lacking, number, on_rows)
        finally:
            crew.dismiss()
    close_job(job, work, crew.deaths, number, watcher)


class _Crew:
    """Actors, what each of them is at, and those that died."""

    def __init__(self, ray: Any, watcher: Watcher, hire: Callable[[], Any]) -> None:
        self._ray = ray
        self._watcher = watcher
        self._hire = hire
        self._busy: dict[Any, tuple[Any, int | None]] = {}  # by what is waited for
        self._idle: list[Any] = []
        self._in_a_row = 0
        self.deaths: list[str] = []

    def run(self, lacking: MissingSites, number: int, on_rows: OnRows) -> None:
        """Have so many actors compute all shards, each at most once for every actor that dies."""
        todo = deque(lacking)
        for _ in range(number):
            self._begin()
        while todo or any(shard is not None for _, shard in self._busy.values()):
            while todo and self._idle:
                actor, number_of_shard = self._idle.pop(), todo.popleft()
                answer = actor.compute.remote(number_of_shard, lacking[number_of_shard])
                self._busy[answer] = (actor, number_of_shard)
            for answer in self._answers():
                actor, shard = self._busy.pop(answer)
                try:
                    n_rows = self._ray.get(answer)
                except self._ray.exceptions.RayActorError as error:
                    if shard is not None:
                        todo.append(shard)
                    self._bury(error, number)
                except self._ray.exceptions.RayTaskError as error:
                    if isinstance(error.cause, ProbekitError):
                        raise error.cause from error
                    raise
                else:
                    self._idle.append(actor)
                    if shard is not None:
                        self._in_a_row = 0
                        on_rows(n_rows)

    def _begin(self) -> None:
        actor = self._hire()
        self._busy[actor.open.remote()] = (actor, None)

    def _answers(self) -> Sequence[Any]:
        found, _ = self._ray.wait(list(self._busy), timeout=_SECONDS_TO_PLACE)
        if not found and all(shard is None for _, shard in self._busy.values()):
            self._watcher.tell(
                "waiting for a place in the cluster, or loading the model: "
                f"{counted(len(self._busy), 'actor')}"
            )
        return list(found)

    def _bury(self, error: Exception, number: int) -> None:
        """Note the death of an actor, and begin another."""
        told = str(error).strip().splitlines()
        self.deaths.append(told[0] if told else type(error).__name__)
        self._in_a_row += 1
        if self._in_a_row > _DEATHS_IN_A_ROW * number:
            raise StoreError(
                f"{self._in_a_row} actors died one after the other, the last one: "
                f"{self.deaths[-1]} What was committed is kept; the same command goes on from "
                "there."
            )
        self._watcher.tell(f"an actor died and is replaced: {self.deaths[-1]}")
        self._begin()

    def dismiss(self) -> None:
        """End all actors; what they are at is not waited for."""
        for actor in [*self._idle, *(actor for actor, _ in self._busy.values())]:
            self._ray.kill(actor)


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Give Ray, connected; what was not connected before is let go again."""
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError("--engine ray needs Ray: pip install 'probekit[ray]'.") from error
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told that we compute
    try:
        _knock(address or "")
        with _sigterm_handler_restored():
            ray.init(address, include_dashboard=False, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        where = "a cluster" if address is None else f"the cluster at {address}"
        raise ConfigError(f"Cannot reach {where}: {error}") from error
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
        # Only the main thread can set handlers; None stands for one that C code has set.
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _knock(address: str) -> None:
    """Fail at once where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), _SECONDS_TO_PLACE).close()


def _room(ray: Any, needs: Mapping[str, int]) -> int:
    """Return how many actors with these needs a cluster has room for, at least 1."""
    there = ray.cluster_resources()
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    return max(1, min(int(there.get(names[n], 0) // need) for n, need in needs.items() if need))
