"""Selection of the token positions of each example, and their pooling into rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from probekit.errors import DataError
from probekit.section import Distinct, Section, one_or_several, require_any, rule_error

IntArray = npt.NDArray[np.int64]
At = Literal[
    "last", "first", "mean", "all", "index", "span", "word", "user_last", "assistant_last",
    "reply", "reply_last", "share", "between",
]  # fmt: skip
Pick = Literal["first", "last", "mean", "all"]

MASSIVE = 5.0  # norm of a massive token, in multiples of the median norm of other tokens
TURNS = ("user_last", "assistant_last")  # values of `at` that refer to the turns of a conversation
REPLY = ("reply", "reply_last", "share", "between")  # values of `at` that refer to the reply
_OF_SPAN = ("span", "word", *TURNS, *REPLY)
# Pooling of the selected tokens; for "word" it is `pieces`.
_PICKED: dict[Pick, tuple[At, ...]] = {
    "last": ("last", "user_last", "assistant_last", "reply_last"),
    "first": ("first", "index", "share"),
    "mean": ("mean", "span", "reply", "between"),
    "all": ("all",),
}
_PICK: dict[str, Pick] = {at: pick for pick, ats in _PICKED.items() for at in ats}
# All whitespace characters of Python are below U+3001.
_SPACES = np.array([code for code in range(0x3001) if chr(code).isspace()], dtype=np.uint32)


Offset = Annotated[int, Field(ge=-1000, le=1000)]

DECILES = tuple(number / 10 for number in range(11))


Share = Annotated[float, Field(ge=0, le=1)]
Shares = Annotated[
    Distinct[Share],
    BeforeValidator(
        lambda given: DECILES if given == "deciles" else one_or_several(given),
        json_schema_input_type=Share | list[Share] | Literal["deciles"],
    ),
]


class PositionRule(Section):
    """The probed tokens of an example.

    A causal model has read a word at its last token. Position 0 is an attention sink of GPT-2, and
    its norm would dominate a mean. For massive tokens see `RowPlan`. Of n tokens, `share` selects
    the last one of the first `share * n`.

    Attributes:
        at: last or first token; mean over all tokens; all tokens, one row each; one token by index;
            mean over the span; the word marked by the span; with `chat`: last token of the user's
            turn, or of the assistant's; of a reply: mean over its tokens, its last token, the token
            at a `share` of it, or the mean `between` two markers; `share` and `between` need no
            `at`
        pieces: for `at: word`: tokens of the word to read; for `at: reply` and `between`, `all`
            reads each token as a row instead of their mean
        share: for `at: share`: the token at this share of the reply; 0 is the last token before it,
            1 its last token; a list, or `deciles` for 0, 0.1, ..., 1, probes each
        between: for `at: between` and `share`: the part of the reply between two strings, without
            them; "" is the beginning or the end of the reply
        index: for `at: index`: index of the token; negative values count from the end
        skip_first: whether means and scaling exclude position 0, whose norm is far larger
        skip_massive: whether means exclude tokens with over 5 times the median norm at the site
        offset: offset in tokens from a span, word or turn; -1 is before it, 1 after it

    >>> PositionRule(at="word", offset=-1).text
    'word:last-1'
    """

    model_config = ConfigDict(json_schema_extra=require_any("at", "share", "between"))

    at: At
    pieces: Pick = "last"
    share: Shares | None = Field(None, examples=[0.5])
    between: Annotated[tuple[str, str] | None, Field(strict=False)] = Field(
        None, examples=['["<think>", "</think>"]']
    )
    index: int | None = Field(None, ge=-1_000_000, le=1_000_000)
    skip_first: bool = True
    skip_massive: bool = False
    offset: Offset = 0

    @property
    def pick(self) -> Pick:
        """How the selected tokens become rows: `pieces` of a word, else as `at` implies.

        >>> PositionRule(at="reply").pick, PositionRule(at="reply", pieces="all").pick
        ('mean', 'all')
        """
        return "all" if self.pieces == "all" else _PICK.get(self.at, self.pieces)

    @property
    def text(self) -> str:
        """The position as named in results: `last`, `index:3`, `word:last`, `word:last-1`.

        `-massive` means that massive tokens are left out, `+first` that position 0 is not.

        >>> PositionRule(at="word", offset=-1).text
        'word:last-1'
        >>> PositionRule(at="mean", skip_first=False, skip_massive=True).text
        'mean-massive+first'
        """
        return position_text(self.model_dump())

    @property
    def number(self) -> int:
        """Number that identifies the position among those of a run: offset, or share in percent."""
        return self.offset if self.share is None else round(100 * self.share[0])

    @model_validator(mode="before")
    @classmethod
    def _at_follows_from_other_keys(cls, given: Any) -> Any:
        """Fill in `at: share`, or `at: between`."""
        for at in ("share", "between"):
            if isinstance(given, Mapping) and "at" not in given and given.get(at) is not None:
                return {"at": at, **given}
        return given

    @model_validator(mode="after")
    def _details_belong_to_at(self) -> PositionRule:
        for key in ("share", "index"):
            is_given = getattr(self, key) is not None
            if (self.at == key) != is_given:
                problem = f"`{key}` must be given for `at: {key}`, and only then"
                raise rule_error(problem, key if is_given else "at")
        # The default is allowed with any `at`: a file written by probekit has every key.
        reads_all = self.pieces == "all" and self.at in ("reply", "between")
        if self.at != "word" and self.pieces != "last" and not reads_all:
            problem = f"`pieces: {self.pieces}` requires `at: word`, not `at: {self.at}`"
            raise rule_error(problem, "pieces")
        if self.skip_massive and self.pick != "mean":
            raise rule_error(
                "`skip_massive` requires a mean, such as `at: mean`, `at: span` or `pieces: mean`",
                "skip_massive",
            )
        if self.offset:
            self.check_offset("offset")
        return self

    def check_offset(self, key: str) -> None:
        """Raise a validation error at the given key unless offsets can be counted."""
        if self.at not in ("span", "word", *TURNS):
            problem = f"`{key}` is counted from a span, word or turn, not from `at: {self.at}`"
            raise rule_error(problem, key)
        if self.pieces == "all":
            problem = f"`{key}` requires one row per word: `pieces: first`, `last` or `mean`"
            raise rule_error(f"{problem}, not `all`", key)


def position_text(rule: Mapping[str, Any]) -> str:
    """Return the name of a position in results, from its keys; `share` may be several.

    `-massive` means that massive tokens are left out of means, `+first` that position 0 is not.

    >>> position_text({"at": "word", "offset": -1}), position_text({"at": "share", "share": 0.5})
    ('word:last-1', 'share:0.5')
    """
    share = ",".join(f"{one:g}" for one in np.atleast_1d(rule.get("share") or 0.0))
    details = {"index": rule.get("index"), "word": rule.get("pieces", "last"), "share": share}
    name, detail, offset = rule["at"], details.get(rule["at"]), rule.get("offset") or 0
    name += f":{detail}" if detail is not None else ""
    name += f"{offset:+d}" if offset else ""
    name += "-massive" if rule.get("skip_massive") else ""
    return str(name) if rule.get("skip_first", True) else f"{name}+first"


@dataclass(frozen=True)
class RowPlan:
    """Rows of a capture; row r is the mean over a range of token positions, usually a single one.

    Attributes:
        example: index of the example of each row, ascending, shape (n_rows,).
        positions: token positions in the model's input of that example, shape (n_positions,).
        offsets: row r has `positions[offsets[r]:offsets[r + 1]]`, never empty, shape (n_rows + 1,).
        skip_massive: leave out of a mean, at each site, the tokens whose norm exceeds `MASSIVE`
            times the median norm of the tokens of the row.
    """

    example: IntArray
    positions: IntArray
    offsets: IntArray
    skip_massive: bool = False


class Unaligned(NamedTuple):
    """An example without a row, and the reason."""

    example: int
    reason: str


class _Tokens(NamedTuple):
    """Tokens of all distinct texts, concatenated, without BOS.

    Attributes:
        text_of_example: index of the text of each example, shape (n_examples,).
        joined: characters of all distinct texts.
        start: beginning of each text in `joined`, and end of the last, shape (n_texts + 1,).
        position: position of each token in the model's input, shape (n_tokens,).
        ranges: character range of each token in `joined`, shape (n_tokens, 2).
        bounds: text t has the tokens `bounds[t]:bounds[t + 1]`, shape (n_texts + 1,).
    """

    text_of_example: IntArray
    joined: str
    start: IntArray
    position: IntArray
    ranges: IntArray
    bounds: IntArray


class _TokenRanges(NamedTuple):
    """Range of tokens that a rule selects in each example.

    Attributes:
        position: position of each token in the model's input, shape (n_tokens,).
        first: first token of each example, as an index of `position`, shape (n_examples,).
        stop: one past the last token, shape (n_examples,).
        fault: reason why an example has no token, "" if it has some, shape (n_examples,).
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
    """Return the rows that `rule` selects, and the examples without a row.

    A token belongs to a span if they share a character that is not whitespace, so that the leading
    space of a token does not count.

    Args:
        offsets: for each example, the first character and one past the last of each token of the
            model's input, in order, shape (n_tokens, 2); not related to `RowPlan.offsets`.
        spans: labelled span of each text.
        texts: text of each example.
        rule: rule that selects positions.
        bos: whether token 0 is BOS, which is never selected.

    Raises:
        DataError: there are no examples, or none has a row; the message gives the first reason.

    >>> offsets = np.array([[0, 0], [0, 3], [3, 7], [7, 8]])  # BOS The| key|s
    >>> rule = PositionRule(at="span")
    >>> plan, unaligned = plan_rows([offsets], [(4, 8)], ["The keys"], rule, bos=True)
    >>> plan.positions, plan.offsets
    (array([2, 3]), array([0, 2]))
    """
    if not texts:
        raise DataError("There are no examples. Give at least one.")
    tokens = _join(list(offsets), texts, bos)
    selected = (
        _select_span(tokens, spans) if rule.at in _OF_SPAN else _select_in_text(tokens, rule.index)
    )
    # The last token that ends before the span is at share 0.
    share = None if rule.share is None else rule.share[0]
    offset = -1 if share == 0 else rule.offset
    if offset:
        selected = _shift(tokens, selected, rule, offset, spans)
    elif share is not None:
        # Rounded first, because 0.07 * 100 is 7.000000000000001.
        n_read = np.ceil(np.round(share * (selected.stop - selected.first), 6)).astype(int)
        token = selected.first + n_read - 1
        selected = selected._replace(first=token, stop=token + 1)
    aligned = selected.fault == ""
    faults = enumerate(selected.fault.tolist())
    unaligned = tuple(Unaligned(example, fault) for example, fault in faults if fault)
    if not aligned.any():
        moved = f", offset: {offset}" if offset else ""
        raise DataError(
            f"No example has a token for at: {rule.at}{moved}. The first example: "
            f"{unaligned[0].reason}."
        )
    plan = _rows(selected, np.flatnonzero(aligned), rule.pick, rule.skip_first)
    return replace(plan, skip_massive=rule.skip_massive), unaligned


