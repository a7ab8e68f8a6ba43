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
An affine map calibrates the scores of texts.

This module imports neither torch nor scikit-learn: saved probes are applied without them.

Source: McKenzie et al. (2025), Detecting High-Stakes Interactions with Activation Probes, for mean,
max, rolling, softmax and attention; Kramár et al. (2026), Building Production-Ready Probes for
Gemini, section 3, for multimax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel

from probekit.probes.arrays import Codes, Floats
from probekit.probes.kinds.registry import parse_rule
from probekit.probes.solve.layers import FittedLayers

if TYPE_CHECKING:  # that module imports torch and scikit-learn
    from probekit.probes.kinds.attention_pooled import TokensOfTexts


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
