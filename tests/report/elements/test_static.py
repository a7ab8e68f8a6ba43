"""Static figures: the data, colours and texts of the page's, without overlaps or bitmaps."""

import re
import warnings
from itertools import combinations

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.text import Annotation, Text

from probekit.errors import UnknownNameError
from probekit.report.elements import static
from probekit.report.figures.figure_files import POINTS, Paper, figures_of, on_paper
from probekit.report.pages.attribution_page import attribution_page
from probekit.report.pages.causes_page import cause_parts
from probekit.report.pages.compare_page import comparison_page
from probekit.report.pages.doses_page import doses_page
from probekit.report.pages.heads_page import heads_page
from probekit.report.pages.lens_page import lens_page
from probekit.report.pages.pair_page import pair_page
from probekit.report.pages.parts import result_parts
from probekit.report.pages.study_page import study_page
from probekit.report.pages.transfer_page import transfer_page
from probekit.results.causes import open_causes
from probekit.results.network import ScoredHeads
from probekit.results.scores import Scores
from tests.report.conftest import SHARED, judged
from tests.report.pictures import head_rows, lens_rows, make_comparison, make_transfer, patched_pair
from tests.report.test_analysis_pages import KNOWN, attributed
from tests.results.causes.made_causes import every_table, write_causes
from tests.results.made_studies import made_cells, write_study

MADE = {"model": "made", "facts": {}}


def of_run(name):
    """The figures of the scores of a table in `SHARED`."""
    return lambda _: list(result_parts(Scores.of(SHARED[name]()), judged(SHARED[name]())))


FIGURES = {
    **{name: of_run(name) for name in SHARED},
    "causes": lambda folder: cause_parts(open_causes(write_causes(folder, **every_table()))),
    "lens": lambda _: figures_of(lens_page(lens_rows(), **MADE)),
    "attribution": lambda _: figures_of(attribution_page(attributed(), **MADE)),
    "scores": lambda _: figures_of(heads_page(ScoredHeads(head_rows(), "a text", KNOWN), **MADE)),
    "pair": lambda _: figures_of(pair_page(patched_pair(estimated=True), **MADE)),
    "comparison": lambda _: figures_of(comparison_page(make_comparison("a"))),
    "study": lambda folder: figures_of(study_page(write_study(folder, made_cells(8)))),
    "transfer": lambda _: figures_of(transfer_page(make_transfer("long_name-of.a.data-set"))),
}


@pytest.fixture(params=FIGURES)
def parts(request, tmp_path):
    """The figures of a page of each kind."""
    found = FIGURES[request.param](tmp_path)
    assert found
    return found[:3]


def drawing_of(part, width=6.75):
    """The drawing of a part in a width in inches, drawn once."""
    paper = Paper(columns=1 if width < 4 else 2, width=width)
    size = paper.size(part)
    how = static.SETTINGS | {"font.family": static.families("")}
    with mpl.rc_context(how), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        drawing = static.Drawing(on_paper(part, paper), size, POINTS)
        drawing.figure.draw(drawing.renderer)
    return drawing


def colour_of(line):
    """The colour of a line, or of its markers."""
    is_line = line.get_linestyle() not in ("", "None")
    return to_hex(line.get_color() if is_line else line.get_markeredgecolor())


def test_lines_maps_and_texts_are_those_of_the_page(parts):
    for part in parts:
        drawing = drawing_of(part)
        lines = [one for axes in drawing.panels.values() for one in axes.lines]
        drawn = {(*map(float, one.get_xydata().ravel()), colour_of(one)) for one in lines}
        meshes = [
            one.get_array().filled(np.nan)
            for axes in drawing.panels.values()
            for one in axes.collections
            if isinstance(one, QuadMesh)
        ]
        texts = {re.sub(r"\s+", " ", one.get_text()) for one in drawing.figure.findobj(Text)}
        n_maps = 0
        for trace in part.figure["data"]:
            if trace["type"] == "heatmap":
                np.testing.assert_array_equal(
                    meshes[n_maps].reshape(-1), np.array(trace["z"], float).reshape(-1)
                )
                n_maps += 1
            elif "line" in trace.get("mode", "") and not trace.get("fill"):
                x = trace["x"] if not isinstance(trace["x"][0], str) else range(len(trace["x"]))
                points = zip(x, trace["y"], strict=True)
                numbers = [float("nan" if one is None else one) for at in points for one in at]
                own = trace["line"]["color"].lower()
                if not np.isnan(numbers).any():
                    assert (*numbers, own) in drawn
        assert n_maps == len(meshes)
        for note in part.figure["layout"].get("annotations", ()):
            assert re.sub(r"\s+", " ", static.unescaped(note["text"])) in texts


def seen(drawing):
    """Each text that the drawing shows, with its box in points."""
    hidden = set()
    for axes in drawing.figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            beyond = 1e-9 * (high - low)
            for tick in axis.get_major_ticks():
                if not low - beyond <= tick.get_loc() <= high + beyond:
                    hidden |= {tick.label1, tick.label2}
    for text in drawing.figure.findobj(Text):
        is_drawn = text.get_visible() and text.get_alpha() != 0 and text not in hidden
        if is_drawn and text.get_text().strip():
            # Without the line of an annotation.
            yield text, Text.get_window_extent(text, drawing.renderer)


