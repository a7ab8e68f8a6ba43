"""Figures of a logit lens show each row in its cell, escape tokens, and name their lines."""

import math

import numpy as np
import pandas as pd
import pytest

from probekit.errors import DataError, UnknownNameError
from probekit.report.figures.line_labels import LABEL, LINE_HEIGHT
from probekit.report.figures.style import SERIES_COLOURS
from probekit.report.pages.lens_page import MEASURES, lens_curve, lens_map
from tests.report.pictures import SITES, TOKENS, lens_rows


@pytest.fixture
def rows():
    return lens_rows()


def traces(figure):
    cells, texts = figure.data
    return cells, texts


def test_sites_go_down_and_tokens_across(rows):
    figure = lens_map(rows)
    cells, _ = traces(figure)
    assert np.shape(cells.z) == (len(SITES), len(TOKENS))
    assert [row[0] for row in cells.z] == pytest.approx([0.1, 0.3, 0.5, 0.7])
    assert list(figure.layout.yaxis.ticktext) == ["embed", "0", "1", "2"]
    assert figure.layout.yaxis.range == (3.5, -0.5)
    assert figure.layout.xaxis.ticktext[:4] == ("The", "␣keys", "&lt;0xE2&gt;", "␣שלום")


def test_cells_show_the_most_probable_token_in_bold_if_it_follows(rows):
    _, texts = traces(lens_map(rows))
    at = dict(zip(zip(texts.x, texts.y, strict=True), texts.text, strict=True))
    assert at[0, 0] == "The"
    assert at[0, 3] == "<b>␣keys</b>"
    assert at[1, 3] == "␣keys"
    assert at[2, 3] == "<b>␣שלום</b>"


@pytest.mark.parametrize(
    ("measure", "first", "last", "ends"),
    [
        ("probability", 0.1, 0.7, (0, 1)),
        ("rank", 4, 0, (0, 4)),
        ("entropy", 5, 2, (0, 5)),
        ("kl", 3, 0, (0, 3)),
    ],
)
def test_colours_show_the_requested_measure(rows, measure, first, last, ends):
    cells, _ = traces(lens_map(rows, measure))
    assert (cells.z[0][0], cells.z[-1][0]) == pytest.approx((first, last))
    assert (cells.zmin, cells.zmax) == pytest.approx(ends)
    assert cells.colorbar.title.text == MEASURES[measure][0]


def test_the_last_position_has_no_rank(rows):
    cells, _ = traces(lens_map(rows, "rank"))
    assert [math.isnan(row[-1]) for row in cells.z] == [True] * 4
    assert not any(math.isnan(value) for row in cells.z for value in row[:-1])
    alone, _ = traces(lens_map(lens_rows(("The",)), "rank"))
    assert alone.zmax == 1


def test_the_hover_shows_top_tokens_the_next_token_and_the_measures(rows):
    cells, _ = traces(lens_map(rows))
    assert cells.hovertext[3][0] == (
        "<b>2</b> at [0] The<br>1. ␣keys 0.700<br>2. ␣👩‍👩‍👧 0.050<br>"
        "follows: ␣keys 0.700, rank 1<br>entropy 2.00 nats, KL from the output 0.00 nats"
    )
    assert "follows" not in cells.hovertext[3][4]


def test_hostile_tokens_are_escaped(rows):
    figure = lens_map(rows)
    cells, texts = traces(figure)
    texts = [*figure.layout.xaxis.ticktext, *texts.text, *np.ravel(cells.hovertext)]
    for line in texts:
        assert "</script" not in line
        assert "%{" not in line
        assert "\u202e" not in line
    assert any("&lt;/script&gt;" in line for line in texts)


def test_a_map_with_too_many_cells_has_no_texts():
    (cells,) = lens_map(lens_rows(tuple(f" t{i}" for i in range(600)))).data
    assert len(cells.z[0]) == 600


def test_mistakes_are_refused(rows):
    with pytest.raises(UnknownNameError, match="entropy"):
        lens_map(rows, "entrop")
    with pytest.raises(DataError, match="several texts"):
        lens_map(pd.concat([rows, lens_rows(prompt=2)]))


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
