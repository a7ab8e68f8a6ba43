"""Tokenizers with the character offsets of each token."""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
import torch

from probekit.errors import ConfigError, DataError, MissingError, nearest
from probekit.files import write_atomic
from probekit.model.config import Bos, SpecialTokens
from probekit.model.families.table import read_tokenizer
from probekit.model.passes.inputs import NO_TOKEN, PaddingSide, TokenBatch, pad
from probekit.model.weights.files import write_digests
from probekit.model.weights.sources import VOCABULARY_FILES, vocabulary_files

IntArray = npt.NDArray[np.int64]

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class TokenizedText:
    """The tokens of one text.

    Attributes:
        ids: token ids, shape (n_tokens,).
        offsets: first character and one past the last of each token, shape (n_tokens, 2). A token
            with part of a character covers that character; a token of a chat template covers none,
            and so does BOS, which has (0, 0).
        has_bos: whether the first token is BOS.
        is_cut: whether the text has more tokens.
    """

    ids: IntArray
    offsets: IntArray
    has_bos: bool = False
    is_cut: bool = False

    def first(self, n: int) -> TokenizedText:
        """Return the first `n` tokens."""
        return replace(self, ids=self.ids[:n], offsets=self.offsets[:n], is_cut=len(self.ids) > n)


class Tokenizer(ABC):
    """Tokenizer of a model: token ids and the characters of each token.

    `_files` has the contents of its files, by name.

    >>> tokenizer = Tokenizer.from_pretrained("mini")
    >>> tokens = tokenizer.encode("The keys to", bos=False)
    >>> tokenizer.strings(tokens.ids), tokens.offsets.tolist()
    (['The', ' keys', ' to'], [[0, 3], [3, 8], [8, 11]])
    """

    _files: Mapping[str, bytes]

    @staticmethod
    def from_pretrained(source: str | Path) -> Tokenizer:
        """Return the tokenizer of a model: `mini`, a hub name or a folder.

        Texts are tokenized by the library `tokenizers` and the tokenizer.json or, without one, by
        tiktoken and the vocab.json and merges.txt of GPT-2 and OPT.

        Raises:
            ConfigError: the name is not valid.
            MissingError: no model has this name, or it has no vocabulary.
            CheckpointError: the vocabulary is damaged, or not of a kind that is supported.
        """
        return cast(Tokenizer, read_tokenizer(source))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the vocabulary files, in the format they were read in, and their digests.

        Raises:
            ConfigError: the folder has a vocabulary of another format, which takes precedence.
            CheckpointError: the folder has a damaged digests.json.
            StoreError: the folder cannot be written.
        """
        folder, files = Path(folder), self._files
        existing = {path.name for path in vocabulary_files(folder)}
        after_writing = existing | files.keys()
        # The set of files that `from_folder` would read after this call.
        read_first = next(names for names in VOCABULARY_FILES if after_writing.issuperset(names))
        if not files.keys() >= set(read_first):
            raise ConfigError(
                f"{folder} has another vocabulary, {' and '.join(sorted(existing))}, which takes "
                f"precedence over {' and '.join(sorted(files))}. Delete it, or save to another "
                "folder."
            )
        write_digests(folder, {name: write_atomic(folder / name, files[name]) for name in files})

    @property
    @abstractmethod
    def digest(self) -> str:
        """Digest of everything that the ids of a text depend on."""

    @property
    @abstractmethod
    def special(self) -> Mapping[str, int]:
        """Ids of the tokens that encoding never produces, by their text."""

    @property
    def bos_id(self) -> int:
        """Id of the beginning-of-text token.

        Raises:
            ConfigError: the tokenizer has no such token.
        """
        if self._bos is None:
            raise ConfigError("This tokenizer has no beginning-of-text token. Set bos to false.")
        return self._bos

    @property
    @abstractmethod
    def _bos(self) -> int | None:
        """Id of the beginning-of-text token; None if there is none."""

    @property
    @abstractmethod
    def own_bos(self) -> bool | None:
        """Whether the model's own tokenizer puts beginning-of-text before each text.

        None if it adds other tokens to a text, or tokens after it.
        """

    @property
    @abstractmethod
    def ends_of_text(self) -> tuple[str, ...]:
        """The text of each token that ends a text, such as `<|endoftext|>`."""

    @property
    @abstractmethod
    def bytes_by_id(self) -> Mapping[int, bytes]:
        """The bytes of each token."""

    @abstractmethod
    def _ordinary(self, text: str, *, special: bool = False) -> TokenizedText:
        """Return the tokens of a text without beginning-of-text; special ones if it is true."""

    @property
    def n_ids(self) -> int:
        """One past the largest id; at most the vocabulary size of a matching model."""
        return 1 + max(self.bytes_by_id)

    @property
    def ordinary_ids(self) -> list[int]:
        """Ids of all tokens that are not special, in ascending order."""
        return sorted(self.bytes_by_id.keys() - set(self.special.values()))

    def has_bos(self, bos: Bos) -> bool:
        """Return whether beginning-of-text precedes each text; `auto` means as in `own_bos`.

        >>> tokenizer = Tokenizer.from_pretrained("mini")
        >>> tokenizer.has_bos("auto"), tokenizer.has_bos(True)
        (False, True)

        Raises:
            ConfigError: it is another value, or `auto` and the tokenizer adds other tokens.
        """
        if bos not in (True, False, "auto"):
            raise ConfigError(f"bos is {bos!r}. Allowed: true, false, auto.")
        choice = self.own_bos if bos == "auto" else bool(bos)
        if choice is None:
            raise ConfigError(
                "The model's own tokenizer adds other tokens to each text than beginning-of-text, "
                "which are not supported. Set bos to true or false to read texts without them."
            )
        return choice

    def doubt_of_bos(self, bos: Bos) -> str:
        """Return a warning if a choice differs from the tokenizer's own; "" if it does not.

        There is none for a beginning-of-text that also ends texts, as in GPT-2, whose networks
        were trained on texts after it.
        """
        if bos == "auto" or self.own_bos in (None, bos):
            return ""
        (token,) = self.strings([self.bos_id])
        if bos and token in self.ends_of_text:
            return ""
        given, own = ("with", "adds no token") if bos else ("without", "puts it before each text")
        advice = "" if bos else ", and a network that was trained with it can fail without it"
        return (
            f"Texts begin {given} {token} (beginning-of-text), but the model's own tokenizer "
            f"{own}{advice}. The default, `bos: auto`, reads them as it does."
        )

    def encode(
        self, text: str, *, bos: Bos = "auto", special_tokens: SpecialTokens = "text"
    ) -> TokenizedText:
        """Return the tokens of a text.

        Args:
            text: any text.
            special_tokens: how special tokens that are written out in it are read: as ordinary
                `text`, or as the `tokens`, as transformers reads them.
            bos: whether to put the beginning-of-text token before it; `auto` does as the model's
                own tokenizer: Gemma and Llama are read with that token, GPT-2 and Qwen without.

        Raises:
            DataError: the text is not a str, contains a lone surrogate, which cannot be encoded, or
                begins with a beginning-of-text token in addition to that of `bos`.
            ConfigError: `bos` is true and there is no such token.
            CheckpointError: the tokenizer.json cannot tokenize the text.
        """
        if not isinstance(text, str):
            raise DataError(f"A text must be a str, not {type(text).__name__}.")
        tokens = self._ordinary(text, special=special_tokens == "tokens")
        if not self.has_bos(bos):
            return tokens
        if tokens.ids[:1].tolist() == [self.bos_id]:  # `tokens` reads it from the text
            raise DataError(
                f"The text {text[:60]!r} begins with the beginning-of-text token, which is put "
                "before every text and would be read twice. Remove it from the text."
            )
        ids = np.insert(tokens.ids, 0, self.bos_id)
        return TokenizedText(ids, np.insert(tokens.offsets, 0, 0, axis=0), has_bos=True)

    def encode_chat(
        self,
        text: str,  # noqa: ARG002
        turns: Sequence[tuple[int, int, str, str]] = (),  # noqa: ARG002
    ) -> TokenizedText:
        """Return the tokens of a conversation, as the model's chat template writes it.

        The template puts all special tokens, beginning-of-text included. Offsets count characters
        of `text`. After a turn of the user, the tokens end where the assistant's turn begins.

        Args:
            text: text of all turns.
            turns: first and one past the last character of each turn in `text`, its role, and
                JSON of the other keys of its message, or "". Empty means that all of it is the
                user's.

        Raises:
            MissingError: the model has no chat template.
            DataError: a turn contains a special token, or the template refuses the turns, changes
                their text or does not read a key.
            CheckpointError: the template is damaged, or cannot be computed within its limits.
        """
        raise MissingError(
            "No chat template was read for this model. Name one that was trained on conversations "
            "(`instruct`, `chat` or `it` in its name), or leave the chat out; templates of GPT-2 "
            "are not read."
        )

    def batch(
        self, texts: Sequence[str], *, bos: Bos = "auto", side: PaddingSide | None = None
    ) -> TokenBatch:
        """Return the tokens of several texts, padded on the given side to the longest.

        The side never changes an activation, but it changes the positions of the tokens: with
        `left` the last position of every row is its last token, with `right` the first is its
        first. It is needed only if the texts have different numbers of tokens.

        Raises:
            ConfigError: the side is unknown, texts differ in length and no side is given, or `bos`
                is true and there is no such token.
            DataError: there is no text, one cannot be encoded, or `texts` is a single string.

        >>> tokenizer = Tokenizer.from_pretrained("mini")
        >>> batch = tokenizer.batch(["A key", "Keys"], bos=False, side="left")
        >>> batch.mask.tolist()
        [[False, True, True], [True, True, True]]
        """
        if isinstance(texts, str):
            raise DataError("batch() takes a list of texts, not a single text.")
        return batch_of([self.encode(text, bos=bos) for text in texts], side)

    def decode(self, ids: Sequence[int] | IntArray) -> str:
        """Return the text of token ids; invalid UTF-8 becomes U+FFFD.

        >>> tokenizer = Tokenizer.from_pretrained("mini")
        >>> tokenizer.decode(tokenizer.encode("Größe ✓", bos=False).ids)
        'Größe ✓'

        Raises:
            DataError: `ids` is a string, or no token has one of the ids.
        """
        if hasattr(ids, "encode"):  # a string
            raise DataError(f"ids is the text {ids!r}. Give token ids, such as encode(...).ids.")
        return self.bytes_of(ids).decode(errors="replace")

    def decode_tokens(self, ids: Sequence[int]) -> TokenizedText:
        """Return token ids with the characters of each in the text `decode(ids)`.

        >>> Tokenizer.from_pretrained("mini").decode_tokens([555, 6700]).offsets.tolist()
        [[0, 3], [3, 8]]
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        offsets, end = np.zeros((len(ids), 2), dtype=np.int64), 0
        for number, token in enumerate(ids):
            start, end = end, end + len(decoder.decode(self._bytes(int(token))))
            is_within_character = bool(decoder.getstate()[0])
            offsets[number] = start, end + is_within_character
        return TokenizedText(np.array(ids, dtype=np.int64), offsets)

    def bytes_of(self, ids: Sequence[int] | IntArray) -> bytes:
        """Return the bytes of token ids, which may end within a character."""
        return b"".join(self._bytes(int(token)) for token in ids)

    def strings(self, ids: Sequence[int] | IntArray) -> list[str]:
        """Return each token as a string; bytes that are not valid UTF-8 are written as <0xE2>."""
        # `surrogateescape` represents such a byte by U+DC00 plus its value.
        texts = [self._bytes(int(token)).decode(errors="surrogateescape") for token in ids]
        return [
            re.sub("[\udc80-\udcff]", lambda byte: f"<0x{ord(byte[0]) - 0xDC00:02X}>", text)
            for text in texts
        ]

    def str_tokens(self, text: str, *, bos: Bos = "auto") -> list[str]:
        """Return the tokens of a text as strings, for reading and for labels of axes.

        >>> Tokenizer.from_pretrained("mini").str_tokens("The keys to the")
        ['The', ' keys', ' to', ' the']
        """
        return self.strings(self.encode(text, bos=bos).ids)

    def position_of(
        self, text: str, part: str, *, bos: Bos = "auto", piece: Literal["first", "last"] = "last"
    ) -> int:
        """Return the position in a text of a token, or of one token of a longer part.

        Args:
            text: any text.
            part: a part of the text that begins and ends with a token, such as " cabinet" with its
                space. It occurs once in the text.
            bos: whether beginning-of-text precedes the text, as in `encode`; it moves every token
                by one.
            piece: which token of a part of several tokens. At the last one, a causal model has
                read the whole part.

        Raises:
            DataError: the text is not a str; or the part is empty, not in the text, occurs more
                than once, or does not begin and end with a token.
            ConfigError: the piece is unknown, or `bos` is true and there is no such token.

        >>> tokenizer = Tokenizer.from_pretrained("mini")
        >>> tokenizer.position_of("The keys to the old cabinet", " keys", bos=False)
        1
        """
        if piece not in ("first", "last"):
            raise ConfigError(f"Unknown piece {piece!r}. {nearest(str(piece), ('first', 'last'))}")
        tokens = self.encode(text, bos=bos)
        if not isinstance(part, str) or not part:
            raise DataError(f"The part must be a str of at least one character, not {part!r}.")
        starts = [start for start in range(len(text)) if text.startswith(part, start)]
        if not starts:
            raise DataError(
                f"{part!r} is not in {text!r}. {nearest(part, map(repr, self.strings(tokens.ids)))}"
            )
        if len(starts) > 1:
            raise DataError(
                f"{part!r} occurs {len(starts)} times in {text!r}, at the characters "
                f"{', '.join(map(str, starts))}. Give a longer part that occurs once."
            )
        token_starts, token_ends = tokens.offsets.T
        is_text = token_ends > 0  # beginning-of-text has the offsets (0, 0)
        start, end = starts[0], starts[0] + len(part)
        # Tokens that share a character all cover it, so several may begin or end there.
        first = np.flatnonzero((token_starts == start) & is_text)
        last = np.flatnonzero((token_ends == end) & is_text)
        for matches, edge, verb in ((first, start, "begins"), (last, end, "ends")):
            if not len(matches):
                inside = self.strings(tokens.ids[(token_starts < edge) & (edge < token_ends)])
                # No token has a character that the tokenizer removes, such as a space at the end.
                where = f"inside the token {inside[0]!r}" if inside else "outside all tokens"
                raise DataError(
                    f"{part!r} {verb} {where} of {text!r}. Write whole tokens, with the space "
                    "before a word."
                )
        return int(first[0] if piece == "first" else last[-1])

    def _bytes(self, token: int) -> bytes:
        """Return the bytes of a token; raises DataError if no token has this id."""
        try:
            return self.bytes_by_id[token]
        except KeyError as error:
            is_padding = token == NO_TOKEN
            hint = " It marks padding or the end of a row. Leave it out." if is_padding else ""
            raise DataError(f"No token has the id {token}.{hint}") from error


def utf8(text: str) -> bytes:
    r"""Return a text in UTF-8.

    >>> utf8("é")
    b'\xc3\xa9'

    Raises:
        DataError: the text contains a lone surrogate, which cannot be encoded.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"Character {error.start} of the text {text!r} is a lone surrogate. Read the text with "
            "its correct encoding."
        ) from error


def batch_of(encoded: Sequence[TokenizedText], side: PaddingSide | None = None) -> TokenBatch:
    """Return the tokens of several texts, padded on the given side; see `Tokenizer.batch`.

    Raises:
        ConfigError: the side is unknown, or texts differ in length and no side is given.
        DataError: there is no text.
    """
    if not encoded:
        raise DataError("batch() takes at least one text.")
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
    # Row by row, the tokens in the mask are those of the texts in order.
    offsets[mask] = torch.from_numpy(np.concatenate([tokens.offsets for tokens in encoded]))
    return TokenBatch(ids, mask, offsets)
