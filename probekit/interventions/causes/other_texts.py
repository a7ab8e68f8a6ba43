"""The loss on other texts while a vector is added at a site."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from probekit.interventions.compose import run_edited
from probekit.interventions.edits import add
from probekit.interventions.patching.recovery import interval_of, resamples_of
from probekit.model.network import Network
from probekit.model.passes.inputs import NOT_COUNTED, TokenBatch, next_tokens
from probekit.model.sites.sites import SiteSelection
from probekit.probes.score.intervals import Interval
from probekit.probes.score.metrics import mean_of_rows
from probekit.probes.solve.design import Floats

TEXTS_AT_ONCE = 16


def loss_under_steering(
    model: Network, texts: TokenBatch, selection: SiteSelection, vector: Floats
) -> Interval:
    """Return the change of the loss in nats per token, with its interval over texts.

    Args:
        model: the network.
        texts: texts of at least two tokens.
        selection: site, head or neuron that the vector is added to at all positions.
        vector: shape (n_features,).

    >>> from probekit import GPT2, Tokenizer
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> texts = tokenizer.batch(["The keys to the", "A child"], bos=False, side="right")
    >>> site = SiteSelection("blocks.2.hook_resid_post")
    >>> loss_under_steering(model, texts, site, np.zeros(256)).value
    0.0
    """
    changes: list[Tensor] = []
    for rows in torch.split(torch.arange(len(texts)), TEXTS_AT_ONCE):
        batch = texts[rows].to(model.device)
        edit = add(torch.from_numpy(vector))
        with torch.no_grad():
            steered = run_edited(model, batch, [(selection, edit)])
            plain = model(batch)
        targets = next_tokens(batch.ids, batch.mask)
        counted = targets != NOT_COUNTED
        ids = targets.clamp(min=0)[..., None]
        difference = [
            -logits.double().log_softmax(-1).gather(-1, ids)[..., 0] for logits in (steered, plain)
        ]
        change = torch.where(counted, difference[0] - difference[1], 0.0)
        changes.append(torch.stack([change.sum(1), counted.sum(1).double()], 1))
    sums, n_tokens = torch.cat(changes).cpu().numpy().T
    resamples = resamples_of(np.arange(len(sums)))
    total = mean_of_rows(n_tokens, resamples)
    return interval_of(mean_of_rows(sums, resamples) / total, resamples)
