"""Settings of probes: kinds, penalties, controls and baselines.

This module imports no numerical libraries, so that experiment files can be checked quickly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Any, Literal

from probekit.errors import ConfigError, nearest
from probekit.probes.kinds.registry import AGGREGATE, C_GRID, KINDS, Option, Task, find_kind
from probekit.probes.score.metric_table import METRICS, SELECTING, Family
from probekit.probes.targets import BASELINES, Baseline

Reads = Literal["classes", "numbers", "trees"]
_READS: Mapping[Task, Reads] = MappingProxyType(
    {"classification": "classes", "text": "classes", "regression": "numbers", "tree": "trees"}
)
_FAMILIES: Mapping[Reads, Family] = MappingProxyType(
    {"classes": "class", "numbers": "number", "trees": "tree"}
)


@dataclass(frozen=True)
class ProbeSpec:
    """A kind of probe and its options, as pairs of name and value.

    Raises:
        UnknownNameError: The kind or an option does not exist.
        ConfigError: A count is below 1 or not an integer, or a flag is not true or false.

    >>> ProbeSpec("k_sparse", (("k", 4),)).text
    'k_sparse:4'
    """

    kind: str = "logistic"
    options: tuple[tuple[str, Option], ...] = ()

    def __post_init__(self) -> None:
        find_kind(self.kind).complete(dict(self.options))

    @property
    def text(self) -> str:
        """Kind and options in one word, as written to the results."""
        return find_kind(self.kind).text(dict(self.options))

    @property
    def task(self) -> Task:
        """The task of the kind: classification, regression, tree or text."""
        return find_kind(self.kind).task

    @property
    def reads(self) -> Reads:
        """How the kind interprets labels: as classes, numbers or trees."""
        return _READS[self.task]

    @property
    def logits(self) -> bool:
        """Whether the softmax of its scores is the probability of each class."""
        return "probabilities" in find_kind(self.kind).offers

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics of this kind by which C and sites can be selected."""
        family, offers = _FAMILIES[self.reads], find_kind(self.kind).offers
        return tuple(name for name in SELECTING if METRICS[name].fits(family, offers))

    @property
    def grid_name(self) -> str | None:
        """The name of the penalty that cross-validation selects, `C` or `alpha`, or None."""
        grid = find_kind(self.kind).grid
        return None if grid is None else grid[0]

    def penalties(self, settings: ProbeSettings) -> tuple[float, ...] | None:
        """Return the candidate penalties: `settings.C` if the penalty is C, else the kind's own.

        None for a kind without a penalty.
        """
        grid = find_kind(self.kind).grid
        if grid is None:
            return None
        return settings.C if grid[0] == "C" else grid[1]

    def build(self, settings: ProbeSettings) -> Any:
        """Return an unfitted estimator of this kind."""
        penalties = self.penalties(settings)
        # A kind has one of `balanced` and `class_weight`, or neither; those it lacks are ignored.
        return find_kind(self.kind).build(
            dict(self.options),
            random_state=settings.seed,
            max_iter=settings.max_iter,
            folds=settings.folds,
            balanced=settings.class_weight == "balanced",
            class_weight=settings.class_weight,
            device=settings.device,
            aggregate=settings.aggregate,
            **({} if penalties is None else {str(self.grid_name): penalties}),
        )


def one_or_several(given: Any) -> Any:
    """Return a number as a tuple; other values unchanged."""
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    return (given,) if is_number else given


