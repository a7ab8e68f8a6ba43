"""Scores of texts, and the rules that combine those of their tokens.

The rules of aggregated probes:

    mean         mean over the tokens
    max          maximum over the tokens
    rolling:w    maximum over all windows of w tokens of the mean in the window
    softmax:t    mean weighted by the softmax of score / t: between mean and maximum, with t in
                 standard deviations of the scores of tokens
    multimax     sum over several heads of the maximum over the tokens
    attention    mean weighted by the softmax of a second score, that of a query

Every rule is defined by its running score: the score of the text up to each token. A causal model
computes the activations of a token from the text before it, so that the running score is what a
monitor would have seen while it read. The score of a text is its running score at the last token.
An affine map calibrates the scores of texts.

This module imports neither torch nor scikit-learn: saved probes are applied without them.

Source: McKenzie et al. (2025), Detecting High-Stakes Interactions with Activation Probes, for mean,
max, rolling, softmax and attention; Kramár et al. (2026), Building Production-Ready Probes for
Gemini, section 3, for multimax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from probekit.lazy_rows import Codes, Floats, LazyRows, Rows
from probekit.probes.data import ProbeData, typical_rows
from probekit.probes.kinds.registry import parse_rule
from probekit.probes.score.metrics import fixed_thresholds, with_alarms
from probekit.probes.score.scored import FitFacts, Scored, uninformed
from probekit.probes.settings import ProbeSpec
from probekit.probes.solve.layers import FittedLayers

if TYPE_CHECKING:  # these modules import torch and scikit-learn, or this one
    from probekit.probes.fitters import RowPredictions
    from probekit.probes.kinds.attention_pooled import TokensOfTexts
    from probekit.probes.prober import Prober
    from probekit.probes.split import SplitProber


class Aggregation(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """A rule, and how it reads the outputs of a probe of tokens.

    Attributes:
        rule: The rule, such as `rolling:10`.
        unit: Unit of the temperature of `softmax`: a standard deviation of the outputs.
        weight: Calibration (n_out, n_out) of the scores of a text, which it multiplies. It is below
            0 if the outputs are evidence for the first of two labels.
        bias: What is added to these scores (n_out,): one number for two classes, else one per
            class.
    """

    rule: str
    unit: float = 1.0
    weight: list[list[float]] = [[1.0]]
    bias: list[float] = [0.0]

    def running(self, outputs: Floats) -> Floats:
        """Return the score (n_tokens, n_out) of one text up to each of its tokens.

        The outputs (n_tokens, n_columns) of the probe of tokens are n_out scores; of `multimax`
        those of each head, of `attention` followed by the score of the query.

        >>> scores = np.array([[0.0], [4.0], [-1.0]])
        >>> Aggregation(rule="mean").running(scores).ravel().tolist()
        [0.0, 2.0, 1.0]
        >>> Aggregation(rule="rolling:2").running(scores).ravel().tolist()
        [0.0, 2.0, 2.0]
        """
        name, number = parse_rule(self.rule)
        n_read, n_out = np.arange(1, len(outputs) + 1)[:, None], len(self.bias)
        if name in ("mean", "rolling"):
            # Before the first whole window, a rolling mean is that of all tokens.
            sums, width = np.cumsum(outputs, axis=0), int(number) or len(outputs)
            found = sums / n_read
            found[width:] = (sums[width:] - sums[:-width]) / width
            found[width - 1 :] = np.maximum.accumulate(found[width - 1 :], axis=0)
        elif name in ("max", "multimax"):
            heads = np.maximum.accumulate(outputs, axis=0)
            found = heads.reshape(len(outputs), -1, n_out).sum(axis=1)
        else:
            own, query = outputs[:, :n_out], outputs[:, n_out:]
            logs = query if name == "attention" else own / (number * self.unit)
            # Sums of exponentials, as logarithms: exact for any range of scores.
            low = own.min(axis=0)
            with np.errstate(divide="ignore"):
                sums = np.logaddexp.accumulate(logs + np.log(own - low), axis=0)
            found = low + np.exp(sums - np.logaddexp.accumulate(logs, axis=0))
        scores: Floats = found @ np.transpose(self.weight) + self.bias
        return scores

    def of_texts(self, outputs: Floats, starts: Codes) -> Floats:
        """Return the score (n_texts, n_out) of each text.

        Args:
            outputs: The outputs (n_tokens, n_columns) of all tokens, text by text.
            starts: The index (n_texts,) of the first token of each text.
        """
        return np.array([self.running(text)[-1] for text in np.split(outputs, starts[1:])])


@dataclass(frozen=True, eq=False, kw_only=True)
class AggregatedFit(FittedLayers):
    """Result of one fit: one layer that scores raw tokens, and the rule of a text."""

    aggregation: Aggregation

    def text_scores(self, texts: TokensOfTexts) -> Floats:
        """Return the scores (n_texts, n_out) of each text."""
        return self.aggregation.of_texts(self.scores(texts.tokens), texts.starts)


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
    def of(cls, rows: Codes, examples: Codes | None) -> GroupedTokens:
        """Return the rows grouped by example; without `examples` each row is its own example.

        The first row of an example is the one that comes first in `rows`.

        >>> GroupedTokens.of(np.array([3, 4, 5]), np.array([0, 0, 0, 7, 7, 8])).first.tolist()
        [3, 5]
        """
        names = rows if examples is None else examples[rows]
        _, first, example_of_row = np.unique(names, return_index=True, return_inverse=True)
        return cls(rows, example_of_row, rows[first])


def first_rows(data: ProbeData) -> ProbeData:
    """Return the data with only the first row of each text in train and test.

    These rows represent whole texts, so they have no neighbouring words.
    """
    sides = (data.train, data.test)
    train, test = (GroupedTokens.of(np.sort(side), data.examples).first for side in sides)
    return replace(data, train=train, test=test, neighbours=None)


def outputs_of_rows(prober: Prober, outputs: Mapping[str, Floats] | None) -> Floats | None:
    """Return numbers of the output of each row (n_rows, n_outputs); None without them.

    If all kinds score texts, they are means over the rows of the text of each row.

    Args:
        prober: the prober of the rows.
        outputs: the numbers by name, each (n_rows,); None without them.
    """
    if outputs is None:
        return None
    numbers = np.column_stack(list(outputs.values()))
    examples = prober.data.examples
    if examples is None or not all(one.traits.scores_texts for one in prober.settings.specs):
        return numbers
    _, text, counts = np.unique(examples, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), numbers.shape[1]))
    np.add.at(sums, text, numbers)
    means: Floats = (sums / counts[:, None])[text]
    return means


def text_sides(prober: Prober) -> list[tuple[GroupedTokens, GroupedTokens | None]]:
    """Return the tokens of the fitted and of the tested texts of each split.

    The last fitted texts are those that `SiteResult.fits` of kinds that read texts are fitted on:
    with several splits those of all splits, and none of them is tested.
    """
    sides: list[tuple[GroupedTokens, GroupedTokens | None]] = []
    sides += [(split.train_tokens, split.test_tokens) for split in prober.splits]
    if prober.is_nested:
        every_row = np.concatenate([prober.data.train, prober.data.test])
        sides.append((prober.saved_rows.texts(every_row), None))
    return sides


def text_probe(split: SplitProber, spec: ProbeSpec, X: Rows, tokens: GroupedTokens) -> Any:
    """Return the probe of a kind that reads whole texts or dependency trees, fitted on some.

    X (n_rows, n_features) contains the features of all rows of the data.
    """
    data, rows = split.data, tokens.rows
    arguments: dict[str, Any] = {"typical": typical_rows(data, rows)}
    column, read = data.y if spec.task == "tree" else split.task, LazyRows.of(X).select(rows)
    if spec.traits.scores_texts:
        arguments |= {"units": data.groups[rows], "judge": split.fitted.judge(spec)}
    if spec.traits.scores_tokens:  # it does not need all rows in memory
        arguments["positive"] = data.positive_code
    inside = read if spec.traits.scores_tokens else read[:]
    return spec.build(split.settings).fit(inside, column[rows], tokens.example_of_row, **arguments)


def scores_of_texts(split: SplitProber, spec: ProbeSpec, X: Rows, target: str) -> list[Scored]:
    """Return the test score of a kind that reads whole texts or dependency trees.

    The validation score of an aggregated probe follows.

    There is no control task: a random label for each word would give a text several labels. The
    chance level of a kind that reads trees is the score of the linear chain.
    """
    data, train, test, fitted = split.data, split.train_tokens, split.test_tokens, split.fitted
    probe, groups = text_probe(split, spec, X, train), data.groups[test.first]
    facts = FitFacts(
        probe=spec.text,
        target=target,
        n_train=len(train.first),
        C=getattr(probe, "C_", None),
        n_iter=probe.n_iter_,
        converged=probe.converged_,
        seed=split.settings.seed,
    )
    if spec.task == "tree":
        heads, outside = data.y[test.rows], LazyRows.of(X)[test.rows]
        of_trees = probe.score_sentences(outside, heads, test.example_of_row)
        chain = probe.score_chain(heads, test.example_of_row)
        return [Scored((of_trees,), (chain,), groups, facts)]
    labels, scores_tokens = split.task[train.first], spec.traits.scores_tokens

    def predict(side: GroupedTokens) -> RowPredictions:
        """Return the predictions for some texts."""
        rows = LazyRows.of(X).select(side.rows)
        read = rows if scores_tokens else rows[:]
        scores = probe.class_scores(read, side.example_of_row, fitted.n_classes)
        return fitted.predictions(spec, split.task[side.first], scores, labels)

    predictions: Any = split.of_test(predict, test, train)
    validations = []
    if scores_tokens:
        folds = probe.fold_of_text_
        held_out: Any = fitted.held_out(spec, labels, probe.held_out_, folds)
        if fitted.positive is not None:
            predictions = with_alarms(predictions, fixed_thresholds(held_out))
        fewest = len(labels) - int(np.bincount(folds).max())
        of_folds = replace(facts, n_train=fewest, split="validation")
        chance, metric = (uninformed(labels, held_out),), split.settings.main_metric
        validations.append(Scored((held_out,), chance, data.groups[train.first], of_folds, metric))
    chance, fit = (uninformed(labels, predictions),), probe.fit_ if scores_tokens else None
    return [Scored((predictions,), chance, groups, facts, fit=fit), *validations]