def _join(offsets: list[IntArray], texts: Sequence[str], bos: bool) -> _Tokens:
    """Return the tokens of all distinct texts; see `plan_rows` for the arguments."""
    # Equal texts may have different tokens, for example truncated ones, so the identity of the
    # tokens distinguishes texts, too.
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


def _select_in_text(tokens: _Tokens, index: int | None) -> _TokenRanges:
    """Select all tokens of each text, or the one at `index`."""
    text = tokens.text_of_example
    first, stop = tokens.bounds[text], tokens.bounds[text + 1]
    if index is None:
        fault = np.where(first < stop, "", "it has no token")
        return _TokenRanges(tokens.position, first, stop, fault)
    token = index + (first if index >= 0 else stop)
    inside = (first <= token) & (token < stop)
    allowed = [f"0 to {n - 1}, or {-n} to -1 from its end" if n else "none" for n in stop - first]
    fault = np.array([f"it has no token {index} (it has: {one})" for one in allowed])
    return _TokenRanges(tokens.position, token, token + 1, np.where(inside, "", fault))


def _select_span(tokens: _Tokens, spans: Sequence[tuple[int, int] | None]) -> _TokenRanges:
    """Select the tokens of each span; character positions ignore whitespace."""
    codes = np.frombuffer(tokens.joined.encode("utf-32-le"), dtype=np.uint32)
    # The position of each character among those that are not whitespace.
    n_before = _starts(~np.isin(codes, _SPACES))
    ranges = n_before[tokens.ranges]
    visible = ranges[:, 0] < ranges[:, 1]
    begin, end = ranges[visible].T

    text = tokens.text_of_example
    in_text = np.array([span or (0, 0) for span in spans], dtype=np.int64)
    inside = (in_text[:, 0] >= 0) & (in_text[:, 1] <= np.diff(tokens.start)[text])
    in_joined = np.where(inside[:, None], in_text, 0) + tokens.start[text, None]
    span_begin, span_end = n_before[in_joined].T
    # The first token that ends after the begin of the span, and one past the last that begins
    # before its end.
    first = np.searchsorted(end, span_begin, side="right")
    stop = np.searchsorted(begin, span_end, side="left")
    # The tokens cover a span if the first one begins at or before it, and the last one ends at or
    # after its end. Only those with a first and a last token are compared.
    covered = first < stop
    begins_in = begin[first[covered]] <= span_begin[covered]
    covered[covered] = begins_in & (end[stop[covered] - 1] >= span_end[covered])
    is_missing = np.array([span is None for span in spans])
    fault = np.select(
        [is_missing, ~inside, span_begin >= span_end, ~covered],
        [
            "it has no span",
            "its span extends beyond the text",
            "its span contains only whitespace",
            "its tokens do not cover the span, as after truncation",
        ],
        default="",
    )
    return _TokenRanges(tokens.position[visible], first, stop, fault)


