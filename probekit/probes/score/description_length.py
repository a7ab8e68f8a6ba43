"""Growing samples of the training rows: learning curve, and description length of the labels.

Samples are of whole groups. Each contains the smaller ones, so that the points of a learning curve
differ only by the added rows.

The description length is that of an online code: the labels are transmitted block by block to a
receiver that has the activations. Each block is coded with the probabilities of a probe fitted on
the previous blocks. A probe that learns from few rows saves bits early; one that can only memorise
the labels saves none. The penalty, selected on all rows, is assumed to be known; transmitting it
would cost log2 of the grid size in bits. The description length thus measures how easily the labels
are decoded, in addition to how accurately.

It is compared with a code of the same blocks that does not use the activations: its probabilities
are the label frequencies of the previous blocks. A uniform code, the reference of the paper, would
make a probe that learns nothing but the label frequencies look as if it compressed the labels.

    blocks         groups -> rows coded in each block, and rows that its probe is fitted on
    code_lengths   log probabilities, labels -> bits of each row
    count_lengths  blocks, labels -> bits of each row under the label frequencies
    OnlineCode     bits of all rows -> codelength, compression

Source: Voita and Titov (2020), Information-theoretic probing with minimum description length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import log_softmax

from probekit.errors import ConfigError
from probekit.lazy_rows import Codes, Floats, Mask
from probekit.probes.fitters import is_one_batch, refitted
from probekit.probes.score.metric_table import Family
from probekit.probes.score.metrics import Resamples, mean_of_rows
from probekit.probes.score.scored import Scored

if TYPE_CHECKING:  # these modules import this one
    from probekit.lazy_rows import LazyRows
    from probekit.probes.settings import ProbeSpec
    from probekit.probes.solve.fits import TunedProbeFit
    from probekit.probes.solve.layers import FittedLayers
    from probekit.probes.split import SplitProber, TunedColumn


def learning_sizes(n_samples: int, steps: int, smallest: int = 32) -> tuple[int, ...]:
    """Return up to `steps` geometrically spaced sizes from `smallest` to `n_samples`.

    Sizes that round to the same number are merged.

    Raises:
        ConfigError: There are fewer than two steps, or `smallest` is not from 1 to `n_samples` - 1.

    >>> learning_sizes(3200, steps=3)
    (32, 320, 3200)
    """
    if steps < 2 or not 0 < smallest < n_samples:
        raise ConfigError(
            f"A learning curve of {n_samples} rows needs at least 2 steps and a smallest size from "
            f"1 to {n_samples - 1}, but steps is {steps} and smallest is {smallest}."
        )
    sizes = np.geomspace(smallest, n_samples, steps).round().astype(int)
    return tuple(np.unique(sizes).tolist())


def subsets(groups: NDArray[np.generic], sizes: Sequence[int], seed: int) -> Mask:
    """Return nested samples of whole groups, one for each size, as masks (n_sizes, n_samples).

    Groups are added in one random order until a sample has at least as many rows as its size, or
    there are no more groups; the last group may exceed the size.

    >>> rows = subsets(np.array(["a", "a", "b", "c"]), sizes=(1, 3, 4), seed=1)
    >>> rows.astype(int).tolist()
    [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    """
    names, group_of_row = np.unique(groups, return_inverse=True)
    rank = np.random.default_rng(seed).permutation(len(names))
    # The number of rows in the first 1, 2, ... groups, then the number of groups in each sample.
    n_rows = np.cumsum(np.bincount(rank[group_of_row]))
    n_groups = np.searchsorted(n_rows, sizes, side="left") + 1
    return rank[group_of_row] < n_groups[:, None]


# Fractions of the rows at which blocks end and a new probe is fitted.
PREFIXES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
# Average number of rows per class in the first block; fewer are too few to fit a probe.
LEAST_ROWS = 2


@dataclass(frozen=True, eq=False)
class CodedBlock:
    """Rows of one block, and the rows of the previous blocks, which its probe is fitted on.

    `coded` (n_coded,) and `fitted` (n_fitted,) are row numbers. The first block has no previous
    rows; its labels are coded with equal probabilities for all classes.
    """

    fitted: Codes
    coded: Codes


def blocks(
    groups: NDArray[np.generic], n_classes: int, seed: int, shares: Sequence[float] = PREFIXES
) -> list[CodedBlock]:
    """Return the blocks of rows in transmission order: whole groups in random order.

    Each block ends with the group that reaches its share of the rows; the first has at least 2 rows
    per class on average, or all rows if there are fewer. Shares that end with the same group are
    merged. Every row is coded once if the last share is 1.

    The first block may contain a single class; callers must handle that when fitting.

    >>> [(len(b.fitted), len(b.coded)) for b in blocks(np.arange(64), n_classes=2, seed=0)]
    [(0, 4), (4, 4), (8, 8), (16, 16), (32, 32)]
    """
    n_rows = len(groups)
    least = min(LEAST_ROWS * n_classes, n_rows)
    sizes = [max(least, int(np.ceil(share * n_rows))) for share in shares]
    previous = np.zeros(n_rows, dtype=bool)
    coded_blocks: list[CodedBlock] = []
    for sent in subsets(groups, sizes, seed):
        new = sent & ~previous
        if new.any():
            coded_blocks.append(CodedBlock(np.flatnonzero(previous), np.flatnonzero(new)))
        previous = sent
    return coded_blocks


def code_lengths(log_probabilities: Floats, truth: Codes, n_fitted: int) -> Floats:
    """Return the code length in bits (n_samples,) of each true label.

    The probabilities (n_samples, n_classes), by a probe fitted on n = `n_fitted` rows, are smoothed
    with a uniform prior worth n_classes rows: -log2((n p + 1) / (n + n_classes)). Classes unseen in
    training therefore have a finite cost, and without training rows each label costs
    log2(n_classes). The smoothing is not in the paper, whose probes have seen every class.

    >>> p = np.log([[0.5, 0.5], [0.75, 0.25]])
    >>> code_lengths(p, np.array([0, 0]), n_fitted=0).tolist()
    [1.0, 1.0]
    >>> code_lengths(p, np.array([0, 0]), n_fitted=2).round(3).tolist()
    [1.0, 0.678]
    """
    n_samples, n_classes = log_probabilities.shape
    p = np.exp(log_probabilities[np.arange(n_samples), truth])
    found: Floats = np.log2(n_fitted + n_classes) - np.log2(n_fitted * p + 1)
    return found


def count_lengths(coded: Sequence[CodedBlock], truth: Codes, n_classes: int) -> Floats:
    """Return the code length in bits (n_samples,) of each true label, without activations.

    A label of class c costs -log2((n_c + 1) / (n + n_classes)), where n_c of the n rows in previous
    blocks have class c. The smoothing is that of `code_lengths`, so that a probe that predicts the
    label frequencies of its training rows has the same code.

    >>> parts = blocks(np.arange(8), n_classes=2, seed=0, shares=(0.5, 1.0))
    >>> count_lengths(parts, np.zeros(8, int), n_classes=2).sum().round(2)
    np.float64(5.05)

    Source: Laplace's rule of succession (add-one smoothing).
    """
    bits = np.empty(len(truth))
    for block in coded:
        counts = np.bincount(truth[block.fitted], minlength=n_classes)
        lengths = np.log2(len(block.fitted) + n_classes) - np.log2(counts + 1)
        bits[block.coded] = lengths[truth[block.coded]]
    return bits


@dataclass(frozen=True, eq=False)
class OnlineCode:
    """Online code of the training labels.

    Attributes:
        bits: Code length (n_samples,) of the label of each training row.
        reference_bits: Code length (n_samples,) of the same labels in the same blocks under the
            label frequencies of the previous blocks; see `count_lengths`.
        n_codes: Number of concatenated codes, one for each split of a cross-validation.
    """

    bits: Floats
    reference_bits: Floats
    n_codes: int = 1

    family: ClassVar[Family] = "code"
    offers: ClassVar[frozenset[str]] = frozenset()

    @property
    def reference(self) -> OnlineCode:
        """The code of the same labels without activations."""
        return replace(self, bits=self.reference_bits)

    @classmethod
    def of_blocks(
        cls, coded: Sequence[CodedBlock], log_probabilities: Sequence[Floats], truth: Codes
    ) -> OnlineCode:
        """Return the code of the labels (n_samples,) from the predictions for each block.

        `log_probabilities` holds an array (n_coded, n_classes) for every block except the first,
        which must not be the only one.

        >>> parts = blocks(np.arange(16), n_classes=2, seed=0, shares=(0.5, 1.0))
        >>> certain = np.log([[1.0, 1e-9]] * 8)
        >>> code = OnlineCode.of_blocks(parts, [certain], np.zeros(16, int))
        >>> code.bits[parts[0].coded].sum(), code.bits[parts[1].coded].sum().round(2)
        (np.float64(8.0), np.float64(1.22))
        """
        n_classes = log_probabilities[0].shape[1]
        bits = np.full(len(truth), np.nan)
        bits[coded[0].coded] = np.log2(n_classes)
        for block, table in zip(coded[1:], log_probabilities, strict=True):
            bits[block.coded] = code_lengths(table, truth[block.coded], len(block.fitted))
        return cls(bits, count_lengths(coded, truth, n_classes))


def codelength(code: OnlineCode, resamples: Resamples) -> Floats:
    """Return the code length of all labels in bits: the number of rows times the mean per row.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.

    Resamples are scaled to the number of all rows; of several concatenated codes the mean is
    returned. All resamples use the code lengths of a single transmission order, so that the
    interval reflects the sampling of groups, not the choice of the order.

    >>> code = OnlineCode(np.array([1.0, 0.5, 0.5]), reference_bits=np.ones(3))
    >>> codelength(code, Resamples.whole(3)).tolist()
    [2.0]
    """
    return len(code.bits) / code.n_codes * mean_of_rows(code.bits, resamples)


def compression(code: OnlineCode, resamples: Resamples) -> Floats:
    """Return the reference code length divided by the code length.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.

    A value of 1 means no compression, for any label frequencies.

    >>> code = OnlineCode(np.array([1.0, 0.5, 0.5]), reference_bits=np.ones(3))
    >>> compression(code, Resamples.whole(3)).tolist()
    [1.5]
    """
    reference = mean_of_rows(code.reference_bits, resamples)
    return reference / mean_of_rows(code.bits, resamples)


def tempered(scores: Floats, truth: Codes, log_prior: Floats | float = 0.0) -> float:
    """Return the inverse temperature that calibrates scores (n_samples, n_classes).

    Scores that are not logits are multiplied by it before a softmax. It maximises the likelihood
    of the true codes (n_samples,). `log_prior` (n_classes,) is added to the scaled scores. Classes
    that were not fitted have scores of -inf and must not occur in `truth`.

    >>> scores = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, -1.0]])
    >>> round(tempered(scores, np.array([1, 1, 0, 0])), 2)
    1.1

    Source: Guo et al. (2017), On calibration of modern neural networks (temperature scaling).
    """
    rows = np.arange(len(truth))

    def loss(log_factor: float) -> float:
        """Return the mean cross-entropy at an inverse temperature, given its logarithm."""
        logs = log_softmax(scores * np.exp(log_factor) + log_prior, axis=1)
        return -float(logs[rows, truth].mean())

    # The bounds of the logarithm allow factors from 3e-7 to 3e6.
    return float(np.exp(scipy.optimize.minimize_scalar(loss, bounds=(-15, 15), method="bounded").x))


def coding_fits(
    spec: ProbeSpec,
    X: LazyRows,
    random: bool,
    parts: Sequence[tuple[SplitProber, Sequence[TunedProbeFit[FittedLayers]]]],
) -> list[list[list[FittedLayers]]]:
    """Return the fits that code the blocks of each split, by label column and block but the first.

    Logistic fits from products of the rows are one batch of all splits. `parts` have the tuned fits
    of the labels of each split, at whose penalties these are fitted.
    """
    asked = []
    for split, tuned in parts:
        rows, settings = split.fitted, split.settings
        columns = [column[rows.rows] for column in split.labels(random)]
        tasks = list(zip(columns, [one.penalty for one in tuned], strict=True))
        is_coded = settings.description and not settings.reads_numbers
        coded = split.blocks[1:] if is_coded else []
        masks = [np.isin(np.arange(len(rows.rows)), block.fitted) for block in coded]
        asked.append((rows, rows.rows, tasks, masks))
    if is_one_batch(spec, X, [rows for rows, *_ in asked]):
        return refitted(X, asked)
    return [
        rows.fitter(spec).refit(X.select(own), tasks, masks) for rows, own, tasks, masks in asked
    ]


def description_lengths(
    split: SplitProber, columns: Sequence[TunedColumn], fits: Sequence[Sequence[FittedLayers]]
) -> list[Scored]:
    """Return the description lengths of the training labels and of their control labels.

    Args:
        split: the training rows and their blocks, at least two.
        columns: the labels of the task, then those of each draw of the control task.
        fits: those of `coding_fits`.
    """
    rows, coded = split.fitted, split.blocks
    n_classes, scores = rows.n_classes, []
    for column, of_column in zip(columns, fits, strict=True):
        tables = []
        for block, fit in zip(coded[1:], of_column, strict=True):
            fitted = column.codes[block.fitted]
            outputs = fit.outputs(column.X.select(block.coded), n_classes)
            removed = rows.removed_prior(fitted)
            prior = 0.0 if removed is None else removed
            if not column.fitter.spec.logits:
                train_scores = fit.outputs(column.X.select(block.fitted), n_classes)
                outputs = outputs * tempered(train_scores, fitted, prior)
            tables.append(log_softmax(outputs + prior, axis=1))
        code = OnlineCode.of_blocks(coded, tables, column.codes)
        facts = column.facts.of_fits(of_column, split="online")
        scores.append(Scored((code,), (code.reference,), rows.groups, facts))
    task, *controls = scores
    return [task, Scored.of_draws(controls)] if controls else [task]


def learning_curve(split: SplitProber, task: TunedColumn, outside: LazyRows) -> list[Scored]:
    """Return the points of the learning curve: one test score per training set size.

    The penalty is not selected again: it is the one selected on all training rows. `outside` are
    the test rows.
    """
    rows, metric = split.fitted, split.settings.main_metric
    samples = list(subsets(rows.groups, split.sizes, split.settings.seed))
    (fits,) = task.fitter.refit(task.X, [(task.codes, task.tuned.penalty)], samples)
    scores = []
    for sample, solution in zip(samples, fits, strict=True):
        predictions = split.predict(task, solution, outside, rows.rows[sample])
        facts = task.facts.of_fits([solution], n_train=int(sample.sum()), split="learning")
        scores.append(split.with_chance(predictions, task.labels, facts, metric=metric))
    return scores
