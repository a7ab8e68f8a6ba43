"""Ablation: replace activations by a mean, by zero, or by those of another text.

Source: Wang et al. (2022), Interpretability in the wild (mean ablation); Chan et al. (2022), Causal
scrubbing (resampling).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from probekit.amounts import counted
from probekit.errors import DataError
from probekit.interventions.base_pass import BasePass, sites_to_keep
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.names import Replacement
from probekit.interventions.patching.patch_effects import PatchedValues
from probekit.interventions.patching.patching import PAIRS_AT_ONCE, Positions, replaced_values
from probekit.interventions.stream import linear_entry
from probekit.model.network import Network
from probekit.model.passes.inputs import TokenBatch
from probekit.model.sites.sites import SiteSelection


def ablated_values(
    model: Network,
    batch: TokenBatch,
    measures: Sequence[AnswerMeasure],
    selected: Sequence[SiteSelection],
    replacement: Replacement,
    *,
    at: Positions = "all",
    measured: Tensor | None = None,
    averaged: tuple[TokenBatch, Tensor | None] | None = None,
    seed: int = 0,
) -> list[PatchedValues]:
    """Return each measure of every text after ablation of each site, head or neuron.

    Args:
        model: the network.
        batch: the texts.
        measures: measures of the texts, which are scored from the same passes.
        selected: sites, heads or neurons; for `mean` parts of the residual stream.
        replacement: `mean`, `zero`, or `resample`: the activations of another text, at the same
            position from the left, or at its own chosen position.
        at: positions that are ablated; see `patch`.
        measured: position of each text that is measured, [batch]; None means the last token.
        averaged: for `mean`, the averaged texts, such as the training rows, and the position of
            each, [n_texts], or None for all; by default `batch` at its ablated positions.
        seed: random seed of `resample`.

    Raises:
        ConfigError: a mean of a site that is not a part of the residual stream.
        DataError: no other text has as many tokens, so that none can replace it at all positions.

    >>> from probekit import GPT2, Tokenizer
    >>> from probekit.interventions.patching.pairs import single_tokens
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> batch = tokenizer.batch(["The keys"], bos=False, side="right")
    >>> answer, wrong = single_tokens(tokenizer, [" are", " is"])[:, None]
    >>> site = SiteSelection("blocks.3.hook_resid_post")
    >>> [found] = ablated_values(model, batch, [AnswerMeasure(answer, wrong)], [site], "zero")
    >>> len(found.patched)
    1
    """
    if replacement == "mean":
        for selection in selected:
            linear_entry(model, selection)
        texts, place = averaged or (batch, at if isinstance(at, Tensor) else None)
        means = _means(model, texts, place, sites_to_keep(selected))
        return replaced_values(
            model, batch, measures, selected, _Constant(means), at=at, measured=measured
        )
    if replacement == "zero":
        return replaced_values(
            model, batch, measures, selected, _Constant({}), at=at, measured=measured
        )
    source_of = _Donors(model, batch, at, _donors(batch, at, seed), sites_to_keep(selected))
    return replaced_values(model, batch, measures, selected, source_of, at=at, measured=measured)


@dataclass(frozen=True, eq=False)
class _Constant:
    """A pass with the same activations at every position: means by site, or zeros."""

    means: dict[str, Tensor]

    def __call__(self, _: Tensor, base: BasePass) -> BasePass:
        values = {
            site: self.means[site].to(value).expand_as(value)
            if site in self.means
            else torch.zeros_like(value)
            for site, value in base.values.items()
        }
        return replace(base, values=values)


@dataclass(frozen=True, eq=False)
class _Donors:
    """The pass of another text for each text, moved to the position that is replaced."""

    model: Network
    batch: TokenBatch
    at: Positions
    donors: Tensor
    sites: Sequence[str]

    def __call__(self, rows: Tensor, base: BasePass) -> BasePass:
        own = self.donors[rows]
        other = BasePass.keep(self.model, self.batch[own], None, self.sites)
        if not isinstance(self.at, Tensor):
            return replace(base, values=other.values)
        everything = torch.arange(len(rows), device=base.final.device)
        to, of = (self.at[which].reshape(-1).to(everything.device) for which in (rows, own))
        values = {}
        for site in self.sites:
            value = base.values[site].clone()
            value[everything, to] = other.values[site][everything, of]
            values[site] = value
        return replace(base, values=values)


def _donors(batch: TokenBatch, at: Positions, seed: int) -> Tensor:
    """Return a random other row for each row, [batch]; without `at` one of as many tokens."""
    generator, lengths = np.random.default_rng(seed), batch.mask.sum(1).numpy()
    if isinstance(at, Tensor):
        lengths = np.zeros_like(lengths)
    donors = np.full(len(lengths), -1)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        if len(rows) > 1:
            shuffled = generator.permutation(rows)
            donors[shuffled] = np.roll(shuffled, 1)  # nobody receives its own activations
    alone = np.flatnonzero(donors < 0)
    if len(alone):
        raise DataError(
            f"{counted(len(alone), 'text')} of {len(lengths)} have no other text with as many "
            f"tokens, such as row {alone[0]} with {lengths[alone[0]]} tokens, so that no text can "
            "replace all their activations. Ablate with `mean` or `zero`, or at the probed token."
        )
    return torch.from_numpy(donors)


def _means(
    model: Network, texts: TokenBatch, at: Tensor | None, sites: Sequence[str]
) -> dict[str, Tensor]:
    """Return the mean activation of each site, over the given position of each text or over all."""
    totals: dict[str, Tensor] = {}
    n = 0
    for rows in torch.split(torch.arange(len(texts)), PAIRS_AT_ONCE):
        own = BasePass.keep(model, texts[rows], None, sites)
        mask = own.batch.mask
        if at is not None:
            mask = torch.zeros_like(mask)
            mask[torch.arange(len(rows)), at[rows].reshape(-1)] = True
        n += int(mask.sum())
        for site in sites:
            total = own.values[site][mask].double().sum(0)
            totals[site] = totals.get(site, torch.zeros_like(total)) + total
    return {site: total / n for site, total in totals.items()}
