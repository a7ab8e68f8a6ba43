"""Texts, vocabulary and tokens of a corpus; files are read to their end, damage is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from probekit.errors import DataError
from probekit.model.text.tokenizer import Tokenizer
from probekit.terminal import SILENT
from probekit.training.corpus import corpus_digest, make_token_file, read_corpus, train_vocabulary
from tests.damage import cut, flipped, swapped
from tests.training.recipes import COMPRESS, sentences

BOOKS = {"b.txt": "One line\nand another.\n\nA paragraph.", "a.txt": "Short but enough."}
BOOKS["c.md"] = "no"
BOOK = sentences(0, 400)


@pytest.fixture
def source(tmp_path):
    for name, text in BOOKS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def read(path, **options):
    return {text.name: text.train + text.held_out for text in read_corpus(path, **options)}


@pytest.mark.parametrize(
    ("files", "names"), [((), ["a.txt", "b.txt"]), (["c.md", "b.txt"], ["c.md", "b.txt"])]
)
def test_texts_are_read_by_name_or_in_the_order_named(source, files, names):
    assert read(source, files=files, held_out=0.4) == {name: BOOKS[name] for name in names}
    assert [text.name for text in read_corpus(source, files, held_out=0.4)] == names


def test_the_end_of_each_text_is_held_out(tmp_path):
    (tmp_path / "book.txt").write_text("x" * 98 + "yz")
    [text] = read_corpus(tmp_path / "book.txt", held_out=0.02)
    assert (text.train, text.held_out) == ("x" * 98, "yz")


def test_only_breaks_inside_paragraphs_become_spaces(tmp_path):
    (tmp_path / "book.txt").write_bytes(b"One\r\ntwo\r\n\r\nthree\n\n\nfour")
    [text] = read_corpus(tmp_path / "book.txt", unwrap=True)
    assert text.train + text.held_out == "One two\n\nthree\n\n\nfour"


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"good.txt": b"All is well here.", "latin.txt": b"\xef\xbb\xbfOne\n\ncaf\xe9\n"}, ()),
        ({"book.txt": b""}, ()),
        ({"book.txt": b"x"}, ()),
        ({"c.md": b"no"}, ()),
        ({"b.txt": b"One line."}, ["d.txt"]),
    ],
    ids=["bytes that are not UTF-8", "empty", "too short to cut", "no texts", "unknown name"],
)
def test_what_cannot_be_read_is_named(tmp_path, refused, files, names):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    refused(read_corpus, tmp_path, names)


@pytest.fixture(params=COMPRESS)
def packed(request, tmp_path):
    """A function that reads a compressed text, None if it is refused, and one that compresses."""
    path = tmp_path / f"book.txt.{request.param}"

    def outcome(content):
        path.write_bytes(content)
        try:
            return read(path)[path.name]
        except DataError as error:
            return None if str(path) in str(error) else error

    return outcome, COMPRESS[request.param]


def test_compressed_texts_are_read_alone_and_in_a_folder(packed, source):
    outcome, compress = packed
    assert outcome(compress(BOOK.encode())) == BOOK
    assert [name.partition(".txt")[0] for name in read(source)] == ["a", "b", "book"]


def test_damage_never_changes_the_training_text(packed):
    outcome, compress = packed
    content = compress(BOOK.encode())
    outcomes = [outcome(damaged) for damaged in flipped(content, 100)]
    assert set(outcomes) <= {BOOK, None}  # some bits have no meaning, such as those of the date
    assert outcomes.count(None) >= 85
    assert {outcome(damaged) for damaged in swapped(content, 40)} <= {BOOK, None}
    assert {outcome(damaged) for damaged in cut(content, 40)} == {None}


def test_all_streams_of_a_file_are_read(packed):
    """As pigz, pbzip2 and pixz write them."""
    outcome, compress = packed
    middle = len(BOOK) // 2
    first, second = (compress(part.encode()) for part in (BOOK[:middle], BOOK[middle:]))
    assert outcome(first + second) == BOOK
    assert outcome(first + second + bytes(512)) == BOOK
    damaged = bytearray(second)
    damaged[1] ^= 1  # Python's readers would take the second stream for padding
    for rest in (damaged, second[:-3], second + b"rest"):
        assert outcome(first + rest) is None


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_bomb_is_refused_and_the_limit_can_be_raised(tmp_path, ending):
    path = tmp_path / f"bomb.{ending}"
    path.write_bytes(COMPRESS[ending](b"0" * 3_000_000))
    with pytest.raises(DataError, match=rf"{path.name} has more than 2 MB.*`corpus.max_megabytes`"):
        read(path, max_megabytes=2)
    assert read(path, max_megabytes=4)


ARCHIVES = {"books.zip": "zip", "books.txt": "zip", "books.tar": "tar", "books": "tar"}
ARCHIVES |= {"books.gz": "gztar", "books.tgz": "gztar", "books.tar.xz": "xztar"}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_must_be_unpacked_first(source, tmp_path_factory, name):
    folder = tmp_path_factory.mktemp("archives")
    made = shutil.make_archive(str(folder / "made"), ARCHIVES[name], source)
    with pytest.raises(DataError, match=rf"{name} is an archive\. Unpack it first"):
        read(Path(made).rename(folder / name))


def test_the_digest_sees_every_letter_and_every_cut(tmp_path):
    (tmp_path / "book.txt").write_text("word " * 100)
    digests = {corpus_digest(read_corpus(tmp_path, held_out=share)) for share in (0.1, 0.2)}
    (tmp_path / "book.txt").write_text("word " * 99 + "Word ")
    digests.add(corpus_digest(read_corpus(tmp_path, held_out=0.1)))
    assert len(digests) == 3


@pytest.fixture
def vocabulary(tmp_path):
    train_vocabulary([sentences(1, 200)], 300, tmp_path)
    return tmp_path


def test_a_vocabulary_has_its_size_and_frequent_words_and_any_text_survives(vocabulary):
    tokenizer = Tokenizer.from_pretrained(vocabulary)
    assert (tokenizer.n_ids, tokenizer.bos_id) == (300, 0)
    assert len(tokenizer.encode("the cabinets", bos=False).ids) < 8
    text = "The river – naïve \U0001f600\n\n\ttabs"
    assert tokenizer.decode(tokenizer.encode(text, bos=False).ids) == text


def test_the_same_texts_give_the_same_files(vocabulary, tmp_path):
    train_vocabulary([sentences(1, 200)], 300, tmp_path / "again")
    for name in ("vocab.json", "merges.txt"):
        assert (vocabulary / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_vocabulary_of_too_little_text_is_refused(tmp_path, refused):
    refused(train_vocabulary, ["a few words"], 5000, tmp_path)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_pretrained("mini")


def test_the_tokens_are_those_of_the_texts(corpus, tmp_path, tokenizer):
    texts = read_corpus(corpus, held_out=0.1)
    tokens = make_token_file(texts, tokenizer, tmp_path / "tokens", SILENT)
    between = "<|endoftext|>"
    assert tokenizer.decode(tokens.train) == "".join(between + text.train for text in texts)
    assert tokenizer.decode(tokens.held_out) == "".join(between + text.held_out for text in texts)
    assert tokens.train.dtype == np.uint16
    assert tokens.n_characters == sum(len(text.held_out) for text in texts)
    before = (tmp_path / "tokens" / "train.npy").stat().st_mtime_ns  # they are made once
    assert make_token_file(texts, tokenizer, tmp_path / "tokens", SILENT).digest == tokens.digest
    assert (tmp_path / "tokens" / "train.npy").stat().st_mtime_ns == before


def test_other_texts_are_encoded_anew(corpus, tmp_path, tokenizer):
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
def test_what_was_damaged_is_made_anew(corpus, tmp_path, tokenizer, name, damage):
    texts = read_corpus(corpus)
    first = make_token_file(texts, tokenizer, tmp_path / "tokens", SILENT)
    train = first.train.copy()  # the file itself is mapped, and about to change
    path = tmp_path / "tokens" / name
    path.write_bytes(damage(path.read_bytes()))
    again = make_token_file(texts, tokenizer, tmp_path / "tokens", SILENT)
    assert again.digest == first.digest
    assert (again.train == train).all()
