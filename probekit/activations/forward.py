"""The computation of rows: batches, forward passes that extract the rows, and means over positions.

All code that affects the numbers of a capture is here or in the network; see `Identity`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.records import FloatArray
from probekit.data.positions import MASSIVE, IntArray, RowPlan
from probekit.model.network import Network
from probekit.model.passes.inputs import pad
from probekit.model.passes.taps import Tap
from probekit.products import to_device


@dataclass(frozen=True)
class Batch:
    """Sequences of one forward pass and the rows to extract from them.

    Attributes:
        sequences: token ids, longest first.
        rows: indices of the rows in the plan, shape (n_rows,).
        member: for each row, the index of its sequence in `sequences`; ascending, shape (n_rows,).
    """

    sequences: list[IntArray]
    rows: IntArray
    member: IntArray

    @property
    def n_tokens(self) -> int:
        """Number of tokens, excluding padding."""
        return sum(map(len, self.sequences))


def make_batches(tokens: Sequence[IntArray], plan: RowPlan, batch_tokens: int) -> Iterator[Batch]:
    """Yield batches of distinct sequences, longest first, of at most `batch_tokens` padded tokens.

    Neither the order of the examples nor the requested rows affect which sequences share a batch.
    A batch without a requested row is skipped.

    Args:
        tokens: the ids of every example, each of shape (n_tokens,).
        plan: the rows to extract.
        batch_tokens: padded tokens per batch; a longer sequence is a batch of its own.

    >>> plan = RowPlan(np.arange(3), np.zeros(3, int), np.arange(4))
    >>> for batch in make_batches([np.arange(3), np.arange(9), np.arange(3)], plan, 10):
    ...     print([len(ids) for ids in batch.sequences], batch.rows)
    [9] [1]
    [3] [0 2]
    """
    contents = [np.asarray(ids, np.int64).tobytes() for ids in tokens]
    example, counts = plan.example, np.diff(plan.offsets)
    assert 0 < len(example) == len(counts), "rows and offsets differ in number"
    assert (counts > 0).all(), "a row has no position"
    assert (plan.offsets[0], plan.offsets[-1]) == (0, len(plan.positions)), "positions without rows"
    assert (example.clip(0, len(tokens) - 1) == example).all(), "there is no such example"
    limits = np.repeat(np.array([len(ids) for ids in tokens])[example], counts)
    assert ((plan.positions >= 0) & (plan.positions < limits)).all(), "a row is not in its example"
    # Longest first, so that memory peaks at the start; then by content, so that the order of the
    # examples does not matter. Empty sequences have no rows and are skipped.
    distinct = sorted(set(contents) - {b""}, key=lambda ids: (-len(ids), ids))
    rank = {ids: number for number, ids in enumerate(distinct)}
    rank_of_example = np.array([rank.get(ids, -1) for ids in contents])
    sequences = [np.frombuffer(ids, dtype=np.int64).copy() for ids in distinct]  # writable
    rank_of_row = rank_of_example[plan.example]
    rows = np.argsort(rank_of_row, kind="stable")
    sorted_ranks = rank_of_row[rows]
    start = 0
    while start < len(sequences):
        stop = start + max(1, batch_tokens // len(sequences[start]))
        first, end = np.searchsorted(sorted_ranks, [start, stop])
        if first < end:
            yield Batch(sequences[start:stop], rows[first:end], sorted_ranks[first:end] - start)
        start = stop


def make_shards(batches: Iterable[Batch], shard_rows: int) -> list[list[Batch]]:
    """Group consecutive batches into shards of at most `shard_rows` rows.

    A batch with more rows is a shard of its own.
    """
    shards: list[list[Batch]] = []
    n_free = 0
    for batch in batches:
        if len(batch.rows) > n_free:
            shards.append([])
            n_free = shard_rows
        shards[-1].append(batch)
        n_free -= len(batch.rows)
    return shards


@dataclass(frozen=True)
class BatchRows:
    """Rows of one batch, whose copy from the device may still be in progress.

    Attributes:
        values: rows in host memory, shape [row ...], in the dtype on disk, by site; and the event
            after their copy, None if they are not copied from a GPU.
    """

    values: dict[str, tuple[Tensor, torch.cuda.Event | None]]

    def arrays(self) -> dict[str, FloatArray]:
        """Wait for the copies and return the rows at each site, shape (n_rows, ...).

        Rows in bfloat16 are returned as float32, because NumPy has no bfloat16.
        """
        arrays = {}
        for site, (rows, arrival) in self.values.items():
            if arrival is not None:
                arrival.synchronize()
            arrays[site] = (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()
        return arrays


def split_batches(batches: Sequence[Batch], most: float) -> Iterator[Sequence[Batch]]:
    """Yield consecutive batches of together at most `most` padded tokens, and at least one batch.

    >>> plan = RowPlan(np.arange(3), np.zeros(3, int), np.arange(4))
    >>> batches = list(make_batches([np.arange(3), np.arange(9), np.arange(4)], plan, 9))
    >>> [len(group) for group in split_batches(batches, 17)]
    [2]
    >>> [len(group) for group in split_batches(batches, 9)]
    [1, 1]
    """
    start, n_tokens = 0, 0
    for index, batch in enumerate(batches):
        size = len(batch.sequences) * len(batch.sequences[0])  # the first sequence is the longest
        if n_tokens and n_tokens + size > most:
            yield batches[start:index]
            start, n_tokens = index, 0
        n_tokens += size
    yield batches[start:]


# Called with a batch, a site, and its values at the places of all rows, [place ...]; changes none.
OnPicked = Callable[[Batch, str, Tensor], object]


@torch.inference_mode()
def run_batches(
    model: Network, batches: Sequence[Batch], plan: RowPlan, sites: Sequence[str], dtype: str,
    on_picked: OnPicked = lambda *_: None,
) -> Iterator[BatchRows]:  # fmt: skip
    """Run the model on batches and yield the requested rows.

    With weights in memory, each result has the rows of one batch at all sites. Otherwise weights
    are read once for all batches, whose residual streams are in memory, and each result has the
    rows of one batch at the sites of one block. Rows on a GPU are copied to pinned host memory on a
    stream of their own, while the next batch is computed.

    Args:
        model: the network.
        batches: sequences to run, and the rows to extract from them.
        plan: the positions of each row.
        sites: full names of sites with a pos axis.
        dtype: dtype on disk, `float32`, `float16` or `bfloat16`.
        on_picked: gets the values at each site before their means.
    """
    values: list[dict[str, tuple[Tensor, Any]]] = [{} for _ in batches]
    each = zip(batches, values, strict=True)
    passes = (_pass(batch, plan, dtype, rows, on_picked) for batch, rows in each)
    parts = model.run_together(passes, sites)
    while True:
        # A caller's autocast would round the products, which the identity does not record.
        with torch.autocast(model.device.type, enabled=False):
            done = next(parts, None)
        if done is None:
            return
        for number in done:
            yield BatchRows(dict(values[number]))
            values[number].clear()


@cache
def _copies_from(gpu: torch.device) -> torch.cuda.Stream:
    """Return the stream of a GPU for copies to the host, which run during its computations."""
    return torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]


def _to_host(rows: Tensor) -> tuple[Tensor, torch.cuda.Event]:
    """Start the copy of rows from a GPU to pinned memory; return it and the event after it."""
    copies = _copies_from(rows.device)
    copies.wait_stream(torch.cuda.current_stream(rows.device))  # until the rows are computed
    with torch.cuda.stream(copies):
        copied = rows.to("cpu", non_blocking=True)
    rows.record_stream(copies)  # keeps their memory until they are copied
    return copied, copies.record_event()


def _pass(
    batch: Batch, plan: RowPlan, dtype: str, values: dict[str, tuple[Tensor, Any]],
    on_picked: OnPicked,
) -> tuple[Tensor, Tensor, Tap, Tensor | None]:  # fmt: skip
    """Return tokens, mask, tap and `at` of the pass of a batch; the tap puts rows into `values`."""
    ids, mask = pad(batch.sequences, "right")
    counts = plan.offsets[batch.rows + 1] - plan.offsets[batch.rows]
    row_of_place = np.repeat(np.arange(len(counts)), counts)
    places_of_width, at = _plan_gathers(batch, plan, ids.shape[1], row_of_place, counts)

    @cache
    def gathers(width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return the places, their rows, and the number of places of each row on a device."""
        arrays = (places_of_width[width], row_of_place, counts)
        places, row, count = (to_device(torch.from_numpy(one), device) for one in arrays)
        return places, row, count

    def extract(site: str, value: Tensor) -> Tensor:
        """Keep rows of a site with the event after their copy; see `BatchRows`. Changes nothing."""
        places, row, count = gathers(value.shape[1], value.device)
        picked = value.flatten(0, 1).index_select(0, places)  # a copy: a view keeps the batch alive
        on_picked(batch, site, picked)
        rows = picked.float()
        if len(places) > len(count):  # rows of one position each need no mean
            rows = row_means(picked, row, count, plan.skip_massive)
        rows = rows.to(getattr(torch, dtype))  # before the copy, which it may halve
        values[site] = _to_host(rows) if value.device.type == "cuda" else (rows, None)
        return value

    return ids, mask, extract, at


