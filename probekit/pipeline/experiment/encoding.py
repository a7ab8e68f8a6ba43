"""Tokens of the texts of an experiment: plain texts, or turns of a conversation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from probekit.data.examples import Turns
from probekit.model.passes.inputs import PaddingSide, TokenBatch
from probekit.model.text.tokenizer import TokenizedText, Tokenizer, batch_of


@dataclass(frozen=True)
class TextEncoder:
    """A tokenizer with the settings of the section `tokens`.

    Attributes:
        tokenizer: tokenizer of the model.
        bos: whether beginning-of-text precedes a text; not used for a chat, whose template has it.
        chat: whether texts are written by the model's chat template.

    >>> encoder = TextEncoder(Tokenizer.from_pretrained("mini"), bos=True)
    >>> encoder.encode("The keys").offsets.tolist()
    [[0, 0], [0, 3], [3, 8]]
    """

    tokenizer: Tokenizer
    bos: bool
    chat: bool = False

    def encode(self, text: str, turns: Turns = ()) -> TokenizedText:
        """Return the tokens of a text.

        Args:
            text: any text.
            turns: turns of a conversation; empty means that all of it is the user's.

        Raises:
            MissingError: the model has no chat template.
            DataError: the text cannot be encoded.
            ConfigError: the vocabulary has no beginning-of-text token.
        """
        if self.chat:
            return self.tokenizer.encode_chat(text, turns)
        return self.tokenizer.encode(text, bos=self.bos)

    def batch(self, texts: Iterable[tuple[str, Turns]], side: PaddingSide) -> TokenBatch:
        """Return the tokens of texts with their turns, padded on a side."""
        return batch_of([self.encode(text, turns) for text, turns in texts], side)
