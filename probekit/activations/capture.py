"""Capture: run a data set through the model and store the requested rows and sites.

Rows that a cache of all tokens contains are copied from it instead. The result is bit-identical:
batches do not depend on the requested rows, and means are summed in the same order. The exception
is the last block and the sites after it, which a capture computes at the requested positions only.
These are always computed by the model, because matrix products of another size round differently.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.accelerators import naming_lost_device
from probekit.activations import forward
from probekit.activations.local import Files
from probekit.activations.records import ROWS_COMPARED, Identity, Location, identity_of
from probekit.activations.store import ActivationStore, ShardWriter
from probekit.activations.upkeep import removed_after_failure
from probekit.amounts import size_in_words
from probekit.data.positions import IntArray, RowPlan
from probekit.errors import OutOfMemoryError
from probekit.memory import LIBRARIES, available_memory, is_out_of_memory
from probekit.model.config import ModelConfig, count_components, count_parameters
from probekit.model.network import Network
from probekit.model.sites.catalogue import check_storable, layer_of
from probekit.terminal import SILENT, Watcher

MissingSites = Mapping[int, Sequence[str]]  # missing sites by shard; complete shards are absent
OnRows = Callable[[int], None]  # called with the number of newly computed rows

# Batches whose rows are in memory together.
_BATCHES = 3
MAX_WAITING = 2  # batches whose rows wait to be written, in memory


class Reader(ABC):
    """What gives the rows of a capture: passes of its network, or rows that exist already."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of further columns that it gives."""
        return ()

    @property
    def origin(self) -> str:
        """Where the rows come from; "" for passes of the network; see `Identity`."""
        return ""

    @abstractmethod
    def run_batches(
        self, batches: Sequence[forward.Batch], plan: RowPlan, sites: Sequence[str], dtype: str
    ) -> Iterator[forward.BatchRows]:
        """Yield the rows of batches, as `forward.run_batches` does."""

    def check(  # noqa: B027  # most have nothing to check
        self, errors: Mapping[str, Any], tokens: RowPlan, rows: IntArray
    ) -> None:
        """Check the errors (n_compared,) at each site of tokens with these numbers in their plan.

        Raises:
            DataError: they are larger than those of any rounding.
        """

    def how_read(self, _missing: Sequence[Sequence[forward.Batch]]) -> str:
        """Return how weights are read to compute shards; "" unless they are larger than memory."""
        return ""


@dataclass(frozen=True)
class Passes(Reader):
    """Passes of a network over whole texts."""

    model: Network

    def run_batches(
        self, batches: Sequence[forward.Batch], plan: RowPlan, sites: Sequence[str], dtype: str
    ) -> Iterator[forward.BatchRows]:
        """Yield the rows of batches; see `forward.run_batches`."""
        return forward.run_batches(self.model, batches, plan, sites, dtype)

    def how_read(self, missing: Sequence[Sequence[forward.Batch]]) -> str:
        """Return how weights that are not in memory are read."""
        model = self.model
        if model.is_in_memory:
            return ""
        return described_reading(model.config, model.dtype, str(model.device), missing)


class StoredRows(Reader):
    """Activations of tokens that exist already, from which the rows of a capture are made."""

    @abstractmethod
    def of_tokens(
        self, batch: forward.Batch, text: IntArray, places: IntArray, plan: RowPlan,
        sites: Sequence[str],
    ) -> list[Tensor]:  # fmt: skip
        """Return the activations of tokens, shape [token ...] for each site.

        Args:
            batch: the texts.
            text: the index of each token's text in the batch, ascending, shape (n_tokens,).
            places: the index of each token's position in those of the plan, shape (n_tokens,).
            plan: the positions of all rows.
            sites: full names.
        """

    def run_batches(
        self, batches: Sequence[forward.Batch], plan: RowPlan, sites: Sequence[str], dtype: str
    ) -> Iterator[forward.BatchRows]:
        """Yield the rows of batches."""
        for batch in batches:
            counts = plan.offsets[batch.rows + 1] - plan.offsets[batch.rows]
            places = forward.ranges(plan.offsets[batch.rows], counts)
            row = np.repeat(np.arange(len(counts)), counts)
            values = self.of_tokens(batch, batch.member[row], places, plan, sites)
            if len(places) > len(counts):  # rows of one position each need no mean
                numbers = torch.from_numpy(row), torch.from_numpy(counts)
                values = [forward.row_means(one, *numbers, plan.skip_massive) for one in values]
            of_site = zip(sites, values, strict=True)
            yield forward.BatchRows(
                {site: (rows.to(getattr(torch, dtype)), None) for site, rows in of_site}
            )


