"""Erasure of a concept from activations, in closed form, and probes fitted again after it.

    leace             removes every linear relation to the labels, with the least change
    mean_projection   projects out the differences of the class means
    probe_projection  projects out given directions

Every eraser replaces the removed component by that of the mean of the fitted rows, not by zero.
Rows and labels are those of a training set; arrays have shape (n_rows, n_features).

Source: Belrose et al. (2023), LEACE: Perfect linear concept erasure in closed form.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probekit.errors import ConfigError, DataError
from probekit.interventions.edits import Edit, EditAt, compose, orthonormal_basis, without_rounding
from probekit.interventions.verdicts import resamples_of
from probekit.lazy_rows import Codes, Features, Floats
from probekit.model.network import Network
from probekit.model.passes.inputs import TokenBatch
from probekit.model.passes.taps import part_features, remember
from probekit.model.sites.catalogue import layer_of
from probekit.model.sites.sites import SitePattern, SiteSelection
from probekit.probes.kinds.class_means import class_means
from probekit.probes.score.intervals import jackknife_interval
from probekit.probes.score.metrics import ClassPredictions, balanced_accuracy
from probekit.probes.solve.solver import Problem, Solver

# Relative to the largest singular value, in float64. An absolute tolerance would keep the concept
# of a rare class, whose covariance with the features is small.
TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Eraser:
    """The affine map x - left right (x - mean), where left right has rank r.

    Attributes:
        left: shape (n_features, r).
        right: shape (r, n_features).
        mean: mean of the fitted rows, (n_features,).

    >>> eraser = Eraser(np.array([[1.0], [0.0]]), np.array([[1.0, 0.0]]), np.array([5.0, 5.0]))
    >>> eraser(np.array([[2.0, 3.0]])).tolist()
    [[5.0, 3.0]]
    """

    left: Floats
    right: Floats
    mean: Floats

    @property
    def rank(self) -> int:
        """The rank of the map that is subtracted."""
        return int(self.left.shape[1])

    def __call__(self, X: Features) -> Floats:
        """Return rows (n_rows, n_features) after erasure."""
        return X - (X - self.mean) @ self.right.T @ self.left.T

    def tap(self, at: Tensor | None = None) -> Edit:
        """Return a tap that erases at some positions; see `probekit.interventions.edits`.

        >>> eraser = Eraser(np.array([[1.0]]), np.array([[1.0]]), np.array([5.0]))
        >>> eraser.tap(torch.tensor([1]))("hook_embed", torch.zeros(1, 2, 1)).tolist()
        [[[0.0], [5.0]]]
        """
        left, right = torch.from_numpy(self.left), torch.from_numpy(self.right)

        def change(x: Tensor, centre: Tensor) -> Tensor:
            """Return the features after erasure; `centre` is the mean of the fitted rows."""
            return x - (x - centre) @ right.T.to(x) @ left.T.to(x)

        return Edit(change, torch.from_numpy(self.mean), at)


def leace(
    X: Features, codes: Codes, *, shrinkage: float = 0.0, tolerance: float = TOLERANCE
) -> Eraser:
    """Return the eraser after which no linear classifier predicts the labels of the fitted rows.

    With the covariance Sigma of the rows and its cross-covariance with the labels, the change is a
    projection that is orthogonal in the whitened space. After it, all classes have the same mean.

    Args:
        X: fitted rows.
        codes: label codes 0, 1, ... (n_rows,).
        shrinkage: weight of the mean variance in Sigma, between 0 and 1. Erasure is exact for any
            value; with few rows, a positive one reduces how much else is changed.
        tolerance: singular values and variances below this share of the largest are rounding
            errors.

    Raises:
        DataError: there is only one class, or X does not have one row of features for each label.

    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [3.0, 3.0], [4.0, 5.0]])
    >>> eraser = leace(X, np.array([0, 0, 1, 1]))
    >>> erased = eraser(X)
    >>> np.allclose(erased[:2].mean(0), erased[2:].mean(0))
    True
    """
    rows, mean = _centred(X, codes)
    sigma = rows.T @ rows / (len(rows) - 1)
    if shrinkage:
        identity = np.eye(len(sigma))
        sigma = (1 - shrinkage) * sigma + shrinkage * np.trace(sigma) / len(sigma) * identity
    variances, axes = np.linalg.eigh(sigma)
    inside = variances > tolerance * variances.max(initial=0.0)
    axes, spreads = axes[:, inside], np.sqrt(variances[inside])
    # Of equal length, so that the tolerance does not drop the direction of a rare class.
    columns = (codes[:, None] == np.unique(codes)).astype(np.float64)
    columns -= columns.mean(axis=0)
    crossed = rows.T @ (columns / np.linalg.norm(columns, axis=0)) / (len(rows) - 1)
    directions, sizes, _ = np.linalg.svd(axes.T @ crossed / spreads[:, None], full_matrices=False)
    whitened = directions[:, sizes > tolerance * sizes.max(initial=0.0)]
    # Entries that are rounding errors would copy what is removed into constant features.
    left = without_rounding(axes @ (spreads[:, None] * whitened))
    return Eraser(left, (whitened / spreads[:, None]).T @ axes.T, mean)


def mean_projection(X: Features, codes: Codes) -> Eraser:
    """Return the orthogonal projection that removes the differences of the class means.

    Raises:
        DataError: as for `leace`, or all class means are equal.

    >>> X = np.array([[0.0, 1.0], [2.0, 1.0]])
    >>> mean_projection(X, np.array([0, 1]))(X).round(6).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    _, mean = _centred(X, codes)
    means = class_means(X, codes)
    return probe_projection(means - means.mean(axis=0), mean)


