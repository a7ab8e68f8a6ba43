"""Running a data set through the model and keeping the asked rows of the asked sites."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.activations.derive import derive
from probekit.activations.files import Place
from probekit.activations.identity import BATCH_TOKENS, SHARD_ROWS, IntArray, identify
from probekit.activations.layout import FloatArray
from probekit.activations.pooling import ranges, row_means
from probekit.activations.store import ActivationStore
from probekit.data.positions import RowPlan
from probekit.errors import ConfigError
from probekit.model.gpt2 import GPT2
from probekit.model.sites import describe
from probekit.model.tokenizer import pad
from probekit.watcher import SILENT, Watcher

_DTYPES = {"float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True)
class Captured:
    """What a capture did.

    Attributes:
        store: the rows, complete for the asked sites.
        computed: how many shards of sites were computed by this call.
        reused: how many were there already.
        root: digest over the identity and the rows of the asked sites.
    """

    store: ActivationStore
    computed: int
    reused: int
    root: str


def capture(
    model: GPT2,
    tokenizer: str,
    tokens: Sequence[IntArray],
    plan: RowPlan,
    sites: Sequence[str],
    *,
    root: Place,
    dtype: str = "float32",
    step: str = "capture",
    watcher: Watcher = SILENT,
) -> Captured:
    """Return the store that holds the rows of `plan` at `sites`, computing what it lacks.

    What a cache of every token beside it has (`position: all`) is taken from there.
    Identical token sequences are run once. Killed at any moment, a later call with the same
    arguments goes on after the last committed shard and ends with the same bytes.

    Args:
        model: a GPT-2.
        tokenizer: digest of the tokenizer that made the tokens.
        tokens: the ids of every example, each of shape (n_tokens,).
        plan: which positions of which example make a row.
        sites: full names of sites with a pos axis.
        root: the folder that holds caches, or its URL.
        dtype: `float32` or `float16`, the numbers on disk.
        step: what the watcher hears this work called.
        watcher: is told of the rows done and of what a user should know.

    Raises:
        ConfigError: a site has no pos axis, or the dtype is unknown.
        StoreError: the store cannot be written, or a value is not finite.
    """
    check_storable(sites)
    if dtype not in _DTYPES:
        raise ConfigError(f"Activations are stored as float32 or float16, not {dtype!r}.")
    identity = identify(model, tokenizer, tokens, plan, dtype)
    shards = _shards(_batches(tokens, plan))
    order = [np.concatenate([batch.rows for batch in shard]) for shard in shards]
    store = ActivationStore.create(root, identity, plan, order)
    if store.is_sealed and not any(store.missing(site) for site in sites):
        # Nothing to write: a finished cache may lie where nothing can be written.
        store.verify(sites)
        watcher.progress(f"{step} (reused)", store.n_rows, store.n_rows)
        return Captured(store, 0, len(shards) * len(sites), store.digest_of(sites))
    with store.locked(watcher.tell):
        store.sweep()
        store.verify(sites)
        derive(store, root, sites)
        missing = {site: set(store.missing(site)) for site in sites}
        lacking = [[site for site in sites if n in missing[site]] for n in range(len(shards))]
        done = sum(len(rows) for rows, absent in zip(order, lacking, strict=True) if not absent)
        watcher.progress(step, done, store.n_rows)
        for number, absent in enumerate(lacking):
            if not absent:
                continue
            with store.writing(absent, number) as writers:
                for batch in shards[number]:
                    for site, values in _run(model, batch, plan, absent, dtype).items():
                        writers[site].append(values)
                    done += len(batch.rows)
                    watcher.progress(step, done, store.n_rows)
        store.seal()
    computed = sum(map(len, lacking))
    reused = len(shards) * len(sites) - computed
    return Captured(store, computed, reused, store.digest_of(sites))


def stream_rows(
    model: GPT2,
    tokens: Sequence[IntArray],
    plan: RowPlan,
    sites: Sequence[str],
    *,
    dtype: str = "float32",
    on_batch: Callable[[int], None] | None = None,
) -> Iterator[tuple[IntArray, dict[str, FloatArray]]]:
    """Yield the numbers of some rows and their values at each site, until all rows were there.

    The numbers are those that `capture` would put on disk, of which nothing is written; rows of one
    example need not stand together in the plan. `on_batch` hears how many rows were computed.

    Raises:
        ConfigError: a site has no pos axis.
    """
    check_storable(sites)
    for batch in _batches(tokens, plan):
        values = _run(model, batch, plan, sites, dtype)
        if on_batch is not None:
            on_batch(len(batch.rows))
        yield batch.rows, values


def estimate_seconds(
    model: GPT2, tokens: Sequence[IntArray], plan: RowPlan, sites: Sequence[str]
) -> float:
    """Return about how long capturing every row will take, from one of its batches, in seconds.

    The weights of the model do not matter; what is cached already is not taken off.
    """
    batches = list(_batches(tokens, plan))
    batch = batches[(len(batches) - 1) // 2]  # of middling length, and not the rest
    times = []
    for _ in range(3):  # the first one warms up
        start = time.perf_counter()
        _run(model, batch, plan, sites, "float32")
        times.append(time.perf_counter() - start)
    n_tokens = sum(len(ids) for batch in batches for ids in batch.sequences)
    return min(times[1:]) * n_tokens / sum(map(len, batch.sequences))


def check_storable(sites: Iterable[str]) -> None:
    """Refuse sites whose values do not belong to single positions.

    Raises:
        ConfigError: a site has no pos axis.
    """
    for site in sites:
        axes = describe(site).axes
        if "pos" not in axes:
            raise ConfigError(
                f"{site} has the axes {' '.join(axes)}: it belongs to pairs of positions and can "
                "be drawn (`probekit attention`), not stored and probed row by row."
            )


@dataclass(frozen=True)
class _Batch:
    """Sequences of one forward pass, and the numbers of the rows that are taken from them.

    The sequence of row `rows[i]` is `sequences[member[i]]`; `member` ascends.
    """

    sequences: list[IntArray]
    rows: IntArray
    member: IntArray


def _batches(tokens: Sequence[IntArray], plan: RowPlan) -> Iterator[_Batch]:
    """Yield the distinct sequences by length, as many at once as BATCH_TOKENS allows.

    Which sequences stand together does not depend on the rows that are taken from them, so that a
    row's last bits do not either.
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
        stop = start + max(1, BATCH_TOKENS // len(distinct[by_length[start]]))
        here = slice(*np.searchsorted(rank_of_row, [start, stop]))
        if here.start < here.stop:
            sequences = [distinct[s] for s in by_length[start:stop]]
            yield _Batch(sequences, rows[here], rank_of_row[here] - start)
        start = stop


def _shards(batches: Iterable[_Batch]) -> list[list[_Batch]]:
    """Return the batches in shards of at most SHARD_ROWS rows, where a batch has not more."""
    shards: list[list[_Batch]] = []
    room = 0
    for batch in batches:
        if len(batch.rows) > room:
            shards.append([])
            room = SHARD_ROWS
        shards[-1].append(batch)
        room -= len(batch.rows)
    return shards


@torch.inference_mode()
def _run(
    model: GPT2, batch: _Batch, plan: RowPlan, sites: Sequence[str], dtype: str
) -> dict[str, FloatArray]:
    """Return the rows of one batch at each site, shape (n_rows, ...)."""
    out: dict[str, FloatArray] = {}
    device = model.wte.weight.device
    ids, mask = pad(batch.sequences, "right")
    place, row, count = (part.to(device) for part in _gather_plan(batch, plan, ids.shape[1]))

    def keep(site: str, value: Tensor) -> Tensor:
        picked = value.flatten(0, 1)[place]
        out[site] = row_means(picked, row, count).to("cpu", _DTYPES[dtype]).numpy()
        return value

    model(ids.to(device), mask.to(device), keep, sites, logits=False)
    return out


def _gather_plan(batch: _Batch, plan: RowPlan, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a batch's rows are means of.

    These are flat places in [batch pos], the row that each place goes to, and places per row.
    """
    starts, ends = plan.offsets[batch.rows], plan.offsets[batch.rows + 1]
    count = ends - starts
    row = np.repeat(np.arange(len(count)), count)
    place = batch.member[row] * width + plan.positions[ranges(starts, count)]
    return torch.from_numpy(place), torch.from_numpy(row), torch.from_numpy(count)
