"""Curves and maps of every page show each number in its place, on a meaningful scale."""

import json
import math

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go
import pytest

from probekit.report.figures import maps
from probekit.report.figures.layer_curve import layer_curve
from probekit.report.figures.line_labels import name_traces
from probekit.report.figures.maps import Colours, inks, luminance, map_cells, map_colours, text_map
from probekit.report.pages import attribution_page, heads_page, lens_page, pair_page
from probekit.report.pages.further_figures import norm_curve, reliability_figure
from probekit.report.pages.losses import load_training, step_parts
from probekit.results.network import HEAD_TEXTS, ScoredHeads
from probekit.results.scores import Scores
from tests.report import pictures
from tests.report.conftest import altered, judged, make_heads, make_sweep, make_table
from tests.stored import drawn

HEADS, SWEEP, TRAINING = make_heads(), make_sweep(), pictures.training_rows()
QUERIES = HEADS.assign(site=HEADS["site"].str.replace("hook_z", "hook_q"))
UNDEFINED = dict.fromkeys(("value", "ci_low", "ci_high"), math.nan)
SCALES = {
    "viridis": plotly.colors.sequential.Viridis,
    "reversed": plotly.colors.sequential.Viridis_r,
    "diverging": plotly.colors.diverging.PuOr_r,
}


def layer_map(table, metric="accuracy", across="head"):
    return maps.layer_map(map_cells(Scores.of(table), metric, across), across)


def head_maps(tables):
    titled = pd.concat([rows.assign(title=title) for title, rows in tables.items()])
    return maps.layer_maps(map_cells(Scores.of(titled), "accuracy", "head"))


MAPS = {
    "layers go down and heads across": lambda: layer_map(HEADS.sample(frac=1, random_state=0)),
    "selectivity starts at 0": lambda: layer_map(HEADS, "selectivity"),
    "a difference with negative values has 0 in the middle": lambda: layer_map(
        altered(HEADS, "metric == 'selectivity'", value=HEADS["value"] - 0.25), "selectivity"
    ),
    "a head that was not probed is an empty cell": lambda: layer_map(
        HEADS[~HEADS.eval("head == 2 and layer == 1")]
    ),
    "offsets go across in order and layers down": lambda: layer_map(
        SWEEP.sample(frac=1, random_state=0), across="offset"
    ),
    "the frame stays where test scores are reversed": lambda: layer_map(
        altered(HEADS, "split == 'test' and target == 'task'", value=1.5 - HEADS["value"])
    ),
    "no frame without cross-validation": lambda: layer_map(HEADS[HEADS["split"] == "test"]),
    "the frame of equal scores gives their number": lambda: layer_map(
        altered(HEADS, "split == 'validation' and target == 'task' and layer == 3", value=0.9)
    ),
    "the colour scale has a minimum range": lambda: layer_map(
        altered(HEADS, "metric == 'accuracy'", value=0.5)
    ),
    "several components are a row on one scale with one frame and the layers of the first": (
        lambda: head_maps(
            {
                "attn.z": HEADS,
                "attn.q": QUERIES.assign(value=QUERIES["value"] - 0.1)[QUERIES["layer"] == 1],
            }
        )
    ),
    "an undefined cell does not change the colours": lambda: layer_map(
        altered(HEADS, "layer == 1 and head == 0 and target == 'task'", **UNDEFINED)
    ),
    "a map of undefined scores is masked": lambda: layer_map(HEADS.assign(**UNDEFINED)),
    "each text is in its cell, and masked cells are grey": lambda: text_map(
        np.array([[0.0, 1.0, np.nan], [0.2, 0.4, 0.6]]),
        list("ABCDEF"),
        Colours(0.0, 1.0, SCALES["viridis"], is_diverging=False),
        texts=list("abcdef"),
        across=["x", "y", "z"],
        down=["0", "1"],
        title="t",
        most_texts=6,
    ),
}


