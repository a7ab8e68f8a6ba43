"""Measures of a prediction, scored for each text at one position, and the tokens of its answers.

    logit_difference    logit of the answer minus logit of the wrong answer
    accuracy            1 if the answer has the higher logit (than the wrong answer or, without one,
                        than every other token)
    probability         probability of the answer, minus that of the wrong answer if there is one
    loss                cross-entropy of the answer, in nats
    kl                  Kullback-Leibler divergence from the prediction without edits, in nats

The answer is that of the base text, whatever is patched in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probekit.amounts import counted
from probekit.errors import ConfigError, DataError, nearest
from probekit.interventions.names import MEASURES, UNITS, MeasureName
from probekit.model.network import Network
from probekit.model.passes.inputs import TokenBatch
from probekit.model.text.tokenizer import Tokenizer

# These change their sign if answer and wrong answer change places.
_SIGNED = ("logit_difference", "probability")
_BATCH_BYTES = 64 << 20  # logits of one batch


@dataclass(frozen=True, eq=False)
class AnswerMeasure:
    """A measure of the predictions of some texts.

    Attributes:
        answer: id of the right token of each text, shape [batch].
        wrong: id of the wrong token of each text, shape [batch]; None without one.
        name: one of `MEASURES`.

    Raises:
        ConfigError: no measure has this name, or a logit difference has no wrong tokens.
        DataError: the tokens are not tensors of integers, their shapes differ, or answer and wrong
            token of a text are equal.

    >>> measure = AnswerMeasure(torch.tensor([8, 9]), torch.tensor([9, 8]))
    >>> measure.name, measure.unit
    ('logit_difference', 'logits')
    """

    answer: Tensor
    wrong: Tensor | None = None
    name: MeasureName = "logit_difference"

    def __post_init__(self) -> None:
        if self.name not in MEASURES:
            raise ConfigError(
                f"No measure has the name {self.name!r}. {nearest(str(self.name), MEASURES)}"
            )
        given = {"answer": self.answer} | ({} if self.wrong is None else {"wrong": self.wrong})
        for name, ids in given.items():
            is_list = isinstance(ids, Tensor) and ids.ndim == 1
            if not is_list or ids.is_floating_point() or ids.dtype == torch.bool:
                raise DataError(
                    f"{name} is {ids!r:.60}. Give the id of a token for each text, as a tensor of "
                    "integers of shape [batch]."
                )
        if self.wrong is None:
            if self.name == "logit_difference":
                raise ConfigError(
                    "A logit difference requires a wrong token for each text. Give `wrong`, or use "
                    f"another measure: {', '.join(MEASURES[1:])}."
                )
            return
        if self.answer.shape != self.wrong.shape:
            raise DataError(
                f"There are {len(self.answer)} answers and {len(self.wrong)} wrong tokens. Give "
                "one of each for every text."
            )
        same = (self.answer == self.wrong).nonzero()
        if len(same):
            raise DataError(
                f"Row {int(same[0])}: the answer and the wrong token are the same token "
                f"({int(self.answer[same[0]])}). Give different tokens."
            )

    @property
    def unit(self) -> str:
        """Unit of the measure, for axes and captions."""
        return UNITS[self.name]

    @property
    def is_signed(self) -> bool:
        """Whether the measure changes its sign if answer and wrong token change places."""
        return self.name in _SIGNED and self.wrong is not None

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.answer)

    def __getitem__(self, rows: Tensor | slice) -> AnswerMeasure:
        """Return the measure of some texts."""
        wrong = None if self.wrong is None else self.wrong[rows]
        return AnswerMeasure(self.answer[rows], wrong, self.name)

    def score(self, model: Network, final: Tensor, rows: Tensor, base: Tensor) -> Tensor:
        """Return the measure of predictions, shape [n], in float64.

        Args:
            model: the network.
            final: residual stream after the last block at the measured positions, [n d_model].
            rows: text of each prediction, shape [n].
            base: the same residual stream without edits, of all texts, shape [batch d_model].
        """
        size = max(1, _BATCH_BYTES // (4 * model.axis_sizes["d_vocab"]))
        if self.name == "logit_difference":
            size = max(1, len(rows))  # it needs two logits only
        parts = zip(torch.split(final, size), torch.split(rows, size), strict=True)
        return torch.cat([self._of_part(model, *part, base) for part in parts]).double()

    def _of_part(self, model: Network, final: Tensor, rows: Tensor, base: Tensor) -> Tensor:
        """Return the measure of some predictions, shape [n]; see `score`."""
        normed = _wide(model.final_norm(final))
        answer = self.answer.to(rows.device)[rows]
        wrong = None if self.wrong is None else self.wrong.to(rows.device)[rows]
        if self.name == "logit_difference":
            assert wrong is not None
            right_logit, wrong_logit = (
                (normed * _wide(model.unembedding[ids])).sum(-1) for ids in (answer, wrong)
            )
            if (bias := model.unembedding_bias) is not None:
                right_logit, wrong_logit = right_logit + bias[answer], wrong_logit + bias[wrong]
            return model.capped(right_logit) - model.capped(wrong_logit)
        unembedding = _wide(model.unembedding).T
        logits = _logits(model, normed, unembedding)
        if self.name == "accuracy":
            if wrong is None:
                return (logits.argmax(-1) == answer).to(logits)
            return (_at(logits, answer) > _at(logits, wrong)).to(logits)
        logs = logits.log_softmax(-1)
        if self.name == "kl":
            unchanged = _logits(model, _wide(model.final_norm(base[rows])), unembedding)
            before = unchanged.log_softmax(-1)
            return (before.exp() * (before - logs)).sum(-1)
        log_probability = _at(logs, answer)
        if self.name == "loss":
            return -log_probability
        probability = log_probability.exp()
        return probability if wrong is None else probability - _at(logs, wrong).exp()


def _logits(model: Network, normed: Tensor, unembedding: Tensor) -> Tensor:
    """Return the logits [n d_vocab] of what the final norm returns, given the unembedding."""
    logits, bias = normed @ unembedding, model.unembedding_bias
    return model.capped(logits if bias is None else logits + bias)


def _wide(values: Tensor) -> Tensor:
    """Return values in float32 or, if they are float64, unchanged."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _at(values: Tensor, ids: Tensor) -> Tensor:
    """Return one value of each row: [n d_vocab] becomes [n]."""
    return values.gather(1, ids[:, None])[:, 0]


