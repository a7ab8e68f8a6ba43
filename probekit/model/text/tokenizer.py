"""Byte-level BPE: text to token ids, with the characters that each token covers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import tiktoken
import torch
from torch import Tensor

from probekit.errors import ConfigError, DataError, nearest
from probekit.model.text.vocabulary import Vocabulary, read_vocabulary
from probekit.model.weights.sources import find_model
from probekit.provenance import digest_json

IntArray = npt.NDArray[np.int64]
PaddingSide = Literal["left", "right"]

END_OF_TEXT = "<|endoftext|>"

# How GPT-2 cuts a text before merging. Source: encoder.py, published with GPT-2.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class TokenizedText:
    """The tokens of one text.

    Attributes:
        ids: token ids, shape (n_tokens,).
        offsets: first character and one past the last of each token, shape (n_tokens, 2). A token
            that holds part of a character covers that character; BOS covers (0, 0).
    """

    ids: IntArray
    offsets: IntArray


@dataclass(frozen=True)
class TokenBatch:
    """Padded texts; which positions are padding is carried along, never guessed from an id.

    Attributes:
        ids: token ids, shape [batch pos].
        mask: True at tokens, False at padding, shape [batch pos].
        offsets: character ranges, (0, 0) at padding, shape [batch pos 2].
    """

    ids: Tensor
    mask: Tensor
    offsets: Tensor


class Tokenizer:
    """GPT-2's tokenizer, built from a vocabulary on disk.

    >>> tokenizer = Tokenizer.from_pretrained("mini")
    >>> tokens = tokenizer.encode("The keys to", bos=False)
    >>> tokenizer.strings(tokens.ids), tokens.offsets.tolist()
    (['The', ' keys', ' to'], [[0, 3], [3, 8], [8, 11]])
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        # tiktoken takes an id for a merge priority; a vocabulary may number its tokens otherwise.
        self._ids = np.array([vocabulary.ids[token] for token in vocabulary.ranked], dtype=np.int64)
        self._encoding = tiktoken.Encoding(
            "probekit",
            pat_str=_WORDS,
            mergeable_ranks={token: rank for rank, token in enumerate(vocabulary.ranked)},
            special_tokens={},
        )

    @classmethod
    def from_pretrained(cls, source: str | Path) -> Tokenizer:
        """Return the tokenizer of a model: `mini`, a hub name or a folder.

        Raises:
            MissingError: there is no such model, or it has no vocabulary.
            CheckpointError: the vocabulary is damaged or not byte-level BPE.
        """
        return cls(read_vocabulary(find_model(source)))

    @cached_property
    def digest(self) -> str:
        """What identifies this tokenizer: a hash of its tokens, their order, ids and specials."""
        vocabulary = self.vocabulary
        ranked = [[token.hex(), vocabulary.ids[token]] for token in vocabulary.ranked]
        return digest_json([_WORDS, ranked, sorted(vocabulary.special.items())])

    @property
    def n_ids(self) -> int:
        """One past the largest id, to hold against the size of a model's vocabulary."""
        return 1 + max([*self.vocabulary.ids.values(), *self.vocabulary.special.values()])

    @property
    def bos_id(self) -> int:
        """The id of `<|endoftext|>`, which GPT-2 uses as its beginning of text.

        Raises:
            ConfigError: the vocabulary has no such token.
        """
        if END_OF_TEXT not in self.vocabulary.special:
            raise ConfigError(f"This vocabulary has no {END_OF_TEXT}: bos must be false.")
        return self.vocabulary.special[END_OF_TEXT]

    def encode(self, text: str, *, bos: bool) -> TokenizedText:
        """Return the tokens of a text; special tokens written in it are ordinary text.

        Args:
            text: any text.
            bos: whether `<|endoftext|>` is put before it. GPT-2 was trained without, some
                libraries prepend it: there is no default.

        Raises:
            DataError: it is no text, or holds half of a surrogate pair, which no encoding can
                express.
        """
        if not isinstance(text, str):
            raise DataError(f"A text must be a str, not {type(text).__name__}.")
        try:
            utf8 = np.frombuffer(text.encode(), dtype=np.uint8)
        except UnicodeEncodeError as error:
            raise DataError(
                f"Character {error.start} of the text {text!r} is a lone surrogate: "
                "the text was not read as the encoding it has."
            ) from error
        ranks = np.array(self._encoding.encode_ordinary(text), dtype=np.int64)
        ends = np.cumsum(self._lengths[ranks])  # in bytes
        # Bytes 0b10xxxxxx go on with a character, all others begin one.
        character = np.cumsum((utf8 & 0xC0) != 0x80) - 1
        starts = character[ends - self._lengths[ranks]]
        offsets = np.stack([starts, character[ends - 1] + 1], axis=1)
        ids = self._ids[ranks]
        if not bos:
            return TokenizedText(ids, offsets)
        return TokenizedText(np.insert(ids, 0, self.bos_id), np.insert(offsets, 0, 0, axis=0))

    def batch(self, texts: Sequence[str], *, bos: bool, side: PaddingSide) -> TokenBatch:
        """Return the tokens of several texts, padded to the longest on the given side.

        >>> tokenizer = Tokenizer.from_pretrained("mini")
        >>> batch = tokenizer.batch(["A key", "Keys"], bos=False, side="left")
        >>> batch.mask.tolist()
        [[False, True, True], [True, True, True]]
        """
        if isinstance(texts, str):
            raise DataError("batch() takes a list of texts, not one text.")
        if not texts:
            raise DataError("batch() takes one text or more.")
        encoded = [self.encode(text, bos=bos) for text in texts]
        ids, mask = pad([tokens.ids for tokens in encoded], side)
        offsets = torch.zeros(*ids.shape, 2, dtype=torch.int64)
        offsets[mask] = torch.from_numpy(np.concatenate([tokens.offsets for tokens in encoded]))
        return TokenBatch(ids, mask, offsets)

    def decode(self, ids: Sequence[int] | IntArray) -> str:
        """Return the text of token ids; bytes that are no text become U+FFFD.

        >>> tokenizer = Tokenizer.from_pretrained("mini")
        >>> tokenizer.decode(tokenizer.encode("Größe ✓", bos=False).ids)
        'Größe ✓'
        """
        return self.bytes_of(ids).decode(errors="replace")

    def bytes_of(self, ids: Sequence[int] | IntArray) -> bytes:
        """Return the bytes of token ids, which need not end with a whole character."""
        return b"".join(self._bytes(int(token)) for token in ids)

    def strings(self, ids: Sequence[int] | IntArray) -> list[str]:
        """Return what each token shows by itself; bytes that are no text are written <0xE2>."""
        return [_show(self._bytes(int(token))) for token in ids]

    def _bytes(self, token: int) -> bytes:
        try:
            return self._tokens[token]
        except KeyError as error:
            raise DataError(f"No token has the id {token}.") from error

    @cached_property
    def _tokens(self) -> dict[int, bytes]:
        special = {token: text.encode() for text, token in self.vocabulary.special.items()}
        return {token: text for text, token in self.vocabulary.ids.items()} | special

    @cached_property
    def _lengths(self) -> IntArray:
        return np.array([len(token) for token in self.vocabulary.ranked], dtype=np.int64)


def pad(sequences: Sequence[IntArray], side: PaddingSide) -> tuple[Tensor, Tensor]:
    """Return token ids, 0 at padding, and the mask, both of shape [batch pos].

    >>> ids, mask = pad([np.array([5, 6, 7]), np.array([8])], "left")
    >>> ids.tolist()
    [[5, 6, 7], [0, 0, 8]]

    Raises:
        ConfigError: the side is neither `left` nor `right`.
    """
    if side not in get_args(PaddingSide):
        raise ConfigError(f"Padding side {side!r}. {nearest(str(side), get_args(PaddingSide))}")
    width = max(len(sequence) for sequence in sequences)
    ids = torch.zeros(len(sequences), width, dtype=torch.int64)
    mask = torch.zeros(len(sequences), width, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        start = width - len(sequence) if side == "left" else 0
        ids[row, start : start + len(sequence)] = torch.from_numpy(sequence)
        mask[row, start : start + len(sequence)] = True
    return ids, mask


def _show(token: bytes) -> str:
    text = token.decode(errors="surrogateescape")
    return re.sub("[\udc80-\udcff]", lambda match: f"<0x{ord(match[0]) - 0xDC00:02X}>", text)
