"""Probes fitted to texts: on a weighted mean of tokens (attention-pooled), or maxima of heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch.nn.functional import cross_entropy, pad

from probekit.errors import DataError
from probekit.lazy_rows import Codes, Floats, LazyRows, Mask, Sum, put_on, rows_of_block
from probekit.probes.kinds import base
from probekit.probes.kinds.registry import POOLED_C, at_least, positive_grid
from probekit.probes.solve.fits import Judge, rate_scores
from probekit.probes.solve.layers import FittedLayers, with_reference
from probekit.probes.training_rows import Scaling
from probekit.products import without_tf32

# Largest gradient component at a solution, and smallest relative decrease of the objective.
TOLERANCE = 1e-6
LEAST_PROGRESS = 1e-10
HEADS = 4  # of multimax
KINKED_PROGRESS = 1e-6  # the smallest decrease of its objective
# Norm of the initial query. A zero query is a saddle point if the plain mean is uninformative.
FIRST_QUERY = 0.1


@dataclass(frozen=True, eq=False)
class TokensOfTexts:
    """Tokens sorted by text.

    Attributes:
        tokens: The tokens (n_tokens, n_features); those of a text are contiguous. An array or, for
            fits on an accelerator, a tensor.
        text: The number (n_tokens,) of each token's text, in ascending order: 0, 1, 2, ...
        typical: Which tokens (n_tokens,) feature scaling is estimated from; None means all.
        device: Where fits are computed.

    >>> TokensOfTexts(np.zeros((3, 1)), np.array([0, 0, 1])).starts.tolist()
    [0, 2]
    """

    tokens: Any
    text: Codes
    typical: Mask | None = None
    device: str = "cpu"

    @property
    def starts(self) -> Codes:
        """The index (n_texts,) of the first token of each text."""
        return np.flatnonzero(np.diff(self.text, prepend=-1))

    def take(self, texts: Mask) -> TokensOfTexts:
        """Return the texts selected by a mask (n_texts,), renumbered from 0."""
        selected = texts[self.text]
        typical = None if self.typical is None else self.typical[selected]
        text = (np.cumsum(texts) - 1)[self.text[selected]]
        is_lazy = isinstance(self.tokens, LazyRows)
        tokens = self.tokens.select(selected) if is_lazy else self.tokens[selected]
        return TokensOfTexts(tokens, text, typical, self.device)

    def pool(self, scores: Floats) -> Floats:
        """Return the softmax (n_tokens,) of the scores (n_tokens,) within each text.

        >>> texts = TokensOfTexts(np.zeros((3, 1)), np.array([0, 0, 1]))
        >>> texts.pool(np.array([2.0, 2.0, 9.0])).tolist()
        [0.5, 0.5, 1.0]
        """
        odds = np.exp(scores - np.maximum.reduceat(scores, self.starts)[self.text])
        return odds / np.add.reduceat(odds, self.starts)[self.text]


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionFit(FittedLayers):
    """Result of one fit: query (n_features,), and one layer for the weighted mean of raw tokens.

    >>> texts = TokensOfTexts(np.array([[0.0], [800.0]]), np.array([0, 0]))
    >>> layer = Scaling(np.zeros(1), np.ones(1)).fold(np.array([[2.0]]), np.array([0.5]))
    >>> fit = AttentionFit(classes=np.arange(2), layers=(layer,), query=np.array([1.0]))
    >>> fit.text_scores(texts).tolist()
    [[1600.5]]
    """

    query: Floats

    def text_scores(self, texts: TokensOfTexts) -> Floats:
        """Return the scores (n_texts, n_out) of each text's mean token, weighted by attention."""
        ((coef, intercept),) = self.layers
        weights = texts.pool(texts.tokens @ self.query)
        weighted = weights[:, None] * (texts.tokens @ coef.T)
        scores: Floats = np.add.reduceat(weighted, texts.starts, axis=0)
        return scores + intercept


