"""Captures that many workers share: what stands beside a cache for them, and what a worker does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from probekit.activations.files.local import Files, Location
from probekit.activations.files.places import files_at
from probekit.activations.identity import Spec
from probekit.activations.shared.locks import ShardDone, compute_shards, shard_locks
from probekit.activations.shared.work import Work
from probekit.activations.store.committed import SPEC
from probekit.activations.store.store import ActivationStore
from probekit.activations.upkeep.maintenance import JOB, caches_in, is_cache
from probekit.errors import DamagedError, MissingError
from probekit.experiment.schema import Experiment
from probekit.model.network import Network
from probekit.pipeline.capture.devices import check_device
from probekit.pipeline.experiment.models import RANDOM, TASK, load_model
from probekit.pipeline.experiment.prepare import Prepared, prepare
from probekit.provenance import digest_json
from probekit.sealed import seal, unseal


@dataclass(frozen=True)
class Job:
    """What a worker needs to know beside the cache that it fills.

    Attributes:
        experiment: whose activations are captured; its files must be found where the worker runs.
        target: which of its models, `task` or `random_weights`.
    """

    experiment: Experiment
    target: str

    @cached_property
    def content(self) -> dict[str, Any]:
        """What stands in its file."""
        return {"experiment": self.experiment.model_dump(mode="json"), "target": self.target}

    @property
    def name(self) -> str:
        """The name of its file: several experiments may fill one cache."""
        return f"{digest_json(self.content)[:16]}{JOB}"

    def put(self, files: Files) -> None:
        """Write it beside a cache, if it is not there.

        Raises:
            StoreError: the cache cannot be written.
        """
        files.create(self.name, seal(self.content))

    @classmethod
    def unpack(cls, data: bytes, path: str) -> Job:
        """Return the job that a file holds; `path` is what a message calls it.

        Raises:
            DamagedError: it is none.
        """
        content = unseal(data, path)
        try:
            experiment = Experiment.model_validate_json(json.dumps(content["experiment"]))
            return cls(experiment, {TASK: TASK, RANDOM: RANDOM}[content["target"]])
        except (KeyError, TypeError, ValidationError) as error:
            raise DamagedError(f"{path} is not the job of a capture: {error}.") from error

    def open(self, place: Location, device: str | None = None) -> Work:
        """Return the work that the job means, with the model on a device.

        Args:
            place: of its cache.
            device: where to compute, such as cuda:1; None for the class of the cache's device.

        Raises:
            MissingError: data or model are not found from here.
            StoreMismatchError: what is found here gives other rows; the message lists why.
        """
        files = files_at(place)
        spec = Spec.unpack(files.read(SPEC), f"{files.place}/{SPEC}")
        device = device or spec.identity.device
        check_device(device)
        model = load_model(self.experiment, self.target, device)
        return begin_work(self.experiment, prepare(self.experiment), model, files)


def begin_work(
    experiment: Experiment,
    prepared: Prepared,
    model: Network,
    root: Location | Files,
    device: str | None = None,
) -> Work:
    """Return what has to be done to capture the rows of an experiment from one of its models.

    Args:
        experiment: gives the numbers on disk.
        prepared: its rows.
        model: whose activations are captured.
        root: folder or URL that holds caches, or the files of the very one that it must be.
        device: class of the devices that will compute; None for that of the model.

    Raises:
        StoreMismatchError: the files are those of another capture.
        StoreError: the store cannot be written.
    """
    return Work.begin(
        model,
        prepared.tokenizer.digest,
        prepared.ids,
        prepared.plan,
        prepared.sites,
        root=root,
        dtype=experiment.capture.dtype,
        device=device,
    )


def jobs_in(files: Files) -> dict[str, Job]:
    """Return the jobs that stand beside a cache, by the names of their files.

    Raises:
        DamagedError: one of them is none.
    """
    names = [name for name in files.sizes() if name.endswith(JOB)]
    return {
        name: Job.unpack(data, f"{files.place}/{name}")
        for name, data in files.read_all(names).items()
    }


def work_at(
    place: Location, *, only: str | None = None, device: str | None = None, seed: int = 0
) -> Iterator[tuple[Location, ShardDone]]:
    """Yield each shard that this worker computes, and of which cache, until nothing is missing.

    Args:
        place: a cache, or a folder or URL that holds several.
        only: the name of the one job to be done, None for all.
        device: where to compute, None for the class of device of each cache.
        seed: of the order in which shards are tried; another one for each worker.

    Raises:
        MissingError: there is no cache, or one is not finished and has no job.
        StoreMismatchError: what is found here gives other rows; the message lists why.
        StoreError: a cache cannot be written, or a value is not finite.
    """
    caches = [place] if is_cache(files_at(place)) else caches_in(place)
    found = {str(cache): jobs_in(files_at(cache)) for cache in caches}
    if not any(found.values()):
        _require_finished(place, caches)
    for cache in caches:
        for name, job in found[str(cache)].items():
            if only not in (None, name):
                continue
            work = job.open(cache, device)
            for done in compute_shards(work, seed):
                yield cache, done
            finish(work.store, job)


def _require_finished(place: Location, caches: list[Location]) -> None:
    """Refuse to find nothing to do where something is missing."""
    stores = [ActivationStore.open(cache) for cache in caches]
    if not stores or any(set(store.files.folders()) != set(store.sites) for store in stores):
        what = "is not finished, and has no job" if stores else "holds no cache"
        raise MissingError(
            f"{place} {what}. `probekit cache FILE.yaml --workers 0 --cache FOLDER` lays caches "
            "out for workers."
        )


def finish(store: ActivationStore, job: Job) -> None:
    """Seal a store of which nothing is missing, and take away what told its workers of it.

    Raises:
        StoreError: the store cannot be written.
    """
    store.seal()
    for name in (job.name, *shard_locks(store.files)):
        store.files.remove(name)
