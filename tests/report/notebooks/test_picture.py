"""Static pictures of the figures of runs."""

import math
import re
import xml.etree.ElementTree as ET

import plotly.graph_objects as go
import pytest

from probekit.report.notebooks.axes import make_axis
from probekit.report.notebooks.marks import MOST_TIPS
from probekit.report.notebooks.picture import figure_svg
from probekit.report.pages.parts import figure_json, result_parts
from probekit.report.pages.run_page import run_figures
from tests.report.conftest import judged

SVG = "{http://www.w3.org/2000/svg}"


def picture(figure, label="label"):
    """The parsed SVG of a figure."""
    return ET.fromstring(figure_svg(figure_json(figure), label))


def texts(svg):
    return ["".join(element.itertext()) for element in svg.iter(f"{SVG}text")]


@pytest.mark.parametrize("kind", ["table", "heads", "sweep"])
def test_every_figure_of_a_run_is_a_small_picture_without_scripts(kind, request, make_run):
    parts = run_figures(make_run(request.getfixturevalue(kind)))
    assert parts
    for part in parts:
        text = figure_svg(part.figure, part.description)
        svg = ET.fromstring(text)
        assert svg.get("aria-label") == part.description
        assert "nan" not in text
        assert not re.search(r"<script|href|https?://(?!www\.w3\.org)", text)
        assert len(text) < 60_000, part.title
        title = part.figure["layout"].get("xaxis", {}).get("title", {}).get("text")
        assert not title or title in texts(svg)


def test_points_are_at_their_places():
    figure = go.Figure(go.Scatter(x=[0, 5, 10], y=[0, 1, 0.5], mode="markers", hovertext=["a"] * 3))
    figure.update_xaxes(range=[0, 10]).update_yaxes(range=[0, 1])
    circles = picture(figure).findall(f"{SVG}circle")
    (x0, y0), (x1, y1), (x2, y2) = ((float(c.get("cx")), float(c.get("cy"))) for c in circles)
    assert x0 < x1 < x2
    assert math.isclose(x1 - x0, x2 - x1, abs_tol=0.11)
    assert y0 > y2 > y1  # upwards
    assert math.isclose(y0 - y2, y2 - y1, abs_tol=0.11)


def test_every_point_has_a_tip_inside_the_picture():
    hover = ["<b>first</b><br>0.5 [0.4, 0.6]", "95&#37; of &lt;all&gt;"]
    svg = picture(go.Figure(go.Scatter(x=[0, 1], y=[1, 2], hovertext=hover, hoverinfo="text")))
    tips = [group for group in svg.iter(f"{SVG}g") if group.get("class") == "pk-tip"]
    shown = [[line.text for line in tip.iter(f"{SVG}tspan")] for tip in tips]
    assert shown == [["first", "0.5 [0.4, 0.6]"], ["95% of <all>"]]
    for tip in tips:
        box = tip.find(f"{SVG}rect")
        assert float(box.get("x")) >= 0
        assert float(box.get("x")) + float(box.get("width")) <= float(svg.get("width"))
    many = [str(n) for n in range(MOST_TIPS + 1)]
    crowd = go.Scatter(x=list(range(len(many))), y=[0] * len(many), hovertext=many)
    assert "pk-point" not in ET.tostring(picture(go.Figure(crowd)).find(f"{SVG}g"), "unicode")


def test_cells_of_a_map_have_colours_and_texts():
    z = [[0.0, 1.0], [None, 0.5]]
    scale = [[0, "#000000"], [1, "#ffffff"]]
    figure = go.Figure(go.Heatmap(z=z, zmin=0, zmax=1, colorscale=scale, showscale=False))
    figure.add_scatter(x=[0], y=[0], text=["low"], mode="text", textfont_color="#ffffff")
    figure.update_xaxes(range=[-0.5, 1.5]).update_yaxes(range=[1.5, -0.5])
    svg = picture(figure)
    cells = svg.findall(f"{SVG}rect")
    assert [cell.get("fill") for cell in cells] == [
        "rgb(0, 0, 0)",
        "rgb(255, 255, 255)",
        "rgb(128, 128, 128)",
    ]
    assert float(cells[0].get("y")) < float(cells[2].get("y"))  # the first row is on top
    (text,) = [one for one in svg.iter(f"{SVG}text") if "".join(one.itertext()) == "low"]
    assert "#ffffff" in text.get("style")


def test_hostile_names_stay_text(hostile, record, table, make_run):
    table["run"] = hostile
    parts = result_parts(table, judged(table))
    label = figure_svg(parts[0].figure, hostile)
    assert ET.fromstring(label).get("aria-label").replace("\r", " ")
    figure = go.Figure(go.Scatter(x=[0], y=[0], hovertext=[hostile.replace("<", "&lt;")]))
    assert "<img" not in figure_svg(figure_json(figure), "label")


def test_axes_of_logarithms_categories_and_bars():
    log = make_axis({"type": "log"}, [1, 1000], 0, 100, has_bars=False)
    assert [text for _, text in log.ticks()] == ["1", "10", "100", "1000"]
    assert math.isnan(log.number(0))
    names = make_axis({}, ["b", "a", "b"], 0, 100, has_bars=False)
    assert [(at, text) for at, text in names.ticks()] == [(25.0, "b"), (75.0, "a")]
    bars = make_axis({}, [3, 7], 0, 100, has_bars=True)
    assert bars.low == 0
    upside_down = make_axis({"autorange": "reversed"}, [0, 9], 0, 100, has_bars=False)
    assert upside_down.at(9) < upside_down.at(0)
    constant = make_axis({}, [2, 2], 0, 100, has_bars=False)
    assert constant.at(2) == 50
