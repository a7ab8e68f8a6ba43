"""The positive class: the rarer of two labels, unless it is given."""

import numpy as np
import pytest

from probekit.errors import ConfigError, DataError
from probekit.experiment.loader import load_experiment
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Predictor
from probekit.probes.settings import ProbeSettings
from probekit.results.site_results import pack, unpack


def data_of(y, positive=None, train=None):
    row = np.arange(len(y)).astype(str)
    inside = np.arange(len(y)) % 5 > 0 if train is None else train
    return ProbeData(
        y, row, row, np.flatnonzero(inside), np.flatnonzero(~inside), positive=positive
    )


def test_it_is_the_rarer_label_of_the_training_rows():
    y = np.array(["a", "b", "b"] * 30)
    assert data_of(y, train=np.arange(90) < 60).positive_code == 0
    # Among these training rows "b" is rarer, whatever the test rows.
    train = (y == "a") | (np.arange(90) < 30)
    assert data_of(y, train=train).positive_code == 1
    assert data_of(y, "b").positive_code == 1


def test_several_classes_have_none_unless_it_is_given():
    y = np.array(["a", "b", "c", "b"] * 30)
    assert data_of(y).positive_code is None
    assert data_of(y, "c").positive_code == 2
    with pytest.raises(DataError, match=r"positive is 'd', which is no training label. Allowed: a"):
        _ = data_of(y, "d").positive_code


def test_all_splits_of_a_cross_validation_have_the_same():
    y = np.array(["a", "b"] * 30 + ["b"] * 6 + ["a"] * 6)
    rows = np.arange(len(y))
    splits = [data_of(y, train=rows < 66), data_of(y, train=(rows < 40) | (rows >= 66))]
    assert [split.positive_code for split in splits] == [0, 1]
    prober = Prober(splits, ProbeSettings(folds=2, control_draws=0))
    assert prober.positive == "a"
    result = prober.site(np.random.default_rng(0).normal(size=(len(y), 3)))
    predictions = [*result.predictions.values(), *prober.baselines().predictions.values()]
    assert {one.positive for one in predictions} == {0}


def test_it_is_saved_with_the_predictions():
    predictions = ClassPredictions(np.array([0, 1]), np.array([0, 0]), 2, positive=0)
    name = Predictor("logistic", "task")
    assert unpack(pack({name: predictions}), lambda _: predictions.truth, 2)[name].positive == 0
    older = ClassPredictions(predictions.truth, predictions.guess, 2)
    assert unpack(pack({name: older}), lambda _: older.truth, 2)[name].positive is None


def test_numbers_have_no_positive_class(repository):
    sets = ("data.positive=singular", "probe.kinds=[{kind: ridge_regression}]")
    with pytest.raises(ConfigError, match=r"data\.positive.*read labels as numbers"):
        load_experiment(repository / "experiments" / "quickstart.yaml", sets)
