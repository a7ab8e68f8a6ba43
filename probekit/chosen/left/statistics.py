"""What a probe adds to known columns of the data, z: outputs of the network, length, a source.

    Known           columns of all rows, as numbers or categories
    of_classes      the part of class labels that a probe explains beyond them
    of_numbers      the same for labels that are numbers

The label is modelled from z alone. Its held-out log odds are the offset of a probe, which is fitted
to what they do not explain; a strong enough penalty switches it off. Held-out scores of the
activations, minus their regression on z, times the residuals of the labels, are summed by group. If
the label does not depend on the activations given z, these sums are 0 on average: p is the share of
random signs of the groups with a sum as large.

Source: Shah and Peters (2020), The hardness of conditional independence testing and the generalised
covariance measure (the product of two residuals); Freedman and Lane (1983), A nonstochastic
interpretation of reported significance levels (residuals under exchange).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, ndtri
from scipy.stats import rankdata
from scipy.stats import t as student_t

from probekit.amounts import FEWEST_UNITS, counted
from probekit.chosen.left.section import FEW_VALUES
from probekit.lazy_rows import Codes, Floats, LazyRows, Mask, Rows
from probekit.probes.score.contributions import RowScores
from probekit.probes.score.differences import DRAWS, Difference, paired_differences
from probekit.probes.score.exchange import ROUNDING, sign_patterns
from probekit.probes.score.metrics import Resamples, mean_of_rows
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.fits import held_out_scores
from probekit.probes.solve.layers import apply_layers
from probekit.probes.solve.solver import Problem, Solver

OFF = 1e-9  # a C at which all weights are 0 within rounding
GRID_OF_KNOWN = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # values of C of the model of z
ALPHAS = tuple(float(10.0**power) for power in range(-2, 10))  # penalties of regressions
KNOTS = 5  # of the spline of a number
# Next to the smallest C, a fit with an offset takes many steps that change nothing.
SEARCH, FINAL = StoppingRule(1e-6, 300, 1e-6), StoppingRule(max_iter=300)
LEAST_LOG = -12.0  # of a probability; a class that a fold has not learnt gets it


class Known(NamedTuple):
    """Columns of all rows that may explain the label.

    Attributes:
        numbers: name -> numbers (n_rows,).
        categories: name -> values (n_rows,).
    """

    numbers: Mapping[str, Floats]
    categories: Mapping[str, NDArray[Any]]

    @property
    def description(self) -> str:
        """The columns in words."""
        own = [*self.numbers]
        for name, values in self.categories.items():
            own.append(f"{name} ({counted(len(np.unique(values)), 'value')})")
        return ", ".join(own)

    @property
    def strata(self) -> Codes:
        """The number (n_rows,) of the combination of the values of all categories."""
        columns = np.stack([*self.categories.values()], axis=1).astype(str)
        return np.unique(columns, axis=0, return_inverse=True)[1].ravel()

    def ranked(self) -> list[Floats]:
        """Return the numbers, and an indicator of each value of a category but the first."""
        parts = [
            values == name for values in self.categories.values() for name in np.unique(values)[1:]
        ]
        return [*self.numbers.values(), *(part.astype(np.float64) for part in parts)]

    def terms(self, train: Codes) -> Floats:
        """Return the terms (n_rows, n_terms) of a model: of numbers and of categories.

        Numbers are normal scores of their ranks among the training rows, so that no value is far
        from all others. Each has a square and a cubic spline; pairs have products. Categories, and
        numbers with few values, have an indicator of each value. Terms that are constant in
        training are left out.
        """
        from sklearn.preprocessing import SplineTransformer

        scores = [normal_scores(values, values[train]) for values in self.numbers.values()]
        scores = [one for one in scores if np.ptp(one[train]) > 0]
        constant = 0.0 * np.arange(len(next(iter({**self.numbers, **self.categories}.values()))))
        terms = [constant, *scores, *(one**2 for one in scores)]
        terms += [a * b for a, b in combinations(scores, 2)]
        for one in scores:
            spline = SplineTransformer(KNOTS, knots="quantile", include_bias=False)
            terms += list(spline.fit(one[train, None]).transform(one[:, None]).T)
        few = [one for one in scores if len(np.unique(one[train])) <= FEW_VALUES]
        for values in (*few, *self.categories.values()):
            names = np.unique(values[train])
            terms += [values == name for name in (names if len(names) > 2 else names[:1])]
        found = np.array(terms, dtype=np.float64).T
        varies = np.ptp(found[train], axis=0) > 0
        return found[:, varies] if varies.any() else found[:, :1]


def normal_scores(values: Floats, of: Floats) -> Floats:
    """Return the normal quantiles (n_rows,) of the ranks of values among others.

    >>> normal_scores(np.array([1.0, 2.0, 9.0]), np.array([1.0, 2.0, 3.0])).round(2).tolist()
    [-0.97, 0.0, 1.38]
    """
    n, ordered = len(of), np.sort(of)
    below, up_to = np.searchsorted(ordered, values), np.searchsorted(ordered, values, "right")
    found: Floats = ndtri(((below + up_to) / 2).clip(0.25, n - 0.25) / n)
    return found


@dataclass(frozen=True, eq=False)
class Left:
    """What a probe adds to z on the test rows of one split, or of several, one after the other.

    Attributes:
        test: numbers (n_test,) of the rows.
        association: product (n_test,) of the two residuals.
        known: log probabilities (n_test, n_classes) by z alone, or numbers.
        joint: those by z and the probe.
        penalty: the C or alpha of the probe.
    """

    test: Codes
    association: Floats
    known: Floats
    joint: Floats
    penalty: float


def over_splits(parts: Sequence[Left]) -> Left:
    """Return the arrays of several splits, one after the other, with the penalty of the first."""
    names = ("test", "association", "known", "joint")
    of_rows = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Left(**of_rows, penalty=parts[0].penalty)


def of_classes(
    X: Rows,
    codes: Codes,
    terms: Floats,
    train: Codes,
    fold_of_row: Codes,
    test: Codes,
    grid: Sequence[float],
    typical: Mask | None = None,
) -> Left:
    """Return the addition of a probe to z for labels that are classes.

    Args:
        X: the activations (n_rows, n_features).
        codes: label codes (n_rows,).
        terms: terms of z (n_rows, n_terms), see `Known.terms`.
        train: numbers of the rows to fit on.
        fold_of_row: the fold (n_train,) of each, in which penalties are chosen.
        test: numbers of the rows to predict.
        grid: values of C of the probe; one that switches it off is added.
        typical: which training rows (n_train,) scale the activations; None for all.
    """
    n_classes, own = int(codes[train].max()) + 1, codes[train]
    truth = np.eye(n_classes)[codes]
    rows = train, fold_of_row, test, n_classes
    flat = np.zeros((len(codes), n_classes))
    known, _ = logistic(terms, own, flat, *rows, GRID_OF_KNOWN, None)
    known = log_softmax(known.clip(LEAST_LOG), axis=1)
    added, penalty = logistic(X, own, known, *rows, (OFF, *grid), typical)
    added = np.where(np.isfinite(added), added, 0.0)
    centred = added - added.mean(axis=1, keepdims=True)
    expected, _ = ridge(terms, centred[train], train, fold_of_row, test)
    residuals = truth - np.exp(known)
    association = ((centred - expected) * residuals)[test].sum(axis=1)
    joint = log_softmax(known + added, axis=1)
    return Left(test, association, known[test], joint[test], penalty)


def of_numbers(
    X: Rows, y: Floats, terms: Floats, train: Codes, fold_of_row: Codes, test: Codes
) -> Left:
    """Return the addition for labels that are numbers, by their ranks; see `of_classes`."""
    ranks = normal_scores(y, y[train])[:, None]
    known, _ = ridge(terms, ranks[train], train, fold_of_row, test)
    rest = ranks - known
    added, penalty = ridge(X, rest[train], train, fold_of_row, test)
    expected, _ = ridge(terms, added[train], train, fold_of_row, test)
    association = ((added - expected) * rest)[test, 0]
    return Left(test, association, known[test, 0], (known + added)[test, 0], penalty)


def logistic(
    X: Rows,
    own: Codes,
    offset: Floats,
    train: Codes,
    fold_of_row: Codes,
    test: Codes,
    n_classes: int,
    grid: Sequence[float],
    typical: Mask | None,
) -> tuple[Floats, float]:
    """Return scores (n_rows, n_classes), without the offset, and the chosen C.

    Those of training rows are held out: by the fit without the fold of the row. C has the least
    held-out log loss. `own` (n_train,) are the labels.
    """
    X, folds = LazyRows.of(X), range(int(fold_of_row.max()) + 1)
    inside, grid = X.select(train), sorted(grid)
    shares = [*(fold_of_row != fold for fold in folds), np.ones(len(train), dtype=bool)]
    solver = Solver(inside, shares, typical=typical)
    problems = [Problem(own, C, fold, offset=offset[train]) for fold in folds for C in grid]
    fits = np.empty(len(problems), dtype=object)
    fits[:] = solver.solve(problems, SEARCH)
    paths = fits.reshape(len(folds), len(grid)).T
    held_out = held_out_scores(inside, paths, fold_of_row, n_classes)
    logs = log_softmax((held_out + offset[train]).clip(LEAST_LOG), axis=2)
    losses = -logs[:, np.arange(len(own)), own].mean(axis=1)
    best = int(losses.argmin())
    last = Problem(own, grid[best], len(folds), offset=offset[train])
    (final,) = solver.solve([last], FINAL)
    scores = np.zeros((len(X), n_classes))
    scores[train] = held_out[best]
    scores[test] = final.outputs(X.select(test), n_classes)
    return scores, grid[best]


def ridge(
    X: Rows, y: Floats, train: Codes, fold_of_row: Codes, test: Codes
) -> tuple[Floats, float]:
    """Return numbers (n_rows, n_out) by ridge regression on X, held out for training rows.

    Also returns the alpha with the least squared error, at most one that switches the features off.
    `y` is (n_train, n_out).
    """
    from probekit.probes.kinds.ridge import ridge_path

    X, alphas, n_out = LazyRows.of(X), np.array(ALPHAS), y.shape[1]
    inside, held_out = X.select(train), np.zeros((len(alphas), *y.shape))
    for fold in range(int(fold_of_row.max()) + 1):
        out = fold_of_row == fold
        layers = ridge_path(inside.select(~out), y[~out], alphas)
        held_out[:, out] = [apply_layers((one,), inside.select(out)) for one in layers]
    losses = np.square(held_out - y).mean(axis=(1, 2))
    best = int(np.flatnonzero(losses == losses.min())[-1])
    scores = np.zeros((len(X), n_out))
    scores[train] = held_out[best]
    scores[test] = apply_layers(ridge_path(inside, y, alphas[[best]]), X.select(test))
    return scores, float(alphas[best])


def p_of_signs(association: Floats, resamples: Resamples) -> float:
    """Return the one-sided p of products (n_test,) by random signs of groups.

    The sum counts as that divided by the widening of standard errors: the rows of a test set share
    the model of z, whose error grows with the number of its terms. NaN with too few groups, by
    their effective number.
    """
    sums = np.bincount(resamples.unit_of_row, weights=association)
    if resamples.n_effective < FEWEST_UNITS:
        return np.nan
    share = resamples.weights
    shrunk = sums - share * sums.sum() * (1 - 1 / resamples.widening)
    drawn = np.concatenate([one @ shrunk for one in sign_patterns(len(sums), DRAWS, seed=0)])
    return float((drawn >= drawn[0] - ROUNDING * np.abs(sums).sum()).mean())


def gain_in_bits(left: Left, codes: Codes, resamples: Resamples) -> Difference:
    """Return the mean gain of the log probability of the true class, in bits, by the probe."""
    rows = np.arange(len(codes))
    bits = [one[rows, codes] / np.log(2) for one in (left.joint, left.known)]
    joint, known = (mean_of_rows(one, resamples) for one in bits)
    return paired_differences([(joint, known)], resamples)[0]


def matched_weights(codes: Codes, strata: Codes) -> Floats:
    """Return weights (n,) with which each label in a stratum counts as the rarest one there.

    Labels are then unrelated to the strata, which alone have an AUROC of exactly 0.5.

    Args:
        codes: label codes (n,).
        strata: the stratum (n,) of each row; see `Known.strata`.

    >>> matched_weights(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1])).tolist()
    [0.5, 0.5, 1.0, 0.0]
    """
    counts = np.zeros((strata.max() + 1, codes.max() + 1))
    np.add.at(counts, (strata, codes), 1)
    weights: Floats = counts.min(axis=1)[strata] / counts[strata, codes]
    return weights


def p_within(rows: RowScores, groups: Codes, strata: Codes, widening: float = 1.0) -> float:
    """Return the one-sided p of an association within strata, by t over groups.

    Scores and labels are centred in each cell, the rows of a group in a stratum, or, if the cells
    have one label each, in each stratum. Their products are summed by group. If predictions and
    labels are independent within strata, these sums are 0 on average. NaN with too few groups, as
    where every stratum has one label.

    Args:
        rows: the score of each row under each label.
        groups: the group (n_samples,) of each row.
        strata: its stratum (n_samples,), such as the source and the outer fold.
        widening: the factor on standard errors; see `Resamples`.

    Source: Liang and Zeger (1993), Regression analysis for correlated data (sums by group).
    """

    def centred(values: Floats, units: Codes) -> Floats:
        """Return values (n_samples, n) minus their mean in each unit."""
        sums = np.stack([np.bincount(units, weights=one) for one in values.T], axis=1)
        found: Floats = values - (sums / np.maximum(np.bincount(units), 1)[:, None])[units]
        return found

    cells = np.unique(np.stack([groups, strata]), axis=1, return_inverse=True)[1].ravel()
    spread = np.abs(centred(rows.labels, cells)).sum(axis=1)
    varies = (np.bincount(cells, weights=spread) > ROUNDING)[cells]
    units = np.unique(np.where(varies, cells, -1 - strata), return_inverse=True)[1]
    products = (centred(rows.labels, units) * centred(rows.scores, units)).sum(axis=1)
    sums = np.bincount(groups, weights=products)
    sums = sums[np.abs(sums) > ROUNDING * np.abs(rows.scores).sum()]
    if len(sums) < FEWEST_UNITS:
        return np.nan
    t = sums.sum() / np.sqrt(np.square(sums).sum()) / widening
    return float(student_t.sf(t, len(sums) - 1))


def partial_rank_correlation(a: Floats, b: Floats, numbers: Sequence[Floats]) -> float:
    """Return the correlation of two ranks, each without its linear regression on other ranks.

    >>> a = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    >>> round(partial_rank_correlation(a, a**3, [np.array([2.0, 1.0, 4.0, 3.0, 5.0])]), 3)
    1.0
    """
    design = np.column_stack([np.ones(len(a)), *(rankdata(one) for one in numbers)])
    x, y = (
        rank - design @ np.linalg.lstsq(design, rank, rcond=None)[0]
        for rank in (rankdata(a), rankdata(b))
    )
    size = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / size) if size > 1e-9 * len(a) ** 3 else np.nan
