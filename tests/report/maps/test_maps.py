"""Maps show each number of the table in its cell, on a meaningful colour scale."""

import math

import pandas as pd
import pytest

from probekit.errors import DataError, UnknownNameError
from probekit.report.maps.maps import head_maps, layer_map


def grid(figure):
    cells, *_ = figure.data
    return [list(row) for row in cells.z]


def corners(figure):
    return {(shape.x0, shape.x1, shape.y0, shape.y1) for shape in figure.layout.shapes}


def test_layers_go_down_and_heads_across_and_only_those_probed(heads):
    figure = layer_map(heads.sample(frac=1, random_state=0))
    assert grid(figure) == [[0.6, 0.7], [0.8, pytest.approx(0.9)]]
    assert list(figure.layout.xaxis.ticktext) == ["0", "2"]
    assert list(figure.layout.yaxis.ticktext) == ["1", "3"]
    assert list(figure.layout.yaxis.range) == [1.5, -0.5]


def test_a_head_that_was_not_probed_is_an_empty_cell(heads):
    left_out = heads["head"].eq(2) & heads["layer"].eq(1)
    ((_, empty), _) = grid(layer_map(heads[~left_out]))
    assert math.isnan(empty)


def test_offsets_go_across_in_order_and_layers_down(sweep):
    figure = layer_map(sweep.sample(frac=1, random_state=0), across="offset")
    assert list(figure.layout.xaxis.ticktext) == ["−1", "span", "+2"]
    assert list(figure.layout.yaxis.ticktext) == ["embed", "0", "1", "2", "3", "final norm"]
    assert [round(value, 3) for value in grid(figure)[3]] == [0.641, 0.941, 0.841]


def test_the_frame_marks_the_best_by_cross_validation_whatever_the_test_scores(heads, sweep):
    test = (heads["split"] == "test") & (heads["target"] == "task")
    for _ in range(2):
        assert corners(layer_map(heads)) == {(0.5, 1.5, 0.5, 1.5)}
        heads.loc[test, "value"] = heads.loc[test, "value"].to_numpy()[::-1]
    assert corners(layer_map(sweep, across="offset")) == {(0.5, 1.5, 2.5, 3.5)}
    assert corners(layer_map(heads[heads["split"] == "test"])) == set()


def test_a_frame_of_equal_cross_validated_scores_names_their_number(heads):
    def above():
        return [note.text for note in layer_map(heads).layout.annotations]

    assert above() == ["framed: best by cross-validation"]
    validated = (heads["split"] == "validation") & (heads["target"] == "task")
    heads.loc[validated & heads["layer"].eq(3), "value"] = 0.9
    assert above() == ["framed: best by cross-validation (1 of 2)"]


def test_colours_of_accuracy_start_at_chance_and_of_selectivity_at_0(heads):
    cells, *_ = layer_map(heads).data
    assert (cells.zmin, cells.zmax) == (0.5, pytest.approx(0.9))
    cells, *_ = layer_map(heads, "selectivity").data
    assert (cells.zmin, cells.zmax) == (0, pytest.approx(0.35))


def test_a_difference_with_negative_values_has_0_in_the_middle(heads):
    sequential = layer_map(heads, "selectivity").data[0].colorscale
    heads.loc[heads["metric"] == "selectivity", "value"] -= 0.25
    cells, *_ = layer_map(heads, "selectivity").data
    assert (cells.zmin, cells.zmax) == (pytest.approx(-0.2), pytest.approx(0.2))
    assert cells.colorscale != sequential


def test_the_colour_scale_has_a_minimum_range(heads):
    heads.loc[heads["metric"] == "accuracy", "value"] = 0.5
    cells, *_ = layer_map(heads).data
    assert cells.zmax - cells.zmin == pytest.approx(0.05)


def test_the_hover_shows_site_value_interval_and_comparisons(heads, sweep):
    cells, *_ = layer_map(heads).data
    assert cells.hovertext[1][0] == (
        "<b>blocks.3.attn.hook_z[head=0]</b> at last<br>accuracy: 0.800 [0.780, 0.820]"
        "<br>selectivity: 0.250<br>control task: 0.550<br>random weights: 0.520"
    )
    cells, *_ = layer_map(heads, "selectivity").data
    assert "<br>accuracy: 0.800<br>control" in cells.hovertext[1][0]
    assert cells.hoverongaps is False
    cells, *_ = layer_map(sweep, across="offset").data
    assert "at word:last-1<br>accuracy: 0.641" in cells.hovertext[3][0]


def test_numbers_are_in_the_cells_unless_there_are_too_many(heads):
    _, texts = layer_map(heads).data
    assert list(texts.text[:2]) == [".60", ".70"]
    many = [heads[heads["head"] == 0].assign(head=float(head)) for head in range(101)]
    assert len(layer_map(pd.concat(many, ignore_index=True)).data) == 1


def test_user_input_is_escaped(heads, hostile):
    text = layer_map(heads.assign(position=hostile)).to_json()
    assert "</script" not in text
    assert "%{x}" not in text


def test_maps_of_several_components_are_a_row_on_one_scale_with_one_frame(heads):
    queries = heads.assign(site=heads["site"].str.replace("hook_z", "hook_q"))
    queries["value"] -= 0.1
    alone = queries[queries["layer"] == 1]
    figure = head_maps({"attn.z": heads, "attn.q": alone})
    maps = [trace for trace in figure.data if trace.type == "heatmap"]
    assert [(one.zmin, one.zmax) for one in maps] == [(0.5, pytest.approx(0.9))] * 2
    assert [one.showscale for one in maps] == [True, False]
    assert list(maps[1].z[0]) == [0.5, pytest.approx(0.6)]
    assert all(math.isnan(value) for value in maps[1].z[1])  # the layers of the first map
    assert {shape.xref for shape in figure.layout.shapes} == {"x"}
    assert corners(figure) == {(0.5, 1.5, 0.5, 1.5)}
    assert [note.text for note in figure.layout.annotations] == ["attn.z", "attn.q"]
    left, right = figure.layout.xaxis.domain, figure.layout.xaxis2.domain
    assert 0 == left[0] < left[1] < right[0] < right[1] <= 1


def test_a_map_with_duplicate_cells_is_refused(heads):
    twice = pd.concat([heads, heads.assign(site=heads["site"].str.replace("hook_z", "hook_q"))])
    with pytest.raises(DataError, match=r"4 cells .* first at blocks\.1\.attn\.hook_q\[head=0\]"):
        layer_map(twice)
    with pytest.raises(UnknownNameError, match="Nearest: accuracy"):
        layer_map(heads, "acuracy")
