"""Directions of a concept, with those of the same method on permuted labels.

    probe            weights of a logistic probe
    mean_difference  difference of the class means
    leace            difference of the class means, erased as by LEACE

A set of directions holds that of the true labels first and then one for each permutation, so that
every later step treats them alike. Source of the test: `probekit.probes.score.exchange`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.errors import DataError, UnknownNameError, nearest
from probekit.interventions.erasure import TOLERANCE
from probekit.interventions.names import METHODS, Along
from probekit.probes.score.exchange import permuted_labels
from probekit.probes.solve.design import Codes, Floats
from probekit.probes.solve.solver import Problem, Solver

LabelSets = NDArray[np.integer]  # (1 + draws, n_rows), the true labels first


@dataclass(frozen=True, eq=False)
class DirectionSet:
    """Directions at one site, the observed one first.

    Attributes:
        unit: directions of length 1, (n_directions, n_features). A direction of zeros has no
            effect.
        reading: vectors r with r'u = 1, (n_directions, n_features). Erasure subtracts
            r'(x - mean) u; an orthogonal projection has r = u.
        spread: standard deviation of u'x over the training rows, (n_directions,).
        mean: mean of the training rows, (n_features,).
    """

    unit: Floats
    reading: Floats
    spread: Floats
    mean: Floats

    def __len__(self) -> int:
        """Return the number of directions."""
        return len(self.unit)

    def __getitem__(self, which: slice) -> DirectionSet:
        """Return some of the directions."""
        return DirectionSet(self.unit[which], self.reading[which], self.spread[which], self.mean)

    @classmethod
    def of_weights(cls, weights: Floats, X: NDArray[np.floating]) -> DirectionSet:
        """Return orthogonal directions along weights (n_directions, n_features) on raw features.

        X (n_rows, n_features) are the training rows.

        >>> X = np.array([[0.0, 1.0], [6.0, 1.0]])
        >>> found = DirectionSet.of_weights(np.array([[2.0, 0.0]]), X)
        >>> found.unit.tolist(), found.spread.tolist()
        ([[1.0, 0.0]], [3.0])
        """
        unit = _units(weights)
        return cls(unit, unit, _spread(unit, X), X.mean(axis=0, dtype=np.float64))


def label_sets(
    codes: Codes, groups: NDArray[np.generic], draws: int, seed: int, rows: Codes | None = None
) -> LabelSets:
    """Return the labels and their permutations, (1 + draws, n_rows), the true labels first.

    Args:
        codes: label codes of all rows, (n_rows,).
        groups: groups of all rows; see `permuted_labels` for how they are exchanged.
        draws: number of permutations.
        seed: random seed.
        rows: rows that exchange labels, such as the training rows of a single split; None means
            all, as under cross-validation, where each fold takes its own rows of one permutation.

    >>> label_sets(np.array([0, 1]), np.array(["a", "b"]), draws=2, seed=1).shape
    (3, 2)
    """
    sets = np.tile(codes, (1 + draws, 1))
    which = np.arange(len(codes)) if rows is None else rows
    sets[1:, which] = permuted_labels(codes[which], groups[which], draws, seed)
    return sets


def directions_of(
    along: Along, X: NDArray[np.floating], labels: LabelSets, *, C: float = 1.0
) -> DirectionSet:
    """Return the directions of a method for each set of labels (0 and 1), (n_sets, n_rows).

    All probes are fitted in one batch. X (n_rows, n_features) are the training rows; C is the
    inverse regularisation strength of the probes.

    Raises:
        UnknownNameError: no method has this name.
        DataError: there are not exactly two labels.

    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [4.0, 0.0], [5.0, 1.0]])
    >>> found = directions_of("mean_difference", X, np.array([[0, 0, 1, 1], [0, 1, 0, 1]]))
    >>> found.unit.round(3).tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    if along not in METHODS:
        raise UnknownNameError(f"No method has the name {along!r}. {nearest(along, METHODS)}")
    if not np.array_equal(np.unique(labels[0]), [0, 1]):
        raise DataError(
            f"A direction separates two classes, coded 0 and 1, but the training rows have the "
            f"codes {np.unique(labels[0]).tolist()}. Choose one class against the rest."
        )
    if along == "probe":
        return DirectionSet.of_weights(_probe_weights(X, labels, C), X)
    rows = np.asarray(X, np.float64)
    differences = mean_differences(rows, labels)
    if along == "mean_difference":
        return DirectionSet.of_weights(differences, rows)
    unit = _units(differences)
    reading = unit @ _inverse_covariance(rows)
    scale = np.einsum("ij,ij->i", reading, unit)[:, None]
    reading = np.divide(reading, scale, out=np.zeros_like(reading), where=scale > 0)
    return DirectionSet(unit, reading, _spread(unit, rows), rows.mean(axis=0))


