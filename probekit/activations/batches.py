"""How sequences are put together: by length, within a budget of padded tokens, in shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from probekit.activations.identity import IntArray
from probekit.data.positions import RowPlan


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

    Which sequences stand together does not depend on the rows that are taken from them.

    Args:
        tokens: the ids of every example, each of shape (n_tokens,).
        plan: the rows that are taken.
        batch_tokens: padded tokens in one batch; a longer sequence is a batch of its own.

    >>> plan = RowPlan(np.arange(3), np.zeros(3, int), np.arange(4))
    >>> for batch in make_batches([np.arange(3), np.arange(9), np.arange(3)], plan, 10):
    ...     print([len(ids) for ids in batch.sequences], batch.rows)
    [9] [1]
    [3] [0 2]
    """
    number: dict[bytes, int] = {}
    of_example = np.array([number.setdefault(ids.tobytes(), len(number)) for ids in tokens])
    distinct = [np.frombuffer(ids, dtype=np.int64).copy() for ids in number]  # writable
    by_length = np.argsort([-len(ids) for ids in distinct], kind="stable")
    rank = np.empty_like(by_length)  # longest first: memory peaks at once
    rank[by_length] = np.arange(len(by_length))
    rank_of_row = rank[of_example[plan.example]]
    rows = np.argsort(rank_of_row, kind="stable")
    rank_of_row = rank_of_row[rows]
    start = 0
    while start < len(by_length):
        stop = start + max(1, batch_tokens // len(distinct[by_length[start]]))
        first, end = np.searchsorted(rank_of_row, [start, stop])
        if first < end:
            sequences = [distinct[s] for s in by_length[start:stop]]
            yield Batch(sequences, rows[first:end], rank_of_row[first:end] - start)
        start = stop


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
