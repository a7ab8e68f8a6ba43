"""Layer curves of one run and of several, in one panel and in several; with undefined scores."""

import math

import numpy as np
import pandas as pd
import pytest

from probekit.probes.targets import HEADLINE
from probekit.report.elements.style import LEVELS, LINES, SERIES_COLOURS, SERIES_MARKERS
from probekit.report.figures.layer_curve import curve_figure, layer_curve, panels
from probekit.report.figures.maps import luminance
from probekit.report.figures.views import curve_rows
from probekit.report.pages.parts import result_parts
from probekit.report.sentences.answer import answer
from probekit.results.scores import Scores
from tests.report.conftest import (
    altered,
    four_kinds,
    four_probes,
    judged,
    make_heads,
    make_sweep,
    make_table,
    row,
)
from tests.report.sentences.cases import NESTED
from tests.stored import changed, drawn

PLAIN, KINDS = make_table(), four_kinds().reset_index(drop=True)
UNDEFINED = dict.fromkeys(("value", "ci_low", "ci_high"), math.nan)
OWN = "target == 'task' and split == 'test' and metric == 'accuracy'"
SITES = PLAIN["site"].unique()
TWO_BLOCKS = PLAIN.query("site == '' or site.str.contains('[12].hook_resid_post')")
RUNS = ["last · folds 5", "last · no folds", "mean · folds 5"]
PARTS = ["hook_attn_out", "hook_mlp_out", "attn.hook_z", "attn.hook_q", "attn.hook_k"]


def copies(table, column, values):
    """Return a copy of the rows of a table for each value of a column."""
    return pd.concat([table.assign(**{column: value}) for value in values], ignore_index=True)


def with_parts(table, names):
    """Return a table with copies of its rows of the residual stream for other kinds of site."""
    sited = table[table["site"].str.contains("hook_resid_post")]
    sites = [sited["site"].str.replace("hook_resid_post", name) for name in names]
    return pd.concat([table, *(sited.assign(site=own) for own in sites)], ignore_index=True)


def with_null(table):
    """Return a table with scores of permuted labels, of a wider range for each further run."""
    number = table["run"].map(list(table["run"].unique()).index)
    limits = {"null_low": 0.4 - number / 10, "null_high": 0.6 + number / 10}
    null = table.assign(metric="p_value", value=0.01, **limits)[table.eval(OWN)]
    return pd.concat([table, null], ignore_index=True)


def without_controls(table):
    return table[~table["target"].isin(["control", "random_weights"])]


def with_choices(table, **values):
    """Return a table with the value of a nested choice for some runs."""
    nested = [row("", HEADLINE, value, run=run) for run, value in values.items()]
    return pd.concat([table, pd.DataFrame(nested)], ignore_index=True)


# The first and the third have a nested choice, and equal baselines.
THREE_RUNS = with_choices(
    altered(
        without_controls(copies(PLAIN, "run", RUNS)),
        f"run == '{RUNS[1]}' and target == 'word_identity'",
        value=0.62,
    ),
    **dict.fromkeys(RUNS[::2], 0.93),
)
TWO_RUNS = copies(PLAIN, "run", "ab")
LOWER = TWO_RUNS["value"] - 0.07 * TWO_RUNS["run"].eq("b")

CHANGES = {
    "nothing, in any order of rows": PLAIN.sample(frac=1, random_state=0),
    "no band without intervals": PLAIN.assign(ci_low=math.nan, ci_high=math.nan),
    "no ring without cross-validation": PLAIN[PLAIN["split"] == "test"],
    # The label of the ring is on the side with more space.
    "the label below": altered(PLAIN, "target == 'control' and layer == 2", value=0.96),
    "the label above": altered(PLAIN, "target == 'control' and layer == 2", value=0.92),
    "a wider axis below chance": altered(PLAIN, "target == 'task'", value=0.3, ci_low=0.2),
    "a horizontal line and no point for concatenated sites": pd.concat(
        [PLAIN, make_heads().query("site.str.contains(' ')")], ignore_index=True
    ),
    "labels of close levels apart": altered(PLAIN, "target == 'word_identity'", value=0.506),
    "one label of equal levels": altered(PLAIN, "target == 'word_identity'", value=0.501),
    "a minus sign": altered(PLAIN, OWN, value=-0.04),
    **{
        f"no point and the same axis for an undefined score at {site}": altered(
            PLAIN, f"target == 'task' and site == '{site}'", **UNDEFINED
        )
        for site in SITES[[0, 2, 5]]
    },
    "no ring for an undefined score": altered(PLAIN, f"{OWN} and layer == 2", **UNDEFINED),
    "no line for an undefined baseline": altered(PLAIN, "target == 'word_identity'", **UNDEFINED),
    "nothing but chance for undefined scores": PLAIN.assign(**UNDEFINED),
}
CURVES = {
    "48 blocks have a tick each, every third with its name": copies(
        PLAIN.query(f"{OWN} and layer == 2"),
        "site",
        [f"blocks.{n}.hook_resid_post" for n in range(48)],
    ),
    "kinds of site have markers, and controls one label": with_parts(TWO_BLOCKS, PARTS),
    "five of many lines are coloured, and all are in a legend": pd.concat(
        [
            with_parts(TWO_BLOCKS, PARTS),
            copies(TWO_BLOCKS, "position", [f"index:{n}" for n in range(8)]),
        ]
    ),
    "names have only what differs": copies(PLAIN, "position", ["first", "last"]),
    "bands of a single layer have a width": with_null(
        PLAIN.query("site in ['', 'blocks.2.hook_resid_post'] and target != 'control'")
    ),
    "three runs have labels, levels and choices in their colours and no band": THREE_RUNS,
    "the choice of outer folds is a line without a ring": NESTED,
    "two runs have a band each": THREE_RUNS[THREE_RUNS["run"] != RUNS[1]],
    "the band of the null contains those of all runs": with_null(THREE_RUNS),
    "levels name their run where runs differ": without_controls(
        altered(TWO_RUNS, "run == 'b' and target == 'majority'", value=0.17)
    ),
}
PANELS = {
    "kinds of site": KINDS,
    "offsets of a sweep": curve_rows(Scores.of(make_sweep())).rows,
    "six runs": copies(TWO_BLOCKS, "run", [f"run {n}" for n in range(6)]),
    "two runs of two kinds, with their choices": with_choices(
        without_controls(with_parts(TWO_RUNS.assign(value=LOWER), ["hook_mlp_out"])), a=0.87, b=0.8
    ),
    "long titles have two lines": copies(
        curve_rows(Scores.of(make_sweep())).rows, "run", ["plural", "tense"]
    ),
    "names of layers have one word a line side by side": four_probes(),
}
PANEL_CHANGES = {
    "a line that no panel at the edge has is in the legend": KINDS.query(
        "target != 'random_weights' or site.str.contains('resid|ln_final')"
    ),
    "a panel names only its layers, if those below have none": KINDS.query(
        "not site.str.contains('attn.hook_z')"
    ),
    "others points at the grey line farthest from other labels": altered(
        KINDS, "site.str.contains('mlp_out') and target == 'task'", value=0.6
    ),
    "undefined scores do not change the axis": altered(KINDS, "layer == 1", **UNDEFINED),
}


