"""Layer curve with one panel per kind of site."""

import pandas as pd
import pytest

from probekit.report.figures.facets import curve_facets
from probekit.report.figures.style import LINES
from probekit.report.pages.run_page import run_figures, write_report
from tests.report.conftest import make_table

KINDS = ["residual stream", "attn_out", "mlp_out", "attn.z"]


def four_kinds():
    """Return rows of a run over four kinds of site; the best by cross-validation is an MLP's."""
    table = make_table()
    sited = table[table["site"].str.contains("resid_post")]
    others = [
        sited.assign(
            site=sited["site"].str.replace("hook_resid_post", name),
            value=sited["value"] + (0.02 if name == "hook_mlp_out" else -0.1),
        )
        for name in ("hook_attn_out", "hook_mlp_out", "attn.hook_z")
    ]
    return pd.concat([table, *others])


@pytest.fixture
def many_kinds():
    return four_kinds()


def of_panel(figure, number):
    return [t for t in figure.data if (t.yaxis or "y") == ("y" if number == 1 else f"y{number}")]


def test_each_kind_has_a_panel_with_controls_and_baselines_on_one_scale(many_kinds):
    figure = curve_facets(many_kinds)
    titles = [a.text for a in figure.layout.annotations if a.text.startswith("<b>")]
    assert [title.split("</b>")[0] for title in titles] == [f"<b>{kind}" for kind in KINDS]
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


def test_the_legend_has_each_name_once(many_kinds):
    named = [t.name for t in curve_facets(many_kinds).data if t.showlegend]
    assert len(named) == len(set(named)) == 5


def test_the_ring_is_only_in_the_panel_of_the_chosen_site(many_kinds):
    figure = curve_facets(many_kinds)
    rings = [
        number
        for number in range(1, 5)
        for t in of_panel(figure, number)
        if t.marker.symbol == "circle-open"
    ]
    assert rings == [1 + KINDS.index("mlp_out")]
    (title,) = [a.text for a in figure.layout.annotations if "cross-validation" in a.text]
    assert title.startswith("<b>mlp_out</b>")


def test_the_page_draws_panels_for_four_kinds_and_lines_for_three(many_kinds, make_run):
    def panels(table):
        part = run_figures(make_run(table))[0]
        n_axes = sum(name.startswith("yaxis") for name in part.figure["layout"])
        return n_axes, part.height is not None, "One panel for each" in part.caption

    assert panels(many_kinds) == (4, True, True)
    assert panels(many_kinds[~many_kinds["site"].str.contains("hook_z")]) == (1, False, False)


def test_panels_use_the_colours_of_the_page(browser, many_kinds, make_run):
    grids = "[...document.querySelector('.plot').querySelectorAll('.ygrid')].map("
    grids += "line => getComputedStyle(line).stroke)"
    browser.open(write_report(make_run(many_kinds)), width=360, dark=True)
    assert len(set(browser.evaluate(grids))) == 1
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    assert browser.trouble == []
