"""Batches of token ids and targets, and their validation."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from probekit.errors import ConfigError, DataError, nearest
from probekit.model.config import ModelConfig

PaddingSide = Literal["left", "right"]
NO_TOKEN = -1  # id at padding, and after the end of a generated text
NOT_COUNTED = -100  # target that is excluded from the loss


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """Token ids of several texts, padded to one length, with their mask.

    A model and `generate` take a batch in place of ids and mask. `batch[rows]` selects texts.

    Attributes:
        ids: token ids, -1 at padding, shape [batch pos].
        mask: True at tokens, False at padding, shape [batch pos].
        offsets: first character and one past the last of each token, (0, 0) at padding, shape
            [batch pos 2].
    """

    ids: Tensor
    mask: Tensor
    offsets: Tensor

    def __getitem__(self, rows: slice | Tensor | list[int]) -> TokenBatch:
        """Return the batch of some of the texts, with the same padding."""
        return TokenBatch(self.ids[rows], self.mask[rows], self.offsets[rows])

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.ids)

    def to(self, device: torch.device | str) -> TokenBatch:
        """Return the batch on a device."""
        return TokenBatch(self.ids.to(device), self.mask.to(device), self.offsets.to(device))


def prepare_tokens(
    config: ModelConfig, tokens: Tensor | TokenBatch, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return validated token ids, 0 at padding, and their mask, shape [batch pos] each.

    The mask is None if none is given.

    >>> batch = TokenBatch(torch.tensor([[-1, 5]]), torch.tensor([[False, True]]), torch.empty(0))
    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> prepare_tokens(GPT2Config(), batch, None)
    (tensor([[0, 5]]), tensor([[False, True]]))

    Raises:
        DataError: the tokens or the mask are invalid, see `check_tokens`, or there are two masks.
    """
    if isinstance(tokens, TokenBatch):
        if mask is not None:
            raise DataError("A TokenBatch contains its mask. Leave out `mask`.")
        return prepare_tokens(config, tokens.ids, tokens.mask)
    check_tokens(config, tokens, mask)
    return _without_padding(tokens, mask), mask


def check_tokens(config: ModelConfig, tokens: Tensor, mask: Tensor | None = None) -> None:
    """Validate token ids and mask; ids at padding positions may have any value.

    Raises:
        DataError: the tokens are not ids of shape [batch pos] in the vocabulary; the mask is not a
            tensor of True and False of the same shape, or a row of it is empty; or there is padding
            without a mask or where the mask is True.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> check_tokens(GPT2Config(vocab_size=97), torch.tensor([[96, 97]]))
    Traceback (most recent call last):
    probekit.errors.DataError: Token ids run from 96 to 97; the vocabulary has ids 0 to 96.
    """
    if not isinstance(tokens, Tensor):
        raise DataError(
            f"tokens must be a tensor of ids, not {type(tokens).__name__}. For texts, pass "
            "`tokenizer.batch(texts, bos=False)`."
        )
    is_integer = tokens.dtype in (torch.int64, torch.int32)
    if tokens.ndim != 2 or tokens.shape[1] == 0 or not is_integer:
        raise DataError(
            "tokens must be integer ids of shape [batch pos], pos at least 1, not "
            f"{tuple(tokens.shape)} of {tokens.dtype}."
        )
    if mask is not None:
        if not isinstance(mask, Tensor):
            raise DataError(f"mask must be a tensor, not {type(mask).__name__}.")
        if mask.shape != tokens.shape:
            raise DataError(
                f"mask has shape {tuple(mask.shape)}, tokens have shape {tuple(tokens.shape)}."
            )
        if bool(((mask != 0) & (mask != 1)).any()):
            raise DataError("mask has other values than True (token) and False (padding).")
        empty = (~mask.to(torch.bool)).all(-1)
        if bool(empty.any()):
            raise DataError(f"Row {int(empty.int().argmax())} of the mask has no token.")
    plain = _without_padding(tokens, mask)
    if plain.numel() and not 0 <= int(plain.min()) <= int(plain.max()) < config.d_vocab:
        padding = (plain == NO_TOKEN).nonzero()
        if not len(padding):
            raise DataError(
                f"Token ids run from {int(plain.min())} to {int(plain.max())}; the vocabulary has "
                f"ids 0 to {config.d_vocab - 1}."
            )
        row, position = padding[0].tolist()
        where = f"Row {row} has padding (id {NO_TOKEN}) at position {position}"
        if mask is None:
            raise DataError(
                f"{where}, and no mask was given. Pass the TokenBatch itself, or `mask=batch.mask` "
                "together with its ids."
            )
        raise DataError(f"{where}, where the mask is True. Set the mask to False at padding.")


