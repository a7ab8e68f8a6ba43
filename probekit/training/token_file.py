"""Token ids of a corpus on disk: one array for training and one held out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tokenize import TokenError

import numpy as np
import numpy.typing as npt

from probekit.files import write_atomic
from probekit.model.text.tokenizer import Tokenizer
from probekit.provenance import digest, pretty_json
from probekit.terminal import Watcher
from probekit.training.corpus import Text, corpus_digest

RECORD = "origin.json"
PARTS = ("train", "held_out")

TokenArray = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True)
class TokenFile:
    """Memory-mapped token ids of a corpus and their origin.

    Attributes:
        train: training tokens, each text preceded by <|endoftext|>, shape (n_tokens,).
        held_out: tokens of the held-out ends, each also after <|endoftext|>, shape (n_held_out,).
        n_characters: number of characters in the held-out ends.
        corpus: digest of the texts.
        digest: digest of the token ids.
    """

    train: TokenArray
    held_out: TokenArray
    n_characters: int
    corpus: str
    digest: str

    @property
    def tokens_per_character(self) -> float:
        """Factor from nats per token to nats per character on the held-out text."""
        return len(self.held_out) / self.n_characters


def make_token_file(
    texts: Sequence[Text], tokenizer: Tokenizer, folder: Path, watcher: Watcher
) -> TokenFile:
    """Tokenize texts into a folder, or reuse the valid result of an earlier call there.

    Raises:
        StoreError: the folder cannot be written.
        ConfigError: the vocabulary has no <|endoftext|>.
    """
    origin = {"corpus": corpus_digest(texts), "vocabulary": tokenizer.digest}
    arrays = _read(folder, origin)
    if arrays is None:
        for name in PARTS:
            rows = _encode([getattr(text, name) for text in texts], tokenizer, name, watcher)
            write_atomic(folder / f"{name}.npy", rows)
        arrays = _load(folder)
        write_atomic(folder / RECORD, pretty_json(origin | {"tokens": _digest(arrays)}))
    train, held_out = arrays
    n_characters = sum(len(text.held_out) for text in texts)
    return TokenFile(train, held_out, n_characters, origin["corpus"], _digest(arrays))


def _read(folder: Path, origin: dict[str, str]) -> list[TokenArray] | None:
    """Load the arrays in a folder; None if they are of another origin or damaged."""
    try:
        arrays = _load(folder)
        record = json.loads((folder / RECORD).read_text("utf-8"))
    except (OSError, EOFError, ValueError, TokenError):  # the last is of numpy's reader of headers
        return None
    return arrays if record == origin | {"tokens": _digest(arrays)} else None


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
