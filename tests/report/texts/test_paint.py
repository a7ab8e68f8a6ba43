"""Token colours: diverging scale for two classes, legibility, robustness to outliers."""

import pytest

from probekit.report.texts import DENSEST, HIGH, HUES, LOW, NUMBER, Paint, Palette
from probekit.results.text_readings import RowPrediction, TextReading


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
    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        lights = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), lights, strict=True))

    assert 0 < DENSEST < 1
    assert (luminance(Paint(hue, 1.0).on_white) + 0.05) / 0.05 >= 4.5
