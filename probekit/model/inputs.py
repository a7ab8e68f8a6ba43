"""What a GPT-2 can read and be asked to predict; anything else is refused before it is computed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from probekit.errors import DataError
from probekit.model.config import GPT2Config

NOT_COUNTED = -100  # a target that adds nothing to the loss


def check_tokens(config: GPT2Config, tokens: Tensor, mask: Tensor | None = None) -> None:
    """Refuse what a model of this config cannot read.

    Raises:
        DataError: the tokens are not ids of shape [batch pos] inside the vocabulary, or the mask
            has another shape or an empty row.

    >>> check_tokens(GPT2Config(vocab_size=97), torch.tensor([[96, 97]]))
    Traceback (most recent call last):
    probekit.errors.DataError: Token ids run from 96 to 97; the vocabulary has ids 0 to 96.
    """
    if not isinstance(tokens, Tensor):
        raise DataError(f"tokens must be a tensor of ids, not {type(tokens).__name__}.")
    is_integer = tokens.dtype in (torch.int64, torch.int32)
    if tokens.ndim != 2 or tokens.shape[1] == 0 or not is_integer:
        raise DataError(
            "tokens must be integer ids of shape [batch pos], pos at least 1, not "
            f"{tuple(tokens.shape)} of {tokens.dtype}."
        )
    if mask is not None:
        _check_mask(tokens, mask)
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < config.vocab_size:
        raise DataError(
            f"Token ids run from {int(tokens.min())} to {int(tokens.max())}; the vocabulary has "
            f"ids 0 to {config.vocab_size - 1}."
        )


def _check_mask(tokens: Tensor, mask: Tensor) -> None:
    if not isinstance(mask, Tensor):
        raise DataError(f"mask must be a tensor, not {type(mask).__name__}.")
    if mask.shape != tokens.shape:
        raise DataError(f"mask has shape {tuple(mask.shape)}, tokens have {tuple(tokens.shape)}.")
    if bool(((mask != 0) & (mask != 1)).any()):
        raise DataError("A mask holds True at tokens and False at padding, nothing else.")
    empty = (~mask.to(torch.bool)).all(-1)
    if bool(empty.any()):
        raise DataError(f"Row {int(empty.int().argmax())} of the mask has no token at all.")


def check_context(config: GPT2Config, positions: Tensor) -> None:
    """Refuse positions, shape [batch pos], that the model has no embedding for.

    Raises:
        DataError: there are more tokens than the context.
    """
    if positions.numel() and int(positions.max()) >= config.n_positions:
        raise DataError(
            f"{int(positions.max()) + 1} tokens are more than the context of {config.n_positions}."
        )


def following(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Return the token after each position, shape [batch pos]; -100 where one of the two is none.

    >>> following(torch.tensor([[5, 6, 7]]), None).tolist()
    [[6, 7, -100]]
    """
    after = F.pad(tokens[:, 1:], (0, 1), value=NOT_COUNTED)
    if mask is None:
        return after
    real = mask.to(device=tokens.device, dtype=torch.bool)
    return after.masked_fill(~(real & F.pad(real[:, 1:], (0, 1))), NOT_COUNTED)


def check_targets(config: GPT2Config, tokens: Tensor, targets: Tensor) -> None:
    """Refuse targets that no loss can be counted on.

    Raises:
        DataError: the targets have another shape than the tokens, lie outside the vocabulary, or
            none of them is counted.
    """
    if targets.shape != tokens.shape or targets.dtype != torch.int64:
        raise DataError(
            f"targets must be ids of int64 and shape {tuple(tokens.shape)}, as the tokens, not "
            f"{targets.dtype} of shape {tuple(targets.shape)}."
        )
    counted = targets[targets != NOT_COUNTED]
    if not len(counted):
        raise DataError("No target is counted: there is nothing to predict.")
    if not 0 <= int(counted.min()) <= int(counted.max()) < config.vocab_size:
        raise DataError(
            f"Targets run from {int(counted.min())} to {int(counted.max())}; the vocabulary "
            f"has ids 0 to {config.vocab_size - 1}."
        )
