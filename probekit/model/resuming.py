"""Forward passes that start at a block, from a residual stream that was kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from probekit.errors import ConfigError
from probekit.model.taps import Tap, Taps
from probekit.model.visibility import positions_and_visible, select_positions

if TYPE_CHECKING:
    from probekit.model.gpt2 import Block

KeysValues = tuple[Tensor, Tensor]  # of one block, shape [batch pos n_heads d_head] each


def resume_blocks(
    blocks: Sequence[Block],
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
        blocks: all blocks of the network.
        resid: residual stream before block `layer`, at the positions that are computed, shape
            [batch pos d_model].
        layer: block to start at; the number of blocks returns `resid` itself.
        after_attention: whether `resid` is the residual stream after the attention of that block.
        mask: True at tokens, False at padding, for the positions in `before` and then for `resid`,
            shape [batch key_pos].
        before: keys and values of all earlier positions, by block; None if there are none.
        at: positions in `resid` that are returned, shape [batch n_at]; None means all.
        tap: function called at each requested site.
        sites: names of the requested sites.

    Raises:
        ConfigError: a requested site is before the start.
    """
    device, taps = resid.device, Taps(tap, set(sites))
    if layer == len(blocks):
        _check_all_reached(taps, layer)
        return _selected(resid, at)
    first = None if before is None else next((one for one in before if one is not None), None)
    n_before = 0 if first is None else first[0].shape[1]
    _, visible = positions_and_visible(resid[..., 0], mask, n_before)
    visible = None if visible is None else visible.to(device)
    at = None if at is None else at.to(device)
    for number in range(layer, len(blocks)):
        block, own = blocks[number], taps.within(f"blocks.{number}")
        last_at = at if number == len(blocks) - 1 else None
        if after_attention and number == layer:
            resid = _after_attention(block, _selected(resid, last_at), own)
            continue
        earlier = None if before is None else before[number]
        extend = None if earlier is None else partial(_joined, earlier)
        resid = block(resid, visible, own, last_at, extend)
    _check_all_reached(taps, layer)
    return resid


def _check_all_reached(taps: Taps, layer: int) -> None:
    if taps.pending:
        raise ConfigError(
            f"A pass that starts at block {layer} does not reach {min(taps.pending)}. Start at an "
            "earlier block, or run the whole network."
        )


def _after_attention(block: Block, resid: Tensor, tap: Taps) -> Tensor:
    """Return the residual stream after a block, from that after its attention."""
    mlp_out = block.mlp(block.ln_2(resid, tap.within("ln2")), tap.within("mlp"))
    return tap("hook_resid_post", resid + tap("hook_mlp_out", block.drop(mlp_out)))


def _joined(earlier: KeysValues, k: Tensor, v: Tensor) -> KeysValues:
    return torch.cat([earlier[0], k], 1), torch.cat([earlier[1], v], 1)


def _selected(resid: Tensor, at: Tensor | None) -> Tensor:
    if at is None:
        return resid
    return select_positions(resid, at.to(resid.device))
