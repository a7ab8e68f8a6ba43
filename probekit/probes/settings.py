"""Settings of probes, the section `probe` of an experiment: kinds, penalties, controls, statistics.

This module imports no numerical libraries, so that experiment files can be checked quickly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, PrivateAttr, field_validator, model_validator

from probekit import section
from probekit.amounts import LEVEL, counted
from probekit.errors import ConfigError, nearest
from probekit.probes.kinds import registry
from probekit.probes.kinds.registry import AGGREGATE, C_GRID, KINDS, Option, ProbeKind, Task
from probekit.probes.score.metric_table import METRICS, SELECTING, Family
from probekit.probes.targets import BASELINES, Baseline
from probekit.section import Distinct, Section, Seed, Unique, rule_error

# Values outside this range are useless: with smaller C all weights round to 0; with larger C fits
# on separable data do not converge, and above about 1e30 the description length overflows.
Strength = Annotated[float, Field(ge=1e-10, le=1e10)]
Strengths = Annotated[
    Distinct[Strength],
    BeforeValidator(section.one_or_several, json_schema_input_type=Strength | Distinct[Strength]),
]
Count = Annotated[int, Field(ge=1)]
Width = Annotated[int, Field(ge=1, le=65_536)]  # a wider layer does not fit into memory
if TYPE_CHECKING:
    KindName: TypeAlias = str
    MetricName: TypeAlias = str
else:
    KindName = Literal[tuple(KINDS)]
    MetricName = Literal[SELECTING]

Reads = Literal["classes", "numbers", "trees"]
_READS: Mapping[Task, Reads] = MappingProxyType(
    {"classification": "classes", "text": "classes", "regression": "numbers", "tree": "trees"}
)
_FAMILIES: Mapping[Reads, Family] = MappingProxyType(
    {"classes": "class", "numbers": "number", "trees": "tree"}
)


class ProbeSpec(Section):
    """A kind of probe and its options.

    Attributes:
        kind: name of the kind of probe
        covariance: for mass_mean: whether to multiply by the inverse covariance
        k: for k_sparse: numbers of features; one probe for each
        hidden: for mlp: width of the hidden layer
        rank: for structural probes: rank of the projection

    >>> ProbeSpec(kind="k_sparse", k=(4,)).text
    'k_sparse:4'
    """

    kind: KindName
    covariance: bool | None = None
    k: Distinct[Count] | None = Field(None, examples=[[1, 4, 16]])
    hidden: Width | None = None
    rank: Width | None = None

    @model_validator(mode="before")
    @classmethod
    def _options_belong_to_kind(cls, given: Any) -> Any:
        # Before validation of the values: first report an option that the kind does not have.
        kind = KINDS.get(str(given.get("kind"))) if isinstance(given, dict) else None
        if kind is None:
            return given  # rejected later by the validation of the section or of its name
        own = f"Its options: {', '.join(f'`{option}`' for option in kind.options) or 'none'}"
        for name in cls.model_fields:
            others = " and ".join(other.name for other in KINDS.values() if name in other.options)
            is_foreign = name != "kind" and name not in kind.options
            problem = f"`{name}` is not an option of `kind: {kind.name}`. {own}; it is for {others}"
            if is_foreign and given.get(name) is not None:
                raise rule_error(problem, name)
        return given

    @property
    def each(self) -> tuple[ProbeSpec, ...]:
        """The probes: one for each k."""
        return tuple(self.model_copy(update={"k": (k,)}) for k in self.k or ()) or (self,)

    @property
    def options(self) -> dict[str, Option]:
        """The options that are given, of a single probe."""
        given = self.model_dump(exclude={"kind"}, exclude_none=True)
        return given if self.k is None else given | {"k": self.k[0]}

    @property
    def traits(self) -> ProbeKind:
        """What all probes of the kind have in common: its row in the table of kinds."""
        return KINDS[self.kind]

    @property
    def text(self) -> str:
        """Kind and options in one word, as written to the results."""
        return self.traits.text(self.options)

    @property
    def task(self) -> Task:
        """The task of the kind: classification, regression, tree or text."""
        return self.traits.task

    @property
    def reads(self) -> Reads:
        """How the kind interprets labels: as classes, numbers or trees."""
        return _READS[self.task]

    @property
    def logits(self) -> bool:
        """Whether the softmax of its scores is the probability of each class."""
        return "probabilities" in self.traits.offers

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics of this kind by which C and sites can be selected."""
        family, offers = _FAMILIES[self.reads], self.traits.offers
        return tuple(name for name in SELECTING if METRICS[name].fits(family, offers))

    @property
    def grid_name(self) -> str | None:
        """The name of the penalty that cross-validation selects, `C` or `alpha`, or None."""
        grid = self.traits.grid
        return None if grid is None else grid[0]

    def penalties(self, settings: ProbeSettings) -> tuple[float, ...] | None:
        """Return the candidate penalties: `settings.C` if the penalty is C, else the kind's own.

        None for a kind without a penalty.
        """
        grid = self.traits.grid
        if grid is None:
            return None
        return settings.C if grid[0] == "C" else grid[1]

    def build(self, settings: ProbeSettings) -> Any:
        """Return an unfitted estimator of this kind."""
        penalties = self.penalties(settings)
        # A kind has one of `balanced` and `class_weight`, or neither; those it lacks are ignored.
        return self.traits.build(
            self.options,
            random_state=settings.seed,
            max_iter=settings.max_iter,
            folds=settings.folds,
            balanced=settings.class_weight == "balanced",
            class_weight=settings.class_weight,
            device=settings.device,
            aggregate=settings.rules,
            **({} if penalties is None else {str(self.grid_name): penalties}),
        )


