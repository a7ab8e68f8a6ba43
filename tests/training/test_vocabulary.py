"""A trained vocabulary can be loaded by the tokenizer and contains every byte."""

import pytest

from probekit.errors import DataError
from probekit.model.text.tokenizer import Tokenizer
from probekit.training.vocabulary import train_vocabulary
from tests.training.recipes import sentences


@pytest.fixture
def folder(tmp_path):
    train_vocabulary([sentences(1, 200)], 300, tmp_path)
    return tmp_path


def test_it_has_the_requested_size_and_end_of_text_first(folder):
    tokenizer = Tokenizer.from_pretrained(folder)
    assert (tokenizer.n_ids, tokenizer.bos_id) == (300, 0)


def test_frequent_words_are_one_token_and_any_text_survives(folder):
    tokenizer = Tokenizer.from_pretrained(folder)
    assert len(tokenizer.encode("the cabinets", bos=False).ids) < 8
    text = "The river – naïve \U0001f600\n\n\ttabs"
    assert tokenizer.decode(tokenizer.encode(text, bos=False).ids) == text


def test_the_same_texts_give_the_same_files(folder, tmp_path):
    train_vocabulary([sentences(1, 200)], 300, tmp_path / "again")
    for name in ("vocab.json", "merges.txt"):
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_too_little_text_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"yield only \d+ tokens instead of 5000"):
        train_vocabulary(["a few words"], 5000, tmp_path)
