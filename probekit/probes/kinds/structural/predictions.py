"""Predictions of structural probes and of the linear chain for sentences, and their metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from probekit.probes.grouped_tokens import GroupedTokens
from probekit.probes.kinds.structural.probes import DistanceProbe, StructuralProbe
from probekit.probes.kinds.structural.scores import SentenceScores, score_depths, score_distances
from probekit.probes.kinds.structural.trees import read_trees
from probekit.probes.score.metric_table import Family
from probekit.probes.score.metrics import Resamples
from probekit.probes.solve.design import Features, Floats


@dataclass(frozen=True, eq=False)
class TreePredictions:
    """Scores of a structural probe on each sentence, as the predictions that metrics take.

    `hit` is the name of the metric that is the hit rate: "uuas" or "root_accuracy".
    """

    sentences: SentenceScores
    hit: str

    family: ClassVar[Family] = "tree"
    # Words are ranked within their sentence only, and a sentence is scored by one fit.
    folds: ClassVar[None] = None

    @property
    def offers(self) -> frozenset[str]:
        """The name of the metric that is the hit rate; see `Metric.needs`."""
        return frozenset({self.hit})


def hit_rate(predictions: TreePredictions, resamples: Resamples) -> Floats:
    """Return the hit rate over all sentences, which is UUAS or root accuracy.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.
    """
    return predictions.sentences.hit_rate(_counts(resamples))


def tree_spearman(predictions: TreePredictions, resamples: Resamples) -> Floats:
    """Return Spearman's correlation of predicted distances or depths with those of gold trees.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.
    """
    return predictions.sentences.spearman(_counts(resamples))


def _counts(resamples: Resamples) -> NDArray[np.float32]:
    return resamples.counts[resamples.group_of_row]


def tree_predictions(
    probe: StructuralProbe, X: Features, heads: NDArray[np.str_], tokens: GroupedTokens
) -> TreePredictions:
    """Return the scores of a fitted structural probe on some sentences."""
    rows = tokens.rows
    scores = probe.score_sentences(X[rows], heads[rows], tokens.example_of_row)
    return TreePredictions(scores, _hit(probe))


def chain_predictions(
    probe: StructuralProbe, heads: NDArray[np.str_], tokens: GroupedTokens
) -> TreePredictions:
    """Return the scores of the linear chain, a tree that ignores the activations.

    In it, the head of each word is the previous word.
    """
    trees = read_trees(heads[tokens.rows], tokens.example_of_row)
    positions = [np.arange(len(tree.heads), dtype=np.float64) for tree in trees]
    if isinstance(probe, DistanceProbe):
        chains = [np.abs(position[:, None] - position) for position in positions]
        return TreePredictions(score_distances(trees, chains), _hit(probe))
    return TreePredictions(score_depths(trees, positions), _hit(probe))


def _hit(probe: StructuralProbe) -> str:
    return "uuas" if isinstance(probe, DistanceProbe) else "root_accuracy"
