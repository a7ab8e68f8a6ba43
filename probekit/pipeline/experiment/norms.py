"""Norm of the residual stream at the first position, compared with the other positions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from torch import Tensor

from probekit.data.positions import IntArray
from probekit.model.network import Network
from probekit.model.sites.catalogue import describe, layer_of
from probekit.pipeline.experiment.prepare import Prepared
from probekit.results.record import Norms

SAMPLE = 64  # sequences; few suffice, because the ratio is large (about 30 in GPT-2 small)


@torch.inference_mode()
def residual_norms(model: Network, prepared: Prepared) -> list[Norms]:
    """Return the mean norm at position 0 and at all other positions, for each site along d_model.

    Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks".
    """
    sites = [site for site in prepared.sites if describe(site).axes == ("batch", "pos", "d_model")]
    sequences = _sample(prepared)
    if not sites or not sequences:
        return []
    first: Counter[str] = Counter()
    others: Counter[str] = Counter()

    def measure(site: str, value: Tensor) -> Tensor:
        norms = value[0].float().norm(dim=-1)  # [pos]
        first[site] += norms[0].item()
        others[site] += norms[1:].sum().item()
        return value

    for ids in sequences:
        tokens = torch.from_numpy(ids).to(model.device)
        model(tokens[None], tap=measure, sites=sites, logits=False)
    n_others = sum(len(ids) - 1 for ids in sequences)
    return [
        Norms(
            site=site,
            layer=layer_of(site),
            first_position_norm=first[site] / len(sequences),
            other_norm=others[site] / n_others,
        )
        for site in sites
    ]


def _sample(prepared: Prepared) -> list[IntArray]:
    """Return distinct sequences of at least two tokens, evenly spaced over the data."""
    by_bytes = {
        tokens.ids.tobytes(): tokens.ids for tokens in prepared.tokens if len(tokens.ids) > 1
    }
    distinct = list(by_bytes.values())
    indices = np.linspace(0, len(distinct) - 1, min(SAMPLE, len(distinct))).astype(int)
    return [distinct[index] for index in indices]
