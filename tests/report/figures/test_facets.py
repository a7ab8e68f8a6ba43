"""Layer curve with one panel per kind of site."""

import numpy as np
import pandas as pd
import pytest

from probekit.report.figures.layer_curve import TITLE, curve_facets, curve_figure, panels
from probekit.report.figures.line_labels import LABEL
from probekit.report.figures.style import GREY, LINES, SERIES_COLOURS
from probekit.report.figures.views import curve_rows
from probekit.report.pages.parts import first_part
from probekit.results.table import placed
from tests.report.conftest import four_kinds, four_probes, judged

KINDS = ["residual stream", "attn_out", "mlp_out", "attn.z"]


@pytest.fixture
def many_kinds():
    return four_kinds()


def of_panel(figure, number):
    return [t for t in figure.data if (t.yaxis or "y") == ("y" if number == 1 else f"y{number}")]


def titles(figure):
    return [note.text for note in figure.layout.annotations if note.name == TITLE]


def labels(figure):
    return [
        note.text.replace("<br>", " ").replace("\u00a0", " ").replace("&#37;", "%")
        for note in figure.layout.annotations
        if note.name == LABEL
    ]


def test_each_kind_has_a_panel_with_controls_and_baselines_on_one_scale(many_kinds):
    figure = curve_facets(many_kinds)
    assert [title.removesuffix(" ○") for title in titles(figure)] == KINDS
    for number in range(1, 5):
        named = {t.name: t for t in of_panel(figure, number)}
        assert {"task", "control task", "random weights", "majority 0.50"} <= set(named)
        assert [named[style.label].line.dash for style in LINES.values()] == [
            style.dash for style in LINES.values()
        ]
        assert len([t for t in of_panel(figure, number) if t.fill]) == 1
    axes = [figure.layout[f"yaxis{number or ''}"] for number in ("", 2, 3, 4)]
    assert len({tuple(axis.range) for axis in axes}) == 1
    assert len({figure.layout[f"xaxis{n}"].range for n in ("", 2, 3, 4)}) == 1


def test_each_panel_highlights_its_own_line_and_draws_the_others_in_grey(many_kinds):
    figure = curve_facets(many_kinds)
    for number in range(1, 5):
        lines = [t for t in of_panel(figure, number) if t.mode.startswith("lines") and not t.fill]
        coloured = {t.line.color for t in lines} - {GREY}
        assert len(coloured) == 3  # task, control task, random weights
        assert len([t for t in lines if t.line.width == 1]) == 3


def test_each_line_is_labelled_once_and_there_is_no_legend(many_kinds):
    figure = curve_facets(many_kinds)
    names = ["control task", "majority 0.50", "others", "random weights", "task, 95 % band"]
    assert sorted(labels(figure)) == [*names, "word identity 0.71"]
    assert not figure.layout.showlegend


def test_a_line_that_no_panel_at_the_edge_has_is_in_the_legend(many_kinds):
    elsewhere = ~many_kinds["site"].str.contains("resid|ln_final")
    is_random = many_kinds["target"] == "random_weights"
    figure = curve_facets(many_kinds[~(is_random & elsewhere)])
    assert [t.name for t in figure.data if t.showlegend] == ["random weights"]
    assert figure.layout.showlegend


def test_the_ring_is_only_in_the_panel_of_the_chosen_site(many_kinds):
    figure = curve_facets(many_kinds)
    rings = [
        number
        for number in range(1, 5)
        for t in of_panel(figure, number)
        if t.marker.symbol == "circle-open"
    ]
    assert rings == [1 + KINDS.index("mlp_out")]
    assert [title for title in titles(figure) if title.endswith("○")] == ["mlp_out ○"]


def test_each_offset_of_a_sweep_has_a_panel(sweep):
    figure = curve_figure(curve_rows(sweep))
    assert titles(figure) == [
        "1 token before the word",
        "last token of the word ○",
        "2 tokens after the word",
    ]
    highlighted = [t.y[3] for n in (1, 2, 3) for t in of_panel(figure, n) if t.name == "task"]
    assert highlighted == pytest.approx([0.641, 0.941, 0.841])


def test_many_series_share_panels_by_their_kind_of_site(many_kinds):
    kinds = [many_kinds.assign(probe=name) for name in ("logistic", "lda", "svm")]
    names = [name for name, _ in panels(placed(pd.concat(kinds)))]
    assert names == KINDS


def test_runs_are_compared_in_one_panel_and_baselines_name_their_run(table):
    other = table.assign(run="tense")
    other.loc[other["target"] == "majority", "value"] = 0.17
    both = pd.concat([table, other], ignore_index=True)
    figure = curve_figure(both[~both["target"].isin(["control", "random_weights"])])
    assert {"majority of tense 0.17", "majority of plural 0.50"} < set(labels(figure))
    assert "word identity 0.71" in labels(figure)  # equal in both runs
    assert {t.line.color for t in figure.data if t.mode == "lines+markers"} == {*SERIES_COLOURS[:2]}


