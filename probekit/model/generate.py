"""Continuing a text, token by token."""

from __future__ import annotations

import torch
from torch import Tensor

from probekit.errors import ConfigError, DataError
from probekit.model.gpt2 import GPT2
from probekit.model.inputs import check_tokens


@torch.no_grad()
def generate(
    model: GPT2,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    mask: Tensor | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
) -> Tensor:
    """Return the new token ids, shape [batch max_new_tokens].

    Args:
        model: a GPT-2.
        tokens: the prompts, shape [batch pos].
        max_new_tokens: how many tokens to add to each.
        mask: True at tokens, False at padding (on either side), shape [batch pos].
        temperature: 0 takes the most probable token; higher draws more evenly.
        top_k: draw among the k most probable tokens only.
        seed: of the draws; the same seed gives the same tokens on one machine.

    >>> model = GPT2.from_pretrained("mini")
    >>> generate(model, torch.tensor([[10, 20]]), 3).shape
    torch.Size([1, 3])

    Raises:
        ConfigError: a negative temperature, or top_k or max_new_tokens below 1.
        DataError: the prompts are nothing that the model can read, or exceed the context together
            with the continuation.
    """
    check_tokens(model.config, tokens, mask)
    _check(model, tokens, max_new_tokens, temperature, top_k)
    generator = torch.Generator(device=tokens.device).manual_seed(seed)
    mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()
    # New tokens are appended on the right, so the padding must stand on the left.
    order = mask.to(torch.int8).argsort(dim=-1, stable=True)
    tokens, mask = tokens.gather(1, order), mask.gather(1, order)
    for _ in range(max_new_tokens):
        logits = model(tokens, mask)[:, -1]  # [batch d_vocab]
        chosen = _choose(logits.float(), temperature, top_k, generator)
        tokens = torch.cat([tokens, chosen], dim=1)
        mask = torch.cat([mask, torch.ones_like(chosen, dtype=torch.bool)], dim=1)
    return tokens[:, -max_new_tokens:]


def _choose(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator
) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return (logits / temperature).softmax(-1).multinomial(1, generator=generator)


def _check(
    model: GPT2, tokens: Tensor, max_new_tokens: int, temperature: float, top_k: int | None
) -> None:
    if not temperature >= 0:
        raise ConfigError(f"temperature must be 0 or more, not {temperature}.")
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens must be at least 1, not {max_new_tokens}.")
    if top_k is not None and top_k < 1:
        raise ConfigError(f"top_k must be at least 1, not {top_k}.")
    total = tokens.shape[1] + max_new_tokens - 1
    if total > model.config.n_positions:
        raise DataError(
            f"{tokens.shape[1]} prompt tokens and {max_new_tokens} new ones do not fit the "
            f"context of {model.config.n_positions}."
        )
