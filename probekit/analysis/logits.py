"""Logits decomposed by component, and decoded at each site: attribution and logit lens.

Direct logit attribution: the residual stream is the sum of the embeddings, the outputs of all heads
and MLPs, and biases. Centring and unembedding are linear, and the scales of the final norm and of a
norm after attention are held at their values in the forward pass. A logit is therefore the sum of
the components' contributions along one direction of d_model. Indirect effects through later
components are not included. If a network caps its logits, the logit before the cap is decomposed.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; the final norm as
in Wang et al. 2022, "Interpretability in the Wild". Weights are not folded: the biases of attention
and of the final norm are components of their own.

Logit lens: the final norm, with the mean and scale of the residual stream at the site, and the
unembedding are applied at each site. After the last block this gives the network's output.

Source: nostalgebraist 2020, "interpreting GPT: the logit lens". KL to the output as in Belrose et
al. 2023, "Eliciting Latent Predictions from Transformers with the Tuned Lens", here in nats.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from probekit.errors import ConfigError
from probekit.model.network import Network
from probekit.model.passes.inputs import check_tokens
from probekit.model.passes.taps import ActivationCache
from probekit.model.proven.network import ProvenNetwork
from probekit.model.sites.catalogue import layer_of
from probekit.model.sites.sites import SitePattern, Sites
from probekit.model.text.tokenizer import Tokenizer
from probekit.terminal import SILENT, Watcher

# The residual stream from the embedding to the last block.
_FIRST = "blocks.0.hook_resid_pre"
SITES = (_FIRST, "blocks.*.hook_resid_post")
TOP_K = 5
_CHUNK = 64  # positions whose logits are in memory at once
# Sites whose activations an attribution needs; `_POST_SCALES` are needed, too, if norms follow
# attention.
_ATTRIBUTED: tuple[SitePattern, ...] = (
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
        ConfigError: position or token is out of range, both `minus` and `minus_mean` are given, or
            the network is spread over several devices.
        DataError: the text has no token, or more than the context.
    """
    check_tokens(model.config, ids[None])
    model.check_one_device()
    index, d_vocab = position_from_start(position, len(ids)), model.config.d_vocab
    for id in (token, minus):
        if id is not None and not 0 <= id < d_vocab:
            raise ConfigError(f"No token has the id {id}. Allowed: 0 to {d_vocab - 1}.")
    if minus is not None and minus_mean:
        raise ConfigError("Give either `minus` or `minus_mean`, not both.")
    with torch.inference_mode():
        has_norms = model.attention_norm_gain(0) is not None
        sites = (*_ATTRIBUTED, _POST_SCALES) if has_norms else _ATTRIBUTED
        if isinstance(model, ProvenNetwork):  # whose first stream and final norm are measured
            model.check_decomposes()
            sites = (_FIRST, *_ATTRIBUTED[1:3], ("resid_post", -1))
        # Later tokens do not affect this position, so it is the last one of the pass.
        _, cache = model.run_with_cache(ids[None, : index + 1], sites, logits=False)
        logits = model.uncapped_logits(model.final_norm(cache["resid_post", -1][0, -1:]))
        logit = _difference(logits[0], token, minus, minus_mean)
        direction = _difference(model.unembedding, token, minus, minus_mean)
        rows = pd.DataFrame(list(_parts(model, cache, direction)))
    return Attribution(float(logit), rows.astype({"layer": "Int64", "head": "Int64"}))


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


def _difference(values: Tensor, token: int, minus: int | None, minus_mean: bool) -> Tensor:
    """Return the entry of a token in float64, minus that of `minus` or the mean over tokens.

    Without `minus` and `minus_mean`, nothing is subtracted.
    """
    mean = values.mean(0, dtype=torch.float64) if minus_mean else 0.0
    return values[token].double() - (mean if minus is None else values[minus].double())


