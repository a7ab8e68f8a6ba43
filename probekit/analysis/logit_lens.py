"""Logit lens: next-token predictions decoded from the residual stream at each site.

The final norm, with the mean and scale of the residual stream at the site, and the unembedding are
applied at each site. After the last block this gives the network's output.

Source: nostalgebraist 2020, "interpreting GPT: the logit lens". KL to the output as in Belrose et
al. 2023, "Eliciting Latent Predictions from Transformers with the Tuned Lens", here in nats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from probekit.errors import ConfigError
from probekit.model.network import Network
from probekit.model.sites.catalogue import layer_of
from probekit.model.sites.sites import SitePattern, Sites
from probekit.model.text.tokenizer import Tokenizer
from probekit.watcher import SILENT, Watcher

# The residual stream from the embedding to the last block.
SITES = ("blocks.0.hook_resid_pre", "blocks.*.hook_resid_post")
TOP_K = 5

_CHUNK = 64  # positions whose logits are in memory at once


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
        ConfigError: the lens does not apply to a site, or `top_k` is out of range.
        DataError: the text has no token, or more than the context.
    """
    names = lens_sites(sites, model.sites)
    if not 1 <= top_k <= model.config.d_vocab:
        raise ConfigError(f"top_k is {top_k}. Allowed: 1 to {model.config.d_vocab}.")
    output = f"blocks.{model.config.n_layers - 1}.hook_resid_post"
    with torch.inference_mode():
        _, cache = model.run_with_cache(ids[None], [*names, output], logits=False)
        next_ids = F.pad(ids[1:], (0, 1), value=-1)
        chunks = []
        for start in range(0, len(ids), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            final = _log_probabilities(model, cache[output][0, chunk])
            sites_measures = [
                _measures(
                    _log_probabilities(model, cache[n][0, chunk]), final, next_ids[chunk], top_k
                )
                for n in names
            ]
            chunks.append(
                {key: torch.stack([m[key] for m in sites_measures]) for key in sites_measures[0]}
            )
            watcher.progress("lens", min(chunk.stop, len(ids)), len(ids))
    return {key: torch.cat([part[key] for part in chunks], dim=1).cpu() for key in chunks[0]}


def _log_probabilities(model: Network, resid: Tensor) -> Tensor:
    return logits_of(model, resid).float().log_softmax(-1)


def _measures(log_p: Tensor, final: Tensor, next_ids: Tensor, top_k: int) -> dict[str, Tensor]:
    """Return the measures of one site from log probabilities, shape (n_tokens, d_vocab)."""
    top, top_ids = log_p.topk(top_k)
    next_log_p = log_p.gather(-1, next_ids.clamp(min=0)[:, None])
    rank = (log_p > next_log_p).sum(-1) + 1
    has_next = next_ids >= 0
    return {
        "top_ids": top_ids,
        "top_probability": top.exp(),
        "next_rank": rank.float().where(has_next, math.nan),
        "next_probability": next_log_p[:, 0].exp().where(has_next, math.nan),
        "entropy": -(log_p.exp() * log_p).sum(-1),
        # Rounding could make it negative.
        "kl": (final.exp() * (final - log_p)).sum(-1).clamp(min=0),
    }


def lens_rows(
    measures: dict[str, Tensor], sites: Sequence[str], ids: Tensor, tokenizer: Tokenizer
) -> pd.DataFrame:
    """Return a table of measures, one row per site and position.

    The most probable tokens are in the columns token_1, probability_1, token_2, ...

    >>> from probekit import GPT2
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> ids = torch.from_numpy(tokenizer.encode("The keys", bos=False).ids)
    >>> rows = lens_rows(logit_lens(model, ids), lens_sites(SITES, model.sites), ids, tokenizer)
    >>> rows.loc[0, ["site", "token", "next_token"]].tolist()
    ['blocks.0.hook_resid_pre', 'The', ' keys']
    """
    tokens = tokenizer.strings(ids.tolist())
    n_sites, n_tokens, top_k = measures["top_ids"].shape
    rows = pd.DataFrame(
        {
            "site": [site for site in sites for _ in tokens],
            "layer": pd.array([layer_of(site) for site in sites for _ in tokens], dtype="Int64"),
            "position": [*range(n_tokens)] * n_sites,
            "token": tokens * n_sites,
            "next_token": [*tokens[1:], None] * n_sites,
        }
    )
    for name in ("next_rank", "next_probability", "entropy", "kl"):
        rows[name] = measures[name].flatten().double().numpy()
    rows["next_rank"] = rows["next_rank"].astype("Int64")
    for rank in range(top_k):
        rows[f"token_{rank + 1}"] = tokenizer.strings(
            measures["top_ids"][..., rank].flatten().tolist()
        )
        rows[f"probability_{rank + 1}"] = measures["top_probability"][..., rank].flatten().numpy()
    return rows
