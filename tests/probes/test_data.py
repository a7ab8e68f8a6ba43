import numpy as np
import pytest

from probekit.errors import ConfigError, DataError
from probekit.probes.data import ProbeData, check_known, numbers
from probekit.probes.settings import ProbeSettings, ProbeSpec


def data(**changes) -> ProbeData:
    parts = {
        "y": np.array(list("xyxyxy")),
        "groups": np.array(list("aabbcd")),
        "types": np.array(list("pqrstu")),
        "train": np.arange(4),
        "test": np.arange(4, 6),
    }
    return ProbeData(**(parts | changes))


def test_sound_data_are_taken():
    assert data().classes.tolist() == ["x", "y"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"types": np.array(list("pq"))}, "y has 6, groups has 6, types has 2"),
        ({"train": np.array([], dtype=int)}, "train is empty"),
        ({"test": np.array([], dtype=int)}, "test is empty"),
        ({"test": np.array([4, 6])}, "test has row numbers from 4 to 6, but with 6 rows"),
        ({"train": np.array([-1, 0, 1])}, "train has row numbers from -1 to 1"),
        ({"test": np.array([3, 4, 5])}, "contains 1 row more than once, first row 3"),
        (
            {"groups": np.array(list("aabbbd"))},
            "1 group with rows in both train and test, first 'b'",
        ),
        ({"y": np.array(list("xxxxxx"))}, "All 4 training rows have the label 'x'"),
    ],
)
def test_data_that_do_not_fit_together_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        data(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"C": (0.1, 0.0)}, r"C must be positive and finite, but is \[0.0\]"),
        ({"C": ()}, "C must be positive and finite, but is empty"),
        ({"folds": 1}, "folds is 1, but must be at least 2"),
        ({"control_draws": -1}, "control_draws is -1"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"fit_rows": 1}, "fit_rows is 1"),
        ({"C": (0.1, 1.0, 0.1)}, "C contains a value twice"),
    ],
)
def test_settings_out_of_range_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        ProbeSettings(**changes)


def test_a_label_that_train_lacks_is_refused_where_labels_are_classes():
    with pytest.raises(DataError, match=r"1 test rows.*first 'z' in row 5.*Allowed: x, y"):
        check_known(data(y=np.array(list("xyxyxz"))))
    check_known(data())


def test_numbers_are_read_and_words_are_reported_with_their_row():
    found = numbers(data(y=np.array(["1", "2.5", "-1e3", "0", "7", "8"])))
    assert found.tolist() == [1, 2.5, -1000, 0, 7, 8]
    for wrong in ("seven", "nan", "inf", "1_000"):
        y = np.array(["1", "2", "3", "4", "5", wrong])
        with pytest.raises(
            DataError, match=rf"^row \d: the label '{wrong}' is not a number .*1 such label"
        ):
            numbers(data(y=y))


def specs(*names):
    return tuple(ProbeSpec(name) for name in names)


@pytest.mark.parametrize(
    ("kinds", "reads"),
    [
        (specs("logistic", "attention_pooled"), "classes"),
        (specs("ridge_regression"), "numbers"),
        (specs("structural_depth", "structural_distance"), "trees"),
    ],
)
def test_all_kinds_read_one_sort_of_labels(kinds, reads):
    assert ProbeSettings(kinds=kinds).reads == reads


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ((), "kinds is empty"),
        (specs("logistic", "logistic"), "kinds is logistic, logistic.*each only once"),
        (specs("logistic", "ridge_regression"), "logistic needs classes and ridge_regression nee"),
        (specs("structural_depth", "svm"), "svm needs classes and structural_depth:64 needs tre"),
    ],
)
def test_kinds_that_cannot_go_together_are_refused(kinds, message):
    with pytest.raises(ConfigError, match=message):
        ProbeSettings(kinds=kinds)