def _plan_gathers(
    batch: Batch, plan: RowPlan, width: int, row_of_place: IntArray, counts: IntArray
) -> tuple[dict[int, IntArray], Tensor | None]:
    """Return the places of all rows, and the positions at which the last block is computed.

    Places are flat indices into the axes [batch pos] of a site, one row after the other. They are
    given by the size of the pos axis: `width` for sites computed at all positions, the number of
    requested positions for the others. The second result has these positions for each sequence,
    shape [batch n_at]. It is None if a sequence has more than `width // 2` of them: the model then
    computes all. This does not depend on the sites, so that a row has the same bits whichever sites
    are captured.

    Args:
        batch: sequences to run, and the rows to extract from them.
        plan: the positions of each row.
        width: padded length of the sequences.
        row_of_place: index of the row that each place belongs to, shape (n_places,).
        counts: number of places of each row, shape (n_rows,).
    """
    positions = plan.positions[ranges(plan.offsets[batch.rows], counts)]
    places = batch.member[row_of_place] * width + positions
    distinct, inverse = np.unique(places, return_inverse=True)
    member, position = np.divmod(distinct, width)
    # Number of each position among the distinct ones of its sequence; `member` ascends.
    slot = np.arange(len(distinct)) - np.searchsorted(member, member)
    n_requested = int(slot.max()) + 1
    if n_requested > width // 2:
        return {width: places}, None
    # No place refers to the free slots of sequences with fewer positions, which remain 0.
    at = np.zeros((len(batch.sequences), n_requested), dtype=np.int64)
    at[member, slot] = position
    places_in_requested = (member * n_requested + slot)[inverse]
    return {width: places, n_requested: places_in_requested}, torch.from_numpy(at)


