"""Text generation: continuations of prompts, complete or streamed."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from probekit.errors import ConfigError, DataError
from probekit.model.decoder import Decoder
from probekit.model.generation.decoding import Decoding
from probekit.model.generation.generate import ENDED, new_tokens
from probekit.model.passes.inputs import TokenBatch
from probekit.model.passes.taps import Tap
from probekit.model.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Continuation:
    """Generated continuation of a prompt.

    Attributes:
        text: generated text before the stop string.
        ids: generated tokens, including those of the stop string.
        stopped: whether a stop string ended it, rather than `max_new_tokens`.
    """

    text: str
    ids: tuple[int, ...]
    stopped: bool


class StopStrings:
    """Stopping criterion: ends a row when its new text contains one of the given strings.

    >>> tokenizer = Tokenizer.from_pretrained("mini")
    >>> stop = StopStrings(tokenizer, ["."])
    >>> stop(tokenizer.encode("The end", bos=False).ids), stop.cut("The end. And")
    (False, 'The end')

    Raises:
        ConfigError: one of the strings is empty.
    """

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str]) -> None:
        if isinstance(strings, str) or not all(strings):
            raise ConfigError(f"Stop strings must be a list of non-empty strings, not {strings!r}.")
        self.strings = tuple(strings)
        self._tokenizer = tokenizer
        self._longest = max((len(text.encode()) for text in strings), default=0)

    def __call__(self, ids: Sequence[int]) -> bool:
        """Return whether the last of the ids completes a stop string."""
        # A token has at least one byte, so this many tokens contain the longest stop string.
        tail = self._tokenizer.bytes_of(ids[-self._longest :])
        return any(text.encode() in tail for text in self.strings)

    def cut(self, text: str) -> str:
        """Return the text before the first stop string in it."""
        starts = [text.find(stop) for stop in self.strings if stop in text]
        return text[: min(starts, default=len(text))]

    def n_final(self, text: str) -> int:
        """Return how many characters of a growing text cannot become part of a stop string.

        >>> StopStrings(Tokenizer.from_pretrained("mini"), ["<end>"]).n_final("so <en")
        3
        """
        prefixes = {stop[:n] for stop in self.strings for n in range(1, len(stop))}
        n_open = max((len(part) for part in prefixes if text.endswith(part)), default=0)
        return min(len(self.cut(text)), len(text) - n_open)


def continue_texts(
    model: Decoder,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    decoding: Decoding,
    *,
    bos: bool,
    stop: Sequence[str] | None = None,
    tap: Tap | None = None,
    sites: Sequence[str] | None = None,
) -> list[list[Continuation]]:
    """Return `decoding.num_samples` continuations of each prompt, generated in one batch.

    Args:
        model: the network.
        tokenizer: its tokenizer.
        prompts: texts to continue.
        decoding: decoding parameters; `stop` replaces its stopping criterion.
        bos: whether to put the beginning-of-text token before each prompt.
        stop: strings that end a continuation; None means the tokenizer's ends of text.
        tap: called at each site in each pass; see `generate`.
        sites: names of the sites at which the tap is called; None means all.

    >>> from probekit import GPT2
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> [[first]] = continue_texts(model, tokenizer, ["She said"], Decoding(3), bos=False)
    >>> len(first.ids), first.stopped
    (3, False)

    Raises:
        ConfigError: a stop string is empty.
        DataError: a prompt is empty, or exceeds the context together with the new tokens.
    """
    stopping = StopStrings(tokenizer, tokenizer.ends_of_text if stop is None else stop)
    batch = _encode(model, tokenizer, prompts, bos=bos)
    steps = list(new_tokens(model, batch, replace(decoding, stop=stopping), tap=tap, sites=sites))
    rows = [_continuation(row, tokenizer, stopping) for row in torch.stack(steps, 1).tolist()]
    return [rows[n : n + decoding.num_samples] for n in range(0, len(rows), decoding.num_samples)]


def _continuation(row: list[int], tokenizer: Tokenizer, stop: StopStrings) -> Continuation:
    ids = [token for token in row if token != ENDED]
    return Continuation(stop.cut(tokenizer.decode(ids)), tuple(ids), stop(ids))


def stream_text(
    model: Decoder,
    tokenizer: Tokenizer,
    prompt: str,
    decoding: Decoding,
    *,
    bos: bool,
    stop: Sequence[str] | None = None,
) -> Iterator[str]:
    """Yield the first continuation of a prompt in pieces, as soon as each is final.

    The pieces join to the text that `continue_texts` returns: an incomplete character, or a
    possible beginning of a stop string, is held back until the next token. Arguments and errors are
    those of `continue_texts`.

    >>> from probekit import GPT2
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> pieces = list(stream_text(model, tokenizer, "She said", Decoding(3), bos=False))
    >>> [[full]] = continue_texts(model, tokenizer, ["She said"], Decoding(3), bos=False)
    >>> len(pieces), "".join(pieces) == full.text
    (3, True)
    """
    stopping = StopStrings(tokenizer, tokenizer.ends_of_text if stop is None else stop)
    batch = _encode(model, tokenizer, [prompt], bos=bos)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text, n_shown = "", 0
    for step in new_tokens(model, batch, replace(decoding, stop=stopping, num_samples=1)):
        text += decoder.decode(tokenizer.bytes_of([int(step)]))
        n_final = stopping.n_final(text)
        if n_final > n_shown:
            yield text[n_shown:n_final]
            n_shown = n_final
    rest = stopping.cut(text + decoder.decode(b"", final=True))[n_shown:]
    if rest:
        yield rest


def _encode(
    model: Decoder, tokenizer: Tokenizer, prompts: Sequence[str], *, bos: bool
) -> TokenBatch:
    """Return the tokens of the prompts, padded on the left, on the device of the model."""
    for number, prompt in enumerate(prompts, start=1):
        if not prompt and not bos:
            which = f"Prompt {number}" if len(prompts) > 1 else "The prompt"
            raise DataError(
                f"{which} is empty. Give a text, or set bos to start from beginning-of-text."
            )
    return tokenizer.batch(prompts, bos=bos, side="left").to(model.device)
