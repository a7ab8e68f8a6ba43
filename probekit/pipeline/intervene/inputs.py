"""Texts, positions, answers and rows of the interventions of an experiment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from probekit.amounts import counted
from probekit.data.examples import Example, Finding, Turn, Turns, rows_of
from probekit.data.positions import IntArray
from probekit.data.readers import read_dataset
from probekit.data.splits import Split
from probekit.errors import ConfigError, DataError
from probekit.experiment.locations import bundled_data
from probekit.experiment.schema import Experiment
from probekit.interventions.directions import TEXTS_AT_ONCE
from probekit.interventions.edits import BATCH_BYTES, BasePass
from probekit.interventions.measures import AnswerMeasure, lacks_space, single_tokens
from probekit.model.network import Network
from probekit.model.passes.inputs import TokenBatch
from probekit.model.sites.catalogue import layer_of
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.engines.network import NetworkEngine
from probekit.pipeline.setup.texts import text_encoder
from probekit.results.causes import LeftOut

# Reasons for leaving out a row, and what the user can do about each.
_UNEQUAL = "the text and its counterfactual have different numbers of tokens"
_EQUAL = "the text and its counterfactual have the same tokens"
_MISSING = "there is no counterfactual"
_SAME_ANSWER = "the answer and the wrong answer are equal"
_REMEDIES = {
    _UNEQUAL: "Write counterfactuals of as many tokens, so that positions correspond.",
    _EQUAL: "A patch would change nothing.",
    _MISSING: "Fill the cells of the column in `data.pairs`.",
    _SAME_ANSWER: "Give different tokens.",
}
_OTHER_SETS = ("capitals", "previous_token", "sentiment")  # English, about different labels
_PER_SET = 33  # sentences


@dataclass(frozen=True, eq=False)
class CauseInputs:
    """Everything that the interventions of an experiment read, before the model runs.

    Examples, position, texts, counterfactuals, groups and codes have an entry for each kept row, in
    the order of the data.

    Attributes:
        experiment: the settings.
        tokenizer: tokenizer of the model.
        examples: the kept examples, training and test rows.
        position: probed token of each text, as a column of the batch, [n_rows].
        splits: training and test rows of each fold, among the kept rows.
        left_out: rows that are left out, with the reason.
    """

    experiment: Experiment
    tokenizer: Tokenizer
    examples: tuple[Example, ...]
    position: Tensor
    splits: tuple[Split, ...]
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
            (str(one.counterfactual), turns_of_counterfactual(one)) for one in self.examples
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
        """The two labels, sorted, but `data.positive` last: directions point to the last one.

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
    def measures(self) -> tuple[AnswerMeasure, ...]:
        """The measures of all rows, in the order of the file."""
        first, measures = self.experiment.measure[0], []

        def tokens(name: str) -> Tensor:
            """Return the token of each row in a column, or that of a literal text."""
            words = [_word(example, name) for example in self.examples]
            return single_tokens(self.tokenizer, words)

        for measure in self.experiment.measure:
            # Without an answer, or without a wrong answer, it is that of the first measure.
            answer, wrong = measure.answer or first.answer, measure.wrong or first.wrong
            assert answer is not None
            wrong_tokens = None if wrong is None else tokens(wrong)
            measures.append(AnswerMeasure(tokens(answer), wrong_tokens, measure.name))
        return tuple(measures)

    def block_tokens(self, model: Network, site: str, n_passes: float, at: str) -> float:
        """Return how many tokens go through a block if all test texts are edited at a site.

        Texts and counterfactuals pass the whole network once; an edit is computed from its first
        block and position on.

        Args:
            model: the network.
            site: name of the site.
            n_passes: number of edits of each text.
            at: `probed`, `all` or `each`.
        """
        lengths, n_layers = self.batch.mask.sum(1).double(), model.axis_sizes["n_layers"]
        n_positions, n_blocks = float(lengths.mean()), n_layers - (layer_of(site) or 0)
        n_later = {"probed": float((lengths - self.position).mean()), "each": n_positions / 2}
        edited = n_passes * n_blocks * n_later.get(at, n_positions)
        return len(self.test) * (2 * n_layers * n_positions + edited)

    def of_folds(self, folds: Sequence[int]) -> CauseInputs:
        """Return the same inputs with the splits of some folds only; all examples are kept."""
        return replace(self, splits=tuple(self.splits[fold] for fold in folds))


