"""Head scores on texts or on repeated random tokens."""

from __future__ import annotations

from collections.abc import Sequence

from probekit.analysis.heads import known_heads, random_repeats, score_heads
from probekit.errors import ConfigError
from probekit.pipeline.look.lenses import ModelAndTokenizer
from probekit.results.network import ScoredHeads
from probekit.terminal import SILENT, Watcher


def score_texts(
    network: ModelAndTokenizer, texts: Sequence[str], *, bos: bool, watcher: Watcher = SILENT
) -> ScoredHeads:
    """Return the scores of every head on texts.

    >>> score_texts(ModelAndTokenizer.load("mini"), ["The key and the key"], bos=False).read
    '1 text of 5 tokens'

    Raises:
        DataError: there is no text, or one is empty or longer than the context.
    """
    sequences = [network.ids(text, bos=bos) for text in texts]
    n_tokens = sum(map(len, sequences))
    read = f"{len(texts)} text{'s' * (len(texts) != 1)} of {n_tokens:,} tokens"
    rows = score_heads(network.model, sequences, watcher)
    return ScoredHeads(rows, read, known_heads(network.model))


def score_random_repeats(
    network: ModelAndTokenizer,
    n: int,
    *,
    length: int = 50,
    seed: int = 0,
    bos: bool,
    watcher: Watcher = SILENT,
) -> ScoredHeads:
    """Return the scores of every head on n sequences of repeated random tokens.

    >>> scored = score_random_repeats(ModelAndTokenizer.load("mini"), 2, length=10, bos=False)
    >>> scored.read
    '2 sequences of 10 random tokens, each repeated once, seed 0'

    Raises:
        ConfigError: n is 0, or twice the length exceeds the context.
    """
    context = network.model.config.n_ctx
    if 2 * length + bos > context:
        raise ConfigError(
            f"{length} tokens, repeated once{' after beginning-of-text' * bos}, exceed the context "
            f"of {context}. Allowed: a length of at most {(context - bos) // 2}."
        )
    pool = network.tokenizer.ordinary_ids
    bos_id = network.tokenizer.bos_id if bos else None
    sequences = random_repeats(pool, n, length, seed=seed, bos=bos_id)
    device = network.model.device
    rows = score_heads(network.model, [ids.to(device) for ids in sequences], watcher)
    read = (
        f"{n} sequence{'s' * (n != 1)} of {length} random tokens, each repeated once, seed {seed}"
    )
    return ScoredHeads(rows, read, known_heads(network.model))
