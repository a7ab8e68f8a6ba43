"""The tokens of a corpus on disk: one long row to learn from and one that is held out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from probekit.model.tokenizer import Tokenizer
from probekit.provenance import digest, pretty_json, write_atomic
from probekit.training.corpus import Text, corpus_digest
from probekit.watcher import Watcher

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


@dataclass(frozen=True)
class _Origin:
    """What a token file was made of; it is used again when this is the same."""

    corpus: str
    vocabulary: str


def make_token_file(
    texts: Sequence[Text], tokenizer: Tokenizer, folder: Path, watcher: Watcher
) -> TokenFile:
    """Return the tokens of the texts, read from the folder where they are there, else written.

    Raises:
        StoreError: the folder cannot be written.
        ConfigError: the vocabulary has no <|endoftext|>.
    """
    origin = _Origin(corpus_digest(texts), tokenizer.digest)
    record = folder / "origin.json"
    names = ("train", "held_out")
    if not (record.is_file() and json.loads(record.read_text("utf-8")) == asdict(origin)):
        record.unlink(missing_ok=True)  # what it says is about to be untrue
        for name in names:
            parts = [getattr(text, name) for text in texts]
            write_atomic(folder / f"{name}.npy", _encode(parts, tokenizer, name, watcher))
        write_atomic(record, pretty_json(asdict(origin)))
    train, held_out = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in names)
    return TokenFile(
        train,
        held_out,
        sum(len(text.held_out) for text in texts),
        origin.corpus,
        digest([memoryview(train).cast("B"), memoryview(held_out).cast("B")]),
    )


def _encode(parts: Iterable[str], tokenizer: Tokenizer, name: str, watcher: Watcher) -> bytes:
    dtype = np.uint16 if tokenizer.n_ids <= 2**16 else np.uint32
    parts = list(parts)
    rows = []
    for number, part in enumerate(parts, start=1):
        rows.append(tokenizer.encode(part, bos=True).ids.astype(dtype))
        watcher.progress(f"tokens ({name})", number, len(parts))
    out = BytesIO()
    np.save(out, np.concatenate(rows))
    return out.getvalue()
