"""Capturing the rows of an experiment from its models, and the size of that before it starts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from probekit.activations.capture import (
    Captured,
    Work,
    check_storable,
    described_reading,
    fill,
    shards_of,
)
from probekit.activations.local import default_root
from probekit.activations.records import (
    CODES,
    NO_DIGEST,
    Location,
    Manifest,
    ShardRecord,
    Sizes,
    Spec,
    identity_of,
    pack_errors,
)
from probekit.activations.store import ActivationStore
from probekit.data.positions import RowPlan
from probekit.experiment.model import dtype_on
from probekit.experiment.schema import Experiment
from probekit.memory import device_text
from probekit.model.families.table import find_config, network_class
from probekit.pipeline.capture.jobs import Job, Workers, begin_work, put_job
from probekit.pipeline.experiment.prepare import TextRows, prepare, row_shape
from probekit.pipeline.experiment.rows import Probed
from probekit.pipeline.experiment.source import (
    TASK,
    ModelSource,
    model_source,
    target_network,
    targets,
)
from probekit.products import check_device_name
from probekit.terminal import SILENT, Watcher


def capture_only(
    experiment: Experiment,
    *,
    cache_root: Location | None = None,
    device: str | Sequence[str] = "cpu",
    watcher: Watcher = SILENT,
    crew: Workers | None = None,
    only: str | None = None,
) -> dict[str, Captured]:
    """Capture the activations of an experiment; return them by target.

    The targets are `task`, for the probed model, and one for each network with random weights.

    Args:
        experiment: the experiment.
        cache_root: folder or URL of the caches; None for the user's default.
        device: compute device of the models; several, as a list or as in `cuda:0,cuda:1`, each hold
            some of the blocks.
        watcher: receives progress.
        crew: captures with several workers; None for this process only.
        only: the only target; None for all.

    Raises:
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    device = device_text(device)
    check_device_name(device)
    experiment = experiment.on_device(device)
    # With a crew this process only digests the weights, and it may have no GPU.
    source = model_source(experiment, device if crew is None else "cpu", to_compute=crew is None)
    return capture_models(
        source, cache_root=cache_root, watcher=watcher, crew=crew, device=device, only=only
    )


def capture_models(
    source: ModelSource,
    *,
    cache_root: Location | None,
    watcher: Watcher,
    crew: Workers | None = None,
    device: str = "cpu",
    only: str | None = None,
) -> dict[str, Captured]:
    """Capture the rows of all probed sites of an experiment; return them by target.

    Args:
        source: the experiment with its rows and models.
        cache_root: folder or URL of the caches; None for the user's default.
        watcher: receives progress.
        crew: captures with several workers; None to use the models of this process.
        device: compute device of the crew; not used without one.
        only: the only target; None for all.
    """
    experiment = source.experiment
    root = default_root() if cache_root is None else cache_root
    device_type = None if crew is None else device.partition(":")[0]

    def capture(target: str) -> Captured:
        engine = Work.compute if crew is None else partial(crew, Job(experiment, target))
        step = "capture" if target == TASK else "capture, untrained"
        model = source.models(target)
        work = begin_work(experiment, source.rows, model, target, root, device_type)
        missing = [work.shards[index] for index in work.missing_sites()]
        is_read = work.requests is not None
        if target == TASK and missing and not (crew or is_read or model.is_in_memory):
            device = str(model.device)
            watcher.tell(described_reading(model.config, model.dtype, device, missing))
        return fill(work, root, engine=engine, step=step, watcher=watcher)

    # Called one after the other, so that no variable keeps the network of the last target.
    of = targets(experiment) if only is None else (only,)
    return {target: capture(target) for target in of}


def capture_further(
    source: ModelSource,
    rows: TextRows,
    selections: Sequence[Probed],
    *,
    cache_root: Location | None,
    watcher: Watcher,
) -> ModelSource:
    """Return further rows of an experiment, which it has no scores of, captured at some sites.

    Args:
        source: the experiment with its rows and models.
        rows: the rows, such as those of a monitor's negatives.
        selections: the sites.
        cache_root: folder or URL of the caches; None for the user's default.
        watcher: receives progress.
    """
    rows = replace(rows, selections=tuple(selections))
    root = default_root() if cache_root is None else cache_root
    work = begin_work(source.experiment, rows, source.models(TASK), TASK, root)
    captured = fill(work, root, step="capture further texts", watcher=watcher)
    return ModelSource(
        experiment=source.experiment, rows=rows, models=source.models, captured={TASK: captured}
    )


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
    prepared = prepare(experiment)
    root = default_root() if cache_root is None else cache_root
    stores = {}
    for target in targets(experiment):
        model = target_network(experiment, "cpu", target, to_compute=False)
        work = begin_work(experiment, prepared, model, target, root, device.partition(":")[0])
        if work.missing_sites():
            put_job(Job(experiment, target), work)
        stores[target] = work.store
    return stores


