"""GPT-2's tokenizer: byte-level byte-pair encoding by tiktoken."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import tiktoken

from probekit.errors import ConfigError, DataError
from probekit.model.text.tokenizer import END_OF_TEXT, IntArray, TokenizedText, Tokenizer
from probekit.model.text.vocabulary import Vocabulary, read_vocabulary, write_vocabulary
from probekit.provenance import digest_json

# GPT-2's pre-tokenization. Source: encoder.py, published with GPT-2.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class BytePairTokenizer(Tokenizer):
    """GPT-2's tokenizer with a vocabulary read from disk."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        # tiktoken uses ids as merge priorities, but a vocabulary may number its tokens otherwise.
        self._ids = np.array([vocabulary.ids[token] for token in vocabulary.ranked], dtype=np.int64)
        self._encoding = tiktoken.Encoding(
            "probekit",
            pat_str=_WORDS,
            mergeable_ranks={token: rank for rank, token in enumerate(vocabulary.ranked)},
            special_tokens={},
        )

    @classmethod
    def from_folder(cls, folder: Path) -> BytePairTokenizer:
        """Return the tokenizer of a folder.

        Raises:
            MissingError: there is no vocabulary.
            CheckpointError: the vocabulary is damaged or not a byte-level BPE.
        """
        return cls(read_vocabulary(folder))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the vocabulary files, in the format they were read in, and their digests.

        Raises:
            ConfigError: the folder has a vocabulary of another format, which takes precedence.
            StoreError: the folder cannot be written.
        """
        write_vocabulary(Path(folder), self.vocabulary)

    @cached_property
    def digest(self) -> str:
        """Digest of the split pattern, the tokens in order, their ids and the special tokens."""
        vocabulary = self.vocabulary
        ranked = [[token.hex(), vocabulary.ids[token]] for token in vocabulary.ranked]
        return digest_json([_WORDS, ranked, sorted(vocabulary.special.items())])

    @property
    def special(self) -> Mapping[str, int]:
        """Ids of the tokens that encoding never produces, by their text."""
        return self.vocabulary.special

    @property
    def bos_id(self) -> int:
        """Id of `<|endoftext|>`, which is also GPT-2's beginning-of-text token.

        Raises:
            ConfigError: the vocabulary has no such token.
        """
        if END_OF_TEXT not in self.vocabulary.special:
            raise ConfigError(f"This vocabulary has no {END_OF_TEXT}. Set bos to false.")
        return self.vocabulary.special[END_OF_TEXT]

    @property
    def ends_of_text(self) -> tuple[str, ...]:
        """The text of the token that ends a text: `<|endoftext|>`."""
        return (END_OF_TEXT,)

    def _ordinary(self, text: str) -> TokenizedText:
        try:
            utf8 = np.frombuffer(text.encode(), dtype=np.uint8)
        except UnicodeEncodeError as error:
            raise DataError(
                f"Character {error.start} of the text {text!r} is a lone surrogate. Read the text "
                "with its correct encoding."
            ) from error
        ranks = np.array(self._encoding.encode_ordinary(text), dtype=np.int64)
        ends = np.cumsum(self._lengths[ranks])  # in bytes
        # In UTF-8, bytes 0b10xxxxxx continue a character; all others begin one.
        character = np.cumsum((utf8 & 0xC0) != 0x80) - 1
        starts = character[ends - self._lengths[ranks]]
        offsets = np.stack([starts, character[ends - 1] + 1], axis=1)
        return TokenizedText(self._ids[ranks], offsets)

    @cached_property
    def bytes_by_id(self) -> Mapping[int, bytes]:
        """The bytes of each token."""
        special = {token: text.encode() for text, token in self.vocabulary.special.items()}
        return {token: text for text, token in self.vocabulary.ids.items()} | special

    @cached_property
    def _lengths(self) -> IntArray:
        return np.array([len(token) for token in self.vocabulary.ranked], dtype=np.int64)
