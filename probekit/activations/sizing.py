"""How large a capture will be: bytes, files and operations, from shapes alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probekit.activations.batches import make_batches, make_shards
from probekit.activations.identity import BATCH_TOKENS, SHARD_ROWS, IntArray
from probekit.activations.store.layout import CODES, DTYPES, Sizes
from probekit.activations.store.records import ShardRecord
from probekit.data.positions import RowPlan
from probekit.model.config import GPT2Config
from probekit.model.parameters import count_components
from probekit.model.sites import blocks_before, describe

_CODE_OF = {DTYPES[code].__name__: code for code in CODES.values()}
_DIGEST = "0" * 64
_IN_MANIFEST = len(f'      "{_DIGEST}",\n')


@dataclass(frozen=True)
class Volume:
    """What goes through the model, and what becomes of it.

    Attributes:
        tokens: that the model reads, without padding; identical texts are read once.
        squares: the sum of the squares of the lengths of the sequences, for attention.
        rows: of every site.
        positions: that make them; more than rows where these are means.
        shards: how many shards have so many rows.
    """

    tokens: int
    squares: int
    rows: int
    positions: int
    shards: Mapping[int, int]

    @classmethod
    def of(cls, tokens: Sequence[IntArray], plan: RowPlan, device: str) -> Volume:
        """Return the volume of rows of sequences, as a capture on a device would lay them out."""
        budget = BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"])
        shards = make_shards(make_batches(tokens, plan, budget), SHARD_ROWS)
        lengths = [len(ids) for shard in shards for batch in shard for ids in batch.sequences]
        sizes = Counter(sum(len(batch.rows) for batch in shard) for shard in shards)
        squares = sum(length**2 for length in lengths)
        return cls(sum(lengths), squares, len(plan.example), len(plan.positions), sizes)

    @classmethod
    def uniform(cls, tokens: int, length: int, rows_of_each: int, device: str) -> Volume:
        """Return the volume of so many tokens in sequences of one length, all of them different.

        Args:
            tokens: in all; those that fill no whole sequence make one more.
            length: of each sequence.
            rows_of_each: rows that are taken from each.
            device: class of the devices that compute.

        >>> Volume.uniform(100, 10, 1, "cpu")
        Volume(tokens=100, squares=1000, rows=10, positions=10, shards={10: 1})
        """
        n_sequences = math.ceil(tokens / length)
        n_rows = n_sequences * rows_of_each
        at_once = max(1, BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"]) // length) * rows_of_each
        in_shard = at_once * max(1, SHARD_ROWS // at_once)
        shards = Counter({in_shard: n_rows // in_shard}) + Counter({n_rows % in_shard: 1})
        del shards[0]
        read = n_sequences * length
        return cls(read, read * length, n_rows, n_rows, dict(shards))


@dataclass(frozen=True)
class CaptureSize:
    """How large a capture is.

    Attributes:
        volume: what goes through the model.
        sites: their names.
        dtype: `float32` or `float16`, the numbers on disk.
        row_bytes: the files of the rows, with their headers.
        index_bytes: records, layout and manifest, within some percent.
        largest: bytes of the largest file.
        operations: floating-point operations of all forward passes.
        weights: parameters that each worker loads.
    """

    volume: Volume
    sites: tuple[str, ...]
    dtype: str
    row_bytes: int
    index_bytes: int
    largest: int
    operations: int
    weights: int

    @property
    def shards(self) -> int:
        """The number of shards of each site."""
        return sum(self.volume.shards.values())

    @property
    def files(self) -> int:
        """The number of files: one for each shard and site, its record, and three for the cache."""
        return 2 * self.shards * len(self.sites) + 3


def size_of(config: GPT2Config, volume: Volume, sites: Sequence[str], dtype: str) -> CaptureSize:
    """Return how large a capture is.

    Args:
        config: of the model.
        volume: what goes through it.
        sites: full names.
        dtype: `float32` or `float16`, the numbers on disk.
    """
    code = _CODE_OF[dtype]
    records = [
        (ShardRecord("0" * 24, site, 0, code, (rows, *shape_of(site, config)), _DIGEST), times)
        for site in sites
        for rows, times in volume.shards.items()
    ]
    n_shards = sum(volume.shards.values())
    layout = Sizes(volume.rows, volume.positions, n_shards, _DIGEST)
    return CaptureSize(
        volume=volume,
        sites=tuple(sites),
        dtype=dtype,
        row_bytes=sum(record.size * times for record, times in records),
        index_bytes=layout.size
        + sum((len(record.pack()) + _IN_MANIFEST) * times for record, times in records),
        largest=max(record.size for record, _ in records),
        operations=operations(config, volume, sites),
        weights=sum(count.total for count in count_components(config)),
    )


def shape_of(site: str, config: GPT2Config) -> tuple[int, ...]:
    """Return the shape of one row of a site.

    >>> shape_of("blocks.3.attn.hook_z", GPT2Config())
    (12, 64)
    """
    return tuple(
        config.axis_sizes[axis] for axis in describe(site).axes if axis not in ("batch", "pos")
    )


def operations(config: GPT2Config, volume: Volume, sites: Sequence[str]) -> int:
    """Return the floating-point operations of a capture, whose forward stops at the deepest site.

    Of each token 2 for each weight of the matrices of a block and, for the scores and the sum of
    values, 2 d_model for each token that it sees, itself included. That the last block is computed
    at the asked positions alone is not taken off.

    Source: Kaplan et al., Scaling Laws for Neural Language Models (2020), section 2.1: 2 N + 2
    n_layer n_ctx d_model of each token, where we count what a token sees and not the whole context.

    >>> config = GPT2Config()
    >>> operations(config, Volume.uniform(1, 1, 1, "cpu"), ["blocks.0.hook_resid_post"])
    14158848
    """
    d_model, d_mlp = config.n_embd, config.axis_sizes["d_mlp"]
    matrices = 4 * d_model**2 + 2 * d_model * d_mlp  # query, key, value, output; in and out
    seen = volume.squares + volume.tokens  # twice the sum of what each token sees, L (L + 1) / 2
    n_blocks = max(blocks_before(site, config.n_layer) for site in sites)
    return n_blocks * (2 * matrices * volume.tokens + 2 * d_model * seen)
