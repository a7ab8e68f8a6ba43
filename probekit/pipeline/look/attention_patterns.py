"""Attention patterns of single texts."""

from __future__ import annotations

import numpy as np
import torch

from probekit.analysis.heads import head_scores
from probekit.errors import ConfigError, DataError
from probekit.model.network import Network
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.experiment.prepare import TextEncoder
from probekit.results.network import AttentionPrompt


def attention_prompt(
    model: Network,
    tokenizer: Tokenizer,
    text: str,
    *,
    bos: bool,
    chat: bool = False,
    layer: int | None = None,
    head: int | None = None,
) -> AttentionPrompt:
    """Return attention patterns and head scores of a text, for all or selected layers and heads.

    >>> from probekit import GPT2
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> attention_prompt(model, tokenizer, "The keys", bos=False, layer=2).patterns.shape
    (1, 4, 2, 2)

    Raises:
        ConfigError: the model has no such layer or head.
        DataError: the text is empty or longer than the context.
    """
    config = model.config
    layers = _chosen("layer", layer, config.n_layers)
    heads = _chosen("head", head, config.n_heads)
    ids = torch.tensor(TextEncoder(tokenizer, bos, chat).encode(text).ids)
    if not len(ids):
        raise DataError("The text is empty: there is no attention to show.")
    with torch.inference_mode():
        _, cache = model.run_with_cache(
            ids.to(model.device)[None],
            sites=[("pattern", number) for number in layers],
            logits=False,
        )
    values = [cache["pattern", number][0, list(heads)].float().cpu() for number in layers]
    patterns = torch.stack(values)
    # In bfloat16, rounded weights sum to 1 only within a few percent.
    patterns /= patterns.sum(-1, keepdim=True)
    return AttentionPrompt(
        text=text,
        tokens=tuple(tokenizer.strings(ids.numpy())),
        patterns=np.ascontiguousarray(patterns.numpy()),
        layers=layers,
        heads=heads,
        scores={name: score.numpy() for name, score in head_scores(patterns, ids).items()},
    )


def _chosen(name: str, number: int | None, size: int) -> tuple[int, ...]:
    if number is None:
        return tuple(range(size))
    if not isinstance(number, int) or not 0 <= number < size:
        raise ConfigError(f"The model has no {name} {number!r}. Allowed: 0 to {size - 1}.")
    return (number,)
