"""Token files match the texts and are rewritten when texts or vocabulary change."""

import numpy as np
import pytest

from probekit.model.text.tokenizer import Tokenizer
from probekit.terminal import SILENT
from probekit.training.corpus import read_corpus
from probekit.training.token_file import make_token_file


def test_the_tokens_are_those_of_the_texts(corpus, tmp_path):
    tokenizer, texts = Tokenizer.from_pretrained("mini"), read_corpus(corpus, held_out=0.1)
    tokens = make_token_file(texts, tokenizer, tmp_path / "tokens", SILENT)
    between = "<|endoftext|>"
    assert tokenizer.decode(tokens.train) == "".join(between + text.train for text in texts)
    assert tokenizer.decode(tokens.held_out) == "".join(between + text.held_out for text in texts)
    assert tokens.train.dtype == np.uint16
    assert tokens.n_characters == sum(len(text.held_out) for text in texts)


def test_they_are_made_once(corpus, tmp_path):
    tokenizer, texts = Tokenizer.from_pretrained("mini"), read_corpus(corpus)
    first = make_token_file(texts, tokenizer, tmp_path / "tokens", SILENT)
    before = (tmp_path / "tokens" / "train.npy").stat().st_mtime_ns
    again = make_token_file(texts, tokenizer, tmp_path / "tokens", SILENT)
    assert (tmp_path / "tokens" / "train.npy").stat().st_mtime_ns == before
    assert again.digest == first.digest


def test_other_texts_are_encoded_anew(corpus, tmp_path):
    tokenizer = Tokenizer.from_pretrained("mini")
    first = make_token_file(read_corpus(corpus), tokenizer, tmp_path / "tokens", SILENT)
    (corpus / "a.txt").write_text("Something else entirely. " * 50)
    again = make_token_file(read_corpus(corpus), tokenizer, tmp_path / "tokens", SILENT)
    assert again.digest != first.digest
    assert tokenizer.decode(again.train[:6]).startswith("<|endoftext|>Something else")


@pytest.mark.parametrize("name", ["train.npy", "held_out.npy", "origin.json"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-1],
        lambda b: b[:-1] + b"\x07",
        lambda b: b"",
        lambda b: b.replace(b"}", b" "),  # numpy raises a TokenError
    ],
    ids=["cut", "changed", "empty", "bracket"],
)
def test_what_was_damaged_is_made_anew(corpus, tmp_path, name, damage):
    tokenizer, texts = Tokenizer.from_pretrained("mini"), read_corpus(corpus)
    first = make_token_file(texts, tokenizer, tmp_path / "tokens", SILENT)
    train = first.train.copy()  # the file itself is mapped, and about to change
    path = tmp_path / "tokens" / name
    path.write_bytes(damage(path.read_bytes()))
    again = make_token_file(texts, tokenizer, tmp_path / "tokens", SILENT)
    assert again.digest == first.digest
    assert (again.train == train).all()
