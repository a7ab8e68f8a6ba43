"""The pages of comparisons and transfers, as a browser shows them; names do no harm."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from probekit.report.figures.line_labels import LABEL
from probekit.report.pages.compare_page import (
    MOST_LINES,
    comparison_page,
    difference_figure,
    difference_lines,
)
from probekit.report.pages.transfer_page import place_parts, transfer_page
from probekit.results.site_results import NESTED_SITE
from tests.report.pictures import make_comparison, make_transfer


@pytest.fixture
def comparison(hostile):
    return make_comparison(hostile)


@pytest.fixture
def transfer(hostile):
    return make_transfer(hostile)


def test_marks_are_filled_where_a_difference_holds(comparison):
    logistic, mass_mean, *_ = difference_figure(comparison).data
    assert list(logistic.marker.symbol) == ["circle", "circle-open", "circle-open"]
    assert list(mass_mean.marker.symbol) == ["square", "square-open", "square-open"]
    assert list(logistic.x) == [-1, 0, 1]
    assert not set(logistic.x) & set(mass_mean.x)  # no interval lies on another
    assert np.allclose(logistic.error_y.array, 0.15)


def test_each_line_of_a_comparison_is_labelled_at_its_end(comparison):
    figure = difference_figure(comparison)
    labels = [note.text for note in figure.layout.annotations if note.name == LABEL]
    assert len(labels) == 2
    assert not figure.layout.showlegend


def test_positions_count_as_lines_of_a_comparison(comparison):
    sites = comparison.rows[comparison.rows["what"] == "site"]
    n_positions = MOST_LINES // 2  # each with two kinds of probe
    for n, n_figures in ((n_positions, 1), (n_positions + 1, 0)):
        moved = [sites.assign(position_a=f"at {i}", position_b=f"at {i}") for i in range(n)]
        many = replace(comparison, rows=pd.concat(moved))
        drawn = [trace for trace in difference_figure(many).data if trace.error_y.array]
        assert len(drawn) == 2 * n
        assert comparison_page(many).count('class="drawing"') == n_figures


def test_the_choice_of_nested_cross_validation_is_no_point_of_the_curve(comparison):
    nested = comparison.rows.head(1).assign(site_a=NESTED_SITE, site_b=NESTED_SITE)
    both = replace(comparison, rows=pd.concat([comparison.rows, nested]))
    assert len(difference_lines(both)) == len(difference_lines(comparison))


def test_a_cosine_says_from_how_many_permutations_it_is_judged(transfer):
    page = transfer_page(transfer)
    assert "based on 20 permutations, so p cannot be below 0.048." in page
    _, cosines, _ = place_parts(transfer, *transfer.chosen)
    hover = cosines.figure["data"][0]["hovertext"]
    assert hover[0][1].endswith(
        "with permuted labels: −0.100 to 0.100<br>permutations: 20<br>p: 0.0496"
    )
    assert hover[0][0].endswith("permutations: 10")
    # Nothing was tested, so nothing is reported.
    bare = replace(transfer, cosines=transfer.cosines.assign(n_null=0, p=np.nan))
    assert "permutations, so p" not in transfer_page(bare)
