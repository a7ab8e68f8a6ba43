"""Running a data set through the model and keeping the asked rows of the asked sites."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from probekit.activations.identity import BATCH_TOKENS, SHARD_ROWS, IntArray, identify
from probekit.activations.store import ActivationStore, FloatArray
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
    root: Path,
    dtype: str = "float32",
    step: str = "capture",
    watcher: Watcher = SILENT,
) -> Captured:
    """Return the store that holds the rows of `plan` at `sites`, computing what it lacks.

    Identical token sequences are run once. Killed at any moment, a later call with the same
    arguments goes on after the last committed shard and ends with the same bytes.

    Args:
        model: a GPT-2.
        tokenizer: digest of the tokenizer that made the tokens.
        tokens: the ids of every example, each of shape (n_tokens,).
        plan: which positions of which example make a row.
        sites: full names of sites with a pos axis.
        root: the folder that holds caches.
        dtype: `float32` or `float16`, the numbers on disk.
        step: what the watcher hears this work called.
        watcher: is told of the rows done and of what a user should know.

    Raises:
        ConfigError: a site has no pos axis, the dtype is unknown, or the model is in training mode.
        StoreError: the store cannot be written, or a value is not finite.
    """
    check_storable(sites)
    if dtype not in _DTYPES:
        raise ConfigError(f"Activations are stored as float32 or float16, not {dtype!r}.")
    if model.training:
        raise ConfigError(
            "The model is in training mode, where dropout makes every activation a draw; call "
            "model.eval() first."
        )
    identity = identify(model, tokenizer, tokens, plan, dtype)
    sequences, sequence_of_row = _unique_sequences(tokens, plan)
    shards = _shards(sequence_of_row)
    store = ActivationStore.create(root, identity, plan, shards)
    if store.is_sealed and not any(store.missing(site) for site in sites):
        # Nothing to write: a finished cache may lie where nothing can be written.
        store.verify(sites)
        watcher.progress(f"{step} (reused)", len(plan.example), len(plan.example))
        return Captured(store, 0, len(shards) * len(sites), store.digest_of(sites))
    with store.locked(watcher.tell):
        store.sweep()
        store.verify(sites)
        missing = {site: set(store.missing(site)) for site in sites}
        lacking = {n: [site for site in sites if n in missing[site]] for n in range(len(shards))}
        computed = sum(map(len, lacking.values()))
        done = sum(len(rows) for n, rows in enumerate(shards) if not lacking[n])

        def count(n_rows: int) -> None:
            nonlocal done
            done += n_rows
            watcher.progress(step, done, len(plan.example))

        count(0)
        for number, rows in enumerate(shards):
            if not lacking[number]:
                continue
            batches = _batches(rows, sequence_of_row, sequences)
            values = _run_shard(model, batches, plan, lacking[number], dtype, len(rows), count)
            for site in lacking[number]:
                store.commit(site, number, values[site].numpy())
        store.seal()
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
    sequences, sequence_of_row = _unique_sequences(tokens, plan)
    for rows in _shards(sequence_of_row):
        batches = _batches(rows, sequence_of_row, sequences)
        values = _run_shard(model, batches, plan, sites, dtype, len(rows), on_batch)
        yield rows, {site: value.numpy() for site, value in values.items()}


def estimate_seconds(
    model: GPT2, tokens: Sequence[IntArray], plan: RowPlan, sites: Sequence[str]
) -> float:
    """Return about how long capturing every row will take, from one of its batches, in seconds.

    The weights of the model do not matter; what is cached already is not taken off.
    """
    sequences, sequence_of_row = _unique_sequences(tokens, plan)
    rows = _shards(sequence_of_row)[0]
    batches = list(_batches(rows, sequence_of_row, sequences))
    batch = batches[(len(batches) - 1) // 2]  # of middling length, and not the rest
    times = []
    for _ in range(3):  # the first one warms up
        start = time.perf_counter()
        _run_shard(model, [batch], plan, sites, "float32", len(rows))
        times.append(time.perf_counter() - start)
    n_tokens = sum(map(len, batch.sequences))
    return min(times[1:]) * sum(map(len, sequences)) / n_tokens


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


def _unique_sequences(tokens: Sequence[IntArray], plan: RowPlan) -> tuple[list[IntArray], IntArray]:
    """Return the distinct token sequences, and for each row the number of the one it is of."""
    number: dict[bytes, int] = {}
    of_example = np.array([number.setdefault(ids.tobytes(), len(number)) for ids in tokens])
    distinct = [np.frombuffer(ids, dtype=np.int64).copy() for ids in number]  # writable
    return distinct, of_example[plan.example]


def _shards(sequence_of_row: IntArray) -> list[IntArray]:
    """Return row numbers in shards of about SHARD_ROWS; a sequence is never cut apart."""
    order = np.argsort(sequence_of_row, kind="stable")
    begins = np.flatnonzero(np.diff(sequence_of_row[order], prepend=-1))
    # A cut falls where the first sequence begins after each multiple of SHARD_ROWS.
    cuts = np.searchsorted(begins, np.arange(SHARD_ROWS, len(order), SHARD_ROWS))
    return np.split(order, begins[np.unique(cuts[cuts < len(begins)])])


@dataclass(frozen=True)
class _Batch:
    """Sequences of one forward pass, and the rows that are taken from them.

    `rows` are places within the shard; the sequence of row i is `sequences[member[i]]`.
    """

    sequences: list[IntArray]
    rows: IntArray
    row_numbers: IntArray
    member: IntArray


def _batches(
    shard: IntArray, sequence_of_row: IntArray, sequences: Sequence[IntArray]
) -> Iterator[_Batch]:
    """Yield the sequences of a shard by length, as many at once as BATCH_TOKENS allows."""
    here = np.unique(sequence_of_row[shard])
    lengths = np.array([len(sequences[s]) for s in here])
    here = here[np.argsort(-lengths, kind="stable")]  # longest first: memory peaks at once
    start = 0
    while start < len(here):
        width = len(sequences[here[start]])
        chosen = here[start : start + max(1, BATCH_TOKENS // width)]
        rows = np.flatnonzero(np.isin(sequence_of_row[shard], chosen))
        sorter = np.argsort(chosen)
        member = sorter[np.searchsorted(chosen, sequence_of_row[shard[rows]], sorter=sorter)]
        yield _Batch([sequences[s] for s in chosen], rows, shard[rows], member)
        start += len(chosen)


@torch.inference_mode()
def _run_shard(
    model: GPT2,
    batches: Iterable[_Batch],
    plan: RowPlan,
    sites: Sequence[str],
    dtype: str,
    n_rows: int,
    on_batch: Callable[[int], None] | None = None,
) -> dict[str, Tensor]:
    """Return the rows of one shard at each site, shape [row ...]; `on_batch` hears how many."""
    out: dict[str, Tensor] = {}
    device = model.wte.weight.device
    for batch in batches:
        ids, mask = pad(batch.sequences, "right")
        place, row, count = _gather_plan(batch, plan, ids.shape[1])
        place, row, count = place.to(device), row.to(device), count.to(device)

        def keep(site: str, value: Tensor, batch: _Batch = batch,
                 at: tuple[Tensor, Tensor, Tensor] = (place, row, count)) -> Tensor:  # fmt: skip
            means = _row_means(value, *at)
            if site not in out:
                out[site] = torch.empty(n_rows, *means.shape[1:], dtype=_DTYPES[dtype])
            out[site][torch.from_numpy(batch.rows)] = means.to("cpu", _DTYPES[dtype])
            return value

        model(ids.to(device), mask.to(device), keep, sites, logits=False)
        if on_batch is not None:
            on_batch(len(batch.rows))
    return out


def _gather_plan(batch: _Batch, plan: RowPlan, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a batch's rows are means of.

    These are flat places in [batch pos], the row that each place goes to, and places per row.
    """
    starts, ends = plan.offsets[batch.row_numbers], plan.offsets[batch.row_numbers + 1]
    count = ends - starts
    row = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    place = batch.member[row] * width + plan.positions[starts[row] + within]
    return torch.from_numpy(place), torch.from_numpy(row), torch.from_numpy(count)


def _row_means(value: Tensor, place: Tensor, row: Tensor, count: Tensor) -> Tensor:
    """Return the mean over the places of each row, shape [row ...]; a copy, never a view."""
    picked = value.flatten(0, 1)[place].float()  # [place ...]
    sums = torch.zeros(len(count), *picked.shape[1:], device=picked.device)
    sums.index_add_(0, row, picked)
    return sums / count.view(-1, *[1] * (picked.ndim - 1))
