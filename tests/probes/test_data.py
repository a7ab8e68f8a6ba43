import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.probes import data as data_module
from probekit.probes.data import ProbeData, check_known, group_folds, numbers, sample_groups
from probekit.probes.settings import ProbeSettings, ProbeSpec
from tests.stored import each_line


def data(**changes) -> ProbeData:
    """Six rows; a string is an array of its characters."""
    parts = {"y": "xyxyxy", "groups": "aabbcd", "types": "pqrstu"} | changes
    parts = {name: np.array(list(part)) for name, part in parts.items()}
    return ProbeData(**({"train": np.arange(4), "test": np.arange(4, 6)} | parts))


def kinds(*names):
    return ProbeSettings(kinds=tuple(ProbeSpec(kind=name) for name in names))


@each_line("call")
def test_data_and_settings_that_do_not_fit_together_are_refused(call, refused):
    refused(eval, call, globals())


def test_data_that_fit_together_are_taken():
    assert data().classes.tolist() == ["x", "y"]
    check_known(data())
    found = numbers(np.array(["1", "2.5", "-1e3", "0", "7", "8"]), np.arange(6))
    assert found.tolist() == [1, 2.5, -1000, 0, 7, 8]
    assert kinds("logistic", "attention_pooled").reads == "classes"
    assert kinds("ridge_regression").reads == "numbers"
    assert kinds("structural_depth", "structural_distance").reads == "trees"


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


def test_a_fold_without_two_labels_inside_is_left_out_unless_all_are():
    labels, folds = np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 2, 2])
    insides = data_module.fittable_insides(labels, folds)
    assert [inside.tolist().index(False) for inside in insides] == [0, 1]
    assert [inside.sum() for inside in insides] == [4, 4]


def test_a_sample_keeps_whole_groups_within_the_limit():
    _, groups = rows(100)
    kept = sample_groups(groups, 120, seed=0)
    assert 110 <= kept.sum() <= 120
    assert not np.intersect1d(groups[kept], groups[~kept]).size
    order = np.random.default_rng(1).permutation(len(groups))
    assert np.array_equal(sample_groups(groups[order], 120, seed=0), kept[order])
    assert not np.array_equal(sample_groups(groups, 120, seed=1), kept)