def _parts(model: Network, cache: ActivationCache, direction: Tensor) -> Iterator[dict[str, Any]]:
    """Yield the contributions in forward order, computed in float64 so that they sum precisely."""
    weighted = model.last_norm.gain.double() * direction
    # Centring the direction once equals centring every component; an RMS norm does not centre.
    centred = weighted - weighted.mean() if model.config.norm_is_centred else weighted
    if isinstance(model, ProvenNetwork):
        embedding, scale = _FIRST, model.last_norm.scale(cache["resid_post", -1][0, -1])
    else:
        embedding, scale = "hook_embed", cache["ln_final.hook_scale"][0, -1]
    along = centred / scale.double()

    def part(
        name: str, value: Tensor, layer: int | None = None, head: int | None = None
    ) -> dict[str, Any]:
        """Return a row of `Attribution.rows`."""
        return {"part": name, "layer": layer, "head": head, "value": float(value)}

    yield part("embed", cache[embedding][0, -1].double() @ along)
    if "hook_pos_embed" in model.sites:
        yield part("pos_embed", cache["hook_pos_embed"][0, -1].double() @ along)
    for layer in range(model.axis_sizes["n_layers"]):
        w_o, b_o = model.head_output(layer)
        z = cache["z", layer][0, -1].double()  # [n_heads d_head]
        gain, into_stream = model.attention_norm_gain(layer), along
        if gain is not None:
            scale = cache[f"blocks.{layer}.ln1_post.hook_scale"][0, -1]
            into_stream = along * gain.double() / scale.double()
        # Of each head: (w_o z) @ into_stream = sum(z * (into_stream @ w_o)).
        for head, value in enumerate((z * (into_stream @ w_o.double()).view_as(z)).sum(-1)):
            yield part("head", value, layer, head)
        if b_o is not None:
            yield part("attn_bias", b_o.double() @ into_stream, layer)
        yield part("mlp", cache["mlp_out", layer][0, -1].double() @ along, layer)
    if model.last_norm.bias is not None:
        yield part("final_bias", model.last_norm.bias.double() @ direction)


def logits_of(model: Network, resid: Tensor) -> Tensor:
    """Return the logits of residuals by final norm and unembedding, shape [... d_vocab]."""
    return model.unembed(model.final_norm(resid))


def lens_sites(patterns: SitePattern | Iterable[SitePattern], sites: Sites) -> tuple[str, ...]:
    """Return the names of the sites that match the patterns, in forward order.

    >>> from probekit import GPT2Config
    >>> lens_sites(SITES, GPT2Config(n_layer=2).sites)
    ('blocks.0.hook_resid_pre', 'blocks.0.hook_resid_post', 'blocks.1.hook_resid_post')

    Raises:
        UnknownNameError: a pattern matches no site.
        ConfigError: the lens does not apply to a site: it is neither the residual stream nor an
            output that is added to it.
    """
    names = sites.expand(patterns)
    for name in names:
        if not sites.describe(name).in_stream:
            raise ConfigError(
                f"The logit lens does not apply to {name}. Allowed: sites of the residual stream "
                "or added to it, such as blocks.*.hook_resid_post, hook_resid_mid or hook_attn_out."
            )
    return names


