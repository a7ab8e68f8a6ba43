"""Keys of the section `model` of the experiment file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from probekit.errors import ConfigError
from probekit.model.weights.sources import at_revision
from probekit.probes.targets import MOST_NETWORKS
from probekit.section import Section, Seed, rule_error

NETWORKS_BY_DEFAULT = 3  # with random weights


def _all_or_listed(steps: Any) -> Any:
    return () if steps == "all" else steps


Step = Annotated[int, Field(ge=0)]
Steps = Annotated[tuple[Step, ...] | None, Field(strict=False), BeforeValidator(_all_or_listed)]

_STEPS_SCHEMA: JsonDict = {"type": "array", "items": {"type": "integer", "minimum": 0}}


def _number_of_networks(given: Any) -> Any:
    return {True: NETWORKS_BY_DEFAULT, False: 0}[given] if isinstance(given, bool) else given


def _allows_a_switch(schema: dict[str, Any]) -> None:
    """Allow true and false in the JSON schema of a number."""
    number = {name: schema.pop(name) for name in ("type", "minimum", "maximum")}
    schema["anyOf"] = [{"type": "boolean"}, number]


def _needs_source_or_path(schema: dict[str, Any]) -> None:
    del schema["required"]
    schema["anyOf"] = [{"required": ["source"]}, {"required": ["path"]}]


def _last_revision(steps: Any) -> str | None:
    """Return the revision of the last step of a model of the hub; None unless steps are listed."""
    is_list = isinstance(steps, list | tuple) and bool(steps)
    is_steps = is_list and all(type(step) is int and step >= 0 for step in steps)
    return f"step{max(steps)}" if is_steps else None


class ModelSection(Section):
    """The model whose activations are probed."""

    # A file may give `path` instead; the loader then fills in `source`.
    model_config = ConfigDict(json_schema_extra=_needs_source_or_path)

    source: str = Field(
        min_length=1,
        examples=["mini"],
        description="`mini`, a name on the hub (`gpt2`, `org/name@revision`), or a folder; a "
        "relative path is resolved against the folder of the experiment file (with --set: against "
        "the current directory) and then against the current directory; if there is no such "
        "folder, the text is a name",
    )
    path: str | None = Field(
        None,
        min_length=1,
        examples=["runs/my_model"],
        description="instead of `source`: folder of a run of `probekit pretrain`; its last "
        "checkpoint is probed, or the last of `checkpoints`",
    )
    revision: str | None = Field(
        None,
        min_length=1,
        examples=["step1000"],
        description="commit, tag or branch of a `source` on the hub; the same as "
        "`source: org/name@revision`",
    )
    checkpoints: Steps = Field(
        None,
        description="steps of the checkpoints to probe, for a map of the scores by layer and step; "
        "with `path`, `all` or an empty list also means all; with a `source` on the hub, "
        "checkpoint N is the revision `stepN`, as of Pythia",
        examples=["[0, 1000]"],
        json_schema_extra={"anyOf": [{"const": "all"}, _STEPS_SCHEMA, {"type": "null"}]},
    )
    dtype: Literal["float32", "float16", "bfloat16", "float64"] = Field(
        "float32", description="data type of the forward pass"
    )
    random_weights: Annotated[int, BeforeValidator(_number_of_networks)] = Field(
        NETWORKS_BY_DEFAULT,
        ge=0,
        le=MOST_NETWORKS,
        description="number of networks of the same architecture with untrained weights that are "
        f"also probed; true means {NETWORKS_BY_DEFAULT}, false 0",
        json_schema_extra=_allows_a_switch,
    )
    random_seed: Seed = Field(
        0, description="random seed of the first untrained network; the others have the next seeds"
    )

    @model_validator(mode="before")
    @classmethod
    def _join_revision(cls, values: Any) -> Any:
        """Append the revision, or that of the last checkpoint, to a `source` on the hub."""
        if not isinstance(values, dict) or not isinstance(values.get("source"), str):
            return values  # reported later
        key, revision = "revision", values.get("revision")
        steps = values.get("checkpoints")
        if revision is None and steps is not None and values.get("path") is None:
            key, revision = "checkpoints", _last_revision(steps)
        if not isinstance(revision, str) or not revision:
            return values
        try:
            source = at_revision(values["source"], revision)
        except ConfigError as error:
            raise rule_error(str(error), key) from error
        return {**values, "source": source, "revision": None}

    @model_validator(mode="after")
    def _checkpoints_are_somewhere(self) -> ModelSection:
        if self.checkpoints is not None and self.path is None and not self.steps_on_hub:
            raise rule_error(
                "`checkpoints` requires the `path` of a pretraining run, or a `source` on the hub "
                "and a list of steps without `revision`",
                "checkpoints",
            )
        return self

    @property
    def steps_on_hub(self) -> dict[int, str]:
        """Name of the model at each step in `checkpoints`, if it is a model of the hub.

        >>> model = ModelSection(source="EleutherAI/pythia-70m", checkpoints=(0, 512))
        >>> model.steps_on_hub
        {0: 'EleutherAI/pythia-70m@step0', 512: 'EleutherAI/pythia-70m@step512'}
        """
        name, _, revision = self.source.partition("@")
        if self.path is not None or revision != _last_revision(self.checkpoints):
            return {}
        return {step: f"{name}@step{step}" for step in self.checkpoints or ()}
