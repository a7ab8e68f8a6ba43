"""The tokens of a corpus on disk: one long row to learn from and one that is held out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tokenize import TokenError

import numpy as np
import numpy.typing as npt

from probekit.model.text.tokenizer import Tokenizer
from probekit.provenance import digest, pretty_json, write_atomic
from probekit.training.corpus import Text, corpus_digest
from probekit.watcher import Watcher

RECORD = "origin.json"
PARTS = ("train", "held_out")

TokenArray = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class TokenFile:
    """Where the tokens lie, and what they came from.

    Attributes:
        train: tokens to learn from, each text behind an <|endoftext|>, shape (n_tokens,).
        held_out: likewise the ends of the texts.
        n_characters: of the held-out ends.
        corpus: digest of the texts.
        digest: of the tokens themselves.
    """

    train: TokenArray
    held_out: TokenArray
    n_characters: int
    corpus: str
    digest: str

    @property
    def tokens_per_character(self) -> float:
        """What turns nats per token into nats per character on the held-out texts."""
        return len(self.held_out) / self.n_characters


def make_token_file(
    texts: Sequence[Text], tokenizer: Tokenizer, folder: Path, watcher: Watcher
) -> TokenFile:
    """Return the tokens of the texts, read from the folder where they lie there whole, else made.

    Raises:
        StoreError: the folder cannot be written.
        ConfigError: the vocabulary has no <|endoftext|>.
    """
    origin = {"corpus": corpus_digest(texts), "vocabulary": tokenizer.digest}
    found = _read(folder, origin)
    if found is None:
        for name in PARTS:
            rows = _encode([getattr(text, name) for text in texts], tokenizer, name, watcher)
            write_atomic(folder / f"{name}.npy", rows)
        found = _load(folder)
        write_atomic(folder / RECORD, pretty_json(origin | {"tokens": _digest(found)}))
    train, held_out = found
    n_characters = sum(len(text.held_out) for text in texts)
    return TokenFile(train, held_out, n_characters, origin["corpus"], _digest(found))


def _read(folder: Path, origin: dict[str, str]) -> list[TokenArray] | None:
    """Return what lies in the folder; None where it is of another origin, or not as written."""
    try:
        found = _load(folder)
        record = json.loads((folder / RECORD).read_text("utf-8"))
    except (OSError, EOFError, ValueError, TokenError):  # the last is of numpy's reader of headers
        return None
    return found if record == origin | {"tokens": _digest(found)} else None


def _load(folder: Path) -> list[TokenArray]:
    return [np.load(folder / f"{name}.npy", mmap_mode="r") for name in PARTS]


def _digest(arrays: Sequence[TokenArray]) -> str:
    return digest([array.data.cast("B") for array in arrays])


def _encode(parts: Sequence[str], tokenizer: Tokenizer, name: str, watcher: Watcher) -> bytes:
    dtype = np.uint16 if tokenizer.n_ids <= 2**16 else np.uint32
    rows = []
    for number, part in enumerate(parts, start=1):
        rows.append(tokenizer.encode(part, bos=True).ids.astype(dtype))
        watcher.progress(f"tokens ({name})", number, len(parts))
    out = BytesIO()
    np.save(out, np.concatenate(rows))
    return out.getvalue()
