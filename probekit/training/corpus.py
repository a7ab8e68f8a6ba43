"""A corpus of texts, a vocabulary trained on it, and its token ids on disk.

The end of each text is held out.
"""

import json
import re
import zlib
from bz2 import BZ2Decompressor
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from lzma import FORMAT_XZ, LZMADecompressor, LZMAError
from pathlib import Path
from tempfile import TemporaryDirectory
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as Trained
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from probekit.amounts import percent
from probekit.errors import DataError, MissingError, nearest
from probekit.files import regular, write_atomic
from probekit.model.text.tokenizer import END_OF_TEXT, Tokenizer
from probekit.provenance import digest, digest_json, pretty_json
from probekit.terminal import Watcher
from probekit.training.recipe import MAX_MEGABYTES

TokenArray = npt.NDArray[np.unsignedinteger]

RECORD = "origin.json"  # digests of the texts, the vocabulary and the tokens
PARTS = ("train", "held_out")  # of each text; a token file has one array for each
_MEGABYTE = 10**6
_INSIDE_PARAGRAPH = re.compile(r"(?<!\n)\n(?!\n)")  # a single line break
_TEXT = re.compile(r".*\.txt(\.(gz|bz2|xz))?", re.DOTALL)  # names of text files
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {  # wbits=31 is the format of gzip
    ".gz": partial(zlib.decompressobj, wbits=31),
    ".tgz": partial(zlib.decompressobj, wbits=31),
    ".bz2": BZ2Decompressor,
    ".xz": partial(LZMADecompressor, FORMAT_XZ),
}


@dataclass(frozen=True)
class Text:
    """One text of a corpus, split into a training part and a held-out end.

    Attributes:
        name: file name, with its subfolder of the corpus if it is in one.
        train: training part.
        held_out: end of the text, not used for training.
    """

    name: str
    train: str
    held_out: str


def read_corpus(
    source: str | Path,
    files: Sequence[str] = (),
    *,
    unwrap: bool = False,
    held_out: float = 0.02,
    max_megabytes: int = MAX_MEGABYTES,
) -> tuple[Text, ...]:
    r"""Return the texts of a corpus, each split into a training part and a held-out end.

    Args:
        source: folder, or a text file; texts may be compressed as .gz, .bz2 or .xz.
        files: names of the texts in a folder, in this order, each read once; empty for all files
            that end in .txt, also if compressed, sorted. Not used for a single text file.
        unwrap: whether to replace line breaks inside paragraphs with spaces.
        held_out: share of the characters of each text that is held out.
        max_megabytes: largest decompressed size of a compressed file, in units of 10^6 bytes.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "book.txt"
    >>> _ = path.write_text("It is a truth\nuniversally known.\n\nThe end.")
    >>> read_corpus(path, unwrap=True, held_out=0.25)[0]
    Text(name='book.txt', train='It is a truth universally known', held_out='.\n\nThe end.')

    Raises:
        MissingError: the source or one of the files does not exist or cannot be read.
        DataError: a file is an archive, damaged or too large; a text is not UTF-8 or too short to
            split; or there are no texts.
    """
    path = Path(source)
    if path.is_dir():
        paths = {str(p.relative_to(path)): p for p in sorted(path.rglob("*")) if p.is_file()}
        missing = [name for name in files if name not in paths]
        if missing:
            near = nearest(missing[0], paths)
            raise MissingError(f"{path} does not contain {missing[0]!r}. {near}")
        wanted = {name: paths[name] for name in files or sorted(filter(_TEXT.fullmatch, paths))}
    else:
        wanted = {path.name: path}
    if not wanted:
        raise DataError(f"{path} contains no .txt file. Name other files in `corpus.files`.")
    contents = ((name, _content(file, max_megabytes)) for name, file in wanted.items())
    return tuple(_text(path, name, content, unwrap, held_out) for name, content in contents)


def corpus_digest(texts: Sequence[Text]) -> str:
    """Return the digest of the texts and their splits."""
    return digest_json([[text.name, text.train, text.held_out] for text in texts])


