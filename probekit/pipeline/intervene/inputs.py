"""Texts, positions, answers and rows of the interventions of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from probekit.amounts import counted
from probekit.data.examples import Example, Turns
from probekit.data.findings import Finding, rows_of
from probekit.data.positions import IntArray
from probekit.data.readers import read_dataset
from probekit.errors import ConfigError, DataError
from probekit.experiment.bundled import bundled_data
from probekit.experiment.schema import Experiment
from probekit.interventions.causes.cause_data import RowSplit
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.patching.pairs import lacks_space
from probekit.model.passes.inputs import TokenBatch
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.experiment.prepare import TextRows, text_encoder
from probekit.results.causes.record import LeftOut

_UNEQUAL = "the text and its counterfactual have different numbers of tokens"
_MISSING = "there is no counterfactual"
_OTHER_SETS = ("capitals", "previous_token", "sentiment")  # English, about different labels
_PER_SET = 33  # sentences
_EQUAL = "the text and its counterfactual have the same tokens"


@dataclass(frozen=True, eq=False)
class CauseInputs:
    """Everything that the interventions of an experiment read, before the model runs.

    All arrays have an entry for each kept row, in the order of the data.

    Attributes:
        experiment: the settings.
        tokenizer: tokenizer of the model.
        examples: the kept examples, training and test rows.
        rows: number of each kept row among the prepared rows, (n_rows,).
        at: probed token of each text, as a column of the batch, (n_rows,).
        splits: training and test rows of each fold, among the kept rows.
        left_out: rows that are left out, with the reason.
    """

    experiment: Experiment
    tokenizer: Tokenizer
    examples: tuple[Example, ...]
    rows: IntArray
    at: IntArray
    splits: tuple[RowSplit, ...]
    left_out: tuple[LeftOut, ...]

    @cached_property
    def batch(self) -> TokenBatch:
        """The texts, padded on the right."""
        return self._batch((example.text, example.turns) for example in self.examples)

    @cached_property
    def sources(self) -> TokenBatch | None:
        """The counterfactuals; None without them."""
        if self.experiment.data.pairs is None:
            return None
        return self._batch(
            (str(one.counterfactual), one.counterfactual_turns) for one in self.examples
        )

    @cached_property
    def others(self) -> TokenBatch:
        """Texts that are not about the label, whose loss is measured under steering."""
        texts = other_texts([example.text for example in self.examples])
        return self._batch((text, ()) for text in texts)

    def _batch(self, texts: Iterable[tuple[str, Turns]]) -> TokenBatch:
        return text_encoder(self.experiment, self.tokenizer).batch(texts, "right")

    @cached_property
    def groups(self) -> np.ndarray:
        """Group of each row, (n_rows,)."""
        return np.array([example.group for example in self.examples])

    @cached_property
    def test(self) -> IntArray:
        """The test rows of all folds, ascending."""
        return np.sort(np.concatenate([split.test for split in self.splits]))

    @cached_property
    def classes(self) -> tuple[str, str]:
        """The two labels, the one that directions point to last.

        Raises:
            DataError: there are not two labels.
        """
        labels = sorted({example.label for example in self.examples})
        if len(labels) != 2:
            raise DataError(
                f"erase, swap and steer edit the direction between two labels, but the data have "
                f"{counted(len(labels), 'label')}. Leave out these edits, or keep two labels."
            )
        positive = self.experiment.data.positive
        first, last = labels
        return (last, first) if positive == first else (first, last)

    @cached_property
    def codes(self) -> IntArray:
        """Label of each row: 1 for the label that directions point to, otherwise 0."""
        last = self.classes[1]
        return np.array([int(example.label == last) for example in self.examples])

    @cached_property
    def position(self) -> Tensor:
        """The probed token of each text, [n_rows]."""
        return torch.from_numpy(self.at)

    @cached_property
    def measures(self) -> tuple[AnswerMeasure, ...]:
        """The measures of all rows, in the order of the file."""
        first, found = self.experiment.measure[0], []
        for one in self.experiment.measure:
            names = one.answer or first.answer, one.wrong or first.wrong
            answer, wrong = (None if name is None else self._tokens(name) for name in names)
            assert answer is not None
            found.append(AnswerMeasure(answer, wrong, one.name))
        return tuple(found)

    def _tokens(self, name: str) -> Tensor:
        words = [_word(example, name) for example in self.examples]
        ids = {word: self.tokenizer.encode(word, bos=False).ids for word in set(words)}
        return torch.tensor([int(ids[word][0]) for word in words])

    def of_folds(self, folds: Sequence[int]) -> CauseInputs:
        """Return the same inputs with the training and test rows of some folds only."""
        return replace(self, splits=tuple(self.splits[fold] for fold in folds))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Warnings about rows that are left out, and about answers that lack a space."""
        left_out = tuple(
            Finding("warning", "interventions", f"Interventions leave out {one.reason}")
            for one in self.left_out
        )
        return (*left_out, *self._unspaced())

    def _unspaced(self) -> Iterator[Finding]:
        """Yield a warning for each answer that continues a word, where a new one may be meant."""
        names = () if self.experiment.tokens.chat else self.experiment.answer_columns
        for name in names:
            found = [
                e for e in self.examples if lacks_space(self.tokenizer, e.text, _word(e, name))
            ]
            if found:
                word = _word(found[0], name)
                message = (
                    f"{counted(len(found), 'row')} with an answer that has no leading space, such "
                    f"as {word!r} ({rows_of(found)}): {f' {word}'!r} is a single token, too, and "
                    "begins a new word. Write the space, unless the answer continues the last word "
                    "of the text."
                )
                yield Finding("warning", "unspaced-answers", message)