def _without_padding(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Return the ids with 0 at padding."""
    if mask is None:
        return tokens
    return tokens.masked_fill(~mask.to(device=tokens.device, dtype=torch.bool), 0)


def warn_of_padding(config: ModelConfig, tokens: Tensor) -> None:
    """Warn if ids without a mask look padded on the left with the end-of-text token.

    Some tokenizers pad GPT-2's texts in this way. One `<|endoftext|>` at the beginning of every row
    is a beginning-of-text token; several of them, or only some rows with one, are likely padding.
    For a config with no end-of-text id, or with several, there is no warning.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> warn_of_padding(GPT2Config(eos_token_id=50256), torch.tensor([[50256, 5], [50256, 6]]))
    """
    end = config.eos_token_id
    if not isinstance(end, int) or tokens.shape[1] < 2 or not bool((tokens[:, 0] == end).any()):
        return
    n_leading = (tokens == end).cumprod(-1).sum(-1)  # `end` before any other token, [batch]
    # A row that has nothing but <|endoftext|> may be either.
    counts = set(n_leading[n_leading < tokens.shape[1]].tolist())
    most = max(counts, default=0)
    if most > 1 or counts == {0, 1}:
        warnings.warn(
            f"A row begins with {most} times id {end} (end of text) and no mask was "
            "given, so these are read as tokens. If they are padding, pass the mask: without it, "
            "left padding changes every activation. If they are tokens, pass "
            "mask=torch.ones_like(tokens).",
            stacklevel=6,  # the line that calls the network, behind `forward` and torch's calls
        )


def check_context(config: ModelConfig, positions: Tensor) -> None:
    """Raise DataError if any of the positions, shape [batch pos], is outside the context.

    Raises:
        DataError: there are more tokens than the context.
    """
    if positions.numel() and int(positions.max()) >= config.n_ctx:
        raise DataError(
            f"{int(positions.max()) + 1} tokens are more than the context of {config.n_ctx}. "
            "Shorten or split the text."
        )


def next_tokens(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Return the token that follows each position, shape [batch pos].

    It is -100 at the last position, at padding and before padding.

    >>> next_tokens(torch.tensor([[5, 6, 7]]), None).tolist()
    [[6, 7, -100]]
    """
    after = F.pad(tokens[:, 1:], (0, 1), value=NOT_COUNTED)
    if mask is None:
        return after
    real = mask.to(device=tokens.device, dtype=torch.bool)
    return after.masked_fill(~(real & F.pad(real[:, 1:], (0, 1))), NOT_COUNTED)


def check_targets(config: ModelConfig, tokens: Tensor, targets: Tensor) -> None:
    """Validate the targets of a loss.

    Raises:
        DataError: the targets are not int64, differ in shape from the tokens, lie outside the
            vocabulary, or are all excluded.
    """
    if targets.shape != tokens.shape or targets.dtype != torch.int64:
        raise DataError(
            f"targets must be int64 ids of shape {tuple(tokens.shape)}, like the tokens, not "
            f"{targets.dtype} of shape {tuple(targets.shape)}."
        )
    counted = targets[targets != NOT_COUNTED]
    if not len(counted):
        raise DataError(f"All targets are {NOT_COUNTED}, so there is nothing to predict.")
    if not 0 <= int(counted.min()) <= int(counted.max()) < config.d_vocab:
        raise DataError(
            f"Targets run from {int(counted.min())} to {int(counted.max())}; the vocabulary "
            f"has ids 0 to {config.d_vocab - 1}."
        )


def pad(sequences: Sequence[npt.NDArray[np.int64]], side: PaddingSide) -> tuple[Tensor, Tensor]:
    """Return padded token ids, -1 at padding, and their mask, shape [batch pos] each.

    There is at least one sequence. The padding id is not a token, so that a forgotten mask raises
    an error.

    >>> ids, mask = pad([np.array([5, 6, 7]), np.array([8])], "left")
    >>> ids.tolist()
    [[5, 6, 7], [-1, -1, 8]]

    Raises:
        ConfigError: the side is neither `left` nor `right`.
    """
    allowed = get_args(PaddingSide)
    if side not in allowed:
        raise ConfigError(f"Unknown padding side {side!r}. {nearest(str(side), allowed)}")
    width = max(len(sequence) for sequence in sequences)
    ids = torch.full((len(sequences), width), NO_TOKEN)
    mask = torch.zeros(len(sequences), width, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        start = width - len(sequence) if side == "left" else 0
        ids[row, start : start + len(sequence)] = torch.from_numpy(sequence)
        mask[row, start : start + len(sequence)] = True
    return ids, mask