def test_many_runs_have_a_panel_each(table):
    runs = pd.concat([table.assign(run=f"run {n}") for n in range(6)], ignore_index=True)
    assert titles(curve_figure(runs)) == [f"run {n}" + " ○" for n in range(6)]


def test_the_page_draws_panels_for_several_kinds_and_a_single_curve_for_one(many_kinds, table):
    def panels(table):
        part = first_part(table, judged(table))
        n_axes = sum(name.startswith("yaxis") for name in part.figure["layout"])
        return n_axes, part.height is not None, "One panel for each kind of site" in part.caption

    assert panels(many_kinds) == (4, True, True)
    assert panels(table) == (1, False, False)


def test_panels_use_the_colours_of_the_page(browser, report_of):
    grids = "[...document.querySelector('.plot').querySelectorAll('.ygrid')].map("
    grids += "line => getComputedStyle(line).stroke)"
    browser.open(report_of("kinds"), width=360, dark=True)
    assert len(set(browser.evaluate(grids))) == 1


def test_a_long_title_of_a_panel_has_two_lines(sweep):
    runs = pd.concat([curve_rows(sweep).assign(run=name) for name in ("plural", "tense")])
    assert "plural<br>1 token before the word" in titles(curve_figure(runs))


def layers(figure, number):
    axis = figure.layout[f"xaxis{number if number > 1 else ''}"]
    texts = axis.ticktext if axis.showticklabels is not False else []
    return [text.removeprefix("<br>") for text in texts if text]


def test_a_panel_names_only_layers_that_it_has(many_kinds):
    figure = curve_facets(many_kinds[~many_kinds["site"].str.contains("attn.hook_z")])
    assert layers(figure, 1) == ["embed", "final norm"]  # the blocks are named below
    assert layers(figure, 2) == layers(figure, 3) == ["0", "1", "2", "3"]


def test_names_of_layers_have_one_word_a_line_in_panels_side_by_side():
    figure = curve_facets(four_probes())
    assert figure.layout.xaxis4.ticktext == ("<br>embed", *"0123", "<br>final<br>norm")
    assert figure.layout.meta["ticktext"]["xaxis"] == ["<br>embed", *"0123", "<br>final norm"]


def test_narrow_windows_show_panels_in_one_column(browser, report_of):
    browser.open(report_of("kinds"), width=400)
    boxes = (
        "(() => { const { _fullLayout: full } = document.querySelector('.plot .drawing');"
        "return ['xaxis', 'xaxis2', 'xaxis3', 'xaxis4'].map(name => {"
        "const x = full[name], y = full[name.replace('x', 'y')];"
        "return [x._offset, x._length, y._offset, y._length]; }); })()"
    )
    toolbar = "getComputedStyle(document.querySelector('.modebar-container')).display"
    narrow = browser.evaluate(boxes)
    assert len({left for left, *_ in narrow}) == 1
    bottoms = [top + height for *_, top, height in narrow]
    tops = [top for _, _, top, _ in narrow]
    assert all(top - bottom > 60 for bottom, top in zip(bottoms[:-1], tops[1:], strict=True))
    assert all(height > 100 for *_, height in narrow)
    assert browser.evaluate(toolbar) == "none"
    browser.resize(1400)
    browser.settle()
    wide = browser.evaluate(boxes)
    assert wide[0][2] == wide[1][2] < wide[2][2] == wide[3][2]
    assert browser.evaluate(toolbar) != "none"
    browser.resize(400)
    browser.settle()
    again = browser.evaluate(boxes)
    assert np.array(again) == pytest.approx(np.array(narrow), abs=1)
    assert browser.trouble == []


def test_others_points_at_the_grey_line_that_is_farthest_from_other_labels(many_kinds):
    low = many_kinds["site"].str.contains("mlp_out") & many_kinds["target"].eq("task")
    many_kinds.loc[low, "value"] = 0.6
    figure = curve_facets(many_kinds)
    label = next(n for n in figure.layout.annotations if n.name == LABEL and n.text == "others")
    panel = int(label.yref.removeprefix("y") or 1)
    ends = [t.y[-1] for t in of_panel(figure, panel) if t.line.width == 1]
    assert label.y in ends
    named = [n.y for n in figure.layout.annotations if n.name == LABEL and n.yref == label.yref]
    named.remove(label.y)
    gaps = {end: min(abs(end - y) for y in named) for end in ends}
    assert gaps[label.y] == max(gaps.values())


@pytest.mark.parametrize(("dark", "opacity"), [(False, 0.2), (True, 0.42)])
def test_bands_have_more_contrast_on_dark_pages(browser, report_of, dark, opacity):
    browser.open(report_of("plain"), dark=dark)
    band = "document.querySelector('.plot .trace:has(.js-fill)')"
    assert float(browser.evaluate(f"getComputedStyle({band}).opacity")) == opacity
