"""Figures of comparisons and transfers; their pages are in test_every_page.py."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from probekit.report.pages.compare_page import (
    MOST_LINES,
    comparison_page,
    difference_figure,
    difference_lines,
)
from probekit.report.pages.transfer_page import place_parts, score_map, transfer_page
from probekit.results.site_results import NESTED_SITE
from tests.report.page_text import text_of
from tests.report.pictures import make_comparison, make_transfer
from tests.stored import changed, drawn

SCORE = ["value", "difference"]
SCORE += [f"{of}_{end}" for of in ("ci", "lead", "difference") for end in ("low", "high")]


@pytest.fixture
def comparison():
    return make_comparison("a")


@pytest.fixture
def transfer():
    return make_transfer("a note")


def test_marks_are_filled_where_a_difference_is_significant(comparison, snapshot):
    """Each line is labelled at its end, and no interval lies on another."""
    assert drawn(difference_figure(comparison)) == snapshot


def test_positions_count_as_lines_of_a_comparison(comparison):
    sites = comparison.rows[comparison.rows["what"] == "site"]
    n_positions = MOST_LINES // 2  # each with two kinds of probe
    for n, n_figures in ((n_positions, 1), (n_positions + 1, 0)):
        moved = [sites.assign(position_a=f"at {i}", position_b=f"at {i}") for i in range(n)]
        many = replace(comparison, rows=pd.concat(moved))
        lines = [trace for trace in difference_figure(many).data if trace.error_y.array]
        assert len(lines) == 2 * n
        assert comparison_page(many).html().count('class="drawing"') == n_figures


def test_the_choice_of_nested_cross_validation_is_no_point_of_the_curve(comparison):
    nested = comparison.rows.head(1).assign(site_a=NESTED_SITE, site_b=NESTED_SITE)
    both = replace(comparison, rows=pd.concat([comparison.rows, nested]))
    assert len(difference_lines(both)) == len(difference_lines(comparison))


def test_differences_are_drawn_if_they_have_intervals_and_compare_probes(comparison):
    title, rows = "Accuracy of a minus b (filled: significant)", comparison.rows.copy()
    # A baseline with another score in one run, and one that guesses as the majority class does.
    (majority,) = rows.index[rows["target"] == "majority"]
    rows.loc[majority, ["value_b", "difference"]] = 0.7, 0.1
    length = rows.loc[[majority]].assign(target="length", value_a=0.9)
    words = rows.loc[[majority]].assign(target="bag_of_words")

    def drawn_rows(*more):
        """The names in the figure of the page, or nothing."""
        page = comparison_page(replace(comparison, rows=pd.concat([rows, *more])))
        parts = [one for section in page.sections for one in getattr(section, "items", ())]
        texts = [
            getattr(one, "description", "") for one in parts if getattr(one, "title", "") == title
        ]
        return re.findall(r"(selected probes|length|bag of words|majority): ", "".join(texts))

    assert drawn_rows(length, words) == ["selected probes", "length"]
    assert drawn_rows(words) == ["selected probes"]
    assert drawn_rows(length.assign(ci_low=np.nan)) == ["selected probes"]


def test_a_cosine_states_how_many_permutations_it_is_based_on(transfer, snapshot):
    _, cosines, _ = place_parts(transfer, *transfer.chosen)
    assert drawn(go.Figure(cosines.figure)) == snapshot
    # Nothing was tested, so nothing is reported.
    bare = replace(transfer, cosines=transfer.cosines.assign(n_null=0, p=np.nan))
    assert "permutations, so p" not in transfer_page(bare).html()


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_cell_without_a_score_is_empty(transfer, snapshot, is_dropped):
    """The probe of `third` has no score on `short` at the chosen site; other cells are the same."""
    rows = transfer.scores.copy()
    is_cell = rows["site"].eq(transfer.chosen[0]) & rows["train"].eq("third")
    is_cell &= rows["test"].eq("short")
    rows.loc[is_cell, SCORE] = np.nan
    bare = replace(transfer, scores=rows[~is_cell] if is_dropped else rows)
    maps = [
        drawn(score_map(one.maps(*one.chosen)["score"], transfer.names, "accuracy"))
        for one in (transfer, bare)
    ]
    assert changed(*maps) == snapshot(name="a cell less")
    scores, *_ = place_parts(bare, *bare.chosen)
    assert "nan" not in scores.description
    assert not re.search(r"\bnan\b", text_of(transfer_page(bare).html()))


def test_a_cell_is_hatched_if_its_lead_over_chance_may_be_0(transfer):
    rows = transfer.maps(*transfer.chosen)["score"].assign(ci_low=0.6, value=0.65, ci_high=0.7)
    low = np.where(rows["test"] == transfer.names[0], -0.02, 0.05)
    shapes = score_map(
        rows.assign(lead_low=low, lead_high=0.2), transfer.names, "accuracy"
    ).layout.shapes
    hatched = {round((one.x0 + one.x1) / 2) for one in shapes if one.opacity == 0.6}
    assert hatched == {0}


def test_a_page_of_undefined_scores_has_a_figure_without_cells(transfer, snapshot):
    bare = replace(transfer, scores=transfer.scores.assign(**dict.fromkeys(SCORE, np.nan)))
    assert "No score of a probe on another data set is defined." in transfer_page(bare).html()
    scores, *_ = place_parts(bare, *bare.chosen)
    assert drawn(go.Figure(scores.figure)) == snapshot