def _rule(given: Any) -> Any:
    """Return a rule such as {rolling: 10} as `rolling:10`; raises a validation error if invalid."""
    if isinstance(given, dict) and len(given) == 1:
        given = ":".join(map(str, *given.items()))
    try:
        if not isinstance(given, str):
            return given
        name, number = registry.parse_rule(given)
        return f"{name}:{number:g}" if number else name
    except ConfigError as error:
        raise rule_error(str(error).removesuffix(".")) from error


Rule = Annotated[str, BeforeValidator(_rule, json_schema_input_type=str | dict[str, float])]


class ProbeSettings(Section):
    """Probes, controls and statistics.

    Attributes:
        kinds: kinds of probe; each is fitted at every site
        layers: `stack` also fits a probe of the scores of all sites, those of training rows by fits
            without their fold, and compares it with the best single site; null for none
        metric: main metric, by which C and sites are selected and probes compared; null is
            accuracy, for numbers r2
        class_weight: `balanced` gives all classes equal total weight in each fit; probabilities are
            corrected for it, predicted classes are not; null means equal row weights
        C: inverse regularisation strength: a number, or a list of at least one; inner
            cross-validation selects one
        folds: number of folds of the inner cross-validation
        control_draws: number of draws of the control labels; 0 for no control task; there is none
            either if the words of the test rows are new
        control_by: unit that gets one random label in the control task; `group` has no control
        baselines: baselines that do not use activations; those of the text need texts,
            `neighbouring_words` needs rows that are words or tokens of a text, and `output` needs
            the logits of the network, or `outputs` of given activations
        description: whether to compute the online description length
        learning_steps: number of training set sizes in the learning curve; 0 for none
        permutations: least number of random exchanges of the labels for p-values; 0 for none
        max_iter: maximum number of iterations of a fit
        fit_rows: maximum number of training rows per fit, sampled by whole groups
        seed: random seed for folds, control labels and resamples
    """

    _device: str = PrivateAttr("cpu")

    kinds: Annotated[tuple[ProbeSpec, ...], Field(strict=False)] = Field(
        (ProbeSpec(kind="logistic"),), min_length=1
    )
    layers: Literal["stack"] | None = None
    metric: MetricName | None = Field(None, examples=["balanced_accuracy"])
    class_weight: Literal["balanced"] | None = None
    C: Strengths = C_GRID
    aggregate: Distinct[Rule] | None = Field(
        None,
        description="rules that combine the scores of a text's tokens into a score of the text, "
        "for `kind: aggregated`; one rule is selected like C; that is the kind if `kinds` is "
        f"not given; null is {', '.join(AGGREGATE)}",
        examples=[["mean", "max", {"rolling": 10}, {"softmax": 1.0}, "multimax", "attention"]],
    )
    folds: int = Field(5, ge=2, le=100)
    control_draws: int = Field(3, ge=0, le=100)
    control_by: Literal["word", "group"] = "word"
    baselines: Unique[Baseline] = BASELINES
    description: bool = True
    learning_steps: int = Field(0, ge=0, le=100)
    permutations: int = Field(1000, ge=0, le=1_000_000)
    max_iter: int = Field(2000, ge=1, le=1_000_000)
    fit_rows: int | None = Field(None, ge=2, lt=2**63)
    seed: Seed = 0

    @model_validator(mode="before")
    @classmethod
    def _rules_imply_kind(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("aggregate") and "kinds" not in given:
            return given | {"kinds": [{"kind": "aggregated"}]}
        return given

    @field_validator("kinds")
    @classmethod
    def _kinds_differ(cls, kinds: tuple[ProbeSpec, ...]) -> tuple[ProbeSpec, ...]:
        section.unique_items([[spec.text for spec in kind.each] for kind in kinds])
        return kinds

    @model_validator(mode="after")
    def _is_consistent(self) -> ProbeSettings:
        specs, metric = self.specs, self.metric
        # The smallest p-value is 1 / (permutations + 1), which must be below LEVEL.
        fewest = math.floor(1 / LEVEL)
        if self.learning_steps == 1:
            raise rule_error("a learning curve has at least 2 steps; 0 for none", "learning_steps")
        if 0 < self.permutations < fewest:
            none = f"with {counted(self.permutations, 'permutation')} no p-value is below {LEVEL}"
            raise rule_error(f"{none}; give at least {fewest}, or 0 for none", "permutations")
        if self.aggregate is not None and not any(spec.traits.scores_tokens for spec in specs):
            raise rule_error("`aggregate` requires `kinds: [{kind: aggregated}]`", "aggregate")
        lacking = [spec.text for spec in specs if metric is not None and metric not in spec.metrics]
        if lacking:
            allowed = [name for name in METRICS if all(name in spec.metrics for spec in specs)]
            problem = f"metric is {metric!r}, which is no score of {' and '.join(lacking)}"
            near = nearest(str(metric), allowed).removesuffix(".")
            raise rule_error(f"{problem}. {near}", "metric")
        unweighted = [spec.text for spec in specs if not spec.traits.can_balance]
        if self.class_weight is not None and unweighted:
            has = "have" if len(unweighted) > 1 else "has"
            able = ", ".join(kind.name for kind in KINDS.values() if kind.can_balance)
            raise rule_error(
                f"{' and '.join(unweighted)} {has} no class weights. Remove `class_weight`, or use "
                f"kinds that have them: {able}",
                "class_weight",
            )
        # The first kind that reads each type of labels: later pairs replace earlier ones.
        kind_by_labels = {spec.reads: spec.text for spec in reversed(specs)}
        if len(kind_by_labels) > 1:
            needs = [f"{kind} needs {labels}" for labels, kind in sorted(kind_by_labels.items())]
            raise rule_error(
                f"All kinds of a run must use the same type of labels, but {' and '.join(needs)}. "
                "Use a separate run for each type",
                "kinds",
            )
        if metric is not None and self.learning_steps and METRICS[metric].needs == "alarms":
            raise rule_error(
                f"metric is {metric}, whose threshold needs all training rows, so that it has no "
                "learning curve. Set `learning_steps` to 0 or choose another metric",
                "metric",
            )
        return self

    @property
    def specs(self) -> tuple[ProbeSpec, ...]:
        """The probes of all kinds."""
        return tuple(spec for kind in self.kinds for spec in kind.each)

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that combine the scores of a text's tokens."""
        return self.aggregate or AGGREGATE

    @property
    def main_metrics(self) -> tuple[str, ...]:
        """The main metric as a tuple; without `metric`, the default metrics of all kinds."""
        if self.metric is not None:
            return (self.metric,)
        named = {name for spec in self.specs for name in spec.metrics}
        return tuple(name for name, metric in METRICS.items() if metric.is_main and name in named)

    @property
    def main_metric(self) -> str:
        """The metric that selects C and sites and compares probes: the first main metric."""
        return self.main_metrics[0]

    @property
    def reads(self) -> Reads:
        """How all kinds interpret the labels: as classes, numbers or trees."""
        return self.kinds[0].reads

    @property
    def reads_numbers(self) -> bool:
        """Whether the labels are numbers."""
        return self.reads == "numbers"

    @property
    def device(self) -> str:
        """Device on which probes are fitted, which is no setting of an experiment.

        An accelerator computes in float32, which changes scores by about 1e-5; eigenvalues, linear
        systems and L-BFGS-B are solved on the CPU.
        """
        return self._device

    def spec(self, text: str) -> ProbeSpec:
        """Return the probe with this `ProbeSpec.text`."""
        return next(spec for spec in self.specs if spec.text == text)

    def changed(self, **values: Any) -> ProbeSettings:
        """Return a copy with other values, which are not validated."""
        return self.model_copy(update=values)

    def on(self, device: str) -> ProbeSettings:
        """Return a copy for another device."""
        changed = self.model_copy()
        changed._device = device
        return changed