def bare(figure):
    """Return the text of a figure without the hover texts of points."""
    points = {"mode": "lines+markers"}
    return drawn(figure.update_traces(selector=points, hovertext=None, customdata=None))


@pytest.mark.parametrize("metric", ["accuracy", "auroc", "selectivity"])
def test_a_curve_has_task_controls_baselines_and_the_chosen_site(metric, snapshot):
    assert drawn(layer_curve(Scores.of(PLAIN), metric)) == snapshot


@pytest.mark.parametrize("change", CHANGES)
def test_a_curve_changes_only_in(change, snapshot):
    assert (
        changed(bare(layer_curve(Scores.of(PLAIN))), bare(layer_curve(Scores.of(CHANGES[change]))))
        == snapshot
    )


@pytest.mark.parametrize("name", CURVES)
def test_curves_of_several_series(name, snapshot):
    assert bare(layer_curve(Scores.of(CURVES[name]))) == snapshot


@pytest.mark.parametrize("name", PANELS)
def test_series_have_a_panel_each_with_the_others_in_grey(name, snapshot):
    assert bare(curve_figure(Scores.of(PANELS[name]))) == snapshot


@pytest.mark.parametrize("change", PANEL_CHANGES)
def test_panels_change_only_in(change, snapshot):
    of_kinds, other = curve_figure(Scores.of(KINDS)), curve_figure(Scores.of(PANEL_CHANGES[change]))
    assert changed(bare(of_kinds), bare(other)) == snapshot


def test_colours_have_enough_contrast_on_both_pages_and_repeat_later_than_markers():
    styles = [*LINES.values(), *LEVELS.values()]
    colours = [*SERIES_COLOURS, *(style.colour for style in styles if style.colour)]
    parts = [list(bytes.fromhex(colour[1:])) for colour in ("#ffffff", "#14171c", *colours)]
    *pages, lights = np.split(luminance(np.array(parts) / 255) + 0.05, [1, 2])
    for page in pages:
        assert (np.maximum(lights, page) / np.minimum(lights, page) >= 3).all()
    assert math.gcd(len(SERIES_COLOURS), len(SERIES_MARKERS)) == 1


def test_labels_round_like_the_sentence():
    table = altered(PLAIN, OWN, value=0.175, ci_low=0.036, ci_high=0.438)
    notes = layer_curve(Scores.of(table)).layout.annotations
    assert "chosen\u00a00.18" in {note.text for note in notes}
    assert answer(judged(table)).startswith("Worse than chance: 18 % [4, 44]")


def test_many_series_share_panels_by_their_kind_of_site():
    wide = Scores.of(copies(KINDS, "probe", ["logistic", "lda", "svm"]))
    names = [name for name, _ in panels(wide.sited)]
    assert names == ["residual stream", "attn_out", "mlp_out", "attn.z"]


@pytest.mark.parametrize(("table", "is_several"), [(KINDS, True), (PLAIN, False)])
def test_the_page_draws_panels_for_several_kinds_and_a_single_curve_for_one(table, is_several):
    part = next(result_parts(Scores.of(table), judged(table)))
    assert ("yaxis4" in part.figure["layout"]) == (part.height is not None) == is_several
    assert ("One panel for each kind of site" in part.caption) == is_several


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


@pytest.mark.parametrize(("dark", "opacity"), [(False, 0.2), (True, 0.3)])
def test_bands_have_more_contrast_on_dark_pages(browser, report_of, dark, opacity):
    browser.open(report_of("kinds"), dark=dark)
    band = "document.querySelector('.plot .trace:has(.js-fill)')"
    assert float(browser.evaluate(f"getComputedStyle({band}).opacity")) == opacity
    grids = "[...document.querySelector('.plot').querySelectorAll('.ygrid')].map("
    grids += "line => getComputedStyle(line).stroke)"
    assert len(set(browser.evaluate(grids))) == 1


def test_the_band_of_the_null_ends_at_the_ends_of_the_metric():
    table = with_null(without_controls(PLAIN))
    wide = table.assign(null_low=table["null_low"] - 1, null_high=table["null_high"] + 1)
    (found,) = curve_figure(Scores.of(wide)).select_traces({"name": "95 % of the null"})
    assert set(found.y) == {0.0, 1.0}