def overlap(a, b):
    """Whether two texts overlap by more than a point; slanted ones have too large boxes."""
    (text, box), (other, other_box) = a, b
    if text.get_rotation() % 90 or other.get_rotation() % 90:
        return False
    if "\n" in {text.get_text()[0], other.get_text()[0]}:  # the first line of the label is empty
        return False
    wide = min(box.x1, other_box.x1) - max(box.x0, other_box.x0)
    high = min(box.y1, other_box.y1) - max(box.y0, other_box.y0)
    return wide > 1 and high > 1.5


@pytest.mark.parametrize("width", [3.25, 6.75])
def test_texts_are_inside_legible_and_do_not_overlap(parts, width):
    for part in parts:
        drawing = drawing_of(part, width)
        texts = list(seen(drawing))
        for text, box in texts:
            assert text.get_fontsize() >= 6
            right, top = drawing.width * POINTS, drawing.height * POINTS
            assert min(box.x0, box.y0, right - box.x1, top - box.y1) > -0.5, text
        faults = [(a[0].get_text(), b[0].get_text()) for a, b in combinations(texts, 2)
                  if overlap(a, b)]  # fmt: skip
        assert faults == []


def test_the_audit_finds_texts_that_overlap(tmp_path):
    drawing = drawing_of(FIGURES["plain"](tmp_path)[0])
    first, second = [one for one, _ in seen(drawing) if isinstance(one, Annotation)][-2:]
    second.xy, second.xyann, second.xycoords = first.xy, first.xyann, first.xycoords
    drawing.figure.draw(drawing.renderer)
    assert any(overlap(*pair) for pair in combinations(seen(drawing), 2))


def test_an_axis_from_zero_leaves_the_other_one_as_it_is():
    doses = pd.DataFrame({"dose": [0.0, 10.0, 20.0], "factor": [1.0, 1.1, 1.2]})
    facts = {"network": "mini", "texts": "8 of x"}
    page = doses_page(10.0, doses.assign(loss=3.7 * doses["factor"]), 1.1, "towards x", facts)
    (axes,) = drawing_of(*figures_of(page)).panels.values()
    assert axes.get_xlim()[0] == 0
    assert 3 < axes.get_ylim()[0] < 3.7


def test_a_map_with_more_cells_is_one_picture():
    figure = {"data": [{"type": "heatmap", "z": np.eye(30).tolist(), "colorscale": [[0, "#fff"],
              [1, "#000"]], "zmin": 0, "zmax": 1}], "layout": {}}  # fmt: skip
    assert b"<image" not in static.picture(figure, "svg", (300, 300), scale=1)[0]
    figure["data"][0]["showscale"] = False
    for most, is_picture in ((900, False), (899, True)):
        svg = static.picture(figure, "svg", (300, 300), scale=1, most_cells=most)[0]
        assert (b"<image" in svg) == is_picture
        assert svg == static.picture(figure, "svg", (300, 300), scale=1, most_cells=most)[0]


def test_the_title_of_a_colour_bar_is_without_entities():
    trace = {"type": "heatmap", "z": [[0, 1]], "zmin": 0, "zmax": 1, "colorscale": ["#fff", "#000"]}
    for turn in ("h", "v"):
        bar = {"orientation": turn, "title": {"text": "a &amp; b 50&#37;"}}
        figure = {"data": [trace | {"colorbar": bar}], "layout": {}}
        svg = static.picture(figure, "svg", (300, 300), scale=1)[0]
        assert b">a &amp; b 50%<" in svg


def with_text(text):
    """A figure with a text in its middle."""
    note = {"text": text, "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "showarrow": False}
    return {"data": [{"type": "scatter", "y": [0, 1]}], "layout": {"annotations": [note]}}


def test_characters_that_no_installed_font_has_are_named_once():
    two = [(with_text(text), "png", (200, 200)) for text in ("is \u0378", "as \u0378")]
    with pytest.warns(UserWarning, match=r"has \u0378: .* --font NAME\.") as caught:
        static.pictures(two, scale=1)
    assert len(caught) == 1


def test_a_character_of_another_installed_font_is_drawn_with_it(monkeypatch):
    figure = with_text("\u0627")  # of DejaVu Sans; both fonts are part of matplotlib
    monkeypatch.setattr(static, "FALLBACKS", ())
    size, how = (200, 200), {"scale": 1, "font": "STIXGeneral"}
    boxes, lacked = static.picture(figure, "png", size, **how)
    assert lacked == {"\u0627"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (drawn,) = static.pictures([(figure, "png", size)], **how)
    assert drawn != boxes


def test_a_font_that_is_not_installed_is_refused():
    with pytest.raises(UnknownNameError, match="DejaVu Sans"):
        static.families("DejaVu Sand")
    assert static.families("DejaVu Sans")[0] == "DejaVu Sans"


def test_the_picture_of_a_page_is_small_and_has_its_numbers(tmp_path):
    part = FIGURES["plain"](tmp_path)[0]
    svg = static.still(part.figure, part.height)
    assert len(svg) < 12_000
    assert "0.94" in svg
    assert not re.search(r"<style|font-family|#1c2430|\d\.\d{2}(?=[ \"])", svg)
