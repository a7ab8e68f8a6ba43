"""Replies that the network generates and their labels, and hidden states of serving engines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from probekit.chosen.registry import asked
from probekit.data.positions import REPLY
from probekit.experiment.ask import check_ask
from probekit.section import Items, Section, Seed, rule_error, unique_items

if TYPE_CHECKING:
    from probekit.experiment.schema import Experiment


class ReplyLabelSection(Section):
    """Label of each reply that the network generates, from its text.

    Attributes:
        match: regular expression; replies that it matches somewhere have the first label. With
            `equals`, its last match is what is compared (its first group, if it has one), and
            replies without a match are left out
        other: regular expression of the second label; replies that match neither or both are left
            out. Null: all replies that `match` does not match have the second label
        equals: column of the data; replies that equal its cell, both without spaces at their ends,
            have the first label, others the second
        labels: names of the two labels
    """

    match: str | None = Field(None, min_length=1, examples=[r"\byes\b"])
    other: str | None = Field(None, min_length=1, examples=[r"\bno\b"])
    equals: str | None = Field(None, min_length=1, examples=["answer"])
    labels: Annotated[tuple[str, str], Field(strict=False)] = ("yes", "no")

    @field_validator("match", "other")
    @classmethod
    def _is_a_pattern(cls, pattern: str | None, info: ValidationInfo) -> str | None:
        try:
            n_groups = re.compile(pattern or "").groups
        except (re.error, RecursionError, OverflowError) as error:
            raise rule_error(
                f"`{info.field_name}` is not a valid regular expression ({error}): {pattern}"
            ) from error
        if n_groups > 1:
            raise rule_error(
                f"`{info.field_name}` has {n_groups} groups, and one can be compared; write the "
                f"others as (?:...): {pattern}"
            )
        return pattern

    @model_validator(mode="after")
    def _names_a_rule(self) -> ReplyLabelSection:
        if self.match is None and self.equals is None:
            raise rule_error("give `match` or `equals`")
        if self.other is not None and (self.match is None or self.equals is not None):
            raise rule_error("`other` requires `match`, without `equals`", "other")
        if len(set(self.labels)) < 2 or not all(map(str.strip, self.labels)):
            raise rule_error("the two labels must differ, and not be empty", "labels")
        return self


class GenerateSection(Section):
    """Replies of the network to the texts of the data, which are then its prompts.

    Activations are captured while they are generated.

    Attributes:
        max_new_tokens: maximum number of tokens of a reply
        temperature: 0 for greedy decoding; 1 samples from the model's distribution
        top_p: sample from the smallest set of most probable tokens whose probabilities sum to at
            least this
        top_k: sample from this number of most probable tokens
        seed: random seed for sampling
        samples: replies to each prompt; they have the group of the prompt, and so are never split
            between train and test
        stop: strings that end a reply, which does not include them; null means the ends of text of
            the tokenizer, such as <|endoftext|>
    """

    max_new_tokens: int = Field(ge=1)
    temperature: float = Field(1.0, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=1)
    seed: Seed = 0
    samples: int = Field(1, ge=1)
    stop: Items[Annotated[str, Field(min_length=1)]] | None = Field(None, examples=['["\\n"]'])

    @model_validator(mode="after")
    def _greedy_replies_are_equal(self) -> GenerateSection:
        if self.samples > 1 and self.temperature == 0:
            raise rule_error(
                "several samples need a `temperature` above 0: greedy replies are all equal",
                "samples",
            )
        return self


class RequestsSection(Section):
    """Hidden states that a serving engine has written, in place of a forward pass.

    Attributes:
        folder: folder of .safetensors files with the token ids and hidden states of each request,
            or one such file; relative to the folder of the experiment file
        layers: site of each layer in the files, such as {0: blocks.3.hook_resid_post}, which is
            compared with the network; without it, the layers are identified
        missing: handling of texts without hidden states
    """

    folder: str = Field(min_length=1, examples=["hidden_states"])
    layers: dict[str, str] = Field({})
    missing: Literal["error", "skip"] = "error"

    @field_validator("layers")
    @classmethod
    def _sites_are_given_once(cls, layers: Any) -> Any:
        unique_items(tuple(layers.values()))
        return layers


OptionalRequests = Annotated[
    RequestsSection | None,
    BeforeValidator(
        lambda given: {"folder": given} if isinstance(given, str) else given,
        json_schema_input_type=str | RequestsSection | None,
    ),
]


def check_replies(experiment: Experiment) -> None:
    """Check the rules for questions after texts, positions in replies, and generated replies."""
    check_ask(experiment)
    data, position = experiment.data, experiment.tokens.position
    generate, messages = experiment.capture.generate, data.columns.messages
    others: dict[str, Any] = {"reply": data.columns.reply, "start": data.columns.start}
    others |= {"pairs": data.pairs, "interventions": experiment.interventions or None}
    for key, value in others.items():
        if messages is not None and value is not None:
            raise rule_error(f"`columns.messages` excludes `{key}`", "data.columns.messages")
    has_replies = any(one is not None for one in (generate, data.columns.reply, messages))
    if position.at in REPLY and not has_replies:
        raise rule_error(
            f"`at: {position.at}` requires replies: `capture.generate`, or `data.columns.reply` or "
            "`messages`",
            "tokens.position.at",
        )
    if generate is None:
        if data.label_of_reply is not None:
            raise rule_error("`label_of_reply` requires `capture.generate`", "data.label_of_reply")
        return
    excluded: dict[str, Any] = {
        "capture.requests": experiment.capture.requests,
        "data.columns.reply": data.columns.reply,
        "data.pairs": data.pairs,
        "model.checkpoints": experiment.model.checkpoints,
        **{one.name: settings for one, settings in asked(experiment) if one.texts},
        "interventions": experiment.interventions or None,
    }
    for key, value in excluded.items():
        if value is not None:
            raise rule_error(f"`capture.generate` excludes `{key}`", key)
    if data.has_words:
        raise rule_error(
            f"`generate` needs texts as prompts, and the format {data.format} has words",
            "capture.generate",
        )
    if experiment.tokens.too_long == "truncate":
        raise rule_error(
            "`generate` excludes `too_long: truncate`; use `error` or `skip`", "tokens.too_long"
        )
    if position.at == "assistant_last":
        raise rule_error("with `generate`, use `at: reply_last`", "tokens.position.at")
