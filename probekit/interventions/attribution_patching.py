"""Attribution patching: a linear estimate of every patch from one backward pass.

The estimate of a patch is the gradient of the measure, times source minus base. It ranks grids of
sites, positions and heads; `patch_top` verifies the largest by patching them, because the estimate
is poor where the network is far from linear.

Source: Nanda (2023), Attribution patching; Kramár et al. (2024), AtP*; for `steps` above 1, Hanna
et al. (2024), Have faith in faithfulness (gradients averaged between source and base embeddings).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from probekit.errors import ConfigError
from probekit.interventions import edits
from probekit.interventions.edits import compose
from probekit.interventions.effects import Patch, PatchEffect, effects_of
from probekit.interventions.measures import AnswerMeasure, check_pairs
from probekit.interventions.patching import PAIRS_AT_ONCE, Positions, patch_grid, patched_values
from probekit.lazy_rows import Floats
from probekit.model.network import Network
from probekit.model.passes.inputs import TokenBatch
from probekit.model.passes.taps import part_features, remember
from probekit.model.sites.sites import SitePattern

_WITH_GRADIENT = ("logit_difference", "probability", "loss")


@dataclass(frozen=True)
class AttributedPatch:
    """A patch of a grid with its estimated and, if it was among the largest, verified effect.

    Attributes:
        patch: the site, head or neuron, and the position.
        estimate: estimated mean effect.
        verified: effect by patching; None if it was not verified. Its `p_best` is adjusted for the
            whole grid (Bonferroni), because the estimates use the same pairs.
    """

    patch: Patch
    estimate: float
    verified: PatchEffect | None = None


def estimated_effects(
    model: Network,
    clean: TokenBatch,
    corrupt: TokenBatch,
    measure: AnswerMeasure,
    sites: SitePattern | Iterable[SitePattern],
    *,
    at: Positions = "all",
    measured: Tensor | None = None,
    steps: int = 1,
) -> dict[Patch, Floats]:
    """Return the estimated effect of each patch on each pair, (n_pairs,); NaN without its position.

    Args:
        model: the network.
        clean: the base texts.
        corrupt: their counterfactuals, with equal numbers of tokens.
        measure: a measure with a gradient: logit_difference, probability or loss.
        sites: names, globs, shorthands, heads or neurons.
        at: `all`, `each`, or a position of each text; see `patch`.
        measured: position of each text whose prediction is measured; None means the last token.
        steps: number of points between the embeddings of base and source at which gradients are
            averaged; 1 uses the gradient at the base.

    Raises:
        ConfigError: the measure has no gradient, or the network is spread over several devices.
        DataError: pairs of unequal numbers of tokens, or of equal texts; see `check_pairs`.
        UnknownNameError: a pattern matches no site.

    >>> from probekit import GPT2, Tokenizer
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> clean = tokenizer.batch(["The key"], bos=False, side="left")
    >>> corrupt = tokenizer.batch(["The keys"], bos=False, side="left")
    >>> measure = AnswerMeasure(torch.tensor([8]), torch.tensor([9]))
    >>> len(estimated_effects(model, clean, corrupt, measure, "blocks.*.attn.hook_z[head=*]"))
    24
    """
    model.check_one_device()
    check_pairs(clean, corrupt)
    if measure.name not in _WITH_GRADIENT:
        raise ConfigError(
            f"{measure.name} has no gradient at the base. Attribution patching requires one of "
            f"{', '.join(_WITH_GRADIENT)}."
        )
    selected = model.sites.select(sites)
    names = list(dict.fromkeys(one.site for one in selected))
    last = f"blocks.{model.axis_sizes['n_layers'] - 1}.hook_resid_post"
    estimates: dict[Patch, Floats] = {}
    if measured is None:  # the largest column that has a token
        measured = (clean.mask * torch.arange(clean.mask.shape[1])).argmax(1)
    for rows in torch.split(torch.arange(len(clean)), PAIRS_AT_ONCE):
        measured_at = measured[rows].to(model.device)
        clean_batch, corrupt_batch = clean[rows].to(model.device), corrupt[rows].to(model.device)
        numbers = torch.arange(len(rows), device=model.device)
        # The estimate at each position, from the gradients at points between base and source.
        with torch.no_grad():
            base, source = (
                model.run_with_cache(batch, ["hook_embed", *names], logits=False)[1]
                for batch in (clean_batch, corrupt_batch)
            )
        total = {site: torch.zeros_like(base[site]) for site in names}
        for step in range(steps):
            # Several points are the midpoints of equal steps from base (0) to source (1).
            share = (step + 0.5) / steps if steps > 1 else 0.0
            embed = base["hook_embed"] + share * (source["hook_embed"] - base["hook_embed"])
            values: dict[str, Tensor] = {}
            # Taps that store the activations of each site in `values`, with their gradients.
            kept = [(site, remember(values, grad=True)) for site in dict.fromkeys([*names, last])]
            tap = compose(model, [("hook_embed", edits.replace(embed)), *kept])
            with torch.enable_grad():
                model(clean_batch, tap=tap, sites=tap.sites, logits=False)
                final = values[last][numbers, measured_at]
                scores = measure[rows].score(model, final, numbers, final.detach())
                tensors = [values[site] for site in names]
                gradients = torch.autograd.grad(scores.sum(), tensors, allow_unused=True)
            for site, gradient in zip(names, gradients, strict=True):
                if gradient is not None:  # the prediction depends on the site
                    total[site] += gradient.detach() / steps
        change = {site: total[site] * (source[site] - base[site]) for site in names}
        mask, at_rows = clean_batch.mask, (at[rows] if isinstance(at, Tensor) else at)
        for selection in selected:
            # Attention scores that are masked are infinite in both passes: their change is NaN.
            parts = part_features(model.sites, change[selection.site].nan_to_num(), selection)
            sums = (parts.sum(-1) * mask).double().cpu()
            for patch, texts, columns in patch_grid([selection], at_rows, mask):
                pairs = texts.cpu()  # those that have the position
                of_pairs = sums.sum(1)[pairs] if columns is None else sums[pairs, columns.cpu()]
                of_patch = estimates.setdefault(patch, np.full(len(clean), np.nan))
                of_patch[rows[pairs].numpy()] = of_pairs.numpy()
    return estimates


def patch_top(
    model: Network,
    clean: TokenBatch,
    corrupt: TokenBatch,
    measure: AnswerMeasure,
    estimates: Mapping[Patch, Floats],
    *,
    top: int = 20,
    at: Positions = "all",
    measured: Tensor | None = None,
    groups: ArrayLike | None = None,
) -> list[AttributedPatch]:
    """Return all estimated patches, the largest with their verified effects.

    Args:
        model: the network.
        clean: the base texts.
        corrupt: their counterfactuals, with equal numbers of tokens.
        measure: the measure of the estimates.
        estimates: result of `estimated_effects` for these pairs.
        top: number of patches with the largest absolute mean estimates that are verified.
        at: positions of the estimates.
        measured: position of each text whose prediction is measured; None means the last token.
        groups: group of each pair; None means that pairs are independent.
    """
    means = {patch: float(np.nanmean(values)) for patch, values in estimates.items()}
    largest = sorted(means, key=lambda patch: -abs(means[patch]))[:top]
    selected = list(dict.fromkeys(patch.selection for patch in means))
    [values] = patched_values(
        model, clean, corrupt, [measure], selected, at=at, measured=measured, only=largest
    )
    names = np.arange(len(clean)) if groups is None else np.asarray(groups)
    rows = effects_of(values, measure, names)
    verified = {
        patch: replace(row, p_best=float(np.minimum(1.0, row.p * len(means))))  # NaN stays NaN
        for patch, row in zip(values.patched, rows, strict=True)
    }
    return [AttributedPatch(patch, mean, verified.get(patch)) for patch, mean in means.items()]
