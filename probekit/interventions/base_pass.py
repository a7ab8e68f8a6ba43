"""A kept forward pass, from which passes with edits start at the edited site.

A pass with an edit shares everything before the edit with the pass without it: earlier blocks and,
because attention is causal, the keys and values of earlier positions. It stops at the residual
stream of the measured position. A change of the tensor of a site that is a part of the residual
stream changes the stream linearly, so that the pass can start there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probekit.errors import ConfigError
from probekit.interventions.edits import compose
from probekit.model.network import Network
from probekit.model.passes.context import KeysValues
from probekit.model.passes.inputs import TokenBatch
from probekit.model.passes.taps import Tap, part_features
from probekit.model.sites.catalogue import describe, layer_of
from probekit.model.sites.sites import SiteSelection

# Component -> the next residual stream that it is a part of. In parallel blocks resid_post follows
# attn_out; there is no resid_mid.
_ENTERS = {
    "embed": "resid_pre",
    "pos_embed": "resid_pre",
    "resid_pre": "resid_pre",
    "attn.z": "resid_mid",
    "attn.result": "resid_mid",
    "attn_out": "resid_mid",
    "resid_mid": "resid_mid",
    "mlp.post": "resid_post",
    "mlp_out": "resid_post",
    "resid_post": "resid_post",
}
_PER_HEAD_ONLY = "attn.result"  # each of its heads is as wide as the stream, which adds them
# Components that a norm, if the network has it, separates from the residual stream.
_NORMS = {"attn.z": "ln1_post", "attn.result": "ln1_post", "mlp.post": "ln2_post"}


@dataclass(frozen=True, eq=False)
class StreamEntry:
    """Where a tensor enters the residual stream.

    Attributes:
        layer: number of the block that reads the changed stream first; the number of blocks is the
            output of the last block.
        after_attention: whether only the MLP of that block reads the change.
        matrix: output matrix [d_model n_features] from the tensor to the stream; None is identity.
    """

    layer: int
    after_attention: bool
    matrix: Tensor | None = None

    def in_stream(self, change: Tensor) -> Tensor:
        """Return the change of the residual stream [... d_model] of a change [... n_features]."""
        return change if self.matrix is None else change @ self.matrix.to(change).T


def stream_entry(model: Network, selection: SiteSelection) -> StreamEntry | None:
    """Return where a site, head or neuron enters the residual stream.

    None if it does not enter linearly, and for all heads of attn.result, which have no one matrix.

    >>> from probekit import GPT2
    >>> entry = stream_entry(
    ...     GPT2.from_pretrained("mini"), SiteSelection("blocks.2.attn.hook_z", head=1)
    ... )
    >>> entry.layer, entry.after_attention, entry.matrix.shape
    (2, True, torch.Size([256, 64]))
    """
    component = describe(selection.site).component
    stream = _stream_after(model, component)
    if stream is None or (component == _PER_HEAD_ONLY and selection.head is None):
        return None
    layer = layer_of(selection.site) or 0  # embeddings enter block 0
    matrix: Tensor | None = None
    if component == "mlp.post":
        matrix, neuron = model.mlp_output(layer), selection.neuron
        matrix = matrix if neuron is None else matrix[:, neuron : neuron + 1]
    elif component == "attn.z":
        (matrix, _), head = model.head_output(layer), selection.head  # without the bias
        size = model.axis_sizes["d_head"]
        matrix = matrix if head is None else matrix[:, head * size : (head + 1) * size]
    reader = layer + 1 if stream == "resid_post" else layer
    return StreamEntry(reader, after_attention=stream == "resid_mid", matrix=matrix)


def linear_entry(model: Network, selection: SiteSelection) -> StreamEntry:
    """Return where a site enters the residual stream.

    Raises:
        ConfigError: its tensor is not a part of the residual stream.
    """
    entry = stream_entry(model, selection)
    if entry is None:
        allowed = [site.name for site in model.sites.rows if _stream_after(model, site.component)]
        raise ConfigError(
            f"{selection.text} is not a part of the residual stream. Allowed: "
            f"{', '.join(allowed)}; of hook_result a single head."
        )
    return entry


def _stream_after(model: Network, component: str) -> str | None:
    """Return the next residual stream that a component is a part of.

    None if it is not a part of the stream, or if a norm separates it from the stream.
    """
    stream = _ENTERS.get(component)
    if component in _NORMS and f"blocks.0.{_NORMS[component]}.hook_scale" in model.sites:
        return None
    if stream == "resid_mid" and "blocks.0.hook_resid_mid" not in model.sites:
        return "resid_post"
    return stream


BATCH_BYTES = 256 << 20  # working memory of one batch of edited passes
STREAM_TENSORS = 16  # number of tensors as wide as d_model that a pass needs for each position
# Streams, and the keys and values that attention reads; not all networks have all of them. Of the
# two sites of keys, the first one that a network has is read.
_STREAMS = ("hook_resid_pre", "hook_resid_mid")
_KEYS, _VALUES = ("attn.hook_rot_k", "attn.hook_k"), "attn.hook_v"


@dataclass(frozen=True, eq=False)
class BasePass:
    """The pass of some texts without edits, and passes that differ from it by an edit.

    Attributes:
        model: the network.
        batch: the texts.
        measured: position of each text whose logits are measured, shape [batch].
        values: activations of the kept sites.
        final: residual stream after the last block at the measured positions, [batch d_model].

    >>> from probekit import GPT2, Tokenizer
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> batch = tokenizer.batch(["The keys", "The old keys"], bos=False, side="right")
    >>> kept, site = BasePass.keep(model, batch), SiteSelection("blocks.3.hook_resid_post")
    >>> entry, change = stream_entry(model, site), torch.zeros(2, 256)
    >>> final = kept.shifted(entry, lambda passes: change[passes], torch.arange(2), kept.measured)
    >>> torch.allclose(final, kept.final, atol=1e-4)
    True
    """

    model: Network
    batch: TokenBatch
    measured: Tensor
    values: dict[str, Tensor]
    final: Tensor

    @classmethod
    def keep(
        cls,
        model: Network,
        batch: TokenBatch,
        measured: Tensor | None = None,
        sites: Sequence[str] = (),
    ) -> BasePass:
        """Return the pass of a batch.

        Args:
            model: the network.
            batch: the texts.
            measured: position of each text whose logits are measured, shape [batch]; None means the
                last token.
            sites: names of further sites whose activations are kept.

        Raises:
            ConfigError: the network is spread over several devices.
        """
        model.check_one_device()
        batch = batch.to(model.device)
        n_layers = model.axis_sizes["n_layers"]
        last = f"blocks.{n_layers - 1}.hook_resid_post"
        names = [name for name in _STREAMS if f"blocks.0.{name}" in model.sites]
        names += [_key_site(model), _VALUES]
        of_blocks = [f"blocks.{layer}.{name}" for layer in range(n_layers) for name in names]
        with torch.no_grad():
            _, cache = model.run_with_cache(batch, [*of_blocks, last, *sites], logits=False)
        values = dict(cache)
        columns = torch.arange(batch.mask.shape[1], device=model.device)
        if measured is None:
            measured = (batch.mask * columns).argmax(1)
        measured = measured.to(model.device)
        final = values[last][torch.arange(len(batch), device=model.device), measured]
        return cls(model, batch, measured, values, final)

    @staticmethod
    def bytes_kept(
        sizes: Mapping[str, int], n_texts: int, n_positions: int, n_sites: int = 0
    ) -> int:
        """Return the memory of a kept pass, with `n_sites` further sites as wide as d_model.

        `sizes` are those of the axes of the network.
        """
        # Streams, keys and values of each block, the output of the last block, and the activations
        # at its measured positions, all in float32.
        tensors = (len(_STREAMS) + 2) * sizes["n_layers"] + 2 + n_sites
        return tensors * n_texts * n_positions * sizes["d_model"] * 4

    def value(self, selection: SiteSelection) -> Tensor:
        """Return the kept value of a site, head or neuron, shape [batch pos n_features]."""
        return part_features(self.model.sites, self.values[selection.site], selection)

    def stream(self, entry: StreamEntry) -> Tensor:
        """Return the residual stream [batch pos d_model] that an entry would change."""
        n_layers = self.model.axis_sizes["n_layers"]
        if entry.layer == n_layers:
            return self.values[f"blocks.{n_layers - 1}.hook_resid_post"]
        name = "hook_resid_mid" if entry.after_attention else "hook_resid_pre"
        return self.values[f"blocks.{entry.layer}.{name}"]

    def shifted(
        self,
        entry: StreamEntry,
        change: Callable[[Tensor], Tensor],
        rows: Tensor,
        columns: Tensor | None = None,
    ) -> Tensor:
        """Return the final residual stream [n d_model] after changes.

        Args:
            entry: where the residual stream changes.
            change: function of the ascending numbers of some passes that returns their changes,
                shape [n_passes pos d_model], or [n_passes d_model] with `columns`.
            rows: text of each pass, shape [n].
            columns: position of each change, shape [n]; None changes all positions.
        """

        def run(passes: Tensor) -> Tensor:
            """Return the final stream of passes with these numbers."""
            texts, changed_at = rows[passes], first[passes]
            start, end = self._extent(texts, int(changed_at.min()))
            stream = self.stream(entry)[texts, start:end].clone()
            added = change(passes).to(stream)
            if columns is None:
                stream += added[:, :end]
            else:
                inside = changed_at < end  # later positions do not affect the measured one
                stream[inside.nonzero()[:, 0], (changed_at - start)[inside]] += added[inside]
            return self._resumed(entry, stream, texts, start, end)

        first = torch.zeros_like(rows) if columns is None else columns
        return self._in_batches(run, first, rows)

    def tapped(self, selection: SiteSelection, tap: Tap) -> Tensor:
        """Return the final residual stream [batch d_model] of all texts with a tap at a site.

        Raises:
            ConfigError: the site is not in a block.
        """
        layer = layer_of(selection.site)
        if layer is None:
            raise ConfigError(
                f"{selection.text} is outside the blocks. Use `run_edited` for this site, or edit "
                "a site of a block."
            )
        composed = compose(self.model, [(selection, tap)])
        stream = self.values[f"blocks.{layer}.hook_resid_pre"]
        # `at` restricts the last block to these positions, but an edit in it needs all of them.
        is_last = layer == self.model.axis_sizes["n_layers"] - 1
        at = None if is_last else self.measured[:, None]
        with torch.no_grad():
            final = self.model.resume(
                stream, layer, mask=self._mask(slice(None), stream.shape[1]),
                at=at, tap=composed, sites=composed.sites,
            )  # fmt: skip
        rows = torch.arange(len(final), device=final.device)
        return final[rows, self.measured] if is_last else final[:, 0]

    def _extent(self, rows: Tensor, first: int) -> tuple[int, int]:
        """Return the first position of texts that is computed, and one past the last.

        `first` is the first position that changes; the last one that matters is measured.
        """
        measured = self.measured[rows]
        return min(first, int(measured.min())), int(measured.max()) + 1

    def _resumed(
        self, entry: StreamEntry, stream: Tensor, rows: Tensor, start: int, end: int
    ) -> Tensor:
        """Return the final stream of passes that start with `stream` at positions start to end."""
        before: list[KeysValues | None] | None = None
        if start:  # later blocks read the keys and values of earlier positions
            key_site, n_layers = _key_site(self.model), self.model.axis_sizes["n_layers"]
            before = [None] * entry.layer
            for layer in range(entry.layer, n_layers):
                keys = self.values[f"blocks.{layer}.{key_site}"][:, :start]
                values = self.values[f"blocks.{layer}.{_VALUES}"][:, :start]
                before.append((keys[rows], values[rows]))
        with torch.no_grad():
            final = self.model.resume(
                stream, entry.layer, after_attention=entry.after_attention,
                mask=self._mask(rows, end), before=before,
                at=(self.measured[rows] - start)[:, None],
            )  # fmt: skip
        return final[:, 0]

    def _mask(self, rows: Tensor | slice, end: int) -> Tensor | None:
        """Return the mask of texts up to a position; None if it has no padding."""
        mask = self.batch.mask[rows, :end]
        return None if bool(mask.all()) else mask

    def _in_batches(self, run: Callable[[Tensor], Tensor], first: Tensor, rows: Tensor) -> Tensor:
        """Return the results [n d_model] of a function of the ascending numbers of some passes.

        The passes of a batch change and measure the same positions, so that none computes more than
        these, and none is padded at its end.

        Args:
            run: the function, called with the numbers of the passes of each batch.
            first: first position that each pass changes, shape [n].
            rows: text of each pass, shape [n].
        """
        width, d_model = self.batch.ids.shape[1], self.model.axis_sizes["d_model"]
        size = max(1, BATCH_BYTES // (4 * STREAM_TENSORS * width * d_model))
        extents = first.to(rows.device) * width + self.measured[rows]
        _, extent_of_pass = torch.unique(extents, return_inverse=True)
        final = self.final[rows]
        for extent in range(int(extent_of_pass.max()) + 1):
            passes = (extent_of_pass == extent).nonzero()[:, 0]
            for batch in torch.split(passes, size):
                final[batch] = run(batch)
        return final


def _key_site(model: Network) -> str:
    """Return the name, within a block, of the keys that attention reads."""
    return next(name for name in _KEYS if f"blocks.0.{name}" in model.sites)
