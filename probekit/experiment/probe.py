"""The section of an experiment file on probes: kinds, penalties, controls, statistics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from probekit.amounts import LEVEL, counted
from probekit.probes.kinds.registry import KINDS
from probekit.probes.kinds.registry import ProbeKind as KindOfProbe
from probekit.probes.settings import ProbeSettings, ProbeSpec, Reads
from probekit.probes.targets import BASELINES, Baseline
from probekit.section import Section, Seed, broken, unique_items

# Outside this range results do not change any more: below, all weights round to 0; above, separable
# data cannot converge, and from about 1e30 on the description length overflows.
Strengths = Annotated[tuple[Annotated[float, Field(ge=1e-10, le=1e10)], ...], Field(strict=False)]
Count = Annotated[int, Field(ge=1)]
Counts = Annotated[tuple[Count, ...], Field(strict=False)]
if TYPE_CHECKING:
    KindName: TypeAlias = str
else:
    KindName = Literal[tuple(KINDS)]


class KindSection(Section):
    """A kind of probe, and what is chosen of it."""

    kind: KindName = Field(description="its name")
    covariance: bool | None = Field(
        None, description="for mass_mean: tilt the difference of means by the inverse covariance"
    )
    k: Counts | None = Field(
        None,
        min_length=1,
        description="for k_sparse: numbers of features, each a probe",
        examples=[[1, 4, 16]],
    )
    hidden: Count | None = Field(None, description="for mlp: width of the hidden layer")
    rank: Count | None = Field(None, description="for structural probes: dimensions of their space")

    @model_validator(mode="before")
    @classmethod
    def _options_belong_to_kind(cls, given: Any) -> Any:
        # Before the values are looked at: an option that has no place need not be written well.
        kind = KINDS.get(str(given.get("kind"))) if isinstance(given, dict) else None
        if kind is None:
            return given  # refused as a section, or by its name
        for name in cls.model_fields:
            if name != "kind" and given.get(name) is not None and name not in kind.options:
                raise broken(
                    f"`{name}` is no option of `kind: {kind.name}`. {_options(kind, name)}", name
                )
        return given

    @field_validator("k")
    @classmethod
    def _are_given_once(cls, k: Any) -> Any:
        return k and unique_items(k)

    @property
    def specs(self) -> tuple[ProbeSpec, ...]:
        """The probes that are meant: one for each k."""
        options = self.model_dump(exclude={"kind", "k"}, exclude_none=True)
        several = [options] if self.k is None else [options | {"k": k} for k in self.k]
        return tuple(ProbeSpec(self.kind, tuple(sorted(one.items()))) for one in several)


def _options(kind: KindOfProbe, name: str) -> str:
    """Return what a kind takes, and which kinds take the option of that name."""
    own = f"It takes {', '.join(f'`{option}`' for option in kind.options) or 'none'}"
    others = " and ".join(other.name for other in KINDS.values() if name in other.options)
    return f"{own}; `{name}` is for {others}"


class ProbeSection(Section):
    """The classifiers and the statistics."""

    kinds: Annotated[tuple[KindSection, ...], Field(strict=False)] = Field(
        (KindSection(kind="logistic"),), min_length=1, description="each is fitted at every site"
    )
    C: Strengths = Field(
        (1e-4, 1e-3, 1e-2, 1e-1, 1.0),
        min_length=1,
        description="inverse regularisation strengths to choose from by inner cross-validation",
    )
    folds: int = Field(5, ge=2, le=100, description="of the inner cross-validation")
    control_draws: int = Field(
        3,
        ge=0,
        le=100,
        description="independent draws of the control labels; 0 leaves the control out",
    )
    control_by: Literal["word", "group"] = Field(
        "word", description="whether each word or each group gets one random label in the control"
    )
    baselines: Annotated[tuple[Baseline, ...], Field(strict=False)] = Field(
        BASELINES, description="guesses made without activations"
    )
    description: bool = Field(
        True, description="also code the training labels online, for their description length"
    )
    learning_steps: int = Field(
        0, ge=0, le=100, description="sizes of the training set in the learning curve; 0 for none"
    )
    permutations: int = Field(
        1000,
        ge=0,
        le=1_000_000,
        description="exchanges with the best constant guess, group by group, for p-values; 0 for "
        "none",
    )
    bootstrap: int = Field(
        1000, ge=100, le=100_000, description="resamples of the test groups per interval"
    )
    max_iter: int = Field(
        2000, ge=1, le=1_000_000, description="iterations after which a fit is given up"
    )
    fit_rows: int | None = Field(
        None,
        ge=2,
        lt=2**63,
        description="upper bound on training rows per fit, drawn by whole groups",
    )
    seed: Seed = Field(0, description="of folds, control labels and resamples")

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
        """What the labels are to the kinds; those that read something else are refused later."""
        return self.kinds[0].specs[0].reads

    @model_validator(mode="after")
    def _a_curve_has_two_points(self) -> ProbeSection:
        if self.learning_steps == 1:
            raise broken("a learning curve has 2 steps or more; 0 is for none", "learning_steps")
        return self

    @model_validator(mode="after")
    def _p_values_can_tell(self) -> ProbeSection:
        fewest = math.floor(1 / LEVEL)
        if 0 < self.permutations < fewest:
            problem = f"with {counted(self.permutations, 'permutation')} no p is below {LEVEL}"
            raise broken(f"{problem}; give {fewest} or more, or 0 for none", "permutations")
        return self

    def settings(self, device: str = "cpu") -> ProbeSettings:
        """Return what the probes are told of this section, and where to compute."""
        told = self.model_dump(exclude={"kinds", "permutations"})
        specs = tuple(spec for kind in self.kinds for spec in kind.specs)
        return ProbeSettings(kinds=specs, device=device, **told)
