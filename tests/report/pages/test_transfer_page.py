"""The page of a transfer, also of one with undefined scores."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.report.pages.transfer_page import place_parts, score_map, transfer_page
from tests.report.pictures import make_transfer

SCORE = ["value", "ci_low", "ci_high", "difference", "difference_low", "difference_high"]


@pytest.fixture
def transfer():
    return make_transfer("a note")


def without_score(transfer, *, is_dropped):
    """The transfer in which the probe of `third` has no score on `short` at the chosen site."""
    rows = transfer.scores.copy()
    site, _ = transfer.chosen
    is_cell = rows["site"].eq(site) & rows["train"].eq("third") & rows["test"].eq("short")
    rows.loc[is_cell, SCORE] = np.nan
    return replace(transfer, scores=rows[~is_cell] if is_dropped else rows)


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_cell_without_a_score_is_empty(transfer, is_dropped):
    whole, _ = transfer.at(*transfer.chosen)
    bare = without_score(transfer, is_dropped=is_dropped)
    rows, _ = bare.at(*bare.chosen)
    cells, texts = score_map(rows, transfer.names, "accuracy").data
    assert np.isnan(cells.z[2][0])
    assert (texts.text[6], cells.hovertext[2][0]) == ("", "")
    others, other_texts = score_map(whole, transfer.names, "accuracy").data
    shown = np.arange(9) != 6
    assert np.array_equal(np.ravel(cells.z)[shown], np.ravel(others.z)[shown])
    assert np.array(texts.text)[shown].tolist() == np.array(other_texts.text)[shown].tolist()
    scores, *_ = place_parts(bare, *bare.chosen)
    assert "nan" not in scores.description
    assert "nan" not in transfer_page(bare).partition("<body")[2].partition("<section")[0]


def test_a_page_of_undefined_scores_has_a_figure_without_cells(transfer):
    nothing = transfer.scores.assign(**dict.fromkeys(SCORE, np.nan))
    bare = replace(transfer, scores=nothing)
    assert "No score of a probe on another data set is defined." in transfer_page(bare)
    scores, *_ = place_parts(bare, *bare.chosen)
    cells, texts = scores.figure["data"]
    assert (cells["zmin"], cells["zmax"]) == (0.5, 0.55)
    assert set(texts["text"]) == {""}
