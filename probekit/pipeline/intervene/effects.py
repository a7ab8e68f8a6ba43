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
from probekit.interventions.names import UNITS
from probekit.interventions.patching.ablation import ablated_values
from probekit.interventions.patching.patch_effects import (
    Patch,
    PatchedValues,
    PatchEffect,
    effects_of,
)
from probekit.interventions.patching.patching import Positions, patched_values
from probekit.model.network import Network
from probekit.model.sites.selection import SiteSelection
from probekit.pipeline.intervene.inputs import CauseInputs
from probekit.pipeline.intervene.parts import Part, floats_of


@dataclass(frozen=True, eq=False)
class EffectStep:
    """A patch or ablation at some sites and positions, scored by one measure.

    Attributes:
        step: settings of the edit.
        selected: its sites, heads or neurons.
        folds: the folds whose test rows are edited.
        at: `probed`, `all` or `each`.
        measure: the measure, of all rows.
    """

    step: InterventionSection
    selected: tuple[SiteSelection, ...]
    folds: tuple[int, ...]
    at: At
    measure: AnswerMeasure

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
                    "measure": self.measure.name,
                    "sites": [one.text for one in selected],
                },
                compute=partial(self._numbers, model, inputs, selected),
            )

    def _numbers(
        self, model: Network, inputs: CauseInputs, selected: Sequence[SiteSelection]
    ) -> dict[str, Any]:
        if self.step.with_ == "mean":
            # The test rows of a fold get the mean of its own training rows.
            parts = [self._values(model, inputs, selected, one) for one in inputs.splits]
            order = np.argsort(np.concatenate([one.test for one in inputs.splits]))
        else:
            rows = RowSplit(train=inputs.test, test=inputs.test)
            parts, order = [self._values(model, inputs, selected, rows)], np.arange(len(rows.test))
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

    def _values(
        self,
        model: Network,
        inputs: CauseInputs,
        selected: Sequence[SiteSelection],
        split: RowSplit,
    ) -> PatchedValues:
        """Return the measure of test rows; a mean is that of the training rows."""
        rows = torch.from_numpy(split.test)
        batch, measure = inputs.batch[rows], self.measure[rows]
        at: Positions = inputs.position[rows] if self.at == "probed" else self.at
        if self.step.with_ is None:
            assert inputs.sources is not None
            return patched_values(model, batch, inputs.sources[rows], measure, selected, at=at)
        averaged = torch.from_numpy(split.train)
        place = inputs.position[averaged] if self.at == "probed" else None
        return ablated_values(
            model, batch, measure, selected, self.step.with_, at=at,
            averaged=(inputs.batch[averaged], place), seed=inputs.experiment.probe.seed,
        )  # fmt: skip

    def rows(
        self, inputs: CauseInputs, parts: Sequence[tuple[Part, dict[str, Any]]]
    ) -> Iterator[dict[str, Any]]:
        """Return the rows of effects.csv from the numbers of all parts."""
        inputs = inputs.of_folds(self.folds)
        selection = {one.text: one for one in self.selected}
        patched = {}
        for part, found in parts:
            texts = part.identity["sites"]
            for index, position, values in found["patched"]:
                patched[Patch(selection[texts[index]], position)] = floats_of(values)
        first = parts[0][1]
        values = PatchedValues(floats_of(first["base"]), floats_of(first["source"]), patched)
        measure = self.measure[torch.from_numpy(inputs.test)]
        for one in effects_of(values, measure, inputs.groups[inputs.test]):
            yield self._row(one)

    def _row(self, one: PatchEffect) -> dict[str, Any]:
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
            "unit": UNITS[self.measure.name],
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
