"""The probed tokens: rows at one position, or at each offset of a sweep."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from probekit.amounts import counted
from probekit.data.examples import Dataset, Example
from probekit.data.positions import IntArray, PositionRule, RowPlan, Unaligned, plan_rows
from probekit.errors import DataError
from probekit.experiment.activations import GIVEN_POSITION
from probekit.experiment.model import TURNS, PositionSection
from probekit.experiment.schema import Experiment
from probekit.model.text.tokenizer import TokenizedText, Tokenizer
from probekit.probes.controls.baselines import WORD

_WORD = re.compile(WORD)
LONGEST_WORD = 100  # the previous word is searched in this many characters before a span

BoolArray = npt.NDArray[np.bool_]
StringArray = npt.NDArray[np.str_]


@dataclass(frozen=True)
class GivenPosition:
    """The position of given activations, which were selected before they were saved."""

    text: str = GIVEN_POSITION
    offset: int = 0


@dataclass(frozen=True, eq=False)
class PositionRows:
    """The captured rows at one position.

    Attributes:
        position: the position setting.
        rows: index of each row among the captured rows of all positions, shape (n_rows,).
        types: word or token that each row reads, shape (n_rows,): the labelled word at a span, the
            last word at the end of a text, and otherwise the token.
        words: labelled word of each row, shape (n_rows,); None if the examples have no spans.
        neighbours: previous and next unit of each row in its text, shape (n_rows, 2): words if the
            row reads a span, otherwise tokens; "" beyond an end of the text. None if a row reads
            a whole text.
        typical: whether each row is used to scale the features, shape (n_rows,): rows at position 0
            are not. None if all rows are used.
    """

    position: PositionSection | GivenPosition
    rows: IntArray
    types: StringArray
    words: StringArray | None
    neighbours: npt.NDArray[np.object_] | None
    typical: BoolArray | None


def plan_positions(
    dataset: Dataset, tokens: tuple[TokenizedText, ...], experiment: Experiment
) -> tuple[Dataset, tuple[TokenizedText, ...], tuple[RowPlan, ...]]:
    """Return the examples that have all probed positions, their tokens, and a plan per position.

    All offsets of a sweep use the same examples, so that their scores can be compared.

    Raises:
        DataError: no example has all positions.
    """
    with experiment.at("tokens", "position"):
        planned = [
            _plan(dataset, tokens, experiment.with_position(p)) for p in experiment.tokens.positions
        ]
    faults: dict[int, Unaligned] = {}
    for _, unaligned in planned:
        faults = {fault.example: fault for fault in unaligned} | faults
    if not faults:
        return dataset, tokens, tuple(plan for plan, _ in planned)
    keep = [n for n in range(len(dataset)) if n not in faults]
    note = _note(dataset, faults[min(faults)], len(faults), experiment)
    if not keep:
        raise DataError(f"{note}. Use fewer offsets.")
    selected = replace(dataset.select(keep), notes=(*dataset.notes, note))
    plans = tuple(_only(plan, keep, len(dataset)) for plan, _ in planned)
    return selected, tuple(tokens[n] for n in keep), plans


def _plan(
    dataset: Dataset, tokens: tuple[TokenizedText, ...], experiment: Experiment
) -> tuple[RowPlan, tuple[Unaligned, ...]]:
    return plan_rows(
        [part.offsets for part in tokens],
        [_span(example, experiment.tokens.position) for example in dataset.examples],
        [example.text for example in dataset.examples],
        PositionRule(**experiment.tokens.position.model_dump()),
        bos=tokens[0].has_bos,
    )


def _span(example: Example, position: PositionSection) -> tuple[int, int] | None:
    """Return the characters that a position refers to: the last turn, or the labelled span."""
    if position.at in TURNS:
        return example.turns[-1] if example.turns else (0, len(example.text))
    return example.span


def _note(dataset: Dataset, first: Unaligned, n_lost: int, experiment: Experiment) -> str:
    sweep = experiment.tokens.sweep
    missing = (
        f"dropped, because a token is missing at one of the offsets {', '.join(map(str, sweep))}"
        if sweep
        else "dropped, because there is no token at the probed position"
    )
    first_id = dataset.examples[first.example].id
    return f"{counted(n_lost, 'example')} {missing}, first {first_id}: {first.reason}"


def _only(plan: RowPlan, keep: Sequence[int], n_examples: int) -> RowPlan:
    """Return the plan of the examples to keep only, with example indices renumbered from 0."""
    number = np.full(n_examples, -1, dtype=np.int64)
    number[keep] = np.arange(len(keep))
    is_kept = number[plan.example] >= 0
    lengths = np.diff(plan.offsets)
    return RowPlan(
        example=number[plan.example][is_kept],
        positions=plan.positions[np.repeat(is_kept, lengths)],
        offsets=np.concatenate([[0], np.cumsum(lengths[is_kept])]),
    )


def interleave(plans: Sequence[RowPlan]) -> RowPlan:
    """Merge plans into one: the first row of each plan, then the second row of each, ...

    >>> left = RowPlan(np.array([0, 1]), np.array([4, 5]), np.array([0, 1, 2]))
    >>> right = RowPlan(np.array([0, 1]), np.array([6, 7, 8]), np.array([0, 2, 3]))
    >>> both = interleave([left, right])
    >>> both.example, both.positions, both.offsets
    (array([0, 0, 1, 1]), array([4, 6, 7, 5, 8]), array([0, 1, 3, 4, 5]))
    """
    if len(plans) == 1:
        return plans[0]
    rows = [np.split(plan.positions, plan.offsets[1:-1]) for plan in plans]
    positions = [tokens for together in zip(*rows, strict=True) for tokens in together]
    return RowPlan(
        example=np.repeat(plans[0].example, len(plans)),
        positions=np.concatenate(positions),
        offsets=np.concatenate([[0], np.cumsum([len(tokens) for tokens in positions])]),
    )


def position_rows(
    experiment: Experiment,
    dataset: Dataset,
    tokenizer: Tokenizer,
    tokens: tuple[TokenizedText, ...],
    plans: Sequence[RowPlan],
) -> tuple[PositionRows, ...]:
    """Return the captured rows at each position.

    There is one plan per position. `interleave` merges the plans for the capture, so that row i of
    plan k is row i * len(plans) + k of all captured rows.
    """
    return tuple(
        PositionRows(
            position=position,
            rows=np.arange(len(plan.example)) * len(plans) + number,
            types=_types(dataset, tokenizer, tokens, plan, position),
            words=_spans(dataset, plan),
            neighbours=_neighbours(dataset, tokenizer, tokens, plan, position),
            # The norm at position 0 is so large that it would dominate the scaling.
            typical=plan.positions[plan.offsets[:-1]] > 0 if position.skip_first else None,
        )
        for number, (position, plan) in enumerate(
            zip(experiment.tokens.positions, plans, strict=True)
        )
    )


def _types(
    dataset: Dataset,
    tokenizer: Tokenizer,
    tokens: tuple[TokenizedText, ...],
    plan: RowPlan,
    position: PositionSection,
) -> StringArray:
    """Return the word or token of each row, from which a lookup table could predict the label."""
    spans = _spans(dataset, plan)
    if _is_span(position) and spans is not None:
        return spans
    # At the end of a text use the last word, because the last token is mostly a full stop.
    look_back = _is_text(position)

    @cache
    def word(text: str, end: int, token: int) -> str:
        return (last_word(text[:end]) if look_back else None) or tokenizer.strings([token])[0]

    last = plan.positions[plan.offsets[1:] - 1]
    types = [
        word(dataset.examples[n].text, int(tokens[n].offsets[at, 1]), int(tokens[n].ids[at]))
        for n, at in zip(plan.example, last, strict=True)
    ]
    return np.array(types, dtype=str)


def _spans(dataset: Dataset, plan: RowPlan) -> StringArray | None:
    """Return the marked word of each row; None if no example has one."""
    if not any(example.span for example in dataset.examples):
        return None
    words = [e.text[slice(*e.span)] if e.span else "" for e in dataset.examples]
    return np.array(words, dtype=str)[plan.example]


def _is_span(position: PositionSection) -> bool:
    return position.at in ("span", "word") and not position.offset


def _is_text(position: PositionSection) -> bool:
    return position.at in ("last", "mean", *TURNS) and not position.offset


def _neighbours(
    dataset: Dataset,
    tokenizer: Tokenizer,
    tokens: tuple[TokenizedText, ...],
    plan: RowPlan,
    position: PositionSection,
) -> npt.NDArray[np.object_] | None:
    """Return the two words around the span of each row, or the two tokens around its token."""
    if _is_text(position):
        return None
    if _is_span(position):
        around = [adjacent_words(example.text, example.span) for example in dataset.examples]
        return np.array(around, dtype=object)[plan.example]

    @cache
    def name(token: int) -> str:
        return tokenizer.strings([token])[0]

    def token(example: int, at: int) -> str:
        ids = tokens[example].ids
        return name(int(ids[at])) if 0 <= at < len(ids) else ""

    last = plan.positions[plan.offsets[1:] - 1]
    pairs = [(token(n, at - 1), token(n, at + 1)) for n, at in zip(plan.example, last, strict=True)]
    return np.array(pairs, dtype=object)


def adjacent_words(text: str, span: tuple[int, int] | None) -> tuple[str, str]:
    """Return the word, or punctuation mark, before a span and the one after it; "" for none.

    >>> adjacent_words("Keys, to doors.", (6, 8))
    (',', 'doors')
    >>> adjacent_words("Keys", (0, 4))
    ('', '')
    """
    start, end = (0, len(text)) if span is None else span
    before = _WORD.findall(text[max(0, start - LONGEST_WORD) : start])
    after = _WORD.search(text, end)
    return before[-1] if before else "", after.group() if after else ""


def last_word(text: str) -> str | None:
    """Return the last word without surrounding punctuation; None if there is no word.

    >>> last_word("The capital of Norway is 'Oslo'.")
    'Oslo'
    >>> last_word("They don't ...")
    "don't"
    """
    for word in reversed(text.split()):
        # Strip only punctuation: a combining mark or joiner at the end belongs to its letter.
        inner = [n for n, letter in enumerate(word) if unicodedata.category(letter)[0] != "P"]
        if inner:
            return word[inner[0] : inner[-1] + 1]
    return None