@dataclass(frozen=True)
class Work:
    """A store to fill at some sites, and everything needed to compute it.

    Attributes:
        model: the network.
        plan: the example and positions of each row.
        sites: full names of sites with a pos axis.
        shards: the batches of each shard.
        store: the store that receives the rows.
        reader: gives the rows.
        exact: returns the network in float32, with which rows in half precision are compared to
            measure their errors; None for no comparison.
    """

    model: Network
    plan: RowPlan
    sites: tuple[str, ...]
    shards: Sequence[Sequence[forward.Batch]]
    store: ActivationStore
    reader: Reader
    exact: Callable[[], Network] | None = None

    @classmethod
    def begin(  # noqa: PLR0913  # one call, whose options have defaults
        cls,
        model: Network,
        tokenizer: str,
        tokens: Sequence[IntArray],
        plan: RowPlan,
        sites: Sequence[str],
        *,
        root: Location | Files,
        dtype: str,
        device: str | None = None,
        exact: Callable[[], Network] | None = None,
        reader: Reader | None = None,
    ) -> Work:
        """Return the work for a capture; its store is created, or opened if it exists.

        Args:
            model: the network.
            tokenizer: digest of the tokenizer that made the tokens.
            tokens: the ids of every example, each of shape (n_tokens,).
            plan: the example and positions of each row.
            sites: full names of sites with a pos axis.
            root: folder or URL that contains caches, or the files of the cache itself.
            dtype: dtype on disk, a key of `CODES`.
            device: type of the devices that will compute; None for the model's.
            exact: returns the network in float32; see `Work`.
            reader: gives the rows; None for passes of the network.

        Raises:
            ConfigError: a site has no pos axis.
            StoreMismatchError: the files belong to another capture.
            StoreError: the store cannot be written.
        """
        check_storable(sites)
        assert not model.training, "dropout makes activations random: call model.eval() first"
        reader = reader or Passes(model)
        identity = identity_of(model, tokenizer, tokens, plan, dtype, device, reader.origin)
        shards = shards_of(identity, tokens, plan)
        order = [np.concatenate([batch.rows for batch in shard]) for shard in shards]
        store = ActivationStore.create(root, identity, plan, order)
        return cls(model, plan, tuple(sites), shards, store, reader, exact)

    @property
    def columns(self) -> tuple[str, ...]:
        """The sites, and the further columns of the reader."""
        return (*self.sites, *self.reader.columns)

    def missing_sites(self) -> MissingSites:
        """Return the missing columns of each incomplete shard, by index of the shard."""
        missing: dict[int, list[str]] = {}
        for site in self.columns:
            for shard in self.store.missing(site):
                missing.setdefault(shard, []).append(site)
        return dict(sorted(missing.items()))

    def n_rows_of(self, shard: int) -> int:
        """Return the number of rows of a shard."""
        return sum(len(batch.rows) for batch in self.shards[shard])

    def compute(self, missing: MissingSites, on_rows: OnRows = lambda _: None) -> None:
        """Compute and commit shards, each at some sites.

        Raises:
            StoreError: the store cannot be written, or a value is not finite.
            OutOfMemoryError: an allocation failed.
            DeviceLostError: the device failed.
        """
        try:
            with naming_lost_device(self.model.devices):
                self._compute(missing, on_rows)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            model = self.model
            needed = capture_bytes(
                model.config, model.dtype, self.sites, self.shards, in_memory=model.is_in_memory
            )
            raise OutOfMemoryError(
                f"There is not enough memory to capture ({str(error) or 'an allocation failed'}): "
                f"each process needs about {size_in_words(needed)}, and "
                f"{size_in_words(available_memory(model.devices))} are available. Capture "
                "fewer sites (`capture.sites`) or one position instead of all (`tokens.position`), "
                "set `model.dtype: bfloat16`, or start fewer `--workers`. Committed shards are "
                "saved."
            ) from error

    def _compute(self, missing: MissingSites, on_rows: OnRows) -> None:
        """Compute and commit shards; one thread writes them, while the next rows are computed."""
        model, dtype, n_tokens = self.model, self.store.identity.dtype, 0.0  # each batch alone
        if not model.is_in_memory:
            n_tokens = tokens_together(model.config, model.dtype, str(model.device))
        writers: dict[str, ShardWriter] = {}

        def begin(shard: int, sites: Sequence[str]) -> None:
            writers.update(files.enter_context(self.store.writing(sites, shard)))

        def append(part: forward.BatchRows) -> None:
            for site, values in part.arrays().items():
                writers[site].append(values)

        first = [site for site in missing.get(0, ()) if site in self.sites]
        if self.exact is not None and self.store.identity.is_compared and first:
            self.store.add_errors(self._errors(self.exact(), first))
        # `files` are those of one shard at a time; after a failure they are removed.
        with contextlib.ExitStack() as files, in_background() as submit:
            for shard, sites in missing.items():
                submit(begin, shard, sites)
                for batches in forward.split_batches(self.shards[shard], n_tokens):
                    for part in self.reader.run_batches(batches, self.plan, sites, dtype):
                        submit(append, part)
                    on_rows(sum(len(batch.rows) for batch in batches))
                submit(files.close)  # commits the shard

    def _errors(self, exact: Network, sites: Sequence[str]) -> dict[str, tuple[float, float]]:
        """Return median and maximum of |x - y| / |y| over tokens of the first batch at each site.

        The tokens x are those of the capture, and y those of the same network in float32. They are
        evenly spaced, so that many texts are compared. In a mean of tokens, errors would cancel.

        Raises:
            DataError: tokens of a serving engine differ by more than any rounding.
        """
        plan, first, every = self.plan, self.shards[0][0], np.arange(len(self.plan.positions) + 1)
        counts = np.diff(plan.offsets)
        tokens = RowPlan(np.repeat(plan.example, counts), plan.positions, every)
        places = forward.ranges(plan.offsets[first.rows], counts[first.rows])
        chosen = np.linspace(0, len(places) - 1, min(ROWS_COMPARED, len(places))).astype(int)
        member = np.repeat(first.member, counts[first.rows])[chosen]
        used, member = np.unique(member, return_inverse=True)
        batch = forward.Batch([first.sequences[one] for one in used], places[chosen], member)
        x, y = (
            {
                site: rows.reshape(len(rows), -1)
                for part in parts
                for site, rows in part.arrays().items()
            }
            for parts in (
                self.reader.run_batches([batch], tokens, sites, "float32"),
                forward.run_batches(exact, [batch], tokens, sites, "float32"),
            )
        )
        tiny = np.finfo(np.float32).tiny  # for a row of zeros
        norm = partial(np.linalg.norm, axis=1)
        errors = {site: norm(x[site] - y[site]) / (norm(y[site]) + tiny) for site in sites}
        self.reader.check(errors, tokens, batch.rows)
        return {site: (float(np.median(one)), float(one.max())) for site, one in errors.items()}


