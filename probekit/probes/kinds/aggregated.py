"""The aggregated probe: a linear probe of tokens, and a rule that combines their scores.

The rules `mean`, `max`, `rolling` and `softmax` share one probe of tokens: logistic regression on
all tokens, each with the label of its text, each text with the same total weight. It is fitted once
at every C, by blocks of tokens, so that these candidates cost hardly more than one probe.
`multimax` and `attention` have weights of their own, fitted to the scores of texts at each C and
fold; they hold all tokens in memory.

Each candidate, a rule at a C, is fitted on the training texts of each fold. Its scores of held-out
texts are calibrated by one slope, which is above 0, and one shift per class, because a maximum of
many scores is larger than each of them. The candidate whose held-out scores are rated best is
selected and fitted on all texts, with the same penalty per text as in the folds. Slope and shifts
are folded into the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import log_softmax

from probekit.lazy_rows import LazyRows
from probekit.probes.aggregation import AggregatedFit, Aggregation
from probekit.probes.arrays import Codes, Floats, Mask
from probekit.probes.data import fittable_insides, group_folds
from probekit.probes.kinds import base
from probekit.probes.kinds.attention_pooled import (
    TOLERANCE,
    PooledObjective,
    TextProbe,
    TokensOfTexts,
    fit_attention,
)
from probekit.probes.kinds.registry import AGGREGATE, C_GRID, parse_rule, positive_grid
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.fits import (
    Judge,
    Tuning,
    best_rated,
    held_out_scores,
    rate_scores,
    search_paths,
)
from probekit.probes.solve.layers import AffineLayer, FittedLayers, with_reference
from probekit.probes.solve.solver import Problem, Solver
from probekit.probes.training_rows import Scaling, measured
from probekit.products import without_tf32

HEADS = 4  # of multimax
KINKED_PROGRESS = 1e-6  # smallest relative decrease of the objective of multimax
LEAST_SLOPE, LARGEST_SLOPE = 1e-3, 1e3  # of the calibration, for scores of standard deviation 1
OWN_WEIGHTS = ("multimax", "attention")  # rules that do not use the shared probe of tokens


class _MultiMax(PooledObjective):
    """Mean cross-entropy plus penalty where a text's score is the sum of the maxima of all heads.

    The gradient is that of the tokens where the maxima are. Maxima have kinks, at which L-BFGS may
    stop before its tolerance.
    """

    def __init__(self, texts: TokensOfTexts, codes: Codes, C: float, sign: int) -> None:
        super().__init__(texts, codes, C)
        n_out, n_features = self.shape
        self.sign, self.shape = sign, (HEADS * n_out, n_features)
        self.n_out = n_out

    def start(self, generator: np.random.Generator) -> Floats:
        """Return a starting point: random weights, which differ between heads."""
        weights = generator.normal(size=self.shape) / self.shape[1]
        return np.concatenate([weights.ravel(), np.zeros(self.n_out)])

    def __call__(self, point: Floats) -> tuple[float, Floats]:
        weights, intercept = point[: -self.n_out].reshape(self.shape), point[-self.n_out :]
        tokens, text, starts = self.texts.tokens, self.texts.text, self.texts.starts
        outputs = self.sign * (tokens @ weights.T)  # (n_tokens, heads * n_out)
        best = np.maximum.reduceat(outputs, starts)
        # The first token of each text with the maximum of each head, (n_texts, heads * n_out).
        place = np.where(outputs == best[text], np.arange(len(tokens))[:, None], len(tokens))
        top = np.minimum.reduceat(place, starts)
        scores = self.sign * best.reshape(len(best), HEADS, self.n_out).sum(axis=1) + intercept
        logs = log_softmax(with_reference(scores.T, len(self.classes)), axis=0)
        loss = -float(np.mean(logs[self.class_of_text, np.arange(len(scores))]))
        residual = (np.exp(logs[-self.n_out :]).T - self.truth) / len(scores)
        of_heads = [residual[:, n % self.n_out] @ tokens[top[:, n]] for n in range(len(weights))]
        gradient = np.array(of_heads) + self.penalty * weights
        value = loss + 0.5 * self.penalty * float(np.sum(weights**2))
        return value, np.concatenate([gradient.ravel(), residual.sum(axis=0)])


def fit_multimax(
    texts: TokensOfTexts, codes: Codes, C: float, max_iter: int, seed: int, sign: int = 1
) -> FittedLayers:
    """Return the layer (HEADS * n_out, n_features) of the heads, for raw tokens.

    It minimises sum(cross-entropy) + |weights|^2 / (2 C) for standardised tokens, on the CPU. Each
    head has its part of the intercept. It counts as converged unless it reached `max_iter`.
    """
    rows = LazyRows.of(texts.tokens)
    scaling = Scaling.standard(measured(rows, texts.typical))
    scaled = replace(texts, tokens=scaling.lazily(rows).whole())
    objective = _MultiMax(scaled, codes, C, sign)
    options: dict[str, float] = {"maxiter": max_iter, "maxfun": 4 * max_iter}
    options |= {"gtol": TOLERANCE, "ftol": KINKED_PROGRESS}
    start = objective.start(np.random.default_rng(seed))
    result: Any = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    n_out = objective.n_out
    layer = scaling.fold(
        result.x[:-n_out].reshape(objective.shape), np.tile(result.x[-n_out:] / HEADS, HEADS)
    )
    n_iter = max(int(result.nit), 1)
    return FittedLayers(objective.classes, (layer,), n_iter, converged=result.status != 1)


def calibration(scores: Floats, codes: Codes, n_classes: int) -> tuple[float, Floats]:
    """Return slope and shift (n_out,) that minimise the cross-entropy of slope * score + shift.

    The slope is above 0, so that the order of the texts does not change.

    >>> scores, codes = np.array([[4.0], [5.0], [5.0], [6.0]]), np.array([0, 1, 0, 1])
    >>> slope, shift = calibration(scores, codes, n_classes=2)
    >>> bool(slope > 0), bool(abs(slope * 5 + shift[0]) < 0.1)
    (True, True)
    """
    mean, unit = scores.mean(axis=0), float(scores.std(axis=0).mean()) or 1.0
    scaled = (scores - mean) / unit
    truth = (np.arange(n_classes) == codes[:, None])[:, -scores.shape[1] :]

    def objective(point: Floats) -> tuple[float, Floats]:
        """Return the mean cross-entropy and its gradient."""
        logs = log_softmax(with_reference((point[0] * scaled + point[1:]).T, n_classes), axis=0)
        residual = (np.exp(logs[-scores.shape[1] :]).T - truth) / len(codes)
        gradient = np.append(np.sum(residual * scaled), residual.sum(axis=0))
        return -float(np.mean(logs[codes, np.arange(len(codes))])), gradient

    bounds = [(LEAST_SLOPE, LARGEST_SLOPE), *[(None, None)] * scores.shape[1]]
    start = np.append(1.0, np.zeros(scores.shape[1]))
    point = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    slope = float(point[0]) / unit
    return slope, point[1:] - slope * mean


class RuleScores(NamedTuple):
    """A rule at its best C: rating and scores (n_known, n_classes) of held-out texts."""

    C: float
    rating: float
    scores: Floats


@dataclass(eq=False, repr=False)
class AggregatedProbe(TextProbe):
    """A linear probe of tokens, and a rule that combines their scores into that of a text.

    Rule and C are selected together, by cross-validation over texts; ties go to the first rule,
    then to the smallest C.

    Args:
        C: Candidate inverse regularisation strengths, for standardised tokens.
        folds: Number of cross-validation folds that select rule and C.
        max_iter: Maximum number of solver iterations.
        random_state: Random seed for the folds and initial weights.
        device: Where fits are computed; see `LazyRows.on`.
        aggregate: Candidate rules; see `probekit.probes.aggregation`.

    Attributes:
        classes_: The sorted labels.
        fit_: The selected fit, an `AggregatedFit`.
        rule_: The selected rule, such as `rolling:10`.
        C_: The selected C.
        of_rules_: The `RuleScores` of each rule.
        known_: Mask (n_texts,) of the texts that a fit held out. Those of a fold whose other texts
            have a single label are left out.
        held_out_: The scores (n_known, n_classes) of these texts by the fits that held them out, at
            the selected rule and C.
        fold_of_text_: The fold (n_known,) of these texts.
        n_iter_: Number of solver iterations.
        converged_: Whether the solver reached its tolerance.

    >>> X = [[0.0], [0.0], [9.0], [0.0], [0.0], [0.0], [0.0], [9.0], [0.0], [0.0]]
    >>> y, texts = ["no"] * 2 + ["yes"] * 3 + ["no"] * 1 + ["yes"] * 2 + ["no"] * 2, [0, 0, 1, 1, 1,
    ...     2, 3, 3, 4, 4]
    >>> probe = AggregatedProbe(folds=2, aggregate=("max",)).fit(X, y, texts)
    >>> probe.rule_, probe.predict(X, texts).tolist() == y
    ('max', True)
    """

    C: float | Sequence[float] = C_GRID
    aggregate: Sequence[str] = AGGREGATE

    @without_tf32()
    def fit(
        self,
        X: ArrayLike | LazyRows,
        y: ArrayLike,
        groups: ArrayLike | None = None,
        typical: Mask | None = None,
        units: ArrayLike | None = None,
        judge: Judge | None = None,
        positive: Any = None,
    ) -> Self:
        """Return self, fitted on tokens X (n_tokens, n_features), y and groups (n_tokens,).

        Args:
            X: The tokens (n_tokens, n_features), those of a text in their order.
            y: The label (n_tokens,) of each token's text.
            groups: The text (n_tokens,) of each token; None makes each token a text.
            typical: Which tokens (n_tokens,) feature scaling is estimated from; None means all.
            units: The cross-validation group (n_tokens,) of each token; see
                `AttentionPooledProbe.fit`.
            judge: Rates the held-out scores of each candidate; None for the accuracy.
            positive: The label, of two, whose evidence a maximum looks for; None for the second.

        Raises:
            ConfigError: A C is not positive, a rule does not exist or has a wrong number, or there
                are too few folds or iterations.
            DataError: see `AttentionPooledProbe.fit`.
        """
        grid, rules = positive_grid("C", self.C), list(self.aggregate)
        own = {rule for rule in rules if parse_rule(rule)[0] in OWN_WEIGHTS}
        texts, codes, text_units = self.read_texts(X, y, groups, typical, units)
        n_classes = len(self.classes_)
        n_out = 1 if n_classes == 2 else n_classes
        sign = -1 if n_classes == 2 and positive == self.classes_[0] else 1
        folds = group_folds(codes, text_units, self.folds, self.random_state)
        fittable_insides(codes, folds)  # raises an error if no fold can be fitted
        # Texts of folds whose other texts have a single label are not held out.
        used = [fold for fold in np.unique(folds) if len(np.unique(codes[folds != fold])) > 1]
        known = np.isin(folds, used)
        others = texts.take(known)
        fold_of_token = np.searchsorted(used, folds[known][others.text])
        rows = LazyRows.of(texts.tokens).on(self.device)
        weights = 1.0 / np.bincount(texts.text)[texts.text]  # of a text together 1
        shares = [(folds[texts.text] != fold) * weights for fold in used]
        solver = Solver(rows, [*shares, weights], typical=texts.typical)
        stopping = StoppingRule(max_iter=self.max_iter)
        # The candidates: rule, C and aggregation, and their held-out scores (n_known, n_out).
        candidates: list[tuple[str, float, Aggregation]] = []
        scores: list[Floats] = []
        if len(own) < len(rules):
            (paths,) = search_paths(
                solver, [codes[texts.text]], grid, Tuning(stopping), lambda _: None
            )
            inside = rows.select(known[texts.text])
            of_tokens = _finite(held_out_scores(inside, paths, fold_of_token, n_classes))
        for rule, C in product(rules, grid):
            if rule in own:
                candidates.append((rule, C, Aggregation(rule, sign)))
                scores.append(self._own_scores(rule, C, texts, codes, folds, used, sign)[known])
            else:
                outputs = of_tokens[grid.index(C)][:, -n_out:]
                candidates.append((rule, C, Aggregation(rule, sign, outputs.std() or 1.0)))
                scores.append(candidates[-1][-1].of_texts(outputs, others.starts, n_out))
        truth, rate = codes[known], judge or rate_scores
        calibrations = [calibration(one, truth, n_classes) for one in scores]
        held_out = [
            with_reference((slope * one + shift).T, n_classes).T
            for one, (slope, shift) in zip(scores, calibrations, strict=True)
        ]
        best = best_rated(rate, truth, held_out, folds[known])
        self.rule_, self.C_, aggregation = candidates[best]
        rated = [rate(truth, output, folds[known]) for output in held_out]
        worst_first = np.argsort(-np.nan_to_num(rated, nan=-np.inf), kind="stable")[::-1]
        of_rules = {
            candidates[at][0]: RuleScores(candidates[at][1], rated[at], held_out[at])
            for at in worst_first
        }
        self.of_rules_ = {rule: of_rules[rule] for rule in rules}
        self.known_, self.held_out_, self.fold_of_text_ = known, held_out[best], folds[known]
        # The penalty per text is that of the folds, so that scores keep the calibrated scale.
        C = self.C_ * float(np.mean([np.mean(folds != fold) for fold in used]))
        if self.rule_ in own:
            final = self._own_fit(self.rule_, C, texts, codes, sign)
        else:
            (fit,) = solver.solve([Problem(codes[texts.text], C, len(shares))], stopping)
            final = _with_rule(fit, aggregation)
        self.fit_ = replace(final.calibrated(*calibrations[best]), classes=self.classes_)
        self.n_iter_, self.converged_ = max(final.n_iter, 1), final.converged
        base.warn_if_flat(final.layers[0].weight)
        return self

    def _own_scores(
        self,
        rule: str,
        C: float,
        texts: TokensOfTexts,
        codes: Codes,
        folds: Codes,
        used: Sequence[int],
        sign: int,
    ) -> Floats:
        """Return the held-out scores (n_texts, n_out) of a rule with weights of its own."""
        n_classes = len(self.classes_)
        scores = np.zeros((len(codes), n_classes))
        for fold in used:
            inside = folds != fold
            fit = self._own_fit(rule, C, texts.take(inside), codes[inside], sign)
            scores[~inside] = fit.by_class(fit.text_scores(texts.take(~inside)), n_classes)
        return _finite(scores)[:, -1 if n_classes == 2 else -n_classes :]

    def _own_fit(
        self, rule: str, C: float, texts: TokensOfTexts, codes: Codes, sign: int
    ) -> AggregatedFit:
        """Return the fit of a rule with weights of its own."""
        if rule == "multimax":
            fit = fit_multimax(texts, codes, C, self.max_iter, self.random_state, sign)
            return _with_rule(fit, Aggregation(rule, sign))
        pooled = fit_attention(texts, codes, C, self.max_iter, self.random_state)
        ((weight, bias),) = pooled.layers
        layer = AffineLayer(np.vstack([weight, pooled.query]), np.append(bias, 0.0))
        return _with_rule(replace(pooled, layers=(layer,)), Aggregation(rule, sign))


def _with_rule(fit: FittedLayers, aggregation: Aggregation) -> AggregatedFit:
    """Return a fit of tokens with the rule that scores texts."""
    return AggregatedFit(
        classes=fit.classes,
        layers=fit.layers,
        n_iter=fit.n_iter,
        converged=fit.converged,
        aggregation=aggregation,
    )


def _finite(scores: Floats) -> Floats:
    """Return scores with -inf, of classes that were not fitted, below all others."""
    return np.where(np.isinf(scores), scores[np.isfinite(scores)].min() - 1, scores)
