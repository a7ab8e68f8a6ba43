"""Runs that several processes share, on one or many machines.

`probekit run` writes what a worker needs into the folder of the run. A worker, `probekit worker
FOLDER`, reads the data itself, does the tasks that no other process does (see `do_task`): it
measures sites, and computes edits when the scores of all sites are there. The process of the run
alone merges the results: its tables do not depend on who did which task, if all processes compute
on one type of device.
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from probekit import errors
from probekit.accelerators import check_device, naming_lost_device
from probekit.activations.local import join
from probekit.activations.records import Location
from probekit.activations.store import ActivationStore, files_at
from probekit.activations.upkeep import is_cache
from probekit.experiment.activations import AnyExperiment
from probekit.experiment.schema import Experiment
from probekit.files import (
    Waiting,
    as_store_error,
    is_held,
    regular,
    state_of,
    try_lock,
    write_atomic,
)
from probekit.pipeline.engines.engine import Activations, Engine
from probekit.pipeline.engines.network import CapturedRows, NetworkEngine
from probekit.pipeline.engines.table import How, prepare
from probekit.pipeline.intervene.run import Edits
from probekit.pipeline.intervene.steps import compute_part, read_part
from probekit.pipeline.measure.probing import SiteJob, make_probers, tasks_of, threads_of_site
from probekit.pipeline.measure.run_folder import CLAIMS, JOB, PAUSE, ended_workers, pause
from probekit.products import threads
from probekit.provenance import PART_VERSIONS, digest_sources, seal, unseal, versions
from probekit.results.record import STARTED, runs_in_progress
from probekit.results.table import load_table
from probekit.terminal import SILENT, Watcher

FORMAT = 1  # of the job file
_SETTINGS: TypeAdapter[AnyExperiment] = TypeAdapter(AnyExperiment)


@contextmanager
def at_work(run_dir: Path) -> Iterator[None]:
    """Hold a lock as a worker of a run during the block. If it fails, its error is saved.

    The lock file is removed only if the block ends by itself.

    Raises:
        StoreError: the folder cannot be written or locked.
    """
    lock = run_dir / CLAIMS / f"{platform.node()}-{os.getpid()}-{secrets.token_hex(2)}.worker"
    with try_lock(lock, patience=PAUSE):  # `ended_workers` may hold it now
        try:
            yield
        except Exception as error:
            is_complete = isinstance(error, errors.ProbekitError)
            message = str(error) if is_complete else f"{type(error).__name__}: {error}."
            with suppress(errors.StoreError):  # such as a full disk, which may be the error itself
                write_atomic(lock.with_suffix(".error"), message)
            raise
        with suppress(PermissionError):  # Windows removes only a closed file
            lock.unlink(missing_ok=True)
    lock.unlink(missing_ok=True)


class TaskDone(NamedTuple):
    """A task of a run that was done: the folder of the run, a name, and the seconds it took."""

    run: str
    task: str
    seconds: float

    def __str__(self) -> str:
        """Return it as a line of text."""
        return f"{self.run}: {self.task}, {self.seconds:.1f} s"


# A task: its name, and how its results are read or computed; None if there are none yet.
_Task = tuple[str, Callable[[], object | None], Callable[[], object | None]]


@dataclass(frozen=True)
class RunJob:
    """What a worker needs to do the tasks of a run.

    Attributes:
        experiment: the experiment; its files must be accessible to the worker.
        created: start time of the run.
        n_threads: threads of a site, the same for all workers.
        edit_threads: threads of an edit.
        bytes: predicted memory of a worker.
        caches: folder or URL of the cache of each network, by target; empty for given activations.
        identity: digests of code and data and versions of packages, which a worker must have too.
    """

    experiment: AnyExperiment
    created: str
    n_threads: int
    edit_threads: int
    bytes: int
    caches: Mapping[str, str]
    identity: Mapping[str, Any]

    @classmethod
    def of(cls, source: Engine, created: str, bytes: int) -> RunJob | None:
        """Return the job of a source with activations; None if rows or network are in memory.

        None also for replies, which only the process of the run has read.

        `created` is the start time of the run, `bytes` the predicted memory of a worker.
        """
        places = {name: store.folder for name, store in source.activations.stores.items()}
        # A worker may be started in another folder.
        caches = {
            name: str(place.absolute() if isinstance(place, Path) else place)
            for name, place in places.items()
        }
        # Nor can a record hold the name of a cache that is not UTF-8.
        if not source.is_shared or re.search("[\ud800-\udfff]", "".join(caches.values())):
            return None
        n_threads = threads_of_site(source), torch.get_num_threads()
        return cls(source.experiment, created, *n_threads, bytes, caches, _identity(source))

    def write(self, folder: Path) -> None:
        """Write the job into the folder of a run.

        Raises:
            StoreError: it cannot be written.
        """
        content = vars(self) | {"experiment": self.experiment.model_dump(mode="json")}
        write_atomic(folder / JOB, seal(content, FORMAT))

    @classmethod
    def read(cls, folder: Path) -> RunJob | None:
        """Return the job in the folder of a run; None if it has not begun to probe, or has ended.

        Raises:
            StoreError: it cannot be read, or is of another version of probekit.
        """
        path = folder / JOB
        try:
            with as_store_error("read", path):
                content = unseal(regular(path).read_bytes(), str(path), FORMAT)
            experiment = _SETTINGS.validate_json(json.dumps(content.pop("experiment")))
            return cls(experiment, **content)
        except errors.StoreError:
            if path.exists():
                raise
            return None
        except (KeyError, TypeError, ValidationError) as error:
            raise errors.DamagedError(f"{path} is not the job of a run: {error}.") from error

    def open(self, device: str) -> Engine:
        """Return the activations, read by this process.

        Raises:
            StoreMismatchError: code or data differ from those of the run.
            ProbekitError: the data or activations cannot be read on this machine.
        """
        source = prepare(self.experiment, How(device)).reopened(self.caches)
        own = _identity(source)
        if differing := [key for key, value in self.identity.items() if own.get(key) != value]:
            raise errors.StoreMismatchError(
                f"This worker differs from the run in {', '.join(differing)}, so that its results "
                "could differ. Install the same versions, and give the same files, on all machines."
            )
        return source


def _identity(source: Engine) -> dict[str, Any]:
    """Return the digests and versions that a worker must share; a cache is known by its place."""
    code = {"source code": digest_sources(), "parts": dict(PART_VERSIONS)} | versions()
    return code | {"data": source.design.dataset.digest} | source.shared_digests


@contextmanager
def by_workers(folder: Path, watcher: Watcher) -> Iterator[Callable[[], None]]:
    """Leave the tasks of a run to workers that others start; yield a function that waits.

    The function reports workers that have failed or were stopped. It raises StoreError if one has
    failed and none is left.
    """
    how = f"start any number with:  probekit worker {folder}"
    watcher.tell(f"waiting for workers; {how}")
    told, failed, waiting = set[str](), "", Waiting(folder, watcher.tell)

    def wait() -> None:
        nonlocal failed
        pause(waiting, folder)
        failures, is_left = ended_workers(folder)
        for name in failures.keys() - told:
            told.add(name)
            if failures[name]:
                failed = f"Worker {name} has failed: {failures[name]}"
            watcher.tell(failed if failures[name] else f"Worker {name} was stopped; {how}")
        if failed and not is_left:
            raise errors.StoreError(
                f"{failed} No worker is left. Results of finished tasks are saved: run the same "
                "command again, with workers."
            )

    yield wait


def work_on(
    root: Path,
    *,
    device: str = "cpu",
    seed: int = 0,
    cache_root: Location | None = None,
    wait: float = 0,
    watcher: Watcher = SILENT,
) -> Iterator[TaskDone]:
    """Do tasks of the runs in a folder until no run is in progress; yield each after it is saved.

    Runs whose process was killed are passed over if their tasks cannot be done.

    Args:
        root: the folder of a run, or of several runs.
        device: device that networks run on and probes are fitted on.
        seed: random seed of the order of tasks; should differ between workers.
        cache_root: folder with caches on a disk of this machine. Sites that are sealed in a copy
            there are read from it, and measured first.
        wait: seconds to wait for the process of a run.
        watcher: receives the reason why a run is passed over, and which runs nobody continues.

    Raises:
        MissingError: this machine does not have the folder.
        StoreMismatchError: code or data differ from those of a run in progress, or of `root`.
        StoreError: a file cannot be read or written.
        DeviceLostError: the device failed.
    """
    check_device(device)
    if not root.is_dir():
        raise errors.MissingError(
            f"{root} does not exist on {platform.node()}. Give an --out that all machines share."
        )
    random, works = np.random.default_rng(seed), dict[Path, Iterator[TaskDone | None]]()
    waiting = Waiting(root, watcher.tell)
    end, passed_over = time.monotonic() + wait, dict[Path, tuple[int, ...]]()
    while True:
        runs = runs_in_progress(root)
        works = {folder: work for folder, work in works.items() if folder in runs}
        for folder in runs:
            try:
                job = state_of(folder / JOB)
            except FileNotFoundError:  # the run captures, or has ended
                continue
            if passed_over.get(folder) == job:
                continue
            if folder not in works:
                works[folder] = _work_on_run(folder, device, random, cache_root)
            try:
                with naming_lost_device(device):
                    while (done := next(works[folder], None)) is not None:
                        yield done
            except errors.ProbekitError as error:
                # A run that was given up may have lost its data, or be of another version.
                if is_held(folder) or folder == root or isinstance(error, errors.DeviceLostError):
                    raise
                watcher.tell(f"{folder} is passed over: {error}")
                passed_over[folder] = job  # until its process is started again
                del works[folder]
        # The process of a run may have been killed: then tasks are done, but not waited for.
        if any(map(is_held, runs)):
            end = 0.0
        elif time.monotonic() >= end:
            left = runs_in_progress(root)
            # Cells and checkpoints are part of the run of their folder.
            outer = {one for one in left if not (set(left) & set(one.parents) or is_held(one))}
            for folder in sorted(outer - set(passed_over)):
                how = "the command that started it resumes it."
                watcher.tell(f"{folder} has not finished, and no process runs it: {how}")
            return
        pause(waiting, *runs)


def _work_on_run(
    folder: Path, device: str, random: np.random.Generator, cache_root: Location | None
) -> Iterator[TaskDone | None]:
    """Yield each task of a run that this process did, and None when there is none to do now."""
    with at_work(folder):
        while (job := RunJob.read(folder)) is None:
            yield None
        source = job.open(device)
        near, copied = _copy_in(cache_root, source)
        sites = []
        for position, prober in enumerate(make_probers(job.experiment, source.design, device)):
            far, close = (
                SiteJob(one, position, prober, folder, job.created, SILENT)
                for one in (source, replace(source, activations=near))
            )
            for task in tasks_of(source, position, folder.name):
                selection, _, origin = task
                is_far = selection is None or not copied.issuperset(
                    one.site for one in selection.parts
                )
                site = far if is_far else close
                name = f"{origin['site']} at {origin['position']}"
                of_site = (name, partial(site.read, task), partial(site.measure, task))
                sites.append((is_far, random.random(), of_site))
        yield from _done(folder, [task for *_, task in sorted(sites)], job.n_threads)
        if source.experiment.interventions:
            # The run process writes it when all sites are measured.
            while not (path := folder / "results.csv").exists():
                yield None
            parts = Edits.of(cast(NetworkEngine, source), load_table(path)).parts
            edits = [
                (one.title, partial(read_part, one, folder), partial(compute_part, one, folder))
                for one in (parts[number] for number in random.permutation(len(parts)))
            ]
            yield from _done(folder, edits, job.edit_threads)


def _done(folder: Path, tasks: Sequence[_Task], n_threads: int) -> Iterator[TaskDone | None]:
    """Yield each task that this process did, and None whenever other processes do all others.

    It ends early if the run has ended or its folder was deleted.
    """
    while tasks:
        left = []
        for name, read, compute in tasks:
            if not (folder / STARTED).exists():
                return
            if read() is not None:
                continue
            start = time.monotonic()
            with threads(n_threads):
                is_done = compute() is not None
            if is_done:
                yield TaskDone(str(folder), name, time.monotonic() - start)
            else:
                left.append((name, read, compute))
        if left:
            yield None
        tasks = left


def _copy_in(cache_root: Location | None, source: Engine) -> tuple[Activations, set[str]]:
    """Return the rows in copies of the caches in a folder, and the sites in all copies.

    A site is in a copy if it is finished and has the same digests.
    """
    if cache_root is None or source.texts is None:
        return source.activations, set()
    copied, copies = set(source.texts.sites), dict[str, ActivationStore]()
    for target, own in source.activations.stores.items():
        place = join(cache_root, own.identity.key)
        if not is_cache(files_at(place)):
            return source.activations, set()
        copy = copies[target] = ActivationStore.open(place)
        finished = [site for site in copied if not copy.missing(site)]
        copied = {one for one in finished if copy.digest_of([one]) == own.digest_of([one])}
    return CapturedRows(cast(Experiment, source.experiment), copies), copied
