"""Which token positions of each example a capture keeps, and how they are pooled into rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from probekit.errors import ConfigError, DataError, nearest

IntArray = npt.NDArray[np.int64]
At = Literal["last", "first", "mean", "all", "index", "span", "word"]
Pick = Literal["first", "last", "mean", "all"]

_OF_SPAN = ("span", "word")
# What is read of the tokens found; `pieces` says it for a word.
_PICK: dict[str, Pick] = {
    "last": "last",
    "first": "first",
    "mean": "mean",
    "all": "all",
    "index": "first",
    "span": "mean",
}
# All characters that Python calls space lie below this one.
_SPACES = np.array([code for code in range(0x3001) if chr(code).isspace()], dtype=np.uint32)


@dataclass(frozen=True)
class PositionRule:
    """Where in its text an example is read.

    Attributes:
        at: the "last" or "first" token, the "mean" of all, "all" one by one, the token at `index`,
            the mean of the example's "span", or the span's `pieces` ("word").
        pieces: which tokens of a word count. A causal model has read the whole word at the last.
        index: for `at="index"`: counted from 0 after BOS, or from the end if negative.
        skip_first: leave position 0 of the model's input out of a mean that has other tokens. GPT-2
            rests its attention there, and the norm of that position swamps all others.
        offset: for a span or word: 0 reads it, -1 the token just before its first one, 1 the token
            just after its last one, and so on.

    Raises:
        ConfigError: `at` or `pieces` is unknown, `index` is missing or has no use, or there is
            nothing that `offset` could be counted from.
    """

    at: At
    pieces: Pick = "last"
    index: int | None = None
    skip_first: bool = True
    offset: int = 0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("at", self.at, get_args(At)),
            ("pieces", self.pieces, get_args(Pick)),
        ):
            if value not in allowed:
                raise ConfigError(f"Unknown {name} {value!r}. {nearest(value, allowed)}")
        if (self.at == "index") != (self.index is not None):
            raise ConfigError(
                f"at: {self.at} with index: {self.index}. Give an index with at: index, only there."
            )
        if self.offset and (self.at not in _OF_SPAN or self.pieces == "all"):
            raise ConfigError(
                f"offset: {self.offset} with at: {self.at}, pieces: {self.pieces}. An offset is "
                "counted from a span or word that gives one row: at: span, or at: word with "
                "pieces: first, last or mean."
            )


@dataclass(frozen=True)
class RowPlan:
    """The rows that a capture writes; row r is the mean over a range of positions, mostly of one.

    Attributes:
        example: which example a row belongs to, ascending, shape (n_rows,).
        positions: token positions in the model's input of that example, shape (n_positions,).
        offsets: row r has `positions[offsets[r]:offsets[r + 1]]`, never empty, shape (n_rows + 1,).
    """

    example: IntArray
    positions: IntArray
    offsets: IntArray


class Unaligned(NamedTuple):
    """An example that gets no row, and why."""

    example: int
    reason: str


class _Tokens(NamedTuple):
    """The tokens of all distinct texts in one line, without BOS.

    Attributes:
        text_of_example: shape (n_examples,).
        joined: the characters of all distinct texts.
        start: where each text begins in `joined`, and where the last ends, shape (n_texts + 1,).
        position: of each token in the model's input, shape (n_tokens,).
        ranges: the characters of each token in `joined`, shape (n_tokens, 2).
        bounds: text t has the tokens from `bounds[t]` to `bounds[t + 1]`, shape (n_texts + 1,).
    """

    text_of_example: IntArray
    joined: str
    start: IntArray
    position: IntArray
    ranges: IntArray
    bounds: IntArray


class _Found(NamedTuple):
    """The tokens that each example is read at: a range in a line of tokens.

    Attributes:
        position: of each token in the model's input, shape (n_tokens,).
        first: shape (n_examples,).
        stop: shape (n_examples,).
        fault: why an example has none, "" if it has some, shape (n_examples,).
    """

    position: IntArray
    first: IntArray
    stop: IntArray
    fault: npt.NDArray[np.str_]


def plan_rows(
    offsets: Sequence[IntArray],
    spans: Sequence[tuple[int, int] | None],
    texts: Sequence[str],
    rule: PositionRule,
    *,
    bos: bool,
) -> tuple[RowPlan, tuple[Unaligned, ...]]:
    """Return the rows that `rule` keeps of each example, and the examples that get none.

    A token belongs to a span if both hold one same character that is no space; so the space that a
    token begins with does not count.

    Args:
        offsets: of each example, the first character and one past the last of each token of the
            model's input, shape (n_tokens, 2), in reading order.
        spans: the labelled stretch of each text.
        texts: what the offsets and spans count in.
        rule: where to read.
        bos: whether token 0 is BOS, which is never read.

    Raises:
        DataError: no example gets a row; the message gives the first reason.

    >>> offsets = np.array([[0, 0], [0, 3], [3, 7], [7, 8]])  # BOS The| key|s
    >>> rule = PositionRule("span")
    >>> plan, unaligned = plan_rows([offsets], [(4, 8)], ["The keys"], rule, bos=True)
    >>> plan.positions, plan.offsets
    (array([2, 3]), array([0, 2]))
    """
    if not texts:
        raise DataError("There are no examples, so there are no rows to plan.")
    tokens = _join(list(offsets), texts, bos)
    found = _find_span(tokens, spans) if rule.at in _OF_SPAN else _find_in_text(tokens, rule.index)
    if rule.offset:
        found = _step_off(tokens, found, rule.offset)
    aligned = found.fault == ""
    unaligned = tuple(
        Unaligned(int(example), str(found.fault[example])) for example in np.flatnonzero(~aligned)
    )
    if not aligned.any():
        beside = f", offset: {rule.offset}" if rule.offset else ""
        raise DataError(
            f"No example has a token at: {rule.at}{beside}. The first: {unaligned[0].reason}."
        )
    pick = _PICK.get(rule.at, rule.pieces)
    return _rows(found, np.flatnonzero(aligned), pick, rule.skip_first), unaligned


def _join(offsets: list[IntArray], texts: Sequence[str], bos: bool) -> _Tokens:
    # By identity as well: one text may come with different tokens, such as truncated ones.
    keys = [(text, id(ranges)) for text, ranges in zip(texts, offsets, strict=True)]
    distinct = {key: ranges[int(bos) :] for key, ranges in zip(keys, offsets, strict=True)}
    number = {key: index for index, key in enumerate(distinct)}
    start = _starts([len(text) for text, _ in distinct])
    bounds = _starts([len(ranges) for ranges in distinct.values()])
    text_of_token = np.repeat(np.arange(len(distinct)), np.diff(bounds))
    return _Tokens(
        text_of_example=np.array([number[key] for key in keys], dtype=np.int64),
        joined="".join(text for text, _ in distinct),
        start=start,
        position=np.arange(bounds[-1]) - bounds[text_of_token] + int(bos),
        ranges=np.concatenate(list(distinct.values())) + start[text_of_token, None],
        bounds=bounds,
    )


def _find_in_text(tokens: _Tokens, index: int | None) -> _Found:
    """Find all tokens of each example's text, or the one at `index`."""
    text = tokens.text_of_example
    first, stop = tokens.bounds[text], tokens.bounds[text + 1]
    if index is None:
        return _Found(tokens.position, first, stop, np.where(first < stop, "", "it has no token"))
    at = index + (first if index >= 0 else stop)
    inside = (first <= at) & (at < stop)
    fault = np.array([_no_token(index, int(n)) for n in stop - first])
    return _Found(tokens.position, at, at + 1, np.where(inside, "", fault))


