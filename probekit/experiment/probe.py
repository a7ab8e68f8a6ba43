"""The `probe` section of an experiment file: kinds, regularisation, controls, statistics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from probekit.amounts import LEVEL, counted
from probekit.errors import ConfigError
from probekit.probes.kinds.registry import KINDS, parse_rule
from probekit.probes.score.metric_table import SELECTING
from probekit.probes.settings import (
    ProbeSettings,
    ProbeSpec,
    Reads,
    check_class_weight,
    check_metric,
    one_or_several,
)
from probekit.probes.targets import Baseline
from probekit.section import Distinct, Section, Seed, Unique, or_one_item, rule_error, unique_items

# Values outside this range are useless: with smaller C all weights round to 0; with larger C fits
# on separable data do not converge, and above about 1e30 the description length overflows.
Strength = Annotated[float, Field(ge=1e-10, le=1e10)]
Strengths = Annotated[Distinct[Strength], BeforeValidator(one_or_several)]
Count = Annotated[int, Field(ge=1)]
Width = Annotated[int, Field(ge=1, le=65_536)]  # a wider layer does not fit into memory
if TYPE_CHECKING:
    KindName: TypeAlias = str
    MetricName: TypeAlias = str
else:
    KindName = Literal[tuple(KINDS)]
    MetricName = Literal[SELECTING]


_DEFAULTS = ProbeSettings()


class KindSection(Section):
    """A kind of probe and its options."""

    kind: KindName = Field(description="name of the kind of probe")
    covariance: bool | None = Field(
        None, description="for mass_mean: whether to multiply by the inverse covariance"
    )
    k: Distinct[Count] | None = Field(
        None,
        description="for k_sparse: numbers of features; one probe for each",
        examples=[[1, 4, 16]],
    )
    hidden: Width | None = Field(None, description="for mlp: width of the hidden layer")
    rank: Width | None = Field(None, description="for structural probes: rank of the projection")

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
    def specs(self) -> tuple[ProbeSpec, ...]:
        """The probes of this section: one for each k."""
        options = self.model_dump(exclude={"kind", "k"}, exclude_none=True)
        several = [options] if self.k is None else [options | {"k": k} for k in self.k]
        return tuple(ProbeSpec(self.kind, tuple(sorted(one.items()))) for one in several)


def _rule(given: Any) -> Any:
    """Return a rule such as {rolling: 10} as `rolling:10`; raises a validation error if invalid."""
    if isinstance(given, dict) and len(given) == 1:
        given = ":".join(map(str, *given.items()))
    try:
        if not isinstance(given, str):
            return given
        name, number = parse_rule(given)
        return f"{name}:{number:g}" if number else name
    except ConfigError as error:
        raise rule_error(str(error).removesuffix(".")) from error


Rule = Annotated[
    str,
    BeforeValidator(_rule),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object", "maxProperties": 1}]}),
]


class ProbeSection(Section):
    """Probes, controls and statistics."""

    kinds: Annotated[tuple[KindSection, ...], Field(strict=False)] = Field(
        (KindSection(kind="logistic"),),
        min_length=1,
        description="kinds of probe; each is fitted at every site",
    )
    layers: Literal["stack"] | None = Field(
        None,
        description="`stack` also fits a probe of the scores of all sites, those of training rows "
        "by fits without their fold, and compares it with the best single site; null for none",
    )
    metric: MetricName | None = Field(
        None,
        description="main metric, by which C and sites are selected and probes compared; null is "
        "accuracy, for numbers r2",
        examples=["balanced_accuracy"],
    )
    class_weight: Literal["balanced"] | None = Field(
        None,
        description="`balanced` gives all classes equal total weight in each fit; probabilities "
        "are corrected for it, predicted classes are not; null means equal row weights",
    )
    C: Strengths = Field(
        _DEFAULTS.C,
        description="inverse regularisation strength: a number, or a list of at least one; inner "
        "cross-validation selects one",
        json_schema_extra=or_one_item,
    )
    aggregate: Distinct[Rule] | None = Field(
        None,
        description="rules that combine the scores of a text's tokens into a score of the text, "
        "for `kind: aggregated`; one rule is selected like C; that is the kind if `kinds` is "
        f"not given; null is {', '.join(_DEFAULTS.aggregate)}",
        examples=[["mean", "max", {"rolling": 10}, {"softmax": 1.0}, "multimax", "attention"]],
    )
    folds: int = Field(
        _DEFAULTS.folds, ge=2, le=100, description="number of folds of the inner cross-validation"
    )
    control_draws: int = Field(
        _DEFAULTS.control_draws,
        ge=0,
        le=100,
        description="number of draws of the control labels; 0 for no control task; there is "
        "none either if the words of the test rows are new",
    )
    control_by: Literal["word", "group"] = Field(
        _DEFAULTS.control_by,
        description="unit that gets one random label in the control task; `group` has no control",
    )
    baselines: Unique[Baseline] = Field(
        _DEFAULTS.baselines,
        description="baselines that do not use activations; those of the text need texts, and "
        "`neighbouring_words` needs rows that are words or tokens of a text",
    )
    description: bool = Field(
        _DEFAULTS.description, description="whether to compute the online description length"
    )
    learning_steps: int = Field(
        _DEFAULTS.learning_steps,
        ge=0,
        le=100,
        description="number of training set sizes in the learning curve; 0 for none",
    )
    permutations: int = Field(
        1000,
        ge=0,
        le=1_000_000,
        description="least number of random exchanges of the labels for p-values; 0 for none",
    )
    max_iter: int = Field(
        _DEFAULTS.max_iter, ge=1, le=1_000_000, description="maximum number of iterations of a fit"
    )
    fit_rows: int | None = Field(
        None,
        ge=2,
        lt=2**63,
        description="maximum number of training rows per fit, sampled by whole groups",
    )
    seed: Seed = Field(
        _DEFAULTS.seed, description="random seed for folds, control labels and resamples"
    )

    @model_validator(mode="before")
    @classmethod
    def _rules_imply_kind(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("aggregate") and "kinds" not in given:
            return given | {"kinds": [{"kind": "aggregated"}]}
        return given

    @field_validator("kinds")
    @classmethod
    def _kinds_differ(cls, kinds: tuple[KindSection, ...]) -> tuple[KindSection, ...]:
        unique_items([[spec.text for spec in kind.specs] for kind in kinds])
        return kinds

    @property
    def reads(self) -> Reads:
        """Type of labels that the kinds read; a mix of types is rejected later."""
        return self.kinds[0].specs[0].reads

    @model_validator(mode="after")
    def _is_consistent(self) -> ProbeSection:
        # The smallest p-value is 1 / (permutations + 1), which must be below LEVEL.
        fewest = math.floor(1 / LEVEL)
        if self.learning_steps == 1:
            raise rule_error("a learning curve has at least 2 steps; 0 for none", "learning_steps")
        if 0 < self.permutations < fewest:
            none = f"with {counted(self.permutations, 'permutation')} no p-value is below {LEVEL}"
            raise rule_error(f"{none}; give at least {fewest}, or 0 for none", "permutations")
        if self.aggregate is not None and "aggregated" not in {one.kind for one in self.kinds}:
            raise rule_error("`aggregate` requires `kinds: [{kind: aggregated}]`", "aggregate")
        key = "metric"  # the key that an error names
        try:
            if self.metric is not None:
                check_metric(self.metric, self._specs)
            key = "class_weight"
            if self.class_weight is not None:
                check_class_weight(self._specs)
        except ConfigError as error:
            raise rule_error(str(error).removesuffix("."), key) from error
        return self

    @property
    def _specs(self) -> tuple[ProbeSpec, ...]:
        return tuple(spec for kind in self.kinds for spec in kind.specs)

    def settings(self, device: str = "cpu") -> ProbeSettings:
        """Return the settings of the probes, with the device to compute on."""
        values = self.model_dump(exclude={"kinds", "layers", "permutations"})
        values["aggregate"] = self.aggregate or _DEFAULTS.aggregate
        return ProbeSettings(kinds=self._specs, device=device, **values)
