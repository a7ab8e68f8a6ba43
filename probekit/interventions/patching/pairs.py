"""Checks of pairs of texts and of their answers, reported with their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probekit.amounts import counted
from probekit.errors import DataError
from probekit.model.passes.inputs import TokenBatch
from probekit.model.text.tokenizer import Tokenizer

_MOST_SHOWN = 5


@dataclass(frozen=True)
class PairProblem:
    """A pair that cannot be patched.

    Attributes:
        row: number of the pair.
        reason: what is wrong with it, and the remedy.
    """

    row: int
    reason: str


def pair_problems(clean: TokenBatch, corrupt: TokenBatch) -> list[PairProblem]:
    """Return the pairs with unequal numbers of tokens, and those of two equal texts.

    >>> from probekit import Tokenizer
    >>> tokenizer = Tokenizer.from_pretrained("mini")
    >>> clean = tokenizer.batch(["The key", "The key"], bos=False, side="left")
    >>> corrupt = tokenizer.batch(["The keys", "The old key"], bos=False, side="left")
    >>> for problem in pair_problems(clean, corrupt):
    ...     print(problem.row, problem.reason)
    1 has 2 tokens, but its counterfactual has 3, so positions do not correspond. Use a
    counterfactual with as many tokens.
    """
    problems = []
    for row in range(len(clean)):
        own, other = clean.ids[row][clean.mask[row]], corrupt.ids[row][corrupt.mask[row]]
        if len(own) != len(other):
            problems.append(
                PairProblem(
                    row,
                    f"has {counted(len(own), 'token')}, but its counterfactual has {len(other)}, "
                    "so positions do not correspond. Use a counterfactual with as many tokens.",
                )
            )
        elif torch.equal(own, other):
            problems.append(
                PairProblem(
                    row,
                    "has the same tokens as its counterfactual, so patching changes nothing. "
                    "Leave out the pair, or change the counterfactual.",
                )
            )
    return problems


def check_pairs(clean: TokenBatch, corrupt: TokenBatch) -> None:
    """Validate pairs of texts.

    Raises:
        DataError: the batches have different numbers of rows, or some pairs cannot be patched; see
            `pair_problems`.
    """
    if len(clean) != len(corrupt):
        raise DataError(
            f"There are {counted(len(clean), 'text')} and {len(corrupt)} counterfactuals. Give one "
            "counterfactual for each text."
        )
    problems = pair_problems(clean, corrupt)
    if problems:
        shown = "; ".join(f"row {one.row} {one.reason}" for one in problems[:_MOST_SHOWN])
        more = len(problems) - _MOST_SHOWN
        raise DataError(
            f"{counted(len(problems), 'pair')} of {len(clean)} cannot be patched: {shown}"
            + (f" ({more} more)" if more > 0 else "")
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
    wrong = [row for row, word in enumerate(words) if len(encoded[word]) != 1]
    if wrong:
        shown = "; ".join(_several(row, words[row], tokenizer) for row in wrong[:_MOST_SHOWN])
        more = len(wrong) - _MOST_SHOWN
        raise DataError(
            f"{counted(len(wrong), 'answer')} of {len(words)} not a single token: {shown}"
            + (f" ({more} more)" if more > 0 else "")
            + ". Use words of one token; most words need a leading space."
        )
    return torch.tensor([int(encoded[word][0]) for word in words])


def lacks_space(tokenizer: Tokenizer, text: str, answer: str) -> bool:
    """Return whether an answer probably continues a word of a text, although a new one was meant.

    >>> from probekit import Tokenizer
    >>> tokenizer = Tokenizer.from_pretrained("mini")
    >>> lacks_space(tokenizer, "The key", "is"), lacks_space(tokenizer, "The key", " is")
    (True, False)
    """
    if not answer[:1].isalpha() or text[-1:].isspace():
        return False
    return len(tokenizer.encode(f" {answer}", bos=False).ids) == 1


def _several(row: int, word: str, tokenizer: Tokenizer) -> str:
    pieces = tokenizer.strings(tokenizer.encode(word, bos=False).ids)
    return f"row {row}, {word!r} is {pieces}"
