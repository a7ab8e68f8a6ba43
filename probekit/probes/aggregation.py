"""Rules that combine the scores of a text's tokens into a score of the text.

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

This module imports neither torch nor scikit-learn: saved probes are applied without them.

Source: McKenzie et al. (2025), Detecting High-Stakes Interactions with Activation Probes, for mean,
max, rolling, softmax and attention; Kramár et al. (2026), Building Production-Ready Probes for
Gemini, section 3, for multimax.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from probekit.probes.kinds.registry import parse_rule
from probekit.probes.solve.layers import AffineLayer, FittedLayers

if TYPE_CHECKING:  # that module imports torch and scikit-learn
    from probekit.probes.kinds.attention_pooled import TokensOfTexts

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

LEAST_LOG_WEIGHT = -700.0  # the smallest log weight of a token, whose exponential is above 0


@dataclass(frozen=True)
class Aggregation:
    """A rule, and how it reads the outputs of a probe of tokens.

    Attributes:
        rule: The rule, such as `rolling:10`.
        sign: -1 if the first of two labels is the positive one, so that a maximum is a maximum of
            its score, which is minus that of the second label; else 1.
        unit: Unit of the temperature of `softmax`: a standard deviation of the scores of tokens.
    """

    rule: str
    sign: int = 1
    unit: float = 1.0

    def running(self, outputs: Floats, n_out: int) -> Floats:
        """Return the score (n_tokens, n_out) of one text up to each of its tokens.

        Args:
            outputs: The outputs (n_tokens, n_columns) of the probe of tokens: n_out scores, of
                `multimax` those of each head, of `attention` followed by the score of the query.
            n_out: Number of scores of a text: 1 for two classes, else one per class.

        >>> scores = np.array([[0.0], [4.0], [-1.0]])
        >>> [Aggregation(rule).running(scores, 1).ravel().tolist() for rule in ("mean", "max")]
        [[0.0, 2.0, 1.0], [0.0, 4.0, 4.0]]
        >>> Aggregation("rolling:2").running(scores, 1).ravel().tolist()
        [0.0, 2.0, 2.0]
        """
        name, number = parse_rule(self.rule)
        n_read = np.arange(1, len(outputs) + 1)[:, None]
        scores = self.sign * (outputs[:, :n_out] if name == "attention" else outputs)
        if name == "mean":
            found = np.cumsum(scores, axis=0) / n_read
        elif name == "max":
            found = np.maximum.accumulate(scores, axis=0)
        elif name == "multimax":
            found = (
                np.maximum.accumulate(scores, axis=0).reshape(len(scores), -1, n_out).sum(axis=1)
            )
        elif name == "rolling":
            # Before the first whole window, the mean of all tokens.
            sums, width = np.cumsum(scores, axis=0), int(number)
            found = sums / n_read
            found[width:] = (sums[width:] - sums[:-width]) / width
            found[width - 1 :] = np.maximum.accumulate(found[width - 1 :], axis=0)
        else:
            logs = outputs[:, n_out:] if name == "attention" else scores / (number * self.unit)
            weights = np.exp(np.maximum(logs - logs.max(axis=0), LEAST_LOG_WEIGHT))
            found = np.cumsum(weights * scores, axis=0) / np.cumsum(weights, axis=0)
        return self.sign * found

    def of_texts(self, outputs: Floats, starts: Codes, n_out: int) -> Floats:
        """Return the score (n_texts, n_out) of each text.

        Args:
            outputs: The outputs (n_tokens, n_columns) of all tokens, text by text.
            starts: The index (n_texts,) of the first token of each text.
            n_out: see `running`.
        """
        texts = np.split(outputs, starts[1:])
        return np.array([self.running(text, n_out)[-1] for text in texts])


@dataclass(frozen=True, eq=False, kw_only=True)
class AggregatedFit(FittedLayers):
    """Result of one fit: one layer that scores raw tokens, and the rule of a text."""

    aggregation: Aggregation

    @property
    def n_out(self) -> int:
        """Number of scores of a text: 1 for two classes, else one per class."""
        return 1 if len(self.classes) == 2 else len(self.classes)

    def text_scores(self, texts: TokensOfTexts) -> Floats:
        """Return the scores (n_texts, n_out) of each text."""
        outputs = self.scores(texts.tokens)
        return self.aggregation.of_texts(outputs, texts.starts, self.n_out)

    def calibrated(self, slope: float, shift: Floats) -> AggregatedFit:
        """Return the fit whose scores of texts are slope * score + shift (n_out,)."""
        ((weight, bias),) = self.layers
        weight, bias = slope * weight, slope * bias
        name, _ = parse_rule(self.aggregation.rule)
        if name == "multimax":  # each head gets its part of the shift
            bias = bias + np.tile(shift * len(shift) / len(bias), len(bias) // len(shift))
        else:
            bias[: self.n_out] += shift
        if name == "attention":  # the score of the query keeps its scale
            weight[self.n_out :] /= slope
        aggregation = replace(self.aggregation, unit=slope * self.aggregation.unit)
        return replace(self, layers=(AffineLayer(weight, bias),), aggregation=aggregation)
