"""Training of a byte-level BPE vocabulary in GPT-2's format: vocab.json and merges.txt."""

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
from probekit.model.text.tokenizer import Tokenizer as Loaded


def train_vocabulary(texts: Iterable[str], size: int, folder: Path) -> None:
    """Train a byte-level BPE on texts and write its vocab.json and merges.txt.

    Id 0 is <|endoftext|>, followed by the 256 bytes and the merges. The result is deterministic.
    Text is split into words as in GPT-2 before merging.

    Args:
        texts: training texts.
        size: vocabulary size, at least 258.
        folder: output folder.

    Raises:
        DataError: the texts are too short for this vocabulary size.
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
        Loaded.from_pretrained(Path(draft)).save_pretrained(folder)
