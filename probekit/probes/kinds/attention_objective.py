"""Joint optimisation of the query and the classifier of an attention-pooled probe."""

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

# Largest gradient component at a solution, and smallest relative decrease of the objective.
TOLERANCE = 1e-6
LEAST_PROGRESS = 1e-10
# Norm of the initial query. A zero query is a saddle point if the plain mean is uninformative.
FIRST_QUERY = 0.1


@dataclass(frozen=True, eq=False)
class TokensOfTexts:
    """Tokens sorted by text.

    Attributes:
        tokens: The tokens (n_tokens, n_features); those of a text are contiguous.
        text: The number (n_tokens,) of each token's text, from 0.
        typical: Which tokens (n_tokens,) feature scaling is estimated from; None means all.

    >>> TokensOfTexts(np.zeros((3, 1)), np.array([0, 0, 1])).starts.tolist()
    [0, 2]
    """

    tokens: NDArray[np.floating]
    text: Codes
    typical: NDArray[np.bool_] | None = None

    @property
    def starts(self) -> Codes:
        """The index (n_texts,) of the first token of each text."""
        return np.flatnonzero(np.diff(self.text, prepend=-1))

    def take(self, texts: NDArray[np.bool_]) -> TokensOfTexts:
        """Return the texts selected by a mask (n_texts,), renumbered from 0."""
        selected = texts[self.text]
        typical = None if self.typical is None else self.typical[selected]
        text = (np.cumsum(texts) - 1)[self.text[selected]]
        return TokensOfTexts(self.tokens[selected], text, typical)

    def pool(self, scores: Floats) -> Floats:
        """Return the softmax (n_tokens,) of the scores (n_tokens,) within each text.

        >>> texts = TokensOfTexts(np.zeros((3, 1)), np.array([0, 0, 1]))
        >>> texts.pool(np.array([2.0, 2.0, 9.0])).tolist()
        [0.5, 0.5, 1.0]
        """
        odds = np.exp(scores - np.maximum.reduceat(scores, self.starts)[self.text])
        weights: Floats = odds / np.add.reduceat(odds, self.starts)[self.text]
        return weights


@dataclass(frozen=True, eq=False)
class AttentionFit:
    """Result of one fit: query (n_features,), and linear classifier of the weighted mean.

    Query and classifier apply to raw, unscaled tokens. `coef` (n_out, n_features) and `intercept`
    (n_out,) are as in `Fit`.
    """

    classes: Codes
    query: Floats
    coef: Floats
    intercept: Floats
    n_iter: int
    converged: bool

    def class_scores(self, texts: TokensOfTexts, n_classes: int) -> Floats:
        """Return the scores (n_texts, n_classes); -inf for a class that was not fitted."""
        own = text_scores(texts, self.query, self.coef, self.intercept)
        scores = np.full((len(own), n_classes), -np.inf)
        scores[:, self.classes] = with_reference(own.T, len(self.classes)).T
        return scores

    def guess(self, texts: TokensOfTexts) -> Codes:
        """Return the label code (n_texts,) with the highest score for each text."""
        codes: Codes = self.class_scores(texts, int(self.classes.max()) + 1).argmax(axis=1)
        return codes


def text_scores(texts: TokensOfTexts, query: Floats, coef: Floats, intercept: Floats) -> Floats:
    """Return the scores (n_texts, n_out) of each text's mean token, weighted by softmax attention.

    >>> texts = TokensOfTexts(np.array([[0.0], [800.0]]), np.array([0, 0]))
    >>> text_scores(texts, np.array([1.0]), np.array([[2.0]]), np.array([0.5])).tolist()
    [[1600.5]]
    """
    weights = texts.pool(texts.tokens @ query)
    scores: Floats = np.add.reduceat(
        weights[:, None] * (texts.tokens @ coef.T), texts.starts, axis=0
    )
    return scores + intercept


def fit_attention(
    texts: TokensOfTexts, codes: Codes, C: float, max_iter: int, seed: int
) -> AttentionFit:
    """Return the fit that minimises sum(cross-entropy) + (|coef|^2 + |query|^2) / (2 C).

    Penalties apply to standardised tokens; `codes` (n_texts,) are the labels. The objective has
    several local minima; the seed of the initial query determines which of them is reached.

    >>> texts = TokensOfTexts(np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.arange(4))
    >>> fit = fit_attention(texts, np.array([0, 0, 1, 1]), C=1.0, max_iter=100, seed=0)
    >>> fit.guess(texts).tolist(), fit.converged
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
    return AttentionFit(
        classes=objective.classes,
        # Subtracting the mean shifts all scores of a text equally, which the softmax ignores.
        query=query / scaling.scale,
        coef=layer.weight,
        intercept=layer.bias,
        n_iter=max(int(result.nit), 1),
        converged=bool(result.success),
    )


class _Objective:
    """Mean cross-entropy plus penalty, with its gradient in query, coef and intercept."""

    def __init__(self, texts: TokensOfTexts, codes: Codes, C: float) -> None:
        self.texts = texts
        self.classes, own = np.unique(codes, return_inverse=True)
        indicator = np.arange(len(self.classes))[:, None] == own
        # With two classes the first is the reference: its score is 0, without parameters.
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
        # Derivative of the loss in a token's weight, minus the weighted mean over the text.
        gain = np.sum(projected * residual[text], axis=1)
        excess = weights * (gain - np.add.reduceat(weights * gain, starts)[text])
        query_gradient = excess @ tokens + self.penalty * query
        coef_gradient = (weights[:, None] * residual[text]).T @ tokens + self.penalty * coef
        penalty = 0.5 * self.penalty * (np.sum(coef**2) + np.sum(query**2))
        gradient = [query_gradient, coef_gradient.ravel(), residual.sum(axis=0)]
        return loss + float(penalty), np.concatenate(gradient)

    def _cross_entropy(self, scores: Floats) -> tuple[float, Floats]:
        """Return the mean loss, and its gradient (n_texts, n_out) in the scores."""
        logs = log_softmax(with_reference(scores.T, len(self.classes)), axis=0)
        loss = -float(np.mean(logs[self.own, np.arange(len(self.own))]))
        predicted = np.exp(logs[-scores.shape[1] :]).T
        residual: Floats = (predicted - self.truth) / len(scores)
        return loss, residual
