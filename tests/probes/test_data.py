import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.errors import ConfigError, DataError
from probekit.probes.data import (
    ProbeData,
    check_known,
    fittable_insides,
    group_folds,
    numbers,
    sample_groups,
)
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


def test_a_label_that_train_lacks_is_refused_where_labels_are_classes():
    with pytest.raises(DataError, match=r"1 test rows.*first 'z' in row 5.*Allowed: x, y"):
        check_known(data(y=np.array(list("xyxyxz"))))
    check_known(data())


def test_numbers_are_read_and_words_are_reported_with_their_row():
    found = numbers(np.array(["1", "2.5", "-1e3", "0", "7", "8"]), np.arange(6))
    assert found.tolist() == [1, 2.5, -1000, 0, 7, 8]
    for wrong in ("seven", "nan", "inf", "1_000"):
        y = np.array(["1", "2", "3", "4", "5", wrong])
        with pytest.raises(
            DataError, match=rf"^row \d: the label '{wrong}' is not a number .*1 such label"
        ):
            numbers(y, np.arange(6))


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


def rows(n_groups: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    groups = np.repeat([f"g{i}" for i in range(n_groups)], generator.integers(1, 9, n_groups))
    return generator.choice(["a", "b", "c"], size=len(groups), p=[0.7, 0.2, 0.1]), groups


@given(n_groups=st.integers(5, 40), seed=st.integers(0, 99), folds=st.integers(2, 5))
@settings(max_examples=40, deadline=None)
def test_no_group_is_on_both_sides_and_no_fold_is_empty(n_groups, seed, folds):
    labels, groups = rows(n_groups, seed)
    fold = group_folds(labels, groups, folds, seed)
    assert set(fold) == set(range(folds))
    for name in np.unique(groups):
        assert len(set(fold[groups == name])) == 1


def test_each_fold_holds_about_the_same_share_of_each_label():
    labels, groups = rows(300)
    fold = group_folds(labels, groups, 5, 0)
    for label in "abc":
        share = [np.mean(labels[fold == number] == label) for number in range(5)]
        assert np.ptp(share) < 0.02


def test_labels_that_are_constant_in_a_group_are_spread_too():
    groups = np.repeat(np.arange(20).astype(str), 3)
    labels = np.repeat(["a", "b"], 30)
    fold = group_folds(labels, groups, 5, 0)
    assert all(set(labels[fold == number]) == {"a", "b"} for number in range(5))


def test_the_order_of_rows_does_not_matter_but_the_seed_does():
    labels, groups = rows(50)
    order = np.random.default_rng(1).permutation(len(labels))
    fold = group_folds(labels, groups, 5, 0)
    assert np.array_equal(group_folds(labels[order], groups[order], 5, 0), fold[order])
    assert not np.array_equal(group_folds(labels, groups, 5, 1), fold)


@pytest.mark.parametrize(
    ("groups", "message"), [("wxyy", "3 groups.*`folds` to at most 3"), ("wwww", "1 group. Use f")]
)
def test_too_few_groups_are_refused_with_the_number_to_set(groups, message):
    message = f"5 folds of these 4 rows need at least 5 groups.* in {message}"
    with pytest.raises(DataError, match=message):
        group_folds(np.array(list("abab")), np.array(list(groups)), 5, 0)


def test_a_fold_without_two_labels_inside_is_left_out_unless_all_are():
    labels, folds = np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 2, 2])
    insides = fittable_insides(labels, folds)
    assert [inside.tolist() for inside in insides] == [
        [False, True, True, True, True],
        [True, False, True, True, True],
    ]
    with pytest.raises(DataError, match="the fitted rows have only one class"):
        fittable_insides(labels, labels)


def test_a_sample_keeps_whole_groups_within_the_limit():
    _, groups = rows(100)
    kept = sample_groups(groups, 120, seed=0)
    assert 110 <= kept.sum() <= 120
    assert not np.intersect1d(groups[kept], groups[~kept]).size
    order = np.random.default_rng(1).permutation(len(groups))
    assert np.array_equal(sample_groups(groups[order], 120, seed=0), kept[order])
    assert not np.array_equal(sample_groups(groups, 120, seed=1), kept)


def test_a_group_larger_than_the_limit_is_refused():
    with pytest.raises(DataError, match=r"fit_rows is 2, but the group 'a' alone has 3 rows"):
        sample_groups(np.array(list("aaa")), 2, seed=0)