_MOST_SHOWN = 5


def check_pairs(clean: TokenBatch, corrupt: TokenBatch) -> None:
    """Validate pairs of texts.

    Raises:
        DataError: the batches have different numbers of rows, the texts of a pair have unequal
            numbers of tokens or the same tokens, or the batches are padded on different sides.
    """
    if len(clean) != len(corrupt):
        raise DataError(
            f"There are {counted(len(clean), 'text')} and {len(corrupt)} counterfactuals. Give one "
            "counterfactual for each text."
        )
    problems = []
    for row in range(len(clean)):
        ids, other = (batch.ids[row][batch.mask[row]] for batch in (clean, corrupt))
        if len(ids) != len(other):
            problems.append(
                f"row {row} has {counted(len(ids), 'token')}, but its counterfactual has "
                f"{len(other)}, so positions do not correspond. Use a counterfactual with as many "
                "tokens."
            )
        elif torch.equal(ids, other):
            problems.append(
                f"row {row} has the same tokens as its counterfactual, so patching changes "
                "nothing. Leave out the pair, or change the counterfactual."
            )
    if problems:
        raise DataError(
            f"{counted(len(problems), 'pair')} of {len(clean)} cannot be patched: "
            + _first_few(problems)
        )
    if not torch.equal(clean.mask, corrupt.mask):
        raise DataError(
            "The texts and their counterfactuals are padded differently. Pad both on the same side."
        )


def single_tokens(tokenizer: Tokenizer, words: Sequence[str]) -> Tensor:
    """Return the token id of each word, shape [n_words].

    Raises:
        DataError: a word is not a single token.

    >>> from probekit import Tokenizer
    >>> single_tokens(Tokenizer.from_pretrained("mini"), [" is", " are"]).shape
    torch.Size([2])
    """
    encoded = {word: tokenizer.encode(word, bos=False).ids for word in dict.fromkeys(words)}
    wrong = [
        f"row {row}, {word!r} is {tokenizer.strings(encoded[word])}"
        for row, word in enumerate(words)
        if len(encoded[word]) != 1
    ]
    if wrong:
        verb = "is" if len(wrong) == 1 else "are"
        raise DataError(
            f"{counted(len(wrong), 'answer')} of {len(words)} {verb} not a single token: "
            f"{_first_few(wrong)}. Use words of one token; most words need a leading space."
        )
    return torch.tensor([int(encoded[word][0]) for word in words])


def _first_few(problems: Sequence[str]) -> str:
    """Return the first problems as one text, with the number of the others."""
    more = len(problems) - _MOST_SHOWN
    return "; ".join(problems[:_MOST_SHOWN]) + (f" ({more} more)" if more > 0 else "")


def lacks_space(tokenizer: Tokenizer, text: str, answer: str) -> bool:
    """Return whether an answer probably continues a word of a text, although a new one was meant.

    >>> from probekit import Tokenizer
    >>> tokenizer = Tokenizer.from_pretrained("mini")
    >>> lacks_space(tokenizer, "The key", "is"), lacks_space(tokenizer, "The key", " is")
    (True, False)
    """
    if not answer[:1].isalpha() or text[-1:].isspace():
        return False
    # A new word was probably meant if it is one token with a leading space.
    return len(tokenizer.encode(f" {answer}", bos=False).ids) == 1
