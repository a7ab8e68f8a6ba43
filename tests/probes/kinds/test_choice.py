import numpy as np
import pytest

from probekit.errors import DataError
from probekit.probes.kinds.choice import choose, inner_folds


def test_a_fold_holds_out_whole_groups_and_each_row_once():
    generator = np.random.default_rng(0)
    labels, groups = generator.integers(2, size=100), generator.integers(20, size=100)
    insides = inner_folds(labels, groups, folds=4, seed=0)
    assert np.sum(~np.stack(insides), axis=0).tolist() == [1] * 100
    for inside in insides:
        assert not set(groups[inside]) & set(groups[~inside])


def test_a_fold_whose_inside_has_one_label_is_left_out():
    labels = np.array([0, 0, 0, 0, 1, 1])
    insides = inner_folds(labels, np.array([0, 1, 2, 3, 4, 4]), folds=3, seed=0)
    assert len(insides) == 2
    assert all(labels[inside].any() for inside in insides)
    with pytest.raises(DataError, match="the fitted rows have only one class"):
        inner_folds(labels, labels, folds=2, seed=0)


def test_losses_are_summed_over_the_folds_and_of_equals_the_first_wins():
    losses = iter([[1, 2, 0], [3, 0, 2]])
    assert choose(np.array([7.0, 8.0, 9.0]), [np.array([True])] * 2, lambda _: next(losses)) == 8.0
