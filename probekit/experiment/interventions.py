"""The `interventions` and `measure` sections of an experiment file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from probekit.interventions.names import MEASURES, Along, MeasureName, Replacement
from probekit.section import Distinct, Item, Section, rule_error, unique_items

CHOSEN = "chosen"  # instead of sites: the best site of the probes that is in the residual stream

# Keys of each edit, besides `do`, `sites` and `at`.
_KEYS: dict[str, tuple[str, ...]] = {
    "patch": ("from",),
    "ablate": ("with",),
    "erase": ("along", "draws"),
    "swap": ("along", "draws", "rank"),
    "steer": ("along", "draws", "by"),
}
_DIRECTIONS = ("erase", "swap", "steer")  # edits along a direction
_REQUIRED = {"patch": ("from", "sites"), "ablate": ("with", "sites")}  # keys that an edit needs


At = Literal["probed", "all", "each"]
OneOrMore = Annotated[
    Distinct[Item], BeforeValidator(lambda one: [one] if isinstance(one, str) else one)
]
Doses = Annotated[
    tuple[Annotated[float, Field(ge=-100, le=100)], ...],
    Field(strict=False, min_length=2),
    AfterValidator(unique_items),
]


_LEAST_DOSE = 0.01  # in standard deviations of the projection
# With 59 permutations, the least p-value adjusted for three questions is 3 / (59 + 1) = 0.05, which
# is not significant; adjusted for two questions it is.
LEAST_DRAWS = 59


def or_one_item(schema: dict[str, Any]) -> None:
    """Allow a single item in place of a list in the JSON schema."""
    # An optional list has the schema `anyOf` of the list and null.
    listed = schema.pop("anyOf", None) or [
        {key: schema.pop(key) for key in ("type", "items", "minItems")}
    ]
    schema["anyOf"] = [*listed, listed[0]["items"]]


class InterventionSection(Section):
    """An edit of activations, such as `{do: steer, along: probe, by: [-2, 2]}`.

    Attributes:
        do: patch: replace activations by those of the counterfactual; ablate: by a mean, zero or
            those of another text; erase, swap and steer: edit along a direction
        from_: for patch: where the activations come from
        with_: for ablate: the mean of the training rows, zero, or the activations of another text
            with as many tokens
        along: for erase, swap and steer: methods of the direction; default: probe
        rank: for swap: number of directions
        by: for steer: doses in standard deviations of the projection
        draws: for erase, swap and steer: directions on permuted labels; default: 999
        sites: names or globs of sites, heads such as blocks.*.attn.hook_z[head=*], or `chosen`, the
            best site of the probes in the residual stream
        at: edited tokens: the probed one, all, or, for patch and ablate, each in turn
    """

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    do: Literal["patch", "ablate", "erase", "swap", "steer"]
    from_: Literal["counterfactual"] | None = Field(None, alias="from")
    with_: Replacement | None = Field(None, alias="with")
    along: OneOrMore[Along] | None = Field(None, json_schema_extra=or_one_item)
    rank: Literal[1] | None = None
    by: Doses | None = Field(None, examples=[[-4, -2, 2, 4]])
    draws: int | None = Field(None, ge=LEAST_DRAWS, le=100_000)
    sites: OneOrMore[str] = Field((CHOSEN,), json_schema_extra=or_one_item)
    at: OneOrMore[At] = Field(("probed",), json_schema_extra=or_one_item)

    @model_validator(mode="before")
    @classmethod
    def _keys_belong_to_the_edit(cls, given: Any) -> Any:
        # Before validation of the values: first report a key that the edit does not have.
        do = given.get("do") if isinstance(given, Mapping) else None
        if not isinstance(do, str) or do not in _KEYS:
            return given  # rejected later by the validation of `do`
        every = {key for keys in _KEYS.values() for key in keys}
        for key, value in given.items():
            others = " and ".join(name for name, keys in _KEYS.items() if key in keys)
            if value is not None and key in every and key not in _KEYS[do]:
                raise rule_error(f"`{key}` is not a key of `do: {do}`; it is for {others}", key)
        for key in _REQUIRED.get(do, ()):
            if given.get(key) is None:  # an absent key has no line, so the edit is located
                raise rule_error(f"`do: {do}` requires `{key}`", key if key in given else "")
        return given

    @model_validator(mode="after")
    def _positions_and_doses_fit(self) -> InterventionSection:
        if self.has_direction and "each" in self.at:
            raise rule_error("`at: each` is for patch and ablate; use `probed` or `all`", "at")
        if any(abs(dose) < _LEAST_DOSE for dose in self.by or ()):
            limits = f"at least {_LEAST_DOSE} or at most -{_LEAST_DOSE}"
            raise rule_error(f"a dose is {limits} standard deviations", "by")
        return self

    @property
    def has_direction(self) -> bool:
        """Whether it edits along a direction, so that its verdicts are given."""
        return self.do in _DIRECTIONS


class MeasureSection(Section):
    """A measure of the network's answers.

    Attributes:
        name: name of the measure
        answer: column or token with the right answer; null: that of the first measure
        wrong: column or literal token with the wrong answer

    >>> MeasureSection.model_validate({"logit_difference": {"answer": "verb", "wrong": "other"}})
    MeasureSection(name='logit_difference', answer='verb', wrong='other')
    """

    name: MeasureName
    answer: str | None = Field(None, min_length=1)
    wrong: str | None = Field(None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, given: Any) -> Any:
        """Write a name, or a mapping from a name to its answers, with the keys of the section."""
        if isinstance(given, str):
            return {"name": given}
        if isinstance(given, Mapping) and "name" not in given and len(given) == 1:
            ((name, answers),) = given.items()
            if name in MEASURES and isinstance(answers, Mapping):
                return {"name": name, **answers}
        return given


_ANSWERS: JsonDict = {
    "type": "object",
    "properties": {"answer": {"type": "string"}, "wrong": {"type": "string"}},
    "additionalProperties": False,
}
_SHORT_FORMS: list[JsonDict] = [
    {"enum": list(MEASURES)},
    {
        "type": "object",
        "properties": dict.fromkeys(MEASURES, _ANSWERS),
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
    },
]


def allow_short_forms(schema: dict[str, Any]) -> None:
    """Allow `kl` and `{logit_difference: {answer: ...}}` as items in the JSON schema."""
    schema["items"] = {"anyOf": [*_SHORT_FORMS, schema["items"]]}


Interventions = Annotated[
    tuple[InterventionSection, ...],
    Field(
        strict=False,
        description="edits of activations after probing, which show whether the network uses what "
        "the probes read; by default none",
    ),
]
Measures = Annotated[
    tuple[MeasureSection, ...],
    Field(
        strict=False,
        description="measures of the network's answers to the edited activations; verdicts are "
        "given by the first one",
        json_schema_extra=allow_short_forms,
    ),
]


def check_interventions(
    interventions: tuple[InterventionSection, ...],
    measures: tuple[MeasureSection, ...],
    pairs: str | None,
    n_positions: int,
) -> None:
    """Validate what the sections require of each other.

    Raises:
        PydanticCustomError: a patch or swap without counterfactuals, interventions without a
            measure, a measure without interventions, several positions, an answer that is
            missing, a logit difference without `wrong`, edits along a direction whose first
            measure has no sign, or two measures of one name.
    """
    if measures and not interventions:
        raise rule_error("`measure` is for `interventions`, but there are none", "measure")
    if interventions and not measures:
        raise rule_error(
            "`interventions` require `measure`, such as [{logit_difference: {answer: verb}}]",
            "interventions",
        )
    if not measures:  # nor interventions
        return
    first = measures[0]
    is_signed = first.wrong is not None and first.name in ("logit_difference", "probability")
    if n_positions > 1:
        raise rule_error(
            "`interventions` edit a single position: remove `sweep`, and give one `share`", "tokens"
        )
    if pairs is None and any(one.do in ("patch", "swap") for one in interventions):
        raise rule_error(
            "`do: patch` and `do: swap` require `data.pairs`, the column with the counterfactual",
            "interventions",
        )
    if first.answer is None:
        raise rule_error(
            "the first measure needs `answer`: a column, or a token such as ' is'", "measure"
        )
    # A measure without `wrong` has that of the first one.
    if first.wrong is None and any(
        one.name == "logit_difference" and one.wrong is None for one in measures
    ):
        raise rule_error("`logit_difference` requires `wrong`", "measure")
    if any(one.has_direction for one in interventions) and not is_signed:
        raise rule_error(
            "erase, swap and steer require a first measure with a direction, which has `wrong`",
            "measure",
        )
    if len({one.name for one in measures}) < len(measures):
        raise rule_error("two measures have the same name, and tables show names only", "measure")
