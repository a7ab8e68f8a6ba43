"""Description length at a site: each kind of probe fitted on the rows that were sent before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax

from probekit.probes.data import ProbeSpec
from probekit.probes.description import Block, OnlineCode, tempered
from probekit.probes.design import Features, Floats
from probekit.probes.kinds.layers import Solution
from probekit.probes.machines import Column, Machine, Tuned
from probekit.probes.measurement import Measurement, Origin, Reading, Target, measure
from probekit.probes.metrics import Resamples


@dataclass(frozen=True, eq=False)
class OnlineCoding:
    """Codes the labels of the fitted rows, block after block.

    Attributes:
        coded: the blocks, in the order they are sent.
        resamples: of the groups of the fitted rows.
        n_classes: of the labels.
        seed: of the order.
    """

    coded: Sequence[Block]
    resamples: Resamples
    n_classes: int
    seed: int

    def lengths(
        self,
        spec: ProbeSpec,
        machine: Machine,
        X: Features,
        columns: Sequence[Column],
        tuned: Sequence[Tuned],
        target: Target,
    ) -> list[Measurement]:
        """Return the lengths of the first label column (n_samples,), and those of its controls."""
        shares = [np.isin(np.arange(len(X)), block.fitted) for block in self.coded[1:]]
        paths = machine.refit(X, columns, tuned, shares)
        codes = [
            self._code(spec, X, column, path) for column, path in zip(columns, paths, strict=True)
        ]
        origin = Origin(spec.text, target, self.seed, len(X))
        measured = self._measure(origin, codes[:1], tuned[:1], paths[:1])
        if len(columns) > 1:
            control = Origin(spec.text, "control", self.seed, len(X))
            measured += self._measure(control, codes[1:], tuned[1:], paths[1:])
        return measured

    def _measure(
        self,
        origin: Origin,
        codes: Sequence[OnlineCode],
        tuned: Sequence[Tuned],
        paths: Sequence[Sequence[Solution]],
    ) -> list[Measurement]:
        fits = [fit for path in paths for fit in path]
        readings = [Reading(code, code.uniform, self.resamples) for code in codes]
        return measure(origin.of_columns(tuned).of_fits(fits), "online", readings)

    def _code(
        self, spec: ProbeSpec, X: Features, column: Column, path: Sequence[Solution]
    ) -> OnlineCode:
        tables: list[Floats] = []
        for block, solution in zip(self.coded[1:], path, strict=True):
            scores = solution.class_scores(X[block.coded], self.n_classes)
            if not spec.logits:
                known = solution.class_scores(X[block.fitted], self.n_classes)
                scores = scores * tempered(known, column[block.fitted])
            tables.append(log_softmax(scores, axis=1))
        return OnlineCode.of_blocks(self.coded, tables, column)
