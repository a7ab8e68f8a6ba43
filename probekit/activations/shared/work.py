"""The work of a capture: a store and the batches of each shard, for one process or many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from probekit.activations.background import background_thread
from probekit.activations.batches import Batch, make_batches, make_shards
from probekit.activations.files.local import Files, Location
from probekit.activations.forward import DTYPES, BatchRows, run_batch
from probekit.activations.identity import BATCH_TOKENS, IntArray, identify
from probekit.activations.store.store import ActivationStore
from probekit.activations.store.writer import ShardWriter
from probekit.data.positions import RowPlan
from probekit.errors import ConfigError
from probekit.model.network import Network
from probekit.model.sites.catalogue import describe

MissingSites = Mapping[int, Sequence[str]]  # missing sites by shard; complete shards are absent
OnRows = Callable[[int], None]  # called with the number of newly computed rows


@dataclass(frozen=True)
class Work:
    """A store to fill at some sites, and everything needed to compute it.

    Attributes:
        model: a GPT-2.
        plan: the example and positions of each row.
        sites: full names of sites with a pos axis.
        shards: the batches of each shard.
        store: the store that receives the rows.
    """

    model: Network
    plan: RowPlan
    sites: tuple[str, ...]
    shards: Sequence[Sequence[Batch]]
    store: ActivationStore

    @classmethod
    def begin(
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
    ) -> Work:
        """Return the work for a capture; its store is created, or opened if it exists.

        Args:
            model: a GPT-2.
            tokenizer: digest of the tokenizer that made the tokens.
            tokens: the ids of every example, each of shape (n_tokens,).
            plan: the example and positions of each row.
            sites: full names of sites with a pos axis.
            root: folder or URL that contains caches, or the files of the cache itself.
            dtype: dtype on disk, `float32` or `float16`.
            device: type of the devices that will compute; None for the model's.

        Raises:
            ConfigError: a site has no pos axis, the dtype is unknown, or the model is in training
                mode.
            StoreMismatchError: the files belong to another capture.
            StoreError: the store cannot be written.
        """
        check_storable(sites)
        if dtype not in DTYPES:
            raise ConfigError(f"Activations are stored as float32 or float16, not {dtype!r}.")
        if model.training:
            raise ConfigError(
                "The model is in training mode, where dropout makes activations random. Call "
                "model.eval() first."
            )
        identity = identify(model, tokenizer, tokens, plan, dtype)
        if device is not None:
            budget = BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"])
            identity = replace(identity, device=device, batch_tokens=budget)
        shards = make_shards(make_batches(tokens, plan, identity.batch_tokens), identity.shard_rows)
        order = [np.concatenate([batch.rows for batch in shard]) for shard in shards]
        store = ActivationStore.create(root, identity, plan, order)
        return cls(model, plan, tuple(sites), shards, store)

    def missing_sites(self) -> MissingSites:
        """Return the missing sites of each incomplete shard, by shard index."""
        missing = {site: set(self.store.missing(site)) for site in self.sites}
        incomplete = {
            shard: [site for site in self.sites if shard in missing[site]]
            for shard in range(len(self.shards))
        }
        return {shard: sites for shard, sites in incomplete.items() if sites}

    def n_rows_of(self, shard: int) -> int:
        """Return the number of rows of a shard."""
        return sum(len(batch.rows) for batch in self.shards[shard])

    def compute(self, shard: int, sites: Sequence[str], on_rows: OnRows = lambda _: None) -> None:
        """Compute and commit one shard of some sites.

        Raises:
            StoreError: the store cannot be written, or a value is not finite.
        """
        dtype = self.store.identity.dtype
        with self.store.writing(sites, shard) as writers, background_thread() as submit:
            for batch in self.shards[shard]:
                submit(_append, writers, run_batch(self.model, batch, self.plan, sites, dtype))
                on_rows(len(batch.rows))


def compute_locally(work: Work, incomplete: MissingSites, on_rows: OnRows) -> None:
    """Compute all missing shards in this process."""
    for shard, sites in incomplete.items():
        work.compute(shard, sites, on_rows)


def check_storable(sites: Iterable[str]) -> None:
    """Check that a capture can store these sites: each value belongs to one position.

    Raises:
        ConfigError: a site has no pos axis.
    """
    for site in sites:
        axes = describe(site).axes
        if "pos" not in axes:
            raise ConfigError(
                f"{site} has the axes {' '.join(axes)}. Its values belong to pairs of positions; "
                "they can be drawn (`probekit attention`) but not stored and probed row by row."
            )


def _append(writers: Mapping[str, ShardWriter], part: BatchRows) -> None:
    arrays = part.arrays()
    for site, writer in writers.items():
        writer.append(arrays[site])
