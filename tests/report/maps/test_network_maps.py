"""Maps of head scores, of a logit attribution and of patches show each number in its cell."""

import math

import numpy as np
import plotly.graph_objects as go
import pytest

from probekit.report.pages.attribution_page import attribution_map, attribution_steps, step_rows
from probekit.report.pages.heads_page import SCORES, WEIGHTS, head_figures, head_score_map
from probekit.report.pages.pair_page import (
    estimate_scatter,
    pair_labels,
    patch_head_map,
    patch_position_map,
    site_family,
)
from probekit.results.network import ScoredHeads
from tests.report.pictures import attribution_rows, head_rows, patched_pair


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


def test_a_score_without_eligible_tokens_is_masked_and_explained():
    cells, texts = head_score_map(head_rows(), "duplicate_token").data
    assert all(math.isnan(value) for row in cells.z for value in row)
    assert set(texts.text) == {""}
    assert "no token could have it" in cells.hovertext[0][0]


def test_every_score_has_a_map():
    for score in SCORES:
        assert len(head_score_map(head_rows(), score).data) == 2


def test_scores_that_are_attention_weights_are_a_row_on_one_scale_with_known_heads_framed():
    row, *_ = head_figures(ScoredHeads(head_rows(), "a text", {"induction": [(2, 1)]}))
    figure = go.Figure(row.figure)
    maps = [trace for trace in figure.data if trace.type == "heatmap"]
    assert len(maps) == len(WEIGHTS) == 4
    assert [one.zmax for one in maps] == [pytest.approx(0.58)] * 4
    assert [note.text for note in figure.layout.annotations] == [
        SCORES[score].title for score in WEIGHTS
    ]
    corners = {(shape.xref, shape.x0, shape.x1, shape.y0) for shape in figure.layout.shapes}
    assert corners == {("x3", 0.5, 1.5, 1.5)}


def test_heads_go_across_with_bias_and_mlp_to_their_right():
    figure = attribution_map(attribution_rows())
    cells, texts = figure.data
    assert list(figure.layout.xaxis.ticktext) == ["0", "1", "bias", "MLP"]
    assert list(figure.layout.yaxis.ticktext) == ["0", "1", "2"]
    assert [list(row) for row in cells.z] == [[3, -4, 5, -6], [7, -8, 9, -10], [11, -12, 13, -14]]
    assert list(texts.text[:2]) == ["3.00", "−4.00"]
    assert cells.hovertext[1][3] == "<b>L1 MLP</b> −10.00"
    assert cells.hovertext[2][0] == "<b>L2H0</b> +11.00"


def test_colours_diverge_from_0():
    cells, _ = attribution_map(attribution_rows()).data
    assert (cells.zmin, cells.zmax) == (-14, 14)
    assert cells.colorscale[len(cells.colorscale) // 2][1] == "rgb(247,247,247)"


def test_the_steps_end_at_the_logit():
    rows = attribution_rows()
    (bars,) = attribution_steps(rows).data
    layers = [f"L{layer} {part}" for layer in range(3) for part in ("attn", "MLP")]
    ends = ["bias of the final norm", "logit"]
    assert list(bars.x) == ["token embedding", "position embedding", *layers, *ends]
    assert bars.measure == ("relative",) * 9 + ("total",)
    assert sum(bars.y) == pytest.approx(rows["value"].sum())
    assert bars.hovertext[-1] == "<b>logit</b> +8.00"


def test_every_part_is_in_one_step():
    assert step_rows(attribution_rows()).tolist() == [1, -2, 4, -6, 8, -10, 12, -14, 15]


def test_parts_that_are_all_0_are_drawn():
    rows = attribution_rows().assign(value=0.0)
    cells, _ = attribution_map(rows).data
    assert np.max(cells.z) == 0
    assert cells.zmax > 0


def of(pair, family):
    rows = pair.of_positions
    return rows[[site_family(site) == family for site in rows["site"]]]


def test_positions_are_across_and_layers_down():
    pair = patched_pair()
    labels = pair_labels(pair.clean, pair.corrupt)
    figure = patch_position_map(of(pair, "residual stream"), labels)
    heat = figure.data[0]
    assert list(figure.layout.yaxis.ticktext) == ["embed", "0", "1"]
    assert figure.layout.xaxis.ticktext[1] == "␣key → ␣keys"
    assert np.array(heat.z).shape == (3, len(labels))
    rows = pair.rows.set_index(["site", "position"])["recovery"]
    assert heat.z[2][1] == rows["blocks.1.hook_resid_post", 1]
    assert heat.zmin == -heat.zmax == -np.abs(np.array(heat.z)).max()
    assert not figure.layout.shapes
    other = patch_position_map(of(pair, "attn_out"), labels, "effect")
    assert list(other.layout.yaxis.ticktext) == ["0", "1"]
    assert "effect, logits" in other.data[0].colorbar.title.text


def test_heads_are_across():
    pair = patched_pair()
    heat = patch_head_map(pair.of_heads).data[0]
    assert np.array(heat.z).shape == (2, 3)
    assert heat.z[1][2] == pair.of_heads["recovery"].iloc[-1]
    assert "L" not in heat.hovertext[1][2].partition("]")[0]
    assert "blocks.1.attn.hook_z[head=2]" in heat.hovertext[1][2]
    assert "all positions" in heat.hovertext[1][2]


def test_verified_estimates_are_framed_and_compared():
    pair = patched_pair(estimated=True)
    labels = pair_labels(pair.clean, pair.corrupt)
    rows = of(pair, "residual stream")
    figure = patch_position_map(rows, labels, "estimate")
    assert len(figure.layout.shapes) == 2 * rows["effect"].notna().sum() > 0  # two outlines each
    assert not np.isnan(np.array(figure.data[0].z)).any()
    points = estimate_scatter(pair.rows).data[1]
    assert len(points.x) == pair.rows["effect"].notna().sum()
    assert set(points.y) == set(pair.rows["effect"].dropna())


def test_long_texts_have_fewer_ticks():
    pair = patched_pair(n_tokens=400)
    figure = patch_position_map(of(pair, "attn_out"), pair_labels(pair.clean, pair.corrupt))
    assert len(figure.layout.xaxis.ticktext) < 200