def _content(path: Path, max_megabytes: int) -> bytes:
    """Return the content of a file; a compressed one is read to its end, with every checksum.

    A zip or tar archive is refused, and so is compressed content above `max_megabytes`. .gz and
    .bz2 store a CRC-32 of their contents; .xz stores a CRC-64 unless it was written with another
    check.
    """
    try:
        data = regular(path).read_bytes()
    except OSError as error:
        raise MissingError(
            f"{path.absolute()} cannot be read: {error.strerror}. Check `corpus.source`."
        ) from error
    new_stream = _DECOMPRESSORS.get(path.suffix.lower())
    if new_stream is not None:
        limit = max_megabytes * _MEGABYTE
        try:
            # The content of all compressed streams, at most one byte more than the limit, which
            # shows that it is exceeded. A file may have several streams (pbzip2), and zeros after
            # one. Python's readers of .bz2 and .xz ignore invalid data after the first stream, such
            # as a damaged second one.
            n_left = limit + 1
            parts = []
            while n_left:
                stream = new_stream()
                parts.append(stream.decompress(data, n_left))
                n_left -= len(parts[-1])
                if n_left and not stream.eof:
                    raise EOFError("it ends in the middle of the compressed data")
                data = stream.unused_data.lstrip(b"\0")
                if not data:
                    break
            data = b"".join(parts)
        except (zlib.error, LZMAError, OSError, EOFError, ValueError) as error:
            raise DataError(
                f"{path} is damaged or not a {path.suffix} file: {str(error).rstrip('.')}. "
                "Download it again, or unpack it first."
            ) from error
        if len(data) > limit:
            raise DataError(
                f"{path} has more than {max_megabytes:,} MB of decompressed content. If this is "
                "intended, increase `corpus.max_megabytes`."
            )
    if data.startswith((b"PK\3\4", b"PK\5\6")) or data[257:262] == b"ustar":  # zip or tar
        raise DataError(
            f"{path} is an archive. Unpack it first, and set `corpus.source` to the folder."
        )
    return data


def _text(path: Path, name: str, content: bytes, unwrap: bool, held_out: float) -> Text:
    """Return a text of the corpus, decoded and split; `path` is the source, for messages."""
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        # `error.object` is the content without its byte order mark, as `error.start` counts it.
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}: {name}, line {line}: the byte {error.object[error.start]:#04x} is not UTF-8. "
            "Save the text as UTF-8, or remove it from `corpus.files`."
        ) from error
    if unwrap:
        text = _INSIDE_PARAGRAPH.sub(" ", text)
    end = int(len(text) * (1 - held_out) + 1e-6)  # rounding must not turn 0.98 * 50 = 49 into 48
    if not 0 < end < len(text):
        raise DataError(
            f"{name} has {len(text)} characters, too few to hold out {percent(held_out)} of them."
        )
    return Text(name, text[:end], text[end:])


def train_vocabulary(texts: Iterable[str], size: int, folder: Path) -> None:
    """Train a byte-level BPE in GPT-2's format on texts; write its vocab.json and merges.txt.

    Id 0 is <|endoftext|>, followed by the 256 bytes and the merges. The result is deterministic.
    Text is split into words as in GPT-2 before merging.

    Args:
        texts: training texts.
        size: vocabulary size, at least 258.
        folder: output folder.

    Raises:
        DataError: the texts are too short for this vocabulary size.
        StoreError: the folder cannot be written.
        CheckpointError: the folder has a damaged digests.json.
    """
    trained = Trained(BPE())
    trained.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    if trained.get_vocab_size() < size:
        raise DataError(
            f"The texts yield only {trained.get_vocab_size()} tokens instead of {size}: they are "
            "too short. Set vocabulary.size to that number or less."
        )
    with TemporaryDirectory() as draft:
        trained.model.save(draft)
        # Our tokenizer verifies the files, and writes their digests.
        Tokenizer.from_pretrained(Path(draft)).save_pretrained(folder)


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


def make_token_file(
    texts: Sequence[Text], tokenizer: Tokenizer, folder: Path, watcher: Watcher
) -> TokenFile:
    """Tokenize texts into a folder, or reuse the valid result of an earlier call there.

    Raises:
        StoreError: the folder cannot be written.
        ConfigError: the vocabulary has no <|endoftext|>.
    """
    origin = {"corpus": corpus_digest(texts), "vocabulary": tokenizer.digest}
    try:
        arrays = _load(folder)
        record = json.loads((folder / RECORD).read_text("utf-8"))
        is_valid = record == (origin | {"tokens": _digest(arrays)})
    except (OSError, EOFError, ValueError, TokenError):  # the last is of numpy's reader of headers
        is_valid = False
    if not is_valid:
        dtype = np.uint16 if tokenizer.n_ids <= 2**16 else np.uint32
        for name in PARTS:
            encoded, out = [], BytesIO()
            for number, text in enumerate(texts, start=1):
                # Each text follows <|endoftext|>.
                encoded.append(tokenizer.encode(getattr(text, name), bos=True).ids.astype(dtype))
                watcher.progress(f"tokens ({name})", number, len(texts))
            np.save(out, np.concatenate(encoded))
            write_atomic(folder / f"{name}.npy", out.getvalue())
        arrays = _load(folder)
        write_atomic(folder / RECORD, pretty_json(origin | {"tokens": _digest(arrays)}))
    n_characters = sum(len(text.held_out) for text in texts)
    train, held_out = arrays
    return TokenFile(train, held_out, n_characters, origin["corpus"], _digest(arrays))


def _load(folder: Path) -> list[TokenArray]:
    """Return the training and the held-out tokens in a folder, in this order, memory-mapped."""
    return [np.load(folder / f"{name}.npy", mmap_mode="r") for name in PARTS]


def _digest(arrays: Sequence[TokenArray]) -> str:
    return digest([array.data.cast("B") for array in arrays])
