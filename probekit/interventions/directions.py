"""Directions of a concept, and measures of texts after edits along them.

    probe            weights of a logistic probe
    mean_difference  difference of the class means
    leace            difference of the class means, erased as by LEACE

A set of directions holds that of the true labels first and then one for each permutation, so that
every later step treats them alike. Source of the test: `probekit.probes.score.exchange`.

Every edit along a direction adds a multiple of one vector to the residual stream. All texts,
directions and doses are rows of one batch that starts at the edited site.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probekit.errors import DataError, UnknownNameError, nearest
from probekit.interventions.edits import LEAST_SIZE, BasePass, StreamEntry, linear_entry
from probekit.interventions.erasure import TOLERANCE
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.names import METHODS, Along
from probekit.lazy_rows import Codes, Features, Floats
from probekit.model.network import Network
from probekit.model.passes.inputs import TokenBatch
from probekit.model.sites.sites import SiteSelection
from probekit.probes.score.exchange import permuted_labels
from probekit.probes.solve.solver import Problem, Solver

LabelSets = NDArray[np.integer]  # (1 + draws, n_rows), the true labels first


@dataclass(frozen=True, eq=False)
class DirectionSet:
    """Directions at one site, the observed one first; or random ones (`matched_directions`).

    Attributes:
        unit: directions of length 1, (n_directions, n_features). A direction of zeros has no
            effect.
        reading: vectors r with r'u = 1, (n_directions, n_features), zeros for a direction of zeros.
            Erasure subtracts r'(x - mean) u; an orthogonal projection has r = u.
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

    @classmethod
    def of_weights(cls, weights: Floats, X: Features) -> DirectionSet:
        """Return directions along weights (n_directions, n_features), with orthogonal projections.

        The weights are those of raw features; X (n_rows, n_features) are the training rows. A
        feature that varies less than float32 resolves of the one that varies most has weight 0:
        standardised, its rounding would be a feature like the others, of a huge raw weight.

        >>> X = np.array([[0.0, 1.0], [6.0, 1.0]])
        >>> found = DirectionSet.of_weights(np.array([[2.0, 0.0]]), X)
        >>> found.unit.tolist(), found.spread.tolist()
        ([[1.0, 0.0]], [3.0])
        """
        spread = np.std(X, axis=0, dtype=np.float64)
        unit = _units(weights * (spread > np.finfo(np.float32).eps * spread.max(initial=0.0)))
        return cls(unit, unit, (X @ unit.T).std(axis=0), X.mean(axis=0, dtype=np.float64))


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
    exchanging = np.arange(len(codes)) if rows is None else rows
    sets[1:, exchanging] = permuted_labels(codes[exchanging], groups[exchanging], draws, seed)
    return sets


def directions_of(along: Along, X: Features, labels: LabelSets, *, C: float = 1.0) -> DirectionSet:
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
        inputs = X if X.dtype == np.float32 else np.asarray(X, np.float64)
        problems = [Problem(codes, C=C) for codes in labels.astype(np.int64)]
        fits = Solver(inputs, [np.ones(len(inputs), dtype=inputs.dtype)]).solve(problems)
        weights = np.concatenate([fit.coef for fit in fits]).astype(np.float64)
        return DirectionSet.of_weights(weights, X)
    rows = np.asarray(X, np.float64)
    differences = mean_differences(rows, labels)
    if along == "mean_difference":
        return DirectionSet.of_weights(differences, rows)
    unit = _units(differences)
    # For leace the reading vectors are u' Sigma^-1, scaled to r'u = 1, with the covariance Sigma of
    # the rows.
    centred = rows - rows.mean(axis=0)
    variances, axes = np.linalg.eigh(centred.T @ centred / (len(rows) - 1))
    inside = variances > TOLERANCE * variances.max(initial=0.0)
    reading = unit @ ((axes[:, inside] / variances[inside]) @ axes[:, inside].T)
    scale = np.einsum("ij,ij->i", reading, unit)[:, None]
    reading = np.divide(reading, scale, out=np.zeros_like(reading), where=scale > 0)
    return DirectionSet(unit, reading, (rows @ unit.T).std(axis=0), rows.mean(axis=0))


