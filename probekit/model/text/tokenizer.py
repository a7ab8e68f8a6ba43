"""Byte-level BPE tokenizer with the character offsets of each token."""

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
from probekit.model.inputs import NO_TOKEN, TokenBatch
from probekit.model.text.vocabulary import Vocabulary, read_vocabulary, write_vocabulary
from probekit.model.weights.sources import find_model
from probekit.provenance import digest_json

IntArray = npt.NDArray[np.int64]
PaddingSide = Literal["left", "right"]

END_OF_TEXT = "<|endoftext|>"

# GPT-2's pre-tokenization. Source: encoder.py, published with GPT-2.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class TokenizedText:
    """The tokens of one text.

    Attributes:
        ids: token ids, shape (n_tokens,).
        offsets: first character and one past the last of each token, shape (n_tokens, 2). A token
            with part of a character covers that character; BOS has (0, 0).
    """

    ids: IntArray
    offsets: IntArray


class Tokenizer:
    """GPT-2's tokenizer with a vocabulary read from disk.

    >>> tokenizer = Tokenizer.from_pretrained("mini")
    >>> tokens = tokenizer.encode("The keys to", bos=False)
    >>> tokenizer.strings(tokens.ids), tokens.offsets.tolist()
    (['The', ' keys', ' to'], [[0, 3], [3, 8], [8, 11]])
    """

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
    def from_pretrained(cls, source: str | Path) -> Tokenizer:
        """Return the tokenizer of a model: `mini`, a hub name or a folder.

        Raises:
            MissingError: no model has this name, or it has no vocabulary.
            CheckpointError: the vocabulary is damaged or not a byte-level BPE.
        """
        return cls(read_vocabulary(find_model(source)))

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
    def n_ids(self) -> int:
        """One past the largest id; at most the vocabulary size of a matching model."""
        return 1 + max([*self.vocabulary.ids.values(), *self.vocabulary.special.values()])

    @property
    def bos_id(self) -> int:
        """Id of `<|endoftext|>`, which is also GPT-2's beginning-of-text token.

        Raises:
            ConfigError: the vocabulary has no such token.
        """
        if END_OF_TEXT not in self.vocabulary.special:
            raise ConfigError(f"This vocabulary has no {END_OF_TEXT}. Set bos to false.")
        return self.vocabulary.special[END_OF_TEXT]

    def encode(self, text: str, *, bos: bool) -> TokenizedText:
        """Return the tokens of a text. Special tokens in the text are read as ordinary text.

        Args:
            text: any text.
            bos: whether to put `<|endoftext|>` before it. There is no default: GPT-2 was trained
                without, but some libraries prepend it.

        Raises:
            DataError: the text is not a str, or contains a lone surrogate, which cannot be encoded.
        """
        if not isinstance(text, str):
            raise DataError(f"A text must be a str, not {type(text).__name__}.")
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
        ids = self._ids[ranks]
        if not bos:
            return TokenizedText(ids, offsets)
        return TokenizedText(np.insert(ids, 0, self.bos_id), np.insert(offsets, 0, 0, axis=0))

    def batch(
        self, texts: Sequence[str], *, bos: bool, side: PaddingSide | None = None
    ) -> TokenBatch:
        """Return the tokens of several texts, padded on the given side to the longest.

        The side never changes an activation, but it changes the positions of the tokens: with
        `left` the last position of every row is its last token, with `right` the first is its
        first. It is needed only if the texts have different numbers of tokens.

        Raises:
            ConfigError: the side is unknown, or texts differ in length and no side is given.
            DataError: there is no text, or one cannot be encoded.

        >>> tokenizer = Tokenizer.from_pretrained("mini")
        >>> batch = tokenizer.batch(["A key", "Keys"], bos=False, side="left")
        >>> batch.mask.tolist()
        [[False, True, True], [True, True, True]]
        """
        if isinstance(texts, str):
            raise DataError("batch() takes a list of texts, not a single text.")
        if not texts:
            raise DataError("batch() takes at least one text.")
        encoded = [self.encode(text, bos=bos) for text in texts]
        sizes = [len(tokens.ids) for tokens in encoded]
        if side is None and min(sizes) < max(sizes):
            raise ConfigError(
                f"The texts have {min(sizes)} to {max(sizes)} tokens, so shorter ones are padded. "
                'Give side="left" (the last position of each row is its last token) or '
                'side="right" (position i of each row is its token i).'
            )
        side = side or "right"  # the same as left without padding
        ids, mask = pad([tokens.ids for tokens in encoded], side)
        offsets = torch.zeros(*ids.shape, 2, dtype=torch.int64)
        offsets[mask] = torch.from_numpy(np.concatenate([tokens.offsets for tokens in encoded]))
        return TokenBatch(ids, mask, offsets)

    def decode(self, ids: Sequence[int] | IntArray) -> str:
        """Return the text of token ids; invalid UTF-8 becomes U+FFFD.

        >>> tokenizer = Tokenizer.from_pretrained("mini")
        >>> tokenizer.decode(tokenizer.encode("Größe ✓", bos=False).ids)
        'Größe ✓'

        Raises:
            DataError: `ids` is a string.
        """
        if hasattr(ids, "encode"):  # a string
            raise DataError(f"ids is the text {ids!r}. Give token ids, such as encode(...).ids.")
        return self.bytes_of(ids).decode(errors="replace")

    def bytes_of(self, ids: Sequence[int] | IntArray) -> bytes:
        """Return the bytes of token ids, which may end within a character."""
        return b"".join(self._bytes(int(token)) for token in ids)

    def strings(self, ids: Sequence[int] | IntArray) -> list[str]:
        """Return each token as a string; bytes that are not valid UTF-8 are written as <0xE2>."""
        return [_show(self._bytes(int(token))) for token in ids]

    def str_tokens(self, text: str, *, bos: bool = False) -> list[str]:
        """Return the tokens of a text as strings, for reading and for labels of axes.

        >>> Tokenizer.from_pretrained("mini").str_tokens("The keys to the")
        ['The', ' keys', ' to', ' the']
        """
        return self.strings(self.encode(text, bos=bos).ids)

    def position_of(
        self, text: str, part: str, *, bos: bool, piece: Literal["first", "last"] = "last"
    ) -> int:
        """Return the position in a text of a token, or of one token of a longer part.

        Args:
            text: any text.
            part: a part of the text that begins and ends with a token, such as " cabinet" with its
                space. It occurs once in the text.
            bos: whether `<|endoftext|>` precedes the text, as in `encode`; it moves every token by
                one.
            piece: which token of a part of several tokens. At the last one, a causal model has
                read the whole part.

        Raises:
            DataError: the part is not in the text, occurs more than once, or begins or ends inside
                a token.
            ConfigError: the piece is unknown.

        >>> tokenizer = Tokenizer.from_pretrained("mini")
        >>> tokenizer.position_of("The keys to the old cabinet", " keys", bos=False)
        1
        """
        if piece not in ("first", "last"):
            raise ConfigError(f"Unknown piece {piece!r}. {nearest(str(piece), ('first', 'last'))}")
        tokens = self.encode(text, bos=bos)
        start = _only_place(text, part, self.strings(tokens.ids))
        ends = {"first": (start, 0), "last": (start + len(part), 1)}
        for edge, (at, side) in ends.items():
            # Beginning-of-text has the offsets (0, 0).
            matches = np.flatnonzero((tokens.offsets[:, side] == at) & (tokens.offsets[:, 1] > 0))
            if not len(matches):
                inside = (tokens.offsets[:, 0] < at) & (at < tokens.offsets[:, 1])
                token = self.strings(tokens.ids[inside])[0]
                verb = "begins" if edge == "first" else "ends"
                raise DataError(
                    f"{part!r} {verb} inside the token {token!r} of {text!r}. Write whole tokens, "
                    "with the space before a word."
                )
            ends[edge] = int(matches[-1 if side else 0]), side
        return ends[piece][0]

    def _bytes(self, token: int) -> bytes:
        try:
            return self._tokens[token]
        except KeyError as error:
            hint = " It marks padding or the end of a row. Leave it out."
            suffix = hint if token == NO_TOKEN else ""
            raise DataError(f"No token has the id {token}.{suffix}") from error

    @cached_property
    def _tokens(self) -> dict[int, bytes]:
        special = {token: text.encode() for text, token in self.vocabulary.special.items()}
        return {token: text for text, token in self.vocabulary.ids.items()} | special

    @cached_property
    def _lengths(self) -> IntArray:
        return np.array([len(token) for token in self.vocabulary.ranked], dtype=np.int64)