def cause_inputs(experiment: Experiment, prepared: TextRows) -> CauseInputs:
    """Return the inputs of the interventions of an experiment.

    Rows that cannot be compared are left out: texts with another number of tokens than their
    counterfactual, or with the same tokens, and answers that are not a single token.

    Raises:
        ConfigError: the probed position is not a single token.
        DataError: no training or no test row is left.
    """
    at = _positions(experiment, prepared)
    examples = [prepared.dataset.examples[row] for row in prepared.example]
    if len(set(prepared.example.tolist())) < len(examples):
        with experiment.at("tokens", "position"):
            raise ConfigError(_not_single(prepared))
    tokenizer = prepared.tokenizer
    faults = _faults(experiment, examples, tokenizer)
    used = np.unique(np.concatenate([np.r_[one.train, one.test] for one in prepared.splits]))
    left_out, bad = _left_out(examples, used, faults)
    rows = np.array([row for row in used.tolist() if row not in bad], dtype=np.int64)
    number = {int(row): index for index, row in enumerate(rows)}
    splits = tuple(
        RowSplit(*(np.array([number[row] for row in side.tolist() if row in number], dtype=np.int64)
                   for side in (split.train, split.test)))
        for split in prepared.splits
    )  # fmt: skip
    if any(not len(side) for split in splits for side in (split.train, split.test)):
        reasons = "; ".join(one.reason for one in left_out)
        raise DataError(f"The interventions have no training or no test rows left: {reasons}")
    kept = tuple(examples[row] for row in rows)
    return CauseInputs(experiment, tokenizer, kept, rows, at[rows], splits, left_out)


def _positions(experiment: Experiment, prepared: TextRows) -> IntArray:
    """Return the probed token of each row, (n_rows,)."""
    plan = prepared.plan
    if (np.diff(plan.offsets) != 1).any():
        with experiment.at("tokens", "position"):
            raise ConfigError(_not_single(prepared))
    return plan.positions[plan.offsets[:-1]][:: len(prepared.positions)]


def _not_single(prepared: TextRows) -> str:
    return (
        f"interventions edit one token of each text, but the probed position is "
        f"{prepared.positions[0].text}. Probe a single token, such as {{at: last}}."
    )


def _faults(
    experiment: Experiment, examples: Sequence[Example], tokenizer: Tokenizer
) -> list[Callable[[int], str]]:
    """Return functions of a row that return why it is left out; "" if it is not."""
    encoder = text_encoder(experiment, tokenizer)
    texts = {(e.text, e.turns) for e in examples}
    texts |= {(e.counterfactual, e.counterfactual_turns) for e in examples if e.counterfactual}
    ids = {said: encoder.encode(*said).ids for said in texts}
    words = {_word(e, name) for e in examples for name in experiment.answer_columns}
    n_tokens = {word: len(tokenizer.encode(word, bos=False).ids) for word in words}

    def pair(row: int) -> str:
        example = examples[row]
        if example.counterfactual is None:
            return ""
        if not example.counterfactual:
            return _MISSING
        own = ids[example.text, example.turns]
        other = ids[example.counterfactual, example.counterfactual_turns]
        if len(own) != len(other):
            return _UNEQUAL
        return _EQUAL if np.array_equal(own, other) else ""

    def answer(row: int) -> str:
        for name in experiment.answer_columns:
            word = _word(examples[row], name)
            if n_tokens[word] == 1:
                continue
            if name in dict(examples[row].values):
                return f"{name!r} is not a single token"
            return f"{name!r} is no column of the data, and as text it is not a single token"
        return ""

    def same(row: int) -> str:
        for one in experiment.measure:
            if one.answer and one.wrong:
                answer, wrong = (_word(examples[row], name) for name in (one.answer, one.wrong))
                if answer == wrong:
                    return "the answer and the wrong answer are equal"
        return ""

    return [pair, answer, same]


def _left_out(
    examples: Sequence[Example], used: IntArray, faults: Sequence[Callable[[int], str]]
) -> tuple[tuple[LeftOut, ...], set[int]]:
    """Return the reasons with their rows, and the numbers of the rows."""
    by_reason: dict[str, list[int]] = {}
    for row in used.tolist():
        reason = next((text for fault in faults if (text := fault(row))), "")
        if reason:
            by_reason.setdefault(reason, []).append(row)
    found = []
    for reason, rows in by_reason.items():
        shown = rows_of([examples[row] for row in rows])
        remedy = _REMEDIES.get(reason, "Most words need a leading space to be one token.")
        count = f"{len(rows):,} of {counted(len(used), 'row')}"
        found.append(LeftOut(n=len(rows), reason=f"{count}, where {reason} ({shown}). {remedy}"))
    return tuple(found), {row for rows in by_reason.values() for row in rows}


_REMEDIES = {
    _UNEQUAL: "Write counterfactuals of as many tokens, so that positions correspond.",
    _EQUAL: "A patch would change nothing.",
    _MISSING: "Fill the cells of the column in `data.pairs`.",
    "the answer and the wrong answer are equal": "Give different tokens.",
}


def _word(example: Example, name: str) -> str:
    """Return the cell of a column, or the name itself as a literal token."""
    return dict(example.values).get(name, name)


def other_texts(own: Collection[str]) -> list[str]:
    """Return sentences of three bundled sets, without those of sets that contain a text of `own`.

    >>> texts = other_texts([])
    >>> len(texts), texts[0]
    (99, 'The capital of Albania is Tirana.')
    >>> len(other_texts(["The plot was gripping."]))
    66
    """
    found = []
    for name in _OTHER_SETS:
        rows = read_dataset(bundled_data(name), format="csv").examples
        texts = list(dict.fromkeys(row.text for row in rows))
        if not set(texts) & set(own):
            found += texts[:: len(texts) // _PER_SET][:_PER_SET]
    return found
