"""Running a data set through the model and keeping the asked rows of the asked sites."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from probekit.activations.batches import make_batches, make_shards
from probekit.activations.beside import beside
from probekit.activations.forward import DTYPES, Part, run_batch
from probekit.activations.identity import IntArray, batch_tokens, identify
from probekit.activations.store import ActivationStore, FloatArray
from probekit.data.positions import RowPlan
from probekit.errors import ConfigError
from probekit.model.gpt2 import GPT2
from probekit.model.sites import describe
from probekit.watcher import SILENT, Watcher


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
    if dtype not in DTYPES:
        raise ConfigError(f"Activations are stored as float32 or float16, not {dtype!r}.")
    if model.training:
        raise ConfigError(
            "The model is in training mode, where dropout makes every activation a draw; call "
            "model.eval() first."
        )
    identity = identify(model, tokenizer, tokens, plan, dtype)
    shards = make_shards(make_batches(tokens, plan, identity.batch_tokens), identity.shard_rows)
    order = [np.concatenate([batch.rows for batch in shard]) for shard in shards]
    store = ActivationStore.create(root, identity, plan, order)
    if store.is_sealed and not any(store.missing(site) for site in sites):
        # Nothing to write: a finished cache may lie where nothing can be written.
        store.verify(sites)
        watcher.progress(f"{step} (reused)", store.n_rows, store.n_rows)
        return Captured(store, 0, len(shards) * len(sites), store.digest_of(sites))
    with store.locked(watcher.tell), beside() as do:
        store.sweep()
        store.verify(sites)
        missing = {site: set(store.missing(site)) for site in sites}
        lacking = [[site for site in sites if n in missing[site]] for n in range(len(shards))]
        done = sum(len(rows) for rows, absent in zip(order, lacking, strict=True) if not absent)
        watcher.progress(step, done, store.n_rows)
        for number, absent in enumerate(lacking):
            arrays: list[dict[str, FloatArray]] = []
            for batch in shards[number] if absent else ():
                part = run_batch(model, batch, plan, absent, dtype)
                do(_take, arrays, part)
                done += len(batch.rows)
                watcher.progress(step, done, store.n_rows)
            do(_commit, store, number, absent, arrays)
        do(store.seal)
    computed = sum(map(len, lacking))
    reused = len(shards) * len(sites) - computed
    return Captured(store, computed, reused, store.digest_of(sites))


def _take(arrays: list[dict[str, FloatArray]], part: Part) -> None:
    arrays.append(part.arrays())


def _commit(
    store: ActivationStore, shard: int, sites: Sequence[str], arrays: list[dict[str, FloatArray]]
) -> None:
    for site in sites:
        store.commit(site, shard, np.concatenate([part.pop(site) for part in arrays]))


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
    for batch in make_batches(tokens, plan, batch_tokens(model.wte.weight.device)):
        part = run_batch(model, batch, plan, sites, dtype)
        if on_batch is not None:
            on_batch(len(batch.rows))
        yield part.rows, part.arrays()


def estimate_seconds(
    model: GPT2, tokens: Sequence[IntArray], plan: RowPlan, sites: Sequence[str]
) -> float:
    """Return about how long capturing every row will take, from one of its batches, in seconds.

    The weights of the model do not matter; what is cached already is not taken off.
    """
    batches = list(make_batches(tokens, plan, batch_tokens(model.wte.weight.device)))
    batch = batches[(len(batches) - 1) // 2]  # of middling length, and not the rest
    times = []
    for _ in range(3):  # the first one warms up
        start = time.perf_counter()
        run_batch(model, batch, plan, sites, "float32").arrays()
        times.append(time.perf_counter() - start)
    return min(times[1:]) * sum(batch.n_tokens for batch in batches) / batch.n_tokens


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
