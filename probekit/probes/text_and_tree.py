"""Predictions of the kinds of probe that read whole texts or sentences, and their metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from probekit.probes.data import ProbeData
from probekit.probes.kinds.attention_pooled import AttentionPooledProbe
from probekit.probes.kinds.structural.probes import DistanceProbe, StructuralProbe
from probekit.probes.kinds.structural.scores import SentenceScores, score_depths, score_distances
from probekit.probes.kinds.structural.trees import read_trees
from probekit.probes.score.metric_table import Family
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.solve.design import Features, Floats
from probekit.probes.solve.solver import Codes


@dataclass(frozen=True, eq=False)
class GroupedTokens:
    """Row numbers of tokens, grouped by example: the text or sentence that they belong to.

    Attributes:
        rows: The row numbers (n_rows,).
        example_of_row: The index (n_rows,) of each row's example, from 0.
        first: The first row (n_examples,) of each example.
    """

    rows: Codes
    example_of_row: Codes
    first: Codes

    @classmethod
    def of(cls, rows: Codes, examples: NDArray[np.int64] | None) -> GroupedTokens:
        """Return the rows grouped by example; without `examples` each row is its own example.

        >>> GroupedTokens.of(np.array([3, 4, 5]), np.array([0, 0, 0, 7, 7, 8])).first.tolist()
        [3, 5]
        """
        own = rows if examples is None else examples[rows]
        _, first, example_of_row = np.unique(own, return_index=True, return_inverse=True)
        return cls(rows, example_of_row, rows[first])


def first_rows(data: ProbeData) -> ProbeData:
    """Return the data with only the first row of each text in train and test.

    These rows represent whole texts, so they have no neighbouring words.
    """
    train, test = (
        GroupedTokens.of(np.sort(s), data.examples).first for s in (data.train, data.test)
    )
    return replace(data, train=train, test=test, neighbours=None)


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

    Shape (1 + n_units,): the value with all groups, then without each unit; see `Resamples`.
    """
    return predictions.sentences.hit_rate(_counts(resamples))


def tree_spearman(predictions: TreePredictions, resamples: Resamples) -> Floats:
    """Return Spearman's correlation of predicted distances or depths with those of gold trees.

    Shape (1 + n_units,): the value with all groups, then without each unit; see `Resamples`.
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
