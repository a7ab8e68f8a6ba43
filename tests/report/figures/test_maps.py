"""Maps show each number of the table in its cell, on a meaningful colour scale."""

import math

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go
import pytest

from probekit.report.figures import maps
from probekit.report.figures.maps import Colours, inks, luminance, map_cells, map_colours, text_map
from probekit.report.pages.parts import load_training, step_parts
from probekit.results.scores import Scores
from tests.report.conftest import altered, judged, make_heads, make_sweep
from tests.report.pictures import training_rows
from tests.stored import drawn

HEADS, SWEEP, TRAINING = make_heads(), make_sweep(), training_rows()
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


@pytest.mark.parametrize("name", MAPS)
def test_a_map(name, snapshot):
    assert drawn(MAPS[name]()) == snapshot


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


@pytest.mark.parametrize(
    "table",
    [TRAINING.assign(step="many"), TRAINING.drop(columns="step")],
    ids=["no number", "no step"],
)
def test_checkpoints_without_integer_steps_are_refused(table, tmp_path, refused):
    table.to_csv(tmp_path / "training.csv", index=False)
    refused(load_training, tmp_path / "training.csv")


def test_a_map_with_too_many_cells_has_no_numbers():
    many = [HEADS[HEADS["head"] == 0].assign(head=float(head)) for head in range(101)]
    assert len(layer_map(pd.concat(many, ignore_index=True)).data) == 1


def test_undefined_scores_do_not_change_the_ends_of_colours():
    for metric, low, high in (("selectivity", -0.3, 0.1), ("brier", 0.2, 0.3)):
        cells = pd.DataFrame({"value": [math.nan, low, high], "chance": math.nan})
        assert map_colours(cells.assign(metric=metric)).low == low


def test_user_input_is_escaped(hostile):
    text = layer_map(HEADS.assign(position=hostile)).to_json()
    assert "</script" not in text
    assert "%{x}" not in text


@pytest.mark.parametrize("name", SCALES)
def test_the_contrast_of_text_is_at_least_4_and_a_half(name):
    values = np.linspace(-2, 2, 500)
    shown = Colours(-2.0, 2.0, SCALES[name], is_diverging=False)
    background = plotly.colors.sample_colorscale(shown.scale, (values + 2) / 4, colortype="tuple")
    light = luminance(np.array(background))
    for ink, behind in zip(inks(values, shown), light, strict=True):
        lighter, darker = sorted((behind, {"#000000": 0.0, "#ffffff": 1.0}[ink]), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def test_texts_of_values_beyond_the_scale_have_the_contrast_of_its_ends():
    shown = Colours(0.0, 1.0, ["#000000", "#ffffff"], is_diverging=False)
    assert inks(np.array([-9.0, 9.0]), shown) == ["#ffffff", "#000000"]