def cause_inputs(source: NetworkEngine) -> CauseInputs:
    """Return the inputs of the interventions of an experiment.

    Rows in no split are dropped. Rows that cannot be compared are left out: texts without their
    counterfactual, with another number of tokens than it has, or with the same tokens; answers that
    are not a single token, or that equal the wrong answer.

    Raises:
        ConfigError: the probed position is not a single token.
        DataError: a fold has no training or no test row left.
    """
    experiment, texts, design = source.experiment, source.texts, source.design
    plan, encoder = texts.plan, source.reader.encoder
    tokenizer, examples = encoder.tokenizer, [design.dataset.examples[n] for n in design.example]
    # Each row must read one token, and each example must have one row.
    has_several = (np.diff(plan.offsets) != 1).any()
    if has_several or len(set(design.example.tolist())) < len(examples):
        with experiment.at("tokens", "position"):
            raise ConfigError(
                "interventions edit one token of each text, but the probed position is "
                f"{design.positions[0].text}. Probe a single token, such as "
                "{at: last}."
            )
    # Interventions exclude a sweep, and each row reads one token: row r reads `plan.positions[r]`.
    position = plan.positions
    used = np.unique(np.concatenate([np.r_[one.train, one.test] for one in design.splits]))

    @cache
    def ids(text: str, turns: Turns) -> IntArray:
        return encoder.encode(text, turns).ids

    @cache
    def n_tokens(word: str) -> int:
        return len(tokenizer.encode(word, bos=False).ids)

    def reason_of(example: Example) -> str:
        """Return why a row is left out; "" if it is not."""
        if example.counterfactual == "":
            return _MISSING
        if example.counterfactual is not None:  # it is None for all rows of data without pairs
            text_ids = ids(example.text, example.turns)
            other_ids = ids(example.counterfactual, turns_of_counterfactual(example))
            if len(text_ids) != len(other_ids):
                return _UNEQUAL
            if np.array_equal(text_ids, other_ids):
                return _EQUAL
        for name in experiment.answer_columns:
            if n_tokens(_word(example, name)) != 1:
                is_column = name in dict(example.values)
                verb = "is" if is_column else "is no column of the data, and as text it is"
                return f"{name!r} {verb} not a single token"
        for measure in experiment.measure:
            right, wrong = measure.answer, measure.wrong
            if right and wrong and _word(example, right) == _word(example, wrong):
                return _SAME_ANSWER
        return ""

    by_reason: dict[str, list[int]] = {}
    for row in used.tolist():
        by_reason.setdefault(reason_of(examples[row]), []).append(row)
    kept = np.array(by_reason.pop("", []), dtype=np.int64)  # rows without a reason
    left_out = []
    for reason, rows in by_reason.items():
        # The reason that is not listed is an answer of several tokens; it names the column.
        remedy = _REMEDIES.get(reason, "Most words need a leading space to be one token.")
        count = f"{len(rows):,} of {counted(len(used), 'row')}"
        where = rows_of([examples[row] for row in rows])
        left_out.append(LeftOut(n=len(rows), reason=f"{count}, where {reason} ({where}). {remedy}"))
    new_index = np.full(len(examples), -1)
    new_index[kept] = np.arange(len(kept))

    def among_kept(side: IntArray) -> IntArray:
        return new_index[side][new_index[side] >= 0]

    splits = tuple(Split(among_kept(one.train), among_kept(one.test)) for one in design.splits)
    if any(not len(split.train) or not len(split.test) for split in splits):
        reasons = "; ".join(one.reason for one in left_out)
        raise DataError(f"The interventions have no training or no test rows left: {reasons}")
    kept_examples = tuple(examples[row] for row in kept)
    kept_position = torch.from_numpy(position[kept])
    return CauseInputs(experiment, tokenizer, kept_examples, kept_position, splits, tuple(left_out))


def cause_findings(source: NetworkEngine) -> tuple[Finding, ...]:
    """Return warnings about rows and answers, with a finding on the cost.

    Raises:
        ConfigError: the probed position is not a single token.
        DataError: a fold has no training or no test row left.
    """
    experiment, inputs = source.experiment, cause_inputs(source)
    at_once = counted(min(TEXTS_AT_ONCE, len(inputs.batch)), "text")
    message = (
        f"Interventions: {len(inputs.test):,} test texts, "
        f"{cause_bytes(source, inputs) / 1e6:,.0f} MB for the activations of {at_once} at a time."
    )
    warnings = [f"Interventions leave out {one.reason}" for one in inputs.left_out]
    findings = [Finding("warning", "interventions", warning) for warning in warnings]
    # Warn of answers that continue a word, where a new word may be meant. In a chat, an answer
    # begins the turn and needs no space.
    tokenizer, examples = inputs.tokenizer, inputs.examples
    names = () if experiment.tokens.chat else experiment.answer_columns
    for name in names:
        unspaced = [one for one in examples if lacks_space(tokenizer, one.text, _word(one, name))]
        if unspaced:
            word = _word(unspaced[0], name)
            text = (
                f"{counted(len(unspaced), 'row')} with an answer that has no leading space, such "
                f"as {word!r} ({rows_of(unspaced)}): {f' {word}'!r} is a single token, too, and "
                "begins a new word. Write the space, unless the answer continues the last word of "
                "the text."
            )
            findings.append(Finding("warning", "unspaced-answers", text))
    return (*findings, Finding("info", "interventions", message))


def cause_bytes(source: NetworkEngine, inputs: CauseInputs) -> int:
    """Return the bytes of the activations of texts, counterfactuals and edits at a time."""
    n_texts, n_positions = inputs.batch.ids.shape
    sizes, at_once = source.texts.config.axis_sizes, min(TEXTS_AT_ONCE, n_texts)
    kept = BasePass.bytes_kept(sizes, at_once, n_positions, n_sites=1)
    # Measured: edits along many directions fill two batches.
    has_directions = any(step.has_direction for step in source.experiment.interventions)
    return (1 + has_directions) * BATCH_BYTES + 2 * kept


def _word(example: Example, name: str) -> str:
    """Return the cell of a column; if there is no such column, the name itself is the token."""
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
            # Evenly spaced; each set has at least `_PER_SET` texts.
            found += texts[:: len(texts) // _PER_SET][:_PER_SET]
    return found


def turns_of_counterfactual(example: Example) -> Turns:
    """Return the turns of the counterfactual, which differs in the first turn only."""
    shift = len(str(example.counterfactual)) - len(example.text)
    return tuple(  # the first turn begins at the same character
        Turn(start + shift if number else start, end + shift, *about)
        for number, (start, end, *about) in enumerate(example.turns)
    )
