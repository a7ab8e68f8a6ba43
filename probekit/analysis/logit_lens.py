"""The logit lens: what the network would say next if it ended at a layer.

The final norm is applied anew to the residual stream at each site, with the mean and the scale that
it has there, and the unembedding makes logits of it. At the last block these are the network's own.

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
from probekit.model.sites import SitePattern, describe, expand, layer_of
from probekit.model.text.tokenizer import Tokenizer
from probekit.watcher import SILENT, Watcher

# The residual stream from the embedding to the last block.
SITES = ("blocks.0.hook_resid_pre", "blocks.*.hook_resid_post")
TOP_K = 5

_CHUNK = 64  # positions whose logits are held at once


def logits_of(model: Network, resid: Tensor) -> Tensor:
    """Return the logits that final norm and unembedding make of residuals, shape [... d_vocab]."""
    return F.linear(model.final_norm(resid), model.unembedding)


def lens_sites(patterns: SitePattern | Iterable[SitePattern], n_layers: int) -> tuple[str, ...]:
    """Return the names of the sites that a lens can read, in the order of the forward pass.

    >>> lens_sites(SITES, 2)
    ('blocks.0.hook_resid_pre', 'blocks.0.hook_resid_post', 'blocks.1.hook_resid_post')

    Raises:
        UnknownNameError: a pattern stands for no site.
        ConfigError: a site is not along d_model, or is normalized already.
    """
    names = expand(patterns, n_layers)
    for name in names:
        if not describe(name).in_stream:
            raise ConfigError(
                f"The lens cannot read {name}: it reads what stands in the residual stream or is "
                "added to it, such as blocks.*.hook_resid_post, hook_resid_mid or hook_attn_out."
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
    """Return what each site says of the next token, by the name of the measure.

    Of shape (n_sites, n_tokens, top_k): `top_ids`, the likeliest tokens, and `top_probability`.
    Of shape (n_sites, n_tokens): `next_rank` and `next_probability` of the token that follows in
    the text (rank 1 is the likeliest; NaN at the last position), `entropy` in nats, and `kl`, the
    divergence of what is said here from the network's output in nats, KL(output | here).

    Args:
        model: the network.
        ids: the tokens of one text, shape (n_tokens,).
        sites: names or globs, in any order.
        top_k: how many tokens are named.
        watcher: hears how far it is.

    >>> model = GPT2.from_pretrained("mini")
    >>> found = logit_lens(model, torch.tensor([5, 6, 7]))
    >>> found["top_ids"].shape, found["kl"][-1].tolist()
    (torch.Size([7, 3, 5]), [0.0, 0.0, 0.0])

    Raises:
        UnknownNameError: a pattern stands for no site.
        ConfigError: a site cannot be read, or top_k is no number of tokens.
        DataError: there is no token, or more than the context.
    """
    names = lens_sites(sites, model.config.n_layer)
    if not 1 <= top_k <= model.config.vocab_size:
        raise ConfigError(f"top_k is {top_k}; allowed: 1 to {model.config.vocab_size}.")
    output = f"blocks.{model.config.n_layer - 1}.hook_resid_post"
    with torch.inference_mode():
        _, cache = model.run_with_cache(ids[None], [*names, output], logits=False)
        following = F.pad(ids[1:], (0, 1), value=-1)
        chunks = []
        for start in range(0, len(ids), _CHUNK):
            here = slice(start, start + _CHUNK)
            final = _log_probabilities(model, cache[output][0, here])
            read = [
                _measures(
                    _log_probabilities(model, cache[n][0, here]), final, following[here], top_k
                )
                for n in names
            ]
            chunks.append({key: torch.stack([one[key] for one in read]) for key in read[0]})
            watcher.progress("lens", min(here.stop, len(ids)), len(ids))
    return {key: torch.cat([chunk[key] for chunk in chunks], dim=1).cpu() for key in chunks[0]}


def _log_probabilities(model: Network, resid: Tensor) -> Tensor:
    return logits_of(model, resid).float().log_softmax(-1)


def _measures(here: Tensor, final: Tensor, following: Tensor, top_k: int) -> dict[str, Tensor]:
    """Return the measures of one site from log probabilities of shape (n_tokens, d_vocab)."""
    top, top_ids = here.topk(top_k)
    there = here.gather(-1, following.clamp(min=0)[:, None])
    rank = (here > there).sum(-1) + 1
    has_next = following >= 0
    return {
        "top_ids": top_ids,
        "top_probability": top.exp(),
        "next_rank": rank.float().where(has_next, math.nan),
        "next_probability": there[:, 0].exp().where(has_next, math.nan),
        "entropy": -(here.exp() * here).sum(-1),
        # Rounding alone could bring it below 0.
        "kl": (final.exp() * (final - here)).sum(-1).clamp(min=0),
    }


def lens_rows(
    found: dict[str, Tensor], sites: Sequence[str], ids: Tensor, tokenizer: Tokenizer
) -> pd.DataFrame:
    """Return one row a site and position, with the likeliest tokens as token_1, probability_1, ...

    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> ids = torch.from_numpy(tokenizer.encode("The keys", bos=False).ids)
    >>> rows = lens_rows(logit_lens(model, ids), lens_sites(SITES, 6), ids, tokenizer)
    >>> rows.loc[0, ["site", "token", "next_token"]].tolist()
    ['blocks.0.hook_resid_pre', 'The', ' keys']
    """
    tokens = tokenizer.strings(ids.tolist())
    n_sites, n_tokens, top_k = found["top_ids"].shape
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
        rows[name] = found[name].flatten().double().numpy()
    rows["next_rank"] = rows["next_rank"].astype("Int64")
    for rank in range(top_k):
        rows[f"token_{rank + 1}"] = tokenizer.strings(
            found["top_ids"][..., rank].flatten().tolist()
        )
        rows[f"probability_{rank + 1}"] = found["top_probability"][..., rank].flatten().numpy()
    return rows
