"""Captures that many workers share, on this machine or others, and the size of a capture.

Job           what a worker computes, in a file next to the cache
work_at       the work of one worker
by_processes  several workers on this machine, which share one cache
lay_out       empty caches with job files, for workers that are started elsewhere
plan_capture  the size of a capture before it starts

Workers communicate only through the store. A worker locks a shard with an exclusively created file
and removes it once the rows are committed. Locks only avoid duplicate work: the first worker to
commit a shard wins in any case. Where the file system supports locks, the lock of a killed worker
is free at once. Elsewhere, as in an object store, a waiting worker computes a locked shard itself
once it has waited twice as long as its own slowest shard took, and at least PATIENCE seconds.
Clocks of different machines are never compared.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from joblib import cpu_count
from pydantic import ValidationError

from probekit.accelerators import check_device, check_device_name
from probekit.activations import capture, records, upkeep
from probekit.activations.capture import MissingSites, OnRows, Work
from probekit.activations.local import Files, default_root
from probekit.activations.records import CODES, NO_DIGEST, Location, Spec, identity_of
from probekit.activations.store import ActivationStore, files_at
from probekit.activations.upkeep import SHARD_LOCK
from probekit.data.positions import RowPlan
from probekit.errors import ConfigError, DamagedError, MissingError, StoreError
from probekit.experiment.model import dtype_on
from probekit.experiment.schema import Experiment
from probekit.files import Waiting
from probekit.memory import SHARE, available_memory
from probekit.model.config import ModelConfig
from probekit.model.families.table import find_config, network_class
from probekit.model.network import Network
from probekit.model.proven.config import ProvenConfig
from probekit.model.sites.catalogue import check_storable
from probekit.model.weights.state_dict import as_dtype
from probekit.pipeline.engines.engine import TASK
from probekit.pipeline.engines.network import NetworkEngine
from probekit.pipeline.engines.table import How, prepare
from probekit.pipeline.setup.texts import row_shape
from probekit.probes.targets import NETWORKS
from probekit.products import threads
from probekit.provenance import digest_json, seal, unseal
from probekit.terminal import SILENT, Watcher

FORMAT = 1  # of the job file
PATIENCE = 60.0  # minimum seconds before the holder of a lock is considered dead
_PAUSE = 0.25  # seconds between checks of shards that other workers have locked
_SECONDS_TO_LEAVE = 20  # between the interrupt of a worker and its end by force
# On Windows only a whole process group can be interrupted, so each worker gets its own group.
_INTERRUPT = getattr(signal, "CTRL_BREAK_EVENT", signal.SIGINT)
_OWN_GROUP = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
_CODE = str(Path(__file__).resolve().parents[3])  # workers must import the same code


@dataclass(frozen=True)
class Job:
    """Description of a capture for workers, stored next to the cache that they fill.

    Attributes:
        experiment: the experiment; its files must be accessible to the worker.
        target: the captured model, `task` or one of `NETWORKS`.
    """

    experiment: Experiment
    target: str

    @property
    def content(self) -> dict[str, Any]:
        """The contents of the job file."""
        return {"experiment": self.experiment.model_dump(mode="json"), "target": self.target}

    @property
    def name(self) -> str:
        """The name of the job file; unique, because several experiments may fill one cache."""
        return f"{digest_json(self.content)[:16]}{upkeep.JOB}"

    @classmethod
    def unpack(cls, data: bytes, path: str) -> Job:
        """Return the job in the bytes of a file; `path` is used in error messages.

        Raises:
            DamagedError: the file is not a job.
        """
        content = unseal(data, path, FORMAT)
        try:
            experiment = Experiment.model_validate_json(json.dumps(content["experiment"]))
            # The lookup raises a KeyError for other targets.
            allowed = {name: name for name in (TASK, *NETWORKS)}
            return cls(experiment, allowed[content["target"]])
        except (KeyError, TypeError, ValidationError) as error:
            raise DamagedError(f"{path} is not a capture job: {error}.") from error

    def open(self, place: Location, device: str | None = None) -> Work:
        """Return the work of this job, with the model on a device.

        Args:
            place: folder or URL of the cache.
            device: compute device, such as cuda:1, or several, such as cuda:0,cuda:1; None for the
                device type of the cache.

        Raises:
            MissingError: data or model do not exist on this machine.
            ConfigError: the device is not available.
            StoreMismatchError: data or model differ from those of the cache; the message lists how.
        """
        files = files_at(place)
        spec = Spec.unpack(files.read(records.SPEC), f"{files.place}/{records.SPEC}")
        device = device or spec.identity.device
        check_device(device, several=True)
        return prepare(self.experiment, How(device)).work(self.target, files)


Workers = Callable[[Job, Work, MissingSites, OnRows], None]


def jobs_in(files: Files) -> dict[str, Job]:
    """Return the jobs next to a cache by file name.

    Raises:
        DamagedError: a job file is damaged.
    """
    contents = files.read_all(name for name in files.sizes() if name.endswith(upkeep.JOB))
    return {name: Job.unpack(data, f"{files.place}/{name}") for name, data in contents.items()}


def work_at(
    place: Location,
    *,
    only: str | None = None,
    device: str | None = None,
    n_threads: int | None = None,
    seed: int = 0,
    watcher: Watcher = SILENT,
) -> Iterator[ShardDone]:
    """Compute shards until none is missing for any job; yield each after it is saved.

    Caches without a job are skipped if another cache at the place has one.

    Args:
        place: a cache, or a folder or URL with several caches.
        only: name of the only job to do; None for all. If there is no such job, nothing is done:
            another worker may have completed it.
        device: compute device; None for the device type of each cache.
        n_threads: number of CPU threads; None for one per core.
        seed: random seed for the order of shards; should differ between workers.
        watcher: receives messages about other workers that are waited for.

    Raises:
        MissingError: there is no cache, or no cache has a job and one is incomplete.
        StoreMismatchError: data or model differ from those of the cache; the message lists how.
        StoreError: a cache cannot be written, or a value is not finite.
    """
    caches = upkeep.caches_at(place)
    jobs = {str(cache): jobs_in(files_at(cache)) for cache in caches}
    # Without jobs, every cache must be complete.
    if not any(jobs.values()):
        stores = [ActivationStore.open(cache) for cache in caches]
        # A cache is complete if each site with a folder is one of its finished sites.
        if any(store.missing(one) for store in stores for one in store.files.folders()):
            raise MissingError(f"{place} is incomplete and has no job. {upkeep.HOW_TO_CREATE}")
    for cache in caches:
        for name, job in jobs[str(cache)].items():
            if only is not None and name != only:
                continue
            with threads(n_threads or cpu_count()):
                work = job.open(cache, device)
                yield from compute_shards(work, seed, watcher)
            finish(work.store, job)


class ShardDone(NamedTuple):
    """A computed shard: its cache, index, numbers of sites and rows, and the seconds it took."""

    cache: str
    shard: int
    sites: int
    rows: int
    seconds: float

    def __str__(self) -> str:
        """Return it as a line of text."""
        rows = f"{self.rows} rows of {self.sites} sites"
        return f"{self.cache}: shard {self.shard}, {rows}, {self.seconds:.1f} s"


def compute_shards(work: Work, seed: int, watcher: Watcher = SILENT) -> Iterator[ShardDone]:
    """Compute missing shards together with other workers; yield each shard computed here.

    Returns when no shard is missing any more, whichever worker computed it.

    Args:
        work: the capture; other workers may compute it at the same time.
        seed: random seed of the order of shards; a different one for each worker.
        watcher: receives messages about other workers that are waited for.

    Raises:
        StoreError: the store cannot be written, or a value is not finite.
    """
    store, todo = work.store, dict(work.missing_sites())
    order = np.random.default_rng(seed).permutation(len(work.shards)).tolist()
    first_seen_locked: dict[int, float] = {}  # time at which a shard was first seen locked
    slowest = 0.0  # seconds for a shard computed here
    waiting = Waiting(store.folder, watcher.tell)
    while todo:
        for shard in [shard for shard in order if shard in todo]:
            # A shard that is seen for the first time has waited -inf, which is below any patience.
            waited = time.monotonic() - first_seen_locked.get(shard, np.inf)
            with _lock_shard(store.files, shard) as is_acquired:
                if not is_acquired and waited < max(PATIENCE, 2 * slowest):
                    first_seen_locked.setdefault(shard, time.monotonic())
                    continue
                requested = todo.pop(shard)
                sites = store.missing_sites(requested, shard)
                if sites:
                    start = time.monotonic()
                    work.compute({shard: sites})
                    seconds = time.monotonic() - start
                    slowest = max(slowest, seconds)
                    n_rows, place = work.n_rows_of(shard), str(store.folder)
                    yield ShardDone(place, shard, len(sites), n_rows, seconds)
        todo = {shard: sites for shard, sites in todo.items() if store.missing_sites(sites, shard)}
        if todo:
            time.sleep(_PAUSE)
            waiting.look(_signatures(store.files, todo))
        else:
            todo = dict(work.missing_sites())  # a committed shard may have been damaged since


def _signatures(files: Files, shards: Iterable[int]) -> Iterator[str]:
    """Yield the signatures in the lock files of shards, read when needed; none on Windows."""
    for content in files.read_all(f"{shard:05d}{SHARD_LOCK}" for shard in shards).values():
        yield content.decode(errors="replace")


@contextmanager
def _lock_shard(files: Files, shard: int) -> Iterator[bool]:
    """Try to lock a shard, after removing the lock of a dead worker; yield whether it succeeded."""
    name = f"{shard:05d}{SHARD_LOCK}"
    with files.try_lock(name) as is_acquired:
        if is_acquired or not files.remove_abandoned(name):
            yield is_acquired
            return
    with files.try_lock(name) as is_acquired:
        yield is_acquired


def put_job(job: Job, work: Work) -> None:
    """Write the job file, if it does not exist, into a store that supports several writers.

    Raises:
        ConfigError: the rows or the network are in the memory of this process.
        StoreError: the store cannot be written, or does not support several writers.
    """
    data, model = job.experiment.data, job.experiment.model
    if data.in_memory is not None or model.in_memory is not None:
        raise ConfigError(
            "Other processes cannot read rows or a network passed in Python. Capture without "
            "workers, or write the rows to a file and save the network with `save_pretrained`."
        )
    files = files_at(work.store.folder)  # opened again without this process's lock
    files.begin(work.sites[0])  # raises if the store does not support several writers
    files.create(job.name, seal(job.content, FORMAT))


def close_job(job: Job, work: Work, failures: list[str], n_workers: int, watcher: Watcher) -> None:
    """Seal a complete cache after its workers have ended, and report failed workers.

    Args:
        job: job of the cache.
        work: the capture.
        failures: reason of each worker that failed.
        n_workers: number of workers.
        watcher: receives a message about failures if the cache is complete nevertheless.

    Raises:
        StoreError: shards are missing.
    """
    summary = f"{len(failures)} of {n_workers} workers failed, the last one with: "
    summary = f"{summary}{failures[-1]} " if failures else ""
    if missing := len(work.missing_sites()):
        raise StoreError(
            f"{missing} of {len(work.shards)} shards are missing in {work.store.folder}. {summary}"
            "Committed shards are saved; run the same command to continue."
        )
    if summary:
        watcher.tell(f"{summary}The other workers completed the capture.")
    finish(work.store, job)


def finish(store: ActivationStore, job: Job) -> None:
    """Seal a complete store and remove its job file and locks.

    Raises:
        StoreError: the store cannot be written.
    """
    store.seal()
    for name in (job.name, *upkeep.shard_locks(store.files)):
        store.files.remove(name)


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
        lacking: missing sites of each shard that lacks some; not empty.
        on_rows: called with the number of rows of each newly computed shard.
        n_workers: maximum number of processes; at most one per shard is started.
        device: compute device.
        watcher: receives a message about processes that failed.
        n_threads: threads per process; None for an equal share of the cores.

    Raises:
        ConfigError: the rows are in the memory of this process.
        StoreError: shards are missing after all processes ended, or the store does not support
            several writers.
    """
    n_processes = min(n_workers, len(lacking))
    put_job(job, work)
    n_threads = n_threads or max(1, cpu_count() // n_processes)
    try:
        with _start_workers(job, work, n_processes, device, n_threads) as (workers, lines):
            for line in lines:
                on_rows(json.loads(line)["rows"])
            reasons = [worker.wait() for worker in workers]
    finally:  # a worker that was killed by a signal has not removed its lock
        upkeep.remove_dead_locks(work.store.files)
    close_job(job, work, [reason for reason in reasons if reason], n_processes, watcher)


class _Worker(NamedTuple):
    """A worker process, and the temporary file that receives its error output."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    def wait(self) -> str:
        """Wait for the process; return its error message or exit code, or "" if it succeeded."""
        code = self.process.wait()
        if code == 0:
            return ""
        if code < 0:
            return f"killed by signal {-code} ({signal.strsignal(-code)})."
        self.errors.seek(0)
        message = self.errors.read().decode(errors="replace").strip()
        # A command that fails prints its message after "Error: "; without it, all output is used.
        return message.rpartition("Error: ")[2] or f"exit code {code}."


@contextmanager
def _start_workers(
    job: Job, work: Work, n_processes: int, device: str, n_threads: int
) -> Iterator[tuple[list[_Worker], Iterator[str]]]:
    """Start worker processes; yield them and the lines of their joint output.

    The lines end when all workers have ended. Workers that still run on exit are stopped.
    """
    # With -P, workers import no modules from the current folder.
    command = [sys.executable, "-P", "-m", "probekit", "worker", str(work.store.folder), "--json"]
    command += ["--job", job.name, "--device", device, "--threads", str(n_threads)]
    command += ["--parent", str(os.getpid())]
    paths = filter(None, (_CODE, os.environ.get("PYTHONPATH")))
    environment = os.environ | {"OMP_NUM_THREADS": str(n_threads)}
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment[SHARE] = str(available_memory(device) / n_processes)
    with ExitStack() as stack:
        reading, writing = os.pipe()
        lines = stack.enter_context(os.fdopen(reading))
        workers: list[_Worker] = []
        stack.callback(_stop, workers)
        # Each worker shuffles the shards by its own seed, so that two rarely want the same shard.
        for seed in range(n_processes):
            errors = stack.enter_context(tempfile.TemporaryFile())
            streams: Any = {"stdin": subprocess.DEVNULL, "stdout": writing, "stderr": errors}
            # Ctrl-C on a terminal then interrupts only this process, which stops the workers.
            group: Any = {"start_new_session": True, "creationflags": _OWN_GROUP}
            seeded = [*command, "--seed", str(seed)]
            process = subprocess.Popen(seeded, env=environment, **streams, **group)
            workers.append(_Worker(process, errors))
        os.close(writing)  # the pipe then ends with the last worker
        yield workers, lines


def _stop(workers: Sequence[_Worker]) -> None:
    """Interrupt running workers so that they clean up; kill those that do not exit in time."""
    for worker in workers:
        worker.process.send_signal(_INTERRUPT)  # no effect if the process has ended
    for worker in workers:
        try:
            worker.process.wait(_SECONDS_TO_LEAVE)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()


def lay_out(
    experiment: Experiment, *, cache_root: Location | None = None, device: str = "cpu"
) -> Mapping[str, ActivationStore]:
    """Create caches with job files for workers and return them by target; nothing is computed.

    Existing caches are kept, and complete ones get no job file.

    Args:
        experiment: the experiment.
        cache_root: folder or URL of the caches; None for the user's default.
        device: compute device of the workers, which may be on other machines.

    Raises:
        ConfigError: the device name is invalid, or the rows are in the memory of this process.
        ProbekitError: another of its subclasses; data or model cannot be used.
        StoreError: the caches cannot be written, or do not support several writers.
    """
    check_device_name(device)
    experiment = experiment.on_device(device)
    source = prepare(experiment, How(to_compute=False))
    root = default_root() if cache_root is None else cache_root
    stores = {}
    for target in source.networks:
        work = source.work(target, root, device.partition(":")[0])
        if work.missing_sites():
            put_job(Job(experiment, target), work)
        stores[target] = work.store
    return stores


def blank_network(config: ModelConfig, dtype: str | torch.dtype) -> Network:
    """Return a network without weights; one that transformers computes is loaded already."""
    if isinstance(config, ProvenConfig):
        return config.network
    return network_class(config)(config, seed=None).requires_grad_(False).to(as_dtype(dtype))


def plan_capture(source: NetworkEngine, device: str = "cpu") -> dict[str, Any]:
    """Return the size of an experiment's capture, without reading weights.

    Args:
        source: the experiment with its texts, prepared for the device.
        device: compute device, such as `cuda`, whose type sets the size of batches.

    Raises:
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    check_device_name(device)
    experiment, texts = source.experiment, source.texts
    network = blank_network(texts.config, experiment.model.dtype)
    tokenizer, tokens, plan = texts.tokenizer.digest, texts.ids, texts.plan
    device_type, dtype = device.partition(":")[0], experiment.capture.dtype
    identity = identity_of(network, tokenizer, tokens, plan, dtype, device_type, source.origin)
    shards = capture.shards_of(identity, tokens, plan)
    rows_of_shard = [sum(len(batch.rows) for batch in shard) for shard in shards]
    sizes = records.Sizes(len(plan.example), len(plan.positions), len(shards), NO_DIGEST)
    size_of = partial(
        _planned,
        Spec(identity, sizes),
        shards=Counter((len(str(index)), n_rows) for index, n_rows in enumerate(rows_of_shard)),
        n_tokens=sum(batch.n_tokens for shard in shards for batch in shard),
    )
    shapes = {site: row_shape(site, texts.config) for site in texts.sites}
    planned, numbers = size_of(shapes, n_caches=len(source.networks)), source.output
    if numbers is not None:  # of the probed network only
        plain = size_of(shapes, n_caches=1)
        added = size_of(shapes | {numbers.column: (len(numbers.names),)}, n_caches=1)
        planned |= {key: planned[key] + added[key] - plain[key] for key in ("bytes", "files")}
    return planned


def plan_tokens(
    model: str, tokens: int, *, sites: Sequence[str], dtype: str = "float16", device: str = "cpu"
) -> dict[str, Any]:
    """Return the size of a capture of all tokens of sequences that fill the context.

    Args:
        model: name or folder of the model.
        tokens: total number of tokens; rounded up to whole sequences.
        sites: names or globs.
        dtype: data type on disk, `float32`, `float16` or `bfloat16`.
        device: compute device, such as `cuda`, whose type sets the size of batches.

    Raises:
        MissingError: the configuration of the model does not exist.
        ConfigError: a site does not exist, or cannot be stored.
    """
    check_device_name(device)
    config = find_config(model)
    names = config.sites.expand(list(sites))
    check_storable(names)
    network, none = blank_network(config, dtype_on(device)), np.empty(0, np.int64)
    no_rows = RowPlan(none, none, none)
    identity = identity_of(network, NO_DIGEST, [], no_rows, dtype, device.partition(":")[0])
    # A batch has at least one sequence, and a shard at least one batch.
    tokens_of_batch = max(1, identity.batch_tokens // config.n_ctx) * config.n_ctx
    tokens_of_shard = tokens_of_batch * max(1, identity.shard_rows // tokens_of_batch)
    n_tokens = math.ceil(tokens / config.n_ctx) * config.n_ctx  # each token is a row
    n_full, n_rest = divmod(n_tokens, tokens_of_shard)
    # Every index is counted with the digits of the last one.
    shards = Counter({(len(str(n_full)), tokens_of_shard): n_full, (1, n_rest): n_rest > 0})
    sizes = records.Sizes(n_tokens, n_tokens, shards.total(), NO_DIGEST)
    shapes = {site: row_shape(site, config) for site in names}
    return _planned(Spec(identity, sizes), shapes, shards, n_tokens=n_tokens, n_caches=1)


def _planned(
    spec: Spec,
    shapes: Mapping[str, tuple[int, ...]],
    shards: Counter[tuple[int, int]],
    *,
    n_tokens: int,
    n_caches: int,
) -> dict[str, Any]:
    """Return the size of a capture in a local folder, where an empty lock file remains.

    Args:
        spec: identity and row layout of each cache; only the lengths of its digests matter.
        shapes: shape of a row at each site, by full name.
        shards: number of shards by digits of their index and by rows.
        n_tokens: tokens that each model reads.
        n_caches: number of models, each with a cache of its own.
    """
    # The manifest has one line for each shard of each site.
    one, two = (
        len(records.Manifest.of(spec, {site: [NO_DIGEST] * n for site in shapes}).pack())
        for n in (1, 2)
    )
    # Of rows whose errors are measured.
    sites = [site for site in shapes if not site.startswith(records.OUTPUT)]
    errors = len(records.pack_errors(dict.fromkeys(sites, (0.0, 0.0)))) * spec.identity.is_compared
    n_bytes = (
        errors + spec.sizes.size + len(spec.pack()) + one + (spec.sizes.shards - 1) * (two - one)
    )
    key, dtype = spec.identity.key, spec.identity.dtype
    for site, shape in shapes.items():
        for (n_digits, n_rows), n_shards in shards.items():
            index = 10 ** (n_digits - 1)
            code = CODES[records.dtype_of(site, spec.identity)]
            record = records.ShardRecord(key, site, index, code, (n_rows, *shape), NO_DIGEST)
            n_bytes += n_shards * (record.size + len(record.pack()))
    # Rows and record of each shard and site; layout, specification, manifest and lock.
    n_files = 2 * spec.sizes.shards * len(shapes) + 4 + spec.identity.is_compared
    planned = {"caches": n_caches, "tokens": n_tokens, "device": spec.identity.device}
    planned |= {"tokens_of_a_batch": spec.identity.batch_tokens, "sites": list(shapes)}
    planned |= {"dtype": dtype, "rows_of_a_site": spec.sizes.rows}
    planned["shards_of_a_site"] = spec.sizes.shards
    return planned | {"bytes": n_caches * n_bytes, "files": n_caches * n_files}
