"""The settings of a probe: kinds, penalties, controls, baselines. No numerics are imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from probekit.errors import ConfigError
from probekit.probes.bounds import positive_grid
from probekit.probes.kinds.registry import Option, Task, find_kind
from probekit.probes.targets import BASELINES, Baseline

LEAST_DRAWS = 100

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
        positive_grid("C", self.C)
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
