"""Learning where to look in a text, and what to read there, in one objective."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax

from probekit.probes.kinds.scaling import Scaling, measured
from probekit.probes.solve.design import Floats
from probekit.probes.solve.layers import with_reference
from probekit.probes.solve.solver import Codes

# Largest gradient of the mean objective, and least share of it that a step must win.
TOLERANCE = 1e-6
LEAST_PROGRESS = 1e-10
# A query of zeros is a saddle where the plain mean says nothing; this is small enough to be near.
FIRST_QUERY = 0.1


@dataclass(frozen=True, eq=False)
class TokensOfTexts:
    """Tokens (n_tokens, n_features), those of one text together; `text` (n_tokens,) counts texts.

    `typical` (n_tokens,) says which tokens features are scaled by; None means all.

    >>> TokensOfTexts(np.zeros((3, 1)), np.array([0, 0, 1])).starts.tolist()
    [0, 2]
    """

    tokens: NDArray[np.floating]
    text: Codes
    typical: NDArray[np.bool_] | None = None

    @property
    def starts(self) -> Codes:
        """The first token (n_texts,) of each text."""
        return np.flatnonzero(np.diff(self.text, prepend=-1))

    def take(self, texts: NDArray[np.bool_]) -> TokensOfTexts:
        """Return these of the texts (n_texts,), counted anew."""
        kept = texts[self.text]
        typical = None if self.typical is None else self.typical[kept]
        return TokensOfTexts(self.tokens[kept], (np.cumsum(texts) - 1)[self.text[kept]], typical)

    def pool(self, scores: Floats) -> Floats:
        """Return weights (n_tokens,) from scores (n_tokens,): a softmax within each text.

        >>> texts = TokensOfTexts(np.zeros((3, 1)), np.array([0, 0, 1]))
        >>> texts.pool(np.array([2.0, 2.0, 9.0])).tolist()
        [0.5, 0.5, 1.0]
        """
        odds = np.exp(scores - np.maximum.reduceat(scores, self.starts)[self.text])
        weights: Floats = odds / np.add.reduceat(odds, self.starts)[self.text]
        return weights


@dataclass(frozen=True, eq=False)
class AttentionReader:
    """A query (n_features,), and the classifier of the tokens' mean weighted by it; for raw rows.

    `coef` (n_out, n_features) and `intercept` (n_out,) are as in `Fit`.
    """

    classes: Codes
    query: Floats
    coef: Floats
    intercept: Floats
    n_iter: int
    converged: bool

    def guess(self, texts: TokensOfTexts) -> Codes:
        """Return the code with the highest score (n_texts,) of each text."""
        scores = text_scores(texts, self.query, self.coef, self.intercept)
        codes: Codes = self.classes[with_reference(scores.T, len(self.classes)).argmax(axis=0)]
        return codes


def text_scores(texts: TokensOfTexts, query: Floats, coef: Floats, intercept: Floats) -> Floats:
    """Return the scores (n_texts, n_out) of the tokens' mean, weighted by their match to the query.

    >>> texts = TokensOfTexts(np.array([[0.0], [800.0]]), np.array([0, 0]))
    >>> text_scores(texts, np.array([1.0]), np.array([[2.0]]), np.array([0.5])).tolist()
    [[1600.5]]
    """
    weights = texts.pool(texts.tokens @ query)
    scores: Floats = np.add.reduceat(
        weights[:, None] * (texts.tokens @ coef.T), texts.starts, axis=0
    )
    return scores + intercept


def learn(
    texts: TokensOfTexts, codes: Codes, C: float, max_iter: int, seed: int
) -> AttentionReader:
    """Return the reader with the least sum(cross-entropy) + (|coef|^2 + |query|^2) / (2 C).

    Penalties are on standardised tokens; `codes` (n_texts,) are the labels. The objective has
    several minima, and the seed decides in which of them the descent from a small query ends.

    >>> texts = TokensOfTexts(np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.arange(4))
    >>> reader = learn(texts, np.array([0, 0, 1, 1]), C=1.0, max_iter=100, seed=0)
    >>> reader.guess(texts).tolist(), reader.converged
    ([0, 0, 1, 1], True)
    """
    scaling = Scaling.standard(measured(texts.tokens, texts.typical))
    objective = _Objective(TokensOfTexts(scaling.apply(texts.tokens), texts.text), codes, C)
    result = minimize(
        objective,
        objective.start(np.random.default_rng(seed)),
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": max_iter,
            "maxfun": 4 * max_iter,
            "gtol": TOLERANCE,
            "ftol": LEAST_PROGRESS,
        },
    )
    query, coef, intercept = objective.parts(result.x)
    layer = scaling.fold(coef, intercept)
    return AttentionReader(
        classes=objective.classes,
        # The scaler's mean adds one number to all scores of a text, which the softmax ignores.
        query=query / scaling.scale,
        coef=layer.weight,
        intercept=layer.bias,
        n_iter=max(int(result.nit), 1),
        converged=bool(result.success),
    )


class _Objective:
    """The mean cross-entropy and penalty, with its gradient, over query, coef and intercept."""

    def __init__(self, texts: TokensOfTexts, codes: Codes, C: float) -> None:
        self.texts = texts
        self.classes, own = np.unique(codes, return_inverse=True)
        indicator = np.arange(len(self.classes))[:, None] == own
        # With two classes the first is the reference: its score is zero and has no parameters.
        truth = indicator[1:] if len(indicator) == 2 else indicator
        self.truth = truth.astype(np.float64).T  # (n_texts, n_out)
        self.own = own
        self.penalty = 1.0 / (C * len(own))
        self.shape = (self.truth.shape[1], texts.tokens.shape[1])

    def start(self, generator: np.random.Generator) -> Floats:
        n_out, n_features = self.shape
        query = FIRST_QUERY / np.sqrt(n_features) * generator.normal(size=n_features)
        return np.concatenate([query, np.zeros(n_out * n_features + n_out)])

    def parts(self, point: Floats) -> tuple[Floats, Floats, Floats]:
        n_out, n_features = self.shape
        query, coef, intercept = np.split(point, [n_features, n_features * (n_out + 1)])
        return query, coef.reshape(self.shape), intercept

    def __call__(self, point: Floats) -> tuple[float, Floats]:
        query, coef, intercept = self.parts(point)
        tokens, text, starts = self.texts.tokens, self.texts.text, self.texts.starts
        weights = self.texts.pool(tokens @ query)
        projected = tokens @ coef.T  # (n_tokens, n_out)
        scores = np.add.reduceat(weights[:, None] * projected, starts, axis=0) + intercept
        loss, residual = self._cross_entropy(scores)
        # What a token adds to the loss when it gains weight, less what the text's mean adds.
        gain = np.sum(projected * residual[text], axis=1)
        excess = weights * (gain - np.add.reduceat(weights * gain, starts)[text])
        query_gradient = excess @ tokens + self.penalty * query
        coef_gradient = (weights[:, None] * residual[text]).T @ tokens + self.penalty * coef
        penalty = 0.5 * self.penalty * (np.sum(coef**2) + np.sum(query**2))
        gradient = [query_gradient, coef_gradient.ravel(), residual.sum(axis=0)]
        return loss + float(penalty), np.concatenate(gradient)

    def _cross_entropy(self, scores: Floats) -> tuple[float, Floats]:
        """Return the mean loss, and its gradient at the scores (n_texts, n_out)."""
        logs = log_softmax(with_reference(scores.T, len(self.classes)), axis=0)
        loss = -float(np.mean(logs[self.own, np.arange(len(self.own))]))
        guessed = np.exp(logs[-scores.shape[1] :]).T
        residual: Floats = (guessed - self.truth) / len(scores)
        return loss, residual
