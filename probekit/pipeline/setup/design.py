"""The design of an experiment: labels, groups and words of its rows, and which train and test.

ExperimentDesign  labels, groups and splits of all rows, before any probe is fitted
plan_positions    the tokens that the rows of texts read, at one position or each offset of a sweep
position_rows     the words of the rows at one position
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from probekit.activations.given.given import GivenSite
from probekit.activations.records import FloatArray
from probekit.amounts import counted
from probekit.chosen.registry import asked
from probekit.data import splits as splitting
from probekit.data.examples import WORD, Dataset, Finding, StringArray, rows_of
from probekit.data.labels import check_names
from probekit.data.positions import REPLY, TURNS, IntArray, PositionRule, RowPlan, plan_rows
from probekit.data.splits import LabelCounts, Split
from probekit.errors import DataError
from probekit.experiment.activations import AnyExperiment
from probekit.experiment.schema import Experiment
from probekit.model.sites.sites import SiteConcatenation, SiteSelection
from probekit.model.text.tokenizer import TokenizedText, Tokenizer
from probekit.probes.data import ProbeData, group_folds

_WORD = re.compile(WORD)
LONGEST_WORD = 100  # the previous word is searched in this many characters before a span

Probed: TypeAlias = SiteSelection | SiteConcatenation | GivenSite
Strings: TypeAlias = npt.NDArray[np.str_]
Objects: TypeAlias = npt.NDArray[np.object_]
Tokens: TypeAlias = tuple[TokenizedText, ...]  # of each example


@dataclass(frozen=True, eq=False)
class PositionRows:
    """Words of the rows at one position.

    Attributes:
        text: name of the position in results.
        offset: offset of the position in a sweep; 0 without one.
        types: word or token that each row reads, shape (n_rows,): the labelled word at a span, the
            last word at the end or mean of a text, and otherwise, or without a word, the token.
            Given activations without tokens have "".
        words: labelled word of each row, shape (n_rows,), "" without a span; None if no example
            has a span.
        neighbours: previous and next unit of each row in its text, shape (n_rows, 2): words if the
            row reads a span, otherwise tokens; "" beyond an end of the text. None if rows read
            the end or mean of a text, or if activations are given.
        typical: whether each row is used to scale the features, shape (n_rows,): rows at position 0
            are not. None if all rows are used.
        reply: first character of the reply in each text, and one past the last that the row reads,
            shape (n_rows, 2); None if it reads no reply.
        token: characters of the only token that each row reads, shape (n_rows, 2), -1 if it reads
            several; None without texts.
    """

    text: str
    offset: int
    types: Strings
    words: Strings | None = None
    neighbours: Objects | None = None
    typical: npt.NDArray[np.bool_] | None = None
    reply: IntArray | None = None
    token: IntArray | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ExperimentDesign:
    """Labels, groups and splits of all rows of an experiment.

    Attributes:
        dataset: the examples that have rows, with notes on those that were left out.
        n_read: number of examples read, including those without a row.
        example: index of the example of each row, shape (n_rows,); the same at every position.
        examples: indices of training and test examples, in the order of `splits`.
        splits: indices of training and test rows: one split, or one per outer fold of a nested
            cross-validation, or one per source of `split.leave_out`, in the order of their names.
        within: with sources, the splits of rows of a nested cross-validation inside the sources.
        positions: the rows at each probed position: one position, or one for each offset of a
            sweep.
        findings: findings about the rows, in addition to those about the examples.
        has_types: whether `types` of the positions are words or tokens, as the control task needs.
        has_texts: whether the examples have the texts that the network read.
        texts_are_rows: whether text and span of an example identify it, so that equal ones are
            repeated; given tokens may share a text.
    """

    dataset: Dataset
    n_read: int
    example: IntArray
    examples: tuple[Split, ...]
    splits: tuple[Split, ...]
    within: tuple[Split, ...]
    positions: tuple[PositionRows, ...]
    findings: tuple[Finding, ...] = ()
    has_types: bool = True
    has_texts: bool = True
    texts_are_rows: bool = True

    @classmethod
    def of(
        cls,
        experiment: AnyExperiment,
        dataset: Dataset,
        example: IntArray,
        positions: tuple[PositionRows, ...],
        *,
        n_read: int,
        has_types: bool = True,
        has_texts: bool = True,
        texts_are_rows: bool = True,
    ) -> Self:
        """Return the design of an experiment, whose rows are held out by its section `split`.

        No word of the first position is on both sides of a split that is `word_disjoint`.

        Raises:
            DataError: the data cannot be split, or one side would be empty.
        """
        dataset, examples, splits, within = _held_out(
            experiment, dataset, example, positions[0].types
        )
        for one, asked_for in asked(experiment):
            if (check := one.door("section", "check_rows")) is not None:
                check(asked_for, experiment, dataset, has_texts=has_texts)
        findings = tuple(check_names("source", dataset, experiment.split.leave_out))
        return cls(
            dataset=dataset, example=example, examples=examples, splits=splits, within=within,
            positions=positions, findings=findings, n_read=n_read, has_types=has_types,
            has_texts=has_texts, texts_are_rows=texts_are_rows,
        )  # fmt: skip

    @cached_property
    def labels(self) -> Strings:
        """Label of each row, shape (n_rows,)."""
        return self.dataset.labels[self.example].astype(str)

    @cached_property
    def groups(self) -> IntArray:
        """Index of the group of each row among the sorted groups, shape (n_rows,)."""
        return self.dataset.group_codes[self.example]

    @cached_property
    def texts(self) -> Objects:
        """The text of each row, shape (n_rows,); of given activations their token or name."""
        return self.dataset.column("text")[self.example]

    def texts_at(self, position: int) -> tuple[Objects | None, Objects | None]:
        """Return the texts that baselines read at a position, and the reply in each, (n_rows,).

        A reply ends with the last token that the row reads. None without texts, or replies.
        """
        if not self.has_texts:
            return None, None
        texts, reply = self.texts, self.positions[position].reply
        if reply is None:
            return texts, None
        pairs = zip(texts, reply, strict=True)
        parts = [(text[:end], text[start:end]) for text, (start, end) in pairs]
        read, replies = np.array(parts, dtype=object).T
        return read, replies

    @property
    def text_indices(self) -> IntArray | None:
        """Index of the text or sentence of each row, from 0, (n_rows,); None without texts."""
        if not self.has_texts:
            return None

        # A whole text has its id as its name. Each word of a sentence is an example of its own, and
        # their ids share the part before the colon. Ids of other files may have no colon: the text
        # then identifies the sentence.
        names = [
            one.id if one.span is None else f"{one.id.rpartition(':')[0]}\0{one.text}"
            for one in self.dataset.examples
        ]
        _, index_of_example = np.unique(np.array(names, dtype=str), return_inverse=True)
        return index_of_example[self.example]

    def data(self, position: int, positive: str | None, splits: Sequence[Split]) -> list[ProbeData]:
        """Return the data of the probes at a position, one for each split.

        Args:
            position: index of the position.
            positive: the label that metrics of one class refer to; None for the default.
            splits: indices of training and test rows, such as `splits` or `within`.

        Raises:
            DataError: labels, groups or split cannot be probed.
        """
        at_position, (texts, replies) = self.positions[position], self.texts_at(position)
        of_split = partial(
            ProbeData,
            y=self.labels,
            groups=self.groups,
            types=at_position.types,
            typical=at_position.typical,
            words=at_position.words,
            texts=texts,
            replies=replies,
            neighbours=at_position.neighbours,
            examples=self.text_indices,
            positive=positive,
            group_names=self.dataset.group_names,
        )
        return [of_split(train=split.train, test=split.test) for split in splits]


def _held_out(
    experiment: AnyExperiment, dataset: Dataset, example: IntArray, words: Strings
) -> tuple[Dataset, tuple[Split, ...], tuple[Split, ...], tuple[Split, ...]]:
    """Return the data with notes, the splits of examples, those of rows, and of rows `within`.

    There is one split, or one per outer fold of a nested cross-validation or source. Examples that
    have lost all rows are neither in train nor in test.

    Args:
        experiment: gives the split settings.
        dataset: the examples.
        example: index of the example of each row, shape (n_rows,).
        words: the word of each row, shape (n_rows,), for `word_disjoint`.

    Raises:
        DataError: the data cannot be split, or one side would be empty.
    """
    settings = experiment.split
    if settings.folds is not None:
        with experiment.at("split", "folds" if settings.leave_out is None else "leave_out"):
            return _nested(experiment, dataset, example, settings.folds)
    test, seed = settings.test, settings.seed
    has_classes = experiment.probe.reads == "classes"
    if any(side is not None for side in dataset.column("split")):
        split = splitting.given_split(dataset, has_classes=has_classes)
    else:
        groups: StringArray | IntArray = dataset.group_codes
        if settings.word_disjoint:
            # All rows of an example have one group before, and therefore also after the merge.
            labels, groups = dataset.labels[example], dataset.groups.copy()
            groups[example] = splitting.joined_groups(labels, groups[example], words)
        if has_classes:
            split = splitting.grouped_split(
                dataset.labels, groups, dataset=dataset, test=test, seed=seed
            )
        else:
            split = splitting.unlabelled_split(groups, test=test, seed=seed)
    if settings.drop_repeated:
        n_read, split = len(split.test), splitting.without_repeated(split, dataset)
        n_dropped = n_read - len(split.test)
        dataset = _noting_removed(dataset, n_dropped, "removed from test: {} also in train")
        if settings.drop_repeated == "all":
            sides = [split.train, split.test]
            kept = [one[splitting.in_one_group(dataset.select(one), once=True)] for one in sides]
            n_dropped = sum(map(len, sides)) - sum(map(len, kept))
            dataset = _noting_removed(dataset, n_dropped, "removed: {} whose text occurs before")
            split = Split(*kept)
    rows = Split(*(np.flatnonzero(np.isin(example, side)) for side in (split.train, split.test)))
    if settings.word_disjoint:
        before, labels = rows, dataset.labels[example]
        with experiment.at("split", "word_disjoint"):
            rows = splitting.without_shared_words(before, labels, words, test=test, seed=seed)
        note = (
            f"{len(before.train) - len(rows.train)} of {len(before.train)} training rows and "
            f"{len(before.test) - len(rows.test)} of {len(before.test)} test rows were removed, so "
            "that no word is in both train and test"
        )
        dataset = replace(dataset, notes=(*dataset.notes, note))
        split = Split(np.unique(example[rows.train]), np.unique(example[rows.test]))
    return dataset, (split,), (rows,), ()


def _nested(
    experiment: AnyExperiment, dataset: Dataset, example: IntArray, n_folds: int
) -> tuple[Dataset, tuple[Split, ...], tuple[Split, ...], tuple[Split, ...]]:
    """Return the data with notes, the splits of examples, those of rows, and of rows `within`.

    A split tests one fold of a nested cross-validation and trains on the others. With
    `split.leave_out` the folds are the sources; those inside the sources are stratified by label
    and source. Repeated examples are in no split if the experiment drops them. `example` is the
    index of the example of each row.
    """
    has_classes, tested = experiment.probe.reads == "classes", np.arange(len(dataset))
    if experiment.split.drop_repeated:
        tested = splitting.in_one_group(dataset, once=experiment.split.drop_repeated == "all")
        n_dropped = len(dataset) - len(tested)
        template = "removed: {} whose text and span also occur before"
        dataset = _noting_removed(dataset, n_dropped, template)
    labels, groups = dataset.labels[tested], dataset.group_codes[tested]
    if has_classes:
        # Raises if a label is in a single group or the only one.
        splitting.labels_of_groups(labels, groups, dataset.select(tested))
    # Folds are stratified by class; numbers and syntactic heads have no classes.
    strata: npt.NDArray[np.generic] = labels if has_classes else np.zeros(len(tested))
    column, source = experiment.split.leave_out, np.zeros(len(tested), dtype=np.int64)
    note = (
        f"nested cross-validation: each of {n_folds} folds is tested once by probes fitted on the "
        "other folds"
    )
    if column is not None:
        source = _sources(dataset.select(tested), column, has_classes=has_classes)
        note = (
            f"each of {source.max() + 1} sources, the values of {column}, is tested once by probes "
            f"fitted on the others, and compared with nested cross-validation in {n_folds} folds "
            "inside the sources"
        )
        # A label with few groups must be in several folds, whatever its sources.
        n_groups = {label: len(np.unique(groups[strata == label])) for label in np.unique(strata)}
        strata = np.array(
            [
                f"{one} {label}" if n_groups[label] >= n_folds else f"{label}"
                for one, label in zip(source, strata, strict=True)
            ]
        )
    fold_of_example = np.full(len(dataset), -1)  # -1: in no split
    fold_of_example[tested] = group_folds(strata, groups, n_folds, experiment.split.seed)
    dataset = replace(dataset, notes=(*dataset.notes, note))
    within: tuple[Split, ...] = ()
    if column is not None:
        within = _splits_by(fold_of_example[example])
        fold_of_example[tested] = source
    return dataset, _splits_by(fold_of_example), _splits_by(fold_of_example[example]), within


def _splits_by(fold: IntArray) -> tuple[Split, ...]:
    """Return the split that tests each fold, given the fold of each example or row; -1 for none."""
    return tuple(
        Split(np.flatnonzero((fold != number) & (fold >= 0)), np.flatnonzero(fold == number))
        for number in range(fold.max() + 1)
    )


def _sources(dataset: Dataset, column: str, *, has_classes: bool) -> IntArray:
    """Return the index of the source of each example among the sorted sources, (n_examples,).

    The sources are the values of a column. A group in two of them is an error, because the interval
    over sources needs independent sources, and each group has one fold.

    Raises:
        DataError: an example has no value, there is only one source, a group is in several sources,
            or a label in only one, so that no probe that is tested there has learnt it.
    """
    values = [dict(example.values).get(column, "") for example in dataset.examples]
    empty = [number for number, value in enumerate(values) if not value.strip()]
    if empty:
        rows = rows_of(dataset.select(empty).examples)
        some = f"{counted(len(empty), 'example')} without a value in the column {column!r} ({rows})"
        if len(empty) == len(values):
            some = f"no column {column!r}, or no value in it"
        raise DataError(f"{some}. Name a column of the data with a value in each row.")
    names, source = np.unique(np.array(values, dtype=object), return_inverse=True)
    if len(names) < 2:
        raise DataError(
            f"all rows have the value {names[0]!r} in the column {column!r}, but probes are fitted "
            "on the other values. Name a column with several values, or use `folds`."
        )
    where: dict[str, str] = {}  # the first source of each group
    for group, value in zip(dataset.groups, values, strict=True):
        if where.setdefault(group, value) != value:
            raise DataError(
                f"the group {group!r} is in the sources {where[group]!r} and {value!r} of the "
                f"column {column!r}, so that probes would be tested on groups that they were "
                "fitted on. If its rows are unrelated, add the source to the name of the group; "
                "otherwise remove them, or use `folds`."
            )
    of_label = LabelCounts.of(dataset.labels, source) if has_classes else None
    if of_label is not None and (alone := of_label.labels[of_label.n_groups_of_label < 2]).size:
        only = names[source[dataset.labels == alone[0]][0]]
        raise DataError(
            f"the label {alone[0]!r} is only in the source {only!r} of the column {column!r}, so "
            "that no probe that is tested there can predict it. Remove or merge labels, or use "
            "`folds`."
        )
    return source


def _noting_removed(dataset: Dataset, n_dropped: int, template: str) -> Dataset:
    """Return the same data with a note on the number of removed examples, if any were removed."""
    if not n_dropped:
        return dataset
    return replace(dataset, notes=(*dataset.notes, template.format(counted(n_dropped, "example"))))


def plan_positions(
    experiment: Experiment, dataset: Dataset, tokens: Tokens
) -> tuple[Dataset, Tokens, tuple[RowPlan, ...]]:
    """Return the examples that have all probed positions, their tokens, and a plan per position.

    All offsets of a sweep use the same examples, so that their scores can be compared.

    Raises:
        DataError: no example has all positions.
    """
    # Characters of each token, as `TokenizedText.offsets`; not the `offsets` of a plan or a sweep.
    texts, characters = [one.text for one in dataset.examples], [part.offsets for part in tokens]
    words = [one.span for one in dataset.examples]
    turns = [[turn[:2] for turn in one.turns] or [(0, len(one.text))] for one in dataset.examples]
    plans = []
    reasons: dict[int, str] = {}  # why an example has no row, by its index
    for position in experiment.tokens.positions:
        spans: list[tuple[int, int] | None] = words
        if position.between is not None:
            spans = [
                between_markers(text, of_text[-1], position.between)
                for text, of_text in zip(texts, turns, strict=True)
            ]
            if not any(spans):
                with experiment.at("tokens", "position", "between"):
                    raise DataError(f"no reply has text between the strings {position.between}.")
        elif position.at in (*TURNS, *REPLY):
            # The last turn of the user is before the reply that the network generates.
            is_before = position.at == "user_last" and experiment.capture.generate is not None
            spans = [of_text[-2 if is_before else -1] for of_text in turns]
        with experiment.at("tokens", "position"):
            plan, unaligned = plan_rows(characters, spans, texts, position, bos=tokens[0].has_bos)
        plans.append(plan)
        for example, reason in unaligned:
            is_unmarked = position.between is not None and spans[example] is None
            unmarked = f"its reply has no text between the strings {position.between}"
            reasons.setdefault(example, unmarked if is_unmarked else reason)
    if not reasons:
        return dataset, tokens, tuple(plans)
    positions, first = experiment.tokens.positions, min(reasons)
    missing, advice = "there is no token at the probed position", "Probe another position."
    if len(positions) > 1:
        named = ", ".join(position.text for position in positions)
        missing = f"a token is missing at one of the positions {named}"
        advice = "Probe fewer positions."
    note = (
        f"{counted(len(reasons), 'example')} dropped, because {missing}, first "
        f"{dataset.examples[first].id}: {reasons[first]}"
    )
    kept = [index for index in range(len(dataset)) if index not in reasons]
    if not kept:
        raise DataError(f"{note}. {advice}")
    new_index = np.full(len(dataset), -1, dtype=np.int64)
    new_index[kept] = np.arange(len(kept))
    kept_plans = []
    for plan in plans:
        # For each row, whether its example is kept, and how many tokens it reads.
        is_kept, lengths = new_index[plan.example] >= 0, np.diff(plan.offsets)
        of_kept, read = new_index[plan.example], plan.positions[np.repeat(is_kept, lengths)]
        offsets = np.concatenate([[0], np.cumsum(lengths[is_kept])])
        kept_plans.append(RowPlan(of_kept[is_kept], read, offsets, plan.skip_massive))
    selected = replace(dataset.select(kept), notes=(*dataset.notes, note))
    return selected, tuple(tokens[index] for index in kept), tuple(kept_plans)


def between_markers(
    text: str, reply: tuple[int, int], markers: tuple[str, str]
) -> tuple[int, int] | None:
    """Return the characters of a reply between two markers; None without them, or text in between.

    >>> between_markers("Why? <a> So. </a> Yes.", (5, 22), ("<a>", "</a>"))
    (8, 13)
    """
    start = text.find(markers[0], *reply)
    if start < 0:
        return None
    start += len(markers[0])
    end = text.find(markers[1], start, reply[1]) if markers[1] else reply[1]
    return (start, end) if end >= 0 and text[start:end].strip() else None


def interleave(plans: Sequence[RowPlan]) -> RowPlan:
    """Merge plans into one: the first row of each plan, then the second row of each, ...

    Row i of plan k is therefore row i * len(plans) + k of all captured rows.

    Args:
        plans: the plans, whose rows are of the same examples in the same order.

    >>> left = RowPlan(np.array([0, 1]), np.array([4, 5]), np.array([0, 1, 2]))
    >>> right = RowPlan(np.array([0, 1]), np.array([6, 7, 8]), np.array([0, 2, 3]))
    >>> both = interleave([left, right])
    >>> both.example, both.positions, both.offsets
    (array([0, 0, 1, 1]), array([4, 6, 7, 5, 8]), array([0, 1, 3, 4, 5]))
    """
    if len(plans) == 1:
        return plans[0]
    # Positions of each row, by plan; then of all rows, one plan after the other for each row.
    by_plan = [np.split(plan.positions, plan.offsets[1:-1]) for plan in plans]
    by_row = [positions for row in zip(*by_plan, strict=True) for positions in row]
    example = np.repeat(plans[0].example, len(plans))
    offsets = np.concatenate([[0], np.cumsum([len(positions) for positions in by_row])])
    return RowPlan(example, np.concatenate(by_row), offsets, plans[0].skip_massive)


def position_rows(
    position: PositionRule, plan: RowPlan, dataset: Dataset, tokens: Tokens, tokenizer: Tokenizer
) -> PositionRows:
    """Return the words of the rows at a position, from which a lookup could predict the label.

    Args:
        position: the position.
        plan: the tokens that each row reads.
        dataset: the examples.
        tokens: tokens of each example.
        tokenizer: tokenizer of the model.
    """
    examples = dataset.examples
    reads_span = position.at in ("span", "word") and not position.offset
    # At the end of a text use the last word, because the last token is mostly a full stop.
    reads_text = position.at in ("last", "mean", *TURNS, *REPLY) and not position.offset
    words = None
    if any(one.span for one in examples):
        marked = [one.text[slice(*one.span)] if one.span else "" for one in examples]
        words = np.array(marked, dtype=str)[plan.example]
    # `offsets` of a plan delimit the tokens of each row in `positions`: the last token of each row.
    last = plan.positions[plan.offsets[1:] - 1]
    # For each row, the index of its example and the index of that token in the example.
    ends = list(zip(plan.example.tolist(), last.tolist(), strict=True))

    string_of = cache(lambda token: tokenizer.strings([token])[0])

    def token(example: int, index: int) -> str:
        """Return a token of an example; "" beyond an end of the text."""
        ids = tokens[example].ids
        return string_of(int(ids[index])) if 0 <= index < len(ids) else ""

    def word_or_token(example: int, index: int) -> str:
        """Return a token, or the last word up to it if rows read texts that have one."""
        end = int(tokens[example].offsets[index, 1]) if reads_text else 0
        return last_word(examples[example].text[:end]) or token(example, index)

    # A row that reads its span has the labelled word as its type; other types are words or tokens.
    types, neighbours = words, None
    if not reads_span or types is None:
        types = np.array([word_or_token(*end) for end in ends], dtype=str)
    if reads_span:
        around = [adjacent_words(one.text, one.span) for one in examples]
        neighbours = np.array(around, dtype=object)[plan.example]
    elif not reads_text:
        pairs = [(token(example, end - 1), token(example, end + 1)) for example, end in ends]
        neighbours = np.array(pairs, dtype=object)
    # Whether the first token of each row is not at position 0, whose norm is so large that it would
    # dominate the scaling.
    typical = plan.positions[plan.offsets[:-1]] > 0 if position.skip_first else None
    reply = None
    if position.at in REPLY or any(one.reply_ids for one in examples):
        read = [(examples[n].turns[-1].start, tokens[n].offsets[end, 1]) for n, end in ends]
        reply = np.array(read, dtype=np.int64)
    # The characters of the only token of a row.
    lone = np.array([tokens[n].offsets[end] for n, end in ends], dtype=np.int64)
    lone[np.diff(plan.offsets) > 1] = -1
    more = words, neighbours, typical, reply, lone
    return PositionRows(position.text, position.number, types, *more)


def adjacent_words(text: str, span: tuple[int, int] | None) -> tuple[str, str]:
    """Return the word, or punctuation mark, before a span and the one after it; "" for none.

    Without a span, there are none: the whole text counts as the span.

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
        is_punctuation = [unicodedata.category(character)[0] == "P" for character in word]
        inner = [index for index, is_mark in enumerate(is_punctuation) if not is_mark]
        if inner:
            return word[inner[0] : inner[-1] + 1]
    return None


