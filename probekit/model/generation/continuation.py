"""Continuing texts: prompts in, texts out, whole or as they come."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from probekit.errors import ConfigError, DataError
from probekit.model.generation.decoding import Decoding
from probekit.model.generation.generate import ENDED, new_tokens
from probekit.model.gpt2 import GPT2
from probekit.model.text.tokenizer import END_OF_TEXT, TokenBatch, Tokenizer


@dataclass(frozen=True)
class Continuation:
    """What a model adds to a prompt.

    Attributes:
        text: the new text, up to the stop string, which is not part of it.
        ids: the new tokens; the last of them may hold the stop string, or part of it.
        stopped: whether it ended at a stop string, rather than after so many tokens.
    """

    text: str
    ids: tuple[int, ...]
    stopped: bool


class StopStrings:
    """Ends a row whose new text holds one of some strings.

    >>> tokenizer = Tokenizer.from_pretrained("mini")
    >>> stop = StopStrings(tokenizer, ["."])
    >>> stop(tokenizer.encode("The end", bos=False).ids), stop.cut("The end. And")
    (False, 'The end')

    Raises:
        ConfigError: one of the strings is empty.
    """

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str]) -> None:
        if isinstance(strings, str) or not all(strings):
            raise ConfigError(f"Stop strings are a list of texts that are not empty: {strings!r}.")
        self.strings = tuple(strings)
        self._tokenizer = tokenizer
        self._longest = max((len(text.encode()) for text in strings), default=0)

    def __call__(self, ids: Sequence[int]) -> bool:
        """Return whether the newest of the ids completes a stop string."""
        # A token has one byte at least, so that many tokens hold the longest.
        tail = self._tokenizer.bytes_of(ids[-self._longest :])
        return any(text.encode() in tail for text in self.strings)

    def cut(self, text: str) -> str:
        """Return the text before the first stop string in it."""
        places = [text.find(stop) for stop in self.strings if stop in text]
        return text[: min(places, default=len(text))]

    def sure(self, text: str) -> int:
        """Return how many characters of a text that grows can no longer become a stop string.

        >>> StopStrings(Tokenizer.from_pretrained("mini"), ["<end>"]).sure("so <en")
        3
        """
        beginnings = {stop[:n] for stop in self.strings for n in range(1, len(stop))}
        waiting = max((len(part) for part in beginnings if text.endswith(part)), default=0)
        return min(len(self.cut(text)), len(text) - waiting)


def continue_texts(
    model: GPT2,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    how: Decoding,
    *,
    bos: bool,
    stop: Sequence[str] = (END_OF_TEXT,),
) -> list[list[Continuation]]:
    """Return the continuations of each prompt, `how.num_samples` of them, all in one batch.

    Args:
        model: a GPT-2.
        tokenizer: its tokenizer.
        prompts: the texts to go on with.
        how: how tokens are chosen, and how many.
        bos: whether `<|endoftext|>` stands before each prompt.
        stop: strings at which a continuation ends; beside them, `how.stop` is not asked.

    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> [[first]] = continue_texts(model, tokenizer, ["She said"], Decoding(3), bos=False)
    >>> len(first.ids), first.stopped
    (3, False)

    Raises:
        ConfigError: a stop string is empty.
        DataError: a prompt is empty, or does not fit the context together with what is added.
    """
    stopping = StopStrings(tokenizer, stop)
    batch = _read(model, tokenizer, prompts, bos=bos)
    steps = list(new_tokens(model, batch.ids, replace(how, stop=stopping), mask=batch.mask))
    rows = [_continuation(row, tokenizer, stopping) for row in torch.stack(steps, 1).tolist()]
    return [rows[n : n + how.num_samples] for n in range(0, len(rows), how.num_samples)]


def _continuation(row: list[int], tokenizer: Tokenizer, stop: StopStrings) -> Continuation:
    ids = [token for token in row if token != ENDED]
    return Continuation(stop.cut(tokenizer.decode(ids)), tuple(ids), stop(ids))


def stream_text(
    model: GPT2,
    tokenizer: Tokenizer,
    prompt: str,
    how: Decoding,
    *,
    bos: bool,
    stop: Sequence[str] = (END_OF_TEXT,),
) -> Iterator[str]:
    """Yield the first continuation of a prompt piece by piece, each as soon as it is sure.

    Together the pieces are the text that `continue_texts` returns: half a character, and what may
    be the beginning of a stop string, wait for the next token. Arguments and errors are the same.

    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> pieces = list(stream_text(model, tokenizer, "She said", Decoding(3), bos=False))
    >>> [[whole]] = continue_texts(model, tokenizer, ["She said"], Decoding(3), bos=False)
    >>> len(pieces), "".join(pieces) == whole.text
    (3, True)
    """
    stopping = StopStrings(tokenizer, stop)
    batch = _read(model, tokenizer, [prompt], bos=bos)
    characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text, shown = "", 0
    for step in new_tokens(model, batch.ids, replace(how, stop=stopping, num_samples=1)):
        text += characters.decode(tokenizer.bytes_of([int(step)]))
        sure = stopping.sure(text)
        if sure > shown:
            yield text[shown:sure]
            shown = sure
    rest = stopping.cut(text + characters.decode(b"", final=True))[shown:]
    if rest:
        yield rest


def _read(model: GPT2, tokenizer: Tokenizer, prompts: Sequence[str], *, bos: bool) -> TokenBatch:
    """Return the prompts as tokens, on the device of the model."""
    for number, prompt in enumerate(prompts, start=1):
        if not prompt and not bos:
            which = f"Prompt {number}" if len(prompts) > 1 else "The prompt"
            raise DataError(
                f"{which} is empty: there is nothing to go on with. Give a text, or bos to begin "
                f"with {END_OF_TEXT}."
            )
    batch = tokenizer.batch(prompts, bos=bos, side="left")
    device = model.wte.weight.device
    return TokenBatch(batch.ids.to(device), batch.mask.to(device), batch.offsets)
