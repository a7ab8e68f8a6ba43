"""What a capture has to do: a store, and the batches of each of its shards; for one or for many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from probekit.activations.background import beside
from probekit.activations.batches import Batch, make_batches, make_shards
from probekit.activations.files.local import Files, Location
from probekit.activations.forward import DTYPES, BatchRows, run_batch
from probekit.activations.identity import BATCH_TOKENS, IntArray, identify
from probekit.activations.store.store import ActivationStore
from probekit.activations.store.writer import ShardWriter
from probekit.data.positions import RowPlan
from probekit.errors import ConfigError
from probekit.model.network import Network
from probekit.model.sites import describe

Lacking = Mapping[int, Sequence[str]]  # for each shard that lacks some sites, which ones
OnRows = Callable[[int], None]  # hears how many rows more are computed


@dataclass(frozen=True)
class Work:
    """A store that is to be filled at some sites, and all that is needed for it.

    Attributes:
        model: a GPT-2.
        plan: which positions of which example make a row.
        sites: full names of sites with a pos axis.
        shards: the batches of each shard.
        store: what gets the rows.
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
        """Return the work whose store is there now, new or as far as it has come.

        Args:
            model: a GPT-2.
            tokenizer: digest of the tokenizer that made the tokens.
            tokens: the ids of every example, each of shape (n_tokens,).
            plan: which positions of which example make a row.
            sites: full names of sites with a pos axis.
            root: folder or URL that holds caches, or the files of the very one that it must be.
            dtype: `float32` or `float16`, the numbers on disk.
            device: class of the devices that will compute; None for that of the model.

        Raises:
            ConfigError: a site has no pos axis, the dtype is unknown, or the model is in training
                mode.
            StoreMismatchError: the files are those of another capture.
            StoreError: the store cannot be written.
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
        if device is not None:
            budget = BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"])
            identity = replace(identity, device=device, batch_tokens=budget)
        shards = make_shards(make_batches(tokens, plan, identity.batch_tokens), identity.shard_rows)
        order = [np.concatenate([batch.rows for batch in shard]) for shard in shards]
        store = ActivationStore.create(root, identity, plan, order)
        return cls(model, plan, tuple(sites), shards, store)

    def lacking(self) -> Lacking:
        """Return the shards that lack some of the sites, and which."""
        missing = {site: set(self.store.missing(site)) for site in self.sites}
        lacking = {
            shard: [site for site in self.sites if shard in missing[site]]
            for shard in range(len(self.shards))
        }
        return {shard: sites for shard, sites in lacking.items() if sites}

    def n_rows_of(self, shard: int) -> int:
        """Return how many rows a shard has."""
        return sum(len(batch.rows) for batch in self.shards[shard])

    def compute(self, shard: int, sites: Sequence[str], on_rows: OnRows = lambda _: None) -> None:
        """Compute and commit one shard of some sites.

        Raises:
            StoreError: the store cannot be written, or a value is not finite.
        """
        dtype = self.store.identity.dtype
        with self.store.writing(sites, shard) as writers, beside() as do:
            for batch in self.shards[shard]:
                do(_append, writers, run_batch(self.model, batch, self.plan, sites, dtype))
                on_rows(len(batch.rows))


def alone(work: Work, lacking: Lacking, on_rows: OnRows) -> None:
    """Compute in this process all that is lacking."""
    for shard, sites in lacking.items():
        work.compute(shard, sites, on_rows)


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


def _append(writers: Mapping[str, ShardWriter], part: BatchRows) -> None:
    arrays = part.arrays()
    for site, writer in writers.items():
        writer.append(arrays[site])
