"""Batches of sequences of similar length, with a limited number of tokens, and their shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from probekit.data.positions import IntArray, RowPlan
from probekit.errors import DataError


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

    Raises:
        DataError: an example is not a 1-D array of integer ids, or a row has a position outside its
            example.

    >>> plan = RowPlan(np.arange(3), np.zeros(3, int), np.arange(4))
    >>> for batch in make_batches([np.arange(3), np.arange(9), np.arange(3)], plan, 10):
    ...     print([len(ids) for ids in batch.sequences], batch.rows)
    [9] [1]
    [3] [0 2]
    """
    token_ids = [_as_ids(number, ids) for number, ids in enumerate(tokens)]
    _check_rows(np.array([len(ids) for ids in token_ids]), plan)
    contents = [ids.tobytes() for ids in token_ids]
    # Longest first, so that memory peaks at the start; then by content, so that the order of the
    # examples does not matter. Empty sequences have no rows and are skipped.
    distinct = sorted(set(contents) - {b""}, key=lambda ids: (-len(ids), ids))
    rank = {ids: number for number, ids in enumerate(distinct)}
    rank_of_example = np.array([rank.get(ids, -1) for ids in contents])
    sequences = [np.frombuffer(ids, dtype=np.int64).copy() for ids in distinct]  # writable
    rank_of_row = rank_of_example[plan.example]
    rows = np.argsort(rank_of_row, kind="stable")
    rank_of_row = rank_of_row[rows]
    start = 0
    while start < len(sequences):
        stop = start + max(1, batch_tokens // len(sequences[start]))
        first, end = np.searchsorted(rank_of_row, [start, stop])
        if first < end:
            yield Batch(sequences[start:stop], rows[first:end], rank_of_row[first:end] - start)
        start = stop


def _as_ids(example: int, ids: IntArray) -> IntArray:
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(
            f"The tokens of example {example} must be integer ids of shape (n_tokens,), not "
            f"{array.dtype} of shape {array.shape}."
        )
    return array.astype(np.int64, copy=False)


def _check_rows(lengths: IntArray, plan: RowPlan) -> None:
    """Raise DataError if a row has no position, or one outside its example."""
    example, counts = plan.example, np.diff(plan.offsets)
    n_positions = len(plan.positions)
    is_framed = len(example) and len(counts) == len(example)
    if not is_framed or (plan.offsets[0], plan.offsets[-1]) != (0, n_positions):
        raise DataError(
            f"The plan has {len(example)} rows, {len(plan.offsets)} offsets and {n_positions} "
            "positions. It needs at least one row, and one offset more than rows, from 0 to the "
            "number of positions."
        )
    is_valid = (example >= 0) & (example < len(lengths)) & (counts > 0)
    if is_valid.all():
        limit = np.repeat(lengths[example], counts)
        inside = (plan.positions >= 0) & (plan.positions < limit)
        is_valid = np.logical_and.reduceat(inside, plan.offsets[:-1])
    if not is_valid.all():
        row = int(np.argmin(is_valid))
        at = plan.positions[plan.offsets[row] : plan.offsets[row + 1]].tolist()
        raise DataError(
            f"Row {row} uses the positions {at} of example {example[row]}, which does not have all "
            "of them. Use `plan_rows` of probekit/data/positions.py to plan valid rows."
        )


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
