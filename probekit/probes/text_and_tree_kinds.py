"""Measuring the kinds of probe that read wholes, each of which counts once: texts and trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.probes.controls.controls import uninformed
from probekit.probes.data import ProbeData, typical_rows
from probekit.probes.fitters import LabelColumn
from probekit.probes.kinds.structural.trees import read_trees
from probekit.probes.score.measurement import Score
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.design import Features
from probekit.probes.solve.solver import Codes
from probekit.probes.text_and_tree import GroupedTokens, chain_answers, text_answers, tree_answers


@dataclass(frozen=True, eq=False)
class GroupedTokenProber:
    """Fits and measures kinds that read wholes.

    Attributes:
        data: labels, groups and wholes of all rows.
        settings: of the probes.
        train: the wholes that are fitted.
        test: those that are scored.
    """

    data: ProbeData
    settings: ProbeSettings
    train: GroupedTokens
    test: GroupedTokens

    @classmethod
    def of(cls, data: ProbeData, settings: ProbeSettings, fitted: Codes) -> GroupedTokenProber:
        """Return the reader of the wholes that the `fitted` rows are of, and of those of test."""
        inside = data.train[np.isin(_own(data)[data.train], _own(data)[fitted])]
        train, test = (
            GroupedTokens.of(np.sort(rows), data.examples) for rows in (inside, data.test)
        )
        return cls(data, settings, train, test)

    def check_trees(self) -> None:
        """Return nothing if the labels of each sentence are the heads of a tree.

        Raises:
            DataError: They are not.
        """
        for side in (self.train, self.test):
            read_trees(self.data.y[side.rows], side.whole_of_row)

    def texts(
        self, spec: ProbeSpec, X: Features, columns: Sequence[LabelColumn], target: str
    ) -> list[Score]:
        """Return what a kind finds of the first label column, with the rest as its controls."""
        fits, readings = [], []
        for column in columns:
            probe = self._fitted(spec, X, column)
            said = text_answers(probe, X, column, self.test, len(self.data.classes))
            known = uninformed(column[self.train.first], said)
            fits.append(probe)
            readings.append((said, known))
        task, controls = tuple(readings[:1]), tuple(readings[1:])
        score = replace(self._score(spec, target, fits[:1]), readings=task)
        scores = [score]
        if controls:
            control = self._score(spec, "control", fits[1:])
            scores.append(replace(control, readings=controls))
            scores.append(replace(score, metric="accuracy", against=controls))
        return scores

    def trees(self, spec: ProbeSpec, X: Features, target: str) -> Score:
        """Return what a kind finds of the heads; chance is that each word hangs on the last."""
        heads = self.data.y
        probe = self._fitted(spec, X, heads)
        said = tree_answers(probe, X, heads, self.test)
        reading = (said, chain_answers(probe, heads, self.test))
        return replace(self._score(spec, target, [probe]), readings=(reading,))

    def _fitted(self, spec: ProbeSpec, X: Features, column: NDArray[Any]) -> Any:
        rows, probe = self.train.rows, spec.build(self.settings)
        told: dict[str, Any] = {"typical": typical_rows(self.data, rows)}
        if spec.task == "text":
            told["units"] = self.data.groups[rows]
        return probe.fit(X[rows], column[rows], self.train.whole_of_row, **told)

    @property
    def _groups(self) -> NDArray[np.str_]:
        return self.data.groups[self.test.first]

    def _score(self, spec: ProbeSpec, target: str, fits: Sequence[Any]) -> Score:
        """Return a score on the test rows, without its predictions."""
        penalties = {getattr(probe, "C_", None) for probe in fits}
        return Score(
            spec.text,
            target,
            self.settings.seed,
            len(self.train.first),
            groups=self._groups,
            C=penalties.pop() if len(penalties) == 1 else None,
            n_iter=max(probe.n_iter_ for probe in fits),
            converged=all(probe.converged_ for probe in fits),
        )


def _own(data: ProbeData) -> NDArray[np.int64]:
    return np.arange(len(data.y)) if data.examples is None else data.examples