def plan_capture(experiment: Experiment, prepared: TextRows, device: str = "cpu") -> dict[str, Any]:
    """Return the size of an experiment's capture, without reading weights.

    Args:
        experiment: the experiment.
        prepared: its rows.
        device: compute device, such as `cuda`, whose type sets the size of batches.

    Raises:
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    check_device_name(device)
    experiment = experiment.on_device(device)
    capture = experiment.capture
    network = network_class(prepared.config)(prepared.config, seed=None)
    network.to(getattr(torch, experiment.model.dtype))
    tokenizer, tokens, plan = prepared.tokenizer.digest, prepared.ids, prepared.plan
    device_type = device.partition(":")[0]
    read_from = "" if prepared.requests is None else prepared.requests.digest
    identity = identity_of(network, tokenizer, tokens, plan, capture.dtype, device_type, read_from)
    shards = shards_of(identity, tokens, plan)
    rows_of_shard = [sum(len(batch.rows) for batch in shard) for shard in shards]
    return _planned(
        Spec(identity, Sizes(len(plan.example), len(plan.positions), len(shards), NO_DIGEST)),
        {site: row_shape(site, prepared.config) for site in prepared.sites},
        Counter((len(str(index)), n_rows) for index, n_rows in enumerate(rows_of_shard)),
        n_tokens=sum(batch.n_tokens for shard in shards for batch in shard),
        n_caches=len(targets(experiment)),
    )


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
    network, none = network_class(config)(config, seed=None), np.empty(0, np.int64)
    network.to(getattr(torch, dtype_on(device)))
    no_rows = RowPlan(none, none, none)
    identity = identity_of(network, NO_DIGEST, [], no_rows, dtype, device.partition(":")[0])
    # A batch has at least one sequence, and a shard at least one batch.
    tokens_of_batch = max(1, identity.batch_tokens // config.n_ctx) * config.n_ctx
    tokens_of_shard = tokens_of_batch * max(1, identity.shard_rows // tokens_of_batch)
    n_tokens = math.ceil(tokens / config.n_ctx) * config.n_ctx  # each token is a row
    n_full, n_rest = divmod(n_tokens, tokens_of_shard)
    # Every index is counted with the digits of the last one.
    shards = Counter({(len(str(n_full)), tokens_of_shard): n_full, (1, n_rest): n_rest > 0})
    sizes = Sizes(n_tokens, n_tokens, shards.total(), NO_DIGEST)
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
        len(Manifest.of(spec, {site: [NO_DIGEST] * n for site in shapes}).pack()) for n in (1, 2)
    )
    # Of rows whose errors are measured.
    errors = len(pack_errors(dict.fromkeys(shapes, 0.0))) * spec.identity.is_compared
    n_bytes = (
        errors + spec.sizes.size + len(spec.pack()) + one + (spec.sizes.shards - 1) * (two - one)
    )
    key, dtype = spec.identity.key, spec.identity.dtype
    for site, shape in shapes.items():
        for (n_digits, n_rows), n_shards in shards.items():
            index = 10 ** (n_digits - 1)
            record = ShardRecord(key, site, index, CODES[dtype], (n_rows, *shape), NO_DIGEST)
            n_bytes += n_shards * (record.size + len(record.pack()))
    # Rows and record of each shard and site; layout, specification, manifest and lock.
    n_files = 2 * spec.sizes.shards * len(shapes) + 4 + spec.identity.is_compared
    return {
        "caches": n_caches,
        "tokens": n_tokens,
        "device": spec.identity.device,
        "tokens_of_a_batch": spec.identity.batch_tokens,
        "sites": list(shapes),
        "dtype": dtype,
        "rows_of_a_site": spec.sizes.rows,
        "shards_of_a_site": spec.sizes.shards,
        "bytes": n_caches * n_bytes,
        "files": n_caches * n_files,
    }
