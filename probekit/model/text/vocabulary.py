"""Reading a byte-level BPE vocabulary from any of the three layouts it is published in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probekit.amounts import counted
from probekit.errors import CheckpointError, MissingError
from probekit.model.config import MAX_SIZE
from probekit.model.weights.sources import VOCABULARY_FILES


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a byte-level BPE.

    Attributes:
        ranked: all mergeable tokens: the 256 single bytes, then the merges in order of priority.
        ids: the id of each of them.
        special: the ids of tokens that no text produces, such as `<|endoftext|>`.
    """

    ranked: tuple[bytes, ...]
    ids: Mapping[bytes, int]
    special: Mapping[str, int]


def read_vocabulary(folder: Path) -> Vocabulary:
    """Return the vocabulary that lies in a model's folder.

    >>> from probekit.model.weights.sources import MINI
    >>> vocabulary = read_vocabulary(MINI)
    >>> len(vocabulary.ids), dict(vocabulary.special)
    (8191, {'<|endoftext|>': 0})

    Raises:
        MissingError: the folder holds none of the layouts.
        CheckpointError: a file is damaged or not byte-level BPE.
    """
    for files in VOCABULARY_FILES:
        paths = [folder / name for name in files]
        if all(path.is_file() for path in paths):
            read = _read_pair(*paths) if len(paths) == 2 else _read_tokenizer_json(*paths)
            return _build(paths[0], *read)
    choices = ", or ".join(" + ".join(files) for files in VOCABULARY_FILES)
    raise MissingError(
        f"{folder} has no vocabulary. Put one of these there: {choices}; for GPT-2 they are "
        "published beside the weights."
    )


Merge = tuple[str, str]

# How a token that no text makes is written, such as <|endoftext|> or [PAD].
_SPECIAL = re.compile(r"<.+>|\[.+\]", re.DOTALL)

# Settings of a BPE under which the same vocabulary cuts a text otherwise.
_OTHER_SETTINGS = (
    "byte_fallback",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "ignore_merges",
    "dropout",
)


def _read_pair(vocabulary: Path, merges: Path) -> tuple[dict[str, int], list[Merge], set[str]]:
    """Read vocab.json + merges.txt, or encoder.json + vocab.bpe, which have the same form."""
    pairs = []
    for number, line in enumerate(_read_text(merges).split("\n"), start=1):
        if line.startswith("#version") or not line.strip():
            continue
        parts = line.rstrip("\r").split(" ")
        if len(parts) != 2 or not all(parts):
            raise CheckpointError(f"{merges}, line {number}: a merge is two tokens, not {line!r}.")
        pairs.append((parts[0], parts[1]))
    return _token_ids(vocabulary, _read_json(vocabulary)), pairs, set()


def _read_tokenizer_json(path: Path) -> tuple[dict[str, int], list[Merge], set[str]]:
    content = _read_json(path)
    if not isinstance(content, dict) or not _is_byte_level_bpe(content):
        raise CheckpointError(f"{path} does not describe a byte-level BPE as GPT-2 uses it.")
    try:
        return _parts_of(path, content)
    except (TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} is not laid out as a tokenizer.json: {error!r}.") from error


def _parts_of(path: Path, content: dict[str, Any]) -> tuple[dict[str, int], list[Merge], set[str]]:
    merges: list[Merge] = []
    for merge in content["model"]["merges"]:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise CheckpointError(f"{path}: a merge is two tokens, not {merge!r}.")
        merges.append((parts[0], parts[1]))
    ids = _token_ids(path, content["model"].get("vocab"))
    added = content.get("added_tokens") or []
    for token in added:
        text, number = token["content"], token["id"]
        if not token.get("special"):
            raise CheckpointError(
                f"{path}: the added token {text!r} is not special, so it is looked for in every "
                "text before the merges; such a vocabulary is not read."
            )
        if ids.setdefault(text, number) != number:
            raise CheckpointError(f"{path} gives the token {text!r} two ids.")
    return _token_ids(path, ids), merges, {token["content"] for token in added}


