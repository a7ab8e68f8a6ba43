"""Attention patterns of texts: pages for exploring them, and figures for papers."""

import re
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import torch

from probekit.analysis.heads import head_scores
from probekit.errors import ConfigError, DataError, check_has
from probekit.model.config import Bos, SpecialTokens
from probekit.model.network import Network
from probekit.model.sites.catalogue import layer_of
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.setup.texts import TextEncoder
from probekit.report.attention.page import MOST_MB, AttentionExplorer
from probekit.report.figures.figure_files import draw_heads
from probekit.results.network import AttentionPrompt


def attention_prompt(
    model: Network,
    tokenizer: Tokenizer,
    text: str,
    *,
    bos: Bos = "auto",
    chat: bool = False,
    special_tokens: SpecialTokens = "text",
    layer: int | None = None,
    head: int | None = None,
) -> AttentionPrompt:
    """Return attention patterns and head scores of a text, for all layers and heads or one of them.

    >>> from probekit import GPT2
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> attention_prompt(model, tokenizer, "The keys", bos=False, layer=2).patterns.shape
    (1, 4, 2, 2)

    Raises:
        ConfigError: the model has no such layer or head.
        DataError: the text has no token or is longer than the context.
    """
    advice = 'Load it: {}.from_pretrained("mini").'
    check_has("model", model, "run_with_cache", advice.format("GPT2"))
    check_has("tokenizer", tokenizer, "strings", advice.format("Tokenizer"))
    layers = _numbers("layer", layer, model.config.n_layers)
    if layer is None:  # of a network with attention in some layers, these
        having = model.sites.expand("blocks.*.attn.hook_pattern")
        layers = tuple(number for number in map(layer_of, having) if number is not None)
    heads = _numbers("head", head, model.config.n_heads)
    ids = torch.tensor(TextEncoder(tokenizer, bos, chat, special_tokens).encode(text).ids)
    if not len(ids):
        raise DataError("The text is empty: there is no attention to show.")
    with torch.inference_mode():
        sites = [("pattern", number) for number in layers]
        _, cache = model.run_with_cache(ids.to(model.device)[None], sites, logits=False)
    values = [cache["pattern", number][0, list(heads)].float().cpu() for number in layers]
    patterns, has_sinks = torch.stack(values), model.has_sinks
    # In bfloat16, rounded weights sum to 1 only within a few percent; attention sinks take a part.
    if not has_sinks:
        patterns /= patterns.sum(-1, keepdim=True)
    scores = {name: score.numpy() for name, score in head_scores(patterns, ids).items()}
    tokens = tuple(tokenizer.strings(ids.numpy()))
    weights = np.ascontiguousarray(patterns.numpy())
    return AttentionPrompt(text, tokens, weights, layers, heads, scores, has_sinks)


def _numbers(axis: str, number: int | None, size: int) -> tuple[int, ...]:
    """Return the number of a layer or head, or all numbers; raise ConfigError if there is none."""
    if number is not None and (not isinstance(number, int) or not 0 <= number < size):
        raise ConfigError(f"The model has no {axis} {number!r}. Allowed: 0 to {size - 1}.")
    return tuple(range(size)) if number is None else (number,)


def _named_heads(head: str | Sequence[str] | None, layer: int | None) -> list[tuple[int, int]]:
    """Return layer and head of each LAYER.HEAD; raise ConfigError if one has another form."""
    pairs = []
    for name in head if isinstance(head, list | tuple) else [] if head is None else [head]:
        match = re.fullmatch(r"(\d+)\.(\d+)", name) if isinstance(name, str) else None
        if match is None:
            raise ConfigError(f"head is {name!r}. Give layer and head as text, such as '5.2'.")
        pairs.append((int(match[1]), int(match[2])))
    if pairs and layer is not None:
        raise ConfigError("Give a layer or heads, not both: a head is named with its layer.")
    return pairs


def attention_figure(
    model: Network,
    tokenizer: Tokenizer,
    text: str,
    *,
    bos: Bos = "auto",
    layer: int | None = None,
    head: str | Sequence[str] | None = None,
) -> go.Figure:
    """Return the attention patterns of a text as a figure for a paper, in its printed size.

    It is one column (8.5 cm) wide, with text of 7 and 8 points. `write_image("head.pdf")` writes
    it.

    Args:
        model: the model.
        tokenizer: tokenizer of the model.
        text: the text.
        bos: whether to prepend the beginning-of-text token.
        layer: layer whose heads are all shown.
        head: head to show, as `"5.2"` for head 2 of layer 5, or several of them.

    >>> from probekit import GPT2
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> figure = attention_figure(model, tokenizer, "The keys", bos=False, head=["5.2", "4.1"])
    >>> [note.text for note in figure.layout.annotations]
    ['L5H2', 'L4H1', 'key token', 'query token']

    Raises:
        ConfigError: neither a layer nor a head is given, or the model does not have it.
        DataError: the text has no token, or more tokens than a figure or the context allows.
    """
    heads = _named_heads(head, layer)
    if not heads and layer is None:
        raise ConfigError("Give the heads of the figure, such as head='5.2', or a layer.")
    prompt = attention_prompt(model, tokenizer, text, bos=bos, layer=layer)
    for number, of_layer in heads:
        _numbers("layer", number, model.config.n_layers)
        _numbers("head", of_layer, model.config.n_heads)
    return draw_heads(prompt, heads or [(prompt.layers[0], number) for number in prompt.heads])


def explore_attention(
    model: Network,
    tokenizer: Tokenizer,
    texts: str | Sequence[str],
    *,
    bos: Bos = "auto",
    layer: int | None = None,
    head: str | Sequence[str] | None = None,
    name: str = "GPT-2",
    most_mb: float = MOST_MB,
) -> AttentionExplorer:
    """Return an interactive page of the attention patterns of texts; notebooks display it inline.

    Args:
        model: the model.
        tokenizer: tokenizer of the model.
        texts: one or several texts; the page can switch between them.
        bos: whether to prepend the beginning-of-text token to each text.
        layer: layer to show; None for all.
        head: the only head to show, as `"5.2"` for head 2 of layer 5; None for all.
        name: name of the model on the page.
        most_mb: maximum size of the page in MB; it limits the precision of the weights.

    >>> from probekit import GPT2
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> explorer = explore_attention(model, tokenizer, "The keys to the old cabinet", bos=False)
    >>> len(explorer.prompts[0].tokens)
    7

    Raises:
        ConfigError: the model has no such layer or head.
        DataError: there is no text, one has no token or is longer than the context, or the page
            would be larger than allowed.
    """
    check_has("texts", texts, "__iter__", "Give a string or a list of strings.")
    heads = _named_heads(head, layer)
    if len(heads) > 1:
        raise ConfigError("A page shows one head, one layer or all heads. Give a single head.")
    layer, number = heads[0] if heads else (layer, None)
    prompts = [
        attention_prompt(model, tokenizer, text, bos=bos, layer=layer, head=number)
        for text in ([texts] if isinstance(texts, str) else texts)
    ]
    return AttentionExplorer.of(prompts, name, most_mb=most_mb)
