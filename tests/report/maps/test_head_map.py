"""The map of a head score shows each value in its cell."""

import math

import pytest

from probekit.report.maps.network_maps import SCORES, WEIGHTS, head_score_map, head_score_maps
from tests.report.pictures import head_rows


def test_layers_go_down_and_heads_across_whatever_the_order_of_the_rows():
    figure = head_score_map(head_rows().sample(frac=1, random_state=0), "previous_token")
    cells, texts = figure.data
    assert [list(row) for row in cells.z] == [
        [0, 0.05, 0.1, 0.15],
        [0.2, 0.25, 0.3, 0.35],
        [0.4, 0.45, 0.5, 0.55],
    ]
    assert list(texts.text[:3]) == [".00", ".05", ".10"]
    assert cells.hovertext[2][1] == "<b>L2H1</b><br>previous token: 0.450 ± 0.010 (sd), 10 texts"


def test_the_colour_scale_ends_at_the_highest_value():
    rows = head_rows()
    rows.loc[rows["score"] == "distance", "value"] *= 10
    for score, most in (("induction", 0.57), ("distance", 6)):
        cells = head_score_map(rows, score).data[0]
        assert (cells.zmin, cells.zmax) == (0, pytest.approx(most))


def test_the_colour_scale_has_a_minimum_range():
    rows = head_rows().assign(value=0.001)
    assert head_score_map(rows, "induction").data[0].zmax == 0.05


def test_a_score_without_eligible_tokens_is_masked_and_explained():
    cells, texts = head_score_map(head_rows(), "duplicate_token").data
    assert all(math.isnan(value) for row in cells.z for value in row)
    assert set(texts.text) == {""}
    assert "no token could have it" in cells.hovertext[0][0]


def test_known_heads_are_framed():
    figure = head_score_map(head_rows(), "induction", framed=[(2, 1)])
    corners = {(shape.x0, shape.x1, shape.y0, shape.y1) for shape in figure.layout.shapes}
    assert corners == {(0.5, 1.5, 1.5, 2.5)}


def test_every_score_has_a_map():
    for score in SCORES:
        assert len(head_score_map(head_rows(), score).data) == 2


def test_scores_that_are_attention_weights_are_a_row_on_one_scale():
    figure = head_score_maps(head_rows(), {"induction": [(2, 1)]})
    maps = [trace for trace in figure.data if trace.type == "heatmap"]
    assert len(maps) == len(WEIGHTS) == 4
    assert [one.zmax for one in maps] == [pytest.approx(0.58)] * 4
    assert [note.text for note in figure.layout.annotations] == [
        SCORES[score].title for score in WEIGHTS
    ]
    assert {(shape.xref, shape.x0) for shape in figure.layout.shapes} == {("x3", 0.5)}
