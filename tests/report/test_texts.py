"""Visible labels of tokens and texts, names without folders of this machine, token colours."""

import numpy as np
import pytest

from probekit.report.maps.maps import luminance
from probekit.report.texts import (
    DENSEST,
    HIGH,
    HUES,
    LOW,
    NUMBER,
    MachinePaths,
    Paint,
    Palette,
    model_title,
    token_label,
)
from probekit.results.network import RowPrediction, TextReading


@pytest.mark.parametrize(
    ("token", "label"),
    [
        ("  a", "␣␣a"),
        ("\r\n", "␍⏎"),
        ("\u00a0", "<U+00A0>"),
        ("\u202e", "<U+202E>"),
        ("\ud800", "<U+D800>"),
        ("<0xE2>", "<0xE2>"),
        ("👩\u200d👧", "👩\u200d👧"),
    ],
)
def test_invisible_characters_of_tokens_become_visible(token, label):
    assert token_label(token) == label


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


def reading(*scores):
    answers = tuple(RowPrediction("b" if s > 0 else "a", s) for s in scores)
    return TextReading("", (), (), answers)


def test_two_classes_diverge_at_zero():
    palette = Palette(("a", "b"), 0.0, 2.0)
    assert palette.paint(RowPrediction("a", -1.0)) == Paint(LOW, 0.5)
    assert palette.paint(RowPrediction("b", 1.0)) == Paint(HIGH, 0.5)
    assert palette.paint(RowPrediction("a", 0.0)).strength == 0
    assert palette.paint(RowPrediction("a", -9.0)).strength == 1


def test_the_first_position_and_rare_extremes_do_not_affect_the_scale():
    """PITFALL 5: the norm at position 0 is about 30 times that at other positions."""
    palette = Palette.of([reading(300.0, *[1.0, -2.0] * 20, 50.0)], ("a", "b"))
    assert palette.high == 2.0
    assert Palette.of([reading(-4.0)], ("a", "b")).high == 4.0


@pytest.mark.parametrize("readings", [[], [reading(0.0, 0.0)]])
def test_no_score_at_all_still_gives_a_palette(readings):
    assert Palette.of(readings, ("a", "b")).paint(RowPrediction("a", 0.0)).strength == 0
    assert Palette.of(readings, ()).paint(RowPrediction(None, 0.0)).hue == NUMBER


def test_regression_colours_get_stronger_with_the_value():
    answers = tuple(RowPrediction(None, s) for s in (9.0, -1.0, 1.0, 3.0))
    palette = Palette.of([TextReading("", (), (), answers)], ())
    strengths = [palette.paint(answer).strength for answer in answers]
    assert strengths == [1.0, 0.0, 0.5, 1.0]


def test_more_classes_have_hues_of_their_own():
    classes = tuple(map(str, range(len(HUES))))
    palette = Palette(classes, 0.0, 1.0)
    assert len({palette.paint(RowPrediction(name, 1.0)).hue for name in classes}) == len(HUES)


@pytest.mark.parametrize("hue", [LOW, HIGH, NUMBER, *HUES])
def test_black_ink_is_legible_on_the_strongest_paint(hue):
    assert 0 < DENSEST < 1
    painted = np.array([list(bytes.fromhex(Paint(hue, 1.0).on_white[1:]))]) / 255
    assert (luminance(painted) + 0.05) / 0.05 >= 4.5
