"""Effects of patches over all pairs: means, recovery, intervals and p-values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.patching.bootstrap import patch_p_values
from probekit.interventions.patching.recovery import ratio_of_sums, resamples_of, skewed_interval
from probekit.model.sites.catalogue import layer_of
from probekit.model.sites.sites import SiteSelection
from probekit.probes.score.differences import paired_differences
from probekit.probes.score.metrics import Resamples, mean_of_rows
from probekit.probes.solve.design import Floats


@dataclass(frozen=True)
class PatchEffect:
    """Effect of patching one site, head or neuron at some position, over all pairs.

    Attributes:
        site: the site, with its head or neuron.
        layer: block of the site; None outside the blocks.
        head: head of the site; None for the whole site.
        position: index of the position, counted from the left without padding; `all`; or `chosen`
            for a position of each text.
        base: mean measure of the clean texts.
        source: mean measure of the counterfactuals, for the answers of the clean texts.
        patched: mean measure of the clean texts with the patch.
        effect: `patched` minus `base`, with the limits of its interval `effect_low` and
            `effect_high`.
        recovery: share of the difference between source and base, a ratio of sums, with its limits
            `low` and `high`; NaN if 0 is in the interval of the difference.
        interchange: share of the pairs that prefer the wrong answer after the patch; NaN without a
            wrong answer or for another measure.
        p: p-value of no mean effect, the larger one of random signs and of a bootstrap of whole
            groups; NaN for less than 6 groups.
        p_best: the same, adjusted for all sites, heads and positions of the call.
        n: number of pairs that have this position.
        groups: number of groups of these pairs.
        measure: name of the measure.
    """

    site: str
    layer: int | None
    head: int | None
    position: int | str
    base: float
    source: float
    patched: float
    effect: float
    effect_low: float
    effect_high: float
    recovery: float
    low: float
    high: float
    interchange: float
    p: float
    p_best: float
    n: int
    groups: int
    measure: str


@dataclass(frozen=True)
class Patch:
    """A site, head or neuron, and the position that is patched.

    Attributes:
        selection: the site, head or neuron.
        position: index counted from the left without padding, `all`, or `chosen`.
    """

    selection: SiteSelection
    position: int | str


@dataclass(frozen=True, eq=False)
class PatchedValues:
    """Measures of all pairs, before statistics.

    Attributes:
        base: measure of the clean texts, (n_pairs,).
        source: measure of the counterfactuals, (n_pairs,).
        patched: measure of each patch, (n_pairs,), NaN for pairs without its position.
    """

    base: Floats
    source: Floats
    patched: dict[Patch, Floats]


def effects_of(
    values: PatchedValues, measure: AnswerMeasure, groups: NDArray[np.generic]
) -> list[PatchEffect]:
    """Return the rows of `patch` from the measures of all pairs; `groups` (n_pairs,)."""
    resamples = resamples_of(groups)
    rows = [_effect(key, values, measure, groups) for key in values.patched]
    if resamples.n_groups < 2:
        return rows
    changes = [own - values.base for own in values.patched.values()]
    # A pair without the position has no effect there.
    means = [mean_of_rows(np.where(np.isnan(own), 0.0, own), resamples) for own in changes]
    tests = paired_differences([(own, np.zeros_like(own)) for own in means], resamples)
    p = patch_p_values(tests, np.stack([_deviations(own, resamples) for own in changes]))
    of_patch = zip(rows, p.single.tolist(), p.maximum.tolist(), strict=True)
    return [replace(row, p=single, p_best=best) for row, single, best in of_patch]


def _deviations(changes: Floats, resamples: Resamples) -> Floats:
    """Return the share (n_units,) of each unit in the mean of changes (n_pairs,), minus its mean.

    A pair without the position, NaN, has the share 0.
    """
    deviations = (changes - np.nanmean(changes)) / len(changes)
    deviations[np.isnan(changes)] = 0.0
    by_group = np.bincount(resamples.group_of_row, deviations, resamples.n_groups)
    return by_group @ (1.0 - resamples.counts[:, 1:])


def _effect(
    key: Patch, values: PatchedValues, measure: AnswerMeasure, groups: NDArray[np.generic]
) -> PatchEffect:
    """Return the row of one patch, without p-values."""
    known = ~np.isnan(values.patched[key])
    patched, base, source = (x[known] for x in (values.patched[key], values.base, values.source))
    resamples = resamples_of(groups[known])
    effect = skewed_interval(mean_of_rows(patched - base, resamples), resamples)
    recovery = ratio_of_sums(patched - base, source - base, resamples)
    return PatchEffect(
        site=key.selection.text,
        layer=layer_of(key.selection.site),
        head=key.selection.head,
        position=key.position,
        base=float(base.mean()),
        source=float(source.mean()),
        patched=float(patched.mean()),
        effect=effect.value,
        effect_low=effect.low,
        effect_high=effect.high,
        recovery=recovery.value,
        low=recovery.low,
        high=recovery.high,
        interchange=float((patched < 0).mean()) if measure.is_signed else float("nan"),
        p=float("nan"),
        p_best=float("nan"),
        n=len(patched),
        groups=resamples.n_groups,
        measure=measure.name,
    )
