"""Forward passes that start at a block, from a residual stream that was kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from probekit.errors import ConfigError
from probekit.model.layers.attention import select_positions
from probekit.model.layers.visibility import positions_and_visible
from probekit.model.passes.context import Context
from probekit.model.passes.kv_cache import Extend
from probekit.model.passes.taps import Tap, Taps

if TYPE_CHECKING:
    from probekit.model.decoder import Decoder

KeysValues = tuple[Tensor, Tensor]  # of one block, shape [batch pos n_kv_heads d_head] each


@dataclass(frozen=True)
class _ResumedContext(Context):
    """Context of a pass in which the keys and values of earlier positions are given.

    Attributes:
        before: keys, rotated if the network rotates them, and values, by block.
    """

    before: Sequence[KeysValues | None] | None = None

    def extend(self, layer: int) -> Extend | None:
        """Return the function that puts the given keys and values before the new ones."""
        earlier = None if self.before is None else self.before[layer]
        if earlier is None:
            return None
        keys, values = earlier
        return lambda k, v: (torch.cat([keys, k], 1), torch.cat([values, v], 1))


def resume_blocks(
    model: Decoder,
    resid: Tensor,
    layer: int,
    *,
    after_attention: bool = False,
    mask: Tensor | None = None,
    before: Sequence[KeysValues | None] | None = None,
    at: Tensor | None = None,
    tap: Tap | None = None,
    sites: Iterable[str] = (),
) -> Tensor:
    """Return the residual stream after the last block, shape [batch pos d_model] or [batch n_at _].

    Args:
        model: the network.
        resid: residual stream before block `layer`, at the positions that are computed, shape
            [batch pos d_model].
        layer: block to start at; the number of blocks returns `resid` itself.
        after_attention: whether `resid` is the residual stream after the attention of that block.
        mask: True at tokens, False at padding, for the positions in `before` and then for `resid`,
            shape [batch key_pos].
        before: keys and values of all earlier positions, by block; None if there are none. The keys
            are those that attention reads: `attn.hook_rot_k` where the network has that site.
        at: positions in `resid` that are returned, shape [batch n_at]; None means all.
        tap: function called at each requested site.
        sites: names of the requested sites.

    Raises:
        ConfigError: a requested site is before the start, or the blocks are parallel, so that no
            residual stream is between attention and MLP.
    """
    if after_attention and "blocks.0.hook_resid_mid" not in model.sites:
        raise ConfigError(
            f"The blocks of this {model.config.TITLE} are parallel: they have no residual stream "
            "after attention. Start at the next block."
        )
    taps, n_layers = Taps(tap, set(sites)), len(model.blocks)
    is_selected = False
    if after_attention:
        is_selected = layer == n_layers - 1
        resid = _selected(resid, at) if is_selected else resid
        block = cast(Any, model.blocks[layer])
        resid = block.after_attention(resid, taps.within(f"blocks.{layer}"))
        layer += 1
    if layer < n_layers:
        resid = model.run_blocks(resid, _context(resid, mask, before, at), taps, layer)
        is_selected = True
    _check_all_reached(taps, layer)
    return resid if is_selected else _selected(resid, at)


def _context(
    resid: Tensor,
    mask: Tensor | None,
    before: Sequence[KeysValues | None] | None,
    at: Tensor | None,
) -> Context:
    first = None if before is None else next((one for one in before if one is not None), None)
    n_before = 0 if first is None else first[0].shape[1]
    positions, visible = positions_and_visible(resid[..., 0], mask, n_before)
    return _ResumedContext(
        positions,
        None if visible is None else visible.to(resid.device),
        mask,
        n_before,
        None if at is None else at.to(resid.device),
        None,
        before,
    )


def _check_all_reached(taps: Taps, layer: int) -> None:
    if taps.pending:
        raise ConfigError(
            f"A pass that starts at block {layer} does not reach {min(taps.pending)}. Start at an "
            "earlier block, or run the whole network."
        )


def _selected(resid: Tensor, at: Tensor | None) -> Tensor:
    if at is None:
        return resid
    return select_positions(resid, at.to(resid.device))
