"""What a probe needs beside the activations: labels, groups, the split, and the settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import counted
from probekit.errors import ConfigError, DataError, nearest
from probekit.probes.kinds.logistic import positive_grid
from probekit.probes.kinds.registry import Option, Task, find_kind
from probekit.probes.targets import BASELINES, Baseline

LEAST_DRAWS = 100
LARGEST_NUMBER = 1e100  # of a label; the squares of larger ones, summed, are infinite
# With a smaller share of typical rows, their spread would say little of that of all.
LEAST_TYPICAL = 0.5

Reads = Literal["classes", "numbers", "trees"]
_READS: Mapping[Task, Reads] = MappingProxyType(
    {"classification": "classes", "text": "classes", "regression": "numbers", "tree": "trees"}
)


@dataclass(frozen=True)
class ProbeSpec:
    """A kind of probe with what is chosen of it: pairs of option and value.

    Raises:
        UnknownNameError: There is no such kind, or it has no such option.

    >>> ProbeSpec("k_sparse", (("k", 4),)).text
    'k_sparse:4'
    """

    kind: str = "logistic"
    options: tuple[tuple[str, Option], ...] = ()

    def __post_init__(self) -> None:
        find_kind(self.kind).complete(dict(self.options))

    @property
    def text(self) -> str:
        """Kind and options in one word, as results name them."""
        return find_kind(self.kind).text(dict(self.options))

    @property
    def task(self) -> Task:
        """What the kind answers."""
        return find_kind(self.kind).task

    @property
    def reads(self) -> Reads:
        """What labels are to the kind."""
        return _READS[self.task]

    @property
    def logits(self) -> bool:
        """Whether the softmax of its scores is the probability of each class."""
        return find_kind(self.kind).logits

    @property
    def grid_name(self) -> str | None:
        """The penalty that cross-validation chooses, `C` or `alpha`; None for none."""
        grid = find_kind(self.kind).grid
        return None if grid is None else grid[0]

    def penalties(self, settings: ProbeSettings) -> tuple[float, ...] | None:
        """Return the penalties to choose from: those of the settings for C, else the kind's own."""
        grid = find_kind(self.kind).grid
        if grid is None:
            return None
        return settings.C if grid[0] == "C" else grid[1]

    def build(self, settings: ProbeSettings) -> Any:
        """Return its estimator, not fitted yet."""
        return find_kind(self.kind).build(
            seed=settings.seed,
            max_iter=settings.max_iter,
            folds=settings.folds,
            penalties=self.penalties(settings),
            **dict(self.options),
        )


@dataclass(frozen=True)
class ProbeSettings:
    """How to fit and to score.

    Args:
        kinds: The kinds of probe.
        C: Inverse strengths of the penalty to choose from, for standardised features.
        folds: How many group-disjoint folds of the training rows choose C.
        control_draws: How many random labellings the control task averages; 0 leaves it out.
        control_by: Whether the control gives each word type its label, or each group.
        baselines: Which guesses without activations are made.
        description: Whether the labels are coded online, for their description length.
        learning_steps: How many sizes of the training set the learning curve has; 0 for none.
        bootstrap: How many resamples of the test groups make an interval.
        max_iter: Upper bound on the solver's steps.
        seed: Seed of folds, control labels, resamples and sampled training groups.
        fit_rows: Upper bound on the training rows of a probe, drawn by whole groups; None for all.
        device: Where the logistic probe computes.

    Raises:
        ConfigError: A value is out of its range.

    >>> ProbeSettings(C=(0.01, 0.1)).folds
    5
    """

    kinds: tuple[ProbeSpec, ...] = (ProbeSpec(),)
    C: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    folds: int = 5
    control_draws: int = 3
    control_by: Literal["word", "group"] = "word"
    baselines: tuple[Baseline, ...] = BASELINES
    description: bool = True
    learning_steps: int = 0
    bootstrap: int = 1000
    max_iter: int = 2000
    seed: int = 0
    fit_rows: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        positive_grid(self.C)
        least = {
            "folds": 2,
            "control_draws": 0,
            "bootstrap": LEAST_DRAWS,
            "max_iter": 1,
            "seed": 0,
            "fit_rows": 2,
            "learning_steps": 0,
        }
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ConfigError(f"{name} is {value}, but must be {bound} or more.")
        if self.learning_steps == 1:
            raise ConfigError("learning_steps is 1, but a curve needs 2 or more. Set 0 for none.")
        texts = [spec.text for spec in self.kinds]
        if not texts or len(set(texts)) < len(texts):
            raise ConfigError(
                f"kinds holds {', '.join(texts) or 'nothing'}. Name one kind or more, each once."
            )
        read = {_READS[spec.task]: spec.text for spec in reversed(self.kinds)}
        if len(read) > 1:
            told = " and ".join(f"{kind} reads {what}" for what, kind in sorted(read.items()))
            raise ConfigError(f"labels are of one sort, but {told}. Run them apart.")

    @property
    def reads(self) -> Reads:
        """What the labels are to all the kinds."""
        return _READS[self.kinds[0].task]

    @property
    def reads_numbers(self) -> bool:
        """Whether the labels are numbers."""
        return self.reads == "numbers"


