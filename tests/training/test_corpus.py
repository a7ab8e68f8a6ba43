"""Texts are read from folders, archives and files; invalid texts are named."""

import io
import tarfile
import zipfile

import pytest

from probekit.errors import DataError, MissingError
from probekit.training.corpus import corpus_digest, read_corpus

BOOKS = {
    "b.txt": "One line\nand another.\n\nA paragraph.",
    "a.txt": "Short but enough.",
    "c.md": "no",
}


def as_folder(path):
    path.mkdir()
    for name, text in BOOKS.items():
        (path / name).write_text(text)
    return path


def as_tar(path):
    with tarfile.open(path.with_suffix(".tar.xz"), "w:xz") as archive:
        for name, text in BOOKS.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path.with_suffix(".tar.xz")


def as_zip(path):
    with zipfile.ZipFile(path.with_suffix(".zip"), "w") as archive:
        for name, text in BOOKS.items():
            archive.writestr(name, text)
    return path.with_suffix(".zip")


@pytest.fixture(params=[as_folder, as_tar, as_zip], ids=["folder", "tar", "zip"])
def source(request, tmp_path):
    return request.param(tmp_path / "books")


def test_all_texts_are_read_by_name(source):
    texts = read_corpus(source)
    assert [text.name for text in texts] == ["a.txt", "b.txt"]
    assert texts[1].train + texts[1].held_out == BOOKS["b.txt"]


def test_named_files_are_read_in_the_order_named(source):
    assert [text.name for text in read_corpus(source, ["c.md", "b.txt"], held_out=0.4)] == [
        "c.md",
        "b.txt",
    ]


def test_an_unknown_name_gets_the_nearest_ones(source):
    with pytest.raises(MissingError, match=r"does not contain 'd.txt'.*Nearest: .*b.txt"):
        read_corpus(source, ["d.txt"])


def test_the_end_of_each_text_is_held_out(tmp_path):
    (tmp_path / "book.txt").write_text("x" * 98 + "yz")
    [text] = read_corpus(tmp_path / "book.txt", held_out=0.02)
    assert (text.train, text.held_out) == ("x" * 98, "yz")


def test_only_breaks_inside_paragraphs_become_spaces(tmp_path):
    (tmp_path / "book.txt").write_bytes(b"One\r\ntwo\r\n\r\nthree\n\n\nfour")
    [text] = read_corpus(tmp_path / "book.txt", unwrap=True)
    assert text.train + text.held_out == "One two\n\nthree\n\n\nfour"


def test_what_is_not_utf8_is_named_with_its_line(tmp_path):
    (tmp_path / "good.txt").write_text("All is well here.")
    (tmp_path / "latin.txt").write_bytes("One\ntwo\ncaf\xe9 three".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin.txt, line 3: the byte 0xe9 is not UTF-8"):
        read_corpus(tmp_path)


@pytest.mark.parametrize("content", ["", "x"])
def test_a_text_too_short_to_cut_is_refused(tmp_path, content):
    (tmp_path / "book.txt").write_text(content)
    with pytest.raises(DataError, match=r"book.txt has \d characters, too few"):
        read_corpus(tmp_path)


def test_a_missing_corpus_is_reported(tmp_path):
    with pytest.raises(MissingError, match=r"does not exist. Check"):
        read_corpus(tmp_path / "nothing")


def test_a_folder_without_texts_is_reported(tmp_path):
    with pytest.raises(DataError, match=r"contains no .txt file"):
        read_corpus(tmp_path)


def test_a_truncated_archive_is_reported(tmp_path):
    path = as_tar(tmp_path / "books")
    path.write_bytes(path.read_bytes()[:120])
    with pytest.raises(DataError, match="damaged"):
        read_corpus(path)


def test_the_digest_sees_every_letter_and_every_cut(tmp_path):
    (tmp_path / "book.txt").write_text("word " * 100)
    digests = {corpus_digest(read_corpus(tmp_path, held_out=share)) for share in (0.1, 0.2)}
    (tmp_path / "book.txt").write_text("word " * 99 + "Word ")
    digests.add(corpus_digest(read_corpus(tmp_path, held_out=0.1)))
    assert len(digests) == 3
