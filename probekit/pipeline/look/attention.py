"""Pages with the attention patterns of texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from probekit.errors import check_has
from probekit.model.families.table import load_model
from probekit.model.network import Network
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.capture.devices import check_device
from probekit.pipeline.look.attention_patterns import attention_prompt
from probekit.report.attention.packing import MOST_MB
from probekit.report.attention.page import AttentionExplorer
from probekit.terminal import SILENT, Watcher


def explore_attention(
    model: Network,
    tokenizer: Tokenizer,
    texts: str | Sequence[str],
    *,
    bos: bool,
    layer: int | None = None,
    head: int | None = None,
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
        head: head to show of each layer; None for all.
        name: name of the model on the page.
        most_mb: maximum size of the page in MB; it limits the precision of the weights.

    >>> from probekit import GPT2
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> explorer = explore_attention(model, tokenizer, "The keys to the old cabinet", bos=False)
    >>> len(explorer.prompts[0].tokens)
    7

    Raises:
        ConfigError: the model has no such layer or head.
        DataError: there is no text, one is empty or longer than the context, or the page would be
            larger than allowed.
    """
    for argument, given in (("model", model), ("tokenizer", tokenizer)):
        kind = "GPT2" if argument == "model" else "Tokenizer"
        needed = "run_with_cache" if argument == "model" else "strings"
        check_has(argument, given, needed, f'Load it: {kind}.from_pretrained("mini").')
    check_has("texts", texts, "__iter__", "Give a string or a list of strings.")
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

    The watcher receives the estimated size before the page is written.

    Raises:
        ConfigError: as `explore_attention`, or the device is not available.
        MissingError: there is no such model.
        DataError: as `explore_attention`.
        StoreError: the page cannot be written.
    """
    check_device(device)
    model = load_model(source, device=device)
    tokenizer = Tokenizer.from_pretrained(source)
    name = Path(source).resolve().name if Path(source).is_dir() else source
    explorer = explore_attention(
        model, tokenizer, texts, bos=bos, layer=layer, head=head, name=name, most_mb=most_mb
    )
    watcher.tell(explorer.estimate)
    if explorer.opening:
        watcher.tell(explorer.opening)
    return explorer.save(out)
