"""The sections `model` and `tokens`: the network, its tokenization, and the probed positions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from probekit.data.positions import TURNS, Offset, PositionRule
from probekit.errors import ConfigError
from probekit.experiment.ask import AskSection
from probekit.model.proven.choice import computed_by
from probekit.model.weights.sources import at_revision, ignoring, name_in_memory
from probekit.probes.targets import MOST_NETWORKS
from probekit.section import HoldingSection, Section, Seed, Unique, require_any, rule_error

NETWORKS_BY_DEFAULT = 3  # with random weights


def dtype_on(device: str) -> str:
    """Return the dtype that `model.dtype: auto` means on a device, or on several of one type."""
    return "float32" if device.partition(",")[0].partition(":")[0] == "cpu" else "bfloat16"


ConfigKey = Annotated[str, Field(pattern=r"^[^,\s]+$")]
Step = Annotated[int, Field(ge=0)]
Steps = Annotated[
    tuple[Step, ...] | None,
    Field(strict=False),
    BeforeValidator(
        lambda steps: () if steps == "all" else steps,
        json_schema_input_type=Literal["all"] | tuple[Step, ...] | None,
    ),
]
Networks = Annotated[int, Field(ge=0, le=MOST_NETWORKS)]


def _last_revision(steps: Any) -> str | None:
    """Return the revision of the last step of a model of the hub; None unless steps are listed."""
    if not isinstance(steps, list | tuple) or not steps:
        return None
    return f"step{max(steps)}" if all(type(one) is int and one >= 0 for one in steps) else None


class NetworkSection(Section):
    """A network that was passed in Python; written by the run, to recognise its weights again.

    Attributes:
        kind: class of the network
        digest: digest of the weights
    """

    kind: str
    digest: str


class ModelSection(HoldingSection):
    """The model whose activations are probed.

    Attributes:
        source: `mini`, a name on the hub (`gpt2`, `org/name@revision`), or a folder; a relative
            path is resolved against the folder of the experiment file (with --set: against the
            current directory) and then against the current directory; if there is no such folder,
            the text is a name
        path: instead of `source`: folder of a run of `probekit pretrain`
        revision: commit, tag or branch of a `source` on the hub
        ignore: all unknown keys of the model's config.json, if they change nothing in it
        checkpoints: steps of the checkpoints to probe, for a map of the scores by layer and step;
            with `path`, `all` or an empty list also means all; with a `source` on the hub,
            checkpoint N is the revision `stepN`, as of Pythia
        engine: what computes the network: `native` is a family of the package, `transformers` the
            code of that library, whose activations are named by a proof on the loaded weights;
            auto: a family where there is one
        dtype: data type of weights and matrix products; the residual stream is never below float32;
            auto: float32 on a CPU, bfloat16 on accelerators
        random_seed: random seed of the first untrained network
        memory: written by a run whose network was passed in Python; `source` then names only the
            tokenizer
    """

    # A file may give `path` instead; the loader then fills in `source`.
    model_config = ConfigDict(json_schema_extra=require_any("source", "path"))

    source: str = Field(min_length=1, examples=["mini"])
    path: str | None = Field(None, min_length=1, examples=["runs/my_model"])
    revision: str | None = Field(None, min_length=1, examples=["step1000"])
    ignore: Annotated[tuple[ConfigKey, ...], Field(strict=False)] = Field(
        (), examples=[["logit_scale"]]
    )
    checkpoints: Steps = Field(None, examples=["[0, 1000]"])
    engine: Literal["auto", "native", "transformers"] = "auto"
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = "auto"
    random_weights: Annotated[
        Networks,
        BeforeValidator(
            lambda given: NETWORKS_BY_DEFAULT * given if isinstance(given, bool) else given,
            json_schema_input_type=bool | Networks,
        ),
    ] = Field(
        NETWORKS_BY_DEFAULT,
        description="number of networks of the same architecture with untrained weights that are "
        f"also probed; true means {NETWORKS_BY_DEFAULT}, false 0",
    )
    random_seed: Seed = 0
    memory: NetworkSection | None = None

    @property
    def name(self) -> str:
        """The name of the network in results: its source, or what it is in memory."""
        if self.memory is None:
            return str(computed_by(ignoring(self.source, self.ignore), self.engine))
        return name_in_memory(self.memory.kind, self.memory.digest)

    @model_validator(mode="before")
    @classmethod
    def _join_revision(cls, values: Any) -> Any:
        """Append the revision, or that of the last checkpoint, to a `source` on the hub."""
        if not isinstance(values, dict) or not isinstance(values.get("source"), str):
            return values  # reported later
        key, revision = "revision", values.get("revision")  # the key is for the error message
        steps = values.get("checkpoints")
        if revision is None and steps is not None and values.get("path") is None:
            key, revision = "checkpoints", _last_revision(steps)
        if not isinstance(revision, str) or not revision:  # none, or reported later
            return values
        try:
            source = at_revision(values["source"], revision)
        except ConfigError as error:
            raise rule_error(str(error), key) from error
        return {**values, "source": source, "revision": None}

    @model_validator(mode="after")
    def _checkpoints_are_somewhere(self) -> ModelSection:
        if self.checkpoints is not None and self.memory is not None:
            raise rule_error("`checkpoints` excludes a network passed in Python", "checkpoints")
        if self.checkpoints is not None and self.path is None and not self.steps_on_hub:
            needed = "the `path` of a pretraining run, or steps of a `source` without `revision`"
            raise rule_error(f"`checkpoints` requires {needed}", "checkpoints")
        return self

    @property
    def steps_on_hub(self) -> dict[int, str]:
        """Name of the model at each step in `checkpoints`, if it is a model of the hub.

        >>> model = ModelSection(source="EleutherAI/pythia-70m", checkpoints=(0, 512))
        >>> model.steps_on_hub
        {0: 'EleutherAI/pythia-70m@step0', 512: 'EleutherAI/pythia-70m@step512'}
        """
        # For steps on the hub, `_join_revision` has appended the revision of the last one.
        name, _, revision = self.source.partition("@")
        if self.path is not None or revision != _last_revision(self.checkpoints):
            return {}
        return {step: f"{name}@step{step}" for step in self.checkpoints or ()}


class TokensSection(AskSection):
    """Tokenization and probed positions.

    Attributes:
        bos: whether to prepend the beginning-of-text token; `auto`: if the model's own tokenizer
            does; not with `chat`, whose template writes it
        chat: whether each text is the user's turn, written by the model's chat template
        too_long: handling of texts that exceed the context
        sweep: offsets from `position` that are each probed; empty: the position itself
    """

    bos: Literal[True, False, "auto"] = "auto"
    chat: bool = False
    too_long: Literal["error", "truncate", "skip"] = "error"
    position: PositionRule
    sweep: Unique[Offset] = Field((), examples=[-1, 0, 1])

    @property
    def positions(self) -> tuple[PositionRule, ...]:
        """The probed positions: one for each offset of the sweep or share, or the single position.

        >>> tokens = TokensSection(bos=False, position=PositionRule(at="span"), sweep=(-1, 0))
        >>> [position.text for position in tokens.positions]
        ['span-1', 'span']
        """
        changes: list[dict[str, Any]] = [{"offset": offset} for offset in self.sweep]
        changes += [{"share": (share,)} for share in self.position.share or ()]
        moved = (self.position.model_copy(update=change) for change in changes)
        return tuple(moved) or (self.position,)

    @model_validator(mode="after")
    def _keys_fit_together(self) -> TokensSection:
        # In results, shares are numbers of percent.
        for number, share in enumerate(self.position.share or ()):
            if share != round(share, 2):
                raise rule_error(f"{share} has more than two decimals", "position", "share", number)
        if self.position.at == "between" and self.position.between is None:
            raise rule_error("`at: between` requires `between`, two strings", "position.at")
        if self.position.between is not None and self.position.at not in ("between", "share"):
            raise rule_error("`between` requires `at: between` or `share`", "position.between")
        if self.chat and self.bos is True:
            raise rule_error(
                "`chat: true` excludes `bos: true`: the chat template writes that token", "bos"
            )
        if self.position.at in TURNS and not self.chat:
            raise rule_error(
                f"`at: {self.position.at}` requires `tokens.chat: true`", "position.at"
            )
        if self.chat and self.too_long == "truncate":
            raise rule_error(
                "`chat: true` excludes `too_long: truncate`; use `error` or `skip`", "too_long"
            )
        if self.sweep:
            self.position.check_offset("sweep")
            if self.position.offset:
                raise rule_error("give either `sweep` or `position.offset`", "sweep")
        return self
