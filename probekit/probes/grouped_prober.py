"""Fitting and scoring the kinds of probe that read whole texts or dependency trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.probes.controls.controls import uninformed
from probekit.probes.data import GroupedTokens, ProbeData, typical_rows
from probekit.probes.fitters import LabelColumn
from probekit.probes.kinds.attention_pooled import AttentionPooledProbe
from probekit.probes.kinds.structural import chain_predictions, tree_predictions
from probekit.probes.kinds.trees import read_trees
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Score, judge_of
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.design import Features
from probekit.probes.solve.solver import Codes


@dataclass(frozen=True, eq=False)
class GroupedTokenProber:
    """Fits and scores the kinds of probe that read whole texts or sentences.

    Attributes:
        data: labels, groups and examples of all rows.
        settings: the settings of the probes.
        train: the tokens of the examples that probes are fitted on.
        test: the tokens of the examples that are scored.
    """

    data: ProbeData
    settings: ProbeSettings
    train: GroupedTokens
    test: GroupedTokens

    @classmethod
    def of(cls, data: ProbeData, settings: ProbeSettings, fitted: Codes) -> GroupedTokenProber:
        """Return a prober fitted on the examples of the `fitted` rows and scored on the test ones.

        All training rows of an example are used, even if only one of them is in `fitted`.
        """
        inside = data.train[np.isin(_own(data)[data.train], _own(data)[fitted])]
        train, test = (
            GroupedTokens.of(np.sort(rows), data.examples) for rows in (inside, data.test)
        )
        return cls(data, settings, train, test)

    def check_trees(self) -> None:
        """Raise DataError unless the labels of every sentence are the heads of a tree.

        Raises:
            DataError: The heads of a sentence do not form a tree.
        """
        for tokens in (self.train, self.test):
            read_trees(self.data.y[tokens.rows], tokens.example_of_row)

    def texts(self, spec: ProbeSpec, X: Features, column: LabelColumn, target: str) -> Score:
        """Return the test score of a kind that reads texts.

        There is no control task: a random label for each word would give a text several labels.
        """
        probe = self._fitted(spec, X, column)
        predictions = replace(
            text_predictions(probe, X, column, self.test, len(self.data.classes)),
            positive=self.data.positive_code,
        )
        pair = (predictions, uninformed(column[self.train.first], predictions))
        return replace(self._score(spec, target, [probe]), pairs=(pair,))

    def trees(self, spec: ProbeSpec, X: Features, target: str) -> Score:
        """Return the test score of a kind that reads trees.

        The chance level is the score of the linear chain; see `chain_predictions`.
        """
        heads = self.data.y
        probe = self._fitted(spec, X, heads)
        predictions = tree_predictions(probe, X, heads, self.test)
        pair = (predictions, chain_predictions(probe, heads, self.test))
        return replace(self._score(spec, target, [probe]), pairs=(pair,))

    def _fitted(self, spec: ProbeSpec, X: Features, column: NDArray[Any]) -> Any:
        rows, probe = self.train.rows, spec.build(self.settings)
        arguments: dict[str, Any] = {"typical": typical_rows(self.data, rows)}
        if spec.task == "text":
            arguments["units"] = self.data.groups[rows]
            arguments["judge"] = judge_of(
                self.settings.main_metric,
                lambda truth, scores, fits: replace(
                    ClassPredictions.of_scores(truth, scores, False, fits),
                    positive=self.data.positive_code,
                ),
            )
        return probe.fit(X[rows], column[rows], self.train.example_of_row, **arguments)

    @property
    def _groups(self) -> NDArray[np.str_]:
        return self.data.groups[self.test.first]

    def _score(self, spec: ProbeSpec, target: str, fits: Sequence[Any]) -> Score:
        """Return a test score without predictions, which the caller adds."""
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


def text_predictions(
    probe: AttentionPooledProbe, X: Features, codes: Codes, tokens: GroupedTokens, n_classes: int
) -> ClassPredictions:
    """Return the predictions of a fitted attention-pooled probe, one for each text."""
    rows = tokens.rows
    scores = probe.decision_function(X[rows], tokens.example_of_row)
    first = np.searchsorted(rows, tokens.first)
    class_scores = np.full((len(first), n_classes), -np.inf)
    if scores.ndim == 1:
        scores = np.column_stack([np.zeros_like(scores), scores])
    class_scores[:, probe.classes_] = scores[first]
    return ClassPredictions.of_scores(codes[tokens.first], class_scores, are_logits=False)
