"""The reliability diagram shows the numbers of its bins and escapes markup."""

import json

import pandas as pd
import pytest

from probekit.report.figures.chosen_figures import reliability_figure
from probekit.report.figures.line_labels import LABEL
from probekit.report.figures.style import plotly_text


@pytest.fixture
def bins():
    rows = [
        (0.6, 0.8, 40, 0.71, 0.55, 0.4, 0.7),
        (0.4, 0.6, 25, 0.52, 0.5, 0.3, 0.65),
        (0.8, 1.0, 1900, 0.97, 0.8, 0.75, 0.86),
    ]
    names = ["low", "high", "n_rows", "confidence", "accuracy", "ci_low", "ci_high"]
    return pd.DataFrame(rows, columns=names)


def named(figure, name):
    (trace,) = [trace for trace in figure.data if trace.name == name]
    return trace


def test_the_line_has_the_bins_in_order_of_confidence_with_intervals(bins):
    line = named(reliability_figure(bins), "all")
    assert list(line.x) == [0.52, 0.71, 0.97]
    assert list(line.y) == [0.5, 0.55, 0.8]
    ends = zip(line.y, line.error_y.arrayminus, line.error_y.array, strict=True)
    assert [(y - down, y + up) for y, down, up in ends] == [
        pytest.approx(pair) for pair in [(0.3, 0.65), (0.4, 0.7), (0.75, 0.86)]
    ]


def test_bars_of_counts_are_centred_on_their_bins(bins):
    figure = reliability_figure(bins)
    bars = named(figure, "rows: all")
    assert list(bars.x) == pytest.approx([0.5, 0.7, 0.9])
    assert list(bars.y) == [25, 40, 1900]
    assert bars.yaxis == "y2"
    assert figure.layout.yaxis2.domain[1] < figure.layout.yaxis.domain[0]


def test_the_diagonal_is_where_confidence_is_accuracy(bins):
    diagonal = named(reliability_figure(bins), "perfectly calibrated")
    assert list(diagonal.x) == list(diagonal.y) == [0, 1]


def test_the_hover_shows_all_numbers(bins):
    assert named(reliability_figure(bins), "all").hovertext[2] == (
        "<b>confidence above 0.80 to 1.00</b><br>mean confidence: 0.970<br>"
        "accuracy: 0.800 [0.750, 0.860]<br>test rows: 1,900"
    )


def test_several_lines_have_labels_and_distinct_styles(bins, hostile):
    both = pd.concat([bins.assign(probe="layer 3"), bins.assign(probe=hostile)])
    figure = reliability_figure(both)
    labels = [note.text for note in figure.layout.annotations if note.name == LABEL]
    assert labels[:2] == ["perfectly<br>calibrated", "layer\u00a03"]
    assert len(labels) == 3
    assert not figure.layout.showlegend
    lines = [named(figure, name) for name in ("layer 3", plotly_text(hostile))]
    assert len({(line.line.color, line.marker.symbol) for line in lines}) == 2
    text = figure.to_json()
    assert "%{" not in text
    assert "</script" not in text


def test_numbers_are_written_as_lists(bins):
    data = json.loads(reliability_figure(bins).to_json())["data"]
    assert all(isinstance(trace["x"], list) for trace in data)