@dataclass(frozen=True, eq=False)
class ProbeData:
    """Labels `y`, `groups` and word `types` of all rows (n_rows,), and the split into row numbers.

    `typical` (n_rows,) says which rows features are scaled by, if they are half of the training
    rows or more; None means all. `texts` (n_rows,) are what baselines read; None for none.
    `examples` (n_rows,) number the text or sentence that each row is a token of, for kinds that
    read these; None makes each row its own.

    Raises:
        DataError: The parts do not fit together, a group stands on both sides of the split, or a
            label is missing where one is needed.

    >>> words = np.array(["a", "b", "c", "d"])
    >>> labels = np.array(["x", "y", "x", "y"])
    >>> data = ProbeData(labels, words, words, train=np.array([0, 1]), test=np.array([2, 3]))
    >>> data.classes.tolist()
    ['x', 'y']
    """

    y: NDArray[np.str_]
    groups: NDArray[np.str_]
    types: NDArray[np.str_]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    typical: NDArray[np.bool_] | None = None
    texts: NDArray[np.object_] | None = None
    examples: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        _check_lengths(self)
        _check_split(self)
        _check_groups(self)
        _check_several_labels(self)

    @cached_property
    def classes(self) -> NDArray[np.str_]:
        """The training labels, sorted; a label's code is its place here."""
        return np.unique(self.y[self.train])


def _check_lengths(data: ProbeData) -> None:
    lengths = {name: len(getattr(data, name)) for name in ("y", "groups", "types")}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"y, groups and types need one entry a row, but have {told}.")


def _check_split(data: ProbeData) -> None:
    for name in ("train", "test"):
        rows = getattr(data, name)
        if not len(rows):
            raise DataError(f"{name} is empty: the split leaves no row to it.")
        if rows.min() < 0 or rows.max() >= len(data.y):
            raise DataError(
                f"{name} holds row numbers from {rows.min()} to {rows.max()}, but there are "
                f"{len(data.y)} rows, counted from 0."
            )
    both, counts = np.unique(np.concatenate([data.train, data.test]), return_counts=True)
    if counts.max() > 1:
        raise DataError(
            f"{counted((counts > 1).sum(), 'row')} twice in the split, first row "
            f"{both[counts > 1][0]}. Name each row once, in train or in test."
        )


def _check_groups(data: ProbeData) -> None:
    crossing = np.intersect1d(data.groups[data.train], data.groups[data.test])
    if len(crossing):
        raise DataError(
            f"{counted(len(crossing), 'group')} with rows in train and in test, first "
            f"{str(crossing[0])!r}: the score would count what was learnt by heart. Split by group."
        )
    if len(np.unique(data.groups[data.test])) < 2:
        raise DataError(
            f"all test rows are of the group {str(data.groups[data.test][0])!r}, so there is no "
            "interval to resample. Give test two groups or more."
        )


def _check_several_labels(data: ProbeData) -> None:
    if len(data.classes) < 2:
        raise DataError(
            f"the {len(data.train)} training rows have one label only, {str(data.classes[0])!r}: "
            "there is nothing to tell apart. Give train two labels or more."
        )


def typical_rows(data: ProbeData, rows: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    """Return which of some rows features are scaled by; None for all, as where those are few."""
    if data.typical is None:
        return None
    typical = data.typical[rows]
    return typical if typical.mean() >= LEAST_TYPICAL else None


def check_known(data: ProbeData) -> None:
    """Return nothing if every test label stands in the training rows too.

    Raises:
        DataError: One does not, so that no probe could say it.
    """
    unseen = ~np.isin(data.y[data.test], data.classes)
    if unseen.any():
        label = str(data.y[data.test][unseen][0])
        raise DataError(
            f"{unseen.sum()} test rows have labels that no training row has, first {label!r} in "
            f"row {data.test[unseen][0]}. {nearest(label, map(str, data.classes))} Drop those rows "
            "or split anew."
        )


def numbers(data: ProbeData) -> NDArray[np.float64]:
    """Return the labels of the training and test rows as numbers (n_rows,); NaN elsewhere.

    Raises:
        DataError: A label is no finite number.
    """
    found = np.full(len(data.y), np.nan)
    rows = np.concatenate([data.train, data.test])
    check_numbers(data.y[rows], [f"row {row}" for row in rows])
    found[rows] = [as_number(label) for label in data.y[rows]]
    return found


def as_number(label: str) -> float | None:
    """Return the number that a label is; None if it is none that regression can compute with.

    >>> as_number("-1.5"), as_number("1_000"), as_number("nan"), as_number("1e308")
    (-1.5, None, None, None)
    """
    try:
        # Python takes 1_000 for a number; in a label it is a name.
        number = math.nan if "_" in label else float(label)
    except ValueError:
        return None
    return number if abs(number) <= LARGEST_NUMBER else None


def check_numbers(labels: Sequence[str] | NDArray[Any], where: Sequence[str]) -> None:
    """Return nothing if each label is a number that regression can compute with.

    `where` (n_labels,) says for messages where each label was read.

    Raises:
        DataError: One is not.
    """
    wrong = [n for n, label in enumerate(labels) if as_number(label) is None]
    if wrong:
        raise DataError(
            f"{where[wrong[0]]}: the label {str(labels[wrong[0]])!r} is not a number from "
            f"{-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g} ({counted(len(wrong), 'such label')}). "
            "Regression reads numbers: correct or remove the rows, or choose a kind of probe that "
            "classifies, such as `kinds: [{kind: logistic}]`."
        )