def capture_bytes(
    config: ModelConfig,
    dtype: torch.dtype,
    sites: Sequence[str],
    shards: Sequence[Sequence[forward.Batch]],
    *,
    in_memory: bool,
) -> int:
    """Return the predicted peak memory of one process that captures on a CPU, in bytes.

    Args:
        config: sizes of the network.
        dtype: dtype of its weights.
        sites: full names of the captured sites.
        shards: the batches of each shard.
        in_memory: whether all weights are in memory; otherwise one block at a time is.
    """
    sizes, parts = config.axis_sizes, Counter[str]()
    for one in count_components(config):
        parts["block" if one.times > 1 else one.name] += one.number
    features = Counter[int | None]()  # by block
    for site in sites:
        axes = config.sites.axes_of(site)
        features[layer_of(site)] += math.prod(sizes[axis] for axis in axes[2:])
    largest = max(parts.values())
    # Of half precision, errors are measured first, with one part of the network in float32.
    measuring = 4 * largest if dtype.itemsize < 4 else 0
    n_tokens = max(map(_n_padded, chain(*shards)))  # of the largest batch
    # Arrays that are in memory together: four as wide as the stream in float32; in the dtype of the
    # weights four more, and two as wide as the MLP.
    wide, deep = sizes["d_model"], sizes["d_mlp"]
    size = LIBRARIES + n_tokens * (4 * 4 * wide + dtype.itemsize * (4 * wide + 2 * deep))
    if in_memory:
        size += count_parameters(config) * dtype.itemsize
        n_rows = max(sum(len(one.rows) for one in shard[:_BATCHES]) for shard in shards)
        return size + max(4 * n_rows * features.total(), measuring)
    most = tokens_together(config, dtype, "cpu")
    streams, rows = 0, 0
    for shard in shards:
        for batches in forward.split_batches(shard, most):
            streams = max(streams, sum(map(_n_padded, batches)))
            rows = max(rows, sum(len(batch.rows) for batch in batches))
    size += 4 * sizes["d_model"] * streams
    return size + max(4 * rows * max(features.values()) + largest * dtype.itemsize, measuring)


def _n_padded(batch: forward.Batch) -> int:
    """Return the number of tokens of a batch, padding included."""
    return len(batch.sequences) * len(batch.sequences[0])  # the first is the longest


def tokens_together(config: ModelConfig, dtype: torch.dtype, device: str) -> float:
    """Return the most padded tokens that go through a block before the next block is read.

    Their residual streams fill a quarter of the available memory.
    """
    bytes_of_token = config.d_model * torch.promote_types(dtype, torch.float32).itemsize
    return available_memory(device) / 4 / bytes_of_token


