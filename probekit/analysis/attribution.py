"""Direct logit attribution: what each part of the network adds to a logit, or to a difference.

The residual stream is a sum: embeddings, what each head and MLP adds, and biases. Centring and
unembedding are linear, and the scale of the final norm is taken as the network has it, so the logit
is the sum of what each part gives along one direction of d_model. What a part does by way of later
parts is not in it.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; the final norm as
in Wang et al. 2022, "Interpretability in the Wild". Nothing is folded: the bias of the final norm,
and those of attention, are parts of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from probekit.errors import ConfigError
from probekit.model.cache import ActivationCache
from probekit.model.inputs import check_tokens
from probekit.model.network import Network

_SITES = (
    "hook_embed",
    "hook_pos_embed",
    "blocks.*.attn.hook_z",
    "blocks.*.hook_mlp_out",
    "ln_final.hook_scale",
)


@dataclass(frozen=True, eq=False)
class Attribution:
    """A logit, or a difference of logits, and the parts that it is the sum of.

    Attributes:
        logit: as the forward pass gives it.
        rows: one a part, with `part` (embed, pos_embed, head, attn_bias, mlp, final_bias), `layer`
            and `head` where it has them, and `value`, in the order of the forward pass.
    """

    logit: float
    rows: pd.DataFrame

    @property
    def remainder(self) -> float:
        """The logit less the sum of the parts: rounding, and nothing else."""
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
    """Return what each part adds to the logit of a token at a position.

    Args:
        model: the network.
        ids: the tokens of one text, shape (n_tokens,).
        token: whose logit.
        minus: the token whose logit is taken off it.
        minus_mean: whether the mean logit of all tokens is taken off it. A logit by itself says
            little: what is added to all tokens alike changes no probability.
        position: in the text; negative numbers count from its end.

    >>> model = GPT2.from_pretrained("mini")
    >>> found = logit_attribution(model, torch.tensor([5, 6, 7]), 8, minus=9)
    >>> len(found.rows), abs(found.remainder) < 1e-4
    (39, True)

    Raises:
        ConfigError: there is no such position or token, or both a token and the mean are taken off.
        DataError: there is no token in the text, or more than the context.
    """
    check_tokens(model.config, ids[None])
    place = place_of(position, len(ids))
    _check_tokens(model, token, minus, minus_mean)
    with torch.inference_mode():
        # What stands behind the position has no say in it.
        logits, cache = model.run_with_cache(ids[None, : place + 1], _SITES)
        assert logits is not None
        logit = _difference(logits[0, -1], token, minus, minus_mean)
        direction = _difference(model.unembedding, token, minus, minus_mean)
        parts = list(_parts(model, cache, direction))
    return Attribution(
        float(logit), pd.DataFrame(parts).astype({"layer": "Int64", "head": "Int64"})
    )


def place_of(position: int, n_tokens: int) -> int:
    """Return a position counted from the beginning.

    >>> place_of(-1, 5)
    4

    Raises:
        ConfigError: the text has no such position.
    """
    if not -n_tokens <= position < n_tokens:
        raise ConfigError(
            f"There is no position {position} in a text of {n_tokens} tokens. Allowed: 0 to "
            f"{n_tokens - 1}, or {-n_tokens} to -1 from its end."
        )
    return position % n_tokens


def _check_tokens(model: Network, token: int, minus: int | None, minus_mean: bool) -> None:
    for one in (token, minus):
        if one is not None and not 0 <= one < model.config.vocab_size:
            raise ConfigError(f"No token {one}: the ids are 0 to {model.config.vocab_size - 1}.")
    if minus is not None and minus_mean:
        raise ConfigError("A token or the mean of all can be taken off, not both: drop one.")


def _difference(of_tokens: Tensor, token: int, minus: int | None, minus_mean: bool) -> Tensor:
    """Return the entry of a token, less what is taken off it, in float64."""
    less = of_tokens.mean(0, dtype=torch.float64) if minus_mean else 0.0
    return of_tokens[token].double() - (less if minus is None else of_tokens[minus].double())


def _parts(model: Network, cache: ActivationCache, direction: Tensor) -> Iterator[dict[str, Any]]:
    """Yield the parts in the order of the forward pass, in float64, so that their sum is exact."""
    weighted = model.final_norm_gain.double() * direction
    # The mean is taken off the direction once instead of off every part.
    along = (weighted - weighted.mean()) / cache["ln_final.hook_scale"][0, -1].double()

    def part(
        name: str, value: Tensor, layer: int | None = None, head: int | None = None
    ) -> dict[str, Any]:
        return {"part": name, "layer": layer, "head": head, "value": float(value)}

    yield part("embed", cache["hook_embed"][0, -1].double() @ along)
    yield part("pos_embed", cache["hook_pos_embed"][0, -1].double() @ along)
    for layer in range(model.axis_sizes["n_layers"]):
        w_o, b_o = model.head_output(layer)
        z = cache["z", layer][0, -1].double()  # [n_heads d_head]
        for head, value in enumerate((z * (along @ w_o.double()).view_as(z)).sum(-1)):
            yield part("head", value, layer, head)
        if b_o is not None:
            yield part("attn_bias", b_o.double() @ along, layer)
        yield part("mlp", cache["mlp_out", layer][0, -1].double() @ along, layer)
    if model.final_norm_bias is not None:
        yield part("final_bias", model.final_norm_bias.double() @ direction)