def _only_place(text: str, part: str, tokens: Sequence[str]) -> int:
    """Return the index of the only character at which a part begins in a text."""
    if not isinstance(part, str) or not part:
        raise DataError(f"The part must be a str of at least one character, not {part!r}.")
    places = [n for n in range(len(text)) if text.startswith(part, n)]
    if not places:
        raise DataError(f"{part!r} is not in {text!r}. {nearest(part, map(repr, tokens))}")
    if len(places) > 1:
        raise DataError(
            f"{part!r} occurs {len(places)} times in {text!r}, at the characters "
            f"{', '.join(map(str, places))}. Give a longer part that occurs once."
        )
    return places[0]


def pad(sequences: Sequence[IntArray], side: PaddingSide) -> tuple[Tensor, Tensor]:
    """Return padded token ids, -1 at padding, and their mask, shape [batch pos] each.

    The padding id is not a token, so that a forgotten mask raises an error.

    >>> ids, mask = pad([np.array([5, 6, 7]), np.array([8])], "left")
    >>> ids.tolist()
    [[5, 6, 7], [-1, -1, 8]]

    Raises:
        ConfigError: the side is neither `left` nor `right`.
    """
    if side not in get_args(PaddingSide):
        raise ConfigError(
            f"Unknown padding side {side!r}. {nearest(str(side), get_args(PaddingSide))}"
        )
    width = max(len(sequence) for sequence in sequences)
    ids = torch.full((len(sequences), width), NO_TOKEN)
    mask = torch.zeros(len(sequences), width, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        start = width - len(sequence) if side == "left" else 0
        ids[row, start : start + len(sequence)] = torch.from_numpy(sequence)
        mask[row, start : start + len(sequence)] = True
    return ids, mask


def _show(token: bytes) -> str:
    text = token.decode(errors="surrogateescape")
    return re.sub("[\udc80-\udcff]", lambda match: f"<0x{ord(match[0]) - 0xDC00:02X}>", text)
