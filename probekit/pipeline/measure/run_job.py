"""Runs that several processes share, on one or many machines.

`probekit run` writes what a worker needs into the folder of the run. A worker, `probekit worker
FOLDER`, reads the data itself, measures sites that no other process measures, saves their results
(see `probing`), and exits when none is missing. The process of the run alone merges the results:
its tables do not depend on who measured which site.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from probekit.activations.capture import Captured
from probekit.activations.local import as_place
from probekit.activations.store import ActivationStore
from probekit.errors import DamagedError, MissingError, StoreError, StoreMismatchError
from probekit.experiment.activations import ActivationExperiment, AnyExperiment
from probekit.experiment.schema import Experiment
from probekit.files import as_store_error, is_held, write_atomic
from probekit.pipeline.experiment.prepare import prepare
from probekit.pipeline.experiment.source import ModelSource, Networks, Source
from probekit.pipeline.given.source import GivenSource, read_given
from probekit.pipeline.measure.probers import make_probers
from probekit.pipeline.measure.probing import SiteJob, tasks_of, threads_of_site
from probekit.pipeline.measure.run_folder import JOB
from probekit.products import check_device, threads
from probekit.provenance import PART_VERSIONS, digest_sources, seal, unseal, versions
from probekit.results.record import STARTED
from probekit.terminal import SILENT

FORMAT = 1  # of the job file
_PAUSE = 1.0  # seconds between looks at a run without job, or with sites that others measure


class SiteDone(NamedTuple):
    """A measured site: its name and position, and the duration in seconds."""

    site: str
    position: str
    seconds: float


@dataclass(frozen=True)
class RunJob:
    """What a worker needs to measure the sites of a run.

    Attributes:
        experiment: the experiment; its files must be accessible to the worker.
        n_threads: threads of a site, the same for all workers.
        bytes: predicted memory of a worker.
        data: digest of the data.
        activations: digest of given activations; "" if a model computes them.
        caches: folder or URL of the cache of each network, by target; empty for given activations.
        code: what the code that computes the results depends on.
    """

    experiment: AnyExperiment
    n_threads: int
    bytes: int
    data: str
    activations: str
    caches: Mapping[str, str]
    code: Mapping[str, Any]

    @classmethod
    def of(cls, source: Source, bytes: int) -> RunJob | None:
        """Return the job of a source with activations; None if rows or network are in memory."""
        experiment, digest, caches = source.experiment, "", dict[str, str]()
        if isinstance(source, ModelSource):
            if source.experiment.data.in_memory or source.experiment.model.in_memory:
                return None
            caches = {name: str(one.store.folder) for name, one in source.captured.items()}
        elif isinstance(source, GivenSource):
            if experiment.data.file is None:
                return None
            digest = source.given.digest
        data, n_threads = source.rows.dataset.digest, threads_of_site(source)
        return cls(experiment, n_threads, bytes, data, digest, caches, _code())

    def write(self, folder: Path) -> None:
        """Write the job into the folder of a run.

        Raises:
            StoreError: it cannot be written.
        """
        content = vars(self) | {"experiment": self.experiment.model_dump(mode="json")}
        write_atomic(folder / JOB, seal(content, FORMAT))

    @classmethod
    def read(cls, folder: Path) -> RunJob:
        """Return the job in the folder of a run.

        Raises:
            MissingError: there is none.
            StoreError: it cannot be read, or is of another version of probekit.
        """
        path = folder / JOB
        try:
            with as_store_error("read", path):
                content = unseal(path.read_bytes(), str(path), FORMAT)
        except StoreError as error:
            if path.exists():
                raise
            raise MissingError(f"{folder} has no {JOB}: its run has not begun to probe.") from error
        try:
            is_given = "activations" in content["experiment"]
            settings = ActivationExperiment if is_given else Experiment
            text = json.dumps(content.pop("experiment"))
            return cls(settings.model_validate_json(text), **content)
        except (KeyError, TypeError, ValidationError) as error:
            raise DamagedError(f"{path} is not the job of a run: {error}.") from error

    def open(self, device: str) -> Source:
        """Return the activations, read by this process.

        Raises:
            StoreMismatchError: code or data differ from those of the run.
            ProbekitError: the data or activations cannot be read on this machine.
        """
        own = _code()
        differing = [name for name, value in self.code.items() if own.get(name) != value]
        if differing:
            raise StoreMismatchError(
                f"This worker differs from the run in {', '.join(differing)}, so that its results "
                "could differ. Install the same versions on all machines."
            )
        source: Source
        if isinstance(self.experiment, ActivationExperiment):
            source = read_given(self.experiment)
            same_activations = source.given.digest == self.activations
        else:
            stores = {name: ActivationStore.open(as_place(p)) for name, p in self.caches.items()}
            captured = {name: Captured(store, 0, 0, "") for name, store in stores.items()}
            rows, models = prepare(self.experiment), Networks(self.experiment, device)
            source = ModelSource(
                experiment=self.experiment, rows=rows, models=models, captured=captured
            )
            same_activations = True  # a cache is known by its place, which is its identity
        if source.rows.dataset.digest != self.data or not same_activations:
            raise StoreMismatchError(
                "The data of this worker differ from those of the run: a file was changed, or is "
                "another one on this machine. Give all machines the same files."
            )
        return source


def _code() -> dict[str, Any]:
    """Return what the code that computes results depends on, by name."""
    return {"source code": digest_sources(), "parts": dict(PART_VERSIONS)} | versions()


def work_on(folder: Path, *, device: str = "cpu", seed: int = 0) -> Iterator[SiteDone]:
    """Measure sites of a run until none is missing, and yield each after it is saved.

    A run that has not begun to probe is waited for.

    Args:
        folder: the folder of the run.
        device: device that probes are fitted on.
        seed: random seed of the order of sites; should differ between workers.

    Raises:
        MissingError: the folder has no run.
        StoreMismatchError: code or data differ from those of the run.
        StoreError: a file cannot be read or written.
    """
    check_device(device)
    while not (folder / JOB).exists():
        if (folder / "run.json").exists():
            return
        if not (folder / STARTED).exists() or not is_held(folder):
            raise MissingError(f"{folder} has no run in progress. Start it with `probekit run`.")
        time.sleep(_PAUSE)
    job = RunJob.read(folder)
    source = job.open(device)
    probers = make_probers(job.experiment, source.rows, device)
    to_do = []
    for position, prober in enumerate(probers):
        measure = SiteJob.of(source, position, prober, folder, SILENT)
        to_do += [(measure, task) for task in tasks_of(source, position, folder.name)]
    order = np.random.default_rng(seed).permutation(len(to_do)).tolist()
    while to_do and (folder / JOB).exists():  # the run removes its job when it is complete
        n_before, missing = len(order), []
        for number in order:
            measure, task = to_do[number]
            start = time.monotonic()
            if measure.read(task) is not None:
                continue
            with threads(job.n_threads):
                site = measure(task)
            if site is None:
                missing.append(number)
            else:
                _, _, origin = task
                yield SiteDone(origin["site"], origin["position"], time.monotonic() - start)
        if not missing:
            return
        order = missing
        if len(order) == n_before:
            time.sleep(_PAUSE)
