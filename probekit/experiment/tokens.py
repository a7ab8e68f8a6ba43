"""The `tokens` section of an experiment file: tokenization and probed positions."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from probekit.section import Section, rule_error

Offset = Annotated[int, Field(ge=-1000, le=1000)]
Offsets = Annotated[tuple[Offset, ...], Field(strict=False)]

_WITH_DETAILS = re.compile(r"(last|first|mean|all|index|span|word)\W")
_DETAILS = (
    "Each detail has its own key: {at: index, index: 3}, {at: word, pieces: last}, {at: span, "
    "offset: -1}"
)


class PositionSection(Section):
    """The probed tokens of an example."""

    at: Literal["last", "first", "mean", "all", "index", "span", "word"] = Field(
        description="last or first token; mean over all tokens; all tokens, one row each; one "
        "token by index; mean over the span; the word marked by the span"
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
        description="for `at: span` and `at: word`: offset in tokens; -1 is the token before the "
        "first one, 1 the token after the last one, 0 the span or word itself",
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
        if self.at not in ("span", "word"):
            raise rule_error(
                f"`{key}` is counted from a span or word: it requires `at: span` or `at: word`, "
                f"not `at: {self.at}`",
                key,
            )
        if self.pieces == "all":
            raise rule_error(
                f"`{key}` requires one row per word: `pieces: first`, `last` or `mean`, not `all`",
                key,
            )


class TokensSection(Section):
    """Tokenization and probed positions."""

    bos: bool = Field(
        description="whether to prepend the beginning-of-text token, such as <|endoftext|>"
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