def mean_differences(X: Floats, labels: LabelSets) -> Floats:
    """Return mean of class 1 minus mean of class 0, (n_sets, n_features); 0 without a class.

    >>> mean_differences(np.array([[1.0], [4.0]]), np.array([[0, 1], [1, 1]])).tolist()
    [[3.0], [0.0]]
    """
    is_one = labels.astype(np.float64)
    n_ones = is_one.sum(axis=1, keepdims=True)
    n_zeros, sums = labels.shape[1] - n_ones, is_one @ X
    with np.errstate(divide="ignore", invalid="ignore"):
        differences = sums / n_ones - (X.sum(axis=0) - sums) / n_zeros
    defined: Floats = np.nan_to_num(differences, posinf=0.0, neginf=0.0)
    return defined


def matched_directions(X: Features, draws: int, seed: int) -> DirectionSet:
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
    # Random combinations of centred rows have the covariance of the rows.
    return DirectionSet.of_weights(noise @ (rows - rows.mean(axis=0)), rows)


def kernel_share(direction: Features, matrix: Features) -> float:
    """Return the share of a direction's squared length that a matrix maps to zero.

    The part of a direction in the kernel of the output matrix has no effect on the residual stream.
    A direction with a large share may still move activations when it is swapped, because it moves
    them off the distribution that later layers were trained on.

    Args:
        direction: shape (n_features,), not all zeros.
        matrix: output matrix of the site, shape (d_model, n_features).

    >>> round(kernel_share(np.array([3.0, 4.0]), np.array([[1.0, 0.0]])), 2)
    0.64

    Source: Makelov et al. (2023), Is this the subspace you are looking for?
    """
    _, sizes, rows = np.linalg.svd(np.asarray(matrix, np.float64), full_matrices=False)
    row_space = rows[sizes > LEAST_SIZE * sizes.max(initial=0.0)]  # orthogonal to the kernel
    vector = np.asarray(direction, np.float64)
    return float(1 - np.square(row_space @ vector).sum() / np.square(vector).sum())


def dose_limit(directions: Sequence[DirectionSet], rows: Sequence[Features]) -> float:
    """Return the range of the training rows along directions, in standard deviations.

    It is the median, over all directions, of the 99 % quantile of |u'(x - mean)| / s. It depends
    neither on the measure nor on which direction is the observed one, so that the test keeps its
    size. It is 0 if no projection varies.

    Args:
        directions: directions of each fold.
        rows: training rows of each fold, (n_rows, n_features).
    """
    ranges = []
    for of_fold, X in zip(directions, rows, strict=True):
        projected = np.abs((X - of_fold.mean) @ of_fold.unit.T)
        quantile, varies = np.quantile(projected, 0.99, axis=0), of_fold.spread > 0
        ranges.append(quantile[varies] / of_fold.spread[varies])
    of_all = np.concatenate(ranges)
    return float(np.median(of_all)) if len(of_all) else 0.0


def allowed_doses(limit: float, by: Sequence[float]) -> tuple[float, ...]:
    """Return the doses that keep projections in the range of the training rows.

    If no dose other than 0 is within the range, the smallest such doses are returned.

    Args:
        limit: the range, in standard deviations; see `dose_limit`.
        by: candidate doses, in standard deviations of the projection; not only 0.

    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> limit = dose_limit([DirectionSet.of_weights(np.eye(3), X)], [X])
    >>> allowed_doses(limit, (-4, -2, 2, 4))
    (-2, 2)
    """
    allowed = tuple(dose for dose in by if abs(dose) <= limit)
    smallest = min(abs(dose) for dose in by if dose)
    # `any` is False if only dose 0, which changes nothing, is allowed.
    return allowed if any(allowed) else tuple(dose for dose in by if abs(dose) == smallest)


def _units(weights: Floats) -> Floats:
    """Return the rows scaled to length 1; rows of zeros stay zero."""
    lengths = np.linalg.norm(weights, axis=1, keepdims=True)
    found: Floats = np.divide(weights, lengths, out=np.zeros_like(weights), where=lengths > 0)
    return found


TEXTS_AT_ONCE = 128
_CHANGE_BYTES = 64 << 20  # changes of the residual stream of one block of directions
_KEPT_BYTES = 64 << 20  # largest pass of a batch that stays in memory, of each fold


