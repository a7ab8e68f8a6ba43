"""The aggregated probe: a linear probe of tokens, and a rule that combines their scores.

The rules `mean`, `max`, `rolling` and `softmax` share one probe of tokens: logistic regression on
all tokens, each with the label of its text, each text with the same total weight. It is fitted once
at every C, by blocks of tokens, so that these candidates cost hardly more than one probe.
`multimax` and `attention` have weights of their own, fitted to the scores of texts at each C and
fold; they hold all tokens in memory.

Each candidate, a rule at a C, is fitted on the texts of all folds but one, and scores the texts of
that one. Because a maximum of many scores is larger than each of them, logistic regression on these
scores calibrates them; those of a fold are calibrated on the other folds. The candidate whose
held-out scores are rated best is selected, fitted on all texts, with the same penalty per text as
in the folds, and calibrated on all held-out scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from probekit.lazy_rows import Codes, Floats, LazyRows, Mask
from probekit.probes.aggregation import AggregatedFit, Aggregation
from probekit.probes.data import fittable_insides, group_folds
from probekit.probes.kinds import attention_pooled, base
from probekit.probes.kinds.registry import AGGREGATE, C_GRID, OWN_WEIGHTS, parse_rule, positive_grid
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.fits import Judge, Tuning, held_out_scores, rate_scores, search_paths
from probekit.probes.solve.layers import AffineLayer, FittedLayers
from probekit.probes.solve.solver import Problem, Solver
from probekit.products import without_tf32

CALIBRATION_C = 10.0  # of the logistic regression on the scores of texts


class RuleScores(NamedTuple):
    """A rule at its best C.

    Attributes:
        C: The selected C.
        rating: The rating of `held_out`; higher is better. NaN for a reversed rule.
        held_out: The scores (n_texts, n_classes) of each text by the fit that held it out.
        aggregation: The rule, with the calibration of its scores on all texts.
    """

    C: float
    rating: float
    held_out: Floats
    aggregation: Aggregation


@dataclass(eq=False, repr=False)
class AggregatedProbe(attention_pooled.TextProbe):
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
        # The outputs are evidence for the positive label, of two.
        is_first = n_classes == 2 and positive == self.classes_[0]
        target = 1 - codes if is_first else codes
        of_tokens, token_fold = target[texts.text], folds[texts.text]
        weights = 1.0 / np.bincount(texts.text)[texts.text]  # of a text together 1
        shares = [(token_fold != fold) * weights for fold in range(self.folds)]
        rows = LazyRows.of(texts.tokens).on(self.device)
        solver = Solver(rows, [*shares, weights], typical=texts.typical)
        stopping = StoppingRule(max_iter=self.max_iter)
        if len(own) < len(rules):
            tasks = [(of_tokens, fold) for fold in range(len(shares))]
            paths = search_paths(solver, tasks, grid, Tuning(stopping)).T
            outputs_of_C = held_out_scores(rows, paths, token_fold, n_classes)
        self.of_rules_: dict[str, RuleScores] = {}
        for rule in rules:
            tried = []
            for at, C in enumerate(grid):
                if rule in own:
                    unit, raw = 1.0, self._own_scores(rule, C, texts, target, folds)
                else:
                    outputs = _outputs(outputs_of_C[at])
                    unit = float(outputs.std()) or 1.0
                    raw = _uncalibrated(rule, n_classes, unit).of_texts(outputs, texts.starts)
                held_out, (weight, bias) = _calibrated(raw, codes, folds)
                aggregation = Aggregation(
                    rule=rule, weight=weight.tolist(), bias=bias.tolist(), unit=unit
                )
                # A rule that is lower for positive texts, of two labels, is selected last.
                is_reversed = n_classes == 2 and bool(weight[0, 0] < 0) != is_first
                rating = np.nan if is_reversed else rate(codes, held_out, folds)
                tried.append(RuleScores(C, rating, held_out, aggregation))
            self.of_rules_[rule] = max(tried, key=_rank)
        self.C_, _, self.held_out_, aggregation = max(self.of_rules_.values(), key=_rank)
        self.rule_, self.fold_of_text_ = aggregation.rule, folds
        # The penalty per text is that of the folds, so that scores keep the calibrated scale.
        C = self.C_ * (1 - 1 / self.folds)
        if self.rule_ in own:
            fit: FittedLayers = self._own_fit(self.rule_, C, texts, target)
        else:
            (fit,) = solver.solve([Problem(of_tokens, C, self.folds)], stopping)
        self.fit_ = _with_rule(replace(fit, classes=self.classes_), aggregation)
        self.n_iter_, self.converged_ = max(fit.n_iter, 1), fit.converged
        base.warn_if_flat(fit.layers[0].weight * np.abs(aggregation.weight).max())
        return self

    def _own_scores(
        self, rule: str, C: float, texts: attention_pooled.TokensOfTexts, codes: Codes, folds: Codes
    ) -> Floats:
        """Return the held-out scores (n_texts, n_out) of a rule with weights of its own."""
        scores = np.zeros((len(codes), len(self.classes_)))
        for fold in range(self.folds):
            inside = folds != fold
            fit = self._own_fit(rule, C, texts.take(inside), codes[inside])
            scores[~inside] = fit.by_class(fit.text_scores(texts.take(~inside)), scores.shape[1])
        return _outputs(scores)

    def _own_fit(
        self, rule: str, C: float, texts: attention_pooled.TokensOfTexts, codes: Codes
    ) -> AggregatedFit:
        """Return the fit of a rule with weights of its own."""
        if rule == "multimax":
            fit = attention_pooled.fit_multimax(texts, codes, C, self.max_iter, self.random_state)
        else:
            fit = attention_pooled.fit_attention(texts, codes, C, self.max_iter, self.random_state)
            ((weight, bias),) = fit.layers
            layer = AffineLayer(np.vstack([weight, fit.query]), np.append(bias, 0.0))
            fit = replace(fit, layers=(layer,))
        return _with_rule(fit, _uncalibrated(rule, len(fit.classes)))


def _rank(tried: RuleScores) -> float:
    """Return the rating of a candidate; a rating that is undefined comes last."""
    return -np.inf if np.isnan(tried.rating) else tried.rating


def _with_rule(fit: FittedLayers, aggregation: Aggregation) -> AggregatedFit:
    """Return a fit of tokens with the rule that scores texts."""
    return AggregatedFit(
        fit.classes, fit.layers, fit.n_iter, fit.converged, aggregation=aggregation
    )


def _uncalibrated(rule: str, n_classes: int, unit: float = 1.0) -> Aggregation:
    """Return a rule that does not change the scores of texts."""
    n_out = 1 if n_classes == 2 else n_classes
    return Aggregation(rule=rule, unit=unit, weight=np.eye(n_out).tolist(), bias=[0.0] * n_out)


def _outputs(scores: Floats) -> Floats:
    """Return the outputs (n, n_out) of class scores (n, n_classes).

    Classes that were not fitted, with -inf, are below all others.
    """
    finite = np.where(np.isinf(scores), scores[np.isfinite(scores)].min() - 1, scores)
    return finite[:, 1:] if scores.shape[1] == 2 else finite


def _calibrated(raw: Floats, codes: Codes, folds: Codes) -> tuple[Floats, AffineLayer]:
    """Return calibrated scores (n_texts, n_classes) of all texts, and the calibration.

    The scores of a fold are calibrated on the other folds; the calibration that is returned is that
    on all texts.
    """
    n_folds = int(folds.max()) + 1
    shares = [folds != fold for fold in range(n_folds)] + [folds >= 0]
    problems = [Problem(codes, CALIBRATION_C, share) for share in range(n_folds + 1)]
    fits = Solver(raw, shares).solve(problems)
    held_out = np.empty((len(codes), int(codes.max()) + 1))
    for fold in range(n_folds):
        held_out[folds == fold] = fits[fold].outputs(raw[folds == fold], held_out.shape[1])
    return held_out, fits[-1].layers[0]
