"""The curve of a lens: shares by layer, and labels that can be read."""

import pandas as pd

from probekit.report.figures.line_labels import LABEL, LINE_HEIGHT
from probekit.report.figures.style import SERIES_COLOURS
from probekit.report.maps.lens_map import lens_curve


def summary(right=1, n_next=4):
    return pd.DataFrame(
        {"layer": ["embed", "0"], "as_output": [1, 5], "n": 5, "right": [0, right],
         "n_next": n_next}
    )  # fmt: skip


def test_the_lines_are_shares_of_their_positions():
    agreement, correct, *_ = lens_curve(summary()).data
    assert list(agreement.y) == [0.2, 1.0]
    assert list(correct.y) == [0.0, 0.25]
    assert "at 1 of 4 positions" in correct.hovertext[1]


def test_labels_are_at_the_ends_of_their_lines_in_their_colours():
    figure = lens_curve(summary())
    notes = [note for note in figure.layout.annotations if note.name == LABEL]
    assert [(note.y, note.arrowcolor) for note in notes] == [
        (1.0, SERIES_COLOURS[0]),
        (0.25, SERIES_COLOURS[1]),
    ]


def test_labels_of_equal_ends_are_apart():
    top, second = (note.ay for note in lens_curve(summary(4)).layout.annotations)
    assert abs(top - second) > 1.9 * LINE_HEIGHT


def test_a_line_without_positions_has_no_label():
    (only,) = lens_curve(summary(0, 0)).layout.annotations
    assert only.text.replace("\u00a0", " ").startswith("equals the final")
