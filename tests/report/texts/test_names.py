"""Names on pages have no folders of the machine that wrote the page."""

import pytest

from probekit.report.texts.names import model_title, without_folders


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("mini", "mini"),
        ("org/name@main", "org/name@main"),
        ("runs/mine/checkpoints/step-10", "runs/mine/checkpoints/step-10"),
        ("/data/models/mine", "mine"),
        ("~/models/mine/", "mine"),
        ("../mine", "mine"),
        ("C:\\models\\mine", "mine"),
        ("/", "/"),
    ],
)
def test_a_model_in_a_folder_has_its_last_name(source, title):
    assert model_title(source) == title


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("source: /data/corpus/books.tar.xz\n", "source: books.tar.xz\n"),
        ('files: ["/a/b.txt", /c/d/e.txt]', 'files: ["b.txt", e.txt]'),
        ("source: ~/corpus/books", "source: books"),
        ("root: ../data/x, half: 1/2, url: https://host/a/b", None),
        ("source: C:\\data\\books", "source: books"),
    ],
)
def test_absolute_paths_are_shortened(text, shown):
    assert without_folders(text) == (text if shown is None else shown)
