"""Maps and curves of a logit lens, of head scores, of a logit attribution and of patches."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from probekit.report.pages import attribution_page, heads_page, lens_page, pair_page
from probekit.results.network import HEAD_TEXTS, ScoredHeads
from tests.report.pictures import TOKENS, attribution_rows, head_rows, lens_rows, patched_pair
from tests.stored import drawn

LENS, ATTRIBUTION = lens_rows(TOKENS[:-1]), attribution_rows()
SCORED = head_rows().sample(frac=1, random_state=0)
SCORED["value"] *= 1 + 9 * (SCORED["score"] == "distance")
PAIR, ESTIMATED, LONG = patched_pair(), patched_pair(estimated=True), patched_pair(n_tokens=400)


def summary(right=1, n_next=4):
    """Return the agreement of two layers with the output and with the next tokens."""
    shares = {"as_output": [1, 5], "n": 5, "right": [0, right], "n_next": n_next}
    return pd.DataFrame({"layer": ["embed", "0"], **shares})


def positions(pair, family, measure="recovery"):
    """Return the map of patches of a kind of site by position."""
    rows = pair.of_positions
    rows = rows[[pair_page.site_family(site) == family for site in rows["site"]]]
    return pair_page.patch_map(rows, measure, pair_page.pair_labels(pair.clean, pair.corrupt))


FIGURES = {
    **{
        f"a lens by site and token, coloured by {measure}": lambda measure=measure: (
            lens_page.lens_map(LENS, measure)
        )
        for measure in lens_page.MEASURES
    },
    "a lens of one token has no rank": lambda: lens_page.lens_map(lens_rows(("The",)), "rank"),
    "agreement is labelled at the ends of its lines": lambda: lens_page.lens_curve(summary()),
    "labels of equal ends are apart": lambda: lens_page.lens_curve(summary(4)),
    "a line without positions has no label": lambda: lens_page.lens_curve(summary(0, 0)),
    **{
        f"heads across and layers down, coloured by {score}": lambda score=score: (
            heads_page.head_score_map(SCORED, score)
        )
        for score in HEAD_TEXTS
    },
    "attention weights are a row on one scale with known heads framed": lambda: go.Figure(
        next(
            iter(heads_page.head_figures(ScoredHeads(SCORED, "a text", {"induction": [(2, 1)]})))
        ).figure
    ),
    "parts of a logit diverge from 0, with bias and MLP to the right of heads": (
        lambda: attribution_page.attribution_map(ATTRIBUTION)
    ),
    "steps end at the logit": lambda: attribution_page.attribution_steps(ATTRIBUTION),
    "parts that are all 0": lambda: attribution_page.attribution_map(ATTRIBUTION.assign(value=0.0)),
    "patches by layer and position": lambda: positions(PAIR, "residual stream"),
    "effects of patches": lambda: positions(PAIR, "attn_out", "effect"),
    "patches of heads": lambda: pair_page.patch_map(PAIR.of_heads),
    "verified estimates are framed": lambda: positions(ESTIMATED, "residual stream", "estimate"),
    "estimates are compared with effects": lambda: pair_page.estimate_scatter(ESTIMATED.rows),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure(name, snapshot):
    assert drawn(FIGURES[name]()) == snapshot


def test_every_part_is_in_one_step():
    steps = attribution_page.step_rows(ATTRIBUTION)
    assert steps.tolist() == [1, -2, 4, -6, 8, -10, 12, -14, 15]
    assert steps.sum() == ATTRIBUTION["value"].sum()


def test_long_texts_have_fewer_ticks_and_no_texts_in_cells():
    assert len(positions(LONG, "attn_out").layout.xaxis.ticktext) < 200
    (cells,) = lens_page.lens_map(lens_rows(tuple(f" t{i}" for i in range(600)))).data
    assert len(cells.z[0]) == 600


def test_hostile_tokens_are_escaped():
    figure = lens_page.lens_map(lens_rows())
    cells, texts = figure.data
    texts = [*figure.layout.xaxis.ticktext, *texts.text, *np.ravel(cells.hovertext)]
    for line in texts:
        assert "</script" not in line
        assert "%{" not in line
        assert "\u202e" not in line
    assert any("&lt;/script&gt;" in line for line in texts)