def part_of(values: FloatArray, part: SiteSelection) -> FloatArray:
    """Return the features of a site, or of one of its heads or neurons, shape (n_rows, n_features).

    Args:
        values: activations of the site, shape (n_rows, ...).
        part: the site, with the head or neuron if any.

    >>> part_of(np.zeros((5, 3, 7)), SiteSelection("blocks.0.attn.hook_z", head=2)).shape
    (5, 7)
    """
    if part.index is not None:  # heads, or neurons, are the first axis after the rows
        values = values[:, part.index]
    return np.ascontiguousarray(values.reshape(len(values), -1), dtype=np.float32)


def normalized(values: FloatArray, eps: float, *, is_centred: bool = True) -> FloatArray:
    """Return values centred and scaled by sqrt(var + eps) over the last axis, in float32.

    This is a layer norm without its affine part; without centring, it is an RMS norm.

    Source: Ba, Kiros, Hinton 2016, "Layer Normalization"; Zhang and Sennrich 2019, "Root Mean
    Square Layer Normalization".

    >>> normalized(np.array([[1.0, 3.0]]), eps=0.0)
    array([[-1.,  1.]], dtype=float32)
    """
    wide = values.astype(np.float32, copy=False)
    centred = wide - wide.mean(axis=-1, keepdims=True) if is_centred else wide
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    return cast(FloatArray, centred / np.sqrt(variance + np.float32(eps)))