def described_reading(
    config: ModelConfig, dtype: torch.dtype, device: str, shards: Iterable[Sequence[forward.Batch]]
) -> str:
    """Return sentences on a capture whose weights are not in memory, and on what that costs."""
    n_bytes = count_parameters(config) * dtype.itemsize
    n_tokens = tokens_together(config, dtype, device)
    times = sum(1 for shard in shards for _ in forward.split_batches(shard, n_tokens))
    often = "once" if times == 1 else f"{times:,} times"
    return (
        f"The weights need {size_in_words(n_bytes)} in {str(dtype).removeprefix('torch.')}, and "
        f"{size_in_words(available_memory(device))} of memory are available. So one block at a "
        f"time is read and computed for all batches of a shard: the capture reads each weight "
        f"{often}, {size_in_words(times * n_bytes)} in all, or draws those of an untrained "
        "network. Digests, norms, and each pass of attention and interventions read all weights "
        "again, which estimated times exclude."
    )


def shards_of(
    identity: Identity, tokens: Sequence[IntArray], plan: RowPlan
) -> list[list[forward.Batch]]:
    """Return the batches of each shard of a capture.

    Args:
        identity: identity of the capture, which determines the sizes of batches and shards.
        tokens: the ids of every example, each of shape (n_tokens,).
        plan: the example and positions of each row.
    """
    batches = forward.make_batches(tokens, plan, identity.batch_tokens)
    return forward.make_shards(batches, identity.shard_rows)


@contextlib.contextmanager
def in_background() -> Iterator[Callable[..., None]]:
    """Yield a function that queues calls on one thread, which runs them in order.

    The yielded function waits while more than MAX_WAITING calls are unfinished. It, or the end of
    the block, raises the exception of an earlier call. Calls queued after a failed one are not run.
    If the block itself fails, queued calls are dropped.

    >>> done = []
    >>> with in_background() as submit:
    ...     for number in range(4):
    ...         submit(done.append, number)
    >>> done
    [0, 1, 2, 3]
    """
    waiting: deque[Future[None]] = deque()
    last: Future[None] | None = None

    def call(previous: Future[None] | None, function: Callable[..., object], *args: object) -> None:
        if previous is not None:
            previous.result()  # raises if an earlier call failed, so that this one is not run
        function(*args)

    def submit(function: Callable[..., object], *args: object) -> None:
        """Queue a call, and wait while too many are unfinished."""
        nonlocal last
        last = pool.submit(call, last, function, *args)
        waiting.append(last)
        while len(waiting) > MAX_WAITING:
            waiting.popleft().result()

    pool = ThreadPoolExecutor(1, thread_name_prefix="probekit-background")
    try:
        yield submit
        while waiting:
            waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Captured:
    """Result of a capture.

    Attributes:
        store: the store, complete for the requested sites.
        computed: number of shards, summed over sites, computed by this call.
        reused: number of shards that already existed or were filled from another cache.
        root: one digest of the store's identity and of the rows at the requested sites.
    """

    store: ActivationStore
    computed: int
    reused: int
    root: str


def fill(
    work: Work,
    root: Location,
    *,
    compute: Callable[[Work, MissingSites, OnRows], None] = Work.compute,
    step: str = "capture",
    watcher: Watcher = SILENT,
) -> Captured:
    """Compute the missing rows of `work`, seal its store and return the result.

    A complete and sealed store is verified only.

    Args:
        work: the rows, sites and store.
        root: folder or URL that contains caches.
        compute: computes the missing shards; by default in this process.
        step: name of this step in progress reports.
        watcher: receives progress in rows, and messages.

    Raises:
        StoreError: a stored file is damaged, the store cannot be written, or a value is not finite.
    """
    store = work.store
    n_shards = len(work.shards) * len(work.columns)  # summed over the columns
    if store.is_sealed and not any(store.missing(column) for column in work.columns):
        # Do not write: a finished cache may be on a read-only disk.
        store.verify(work.columns)
        watcher.progress(f"{step} (reused)", store.n_rows, store.n_rows)
        return Captured(store, computed=0, reused=n_shards, root=store.digest_of(work.columns))
    with removed_after_failure(store), store.files.lock(watcher.tell):
        store.files.sweep()
        store.verify(work.columns)
        # Rows that another cache has; the module imports this one.
        import_module("probekit.activations.derived").derive(work, root)
        missing = work.missing_sites()  # by shard
        done = store.n_rows - sum(work.n_rows_of(shard) for shard in missing)
        watcher.progress(step, done, store.n_rows)

        def on_rows(n_rows: int) -> None:
            nonlocal done
            done += n_rows
            watcher.progress(step, done, store.n_rows)

        if missing:
            compute(work, missing, on_rows)
        store.seal()
    computed = sum(len(sites) for sites in missing.values())
    return Captured(store, computed, n_shards - computed, root=store.digest_of(work.columns))
