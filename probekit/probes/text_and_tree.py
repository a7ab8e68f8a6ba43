"""Kinds of probe that read wholes: all tokens of a text, or the tree of a sentence."""

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
    """Rows (n_rows,) that are tokens, and the text or sentence that each belongs to.

    `first` (n_wholes,) is the first row of each whole, in the order of their sorted numbers.
    """

    rows: Codes
    whole_of_row: Codes
    first: Codes

    @classmethod
    def of(cls, rows: Codes, examples: NDArray[np.int64] | None) -> GroupedTokens:
        """Return the wholes of some rows; without `examples` each row is its own.

        >>> GroupedTokens.of(np.array([3, 4, 5]), np.array([0, 0, 0, 7, 7, 8])).first.tolist()
        [3, 5]
        """
        own = rows if examples is None else examples[rows]
        _, first, whole = np.unique(own, return_index=True, return_inverse=True)
        return cls(rows, whole, rows[first])


def first_rows(data: ProbeData) -> ProbeData:
    """Return the data with the first row of each text alone in train and test."""
    train, test = (
        GroupedTokens.of(np.sort(s), data.examples).first for s in (data.train, data.test)
    )
    return replace(data, train=train, test=test)


@dataclass(frozen=True, eq=False)
class TreePredictions:
    """What a structural probe found of each sentence; `hit` names what its hits are."""

    sentences: SentenceScores
    hit: str

    family: ClassVar[Family] = "tree"

    @property
    def offers(self) -> frozenset[str]:
        """The metric that is the share of hits."""
        return frozenset({self.hit})


def hit_rate(answers: TreePredictions, resamples: Resamples) -> Floats:
    """Return hits over trials of all sentences (1 + n_draws,): UUAS or root accuracy."""
    return answers.sentences.hit_rate(_counts(resamples))


def tree_spearman(answers: TreePredictions, resamples: Resamples) -> Floats:
    """Return Spearman's correlation of distances or depths (1 + n_draws,)."""
    return answers.sentences.spearman(_counts(resamples))


def _counts(resamples: Resamples) -> NDArray[np.float32]:
    return resamples.counts[resamples.group_of_row]


def tree_answers(
    probe: StructuralProbe, X: Features, heads: NDArray[np.str_], wholes: GroupedTokens
) -> TreePredictions:
    """Return what a fitted structural probe finds in the rows of some sentences."""
    rows = wholes.rows
    found = probe.score_sentences(X[rows], heads[rows], wholes.whole_of_row)
    return TreePredictions(found, _hit(probe))


def chain_answers(
    probe: StructuralProbe, heads: NDArray[np.str_], wholes: GroupedTokens
) -> TreePredictions:
    """Return what is found by one who takes each word to hang on the one before it."""
    trees = read_trees(heads[wholes.rows], wholes.whole_of_row)
    places = [np.arange(len(tree.heads), dtype=np.float64) for tree in trees]
    if isinstance(probe, DistanceProbe):
        chains = [np.abs(place[:, None] - place) for place in places]
        return TreePredictions(score_distances(trees, chains), _hit(probe))
    return TreePredictions(score_depths(trees, places), _hit(probe))


def _hit(probe: StructuralProbe) -> str:
    return "uuas" if isinstance(probe, DistanceProbe) else "root_accuracy"


def text_answers(
    probe: AttentionPooledProbe, X: Features, codes: Codes, wholes: GroupedTokens, n_classes: int
) -> ClassPredictions:
    """Return what a fitted attention-pooled probe, whose labels are codes, says of each text."""
    rows = wholes.rows
    scores = probe.decision_function(X[rows], wholes.whole_of_row)
    place = np.searchsorted(rows, wholes.first)
    said = np.full((len(place), n_classes), -np.inf)
    if scores.ndim == 1:
        scores = np.column_stack([np.zeros_like(scores), scores])
    said[:, probe.classes_] = scores[place]
    return ClassPredictions(codes[wholes.first], said.argmax(axis=1), n_classes, said)