def fit_attention(
    texts: TokensOfTexts, codes: Codes, C: float, max_iter: int, seed: int
) -> AttentionFit:
    """Return the fit that minimises sum(cross-entropy) + (|coef|^2 + |query|^2) / (2 C).

    Penalties apply to standardised tokens; `codes` (n_texts,) are the labels. The objective has
    several local minima; the seed of the initial query determines which of them is reached.

    >>> texts = TokensOfTexts(np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.arange(4))
    >>> fit = fit_attention(texts, np.array([0, 0, 1, 1]), C=1.0, max_iter=100, seed=0)
    >>> (fit.text_scores(texts)[:, 0] > 0).tolist(), fit.converged
    ([False, False, True, True], True)
    """
    rows = LazyRows.of(texts.tokens).on(texts.device)
    scaling = Scaling.standard(rows, texts.typical)
    scaled = replace(texts, tokens=scaling.lazily(rows).whole())
    objective = (_ObjectiveElsewhere if rows.is_elsewhere else PooledObjective)(scaled, codes, C)
    start, stopping = objective.start(seed), {"gtol": TOLERANCE, "ftol": LEAST_PROGRESS}
    result = base.minimum(objective, start, max_iter, texts.device, **stopping)
    query, coef, intercept = objective.parts(result.x)
    return AttentionFit(
        classes=objective.classes,
        layers=(scaling.fold(coef, intercept),),
        n_iter=result.nit,
        converged=bool(result.success),
        # Subtracting the mean shifts all scores of a text equally, which the softmax ignores.
        query=query / scaling.scale,
    )


class PooledObjective:
    """Mean cross-entropy plus penalty, with its gradient in query, coef and intercept.

    It is the objective of `fit_attention`, divided by the number of texts.
    """

    def __init__(self, texts: TokensOfTexts, codes: Codes, C: float) -> None:
        self.texts = texts
        self.classes, self.class_of_text = np.unique(codes, return_inverse=True)
        indicator = np.arange(len(self.classes))[:, None] == self.class_of_text
        # With two classes the first is the reference: its score is 0, without parameters.
        truth = indicator[1:] if len(indicator) == 2 else indicator
        self.truth = truth.astype(np.float64).T  # (n_texts, n_out)
        self.penalty = 1.0 / (C * len(codes))
        self.shape = (self.truth.shape[1], texts.tokens.shape[1])

    def start(self, seed: int) -> Floats:
        """Return a starting point: a random query, and coefficients and intercepts of 0."""
        (n_out, n_features), generator = self.shape, np.random.default_rng(seed)
        query = FIRST_QUERY / np.sqrt(n_features) * generator.normal(size=n_features)
        return np.concatenate([query, np.zeros(n_out * n_features + n_out)])

    def parts(self, point: Floats) -> tuple[Floats, Floats, Floats]:
        """Return query (n_features,), coef (n_out, n_features) and intercept (n_out,)."""
        n_out, n_features = self.shape
        query, coef, intercept = point[:n_features], point[n_features:-n_out], point[-n_out:]
        return query, coef.reshape(self.shape), intercept

    def __call__(self, point: Floats) -> tuple[float, Floats]:
        """Return the objective and its gradient at a point."""
        query, coef, intercept = self.parts(point)
        tokens, text, starts = self.texts.tokens, self.texts.text, self.texts.starts
        weights = self.texts.pool(tokens @ query)
        projected = tokens @ coef.T  # (n_tokens, n_out)
        scores = np.add.reduceat(weights[:, None] * projected, starts, axis=0) + intercept
        logs = log_softmax(with_reference(scores.T, len(self.classes)), axis=0)
        loss = -float(np.mean(logs[self.class_of_text, np.arange(len(scores))]))
        # Gradient of the mean loss in the scores, (n_texts, n_out). The last rows of `logs` belong
        # to the outputs; a reference class has the row before them.
        residual = (np.exp(logs[-scores.shape[1] :]).T - self.truth) / len(scores)
        # Derivatives of the loss in the weight of a token (`gain`) and, through the softmax of its
        # text, in its score tokens @ query (`excess`).
        gain = np.sum(projected * residual[text], axis=1)
        excess = weights * (gain - np.add.reduceat(weights * gain, starts)[text])
        query_gradient = excess @ tokens + self.penalty * query
        coef_gradient = (weights[:, None] * residual[text]).T @ tokens + self.penalty * coef
        penalty = 0.5 * self.penalty * (np.sum(coef**2) + np.sum(query**2))
        gradient = [query_gradient, coef_gradient.ravel(), residual.sum(axis=0)]
        return loss + float(penalty), np.concatenate(gradient)


