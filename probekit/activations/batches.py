"""How sequences are put together: by length, within a budget of padded tokens, in shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from probekit.data.positions import IntArray, RowPlan
from probekit.errors import DataError


@dataclass(frozen=True)
class Batch:
    """Sequences of one forward pass, and the numbers of the rows that are taken from them.

    Attributes:
        sequences: token ids, the longest first.
        rows: numbers of rows of the plan, shape (n_rows,).
        member: the sequence of row `rows[i]` is `sequences[member[i]]`; ascending.
    """

    sequences: list[IntArray]
    rows: IntArray
    member: IntArray

    @property
    def n_tokens(self) -> int:
        """The number of tokens, without padding."""
        return sum(map(len, self.sequences))


def make_batches(tokens: Sequence[IntArray], plan: RowPlan, batch_tokens: int) -> Iterator[Batch]:
    """Yield the distinct sequences by length, as many at once as the padded tokens allow.

    Which sequences stand together depends neither on the order of the examples nor on the rows that
    are taken from them.

    Args:
        tokens: the ids of every example, each of shape (n_tokens,).
        plan: the rows that are taken.
        batch_tokens: padded tokens in one batch; a longer sequence is a batch of its own.

    Raises:
        DataError: an example is no line of ids, or a row is read where its example has no token.

    >>> plan = RowPlan(np.arange(3), np.zeros(3, int), np.arange(4))
    >>> for batch in make_batches([np.arange(3), np.arange(9), np.arange(3)], plan, 10):
    ...     print([len(ids) for ids in batch.sequences], batch.rows)
    [9] [1]
    [3] [0 2]
    """
    lines = [_line(number, ids) for number, ids in enumerate(tokens)]
    _check_rows(np.array([len(ids) for ids in lines]), plan)
    texts = [ids.tobytes() for ids in lines]
    # Longest first: memory peaks at once. Then by content, so that the order of the examples, too,
    # has no say in what stands together. What has no token has no row and is never run.
    distinct = sorted(set(texts) - {b""}, key=lambda ids: (-len(ids), ids))
    rank = {ids: number for number, ids in enumerate(distinct)}
    rank_of_example = np.array([rank.get(ids, -1) for ids in texts])
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


def _line(example: int, ids: IntArray) -> IntArray:
    line = np.asarray(ids)
    if line.ndim != 1 or (line.size and line.dtype.kind not in "iu"):
        raise DataError(
            f"The tokens of example {example} must be integer ids of shape (n_tokens,), not "
            f"{line.dtype} of shape {line.shape}."
        )
    return line.astype(np.int64, copy=False)


def _check_rows(lengths: IntArray, plan: RowPlan) -> None:
    """Refuse rows that would be made of padding, of another example's tokens, or of nothing."""
    example, counts = plan.example, np.diff(plan.offsets)
    n_positions = len(plan.positions)
    is_framed = len(example) and len(counts) == len(example)
    if not is_framed or (plan.offsets[0], plan.offsets[-1]) != (0, n_positions):
        raise DataError(
            f"A plan of {len(example)} rows has {len(plan.offsets)} offsets and {n_positions} "
            "positions. There must be rows, and one offset more than rows, from 0 to the number "
            "of positions."
        )
    known = (example >= 0) & (example < len(lengths)) & (counts > 0)
    if known.all():
        room = np.repeat(lengths[example], counts)
        inside = (plan.positions >= 0) & (plan.positions < room)
        known = np.logical_and.reduceat(inside, plan.offsets[:-1])
    if not known.all():
        row = int(np.argmin(known))
        at = plan.positions[plan.offsets[row] : plan.offsets[row + 1]].tolist()
        raise DataError(
            f"Row {row} is read at the positions {at} of example {example[row]}, which has not all "
            "of these tokens; `plan_rows` of probekit/data/positions.py plans rows that are there."
        )


def make_shards(batches: Iterable[Batch], shard_rows: int) -> list[list[Batch]]:
    """Return the batches in shards of at most `shard_rows` rows, where a batch has not more."""
    shards: list[list[Batch]] = []
    room = 0
    for batch in batches:
        if len(batch.rows) > room:
            shards.append([])
            room = shard_rows
        shards[-1].append(batch)
        room -= len(batch.rows)
    return shards
