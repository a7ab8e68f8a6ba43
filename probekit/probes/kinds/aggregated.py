"""The aggregated probe: a linear probe of tokens, and a rule that combines their scores.

The rules `mean`, `max`, `rolling` and `softmax` share one probe of tokens: logistic regression on
all tokens, each with the label of its text, each text with the same total weight. It is fitted once
at every C, by blocks of tokens, so that these candidates cost hardly more than one probe.
`multimax` and `attention` have weights of their own, fitted to the scores of texts at each C and
fold; they hold all tokens in memory.

Each candidate, a rule at a C, is fitted on the texts of all folds but one, and scores the texts of
that one. Because a maximum of many scores is larger than each of them, one slope, which is above 0,
and one shift per class calibrate these scores; those of a fold are calibrated on the other folds.
The candidate whose held-out scores are rated best is selected, fitted on all texts, with the same
penalty per text as in the folds, and calibrated on all held-out scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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

    def start(self, generator: np.random.Generator) -> Floats:
        """Return a starting point: random weights, which differ between heads."""
        n_out, n_features = self.shape
        weights = generator.normal(size=HEADS * n_out * n_features) / n_features
        return np.concatenate([weights, np.zeros(n_out)])

    def __call__(self, point: Floats) -> tuple[float, Floats]:
        n_out, n_features = self.shape
        weights, intercept = point[:-n_out].reshape(-1, n_features), point[-n_out:]
        tokens, text = self.texts.tokens, self.texts.text
        outputs = tokens @ weights.T  # (n_tokens, HEADS * n_out)
        best = np.maximum.reduceat(outputs, self.texts.starts)
        # The first token of each text with the maximum of each head, (n_texts, HEADS * n_out).
        place = np.where(outputs == best[text], np.arange(len(tokens))[:, None], len(tokens))
        top = np.minimum.reduceat(place, self.texts.starts)
        scores = best.reshape(len(best), HEADS, n_out).sum(axis=1) + intercept
        logs = log_softmax(with_reference(scores.T, len(self.classes)), axis=0)
        loss = -float(np.mean(logs[self.class_of_text, np.arange(len(scores))]))
        residual = (np.exp(logs[-n_out:]).T - self.truth) / len(scores)
        of_heads = [residual[:, n % n_out] @ tokens[top[:, n]] for n in range(len(weights))]
        gradient = np.array(of_heads) + self.penalty * weights
        value = loss + 0.5 * self.penalty * float(np.sum(weights**2))
        return value, np.concatenate([gradient.ravel(), residual.sum(axis=0)])


def fit_multimax(
    texts: TokensOfTexts, codes: Codes, C: float, max_iter: int, seed: int
) -> FittedLayers:
    """Return the layer (HEADS * n_out, n_features) of the heads, for raw tokens.

    It minimises sum(cross-entropy) + |weights|^2 / (2 C) for standardised tokens, on the CPU. Each
    head has its part of the intercept. It counts as converged unless it reached `max_iter`.
    """
    rows = LazyRows.of(texts.tokens)
    scaling = Scaling.standard(measured(rows, texts.typical))
    objective = _MultiMax(replace(texts, tokens=scaling.lazily(rows).whole()), codes, C)
    options = {"maxiter": max_iter, "maxfun": 4 * max_iter}
    options |= {"gtol": TOLERANCE, "ftol": KINKED_PROGRESS}
    start = objective.start(np.random.default_rng(seed))
    result: Any = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    n_out, n_features = objective.shape
    weights, intercept = result.x[:-n_out].reshape(-1, n_features), result.x[-n_out:]
    layer = scaling.fold(weights, np.tile(intercept / HEADS, HEADS))
    return FittedLayers(objective.classes, (layer,), max(int(result.nit), 1), result.status != 1)


def calibration(scores: Floats, codes: Codes, n_classes: int) -> tuple[float, Floats]:
    """Return slope and shift (n_out,) that minimise the cross-entropy of slope * score + shift.

    The slope is above 0, so that the order of the texts does not change.

    >>> scores, codes = np.array([[4.0], [5.0], [5.0], [6.0]]), np.array([0, 1, 0, 1])
    >>> slope, shift = calibration(scores, codes, n_classes=2)
    >>> bool(slope > 0), bool(abs(slope * 5 + shift[0]) < 0.1)
    (True, True)
    """
    mean, unit = scores.mean(axis=0), float(scores.std(axis=0).mean()) or 1.0
    scaled, n_out = (scores - mean) / unit, scores.shape[1]
    truth = (np.arange(n_classes) == codes[:, None])[:, -n_out:]

    def objective(point: Floats) -> tuple[float, Floats]:
        """Return the mean cross-entropy and its gradient."""
        logs = log_softmax(with_reference((point[0] * scaled + point[1:]).T, n_classes), axis=0)
        residual = (np.exp(logs[-n_out:]).T - truth) / len(codes)
        gradient = np.append(np.sum(residual * scaled), residual.sum(axis=0))
        return -float(np.mean(logs[codes, np.arange(len(codes))])), gradient

    bounds = [(LEAST_SLOPE, LARGEST_SLOPE), *[(None, None)] * n_out]
    start = np.append(1.0, np.zeros(n_out))
    point = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    slope = float(point[0]) / unit
    return slope, point[1:] - slope * mean


class RuleScores(NamedTuple):
    """A rule at its best C.

    Attributes:
        C: The selected C.
        rating: The rating of `held_out`; higher is better.
        held_out: The scores (n_texts, n_classes) of each text by the fit that held it out.
        raw: The same (n_texts, n_out), without calibration.
        unit: See `Aggregation`.
    """

    C: float
    rating: float
    held_out: Floats
    raw: Floats
    unit: float


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
        held_out_: The held-out scores (n_texts, n_classes) of the selected rule.
        fold_of_text_: The fold (n_texts,) of each text.
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
        folds = group_folds(codes, text_units, self.folds, self.random_state)
        fittable_insides(codes, folds)  # raises an error if no fold can be fitted
        n_classes, rate = len(self.classes_), judge or rate_scores
        n_out = 1 if n_classes == 2 else n_classes
        # Tokens are evidence for the positive label, of two.
        sign = -1 if n_classes == 2 and positive == self.classes_[0] else 1
        target = codes if sign > 0 else 1 - codes
        of_tokens, token_fold = target[texts.text], folds[texts.text]
        weights = 1.0 / np.bincount(texts.text)[texts.text]  # of a text together 1
        shares = [(token_fold != fold) * weights for fold in range(self.folds)]
        rows = LazyRows.of(texts.tokens).on(self.device)
        solver = Solver(rows, [*shares, weights], typical=texts.typical)
        stopping = StoppingRule(max_iter=self.max_iter)
        if len(own) < len(rules):
            (paths,) = search_paths(solver, [of_tokens], grid, Tuning(stopping), lambda _: None)
            outputs_of_C = held_out_scores(rows, paths, token_fold, n_classes)
        self.of_rules_: dict[str, RuleScores] = {}
        for rule in rules:
            tried = []
            for at, C in enumerate(grid):
                if rule in own:
                    unit, raw = 1.0, self._own_scores(rule, C, texts, target, folds)
                else:
                    outputs = _finite(outputs_of_C[at])[:, -n_out:]
                    unit = float(outputs.std()) or 1.0
                    aggregation = Aggregation(rule=rule, shift=(0.0,) * n_out, unit=unit)
                    raw = aggregation.of_texts(outputs, texts.starts)
                scores = np.empty_like(raw)
                for fold in range(self.folds):
                    inside = folds != fold
                    slope, shift = calibration(raw[inside], target[inside], n_classes)
                    scores[~inside] = slope * raw[~inside] + shift
                held_out = with_reference(sign * scores.T, n_classes).T
                tried.append(RuleScores(C, rate(codes, held_out, folds), held_out, raw, unit))
            best = best_rated(rate, codes, (one.held_out for one in tried), folds)
            self.of_rules_[rule] = tried[best]
        candidates = list(self.of_rules_.values())
        at = best_rated(rate, codes, (one.held_out for one in candidates), folds)
        self.rule_, selected = rules[at], candidates[at]
        self.C_, self.held_out_, self.fold_of_text_ = selected.C, selected.held_out, folds
        # The penalty per text is that of the folds, so that scores keep the calibrated scale.
        C = self.C_ * (1 - 1 / self.folds)
        if self.rule_ in own:
            fit: FittedLayers = self._own_fit(self.rule_, C, texts, target)
        else:
            (fit,) = solver.solve([Problem(of_tokens, C, self.folds)], stopping)
        slope, shift = calibration(selected.raw, target, n_classes)
        shifts, unit = tuple((sign * shift).tolist()), selected.unit
        aggregation = Aggregation(rule=self.rule_, shift=shifts, slope=sign * slope, unit=unit)
        self.fit_ = _with_rule(replace(fit, classes=self.classes_), aggregation)
        self.n_iter_, self.converged_ = max(fit.n_iter, 1), fit.converged
        base.warn_if_flat(fit.layers[0].weight)
        return self

    def _own_scores(
        self, rule: str, C: float, texts: TokensOfTexts, codes: Codes, folds: Codes
    ) -> Floats:
        """Return the held-out scores (n_texts, n_out) of a rule with weights of its own."""
        n_classes = len(self.classes_)
        scores = np.zeros((len(codes), n_classes))
        for fold in range(self.folds):
            inside = folds != fold
            fit = self._own_fit(rule, C, texts.take(inside), codes[inside])
            scores[~inside] = fit.by_class(fit.text_scores(texts.take(~inside)), n_classes)
        return _finite(scores)[:, -1 if n_classes == 2 else -n_classes :]

    def _own_fit(self, rule: str, C: float, texts: TokensOfTexts, codes: Codes) -> AggregatedFit:
        """Return the fit of a rule with weights of its own."""
        if rule == "multimax":
            fit = fit_multimax(texts, codes, C, self.max_iter, self.random_state)
        else:
            fit = fit_attention(texts, codes, C, self.max_iter, self.random_state)
            ((weight, bias),) = fit.layers
            layer = AffineLayer(np.vstack([weight, fit.query]), np.append(bias, 0.0))
            fit = replace(fit, layers=(layer,))
        n_out = 1 if len(fit.classes) == 2 else len(fit.classes)
        return _with_rule(fit, Aggregation(rule=rule, shift=(0.0,) * n_out))


def _with_rule(fit: FittedLayers, aggregation: Aggregation) -> AggregatedFit:
    """Return a fit of tokens with the rule that scores texts."""
    facts = {"n_iter": fit.n_iter, "converged": fit.converged, "aggregation": aggregation}
    return AggregatedFit(classes=fit.classes, layers=fit.layers, **facts)


def _finite(scores: Floats) -> Floats:
    """Return scores with -inf, of classes that were not fitted, below all others."""
    return np.where(np.isinf(scores), scores[np.isfinite(scores)].min() - 1, scores)
