"""Archives are read to the end; damaged, encrypted or oversized ones are refused."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import pytest

from probekit.errors import DataError
from probekit.training.corpus import read_corpus
from tests.damage import cut, flipped, swapped
from tests.training.archives import ARCHIVES, PLAIN_TAR, TEXTS, tar_bytes, zip_bytes

BOOKS = {name: text for name, text in TEXTS.items() if name.endswith(".txt")}
COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def write(folder, name, content):
    (folder / name).write_bytes(content)
    return folder / name


def read(path, **options):
    return {text.name: text.train + text.held_out for text in read_corpus(path, **options)}


@pytest.fixture(params=ARCHIVES)
def archive(request):
    return request.param, ARCHIVES[request.param]


def test_whole_archives_are_read(tmp_path, archive):
    assert read(write(tmp_path, *archive)) == BOOKS


def outcome(path):
    """Return the texts, or the error message."""
    try:
        return read(path)
    except DataError as error:
        return str(error)


def test_a_flipped_bit_never_changes_the_training_text(tmp_path, archive):
    name, content = archive
    outcomes = [outcome(write(tmp_path, name, damaged)) for damaged in flipped(content, 100)]
    # Some bits have no meaning, such as those of the date of a file.
    refused = [found for found in outcomes if found != BOOKS]
    assert len(refused) >= 90
    assert all(str(tmp_path / name) in message for message in refused)


def test_swapped_stretches_never_change_what_is_learnt(tmp_path, archive):
    name, content = archive
    for damaged in swapped(content, 40):
        found = outcome(write(tmp_path, name, damaged))
        assert found == BOOKS or str(tmp_path / name) in found


def test_a_cut_archive_is_refused(tmp_path, archive):
    name, content = archive
    for damaged in cut(content, 40):
        with pytest.raises(DataError, match=name):
            read(write(tmp_path, name, damaged))


def test_a_damaged_header_of_a_plain_tar_is_not_its_end(tmp_path):
    with tarfile.open(fileobj=io.BytesIO(PLAIN_TAR)) as archive:
        offsets = [member.offset for member in archive]
    for offset in offsets:
        for place in (0, 100, 124, 150, 257):  # name, mode, size, checksum, magic
            damaged = bytearray(PLAIN_TAR)
            damaged[offset + place] ^= 1
            with pytest.raises(DataError, match=r"books\.tar is damaged"):
                read(write(tmp_path, "books.tar", damaged))


def test_a_tar_cut_between_two_files_is_refused(tmp_path):
    with tarfile.open(fileobj=io.BytesIO(PLAIN_TAR)) as archive:
        offsets = [member.offset for member in archive]
    for offset in offsets:
        with pytest.raises(DataError, match=r"books\.tar is damaged"):
            read(write(tmp_path, "books.tar", PLAIN_TAR[:offset]))


@pytest.mark.parametrize("ending", COMPRESS)
def test_concatenated_tars_are_refused(tmp_path, ending):
    path = write(tmp_path, f"two.tar.{ending}", COMPRESS[ending](PLAIN_TAR + PLAIN_TAR))
    with pytest.raises(DataError, match="data follow the end-of-archive mark"):
        read(path)


@pytest.mark.parametrize("ending", COMPRESS)
def test_all_streams_of_a_file_are_read(tmp_path, ending):
    """As pigz, pbzip2 and pixz write them."""
    middle = len(PLAIN_TAR) // 2
    first, second = (COMPRESS[ending](part) for part in (PLAIN_TAR[:middle], PLAIN_TAR[middle:]))
    name = f"books.tar.{ending}"
    assert read(write(tmp_path, name, first + second)) == BOOKS
    assert read(write(tmp_path, name, first + second + bytes(512))) == BOOKS
    damaged = bytearray(second)
    damaged[1] ^= 1  # Python's readers would take the second stream for padding
    for rest in (damaged, second[:-3], second + b"rest"):
        with pytest.raises(DataError, match=name):
            read(write(tmp_path, name, first + rest))


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_compressed_text_is_a_corpus_of_one(tmp_path, ending):
    content = COMPRESS[ending](b"One text and nothing else.")
    name = f"book.txt.{ending}"
    assert read(write(tmp_path, name, content)) == {name: "One text and nothing else."}
    whole = {name: "One text and nothing else."}
    damaged = (*flipped(content, 40), *cut(content, 10))
    outcomes = [outcome(write(tmp_path, name, content)) for content in damaged]
    assert all(name in found for found in outcomes if found != whole)
    assert sum(found != whole for found in outcomes) >= 35


def test_an_archive_format_is_detected_from_its_content(tmp_path, archive):
    assert read(write(tmp_path, "books", archive[1])) == BOOKS


def test_a_file_that_contradicts_its_suffix_is_refused(tmp_path):
    for name in ("books.zip", "books.tar", "books.tar.gz", "books.bz2", "books.txz"):
        with pytest.raises(DataError, match=rf"{name} is damaged or not an archive"):
            read(write(tmp_path, name, b"It is a text. " * 100))


def test_an_encrypted_zip_says_so(tmp_path):
    content = bytearray(zip_bytes())
    directory = content.index(b"PK\x01\x02")
    content[6] |= 1
    content[directory + 8] |= 1
    with pytest.raises(DataError, match=r"books\.zip is encrypted: books/0\.txt needs a password"):
        read(write(tmp_path, "books.zip", content))


def test_an_unsupported_compression_is_reported(tmp_path):
    path = write(tmp_path, "books.zip", zip_bytes(zipfile.ZIP_BZIP2))
    with pytest.raises(DataError, match=r"books\.zip.*method 12 of books/0\.txt.*Unpack it"):
        read(path)


def test_a_zip_whose_directory_lost_files_is_refused(tmp_path):
    content = bytearray(zip_bytes())
    first = content.index(b"PK\x01\x02")
    content[first + 33] = 2  # the comment of the first file swallows those after it
    with pytest.raises(DataError, match=r"lists 1 files instead of 6"):
        read(write(tmp_path, "books.zip", content))


BOMB = {"bomb.txt": "0" * 3_000_000}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bomb.tar", tar_bytes("w", BOMB)),
        *((f"bomb.tar.{kind}", tar_bytes(f"w:{kind}", BOMB)) for kind in COMPRESS),
        *((f"bomb.{kind}", pack(b"0" * 3_000_000)) for kind, pack in COMPRESS.items()),
        ("bomb.zip", zip_bytes(texts=BOMB)),
        ("unread.zip", zip_bytes(texts={"big.md": "0" * 3_000_000} | TEXTS)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bomb_is_refused_and_the_limit_can_be_raised(tmp_path, name, content):
    path = write(tmp_path, name, content)
    with pytest.raises(DataError, match=rf"{name} has more than 2 MB.*`corpus.max_megabytes`"):
        read(path, max_megabytes=2)
    assert read(path, max_megabytes=4)


def test_a_hole_counts_as_content(tmp_path):
    """A sparse file of 8 GB takes 1,024 bytes in a .tar."""
    info = tarfile.TarInfo("hole.txt")
    info.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(8 * 10**9)}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)
    with pytest.raises(DataError, match="has more than 1,000 MB"):
        read(write(tmp_path, "hole.tar", out.getvalue()))
