"""Labels of lines: placed without overlap, and measured in the drawn figure in a browser."""

from itertools import pairwise
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest

from probekit.report.figures.line_labels import LABEL, LINE_HEIGHT, label_shifts, value_range
from probekit.report.pages.compare_page import load_runs, runs_page
from probekit.report.pages.run_page import write_report
from tests.report.conftest import make_record, make_table, row, write_shown

MEASURE = Path(__file__).with_name("line_labels.js").read_text("utf-8")
AT, N_LINES = [80.0, 84.0, 130.0, 150.0, 155.0], [2, 3, 1, 1, 2]


@pytest.mark.parametrize("stretch", [1.0, 1.5, 2.5], ids=["placed for", "higher", "far higher"])
def test_labels_do_not_overlap_in_plots_at_least_as_high(stretch):
    shifts = label_shifts(AT, N_LINES, 160)
    middles = [place * stretch + shift for place, shift in zip(AT, shifts, strict=True)]
    halves = [lines * LINE_HEIGHT / 2 for lines in N_LINES]
    ends = [(m - half, m + half) for m, half in zip(middles, halves, strict=True)]
    assert all(below[1] <= above[0] + 0.2 for below, above in pairwise(ends))


def test_a_label_with_enough_space_is_at_its_line_and_those_at_the_edges_stay_inside():
    assert label_shifts([20.0, 60.0, 120.0], [1, 1, 2], 160) == [0.0, 0.0, 0.0]
    low, *_, high = label_shifts([0.0, 0.0, 160.0, 160.0], [1, 1, 1, 1], 160)
    assert 0 + low >= -LINE_HEIGHT
    assert high <= LINE_HEIGHT


@pytest.mark.parametrize(("metric", "low"), [("r2", -0.2), ("accuracy", -0.9)])
def test_the_axis_of_r2_leaves_out_baselines_below_the_mean_label_but_no_curve(metric, low):
    figure = go.Figure().add_scatter(x=[0, 1], y=[0.5, -0.2], mode="lines+markers")
    figure.add_scatter(x=[0, 1], y=[-0.9, -0.9], mode="lines")
    assert value_range(figure, metric, 0.0)[0] == pytest.approx(low - 0.04 * (1 - low))


def crowded():
    """Rows in which lines and baselines end at nearly the same value, and all labels must move."""
    table = make_table()
    table.loc[table["target"].isin(["control", "random_weights"]), "value"] = 0.712
    others = [row("", name, 0.70 + n / 100) for n, name in enumerate(["n_grams", "length"])]
    return pd.concat([table, pd.DataFrame(others)], ignore_index=True)


def many_runs():
    """Rows of more runs than one panel compares."""
    return pd.concat([make_table().assign(model=f"network {n}") for n in range(6)])


OWN = {"crowded": crowded, "panels in three columns": many_runs}
SHARED = ("plain", "kinds", "probes", "sweep")


@pytest.fixture(scope="module")
def pages(report_of, tmp_path_factory):
    """A function that returns the page of a table, or that of two runs with other baselines."""
    folder = tmp_path_factory.mktemp("labels")
    paths = {name: write_report(write_shown(folder / name, make())) for name, make in OWN.items()}
    other = make_table()
    other.loc[other["target"] == "majority", "value"] = 0.17
    runs = [
        write_shown(folder / name, table.assign(run=name), make_record() | {"run": name})
        for name, table in {"plural": make_table(), "tense": other}.items()
    ]
    paths["two runs"] = folder / "runs.html"
    paths["two runs"].write_text(runs_page(load_runs(runs)), "utf-8")
    return lambda name: report_of(name) if name in SHARED else paths[name]


@pytest.mark.parametrize("name", [*OWN, *SHARED, "two runs"])
def test_each_drawn_label_is_at_its_own_line_or_has_a_leader(browser, pages, name):
    browser.open(pages(name), width=1400)
    if name == "two runs":  # the lines are below the scores
        browser.evaluate("document.querySelector('.plot').remove()")
    for width in (1400, 700, 641, 400):
        browser.resize(width)
        browser.settle()
        found = browser.evaluate(MEASURE)
        assert found["labels"] >= 3
        assert found["ticks"] >= 6
        assert found["faults"] == []


LABELS = "drawing.layout.annotations.map((one, n) => [one, n])"
LABELS += f".filter(([one]) => one.name === '{LABEL}')"


@pytest.mark.parametrize(
    ("name", "layout", "fault"),
    [
        ("crowded", f"{LABELS}.map(([, n]) => [`annotations[${{n}}].ay`, 0])", "overlap"),
        ("crowded", f"{LABELS}.map(([, n]) => [`annotations[${{n}}].y`, 0.93])", "no line"),
        (
            "probes",
            "[['xaxis3.domain', [0, 0.49]], ['xaxis4.domain', [0.5, 1]]]",
            "finalnorm: ticks overlap with embed",
        ),
    ],
    ids=["labels together", "labels astray", "labels of neighbouring panels"],
)
def test_the_measurement_notices_wrong_labels(browser, pages, name, layout, fault):
    browser.open(pages(name))
    browser.evaluate(
        "(drawing => Plotly.relayout(drawing, Object.fromEntries("
        f"{layout})).then(() => 0))(document.querySelector('.plot .drawing'))"
    )
    assert any(fault in found for found in browser.evaluate(MEASURE)["faults"])