@dataclass(frozen=True, eq=False)
class Responder:
    """Texts that are edited at one site, head or neuron, and their measure.

    Methods with a leading underscore are for texts whose passes are computed together, at most
    `TEXTS_AT_ONCE`; the others put their scores together.

    Attributes:
        model: the network.
        batch: the texts.
        selection: where they are edited; a part of the residual stream.
        at: position of each text that is edited, [n_texts]; None means all positions.
        measure: measure of the texts.
        measured: position of each text that is measured; None means the last token.
        read: position of each text whose activations are the features; None means `at`, or else
            `measured`.
        sources: counterfactuals of the texts, with equal numbers of tokens; None without.
    """

    model: Network
    batch: TokenBatch
    selection: SiteSelection
    at: Tensor | None
    measure: AnswerMeasure
    measured: Tensor | None = None
    read: Tensor | None = None
    sources: TokenBatch | None = None

    def __getitem__(self, rows: Tensor) -> Responder:
        """Return some of the texts, with their positions on the device of the network."""
        at, measured, read = (
            None if positions is None else positions[rows].to(self.model.device)
            for positions in (self.at, self.measured, self.read)
        )
        sources = None if self.sources is None else self.sources[rows]
        texts = replace(self, batch=self.batch[rows], measure=self.measure[rows], sources=sources)
        return replace(texts, at=at, measured=measured, read=read)

    @cached_property
    def entry(self) -> StreamEntry:
        """Where the edits enter the residual stream."""
        return linear_entry(self.model, self.selection)

    def features(self) -> Floats:
        """Return the activations at the positions that are read, (n_texts, n_features)."""
        parts = []
        for part in self._parts():
            places = (part.read, part.at, part._kept.measured)
            place = next(place for place in places if place is not None)
            values = part._kept.value(self.selection)[part._everything, place]
            parts.append(values.double().cpu().numpy())
        return np.concatenate(parts)

    def base(self) -> Floats:
        """Return the measure without edits, (n_texts,)."""
        return self._joined(lambda part: part._score(part._kept.final, part._everything))

    def of_sources(self) -> Floats:
        """Return the measure of the counterfactuals, for the answers of the texts, (n_texts,)."""
        return self._joined(lambda part: part._score(part._source.final, part._everything))

    def without(self, mean: Floats) -> Floats:
        """Return the measure after the whole vector is replaced by a mean, (n_texts,)."""
        return self._joined(lambda part: part._whole(part._tensor(mean) - part._value))

    def exchanged(self) -> Floats:
        """Return the measure after the whole vector is replaced by the counterfactual's."""
        return self._joined(lambda part: part._whole(part._to_source))

    def steered(self, directions: DirectionSet, by: Sequence[float]) -> Floats:
        """Return the measure after adding each dose k: x + k s u, (n_texts, n_directions, n_doses).

        u is the direction, and s the standard deviation of the projection on it.
        """

        def scores(part: Responder) -> Floats:
            doses = part._tensor(directions.spread[:, None] * np.asarray(by))
            return part._along(directions, doses.expand(*part._value.shape[:-1], *doses.shape))

        return self._joined(scores)

    def erased(self, directions: DirectionSet) -> Floats:
        """Return the measure after erasing each direction, (n_texts, n_directions)."""
        mean = directions.mean
        return self._joined(lambda part: part._moved(directions, part._tensor(mean) - part._value))

    def swapped(self, directions: DirectionSet) -> Floats:
        """Return the measure after exchange along each direction, (n_texts, n_directions)."""
        return self._joined(lambda part: part._moved(directions, part._to_source))

    def _joined(self, scores: Callable[[Responder], Floats]) -> Floats:
        """Return the scores of all texts; the passes of few texts stay in memory."""
        n_texts, n_positions = self.batch.ids.shape
        n_bytes = BasePass.bytes_kept(self.model.axis_sizes, n_texts, n_positions, n_sites=1)
        parts = self._parts() if n_bytes > _KEPT_BYTES else self._kept_parts
        return np.concatenate([scores(part) for part in parts])

    def _parts(self) -> Iterator[Responder]:
        return (self[some] for some in torch.split(torch.arange(len(self.batch)), TEXTS_AT_ONCE))

    @cached_property
    def _kept_parts(self) -> list[Responder]:
        return list(self._parts())

    @cached_property
    def _kept(self) -> BasePass:
        """The pass of the texts without edits."""
        return BasePass.keep(self.model, self.batch, self.measured, [self.selection.site])

    @cached_property
    def _source(self) -> BasePass:
        """The pass of the counterfactuals, measured at the positions of the texts."""
        assert self.sources is not None
        return BasePass.keep(self.model, self.sources, self._kept.measured, [self.selection.site])

    @cached_property
    def _everything(self) -> Tensor:
        """The numbers of all texts, [n_texts]."""
        return torch.arange(len(self.batch), device=self.model.device)

    @cached_property
    def _value(self) -> Tensor:
        """Activations at the edited positions, [n_texts n_features], or at all, [n_texts pos _]."""
        return self._edited(self._kept)

    @property
    def _to_source(self) -> Tensor:
        """The change from `_value` to that of the counterfactuals."""
        return self._edited(self._source) - self._value

    def _edited(self, kept: BasePass) -> Tensor:
        value = kept.value(self.selection)
        return value if self.at is None else value[self._everything, self.at]

    def _tensor(self, values: Floats) -> Tensor:
        """Return values as a tensor with the device and dtype of the activations."""
        return torch.from_numpy(np.asarray(values)).to(self._value)

    def _score(self, final: Tensor, rows: Tensor) -> Floats:
        """Return the measure for final streams [n d_model] of passes of the texts `rows` [n]."""
        return self.measure.score(self.model, final, rows, self._kept.final).cpu().numpy()

    def _whole(self, change: Tensor) -> Floats:
        """Return the measure after a change of the site's value."""
        rows, shift = self._everything, self.entry.in_stream(change)
        final = self._kept.shifted(self.entry, lambda passes: shift[passes], rows, self.at)
        return self._score(final, rows)

    def _moved(self, directions: DirectionSet, change: Tensor) -> Floats:
        """Return the measure after the part of a change along each direction.

        The change has shape [n_texts n_features] or, if all positions are edited,
        [n_texts pos n_features]; the measure has shape (n_texts, n_directions).
        """
        coefficients = change @ self._tensor(directions.reading).T
        return self._along(directions, coefficients[..., None])[..., 0]

    def _along(self, directions: DirectionSet, doses: Tensor) -> Floats:
        """Return the measure after adding doses of each direction.

        The doses have shape [n_texts n_directions n_doses] or, if all positions are edited,
        [n_texts pos n_directions n_doses]; the measure has shape (n_texts, n_directions, n_doses).
        """
        # The change of the residual stream along each direction, [n_directions d_model].
        images = self.entry.in_stream(self._tensor(directions.unit))
        n, n_doses, (n_directions, width) = len(doses), doses.shape[-1], images.shape
        size = max(1, _CHANGE_BYTES // (4 * n * n_doses * width))
        scores = np.empty((n, n_directions, n_doses))
        for block in np.array_split(np.arange(n_directions), math.ceil(n_directions / size)):
            of_block, vectors = doses[..., block, :], images[block]
            if self.at is None:
                for dose in range(n_doses):
                    scores[:, block, dose] = self._shifted(of_block[..., dose], vectors)
            else:  # the doses of a direction follow one another
                vectors = vectors.repeat_interleave(n_doses, 0)
                found = self._shifted(of_block.flatten(1), vectors)
                scores[:, block] = found.reshape(n, -1, n_doses)
        return scores

    def _shifted(self, coefficients: Tensor, vectors: Tensor) -> Floats:
        """Return scores (n_texts, n_vectors) after adding multiples of vectors [n_vectors d_model].

        The coefficients have shape [n_texts n_vectors] or, if all positions are edited,
        [n_texts pos n_vectors].
        """
        n, n_vectors = len(coefficients), len(vectors)
        # One pass for each text and vector: all vectors of a text, then the next text.
        rows = self._everything.repeat_interleave(n_vectors)
        vector_of_pass = torch.arange(n_vectors, device=rows.device).repeat(n)

        def change(passes: Tensor) -> Tensor:
            """Return the changes [n_passes (pos) d_model] of passes with these numbers."""
            added, numbers = vectors[vector_of_pass[passes]], vector_of_pass[passes]
            by = coefficients[rows[passes], ..., numbers]  # [n_passes] or [n_passes pos]
            return by[..., None] * (added if self.at is not None else added[:, None])

        columns = None if self.at is None else self.at[rows]
        final = self._kept.shifted(self.entry, change, rows, columns)
        return self._score(final, rows).reshape(n, n_vectors)