def ranges(starts: IntArray, counts: IntArray) -> IntArray:
    """Return the concatenation of the integer ranges [start, start + count).

    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    first_indices = np.cumsum(counts) - counts
    # Number i of the result is start + i - first_index of its range.
    indices: IntArray = np.arange(int(counts.sum())) + np.repeat(starts - first_indices, counts)
    return indices


def row_means(picked: Tensor, row: Tensor, count: Tensor, skip_massive: bool = False) -> Tensor:
    """Return the mean over the positions of each row in float32, shape [row ...].

    Always a copy, never a view.

    Args:
        picked: values at the positions, shape [position ...].
        row: index of the row that each position belongs to, shape [position].
        count: number of positions of each row, shape [row]; positions of a row are consecutive.
        skip_massive: leave massive tokens out; see `RowPlan`.
    """
    if skip_massive:
        norms = picked.float().flatten(1).norm(dim=1)
        order = norms.argsort(stable=True)
        order = order[row[order].argsort(stable=True)]  # by row, then by norm
        # The lower of two middle ones, so that one of two tokens can be massive.
        medians = norms[order][count.cumsum(0) - count + (count - 1) // 2]
        # A number that is not finite is kept, so that the row is refused.
        kept = ~(norms > MASSIVE * medians[row]) | ~norms.isfinite()
        picked, row = picked[kept], row[kept]
        count = torch.bincount(row, minlength=len(count))
    sums = torch.zeros(len(count), *picked.shape[1:], dtype=torch.float32, device=picked.device)
    sums.index_add_(0, row, picked.float())
    # The counts get the shape [row 1 ...].
    return sums / count.view(-1, *[1] * (picked.ndim - 1))
