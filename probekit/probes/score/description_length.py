"""How many bits the labels need, given the activations: online coding of the training rows.

Somebody who has the activations is sent the labels, block by block. Each block is coded with the
probabilities of a probe fitted on the blocks before it, which both sides know by then. A probe that
learns from few rows saves bits early; one that must learn the labels by heart saves none. Its
penalty, chosen on all the rows, is taken as known: to send it costs log2 of the grid's size. So the
length tells how easily labels are read, where accuracy tells how well in the end.

    blocks         groups -> which rows are coded, and by a probe fitted on which rows
    code_lengths   log probabilities, labels -> bits of each row
    OnlineCode     bits of all rows -> codelength, compression

Source: Voita and Titov (2020), Information-theoretic probing with minimum description length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from probekit.errors import ConfigError, DataError
from probekit.probes.score.learning_curve import subsets
from probekit.probes.score.metric_table import Family
from probekit.probes.score.metrics import Resamples, mean_of_rows
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes

# Shares of the rows at which a probe is fitted anew.
PREFIXES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
# Rows a class in the first block, on average: fewer teach the first probe nothing.
LEAST_ROWS = 2


@dataclass(frozen=True, eq=False)
class CodedBlock:
    """Rows `coded` (n_coded,) by a probe that was fitted on the rows `fitted` (n_fitted,).

    The first block has nothing to be fitted on, and is coded uniformly.
    """

    fitted: Codes
    coded: Codes


def blocks(
    groups: NDArray[np.generic], n_classes: int, seed: int, shares: Sequence[float] = PREFIXES
) -> list[CodedBlock]:
    """Return the blocks of rows in the order they are sent: whole groups, in random order.

    Each ends with the first group that reaches its share of the rows, the first not before 2 rows a
    class. Shares that end with the same group are one. Every row is coded once.

    A first block of a single class is possible; whoever fits must mind.

    Raises:
        ConfigError: The shares do not rise to 1.

    >>> [(len(b.fitted), len(b.coded)) for b in blocks(np.arange(64), n_classes=2, seed=0)]
    [(0, 4), (4, 4), (8, 8), (16, 16), (32, 32)]
    """
    if not shares or shares[-1] != 1 or min(np.diff([0.0, *shares])) <= 0:
        raise ConfigError(f"Shares rise from above 0 to 1; given are {list(shares)}.")
    n_rows = len(groups)
    least = min(LEAST_ROWS * n_classes, n_rows)
    sizes = [max(least, int(np.ceil(share * n_rows))) for share in shares]
    known = np.zeros(n_rows, dtype=bool)
    found: list[CodedBlock] = []
    for sent in subsets(groups, sizes, seed):
        if (sent & ~known).any():
            found.append(CodedBlock(np.flatnonzero(known), np.flatnonzero(sent & ~known)))
        known = sent
    return found


def code_lengths(log_probabilities: Floats, truth: Codes, n_fitted: int) -> Floats:
    """Return the bits (n_samples,) that code each true label, by a probe fitted on `n_fitted` rows.

    The probabilities (n_samples, n_classes) are mixed with the uniform ones, which count like
    n_classes rows more: -log2((n p + 1) / (n + n_classes)). So a class that the probe has never
    seen costs finite bits, and without any rows each label costs log2(n_classes). The mixture is
    ours; the paper's probes have no class unseen.

    >>> p = np.log([[0.5, 0.5], [0.75, 0.25]])
    >>> code_lengths(p, np.array([0, 0]), n_fitted=0).tolist()
    [1.0, 1.0]
    >>> code_lengths(p, np.array([0, 0]), n_fitted=2).round(3).tolist()
    [1.0, 0.678]
    """
    n_samples, n_classes = log_probabilities.shape
    p = np.exp(log_probabilities[np.arange(n_samples), truth])
    lengths: Floats = np.log2(n_fitted + n_classes) - np.log2(n_fitted * p + 1)
    return lengths


@dataclass(frozen=True, eq=False)
class OnlineCode:
    """The bits (n_samples,) that code the label of each training row, one of `n_classes`.

    `n_codes` is more than one where several splits code their training rows, one after the other.

    Raises:
        DataError: There is one class, and nothing to code, or a length is not finite.
    """

    bits: Floats
    n_classes: int
    n_codes: int = 1

    family: ClassVar[Family] = "code"
    offers: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        if self.n_classes < 2:
            raise DataError(f"{self.n_classes} class needs no code. Give two classes or more.")
        if not np.isfinite(self.bits).all():
            raise DataError("The bits of some rows are not finite. Was every block coded?")

    @property
    def uniform(self) -> OnlineCode:
        """The code of one who knows nothing but the number of classes."""
        return OnlineCode(np.full_like(self.bits, np.log2(self.n_classes)), self.n_classes)

    @classmethod
    def of_blocks(
        cls, coded: Sequence[CodedBlock], log_probabilities: Sequence[Floats], truth: Codes
    ) -> OnlineCode:
        """Return the code of the labels (n_samples,) by what was foretold of each block.

        There are log probabilities (n_coded, n_classes) for every block but the first.

        Raises:
            DataError: There is not one table for each block after the first.

        >>> parts = blocks(np.arange(16), n_classes=2, seed=0, shares=(0.5, 1.0))
        >>> certain = np.log([[1.0, 1e-9]] * 8)
        >>> code = OnlineCode.of_blocks(parts, [certain], np.zeros(16, int))
        >>> code.bits[parts[0].coded].sum(), code.bits[parts[1].coded].sum().round(2)
        (np.float64(8.0), np.float64(1.22))
        """
        if len(log_probabilities) != len(coded) - 1 or not log_probabilities:
            raise DataError(
                f"{len(coded)} blocks need {len(coded) - 1} tables of log probabilities, and at "
                f"least one; given are {len(log_probabilities)}."
            )
        n_classes = log_probabilities[0].shape[1]
        bits = np.full(len(truth), np.nan)
        bits[coded[0].coded] = np.log2(n_classes)
        for block, table in zip(coded[1:], log_probabilities, strict=True):
            bits[block.coded] = code_lengths(table, truth[block.coded], len(block.fitted))
        return cls(bits, n_classes)


def codelength(code: OnlineCode, resamples: Resamples) -> Floats:
    """Return the bits of all labels (1 + n_draws,); of a draw, scaled to the number of rows.

    A draw counts groups with the bits they had in the one order that was sent: the interval is that
    of other groups, not of other orders.

    >>> code = OnlineCode(np.array([1.0, 0.5, 0.5]), n_classes=2)
    >>> codelength(code, Resamples.draw(np.arange(3), draws=0, seed=0)).tolist()
    [2.0]
    """
    return len(code.bits) / code.n_codes * mean_of_rows(code.bits, resamples)


def compression(code: OnlineCode, resamples: Resamples) -> Floats:
    """Return how many times shorter the code is than the uniform one (1 + n_draws,); 1 is none.

    >>> code = OnlineCode(np.array([1.0, 0.5, 0.5]), n_classes=2)
    >>> compression(code, Resamples.draw(np.arange(3), draws=0, seed=0)).tolist()
    [1.5]
    """
    ratio: Floats = np.log2(code.n_classes) / mean_of_rows(code.bits, resamples)
    return ratio


def tempered(scores: Floats, truth: Codes) -> float:
    """Return the factor that makes probabilities of scores (n_samples, n_classes) by their softmax.

    It is the one under which the true codes (n_samples,) are likeliest, for kinds of probe whose
    scores are no logits. A class of -inf was not fitted, and no truth is of it.

    >>> scores = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, -1.0]])
    >>> round(tempered(scores, np.array([1, 1, 0, 0])), 2)
    1.1

    Source: Guo et al. (2017), On calibration of modern neural networks (temperature scaling).
    """
    rows = np.arange(len(truth))

    def loss(log_factor: float) -> float:
        return -float(log_softmax(scores * np.exp(log_factor), axis=1)[rows, truth].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-15, 15), method="bounded").x))