BINS = pd.DataFrame(
    [
        (0.6, 0.8, 40, 0.71, 0.55, 0.4, 0.7),
        (0.4, 0.6, 25, 0.52, 0.5, 0.3, 0.65),
        (0.8, 1.0, 1900, 0.97, 0.8, 0.75, 0.86),
    ],
    columns=["low", "high", "n_rows", "confidence", "accuracy", "ci_low", "ci_high"],
)


def norms(*rows):
    """Return norms at a site of position 0 and of all others."""
    return pd.DataFrame(rows, columns=["site", "first_position_norm", "other_norm"])


def with_error_bars(bars):
    """Return three lines: one with error bars, one without, and one without values."""
    figure = go.Figure()
    error = {"array": bars, "arrayminus": bars}
    figure.add_scatter(x=[0, 1, 2], y=[0.2, 0.6, math.nan], error_y=error, name="a")
    figure.add_scatter(x=[0, 1, 2], y=[0.3, 0.4, 0.5], name="b")
    figure.add_scatter(x=[0, 1, 2], y=[math.nan] * 3, name="c")
    figure.update_traces(mode="lines+markers", line_color="#000000")
    name_traces(figure.update_xaxes(range=[0, 2]))
    return figure


CURVES = {
    "bins are in order, with intervals, counts and diagonal": lambda: reliability_figure(
        BINS.assign(probe="all")
    ),
    "several reliabilities have labels and styles": lambda: reliability_figure(
        pd.concat([BINS.assign(probe="layer 3"), BINS.assign(probe="<b>%{x}")])
    ),
    "norms are drawn by depth": lambda: norm_curve(
        norms(("blocks.1.hook_resid_pre", 3000.0, 100.0), ("hook_embed", 60.0, 50.0))
    ),
    "norms of other parts are not joined to the residual stream": lambda: norm_curve(
        norms(
            ("blocks.0.hook_attn_out", 9.0, 1.0),
            ("blocks.0.hook_resid_post", 9.0, 2.0),
            ("blocks.1.hook_attn_out", 9.0, 3.0),
            ("blocks.1.hook_resid_post", 9.0, 4.0),
        )
    ),
    **{
        f"ticks around norms of {low} and {high}": lambda low=low, high=high: norm_curve(
            norms(("blocks.0.hook_resid_post", high, low))
        )
        for low, high in ((60, 70), (50, 3000), (0.3, 20_000), (0, 0))
    },
    "missing error bars do not change the axis": lambda: with_error_bars([math.nan] * 3),
    "some error bars widen the axis": lambda: with_error_bars([0.1, math.nan, 0.1]),
}


LENS, ATTRIBUTION = pictures.lens_rows(pictures.TOKENS[:-1]), pictures.attribution_rows()
SCORED = pictures.head_rows().sample(frac=1, random_state=0)
SCORED["value"] *= 1 + 9 * (SCORED["score"] == "distance")
KNOWN = ScoredHeads(SCORED, "a text", {"induction": [(2, 1)]})
PAIR, ESTIMATED, LONG = (
    pictures.patched_pair(),
    pictures.patched_pair(estimated=True),
    pictures.patched_pair(n_tokens=400),
)


def summary(right=1, n_next=4):
    """Return the agreement of two layers with the output and with the next tokens."""
    shares = {"as_output": [1, 5], "n": 5, "right": [0, right], "n_next": n_next}
    return pd.DataFrame({"layer": ["embed", "0"], **shares})


def positions(pair, family, measure="recovery"):
    """Return the map of patches of a kind of site by position."""
    rows = pair.of_positions
    rows = rows[[pair_page.site_family(site) == family for site in rows["site"]]]
    return pair_page.patch_map(rows, measure, pair_page.pair_labels(pair.clean, pair.corrupt))


