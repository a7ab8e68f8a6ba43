"""Maps over training have a column for each checkpoint and a row for each layer."""

import pandas as pd
import pytest

from probekit.errors import DataError
from probekit.report.maps.maps import layer_map
from probekit.report.pages.parts import load_training, step_parts
from tests.report.conftest import judged
from tests.report.pictures import TRAINED_SITES, training_rows


@pytest.fixture
def training():
    return training_rows()


def test_steps_go_across_in_order_and_layers_down(training):
    residual, mlp = list(step_parts(training, judged(training)))
    assert "residual stream" in residual.title
    cells = residual.figure["data"][0]
    assert residual.figure["layout"]["xaxis"]["ticktext"] == ["0", "10", "100"]
    assert cells["z"] == [
        [pytest.approx(0.5 + depth / 20 + step / 1000) for step in (0, 10, 100)]
        for depth in (0, 1, 2)
    ]
    assert mlp.figure["data"][0]["z"] == [[pytest.approx(0.55 + s / 1000) for s in (0, 10, 100)]]


def test_the_frame_and_the_description_identify_the_best_cell(training):
    residual, _ = step_parts(training, judged(training))
    shapes = residual.figure["layout"]["shapes"]
    assert {(s["x0"], s["y0"]) for s in shapes} == {(1.5, 1.5)}
    assert "the highest is at blocks.1.hook_resid_post after 100 steps" in residual.description
    assert residual.caption.startswith("Each column is a checkpoint")


def test_two_rows_for_one_cell_are_refused(training):
    twice = pd.concat([training, training])
    with pytest.raises(DataError, match="two rows"):
        layer_map(twice[twice["site"] == TRAINED_SITES[0]], across="step")


def test_without_checkpoints_there_is_no_map(training, tmp_path):
    assert load_training(tmp_path / "training.csv") is None
    assert not list(step_parts(None, judged(training)))


def test_a_file_is_read_as_written_and_refused_without_integer_steps(training, tmp_path):
    path = tmp_path / "training.csv"
    training.to_csv(path, index=False)
    assert load_training(path)["step"].tolist() == training["step"].tolist()
    training.assign(step="many").to_csv(path, index=False)
    with pytest.raises(DataError, match="column 'step'"):
        load_training(path)
    training.drop(columns="step").to_csv(path, index=False)
    with pytest.raises(DataError, match="no column 'step'"):
        load_training(path)