def mean_differences(X: Floats, labels: LabelSets) -> Floats:
    """Return mean of class 1 minus mean of class 0, (n_sets, n_features); 0 without a class.

    >>> mean_differences(np.array([[1.0], [4.0]]), np.array([[0, 1], [1, 1]])).tolist()
    [[3.0], [0.0]]
    """
    ones = labels.astype(np.float64)
    n = ones.sum(axis=1, keepdims=True)
    total = X.sum(axis=0)
    sums = ones @ X
    with np.errstate(divide="ignore", invalid="ignore"):
        differences = sums / n - (total - sums) / (labels.shape[1] - n)
    finite: Floats = np.nan_to_num(differences, posinf=0.0, neginf=0.0)
    return finite


def matched_directions(X: NDArray[np.floating], draws: int, seed: int) -> DirectionSet:
    """Return random directions with the covariance of the features, shape (draws, n_features).

    They are as long as every other direction. Isotropic directions would mostly point where
    activations hardly vary, and have almost no effect.

    >>> X = np.array([[-9.0, 0.0], [9.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> found = matched_directions(X, draws=50, seed=0)
    >>> bool(np.abs(found.unit[:, 0]).mean() > 0.9)
    True
    """
    rows = np.asarray(X, np.float64)
    noise = np.random.default_rng(seed).normal(size=(draws, len(rows)))
    return DirectionSet.of_weights(noise @ (rows - rows.mean(axis=0)), rows)


def dose_limit(directions: Sequence[DirectionSet], rows: Sequence[NDArray[np.floating]]) -> float:
    """Return the range of the development rows along directions, in standard deviations.

    It is the 99 % quantile of |u'(x - mean)| / s, the median over all directions. It depends
    neither on the measure nor on which direction is the observed one, so that the test keeps its
    size.

    Args:
        directions: directions of each fold.
        rows: development rows of each fold, (n_rows, n_features).
    """
    ranges = []
    for own, X in zip(directions, rows, strict=True):
        projected = np.abs((X - own.mean) @ own.unit.T)
        quantile = np.quantile(projected, 0.99, axis=0)
        ranges.append(quantile[own.spread > 0] / own.spread[own.spread > 0])
    known = np.concatenate(ranges)
    return float(np.median(known)) if len(known) else 0.0


def allowed_doses(limit: float, by: Sequence[float]) -> tuple[float, ...]:
    """Return the doses that keep projections in the range of the development rows.

    If no dose is within the range, the smallest are returned.

    Args:
        limit: the range, in standard deviations; see `dose_limit`.
        by: candidate doses, in standard deviations of the projection.

    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> limit = dose_limit([DirectionSet.of_weights(np.eye(3), X)], [X])
    >>> allowed_doses(limit, (-4, -2, 2, 4))
    (-2, 2)
    """
    allowed = tuple(k for k in by if abs(k) <= limit)
    smallest = min(abs(k) for k in by if k)
    return allowed if any(allowed) else tuple(k for k in by if abs(k) == smallest)


def _probe_weights(X: NDArray[np.floating], labels: LabelSets, C: float) -> Floats:
    rows = X if X.dtype == np.float32 else np.asarray(X, np.float64)
    problems = [Problem(codes, C=C) for codes in labels.astype(np.int64)]
    fits = Solver(rows, [np.ones(len(rows), dtype=rows.dtype)]).solve(problems)
    return np.concatenate([fit.coef for fit in fits]).astype(np.float64)


def _units(weights: Floats) -> Floats:
    lengths = np.linalg.norm(weights, axis=1, keepdims=True)
    unit: Floats = np.divide(weights, lengths, out=np.zeros_like(weights), where=lengths > 0)
    return unit


def _spread(unit: Floats, X: NDArray[np.floating]) -> Floats:
    spread: Floats = (X @ unit.T).std(axis=0)
    return spread


def _inverse_covariance(rows: Floats) -> Floats:
    centred = rows - rows.mean(axis=0)
    variances, axes = np.linalg.eigh(centred.T @ centred / (len(rows) - 1))
    inside = variances > TOLERANCE * variances.max(initial=0.0)
    inverse: Floats = (axes[:, inside] / variances[inside]) @ axes[:, inside].T
    return inverse
