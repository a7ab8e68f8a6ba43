"""Every text has enough contrast with the colour of its cell."""

import numpy as np
import plotly.colors
import pytest

from probekit.report.maps.maps import MASKED, Colours, inks, luminance, text_map

SCALES = {
    "viridis": plotly.colors.sequential.Viridis,
    "reversed": plotly.colors.sequential.Viridis_r,
    "diverging": plotly.colors.diverging.PuOr_r,
}


@pytest.mark.parametrize("name", SCALES)
def test_the_contrast_of_text_is_at_least_4_and_a_half(name):
    values = np.linspace(-2, 2, 500)
    shown = Colours(-2.0, 2.0, SCALES[name], is_diverging=False)
    background = plotly.colors.sample_colorscale(shown.scale, (values + 2) / 4, colortype="tuple")
    light = luminance(np.array(background))
    for ink, behind in zip(inks(values, shown), light, strict=True):
        lighter, darker = sorted((behind, {"#000000": 0.0, "#ffffff": 1.0}[ink]), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def test_values_beyond_the_scale_have_the_colour_of_its_end():
    shown = Colours(0.0, 1.0, ["#000000", "#ffffff"], is_diverging=False)
    assert inks(np.array([-9.0, 9.0]), shown) == ["#ffffff", "#000000"]


def test_each_text_is_in_its_cell_and_masked_cells_are_grey():
    values = np.array([[0.0, 1.0, np.nan], [0.2, 0.4, 0.6]])
    shown = Colours(0.0, 1.0, SCALES["viridis"], is_diverging=False)
    figure = text_map(
        values,
        list("ABCDEF"),
        shown,
        texts=list("abcdef"),
        across=["x", "y", "z"],
        down=["0", "1"],
        title="t",
        most_texts=6,
    )
    cells, texts = figure.data
    placed = dict(zip(texts.text, zip(texts.y, texts.x, strict=True), strict=True))
    assert placed == {"a": (0, 0), "b": (0, 1), "c": (0, 2), "d": (1, 0), "e": (1, 1), "f": (1, 2)}
    assert [list(row) for row in cells.hovertext] == [list("ABC"), list("DEF")]
    assert list(texts.textfont.color[:3]) == ["#ffffff", "#000000", "#000000"]
    assert figure.layout.plot_bgcolor == MASKED
