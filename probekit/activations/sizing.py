"""Size of a capture (bytes, files, operations), computed from shapes alone."""

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
from probekit.model.config import ModelConfig
from probekit.model.parameters import count_components, matrix_weights
from probekit.model.sites.catalogue import describe, layer_of

_CODE_OF = {DTYPES[code].__name__: code for code in CODES.values()}
_DIGEST = "0" * 64
_IN_MANIFEST = len(f'      "{_DIGEST}",\n')


@dataclass(frozen=True)
class Volume:
    """Amount of input and output of a capture.

    Attributes:
        tokens: number of tokens that the model reads, excluding padding and repeated texts.
        squares: sum of the squared sequence lengths, for the cost of attention.
        rows: number of rows of each site.
        positions: number of positions in all rows; more than `rows` where positions are averaged.
        shards: number of shards of each size; the key is the number of rows in the shard.
    """

    tokens: int
    squares: int
    rows: int
    positions: int
    shards: Mapping[int, int]

    @classmethod
    def of(cls, tokens: Sequence[IntArray], plan: RowPlan, device: str) -> Volume:
        """Return the volume of a capture of these rows on a device, such as `cuda`."""
        budget = BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"])
        shards = make_shards(make_batches(tokens, plan, budget), SHARD_ROWS)
        lengths = [len(ids) for shard in shards for batch in shard for ids in batch.sequences]
        sizes = Counter(sum(len(batch.rows) for batch in shard) for shard in shards)
        squares = sum(length**2 for length in lengths)
        return cls(sum(lengths), squares, len(plan.example), len(plan.positions), sizes)

    @classmethod
    def uniform(cls, tokens: int, length: int, rows_of_each: int, device: str) -> Volume:
        """Return the volume of `tokens` tokens in distinct sequences of one length.

        Args:
            tokens: total; rounded up to whole sequences.
            length: tokens per sequence.
            rows_of_each: rows extracted from each sequence.
            device: device type, such as `cuda`.

        >>> Volume.uniform(100, 10, 1, "cpu")
        Volume(tokens=100, squares=1000, rows=10, positions=10, shards={10: 1})
        """
        n_sequences = math.ceil(tokens / length)
        n_rows = n_sequences * rows_of_each
        rows_per_batch = (
            max(1, BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"]) // length) * rows_of_each
        )
        rows_per_shard = rows_per_batch * max(1, SHARD_ROWS // rows_per_batch)
        shards = Counter({rows_per_shard: n_rows // rows_per_shard}) + Counter(
            {n_rows % rows_per_shard: 1}
        )
        del shards[0]
        n_tokens = n_sequences * length
        return cls(n_tokens, n_tokens * length, n_rows, n_rows, dict(shards))


@dataclass(frozen=True)
class CaptureSize:
    """Size of a capture.

    Attributes:
        volume: amount of input and output.
        sites: full names.
        dtype: dtype on disk, `float32` or `float16`.
        row_bytes: total size of the row files, including headers.
        index_bytes: approximate size of records, layout and manifest.
        largest: size of the largest file in bytes.
        operations: floating-point operations of all forward passes.
        weights: number of parameters, which each worker loads.
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
        """Number of shards of each site."""
        return sum(self.volume.shards.values())

    @property
    def files(self) -> int:
        """Number of files: two per shard and site (rows, record) and three for the whole cache."""
        return 2 * self.shards * len(self.sites) + 3


def size_of(config: ModelConfig, volume: Volume, sites: Sequence[str], dtype: str) -> CaptureSize:
    """Return the size of a capture.

    Args:
        config: configuration of the model.
        volume: amount of input and output.
        sites: full names.
        dtype: dtype on disk, `float32` or `float16`.
    """
    code = _CODE_OF[dtype]
    records = [
        (ShardRecord("0" * 24, site, 0, code, (rows, *shape_of(site, config)), _DIGEST), n_files)
        for site in sites
        for rows, n_files in volume.shards.items()
    ]
    n_shards = sum(volume.shards.values())
    layout = Sizes(volume.rows, volume.positions, n_shards, _DIGEST)
    return CaptureSize(
        volume=volume,
        sites=tuple(sites),
        dtype=dtype,
        row_bytes=sum(record.size * n_files for record, n_files in records),
        index_bytes=layout.size
        + sum((len(record.pack()) + _IN_MANIFEST) * n_files for record, n_files in records),
        largest=max(record.size for record, _ in records),
        operations=operations(config, volume, sites),
        weights=sum(count.total for count in count_components(config)),
    )


def shape_of(site: str, config: ModelConfig) -> tuple[int, ...]:
    """Return the shape of one row of a site.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> shape_of("blocks.3.attn.hook_z", GPT2Config())
    (12, 64)
    """
    axes = config.sites.describe(site).axes
    return tuple(config.axis_sizes[axis] for axis in axes if axis not in ("batch", "pos"))


def operations(config: ModelConfig, volume: Volume, sites: Sequence[str]) -> int:
    """Return the number of floating-point operations of a capture up to the deepest site.

    In each block, a token costs 2 operations per matrix weight. For each token that it can attend
    to, itself included, it costs another 2 n_heads d_head for the attention score and the same for
    the weighted sum. The last block is counted at all positions, although a capture computes it at
    the requested ones only.

    Source: Kaplan et al., Scaling Laws for Neural Language Models (2020), section 2.1: 2 N + 2
    n_layer n_ctx d_model per token. We count visible tokens instead of the whole context.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> config = GPT2Config()
    >>> operations(config, Volume.uniform(1, 1, 1, "cpu"), ["blocks.0.hook_resid_post"])
    14158848
    """
    width = config.n_heads * config.d_head
    visible = volume.squares + volume.tokens  # twice the number of pairs, the sum of L (L + 1) / 2
    n_blocks = max(blocks_before(site, config.n_layers) for site in sites)
    return n_blocks * (2 * matrix_weights(config) * volume.tokens + 2 * width * visible)


def blocks_before(name: str, n_layers: int) -> int:
    """Return the number of blocks that a forward pass starts before it reaches a site.

    >>> [blocks_before(name, 12) for name in ("hook_embed", "blocks.3.hook_resid_pre")]
    [0, 3]
    >>> [blocks_before(name, 12) for name in ("blocks.3.attn.hook_z", "ln_final.hook_scale")]
    [4, 12]
    """
    site, layer = describe(name), layer_of(name)
    if layer is None:
        return 0 if site.stage == "embedding" else n_layers
    return layer + (not site.begins_block)
