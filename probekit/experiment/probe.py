"""The `probe` section of an experiment file: kinds, regularisation, controls, statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from probekit.amounts import LEVEL, counted
from probekit.errors import ConfigError
from probekit.probes.kinds.registry import C_GRID, KINDS
from probekit.probes.kinds.registry import ProbeKind as KindOfProbe
from probekit.probes.score.metric_table import SELECTING
from probekit.probes.settings import (
    ProbeSettings,
    ProbeSpec,
    Reads,
    check_class_weight,
    check_metric,
)
from probekit.probes.targets import BASELINES, Baseline
from probekit.section import Section, Seed, rule_error, unique_items

# Values outside this range are useless: with smaller C all weights round to 0; with larger C fits
# on separable data do not converge, and above about 1e30 the description length overflows.
Strengths = Annotated[tuple[Annotated[float, Field(ge=1e-10, le=1e10)], ...], Field(strict=False)]
Count = Annotated[int, Field(ge=1)]
Width = Annotated[int, Field(ge=1, le=65_536)]  # a wider layer does not fit into memory
Counts = Annotated[tuple[Count, ...], Field(strict=False)]
if TYPE_CHECKING:
    KindName: TypeAlias = str
    MetricName: TypeAlias = str
else:
    KindName = Literal[tuple(KINDS)]
    MetricName = Literal[SELECTING]


class KindSection(Section):
    """A kind of probe and its options."""

    kind: KindName = Field(description="name of the kind of probe")
    covariance: bool | None = Field(
        None,
        description="for mass_mean: whether to multiply the difference of means by the inverse "
        "covariance",
    )
    k: Counts | None = Field(
        None,
        min_length=1,
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
        for name in cls.model_fields:
            if name != "kind" and given.get(name) is not None and name not in kind.options:
                raise rule_error(
                    f"`{name}` is not an option of `kind: {kind.name}`. {_options(kind, name)}",
                    name,
                )
        return given

    @field_validator("k")
    @classmethod
    def _are_given_once(cls, k: Any) -> Any:
        return k and unique_items(k)

    @property
    def specs(self) -> tuple[ProbeSpec, ...]:
        """The probes of this section: one for each k."""
        options = self.model_dump(exclude={"kind", "k"}, exclude_none=True)
        several = [options] if self.k is None else [options | {"k": k} for k in self.k]
        return tuple(ProbeSpec(self.kind, tuple(sorted(one.items()))) for one in several)


def _options(kind: KindOfProbe, name: str) -> str:
    """Return the options of a kind, and the kinds that have the named option."""
    own = f"Its options: {', '.join(f'`{option}`' for option in kind.options) or 'none'}"
    others = " and ".join(other.name for other in KINDS.values() if name in other.options)
    return f"{own}; `{name}` is for {others}"


@contextmanager
def _blamed_on(key: str) -> Iterator[None]:
    """Convert a ConfigError to a validation error about a key."""
    try:
        yield
    except ConfigError as error:
        raise rule_error(str(error).removesuffix("."), key) from error


class ProbeSection(Section):
    """Probes, controls and statistics."""

    kinds: Annotated[tuple[KindSection, ...], Field(strict=False)] = Field(
        (KindSection(kind="logistic"),),
        min_length=1,
        description="kinds of probe; each is fitted at every site",
    )
    metric: MetricName | None = Field(
        None,
        description="main metric, by which C and sites are selected and probes compared, as named "
        "in results.csv; null means accuracy, for numbers r2",
        examples=["balanced_accuracy"],
    )
    class_weight: Literal["balanced"] | None = Field(
        None,
        description="`balanced` gives all classes the same total weight in each fit; probabilities "
        "are corrected for it, predicted classes are not; null means equal row weights",
    )
    C: Strengths = Field(
        C_GRID,
        min_length=1,
        description="inverse regularisation strengths, selected by inner cross-validation",
    )
    folds: int = Field(5, ge=2, le=100, description="number of folds of the inner cross-validation")
    control_draws: int = Field(
        3,
        ge=0,
        le=100,
        description="number of random draws of the control labels; 0 for no control task. There is "
        "none either if the words of the test rows are new",
    )
    control_by: Literal["word", "group"] = Field(
        "word",
        description="unit that gets one random label in the control task; groups are never on both "
        "sides of a split, so that `group` has no control",
    )
    baselines: Annotated[tuple[Baseline, ...], Field(strict=False)] = Field(
        BASELINES,
        description="baselines that do not use activations; those of the text need texts, and "
        "`neighbouring_words` needs rows that are words or tokens of a text",
    )
    description: bool = Field(
        True, description="whether to compute the online description length of the training labels"
    )
    learning_steps: int = Field(
        0,
        ge=0,
        le=100,
        description="number of training set sizes in the learning curve; 0 for none",
    )
    permutations: int = Field(
        1000,
        ge=0,
        le=1_000_000,
        description="least number of random exchanges of the labels for p-values, with more for "
        "many sites; 0 for no p-values",
    )
    max_iter: int = Field(
        2000, ge=1, le=1_000_000, description="maximum number of iterations of a fit"
    )
    fit_rows: int | None = Field(
        None,
        ge=2,
        lt=2**63,
        description="maximum number of training rows per fit, sampled by whole groups",
    )
    seed: Seed = Field(0, description="random seed for folds, control labels and resamples")

    @field_validator("C", "baselines")
    @classmethod
    def _are_given_once(cls, items: Any) -> Any:
        return unique_items(items)

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
    def _a_curve_has_two_points(self) -> ProbeSection:
        if self.learning_steps == 1:
            raise rule_error("a learning curve has at least 2 steps; 0 for none", "learning_steps")
        return self

    @model_validator(mode="after")
    def _permutations_suffice(self) -> ProbeSection:
        fewest = math.floor(1 / LEVEL)
        if 0 < self.permutations < fewest:
            problem = (
                f"with {counted(self.permutations, 'permutation')} no p-value is below {LEVEL}"
            )
            raise rule_error(f"{problem}; give at least {fewest}, or 0 for none", "permutations")
        return self

    @model_validator(mode="after")
    def _all_kinds_have_the_metric(self) -> ProbeSection:
        if self.metric is not None:
            with _blamed_on("metric"):
                check_metric(self.metric, self._specs)
        return self

    @model_validator(mode="after")
    def _all_kinds_can_weight_classes(self) -> ProbeSection:
        if self.class_weight is not None:
            with _blamed_on("class_weight"):
                check_class_weight(self._specs)
        return self

    @property
    def _specs(self) -> tuple[ProbeSpec, ...]:
        return tuple(spec for kind in self.kinds for spec in kind.specs)

    def settings(self, device: str = "cpu") -> ProbeSettings:
        """Return the settings of the probes, with the device to compute on."""
        values = self.model_dump(exclude={"kinds", "permutations"})
        return ProbeSettings(kinds=self._specs, device=device, **values)