def _no_token(index: int, n_tokens: int) -> str:
    there = f"0 to {n_tokens - 1}, or {-n_tokens} to -1 from its end" if n_tokens else "none"
    return f"it has no token {index} (there are: {there})"


def _find_span(tokens: _Tokens, spans: Sequence[tuple[int, int] | None]) -> _Found:
    """Find the tokens of each example's span, counting characters as if there were no spaces."""
    n_before = _count_visible(tokens.joined)
    ranges = n_before[tokens.ranges]
    visible = ranges[:, 0] < ranges[:, 1]
    begin, end = ranges[visible].T

    text = tokens.text_of_example
    wanted = np.array([span or (0, 0) for span in spans], dtype=np.int64)
    inside = (wanted[:, 0] >= 0) & (wanted[:, 1] <= np.diff(tokens.start)[text])
    wanted = n_before[np.where(inside[:, None], wanted, 0) + tokens.start[text, None]]
    first = np.searchsorted(end, wanted[:, 0], side="right")
    stop = np.searchsorted(begin, wanted[:, 1], side="left")
    covered = first < stop
    covered[covered] = (begin[first[covered]] <= wanted[covered, 0]) & (
        end[stop[covered] - 1] >= wanted[covered, 1]
    )
    fault = np.select(
        [
            np.array([span is None for span in spans]),
            ~inside,
            wanted[:, 0] >= wanted[:, 1],
            ~covered,
        ],
        [
            "it has no span",
            "its span reaches beyond the text",
            "its span holds no character but spaces",
            "its tokens do not cover the span, as after truncation",
        ],
        default="",
    )
    return _Found(tokens.position[visible], first, stop, fault)


def _step_off(tokens: _Tokens, span: _Found, offset: int) -> _Found:
    """Find the token that stands `offset` before the first, or after the last, of each span."""
    aligned = np.flatnonzero(span.fault == "")
    edge = span.first[aligned] if offset < 0 else span.stop[aligned] - 1
    text = tokens.text_of_example[aligned]
    first, stop = tokens.bounds[text], tokens.bounds[text + 1]
    # Tokens of spaces alone belong to no span, but they are tokens to be counted.
    target = first + span.position[edge] - tokens.position[first] + offset
    inside = (first <= target) & (target < stop)

    at = np.zeros_like(span.first)
    at[aligned] = np.where(inside, target, 0)
    side = "before" if offset < 0 else "after"
    outside = np.zeros(len(at), dtype=bool)
    outside[aligned] = ~inside
    reason = f"its text has no token {abs(offset)} {side} the span"
    return _Found(tokens.position, at, at + 1, np.where(outside, reason, span.fault))


def _count_visible(text: str) -> IntArray:
    """Return how many characters before each one, and in all, are no spaces."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    return _starts(~np.isin(codes, _SPACES))


def _rows(found: _Found, examples: IntArray, pick: Pick, skip_first: bool) -> RowPlan:
    first, stop = found.first[examples], found.stop[examples]
    if pick == "first":
        stop = first + 1
    elif pick == "last":
        first = stop - 1
    elif pick == "mean" and skip_first:
        first = first + ((found.position[first] == 0) & (stop - first > 1))
    lengths = stop - first
    offsets = _starts(lengths)
    positions = found.position[np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], lengths)]
    if pick == "all":
        return RowPlan(np.repeat(examples, lengths), positions, np.arange(positions.size + 1))
    return RowPlan(examples, positions, offsets)


def _starts(lengths: npt.ArrayLike) -> IntArray:
    """Return where each stretch begins if they stand in one line, and where the last ends."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
