"""Visible labels of tokens and texts, names without folders of this machine, token colours."""

import numpy as np
import pytest

from probekit.report.elements.texts import MachinePaths, model_title, token_label
from probekit.report.elements.tokens import DENSEST, HIGH, HUES, LOW, NUMBER, Paint, Palette
from probekit.report.figures.maps import luminance
from probekit.results.network import RowPrediction, TextReading

TOKENS = ["  a", "\r\n", "\u00a0", "\u202e", "\ud800", "<0xE2>", "👩\u200d👧"]
SOURCES = ["mini", "org/name@main", "runs/mine/checkpoints/step-10", "/data/models/mine"]
SOURCES += ["~/models/mine/", "../mine", "C:\\models\\mine", "/"]
CORPUS = {"files": ["/a/b.txt", "~/c/d.txt"], "root": "../data"}
# Paths of a machine, and texts that have some.
HIDDEN = {
    ("/data/x/y.csv", "/data/x"): [
        "/data/x/y.csv is short",
        "in\n  /data/x/y.csv",
        "root: /data/x",
        "/data/xy and /other/data/x",
    ],
    MachinePaths.of({"corpus": CORPUS, "url": "https://h/a/b"}).paths: [
        "files: [/a/b.txt, ~/c/d.txt], root: ../data, half: 1/2, url: https://h/a/b"
    ],
    MachinePaths.of({"root": r"C:\data\nouns"}).paths: [r"root: C:\data\nouns"],
    MachinePaths.of("/data/m/").paths: ["/data/m/ and /data/m/x"],
    MachinePaths.of({"root": "data", "file": "s3://bucket/x.csv"}, "mini").paths: ["root: data"],
}


def test_labels_of_tokens_and_models_are_those_that_are_stored(snapshot):
    """Invisible characters become visible; a model in a folder has its last name."""
    labels = {token.encode("unicode_escape").decode(): token_label(token) for token in TOKENS}
    labels |= {source: model_title(source) for source in SOURCES}
    assert "\n".join(f"{text}: {label}" for text, label in labels.items()) == snapshot


def test_only_whole_paths_of_the_machine_are_shortened(snapshot):
    lines = [MachinePaths(paths).hide(text) for paths, texts in HIDDEN.items() for text in texts]
    assert "\n".join(lines) == snapshot


def reading(*scores):
    return TextReading("", (), (), tuple(RowPrediction("b" if s > 0 else "a", s) for s in scores))


def test_two_classes_diverge_at_zero():
    palette = Palette(("a", "b"), 0.0, 2.0)
    assert palette.paint(RowPrediction("a", -1.0)) == Paint(LOW, 0.5)
    assert palette.paint(RowPrediction("b", 1.0)) == Paint(HIGH, 0.5)
    assert palette.paint(RowPrediction("a", 0.0)).strength == 0
    assert palette.paint(RowPrediction("a", -9.0)).strength == 1


def test_the_first_position_and_rare_extremes_do_not_affect_the_scale():
    """PITFALL 5: the norm at position 0 is about 30 times that at other positions."""
    assert Palette.of([reading(300.0, *[1.0, -2.0] * 20, 50.0)], ("a", "b")).high == 2.0
    assert Palette.of([reading(-4.0)], ("a", "b")).high == 4.0


@pytest.mark.parametrize("readings", [[], [reading(0.0, 0.0)]])
def test_no_score_at_all_still_gives_a_palette(readings):
    assert Palette.of(readings, ("a", "b")).paint(RowPrediction("a", 0.0)).strength == 0
    assert Palette.of(readings, ()).paint(RowPrediction(None, 0.0)).hue == NUMBER


def test_regression_colours_get_stronger_with_the_value():
    answers = tuple(RowPrediction(None, s) for s in (9.0, -1.0, 1.0, 3.0))
    palette = Palette.of([TextReading("", (), (), answers)], ())
    assert [palette.paint(answer).strength for answer in answers] == [1.0, 0.0, 0.5, 1.0]


def test_more_classes_have_hues_of_their_own():
    classes = tuple(map(str, range(len(HUES))))
    palette = Palette(classes, 0.0, 1.0)
    assert len({palette.paint(RowPrediction(name, 1.0)).hue for name in classes}) == len(HUES)


@pytest.mark.parametrize("hue", [LOW, HIGH, NUMBER, *HUES])
def test_black_ink_is_legible_on_the_strongest_paint(hue):
    assert 0 < DENSEST < 1
    painted = np.array([list(bytes.fromhex(Paint(hue, 1.0).on_white[1:]))]) / 255
    assert (luminance(painted) + 0.05) / 0.05 >= 4.5