@dataclass(frozen=True)
class ProbeSettings:
    """Settings for fitting and scoring probes.

    Args:
        kinds: The kinds of probe.
        metric: The main metric, by which C and sites are selected and probes compared; None for
            the default of the kinds, such as accuracy for classes and R2 for numbers.
        class_weight: "balanced" to give all classes the same total weight in each fit, None to
            give all rows the same weight. Predicted probabilities are corrected for class weights,
            predicted classes are not.
        C: Candidate inverse regularisation strengths, for standardised features: a number, or
            several.
        aggregate: Candidate rules, such as `rolling:10`, by which the kind `aggregated` combines
            the scores of a text's tokens; one is selected together with C.
        folds: Number of group-disjoint cross-validation folds of the training rows that select C.
        control_draws: Number of random labellings over which the score of the control task is
            averaged; 0 for no control task.
        control_by: Whether the control task assigns one label to each word type or to each group.
        baselines: The baselines to compute, which do not use activations.
        description: Whether to compute the description length of the labels by online coding.
        learning_steps: Number of training set sizes of the learning curve; 0 for no curve.
        max_iter: Maximum number of solver iterations.
        seed: Random seed for folds, control labels, exchanged labels, samples and order of the
            training groups, and initial weights.
        fit_rows: Maximum number of training rows of a probe, sampled by whole groups; None for all.
        device: Device on which probes are fitted. An accelerator computes in float32, which changes
            scores by about 1e-5; eigenvalues, linear systems and L-BFGS-B are solved on the CPU.

    Raises:
        ConfigError: There are no kinds, one is given twice, they need different types of labels, or
            one of them lacks the metric or class weights; or the metric has no learning curve; or
            `C` is empty or not positive.

    >>> ProbeSettings(C=(0.01, 0.1)).folds
    5
    >>> ProbeSettings(C=0.1).C
    (0.1,)
    """

    kinds: tuple[ProbeSpec, ...] = (ProbeSpec(),)
    metric: str | None = None
    class_weight: Literal["balanced"] | None = None
    C: tuple[float, ...] = C_GRID
    aggregate: tuple[str, ...] = AGGREGATE
    folds: int = 5
    control_draws: int = 3
    control_by: Literal["word", "group"] = "word"
    baselines: tuple[Baseline, ...] = BASELINES
    description: bool = True
    learning_steps: int = 0
    max_iter: int = 2000
    seed: int = 0
    fit_rows: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        try:
            strengths = tuple(map(float, one_or_several(self.C)))
        except (TypeError, ValueError):
            strengths = ()
        if not strengths or not all(0 < C < float("inf") for C in strengths):
            raise ConfigError(f"C is {self.C!r}. Give a positive number, or a list of them.")
        object.__setattr__(self, "C", strengths)
        texts = [spec.text for spec in self.kinds]
        if not texts or len(set(texts)) < len(texts):
            raise ConfigError(
                f"kinds is {', '.join(texts) or 'empty'}. Give at least one kind, each only once."
            )
        # The first kind that reads each type of labels: later pairs replace earlier ones.
        kind_by_labels = {_READS[spec.task]: spec.text for spec in reversed(self.kinds)}
        if len(kind_by_labels) > 1:
            needs = [f"{kind} needs {labels}" for labels, kind in sorted(kind_by_labels.items())]
            expected = " and ".join(needs)
            raise ConfigError(
                f"All kinds of a run must use the same type of labels, but {expected}. Use a "
                "separate run for each type."
            )
        if self.metric is not None:
            check_metric(self.metric, self.kinds)
            if self.learning_steps and METRICS[self.metric].needs == "alarms":
                raise ConfigError(
                    f"metric is {self.metric}, whose threshold needs all training rows, so that it "
                    "has no learning curve. Set `learning_steps` to 0 or choose another metric."
                )
        if self.class_weight is not None:
            check_class_weight(self.kinds)

    @property
    def main_metrics(self) -> tuple[str, ...]:
        """The main metric as a tuple; without `metric`, the default metrics of all kinds."""
        if self.metric is not None:
            return (self.metric,)
        named = {name for spec in self.kinds for name in spec.metrics}
        return tuple(name for name, metric in METRICS.items() if metric.is_main and name in named)

    @property
    def main_metric(self) -> str:
        """The metric that selects C and sites and compares probes: the first main metric."""
        return self.main_metrics[0]

    @property
    def reads(self) -> Reads:
        """How all kinds interpret the labels: as classes, numbers or trees."""
        return _READS[self.kinds[0].task]

    @property
    def reads_numbers(self) -> bool:
        """Whether the labels are numbers."""
        return self.reads == "numbers"


def check_metric(metric: str, kinds: Sequence[ProbeSpec]) -> None:
    """Raise ConfigError unless this can be the main metric of all kinds of probe.

    Raises:
        ConfigError: A kind does not have the metric; the message suggests others.

    >>> check_metric("aurok", [ProbeSpec("svm")])
    Traceback (most recent call last):
    probekit.errors.ConfigError: metric is 'aurok', which is no score of svm. Nearest: auroc, auprc.
    """
    allowed = [name for name in METRICS if all(name in spec.metrics for spec in kinds)]
    lacking = [spec.text for spec in kinds if metric not in spec.metrics]
    if lacking:
        raise ConfigError(
            f"metric is {metric!r}, which is no score of {' and '.join(lacking)}. "
            f"{nearest(metric, allowed)}"
        )


def check_class_weight(kinds: Sequence[ProbeSpec]) -> None:
    """Raise ConfigError unless all kinds of probe can weight the classes.

    Raises:
        ConfigError: A kind cannot weight the classes.

    >>> check_class_weight([ProbeSpec("lda")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    probekit.errors.ConfigError: lda has no class weights. Remove `class_weight`, or use kinds ...
    """
    lacking = [spec.text for spec in kinds if not find_kind(spec.kind).can_balance]
    if lacking:
        able = [kind.name for kind in KINDS.values() if kind.can_balance]
        raise ConfigError(
            f"{' and '.join(lacking)} {'have' if len(lacking) > 1 else 'has'} no class weights. "
            f"Remove `class_weight`, or use kinds that have them: {', '.join(able)}."
        )
