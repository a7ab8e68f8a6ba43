"""The same texts in every archive format, small enough to be read a hundred times."""

import io
import random
import tarfile
import zipfile

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon")


def make_texts():
    draw = random.Random(0)
    names = [f"books/{number}.txt" for number in range(5)]
    texts = {name: " ".join(draw.choices(WORDS, k=2000)) + f" {draw.random()}" for name in names}
    return texts | {"notes.md": "not learnt " * 30}


TEXTS = make_texts()


def tar_bytes(mode, texts=TEXTS):
    """Return a .tar of the texts; the mode is `w`, `w:gz`, `w:bz2` or `w:xz`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, text in texts.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def zip_bytes(compression=zipfile.ZIP_DEFLATED, texts=TEXTS):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    return out.getvalue()


ARCHIVES = {
    "books.tar.gz": tar_bytes("w:gz"),
    "books.tar.bz2": tar_bytes("w:bz2"),
    "books.tar.xz": tar_bytes("w:xz"),
    "books.zip": zip_bytes(),
    "stored.zip": zip_bytes(zipfile.ZIP_STORED),
}
PLAIN_TAR = tar_bytes("w")
