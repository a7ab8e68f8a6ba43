"""GPT-2's tokenizer: byte-level byte-pair encoding by tiktoken, and its vocabulary on disk."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import tiktoken

from probekit.amounts import counted
from probekit.errors import CheckpointError, MissingError
from probekit.model.config import MAX_SIZE
from probekit.model.text.settings import TokenizerSettings
from probekit.model.text.tokenizer import END_OF_TEXT, TokenizedText, Tokenizer, utf8
from probekit.model.weights.files import json_object, read_verified
from probekit.model.weights.sources import OPTIONAL_FILES, VOCABULARY_FILES, vocabulary_files
from probekit.provenance import digest_json

# GPT-2's pre-tokenization. Source: encoder.py, published with GPT-2.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class BytePairTokenizer(Tokenizer):
    """GPT-2's tokenizer with a vocabulary read from disk."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary, self._files = vocabulary, vocabulary.files
        # tiktoken uses ids as merge priorities, but a vocabulary may number its tokens otherwise.
        # Special tokens follow the others.
        ids = [vocabulary.ids[token] for token in vocabulary.ranked]
        self._ids = np.array([*ids, *vocabulary.special.values()], dtype=np.int64)
        special = map(str.encode, vocabulary.special)
        # Number of bytes of each token, by rank.
        self._lengths = np.array([len(token) for token in (*vocabulary.ranked, *special)], np.int64)
        n_ranked = len(ids)
        self._encoding = tiktoken.Encoding(
            "probekit",
            pat_str=_WORDS,
            mergeable_ranks={token: rank for rank, token in enumerate(vocabulary.ranked)},
            special_tokens={text: n_ranked + n for n, text in enumerate(vocabulary.special)},
        )

    @classmethod
    def from_folder(cls, folder: Path) -> BytePairTokenizer:
        """Return the tokenizer of a folder.

        Raises:
            MissingError: there is no vocabulary.
            CheckpointError: the vocabulary is damaged or not a byte-level BPE.
        """
        return cls(read_vocabulary(folder))

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
    def _bos(self) -> int | None:
        text = self.vocabulary.settings.text("bos_token", END_OF_TEXT)
        return self.vocabulary.special.get(text or "")

    @property
    def own_bos(self) -> bool | None:
        """Whether the model's own tokenizer puts beginning-of-text before each text; else None."""
        adds = self.vocabulary.settings.entries.get
        return None if adds("add_eos_token") else bool(adds("add_bos_token"))

    @property
    def ends_of_text(self) -> tuple[str, ...]:
        """The text of the token that ends a text; without settings it is `<|endoftext|>`."""
        return (self.vocabulary.settings.text("eos_token") or END_OF_TEXT,)

    def _ordinary(self, text: str, *, special: bool = False) -> TokenizedText:
        encoded = np.frombuffer(utf8(text), dtype=np.uint8)
        allowed = set(self.vocabulary.read & self.vocabulary.special.keys()) if special else set()
        ranks = np.array(
            self._encoding.encode(text, allowed_special=allowed, disallowed_special=()), np.int64
        )
        ends = np.cumsum(self._lengths[ranks])  # in bytes; the tokens have no gaps between them
        # In UTF-8, bytes 0b10xxxxxx continue a character; all others begin one.
        character_of_byte = np.cumsum((encoded & 0xC0) != 0x80) - 1
        starts = character_of_byte[ends - self._lengths[ranks]]
        offsets = np.stack([starts, character_of_byte[ends - 1] + 1], axis=1)
        return TokenizedText(self._ids[ranks], offsets)

    @cached_property
    def bytes_by_id(self) -> Mapping[int, bytes]:
        """The bytes of each token."""
        special = {token: text.encode() for text, token in self.vocabulary.special.items()}
        return {token: text for text, token in self.vocabulary.ids.items()} | special


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of a byte-level BPE.

    Attributes:
        ranked: the 256 single bytes, then the merged tokens in order of priority.
        ids: id of each token in `ranked`.
        special: ids of tokens that encoding never produces, such as `<|endoftext|>`.
        files: contents of the vocabulary files, and of the settings next to them, by name.
        settings: these settings.
        read: the tokens of `special` that are read as such where they are written out.
    """

    ranked: tuple[bytes, ...]
    ids: Mapping[bytes, int]
    special: Mapping[str, int]
    files: Mapping[str, bytes]
    settings: TokenizerSettings
    read: frozenset[str]


def read_vocabulary(folder: Path) -> Vocabulary:
    """Return the vocabulary of a model folder.

    >>> from probekit.model.weights.sources import MINI
    >>> vocabulary = read_vocabulary(MINI)
    >>> len(vocabulary.ids), dict(vocabulary.special)
    (8191, {'<|endoftext|>': 0})

    Raises:
        MissingError: the folder has no vocabulary in a known format.
        CheckpointError: a file is damaged, or the vocabulary is not a byte-level BPE.
    """
    paths = vocabulary_files(folder)
    if not paths:
        choices = ", or ".join(" + ".join(files) for files in VOCABULARY_FILES)
        raise MissingError(
            f"{folder} has no vocabulary. Add one of these: {choices}. GPT-2's are published "
            "together with the weights."
        )
    try:
        paths += [folder / name for name in OPTIONAL_FILES if (folder / name).is_file()]
        files = {path.name: read_verified(path) for path in paths}
    except OSError as error:
        raise CheckpointError(f"The vocabulary of {folder} cannot be read ({error}).") from error
    path, contents = paths[0], list(files.values())
    ids, merges = _read_pair(path, paths[1], ids=contents[0], lines=contents[1])
    settings = TokenizerSettings.read(files, folder, refused="add_prefix_space")
    special = settings.named(ids)
    flags = {text: settings.flags(text) for text in (*special, *settings.added)}
    missing = [byte for byte, character in enumerate(_BYTE_CHARACTER) if character not in ids]
    if missing:
        # tiktoken would abort the process at the first text with one of them.
        raise CheckpointError(
            f"{path} lacks {len(missing)} of the 256 single bytes, the first is "
            f"0x{missing[0]:02X}. A byte-level BPE has all of them."
        )
    if not merges:
        raise CheckpointError(f"{path} has no merges, so every token would be a single byte.")
    ranked = dict.fromkeys([*_BYTE_CHARACTER, *(left + right for left, right in merges)])
    unknown = [token for token in ranked if token not in ids]
    if unknown:
        raise CheckpointError(
            f"{path} lacks {counted(len(unknown), 'token')} that the merges produce, the first is "
            f"{unknown[0]!r}."
        )
    produced = set(_BYTE_CHARACTER)
    for left, right in merges:
        if left not in produced or right not in produced:
            raise CheckpointError(
                f"{path}: the merge of {left!r} and {right!r} comes before the merges that produce "
                "them. The merges are not in their original order."
            )
        produced.add(left + right)
    others = [token for token in ids if token not in ranked]
    orphans = [token for token in others if token not in special and not _SPECIAL.fullmatch(token)]
    if orphans:
        raise CheckpointError(
            f"{path} has {counted(len(orphans), 'token')} that no merge produces, the first is "
            f"{orphans[0]!r}. The merges are incomplete, or of another vocabulary."
        )
    for text, one in flags.items():
        if text in ranked or {key for key in one if one[key]} - {"normalized"} != {"special"}:
            raise CheckpointError(
                f"{folder}: the token {text!r} is one that merges produce, or not read as special "
                f"at every place ({one}). Save the tokenizer as a tokenizer.json."
            )
    if len(set(ids.values())) < len(ids):
        raise CheckpointError(f"{path} assigns the same id to several tokens.")
    return Vocabulary(
        ranked=tuple(_to_bytes(path, token) for token in ranked),
        ids={_to_bytes(path, token): ids[token] for token in ranked},
        special={token: number for token, number in ids.items() if token not in ranked},
        files=files,
        settings=settings,
        read=frozenset(flags) | ({END_OF_TEXT} if _UNNAMED - settings.entries.keys() else set()),
    )


# Tokens that are END_OF_TEXT in transformers unless the settings name them.
_UNNAMED = {"bos_token", "eos_token", "unk_token"}

# Form of a token that no merge produces, such as <|endoftext|>, [PAD], or madeupword0000 of OPT.
_SPECIAL = re.compile(r"<.+>|\[.+\]|madeupword\d+", re.DOTALL)


def _read_pair(
    vocabulary: Path, merges: Path, ids: bytes, lines: bytes
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return ids and merges of vocab.json + merges.txt, or of encoder.json + vocab.bpe.

    The formats are the same. They do not list special tokens.
    """
    try:
        text = lines.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{merges} is not UTF-8: {error}") from error
    pairs = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith("#version") or not line.strip():
            continue
        parts = line.rstrip("\r").split(" ")
        if len(parts) != 2 or not all(parts):
            raise CheckpointError(
                f"{merges}, line {number}: expected a merge of two tokens, not {line!r}."
            )
        pairs.append((parts[0], parts[1]))
    numbers = json_object(vocabulary, ids)
    if not all(type(number) is int and 0 <= number < MAX_SIZE for number in numbers.values()):
        raise CheckpointError(f"{vocabulary} must map tokens to integer ids.")
    return numbers, pairs


def _to_bytes(path: Path, token: str) -> bytes:
    """Return the bytes of a token, given as it is written in vocabulary files."""
    try:
        return bytes(CHARACTER_BYTE[character] for character in token)
    except KeyError as error:
        raise CheckpointError(
            f"{path}: the token {token!r} contains {error.args[0]!r}, which represents no byte."
        ) from error


# The character of each byte (by its value) in vocabulary files, and the byte of each character.
# Printable bytes represent themselves; the others map to the characters from U+0100 on, in order.
# Source: bytes_to_unicode in encoder.py, published with GPT-2.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = iter(range(0x100, 0x200))
_BYTE_CHARACTER = [chr(byte if byte in _PRINTABLE else next(_OTHERS)) for byte in range(256)]
CHARACTER_BYTE = {character: byte for byte, character in enumerate(_BYTE_CHARACTER)}