def logit_lens(
    model: Network,
    ids: Tensor,
    sites: SitePattern | Iterable[SitePattern] = SITES,
    *,
    top_k: int = TOP_K,
    watcher: Watcher = SILENT,
) -> dict[str, Tensor]:
    """Return measures of the next-token prediction at each site, by name.

    The most probable tokens are `top_ids`, with `top_probability`, both of shape
    (n_sites, n_tokens, top_k). The other measures have shape (n_sites, n_tokens): `next_rank` and
    `next_probability` of the actual next token (rank 1 is the most probable; NaN at the last
    position), `entropy` in nats, and `kl`, the divergence KL(output || prediction at the site) in
    nats.

    Args:
        model: the network.
        ids: token ids of one text, shape (n_tokens,).
        sites: names or globs.
        top_k: number of most probable tokens.
        watcher: receives progress.

    >>> from probekit import GPT2
    >>> model = GPT2.from_pretrained("mini")
    >>> measures = logit_lens(model, torch.tensor([5, 6, 7]))
    >>> measures["top_ids"].shape, measures["kl"][-1].tolist()
    (torch.Size([7, 3, 5]), [0.0, 0.0, 0.0])

    Raises:
        UnknownNameError: a pattern matches no site.
        ConfigError: the lens does not apply to a site, `top_k` is out of range, or the network is
            spread over several devices.
        DataError: the text has no token, or more than the context.
    """
    model.check_one_device()
    names = lens_sites(sites, model.sites)
    if not 1 <= top_k <= model.config.d_vocab:
        raise ConfigError(f"top_k is {top_k}. Allowed: 1 to {model.config.d_vocab}.")
    output = f"blocks.{model.config.n_layers - 1}.hook_resid_post"
    with torch.inference_mode():
        _, cache = model.run_with_cache(ids[None], [*names, output], logits=False)
        next_ids = F.pad(ids[1:], (0, 1), value=-1)  # -1: the last token has no next one
        chunks = []
        for start in range(0, len(ids), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            final = logits_of(model, cache[output][0, chunk]).float().log_softmax(-1)
            of_sites = []
            for name in names:
                log_p = logits_of(model, cache[name][0, chunk]).float().log_softmax(-1)
                # `final` and `log_p` are log probabilities of the chunk, (n_tokens, d_vocab).
                top, top_ids = log_p.topk(top_k)
                # For the last token, id 0 replaces -1; `where` then sets its results to NaN.
                next_log_p = log_p.gather(-1, next_ids[chunk].clamp(min=0)[:, None])
                rank = (log_p > next_log_p).sum(-1) + 1
                has_next = next_ids[chunk] >= 0
                of_sites.append(
                    {
                        "top_ids": top_ids,
                        "top_probability": top.exp(),
                        "next_rank": rank.float().where(has_next, math.nan),
                        "next_probability": next_log_p[:, 0].exp().where(has_next, math.nan),
                        "entropy": -(log_p.exp() * log_p).sum(-1),
                        # Rounding errors could make the divergence negative.
                        "kl": (final.exp() * (final - log_p)).sum(-1).clamp(min=0),
                    }
                )
            chunks.append({key: torch.stack([one[key] for one in of_sites]) for key in of_sites[0]})
            watcher.progress("lens", min(chunk.stop, len(ids)), len(ids))
    return {name: torch.cat([part[name] for part in chunks], dim=1).cpu() for name in chunks[0]}


def lens_rows(
    measures: dict[str, Tensor], sites: Sequence[str], ids: Tensor, tokenizer: Tokenizer
) -> pd.DataFrame:
    """Return a table of measures, one row per site and position.

    The most probable tokens are in the columns token_1, probability_1, token_2, ...

    Args:
        measures: the result of `logit_lens`.
        sites: the names of its sites, in the same order.
        ids: the token ids of the text.
        tokenizer: tokenizer of the network.

    >>> from probekit import GPT2
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> ids = torch.from_numpy(tokenizer.encode("The keys", bos=False).ids)
    >>> rows = lens_rows(logit_lens(model, ids), lens_sites(SITES, model.sites), ids, tokenizer)
    >>> rows.loc[0, ["site", "token", "next_token"]].tolist()
    ['blocks.0.hook_resid_pre', 'The', ' keys']
    """
    tokens = tokenizer.strings(ids.tolist())
    n_sites, n_tokens, top_k = measures["top_ids"].shape
    rows = pd.DataFrame({"site": [site for site in sites for _ in tokens]})
    rows["layer"] = rows["site"].map(layer_of).astype("Int64")
    rows["position"], rows["token"] = [*range(n_tokens)] * n_sites, tokens * n_sites
    rows["next_token"] = [*tokens[1:], None] * n_sites
    for name in ("next_rank", "next_probability", "entropy", "kl"):
        rows[name] = measures[name].flatten().double().numpy()
    rows["next_rank"] = rows["next_rank"].astype("Int64")
    for rank in range(top_k):
        top_ids = measures["top_ids"][..., rank].flatten().tolist()
        rows[f"token_{rank + 1}"] = tokenizer.strings(top_ids)
        rows[f"probability_{rank + 1}"] = measures["top_probability"][..., rank].flatten().numpy()
    return rows
