"""Probes fitted again after erasure, at every later site: where does the information come back?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probekit.errors import ConfigError
from probekit.interventions.compose import EditAt, compose
from probekit.interventions.erasure import Eraser
from probekit.interventions.patching.recovery import interval_of, resamples_of
from probekit.model.network import Network
from probekit.model.passes.cache import remember
from probekit.model.passes.inputs import TokenBatch
from probekit.model.passes.taps import part_features
from probekit.model.sites.sites import SitePattern, SiteSelection
from probekit.probes.score.intervals import Interval
from probekit.probes.score.metrics import ClassPredictions, Resamples, balanced_accuracy
from probekit.probes.solve.design import Codes, Floats
from probekit.probes.solve.solver import Problem, Solver

TEXTS_AT_ONCE = 64


@dataclass(frozen=True)
class DownstreamScore:
    """Balanced accuracy of probes at one site, without and with erasure at an earlier one.

    Attributes:
        site: the site, with its head or neuron.
        before: score without erasure, on test rows, with its interval over groups.
        after: score of a probe fitted again on activations after the erasure.
        chance: 1 / number of classes.
        n: number of test rows.
        groups: number of their groups.
    """

    site: str
    before: Interval
    after: Interval
    chance: float
    n: int
    groups: int


def downstream_scores(
    model: Network,
    batch: TokenBatch,
    codes: Codes,
    groups: NDArray[np.generic],
    train: Codes,
    erased_at: tuple[SiteSelection, Eraser],
    sites: SitePattern | Iterable[SitePattern],
    at: Tensor,
    *,
    C: float = 1.0,
) -> list[DownstreamScore]:
    """Return the scores of probes at sites at and after an erasure.

    Args:
        model: the network.
        batch: the texts.
        codes: label codes, (n_rows,).
        groups: groups, (n_rows,).
        train: training rows; all others are test rows.
        erased_at: the site and the eraser, fitted on training rows.
        sites: sites of the probes, at or after the erased one.
        at: position of each text that is erased and read, [n_rows].
        C: inverse regularisation strength of the probes.

    Raises:
        ConfigError: a site is before the erased one.
    """
    selected = model.sites.select(sites)
    _check_order(model, erased_at[0], selected)
    test = np.setdiff1d(np.arange(len(codes)), train)
    resamples = resamples_of(groups[test])
    found = []
    plain = _features(model, batch, selected, at, [])
    erased = _features(model, batch, selected, at, [erased_at])
    chance = 1 / len(np.unique(codes))
    for selection in selected:
        before, after = (
            _score(X[selection], codes, train, test, resamples, C) for X in (plain, erased)
        )
        text, n_groups = selection.text, resamples.n_groups
        found.append(DownstreamScore(text, before, after, chance, len(test), n_groups))
    return found


def _score(
    X: Floats, codes: Codes, train: Codes, test: Codes, resamples: Resamples, C: float
) -> Interval:
    """Return the balanced accuracy on test rows of a probe fitted on training rows."""
    (fit,) = Solver(X[train], [np.ones(len(train))]).solve([Problem(codes[train], C=C)])
    predictions = ClassPredictions(codes[test], fit.predict(X[test]), int(codes.max()) + 1)
    return interval_of(balanced_accuracy(predictions, resamples), resamples)


def _check_order(model: Network, first: SiteSelection, selected: Sequence[SiteSelection]) -> None:
    order = {site: number for number, site in enumerate(model.sites)}
    for one in selected:
        if order[one.site] < order[first.site]:
            raise ConfigError(
                f"{one.text} is before {first.text}, so the erasure does not reach it. Choose "
                "sites at or after the erased one."
            )


def _features(
    model: Network,
    batch: TokenBatch,
    selected: Sequence[SiteSelection],
    at: Tensor,
    erasures: Sequence[tuple[SiteSelection, Eraser]],
) -> dict[SiteSelection, Floats]:
    """Return the activations (n_rows, n_features) of each selection at the positions."""
    parts: dict[SiteSelection, list[Floats]] = {one: [] for one in selected}
    names = list(dict.fromkeys(one.site for one in selected))
    for rows in torch.split(torch.arange(len(batch)), TEXTS_AT_ONCE):
        values: dict[str, Tensor] = {}
        place = at[rows].to(model.device)
        edits: list[EditAt] = [(where, eraser.tap(place)) for where, eraser in erasures]
        tap = compose(model, [*edits, *((name, remember(values)) for name in names)])
        with torch.no_grad():
            model(batch[rows], tap=tap, sites=tap.sites, logits=False)
        for one in selected:
            value = part_features(model.sites, values[one.site], one)
            own = value[torch.arange(len(rows), device=value.device), place]
            parts[one].append(own.double().cpu().numpy())
    return {one: np.concatenate(blocks) for one, blocks in parts.items()}