OF_NETWORKS = {
    **{
        f"a lens by site and token, coloured by {measure}": lambda measure=measure: (
            lens_page.lens_map(LENS, measure)
        )
        for measure in lens_page.MEASURES
    },
    "a lens of one token has no rank": lambda: lens_page.lens_map(
        pictures.lens_rows(("The",)), "rank"
    ),
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
        next(iter(heads_page.head_figures(KNOWN))).figure
    ),
    "parts of a logit diverge from 0, with bias and MLP to the left of heads": (
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


FIGURES = MAPS | CURVES | OF_NETWORKS


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure(name, snapshot):
    assert drawn(FIGURES[name]()) == snapshot


HOSTILE = {
    "a layer curve": lambda text: layer_curve(
        Scores.of(pd.concat([make_table().assign(dataset=one) for one in (text, "b")]))
    ),
    "a diagram of reliability": lambda text: reliability_figure(BINS.assign(probe=text)),
    "a map of heads": lambda text: layer_map(HEADS.assign(position=text)),
    "a lens": lambda text: lens_page.lens_map(pictures.lens_rows()),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_names_and_tokens_are_never_markup(name, hostile):
    content = HOSTILE[name](hostile).to_dict()
    text = json.dumps(content, ensure_ascii=False, default=np.ndarray.tolist)
    assert "&lt;/script&gt;" in text
    for markup in ("</script", "%{", "\u202e"):
        assert markup not in text


def test_over_training_steps_go_across_and_the_best_cell_is_described(snapshot):
    for part in step_parts(Scores.of(TRAINING), judged(TRAINING)):
        texts = [part.title, part.caption, part.description, drawn(go.Figure(part.figure))]
        assert "\n".join(texts) == snapshot


def test_scores_of_checkpoints_are_read_as_written_and_absent_without_a_file(tmp_path):
    path = tmp_path / "training.csv"
    assert load_training(path) is None
    assert not list(step_parts(None, judged(TRAINING)))
    TRAINING.to_csv(path, index=False)
    assert load_training(path).rows["step"].tolist() == TRAINING["step"].tolist()


def test_a_map_with_too_many_cells_has_no_numbers():
    many = [HEADS[HEADS["head"] == 0].assign(head=float(head)) for head in range(101)]
    assert len(layer_map(pd.concat(many, ignore_index=True)).data) == 1


def test_undefined_scores_do_not_change_the_ends_of_colours():
    for metric, low, high in (("selectivity", -0.3, 0.1), ("brier", 0.2, 0.3)):
        cells = pd.DataFrame({"value": [math.nan, low, high], "chance": math.nan})
        assert map_colours(cells.assign(metric=metric)).low == low


@pytest.mark.parametrize("name", SCALES)
def test_the_contrast_of_text_is_at_least_4_and_a_half(name):
    values = np.linspace(-2, 2, 500)
    shown = Colours(-2.0, 2.0, SCALES[name], is_diverging=False)
    background = plotly.colors.sample_colorscale(shown.scale, (values + 2) / 4, colortype="tuple")
    for ink, behind in zip(inks(values, shown), luminance(np.array(background)), strict=True):
        lighter, darker = sorted((behind, {"#000000": 0.0, "#ffffff": 1.0}[ink]), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def test_texts_of_values_beyond_the_scale_have_the_contrast_of_its_ends():
    shown = Colours(0.0, 1.0, ["#000000", "#ffffff"], is_diverging=False)
    assert inks(np.array([-9.0, 9.0]), shown) == ["#ffffff", "#000000"]


def test_long_texts_have_fewer_ticks_and_no_texts_in_cells():
    assert len(positions(LONG, "attn_out").layout.xaxis.ticktext) < 200
    (cells,) = lens_page.lens_map(pictures.lens_rows(tuple(f" t{i}" for i in range(600)))).data
    assert len(cells.z[0]) == 600


@pytest.mark.parametrize("table", [TRAINING.assign(step=2.5), TRAINING.drop(columns="step")])
def test_steps_of_a_training_are_integers(table, tmp_path, refused):
    table.to_csv(tmp_path / "training.csv", index=False)
    refused(load_training, tmp_path / "training.csv")
