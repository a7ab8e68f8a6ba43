"""Figures of a logit attribution show every part once."""

import numpy as np
import pytest

from probekit.report.maps.network_maps import attribution_map, attribution_steps, step_rows
from tests.report.pictures import attribution_rows


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
    assert list(bars.x) == [
        "token embedding",
        "position embedding",
        "L0 attn",
        "L0 MLP",
        "L1 attn",
        "L1 MLP",
        "L2 attn",
        "L2 MLP",
        "bias of the final norm",
        "logit",
    ]
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
