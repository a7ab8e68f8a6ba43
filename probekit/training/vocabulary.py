"""Training a byte-level BPE on the texts, written as GPT-2's is: vocab.json and merges.txt."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer as Trained
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from probekit.errors import DataError
from probekit.model.text.tokenizer import END_OF_TEXT
from probekit.model.weights.sources import VOCABULARY_FILES
from probekit.provenance import write_atomic


def train_vocabulary(texts: Iterable[str], size: int, folder: Path) -> None:
    """Write vocab.json and merges.txt of a byte-level BPE that is trained on the texts.

    Id 0 is <|endoftext|>, then come the 256 bytes, then the merges. The same texts give the same
    files. Text is cut into words as GPT-2 cuts it before anything is merged.

    Args:
        texts: what is learnt from.
        size: tokens of the vocabulary, at least 258.
        folder: gets the files.

    Raises:
        DataError: the texts are too short for so many tokens.
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
            f"The texts give {trained.get_vocab_size()} tokens, not {size}: they are too short. "
            "Set vocabulary.size to that or to less."
        )
    with TemporaryDirectory() as draft:
        trained.model.save(draft)
        copy_vocabulary(Path(draft), folder)


def copy_vocabulary(source: Path, folder: Path) -> None:
    """Copy the files of a vocabulary, whichever layout they have, from one folder to another.

    Raises:
        StoreError: the folder cannot be written.
    """
    layouts = (names for names in VOCABULARY_FILES if all((source / n).is_file() for n in names))
    for name in next(layouts, ()):
        write_atomic(folder / name, (source / name).read_bytes())
