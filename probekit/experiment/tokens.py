"""The `tokens` section of an experiment file: tokenization and probed positions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from probekit.section import Section, rule_error

Offset = Annotated[int, Field(ge=-1000, le=1000)]
Offsets = Annotated[tuple[Offset, ...], Field(strict=False)]

TURNS = ("user_last", "assistant_last")
_WITH_DETAILS = re.compile(r"(last|first|mean|all|index|span|word|user_last|assistant_last)\W")
_DETAILS = (
    "Each detail has its own key: {at: index, index: 3}, {at: word, pieces: last}, {at: span, "
    "offset: -1}"
)


class PositionSection(Section):
    """The probed tokens of an example."""

    at: Literal[
        "last", "first", "mean", "all", "index", "span", "word", "user_last", "assistant_last"
    ] = Field(
        description="last or first token; mean over all tokens; all tokens, one row each; one "
        "token by index; mean over the span; the word marked by the span; with `chat`: last token "
        "of the user's turn, or of the assistant's"
    )
    pieces: Literal["first", "last", "mean", "all"] = Field(
        "last", description="for `at: word`: tokens of the word to read"
    )
    index: int | None = Field(
        None,
        ge=-1_000_000,
        le=1_000_000,
        description="for `at: index`: index of the token; negative values count from the end",
    )
    skip_first: bool = Field(
        True,
        description="whether means and the scaling of features exclude position 0, whose norm is "
        "about 30 times larger",
    )
    offset: Offset = Field(
        0,
        description="for spans, words and turns: offset in tokens; -1 is the token before the "
        "first one, 1 the token after the last one, 0 the span, the word or the end of the turn",
    )

    @property
    def text(self) -> str:
        """The position as named in results: `last`, `index:3`, `word:last`, `word:last-1`.

        >>> PositionSection(at="word", offset=-1).text
        'word:last-1'
        """
        detail = {"index": self.index, "word": self.pieces}.get(self.at)
        name = self.at if detail is None else f"{self.at}:{detail}"
        name += f"{self.offset:+d}" if self.offset else ""
        return name if self.skip_first else f"{name}+first"

    @field_validator("at", mode="before")
    @classmethod
    def _details_have_their_own_keys(cls, at: Any) -> Any:
        # Names in results, such as index:3 or word:last-1, are not the syntax of the file.
        if isinstance(at, str) and _WITH_DETAILS.match(at):
            raise PydanticCustomError("with_details", "{problem}", {"problem": _DETAILS})
        return at

    @model_validator(mode="after")
    def _details_belong_to_at(self) -> PositionSection:
        if (self.at == "index") != (self.index is not None):
            key = "at" if self.index is None else "index"
            raise rule_error("`index` must be given for `at: index`, and only then", key)
        # The default is allowed with any `at`: a file written by probekit has every key.
        if self.at != "word" and self.pieces != type(self).model_fields["pieces"].default:
            raise rule_error(
                f"`pieces: {self.pieces}` requires `at: word`, not `at: {self.at}`", "pieces"
            )
        if self.offset:
            self.check_offsets("offset")
        return self

    def check_offsets(self, key: str) -> None:
        """Raise an error, blamed on `key`, if the position does not support offsets."""
        if self.at not in ("span", "word", *TURNS):
            raise rule_error(
                f"`{key}` is counted from a span, word or turn: it requires `at: span`, "
                f"`at: word`, `at: user_last` or `at: assistant_last`, not `at: {self.at}`",
                key,
            )
        if self.pieces == "all":
            raise rule_error(
                f"`{key}` requires one row per word: `pieces: first`, `last` or `mean`, not `all`",
                key,
            )


def _bos_or_chat(schema: dict[str, Any]) -> None:
    """Require `bos` only of plain texts."""
    schema["required"].remove("bos")
    schema["if"] = {"not": {"properties": {"chat": {"const": True}}, "required": ["chat"]}}
    schema["then"] = {"required": ["bos"]}


class TokensSection(Section):
    """Tokenization and probed positions."""

    model_config = ConfigDict(json_schema_extra=_bos_or_chat)

    bos: bool = Field(
        description="whether to prepend the beginning-of-text token, such as <|endoftext|>; leave "
        "it out with `chat`, because a chat template writes it"
    )
    chat: bool = Field(
        False,
        description="whether each text is the user's turn of a conversation, written by the "
        "model's chat template",
    )
    too_long: Literal["error", "truncate", "skip"] = Field(
        "error", description="handling of texts that exceed the context"
    )
    position: PositionSection
    sweep: Offsets = Field(
        (),
        description="offsets from `position` that are each probed, on the same examples; an empty "
        "list probes only the position itself",
        examples=[-1, 0, 1],
    )

    @property
    def positions(self) -> tuple[PositionSection, ...]:
        """The probed positions: one for each offset of the sweep, or the single position.

        >>> tokens = TokensSection(bos=False, position=PositionSection(at="span"), sweep=(-1, 0))
        >>> [position.text for position in tokens.positions]
        ['span-1', 'span']
        """
        moved = (self.position.model_copy(update={"offset": offset}) for offset in self.sweep)
        return tuple(moved) or (self.position,)

    @model_validator(mode="before")
    @classmethod
    def _a_chat_template_writes_bos(cls, given: Any) -> Any:
        is_chat = isinstance(given, Mapping) and given.get("chat") is True
        return {"bos": False, **given} if is_chat else given

    @model_validator(mode="after")
    def _turns_are_those_of_a_chat(self) -> TokensSection:
        if self.chat and self.bos:
            raise rule_error(
                "`chat: true` excludes `bos: true`: the chat template writes the "
                "beginning-of-text token; remove `bos`",
                "bos",
            )
        if self.position.at in TURNS and not self.chat:
            raise rule_error(
                f"`at: {self.position.at}` is a token of a conversation: it requires "
                "`tokens.chat: true`",
                "position",
                "at",
            )
        if self.chat and self.too_long == "truncate":
            raise rule_error(
                "`chat: true` excludes `too_long: truncate`, which would cut off the end of the "
                "chat template; use `error` or `skip`",
                "too_long",
            )
        return self

    @model_validator(mode="after")
    def _sweep_starts_from_a_span(self) -> TokensSection:
        if not self.sweep:
            return self
        self.position.check_offsets("sweep")
        if self.position.offset:
            raise rule_error(
                "give either `sweep` or `position.offset`: a sweep is counted from the span itself",
                "sweep",
            )
        if len(set(self.sweep)) < len(self.sweep):
            raise rule_error("`sweep` lists an offset twice", "sweep")
        return self
