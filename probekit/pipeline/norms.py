"""How much larger the first position of the residual stream is than the others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from probekit.model.gpt2 import GPT2
from probekit.model.sites import describe, layer_of
from probekit.model.tokenizer import pad
from probekit.pipeline.prepare import Prepared

SAMPLE = 64  # sequences: the ratio is about 30 in GPT-2 small, so few suffice


@torch.inference_mode()
def residual_norms(model: GPT2, prepared: Prepared) -> list[dict[str, Any]]:
    """Return the mean norm at position 0 and at the others, for each site along d_model.

    Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks".
    """
    sites = [site for site in prepared.sites if describe(site).axes == ("batch", "pos", "d_model")]
    sequences = [tokens.ids for tokens in prepared.tokens if len(tokens.ids) > 1][:SAMPLE]
    if not sites or not sequences:
        return []
    ids, mask = pad(sequences, "right")
    device = model.wte.weight.device
    found: list[dict[str, Any]] = []

    def measure(site: str, value: Tensor) -> Tensor:
        norms = value.float().norm(dim=-1).cpu()  # [batch pos]
        found.append(
            {
                "site": site,
                "layer": layer_of(site),
                "first_position_norm": norms[:, 0].mean().item(),
                "other_norm": norms[:, 1:][mask[:, 1:]].mean().item(),
            }
        )
        return value

    model(ids.to(device), mask.to(device), measure, sites, logits=False)
    return found
