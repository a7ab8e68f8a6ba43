"""CONTRIBUTING.md: the files it names exist, and hold the names that it says they hold."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
CODE = re.compile(r"`([^`]+)`")
PATH = re.compile(r"[\w./-]+(\.(py|txt|yaml|md|json|css)|/)")
PLACEHOLDERS = re.compile(r"[A-Z]{3,}\.py|PATH|FOLDER|\.venv|build/|__snapshots__")
NAME = re.compile(r"[A-Za-z_]\w+")
ROWS = re.findall(r"^\| (?!to add)(.*?) \| (.*) \|$", TEXT.partition("## To add X")[2], re.M)


def files_in(text):
    """The files and folders that a text names, relative to the repository or the package."""
    for code in CODE.findall(text):
        if PATH.fullmatch(code) and not PLACEHOLDERS.search(code):
            places = (ROOT / code, ROOT / "probekit" / code)
            yield code, next((place for place in places if place.exists()), None)


def test_every_file_exists():
    missing = {code for code, place in files_in(TEXT) if place is None}
    assert not missing - {"probekit/*.py"}


@pytest.mark.parametrize(("what", "touch"), ROWS, ids=[what for what, _ in ROWS])
def test_the_files_of_a_row_hold_its_names(what, touch):
    places = [place for _, place in files_in(touch) if place]
    paths = [path for place in places for path in ([place] if place.is_file() else place.iterdir())]
    words = {word for path in paths if path.is_file() for word in NAME.findall(path.read_text())}
    assert {code for code in CODE.findall(touch) if NAME.fullmatch(code)} <= words
