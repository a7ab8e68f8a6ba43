"""Direct logit attribution: the contribution of each component to a logit or logit difference.

The residual stream is the sum of the embeddings, the outputs of all heads and MLPs, and biases.
Centring and unembedding are linear, and the scales of the final norm and of a norm after attention
are held at their values in the forward pass. A logit is therefore the sum of the components'
contributions along one direction of d_model. Indirect effects through later components are not
included. If a network caps its logits, the logit before the cap is decomposed.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; the final norm as
in Wang et al. 2022, "Interpretability in the Wild". Weights are not folded: the biases of attention
and of the final norm are components of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from probekit.errors import ConfigError
from probekit.model.network import Network
from probekit.model.passes.cache import ActivationCache
from probekit.model.passes.inputs import check_tokens
from probekit.model.sites.sites import SitePattern

_SITES: tuple[SitePattern, ...] = (
    "hook_*embed",
    "blocks.*.attn.hook_z",
    "blocks.*.hook_mlp_out",
    "ln_final.hook_scale",
    ("resid_post", -1),
)
_POST_SCALES = "blocks.*.ln1_post.hook_scale"


@dataclass(frozen=True, eq=False)
class Attribution:
    """A logit or logit difference, and its decomposition into contributions.

    Attributes:
        logit: value in the forward pass, before a softcap of the logits.
        rows: one row per component, in forward order, with the columns `part` (embed, pos_embed,
            head, attn_bias, mlp, final_bias), `layer` and `head` (missing where they do not apply)
            and `value`.
    """

    logit: float
    rows: pd.DataFrame

    @property
    def remainder(self) -> float:
        """The logit minus the sum of the contributions, which is the rounding error."""
        return self.logit - float(self.rows["value"].sum())


def logit_attribution(
    model: Network,
    ids: Tensor,
    token: int,
    *,
    minus: int | None = None,
    minus_mean: bool = False,
    position: int = -1,
) -> Attribution:
    """Return the contribution of each component to the logit of a token at a position.

    Args:
        model: the network.
        ids: token ids of one text, shape (n_tokens,).
        token: id whose logit is decomposed.
        minus: id whose logit is subtracted.
        minus_mean: whether to subtract the mean logit of all tokens. A contribution that is equal
            for all tokens changes no probability; this removes it.
        position: token position; negative numbers count from the end of the text.

    >>> from probekit import GPT2
    >>> model = GPT2.from_pretrained("mini")
    >>> attribution = logit_attribution(model, torch.tensor([5, 6, 7]), 8, minus=9)
    >>> len(attribution.rows), abs(attribution.remainder) < 1e-4
    (39, True)

    Raises:
        ConfigError: position or token is out of range, or both `minus` and `minus_mean` are given.
        DataError: the text has no token, or more than the context.
    """
    check_tokens(model.config, ids[None])
    index = position_from_start(position, len(ids))
    _check_tokens(model, token, minus, minus_mean)
    with torch.inference_mode():
        # Later tokens do not affect this position.
        has_norms = model.attention_norm_gain(0) is not None
        sites = (*_SITES, _POST_SCALES) if has_norms else _SITES
        _, cache = model.run_with_cache(ids[None, : index + 1], sites, logits=False)
        logits = model.uncapped_logits(model.final_norm(cache["resid_post", -1][0, -1:]))
        logit = _difference(logits[0], token, minus, minus_mean)
        direction = _difference(model.unembedding, token, minus, minus_mean)
        parts = list(_parts(model, cache, direction))
    return Attribution(
        float(logit), pd.DataFrame(parts).astype({"layer": "Int64", "head": "Int64"})
    )


def position_from_start(position: int, n_tokens: int) -> int:
    """Return a position as a number counted from the beginning of the text.

    >>> position_from_start(-1, 5)
    4

    Raises:
        ConfigError: the position is out of range.
    """
    if not -n_tokens <= position < n_tokens:
        raise ConfigError(
            f"Position {position} is outside a text of {n_tokens} tokens. Allowed: 0 to "
            f"{n_tokens - 1}, or {-n_tokens} to -1 from the end."
        )
    return position % n_tokens


def _check_tokens(model: Network, token: int, minus: int | None, minus_mean: bool) -> None:
    for id in (token, minus):
        if id is not None and not 0 <= id < model.config.d_vocab:
            raise ConfigError(
                f"No token has the id {id}. Allowed: 0 to {model.config.d_vocab - 1}."
            )
    if minus is not None and minus_mean:
        raise ConfigError("Give either `minus` or `minus_mean`, not both.")


def _difference(values: Tensor, token: int, minus: int | None, minus_mean: bool) -> Tensor:
    """Return the entry of a token minus that of `minus` or the mean over tokens, in float64."""
    mean = values.mean(0, dtype=torch.float64) if minus_mean else 0.0
    return values[token].double() - (mean if minus is None else values[minus].double())


def _parts(model: Network, cache: ActivationCache, direction: Tensor) -> Iterator[dict[str, Any]]:
    """Yield the contributions in forward order, computed in float64 so that they sum precisely."""
    weighted = model.final_norm_gain.double() * direction
    # Centring the direction once equals centring every component; an RMS norm does not centre.
    centred = weighted - weighted.mean() if model.config.norm_is_centred else weighted
    along = centred / cache["ln_final.hook_scale"][0, -1].double()

    def part(
        name: str, value: Tensor, layer: int | None = None, head: int | None = None
    ) -> dict[str, Any]:
        return {"part": name, "layer": layer, "head": head, "value": float(value)}

    yield part("embed", cache["hook_embed"][0, -1].double() @ along)
    if "hook_pos_embed" in model.sites:
        yield part("pos_embed", cache["hook_pos_embed"][0, -1].double() @ along)
    for layer in range(model.axis_sizes["n_layers"]):
        w_o, b_o = model.head_output(layer)
        z = cache["z", layer][0, -1].double()  # [n_heads d_head]
        gain, into_stream = model.attention_norm_gain(layer), along
        if gain is not None:
            scale = cache[f"blocks.{layer}.ln1_post.hook_scale"][0, -1]
            into_stream = along * gain.double() / scale.double()
        for head, value in enumerate((z * (into_stream @ w_o.double()).view_as(z)).sum(-1)):
            yield part("head", value, layer, head)
        if b_o is not None:
            yield part("attn_bias", b_o.double() @ into_stream, layer)
        yield part("mlp", cache["mlp_out", layer][0, -1].double() @ along, layer)
    if model.final_norm_bias is not None:
        yield part("final_bias", model.final_norm_bias.double() @ direction)
