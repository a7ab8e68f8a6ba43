"""Estimated size and time of a capture, from shapes alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from probekit.activations.forward import make_batches, make_shards
from probekit.activations.identity import SHARD_ROWS, batch_tokens
from probekit.activations.work import check_storable
from probekit.experiment.schema import Experiment
from probekit.model.config import ModelConfig
from probekit.model.families.table import find_config
from probekit.pipeline.experiment.prepare import prepare
from probekit.pipeline.experiment.source import targets

_BYTES_OF_A_FILE = 250  # mean of the header of a row file, and a record with its manifest entry
_LAYOUT_BYTES = 32  # of each row, with one position


def plan_experiment(experiment: Experiment, device: str = "cpu") -> dict[str, Any]:
    """Return the size of an experiment's capture; read the data, but not the weights.

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
    """Return the size of a capture of every token of distinct sequences of the whole context.

    Args:
        model: name or folder of the model.
        tokens: total number of tokens; rounded up to whole sequences.
        sites: names or globs.
        dtype: data type on disk, `float32` or `float16`.
        device: type of the compute devices.

    Raises:
        MissingError: the configuration of the model does not exist.
        ConfigError: a site does not exist, or cannot be stored.
    """
    config = find_config(model)
    names = config.sites.expand(list(sites))
    check_storable(names)
    in_batch = max(1, batch_tokens(device) // config.n_ctx) * config.n_ctx
    in_shard = in_batch * max(1, SHARD_ROWS // in_batch)
    n = math.ceil(tokens / config.n_ctx) * config.n_ctx
    n_shards = math.ceil(n / in_shard)
    return _planned(config, names, dtype, n_tokens=n, n_rows=n, n_shards=n_shards, n_caches=1)


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
    numbers = sum(math.prod(shape_of(site, config)) for site in sites)
    n_files = 2 * n_shards * len(sites) + 3  # rows and record; layout, specification and manifest
    of_a_row = numbers * np.dtype(dtype).itemsize + _LAYOUT_BYTES
    return {
        "caches": n_caches,
        "tokens": n_tokens,
        "sites": list(sites),
        "dtype": dtype,
        "rows_of_a_site": n_rows,
        "shards_of_a_site": n_shards,
        "bytes": n_caches * (n_rows * of_a_row + n_files * _BYTES_OF_A_FILE),
        "files": n_caches * n_files,
    }


def shape_of(site: str, config: ModelConfig) -> tuple[int, ...]:
    """Return the shape of one row of a site.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> shape_of("blocks.3.attn.hook_z", GPT2Config())
    (12, 64)
    """
    axes = config.sites.describe(site).axes
    return tuple(config.axis_sizes[axis] for axis in axes if axis not in ("batch", "pos"))
