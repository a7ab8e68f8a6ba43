"""Capturing the rows of an experiment from its models, and the size of that before it starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from probekit.activations.capture import (
    Captured,
    check_storable,
    compute_locally,
    described_reading,
    fill,
)
from probekit.activations.forward import make_batches, make_shards
from probekit.activations.local import default_root
from probekit.activations.records import SHARD_ROWS, Location, batch_tokens
from probekit.activations.store import ActivationStore
from probekit.experiment.schema import Experiment
from probekit.model.config import ModelConfig
from probekit.model.families.table import find_config
from probekit.pipeline.capture.jobs import Job, Workers, begin_work, put_job
from probekit.pipeline.experiment.prepare import n_features, prepare
from probekit.pipeline.experiment.source import (
    TASK,
    ModelSource,
    model_source,
    target_network,
    targets,
)
from probekit.products import check_device_name
from probekit.terminal import SILENT, Watcher

_BYTES_OF_A_FILE = 250  # mean of the header of a row file, and a record with its manifest entry
_LAYOUT_BYTES = 32  # of each row, with one position


def capture_only(
    experiment: Experiment,
    *,
    cache_root: Location | None = None,
    device: str = "cpu",
    watcher: Watcher = SILENT,
    crew: Workers | None = None,
) -> dict[str, Captured]:
    """Capture the activations of an experiment; return them by target.

    The targets are `task`, for the probed model, and one for each network with random weights.

    Args:
        experiment: the experiment.
        cache_root: folder or URL of the caches; None for the user's default.
        device: compute device of the models.
        watcher: receives progress.
        crew: captures with several workers; None for this process only.

    Raises:
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    check_device_name(device)
    # With a crew this process only digests the weights, and it may have no GPU.
    source = model_source(experiment, device if crew is None else "cpu")
    return capture_models(source, cache_root=cache_root, watcher=watcher, crew=crew, device=device)


def capture_models(
    source: ModelSource,
    *,
    cache_root: Location | None,
    watcher: Watcher,
    crew: Workers | None = None,
    device: str = "cpu",
) -> dict[str, Captured]:
    """Capture the rows of all probed sites of an experiment; return them by target.

    Args:
        source: the experiment with its rows and models.
        cache_root: folder or URL of the caches; None for the user's default.
        watcher: receives progress.
        crew: captures with several workers; None to use the models of this process.
        device: compute device of the crew; not used without one.
    """
    experiment = source.experiment
    root = default_root() if cache_root is None else cache_root
    device_type = None if crew is None else device.partition(":")[0]

    def capture(target: str) -> Captured:
        engine = compute_locally if crew is None else partial(crew, Job(experiment, target))
        step = "capture" if target == TASK else "capture, untrained"
        work = begin_work(experiment, source.rows, source.models(target), root, device_type)
        model = work.model
        missing = [work.shards[index] for index in work.missing_sites()]
        if target == TASK and missing and not model.is_in_memory:
            device = str(model.device)
            watcher.tell(described_reading(model.config, model.dtype, device, missing))
        return fill(work, root, engine=engine, step=step, watcher=watcher)

    # Called one after the other, so that no variable keeps the network of the last target.
    return {target: capture(target) for target in targets(experiment)}


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
    prepared = prepare(experiment)
    root = default_root() if cache_root is None else cache_root
    stores = {}
    for target in targets(experiment):
        model = target_network(experiment, "cpu", target)
        work = begin_work(experiment, prepared, model, root, device.partition(":")[0])
        if work.missing_sites():
            put_job(Job(experiment, target), work)
        stores[target] = work.store
    return stores


def plan_experiment(experiment: Experiment, device: str = "cpu") -> dict[str, Any]:
    """Return the size of an experiment's capture; read the data, but not the weights.

    Args:
        experiment: the experiment.
        device: compute device, such as `cuda`, whose type sets the size of batches.

    Raises:
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    prepared = prepare(experiment)
    batches = list(make_batches(prepared.ids, prepared.plan, batch_tokens(device)))
    return _planned(
        prepared.config,
        prepared.sites,
        experiment.capture.dtype,
        n_tokens=sum(batch.n_tokens for batch in batches),
        n_rows=len(prepared.plan.example),
        n_shards=len(make_shards(batches, SHARD_ROWS)),
        n_caches=len(targets(experiment)),
    )


def plan_tokens(
    model: str, tokens: int, *, sites: Sequence[str], dtype: str = "float16", device: str = "cuda"
) -> dict[str, Any]:
    """Return the size of a capture of all tokens of sequences that fill the context.

    Args:
        model: name or folder of the model.
        tokens: total number of tokens; rounded up to whole sequences.
        sites: names or globs.
        dtype: data type on disk, `float32` or `float16`.
        device: compute device, such as `cuda`, whose type sets the size of batches.

    Raises:
        MissingError: the configuration of the model does not exist.
        ConfigError: a site does not exist, or cannot be stored.
    """
    config = find_config(model)
    names = config.sites.expand(list(sites))
    check_storable(names)
    # A batch has at least one sequence, and a shard at least one batch.
    tokens_of_batch = max(1, batch_tokens(device) // config.n_ctx) * config.n_ctx
    tokens_of_shard = tokens_of_batch * max(1, SHARD_ROWS // tokens_of_batch)
    n_tokens = math.ceil(tokens / config.n_ctx) * config.n_ctx  # each token is a row
    n_shards = math.ceil(n_tokens / tokens_of_shard)
    return _planned(
        config, names, dtype, n_tokens=n_tokens, n_rows=n_tokens, n_shards=n_shards, n_caches=1
    )


def _planned(
    config: ModelConfig,
    sites: Sequence[str],
    dtype: str,
    *,
    n_tokens: int,
    n_rows: int,
    n_shards: int,
    n_caches: int,
) -> dict[str, Any]:
    """Return the size of a capture, given its tokens, rows, shards and caches."""
    # Rows and record of each shard and site; layout, specification and manifest of the cache.
    n_files = 2 * n_shards * len(sites) + 3
    width = sum(n_features(site, config) for site in sites)
    bytes_of_row = width * np.dtype(dtype).itemsize + _LAYOUT_BYTES
    return {
        "caches": n_caches,
        "tokens": n_tokens,
        "sites": list(sites),
        "dtype": dtype,
        "rows_of_a_site": n_rows,
        "shards_of_a_site": n_shards,
        "bytes": n_caches * (n_rows * bytes_of_row + n_files * _BYTES_OF_A_FILE),
        "files": n_caches * n_files,
    }