def _is_byte_level_bpe(content: dict[str, Any]) -> bool:
    model, cut = content.get("model"), content.get("pre_tokenizer")
    return (
        isinstance(model, dict)
        and model.get("type") == "BPE"
        and isinstance(cut, dict)
        and cut.get("type") == "ByteLevel"
        and not cut.get("add_prefix_space")
        and cut.get("use_regex", True)
        and not any(model.get(setting) for setting in _OTHER_SETTINGS)
        and content.get("normalizer") is None
    )


def _check_order(path: Path, merges: Iterable[Merge]) -> None:
    """Refuse a merge of what is not yet made: the order of the lines is the order of the merges."""
    made = set(_BYTE_SHOWN)
    for left, right in merges:
        if left not in made or right not in made:
            raise CheckpointError(
                f"{path}: the merge of {left!r} and {right!r} stands before these are made; the "
                "merges are not in their order."
            )
        made.add(left + right)


def _build(
    path: Path, ids: Mapping[str, int], merges: Sequence[Merge], special: Set[str]
) -> Vocabulary:
    missing = [byte for byte, shown in enumerate(_BYTE_SHOWN) if shown not in ids]
    if missing:
        # tiktoken would end the process at the first text that holds one of them.
        raise CheckpointError(
            f"{path} lacks {len(missing)} of the 256 single bytes, first 0x{missing[0]:02X}: "
            "a byte-level BPE has them all."
        )
    if not merges:
        raise CheckpointError(f"{path}: there are no merges; every text would fall into its bytes.")
    ranked = dict.fromkeys([*_BYTE_SHOWN, *(left + right for left, right in merges)])
    unknown = [token for token in ranked if token not in ids]
    if unknown:
        raise CheckpointError(
            f"{path} lacks {counted(len(unknown), 'token')} that the merges make, first "
            f"{unknown[0]!r}."
        )
    _check_order(path, merges)
    others = [token for token in ids if token not in ranked]
    unmade = [token for token in others if token not in special and not _SPECIAL.fullmatch(token)]
    if unmade:
        raise CheckpointError(
            f"{path} has {counted(len(unmade), 'token')} that no merge makes, first "
            f"{unmade[0]!r}: the merges are not whole, or of another vocabulary."
        )
    if len(set(ids.values())) < len(ids):
        raise CheckpointError(f"{path} gives one id to several tokens.")
    return Vocabulary(
        ranked=tuple(_to_bytes(path, token) for token in ranked),
        ids={_to_bytes(path, token): ids[token] for token in ranked},
        special={token: number for token, number in ids.items() if token not in ranked},
    )


def _to_bytes(path: Path, token: str) -> bytes:
    try:
        return bytes(_SHOWN_BYTE[character] for character in token)
    except KeyError as error:
        raise CheckpointError(
            f"{path}: the token {token!r} has {error.args[0]!r}, which stands for no byte."
        ) from error


def _token_ids(path: Path, content: Any) -> dict[str, int]:
    if not isinstance(content, dict) or not all(
        type(number) is int and 0 <= number < MAX_SIZE for number in content.values()
    ):
        raise CheckpointError(f"{path} must map tokens to integer ids.")
    return content


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error


def _read_text(path: Path) -> str:
    try:
        # newline="" because a carriage return is never part of a line end here
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8: {error}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}).") from error


def _byte_shown() -> tuple[str, ...]:
    """Return the character that stands for each byte in the files.

    Printable bytes stand for themselves, the others are moved up by 256 in order.
    Source: bytes_to_unicode in encoder.py, published with GPT-2.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(moved)) for byte in range(256))


_BYTE_SHOWN = _byte_shown()
_SHOWN_BYTE = {shown: byte for byte, shown in enumerate(_BYTE_SHOWN)}
