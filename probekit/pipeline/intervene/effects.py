"""Patches and ablations of an experiment: their parts, and the rows of effects.csv."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from probekit.experiment.interventions import At, InterventionSection
from probekit.interventions.causes.cause_data import RowSplit
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.patching.ablation import ablated_values
from probekit.interventions.patching.patch_effects import (
    Patch,
    PatchedValues,
    PatchEffect,
    effects_of,
)
from probekit.interventions.patching.patching import Positions, patched_values
from probekit.model.network import Network
from probekit.model.sites.sites import SiteSelection
from probekit.pipeline.intervene.inputs import CauseInputs
from probekit.pipeline.intervene.parts import Part, floats_of


@dataclass(frozen=True, eq=False)
class EffectStep:
    """A patch or ablation at some sites and positions; its passes are scored by all measures.

    Attributes:
        step: settings of the edit.
        selected: its sites, heads or neurons.
        folds: the folds whose test rows are edited.
        at: `probed`, `all` or `each`.
        measures: the measures, of all rows.
    """

    step: InterventionSection
    selected: tuple[SiteSelection, ...]
    folds: tuple[int, ...]
    at: At
    measures: tuple[AnswerMeasure, ...]

    @property
    def replacement(self) -> str:
        """What replaces the activations."""
        return self.step.from_ or self.step.with_ or ""

    def parts(self, model: Network, inputs: CauseInputs) -> Iterator[Part]:
        """Return the parts: one for each site, with all of its heads."""
        inputs = inputs.of_folds(self.folds)
        by_site: dict[str, list[SiteSelection]] = defaultdict(list)
        for one in self.selected:
            by_site[one.site].append(one)
        for site, selected in by_site.items():
            yield Part(
                title=f"{self.step.do} {site} at {self.at}",
                identity={
                    "do": self.step.do,
                    "replacement": self.replacement,
                    "at": self.at,
                    "folds": list(self.folds),
                    "measures": [measure.name for measure in self.measures],
                    "sites": [one.text for one in selected],
                },
                compute=partial(self._numbers, model, inputs, selected),
            )

    def _numbers(
        self, model: Network, inputs: CauseInputs, selected: Sequence[SiteSelection]
    ) -> dict[str, Any]:
        splits: Sequence[RowSplit] = [RowSplit(train=inputs.test, test=inputs.test)]
        if self.step.with_ == "mean":
            splits = inputs.splits  # the test rows of a fold get the mean of its own training rows
        order = np.argsort(np.concatenate([split.test for split in splits]))
        by_split = [self._values(model, inputs, selected, split) for split in splits]
        by_measure = zip(*by_split, strict=True)
        return {"measures": [_joined(parts, order, selected) for parts in by_measure]}

    def _values(
        self,
        model: Network,
        inputs: CauseInputs,
        selected: Sequence[SiteSelection],
        split: RowSplit,
    ) -> list[PatchedValues]:
        """Return each measure of test rows; a mean is that of the training rows."""
        rows = torch.from_numpy(split.test)
        batch, measures = inputs.batch[rows], [measure[rows] for measure in self.measures]
        at: Positions = inputs.position[rows] if self.at == "probed" else self.at
        if self.step.with_ is None:
            assert inputs.sources is not None
            return patched_values(model, batch, inputs.sources[rows], measures, selected, at=at)
        averaged = torch.from_numpy(split.train)
        place = inputs.position[averaged] if self.at == "probed" else None
        return ablated_values(
            model, batch, measures, selected, self.step.with_, at=at,
            averaged=(inputs.batch[averaged], place), seed=inputs.experiment.probe.seed,
        )  # fmt: skip

    def rows(
        self, inputs: CauseInputs, parts: Sequence[tuple[Part, dict[str, Any]]]
    ) -> Iterator[dict[str, Any]]:
        """Return the rows of effects.csv from the numbers of all parts."""
        test = inputs.of_folds(self.folds).test
        selection = {one.text: one for one in self.selected}
        for number, measure in enumerate(self.measures):
            patched = {}
            for part, numbers in parts:
                texts, found = part.identity["sites"], numbers["measures"][number]
                for index, position, values in found["patched"]:
                    patched[Patch(selection[texts[index]], position)] = floats_of(values)
            first = parts[0][1]["measures"][number]
            scored = PatchedValues(floats_of(first["base"]), floats_of(first["source"]), patched)
            own = measure[torch.from_numpy(test)]
            for one in effects_of(scored, own, inputs.groups[test]):
                yield self._row(one, own)

    def _row(self, one: PatchEffect, measure: AnswerMeasure) -> dict[str, Any]:
        is_ablation = self.step.do == "ablate"
        return {
            "do": self.step.do,
            "replacement": self.replacement,
            "site": one.site.partition("[head")[0],
            "layer": one.layer,
            "head": one.head,
            "at": self.at,
            "position": one.position if self.at == "each" else None,
            "measure": one.measure,
            "unit": measure.unit,
            "base": one.base,
            "source": None if is_ablation else one.source,
            "edited": one.patched,
            "effect": one.effect,
            "effect_low": one.effect_low,
            "effect_high": one.effect_high,
            "recovery": None if is_ablation else one.recovery,
            "recovery_low": None if is_ablation else one.low,
            "recovery_high": None if is_ablation else one.high,
            "interchange": one.interchange,
            "p": one.p,
            "p_best": one.p_best,
            "n": one.n,
            "groups": one.groups,
            "folds": len(self.folds),
        }


def _joined(
    parts: Sequence[PatchedValues], order: np.ndarray, selected: Sequence[SiteSelection]
) -> dict[str, Any]:
    """Return the numbers of one measure, of the test rows of all splits in order."""
    base, source = (
        np.concatenate([getattr(part, name) for part in parts])[order]
        for name in ("base", "source")
    )
    patched = [
        [
            selected.index(key.selection),
            key.position,
            np.concatenate([part.patched[key] for part in parts])[order],
        ]
        for key in parts[0].patched
    ]
    return {"base": base, "source": source, "patched": patched}
