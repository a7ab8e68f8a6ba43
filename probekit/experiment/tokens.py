"""The keys of an experiment file that say how text becomes tokens, and which of them are read."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from probekit.section import Section, broken

Offset = Annotated[int, Field(ge=-1000, le=1000)]
Offsets = Annotated[tuple[Offset, ...], Field(strict=False)]

_WITH_DETAILS = re.compile(r"(last|first|mean|all|index|span|word)\W")
_DETAILS = (
    "Each detail has a key of its own: {at: index, index: 3}, {at: word, pieces: last}, {at: span, "
    "offset: -1}"
)


class PositionSection(Section):
    """Which tokens of an example are read."""

    at: Literal["last", "first", "mean", "all", "index", "span", "word"] = Field(
        description="last or first token; mean over all; all, one row each; one by index; "
        "mean over the span; the word that the span marks"
    )
    pieces: Literal["first", "last", "mean", "all"] = Field(
        "last", description="which tokens of the word, for `at: word`"
    )
    index: int | None = Field(
        None,
        ge=-1_000_000,
        le=1_000_000,
        description="which token, for `at: index`; negative from end",
    )
    skip_first: bool = Field(
        True,
        description="means, and the scaling of features, leave out position 0, whose norm is some "
        "30 times that of the others",
    )
    offset: Offset = Field(
        0,
        description="for `at: span` and `at: word`, which token beside it: -1 the one just before "
        "its first token, 1 the one just after its last; 0 the span or word itself",
    )

    @property
    def text(self) -> str:
        """The position in one word, as in results: `last`, `index:3`, `word:last`, `word:last-1`.

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
        # Results name a position in one word, index:3 or word:last-1, which is not how it is asked.
        if isinstance(at, str) and _WITH_DETAILS.match(at):
            raise PydanticCustomError("with_details", "{problem}", {"problem": _DETAILS})
        return at

    @model_validator(mode="after")
    def _details_belong_to_at(self) -> PositionSection:
        if (self.at == "index") != (self.index is not None):
            key = "at" if self.index is None else "index"
            raise broken("`index` must be given for `at: index`, and only then", key)
        # The default may stand there without use: a file written back has every key.
        if self.at != "word" and self.pieces != type(self).model_fields["pieces"].default:
            raise broken(
                f"`pieces: {self.pieces}` goes with `at: word`, not with `at: {self.at}`", "pieces"
            )
        if self.offset:
            self.check_offsets("offset")
        return self

    def check_offsets(self, key: str) -> None:
        """Refuse offsets, given at `key`, where nothing marks the place they are counted from."""
        if self.at not in ("span", "word"):
            raise broken(
                f"`{key}` is counted from a span or word: it goes with `at: span` and `at: word`, "
                f"not with `at: {self.at}`",
                key,
            )
        if self.pieces == "all":
            raise broken(
                f"`{key}` goes with one row a word: `pieces: first`, `last` or `mean`, not `all`",
                key,
            )


class TokensSection(Section):
    """How text becomes tokens."""

    bos: bool = Field(description="whether <|endoftext|> is put before each text")
    too_long: Literal["error", "truncate", "skip"] = Field(
        "error", description="what to do with texts that exceed the context"
    )
    position: PositionSection
    sweep: Offsets = Field(
        (),
        description="offsets, as of `position`, that are probed one after the other, at the same "
        "examples; the empty list probes at the position alone",
        examples=[-1, 0, 1],
    )

    @property
    def positions(self) -> tuple[PositionSection, ...]:
        """The positions that are probed: one for each offset of the sweep, else the one.

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
            raise broken(
                "give either `sweep` or `position.offset`: a sweep is counted from the span itself",
                "sweep",
            )
        if len(set(self.sweep)) < len(self.sweep):
            raise broken("`sweep` lists an offset twice", "sweep")
        return self