def _shift(
    tokens: _Tokens,
    span: _TokenRanges,
    rule: PositionRule,
    offset: int,
    spans: Sequence[tuple[int, int] | None],
) -> _TokenRanges:
    """Select one token per span: `offset` tokens after its last one, or before its first one."""
    aligned = np.flatnonzero(span.fault == "")
    edge = span.first[aligned] if offset < 0 else span.stop[aligned] - 1
    text = tokens.text_of_example[aligned]
    first, stop = tokens.bounds[text], tokens.bounds[text + 1]
    # `edge` counts no whitespace tokens, but the offset does: `target` counts all tokens.
    target = first + span.position[edge] - tokens.position[first] + offset
    if rule.share is not None:  # of 0
        begins = np.array([(spans[number] or (0, 0))[0] for number in aligned.tolist()])
        target = np.searchsorted(tokens.ranges[:, 1], tokens.start[text] + begins, "right") - 1
    inside = (first <= target) & (target < stop)

    shifted = np.zeros_like(span.first)
    shifted[aligned] = np.where(inside, target, 0)
    side, end = ("before", "first") if offset < 0 else ("after", "last")
    outside = np.zeros(len(shifted), dtype=bool)
    outside[aligned] = ~inside
    edge_name = f"{end} token of the turn" if rule.at.endswith("_last") else "span"
    reason = f"its text has no token {abs(offset)} {side} the {edge_name}"
    fault = np.where(outside, reason, span.fault)
    return _TokenRanges(tokens.position, shifted, shifted + 1, fault)


def _rows(selected: _TokenRanges, examples: IntArray, pick: Pick, skip_first: bool) -> RowPlan:
    """Return the rows of the given examples from the selected tokens, pooled by `pick`."""
    first, stop = selected.first[examples], selected.stop[examples]
    if pick == "first":
        stop = first + 1
    elif pick == "last":
        first = stop - 1
    elif pick == "mean" and skip_first:
        is_skipped = (selected.position[first] == 0) & (stop - first > 1)
        first = np.where(is_skipped, first + 1, first)
    lengths = stop - first
    offsets = _starts(lengths)
    # The tokens first, ..., stop - 1 of each example, one example after the other.
    picked = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], lengths)
    positions = selected.position[picked]
    if pick == "all":
        return RowPlan(np.repeat(examples, lengths), positions, np.arange(positions.size + 1))
    return RowPlan(examples, positions, offsets)


def _starts(lengths: npt.ArrayLike) -> IntArray:
    """Return the start of each range when ranges of these lengths are joined, then the total."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