def probe_projection(directions: Features, mean: Features) -> Eraser:
    """Return the orthogonal projection that removes directions (n, n_features).

    Raises:
        DataError: all directions are zero, or they are not a matrix of finite numbers.

    >>> eraser = probe_projection(np.array([[0.0, 2.0]]), np.array([7.0, 8.0]))
    >>> eraser(np.array([[1.0, 1.0]])).tolist()
    [[1.0, 8.0]]
    """
    basis = orthonormal_basis(directions)
    return Eraser(basis, basis.T, _finite("mean", mean))


def _centred(X: Features, codes: Codes) -> tuple[Floats, Floats]:
    """Return the centred rows and their mean, both in float64."""
    rows = _finite("X", X)
    if rows.ndim != 2 or len(rows) != len(codes):
        raise DataError(
            f"X has shape {rows.shape}, but there are {len(codes)} labels. Give one row of "
            "features for each label."
        )
    if len(np.unique(codes)) < 2:
        raise DataError("All rows have the same label, so there is nothing to erase.")
    mean: Floats = rows.mean(axis=0)
    return rows - mean, mean


def _finite(name: str, values: Features) -> Floats:
    """Return an array in float64; raises DataError if it has NaN, with which nothing is erased."""
    found: Floats = np.asarray(values, np.float64)
    if not np.isfinite(found).all():
        raise DataError(f"{name} contains NaN or infinity. Compute its rows again.")
    return found


TEXTS_AT_ONCE = 64  # texts in one pass


def downstream_scores(
    model: Network,
    batch: TokenBatch,
    codes: Codes,
    groups: NDArray[np.generic],
    train: Codes,
    erased_at: tuple[SiteSelection, Eraser],
    sites: SitePattern | Iterable[SitePattern],
    at: Tensor,
    *,
    C: float = 1.0,
) -> list[dict[str, Any]]:
    """Return the balanced accuracy of probes at sites at and after an erasure, a row for each site.

    Each row has the columns of downstream.csv: `site`, `layer`, the score on test rows `before`
    the erasure, that of a probe fitted again on activations `after` it, both with their intervals
    over groups, `chance`, and the numbers `n` of test rows and `groups`.

    Args:
        model: the network.
        batch: the texts.
        codes: label codes, (n_rows,).
        groups: groups, (n_rows,).
        train: training rows; all others are test rows.
        erased_at: the site and the eraser, fitted on training rows.
        sites: sites of the probes, at or after the erased one.
        at: position of each text that is erased and read, [n_rows].
        C: inverse regularisation strength of the probes.

    Raises:
        ConfigError: a site is before the erased one.
        UnknownNameError: a pattern matches no site.
    """
    selected, (erased_site, _) = model.sites.select(sites), erased_at
    order = {site: number for number, site in enumerate(model.sites)}
    for selection in selected:
        if order[selection.site] < order[erased_site.site]:
            raise ConfigError(
                f"{selection.text} is before {erased_site.text}, so the erasure does not reach it. "
                "Choose sites at or after the erased one."
            )
    test = np.setdiff1d(np.arange(len(codes)), train)
    resamples = resamples_of(groups[test])
    plain = _features(model, batch, selected, at, [])
    erased = _features(model, batch, selected, at, [erased_at])
    facts = {"chance": 1 / len(np.unique(codes)), "n": len(test), "groups": resamples.n_groups}
    rows = []
    for selection in selected:
        row: dict[str, Any] = {"site": selection.text, "layer": layer_of(selection.site)}
        for name, X in (("before", plain[selection]), ("after", erased[selection])):
            (fit,) = Solver(X[train], [np.ones(len(train))]).solve([Problem(codes[train], C=C)])
            predictions = ClassPredictions(codes[test], fit.predict(X[test]), int(codes.max()) + 1)
            score = jackknife_interval(balanced_accuracy(predictions, resamples), resamples)
            low, high = np.clip([score.low, score.high], 0, 1).tolist()
            row |= {name: score.value, f"{name}_low": low, f"{name}_high": high}
        rows.append(row | facts)
    return rows


def _features(
    model: Network,
    batch: TokenBatch,
    selected: Sequence[SiteSelection],
    at: Tensor,
    erasures: Sequence[tuple[SiteSelection, Eraser]],
) -> dict[SiteSelection, Floats]:
    """Return the activations (n_rows, n_features) of each selection, at `at`, after erasures."""
    parts: dict[SiteSelection, list[Floats]] = {one: [] for one in selected}
    names = list(dict.fromkeys(one.site for one in selected))
    for rows in torch.split(torch.arange(len(batch)), TEXTS_AT_ONCE):
        values: dict[str, Tensor] = {}
        place = at[rows].to(model.device)
        edits: list[EditAt] = [(where, eraser.tap(place)) for where, eraser in erasures]
        # Taps run in this order: the activations are remembered after the erasure.
        tap = compose(model, [*edits, *((name, remember(values)) for name in names)])
        with torch.no_grad():
            model(batch[rows], tap=tap, sites=tap.sites, logits=False)
        for one in selected:
            value = part_features(model.sites, values[one.site], one)
            at_place = value[torch.arange(len(rows), device=value.device), place]
            parts[one].append(at_place.double().cpu().numpy())
    return {one: np.concatenate(blocks) for one, blocks in parts.items()}
