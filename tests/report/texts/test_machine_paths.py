"""Names on pages have no folders of the machine that wrote the page."""

import pytest

from probekit.report.texts import MachinePaths, model_title


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


def test_paths_in_lists_and_mappings_are_shortened_and_other_texts_are_not():
    paths = MachinePaths.of(
        {"corpus": {"files": ["/a/b.txt", "~/c/d.txt"], "root": "../data"}, "url": "https://h/a/b"}
    )
    text = "files: [/a/b.txt, ~/c/d.txt], root: ../data, half: 1/2, url: https://h/a/b"
    shown = "files: […/b.txt, …/d.txt], root: ../data, half: 1/2, url: https://h/a/b"
    assert paths.hide(text) == shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data/x/y.csv is short", "…/y.csv is short"),
        ("in\n  /data/x/y.csv", "in\n  …/y.csv"),
        ("root: /data/x", "root: …/x"),
        ("/data/xy and /other/data/x", "/data/xy and /other/data/x"),
    ],
)
def test_only_whole_paths_are_shortened(text, expected):
    assert MachinePaths(("/data/x/y.csv", "/data/x")).hide(text) == expected


def test_relative_names_and_urls_are_not_paths():
    assert MachinePaths.of({"root": "data", "file": "s3://bucket/x.csv"}, "mini").paths == ()
    windows = MachinePaths.of({"root": r"C:\data\nouns"})
    assert windows.hide(r"root: C:\data\nouns") == "root: …/nouns"
