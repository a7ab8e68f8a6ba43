"""Verdicts on directions: their parts, and the rows of verdicts.csv, doses.csv, downstream.csv."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from probekit.amounts import counted
from probekit.errors import DataError
from probekit.experiment.interventions import InterventionSection
from probekit.interventions.causes.cause_data import CauseData, CauseResult, CauseSettings
from probekit.interventions.causes.causes import causes_of
from probekit.interventions.causes.directions import directions_of
from probekit.interventions.causes.downstream import downstream_scores
from probekit.interventions.causes.responses import Responder
from probekit.interventions.causes.summary import summary, why_undecided
from probekit.interventions.causes.verdicts import best_p_values
from probekit.interventions.erasure import Eraser, leace, mean_projection, probe_projection
from probekit.interventions.names import Along
from probekit.interventions.stream import linear_entry
from probekit.model.network import Network
from probekit.model.sites.catalogue import layer_of
from probekit.model.sites.sites import SiteSelection
from probekit.pipeline.intervene.inputs import CauseInputs
from probekit.pipeline.intervene.parts import Part, floats_of
from probekit.probes.score.intervals import Interval
from probekit.probes.solve.design import Floats

DRAWS = 999
DOSES = (-4.0, -2.0, 2.0, 4.0)
_SHOWN = 3  # sites in a warning
_TESTED = ("steers", "silences", "swap")


@dataclass(frozen=True, eq=False)
class VerdictStep:
    """The directions of one method at some sites, with all that the steps ask of them.

    Attributes:
        along: method of the directions.
        at: `probed` or `all`.
        selected: the sites or heads; parts of the residual stream.
        folds: the folds whose test rows are edited.
        draws: number of permutations.
        by: doses of steering.
        has_swap: whether directions are exchanged with counterfactuals.
        has_downstream: whether probes are fitted again after the erasure.
    """

    along: Along
    at: str
    selected: tuple[SiteSelection, ...]
    folds: tuple[int, ...]
    draws: int
    by: tuple[float, ...]
    has_swap: bool
    has_downstream: bool

    def parts(self, model: Network, inputs: CauseInputs) -> Iterator[Part]:
        """Return the parts: one for each site."""
        inputs = inputs.of_folds(self.folds)
        for selection in self.selected:
            linear_entry(model, selection)
            yield Part(
                title=f"{self.along} direction at {selection.text}",
                identity={
                    "along": self.along,
                    "at": self.at,
                    "site": selection.text,
                    "folds": list(self.folds),
                    "draws": self.draws,
                    "by": list(self.by),
                    "swap": self.has_swap,
                    "downstream": self.has_downstream,
                },
                compute=partial(self._numbers, model, inputs, selection),
            )

    def _numbers(
        self, model: Network, inputs: CauseInputs, selection: SiteSelection
    ) -> dict[str, Any]:
        probe = inputs.experiment.probe
        settings = CauseSettings(
            along=self.along, draws=self.draws, by=self.by, C=strength_of(probe.C), seed=probe.seed
        )
        result = causes_of(model, self._data(inputs), selection, settings)
        questions = [*(one.question for one in result.verdicts), *(["swap"] if result.swap else [])]
        rows = [_verdict_row(result, question) for question in questions]
        null = {name: values for name, values in result.null.items() if name in questions}
        count = {"n": result.n, "groups": result.groups}
        doses = [asdict(one) | _other(result, one.by) | count for one in result.doses]
        found = {
            "verdicts": rows,
            "null": null,
            "doses": doses,
            "dose_limit": result.dose_limit,
            "unit": result.unit,
        }
        if self.has_downstream and self.at == "probed":
            found["downstream"] = self._downstream(model, inputs, selection)
        return found

    def _data(self, inputs: CauseInputs) -> CauseData:
        measure = inputs.measures[0]
        if len(torch.unique(measure.answer)) == 1:
            raise DataError(
                "All rows have the same right answer, so that it is not related to the label, "
                "which erase, swap and steer compare. Name columns with the right and the wrong "
                "answer of each row in `measure`."
            )
        return CauseData(
            batch=inputs.batch,
            codes=inputs.codes,
            groups=inputs.groups,
            splits=inputs.splits,
            measure=measure,
            at=inputs.position if self.at == "probed" else None,
            read=inputs.position,
            sources=inputs.sources if self.has_swap else None,
            other=inputs.others,
        )

    def _downstream(
        self, model: Network, inputs: CauseInputs, selection: SiteSelection
    ) -> list[dict[str, Any]]:
        split = inputs.splits[0]
        place, measure = inputs.position, inputs.measures[0]
        X = Responder(model, inputs.batch, selection, place, measure).features()
        C = strength_of(inputs.experiment.probe.C)
        eraser = eraser_of(self.along, X[split.train], inputs.codes[split.train], C)
        first = layer_of(selection.site) or 0
        n_layers = model.axis_sizes["n_layers"]
        later = [SiteSelection(f"blocks.{n}.hook_resid_post") for n in range(first, n_layers)]
        rows = np.sort(np.r_[split.train, split.test])
        kept = torch.from_numpy(rows)
        scores = downstream_scores(
            model, inputs.batch[kept], inputs.codes[rows], inputs.groups[rows],
            np.flatnonzero(np.isin(rows, split.train)), (selection, eraser), later, place[kept],
        )  # fmt: skip
        return [
            {
                "site": one.site,
                "layer": layer_of(one.site),
                **_limits("before", one.before),
                **_limits("after", one.after),
                "chance": one.chance,
                "n": one.n,
                "groups": one.groups,
            }
            for one in scores
        ]

    def verdict_rows(self, found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Return the rows of verdicts.csv from the numbers of all parts."""
        best: dict[tuple[int, str], float] = {}
        for question in _TESTED:
            own = [n for n, one in enumerate(found) if question in one["null"]]
            effects = [_effect(found[n], question) for n in own]
            known = [n for n, effect in zip(own, effects, strict=True) if effect is not None]
            if known:
                null = np.stack([floats_of(found[n]["null"][question]) for n in known])
                observed = np.array([_effect(found[n], question) for n in known], dtype=float)
                adjusted = best_p_values(observed, null)
                best |= {(n, question): float(p) for n, p in zip(known, adjusted, strict=True)}
        for n, (selection, one) in enumerate(zip(self.selected, found, strict=True)):
            for row in one["verdicts"]:
                p_best = best.get((n, row["question"]))
                yield {**self._place(selection), **row, "p_best": p_best}

    def dose_rows(self, found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Return the rows of doses.csv."""
        for selection, one in zip(self.selected, found, strict=True):
            for dose in one["doses"]:
                yield {**self._place(selection), **dose, "unit": one["unit"]}

    def dose_warnings(self, found: Sequence[dict[str, Any]]) -> Iterator[str]:
        """Return sentences on the doses that were left out, each with its sites."""
        sites: dict[tuple[float, ...], list[str]] = defaultdict(list)
        for selection, one in zip(self.selected, found, strict=True):
            kept = [dose["by"] for dose in one["doses"]]
            dropped = tuple(by for by in self.by if by not in kept)
            limit = f"{selection.text} (at most {one['dose_limit']:.2g})"
            if dropped:
                sites[dropped].append(limit)
        for dropped, own in sites.items():
            listed = ", ".join(own[:_SHOWN]) + ", ..." * (len(own) > _SHOWN)
            doses = " and ".join(f"{by:g}" for by in dropped)
            yield (
                f"Doses {doses} along {self.along} are left out at {counted(len(own), 'site')}, "
                "because they move activations beyond the range of the data, 99 % of the training "
                f"rows in standard deviations of the projection: {listed}."
            )

    def downstream_rows(self, found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Return the rows of downstream.csv."""
        for selection, one in zip(self.selected, found, strict=True):
            for row in one.get("downstream", []):
                yield {"erased": selection.text, "along": self.along, "at": self.at, **row}

    def _place(self, selection: SiteSelection) -> dict[str, Any]:
        return {
            "site": selection.site,
            "layer": layer_of(selection.site),
            "head": selection.head,
            "at": self.at,
            "along": self.along,
        }


Place = tuple[InterventionSection, tuple[SiteSelection, ...], tuple[int, ...]]


def verdict_steps(places: Sequence[Place]) -> list[VerdictStep]:
    """Return the verdict steps: edits along the same directions are combined.

    Args:
        places: settings of each edit, its sites, and the folds whose test rows are edited there.
    """
    together: dict[tuple[Along, str, tuple[int, ...]], list[Place]] = defaultdict(list)
    for step, selected, folds in places:
        for along in step.along or ("probe",):
            for at in step.at:
                together[along, at, folds].append((step, selected, folds))
    return [
        VerdictStep(
            along=along,
            at=at,
            selected=tuple(dict.fromkeys(one for _, selected, _ in own for one in selected)),
            folds=folds,
            draws=max(step.draws or DRAWS for step, _, _ in own),
            by=tuple(sorted({dose for step, _, _ in own for dose in step.by or ()})) or DOSES,
            has_swap=any(step.do == "swap" for step, _, _ in own),
            has_downstream=any(step.do == "erase" for step, _, _ in own),
        )
        for (along, at, folds), own in together.items()
    ]


def strength_of(strengths: Sequence[float]) -> float:
    """Return the inverse regularisation strength of the directions of probes.

    It is the only one of the experiment, or else 1: a choice by the true labels would give the
    directions on permuted labels another strength than their own choice.

    >>> strength_of([0.01]), strength_of([0.01, 0.1])
    (0.01, 1.0)
    """
    return strengths[0] if len(strengths) == 1 else CauseSettings.C


def eraser_of(along: Along, X: Floats, codes: np.ndarray, C: float = CauseSettings.C) -> Eraser:
    """Return the eraser of a method, fitted on rows X (n_rows, n_features) with label codes.

    C is the inverse regularisation strength of probes.

    >>> X = np.array([[0.0, 1.0], [2.0, 1.0]])
    >>> eraser_of("mean_difference", X, np.array([0, 1]))(X).round(6).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    if along == "leace":
        return leace(X, codes)
    if along == "mean_difference":
        return mean_projection(X, codes)
    return probe_projection(directions_of("probe", X, codes[None], C=C).unit, X.mean(axis=0))


def _verdict_row(result: CauseResult, question: str) -> dict[str, Any]:
    evidence = result.evidence(question)
    given = next((one for one in result.verdicts if one.question == question), None)
    bands = [_band(of.get(question)) for of in (result.null, result.matched)]
    return {
        "question": question,
        "answer": given.answer if given else "",
        "effect": evidence.effect,
        "low": evidence.low,
        "high": evidence.high,
        "unit": evidence.unit,
        "p": evidence.p,
        "p_holm": given.p_holm if given else None,
        "whole": evidence.whole,
        "exceeds_whole": bool(evidence.exceeds_whole),
        "null_low": bands[0][0],
        "null_high": bands[0][1],
        "matched_low": bands[1][0],
        "matched_high": bands[1][1],
        "wrong_way": result.wrong_way if question == "steers" else None,
        "kernel_share": result.kernel_share,
        "reason": why_undecided(given) if given else evidence.reason,
        "summary": summary(result),
        "n": result.n,
        "groups": result.groups,
        "folds": result.folds,
        "draws": result.draws,
    }


def _band(effects: Floats | None) -> tuple[float | None, float | None]:
    """Return the 2.5 % and 97.5 % quantiles of effects; None without any."""
    known = np.zeros(0) if effects is None else effects[np.isfinite(effects)]
    if not len(known):
        return None, None
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def _other(result: CauseResult, by: float) -> dict[str, float | None]:
    values = result.other_loss.get(by, (None, None, None))
    return dict(zip(("other_loss", "other_low", "other_high"), values, strict=True))


def _limits(name: str, interval: Interval) -> dict[str, float]:
    """Return an accuracy with its interval, within 0 and 1."""
    low, high = np.clip([interval.low, interval.high], 0, 1).tolist()
    return {name: interval.value, f"{name}_low": low, f"{name}_high": high}


def _effect(found: dict[str, Any], question: str) -> float | None:
    rows = (row for row in found["verdicts"] if row["question"] == question)
    effect: float | None = next(rows)["effect"]
    return effect
