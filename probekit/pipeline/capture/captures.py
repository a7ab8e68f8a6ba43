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

from probekit.activations.capture import Captured, Work, fill, shards_of
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
from probekit.model.sites.catalogue import check_storable
from probekit.pipeline.capture.jobs import Job, Workers, put_job
from probekit.pipeline.engines.engine import TASK
from probekit.pipeline.engines.network import CapturedRows, NetworkEngine
from probekit.pipeline.engines.table import How, prepare
from probekit.pipeline.setup.design import Probed
from probekit.pipeline.setup.texts import row_shape
from probekit.products import check_device_name
from probekit.terminal import SILENT, Watcher


def capture_only(
    experiment: Experiment,
    *,
    cache_root: Location | None = None,
    device: str | Sequence[str] = "cpu",
    watcher: Watcher = SILENT,
    crew: Workers | None = None,
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

    Raises:
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    device = device_text(device)
    check_device_name(device)
    experiment = experiment.on_device(device)
    # With a crew this process only digests the weights, and it may have no GPU.
    how = How(device, cache_root=cache_root, watcher=watcher, replies="generated")
    if crew is not None:
        how = how._replace(device="cpu", to_compute=False, replies="shared")
    source = prepare(experiment, how).ready(how.device)
    return capture_models(source, cache_root=cache_root, watcher=watcher, crew=crew, device=device)


def capture_models(
    source: NetworkEngine,
    *,
    cache_root: Location | None,
    watcher: Watcher,
    crew: Workers | None = None,
    device: str = "cpu",
) -> dict[str, Captured]:
    """Capture the rows of all probed sites of an experiment; return them by target.

    Args:
        source: the experiment with its texts and models.
        cache_root: folder or URL of the caches; None for the user's default.
        watcher: receives progress.
        crew: captures with several workers; None to use the models of this process.
        device: compute device of the crew; not used without one.
    """
    root = default_root() if cache_root is None else cache_root
    device_type = None if crew is None else device.partition(":")[0]

    def capture(target: str) -> Captured:
        work = source.work(target, root, device_type)
        compute = Work.compute if crew is None else partial(crew, Job(source.experiment, target))
        step = "capture" if target == TASK else "capture, untrained"
        missing = [work.shards[index] for index in work.missing_sites()]
        if target == TASK and missing and crew is None and (how := work.reader.how_read(missing)):
            watcher.tell(how)
        return fill(work, root, compute=compute, step=step, watcher=watcher)

    # Called one after the other, so that no variable keeps the network of the last target.
    return {target: capture(target) for target in source.networks}


def capture_further(
    source: NetworkEngine,
    name: str,
    selections: Sequence[Probed],
    *,
    cache_root: Location | None,
    watcher: Watcher,
) -> CapturedRows:
    """Return further texts of an experiment, captured at some sites.

    Args:
        source: the experiment with its models.
        name: the name of the texts.
        selections: the sites.
        cache_root: folder or URL of the caches; None for the user's default.
        watcher: receives progress.
    """
    texts = replace(source.further[name], selections=tuple(selections))
    root = default_root() if cache_root is None else cache_root
    work = source.reading(texts).work(TASK, root)
    captured = fill(work, root, step="capture further texts", watcher=watcher)
    return CapturedRows(source.experiment, {TASK: captured.store})


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
    network = network_class(texts.config)(texts.config, seed=None)
    network.to(getattr(torch, experiment.model.dtype))
    tokenizer, tokens, plan = texts.tokenizer.digest, texts.ids, texts.plan
    device_type, dtype = device.partition(":")[0], experiment.capture.dtype
    identity = identity_of(network, tokenizer, tokens, plan, dtype, device_type, source.origin)
    shards = shards_of(identity, tokens, plan)
    rows_of_shard = [sum(len(batch.rows) for batch in shard) for shard in shards]
    return _planned(
        Spec(identity, Sizes(len(plan.example), len(plan.positions), len(shards), NO_DIGEST)),
        {site: row_shape(site, texts.config) for site in texts.sites},
        Counter((len(str(index)), n_rows) for index, n_rows in enumerate(rows_of_shard)),
        n_tokens=sum(batch.n_tokens for shard in shards for batch in shard),
        n_caches=len(source.networks),
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
    errors = len(pack_errors(dict.fromkeys(shapes, (0.0, 0.0)))) * spec.identity.is_compared
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
