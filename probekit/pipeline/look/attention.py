"""Attention patterns of single texts, for the report and for a page of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from probekit.analysis.head_scores import head_scores
from probekit.errors import ConfigError, DataError
from probekit.model.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.capture.devices import check_device
from probekit.report.attention.codes import MOST_MB
from probekit.report.attention.page import AttentionExplorer
from probekit.report.attention.patterns import AttentionPrompt
from probekit.watcher import SILENT, Watcher


def explore_attention(
    model: GPT2,
    tokenizer: Tokenizer,
    texts: str | Sequence[str],
    *,
    bos: bool,
    layer: int | None = None,
    head: int | None = None,
    name: str = "GPT-2",
    most_mb: float = MOST_MB,
) -> AttentionExplorer:
    """Return a page that lets one look at the attention of texts; a notebook shows it as it is.

    Args:
        model: whose attention is shown.
        tokenizer: of the model.
        texts: one text or several, between which the page can switch.
        bos: whether `<|endoftext|>` is put before each text.
        layer: only this one; None means all.
        head: only this one of each layer; None means all.
        name: what the page calls the model.
        most_mb: what the page may have; weights are kept as exactly as that allows.

    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> explorer = explore_attention(model, tokenizer, "The keys to the old cabinet", bos=False)
    >>> len(explorer.prompts[0].tokens)
    7

    Raises:
        ConfigError: the model has no such layer or head.
        DataError: there is no text, one is empty or longer than the context, or the page would be
            larger than allowed.
    """
    prompts = [
        attention_prompt(model, tokenizer, text, bos=bos, layer=layer, head=head)
        for text in ([texts] if isinstance(texts, str) else texts)
    ]
    return AttentionExplorer.of(prompts, name, most_mb=most_mb)


def write_attention_page(
    source: str,
    texts: Sequence[str],
    out: Path,
    *,
    bos: bool,
    layer: int | None = None,
    head: int | None = None,
    device: str = "cpu",
    most_mb: float = MOST_MB,
    watcher: Watcher = SILENT,
) -> Path:
    """Write the page of `explore_attention` for a model on disk or on the hub; return its path.

    Its estimated size is told before it is written.

    Raises:
        ConfigError: as `explore_attention`, or there is no such device.
        MissingError: there is no such model.
        DataError: as `explore_attention`.
        StoreError: the page cannot be written.
    """
    check_device(device)
    model = GPT2.from_pretrained(source, device=device)
    tokenizer = Tokenizer.from_pretrained(source)
    name = Path(source).resolve().name if Path(source).is_dir() else source
    explorer = explore_attention(
        model, tokenizer, texts, bos=bos, layer=layer, head=head, name=name, most_mb=most_mb
    )
    watcher.tell(explorer.estimate)
    return explorer.save(out)


def attention_prompt(
    model: GPT2,
    tokenizer: Tokenizer,
    text: str,
    *,
    bos: bool,
    layer: int | None = None,
    head: int | None = None,
) -> AttentionPrompt:
    """Return the patterns and scores of a text, of all layers and heads or of the chosen ones.

    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> attention_prompt(model, tokenizer, "The keys", bos=False, layer=2).patterns.shape
    (1, 4, 2, 2)

    Raises:
        ConfigError: the model has no such layer or head.
        DataError: the text is empty or longer than the context.
    """
    config = model.config
    layers = _chosen("layer", layer, config.n_layer)
    heads = _chosen("head", head, config.n_head)
    ids = torch.tensor(tokenizer.encode(text, bos=bos).ids)
    if not len(ids):
        raise DataError("The text is empty: there is no attention to draw.")
    with torch.inference_mode():
        _, cache = model.run_with_cache(
            ids.to(model.wte.weight.device)[None],
            sites=[("pattern", number) for number in layers],
            logits=False,
        )
    values = [cache["pattern", number][0, list(heads)].float().cpu() for number in layers]
    patterns = torch.stack(values)
    # Weights rounded to bfloat16 sum to 1 within some percent only.
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
    if not 0 <= number < size:
        raise ConfigError(f"The model has {name}s 0 to {size - 1}, no {name} {number}.")
    return (number,)