class _ObjectiveElsewhere(PooledObjective):
    """The same on an accelerator, where texts are padded to one length, some at a time."""

    def __init__(self, texts: TokensOfTexts, codes: Codes, C: float) -> None:
        super().__init__(texts, codes, C)
        starts, lengths = texts.starts[:, None], np.bincount(texts.text)[:, None]
        place = np.arange(lengths.max())
        inside = place < lengths
        token = np.where(inside, starts + place, starts)
        step = max(1, rows_of_block(texts.tokens.shape[1], texts.device) // len(place))
        arrays = (put_on(texts.device, array) for array in (token, inside, self.class_of_text))
        self.blocks = list(zip(*(array.split(step) for array in arrays), strict=True))

    def __call__(self, point: Floats) -> tuple[float, Floats]:
        device, (n_out, _) = self.texts.device, self.shape
        loss, gradient = Sum(device), Sum(device)
        there = put_on(device, point).requires_grad_()
        for token, inside, classes in self.blocks:
            query, coef, intercept = self.parts(there)
            tokens = self.texts.tokens[token]  # (n_texts, longest, n_features)
            weights = (tokens @ query).masked_fill(~inside, -torch.inf).softmax(dim=1)
            scores = (weights[..., None] * (tokens @ coef.T)).sum(dim=1) + intercept
            logits = pad(scores, (len(self.classes) - n_out, 0))  # the reference class has 0
            of_block = cross_entropy(logits, classes, reduction="sum") / len(self.truth)
            loss.add(of_block.detach())
            gradient.add(*torch.autograd.grad(of_block, there))
        penalised = np.append(point[:-n_out], np.zeros(n_out))
        value = loss.array() + 0.5 * self.penalty * np.sum(penalised**2)
        return float(value), gradient.array() + self.penalty * penalised


class _MultiMax(PooledObjective):
    """Mean cross-entropy plus penalty where a text's score is the sum of the maxima of all heads.

    Maxima have kinks, at which L-BFGS may stop before its tolerance.
    """

    def start(self, seed: int) -> Floats:
        """Return a starting point: random weights, which differ between heads."""
        (n_out, n_features), generator = self.shape, np.random.default_rng(seed)
        weights = generator.normal(size=HEADS * n_out * n_features) / n_features
        return np.concatenate([weights, np.zeros(n_out)])

    def __call__(self, point: Floats) -> tuple[float, Floats]:
        n_out, n_features = self.shape
        there = torch.tensor(point, requires_grad=True)
        weights, intercept = there[:-n_out].reshape(-1, n_features), there[-n_out:]
        outputs = torch.as_tensor(self.texts.tokens) @ weights.T  # (n_tokens, HEADS * n_out)
        lengths = torch.as_tensor(np.bincount(self.texts.text))
        best = torch.segment_reduce(outputs, "max", lengths=lengths)
        scores = best.reshape(-1, HEADS, n_out).sum(dim=1) + intercept
        logits = pad(scores, (len(self.classes) - n_out, 0))  # the reference class has 0
        loss = cross_entropy(logits, torch.as_tensor(self.class_of_text))
        value = loss + 0.5 * self.penalty * (weights**2).sum()
        (gradient,) = torch.autograd.grad(value, there)
        return value.item(), gradient.numpy()


def fit_multimax(
    texts: TokensOfTexts, codes: Codes, C: float, max_iter: int, seed: int
) -> FittedLayers:
    """Return the layer (HEADS * n_out, n_features) of the heads, for raw tokens.

    It minimises sum(cross-entropy) + |weights|^2 / (2 C) for standardised tokens, on the CPU. Each
    head has its part of the intercept. It counts as converged unless it reached `max_iter`.
    """
    rows = LazyRows.of(texts.tokens)
    scaling = Scaling.standard(rows, texts.typical)
    objective = _MultiMax(replace(texts, tokens=scaling.lazily(rows).whole()), codes, C)
    start, stopping = objective.start(seed), {"gtol": TOLERANCE, "ftol": KINKED_PROGRESS}
    result = base.minimum(objective, start, max_iter, "cpu", **stopping)
    n_out, n_features = objective.shape
    weights, intercept = result.x[:-n_out].reshape(-1, n_features), result.x[-n_out:]
    layer = scaling.fold(weights, np.tile(intercept / HEADS, HEADS))
    return FittedLayers(objective.classes, (layer,), result.nit, result.status != 1)


@dataclass(eq=False, repr=False)
class TextProbe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """Base class of classifiers of texts: a text is the group of its tokens.

    Subclasses set `classes_` and `fit_`, which has `text_scores`. Without groups each row is a text
    of its own.

    Args:
        C: Inverse regularisation strength, for standardised tokens; of several values the one with
            the highest accuracy on held-out texts is selected.
        folds: Number of cross-validation folds that select C.
        max_iter: Maximum number of solver iterations.
        random_state: Random seed for the folds and initial weights.
        device: Where fits are computed; see `LazyRows.on`.
    """

    C: float | Sequence[float] = POOLED_C
    folds: int = 5
    max_iter: int = 1000
    random_state: int = 0
    device: str = "cpu"

    def read_texts(
        self,
        X: ArrayLike | LazyRows,
        y: ArrayLike,
        groups: ArrayLike | None,
        typical: Mask | None,
        units: ArrayLike | None,
    ) -> tuple[TokensOfTexts, Codes, NDArray[Any]]:
        """Return the tokens sorted by text, and code and group (n_texts,) of each text.

        The arguments are those of `AttentionPooledProbe.fit`. Lazy rows are not read.

        Raises:
            ConfigError: There are too few folds or iterations.
            DataError: see `AttentionPooledProbe.fit`.
        """
        at_least(self, folds=2, max_iter=1, random_state=0)
        if isinstance(X, LazyRows):
            rows: Any = X
            self.classes_, codes = base.class_codes(np.asarray(y))
        else:
            rows, self.classes_, codes = base.labelled_rows(self, X, y)
        texts, order = _texts(rows, base.units_of(rows, groups))
        texts = replace(
            texts, typical=None if typical is None else typical[order], device=self.device
        )
        token_codes = codes[order]
        text_codes = token_codes[texts.starts]
        differs = np.flatnonzero(token_codes != text_codes[texts.text])
        if len(differs):
            token = differs[0]
            first = self.classes_[text_codes[texts.text[token]]]
            other = self.classes_[token_codes[token]]
            raise DataError(
                f"The tokens of one text have the labels {first} and {other}. Give all tokens of a "
                "text the same label, or use a kind of probe that predicts each token by itself."
            )
        text_units: NDArray[Any] = np.arange(len(text_codes))
        if units is not None:
            text_units = base.units_of(rows, units)[order][texts.starts]
        return texts, text_codes, text_units

    def decision_function(self, X: ArrayLike, groups: ArrayLike | None = None) -> Floats:
        """Return the class scores (n_tokens, n_classes) of the text that each token belongs to.

        For two classes, return only the score (n_tokens,) of the second.
        """
        scores = self._scores(X, groups)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def class_scores(self, X: ArrayLike | LazyRows, groups: ArrayLike, n_classes: int) -> Floats:
        """Return the scores (n_texts, n_classes) of each text, in sorted order of the groups.

        The labels must be codes below `n_classes`; those that were not fitted get -inf.
        """
        texts, _ = self._validated(X, groups)
        found: Floats = self.fit_.by_class(self.fit_.text_scores(texts), n_classes)
        return found

    def predict(self, X: ArrayLike, groups: ArrayLike | None = None) -> NDArray[Any]:
        """Return the predicted label (n_tokens,) of each token's text."""
        scores = with_reference(self._scores(X, groups).T, len(self.classes_))
        found: NDArray[Any] = self.classes_[scores.argmax(axis=0)]
        return found

    def _scores(self, X: ArrayLike, groups: ArrayLike | None) -> Floats:
        """Return the scores (n_tokens, n_out) of each token's text, in the order of X."""
        texts, order = self._validated(X, groups)
        of_tokens: Floats = self.fit_.text_scores(texts)[texts.text]
        scores = np.empty_like(of_tokens)
        scores[order] = of_tokens
        return scores

    def _validated(
        self, X: ArrayLike | LazyRows, groups: ArrayLike | None
    ) -> tuple[TokensOfTexts, Codes]:
        """Return the validated tokens sorted by text, and the row (n_tokens,) of X of each."""
        check_is_fitted(self)
        rows: Any = X
        if not isinstance(X, LazyRows):
            rows = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return _texts(rows, base.units_of(rows, groups))


@dataclass(eq=False, repr=False)
class AttentionPooledProbe(TextProbe):
    """Logistic regression on the mean of a text's tokens, weighted by softmax(query . token).

    Without groups each row is a text of its own, and the probe is plain logistic regression.

    Args:
        C: Inverse regularisation strength of query and weights, for standardised tokens; of several
            values the one with the highest accuracy on held-out texts is selected.
        folds: Number of cross-validation folds that select C.
        max_iter: Maximum number of solver iterations.
        random_state: Random seed for the folds and the initial query.
        device: Where fits are computed; see `LazyRows.on`.

    Attributes:
        classes_: The sorted labels.
        query_: The query for raw, unscaled tokens, shape (n_features,).
        coef_: Weights for the weighted mean of raw tokens, shape (1, n_features) for two classes,
            else (n_classes, n_features).
        intercept_: Biases, shape (1,) or (n_classes,).
        C_: The selected C.
        n_iter_: Number of solver iterations.
        converged_: Whether the solver reached its tolerance.

    >>> X = [[9.0, 1.0], [0.0, -1.0], [0.0, 1.0], [9.0, -1.0], [9.0, 1.0], [0.0, 1.0]]
    >>> y, texts = ["up", "up", "down", "down", "up", "up"], [0, 0, 1, 1, 2, 2]
    >>> probe = AttentionPooledProbe(C=10.0).fit(X, y, texts)
    >>> probe.predict(X, texts).tolist(), probe.attention(X, texts).round().tolist()
    (['up', 'up', 'down', 'down', 'up', 'up'], [1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    """

    @without_tf32()
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike | None = None,
        typical: Mask | None = None,
        units: ArrayLike | None = None,
        judge: Judge | None = None,
    ) -> Self:
        """Return self, fitted on tokens X (n_tokens, n_features), y and groups (n_tokens,).

        Args:
            X: The tokens (n_tokens, n_features).
            y: The label (n_tokens,) of each token's text.
            groups: The text (n_tokens,) of each token; None makes each token a text.
            typical: Which tokens (n_tokens,) feature scaling is estimated from; None means all.
            units: The cross-validation group (n_tokens,) of each token. A text has the group of
                its first token; None makes each text its own group.
            judge: Rates the held-out scores of each C; None for the accuracy.

        Raises:
            ConfigError: A C is not positive, or there are too few folds or iterations.
            DataError: A text has two labels, there is only one class, the labels have several
                types, or there are fewer groups than folds.
        """
        grid, how = np.array(positive_grid("C", self.C)), (self.max_iter, self.random_state)
        texts, text_codes, text_units = self.read_texts(X, y, groups, typical, units)

        def held_out(outside: Mask) -> list[Floats]:
            """Return the scores of held-out texts at each C, by fits on the other texts."""
            inside, others = texts.take(~outside), texts.take(outside)
            fits = [fit_attention(inside, text_codes[~outside], C, *how) for C in grid]
            return [fit.by_class(fit.text_scores(others), len(self.classes_)) for fit in fits]

        rate = judge or rate_scores
        best = base.selected(self, len(grid), rate, text_codes, text_units, held_out)
        self.C_ = float(grid[best])
        solution = fit_attention(texts, text_codes, self.C_, *how)
        self.fit_ = replace(solution, classes=self.classes_)
        self.query_, (self.coef_, self.intercept_) = solution.query, solution.layers[0]
        self.n_iter_, self.converged_ = solution.n_iter, solution.converged
        base.warn_if_flat(self.coef_)
        return self

    def attention(self, X: ArrayLike, groups: ArrayLike | None = None) -> Floats:
        """Return the attention weight (n_tokens,) of each token; the weights of a text sum to 1."""
        texts, order = self._validated(X, groups)
        weights = np.empty(len(order))
        weights[order] = texts.pool(texts.tokens @ self.query_)
        return weights


def _texts(X: Any, groups: NDArray[np.generic]) -> tuple[TokensOfTexts, Codes]:
    """Return the tokens sorted by text, and the original row (n_tokens,) of each of them."""
    _, text_of_row = np.unique(groups, return_inverse=True)
    order = np.argsort(text_of_row, kind="stable")
    tokens = X.select(order) if isinstance(X, LazyRows) else X[order]
    return TokensOfTexts(tokens, text_of_row[order]), order
