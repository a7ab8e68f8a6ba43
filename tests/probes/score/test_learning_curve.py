"""Nested samples of whole groups."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.errors import ConfigError
from probekit.probes.score.learning_curve import learning_sizes, subsets


def test_sizes_grow_by_one_factor_and_end_with_all():
    assert learning_sizes(3200, steps=5, smallest=200) == (200, 400, 800, 1600, 3200)
    assert learning_sizes(4, steps=10, smallest=1) == (1, 2, 3, 4)


@pytest.mark.parametrize(("n", "steps", "smallest"), [(10, 1, 2), (10, 3, 10), (10, 3, 0)])
def test_a_curve_of_one_point_is_refused(n, steps, smallest):
    with pytest.raises(ConfigError, match="at least 2 steps"):
        learning_sizes(n, steps, smallest)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_samples_hold_whole_groups_and_one_another(seed):
    generator = np.random.default_rng(seed)
    groups = np.repeat(np.arange(60), generator.integers(1, 9, size=60))
    groups = groups[generator.permutation(len(groups))].astype(str)
    sizes = learning_sizes(len(groups), steps=6, smallest=10)
    samples = subsets(groups, sizes, seed)
    for size, rows in zip(sizes, samples, strict=True):
        assert size <= rows.sum() < size + 8
        assert not set(groups[rows]) & set(groups[~rows])
    for smaller, larger in pairwise(samples):
        assert not (smaller & ~larger).any()
    assert samples[-1].all()


def test_the_order_of_rows_does_not_matter_and_the_seed_does():
    groups = np.arange(200) // 4
    order = np.random.default_rng(0).permutation(200)
    first = subsets(groups, (20, 90), seed=0)
    assert np.array_equal(subsets(groups[order], (20, 90), seed=0), first[:, order])
    assert not np.array_equal(subsets(groups, (20, 90), seed=1), first)


def test_every_group_is_first_equally_often():
    firsts = [np.flatnonzero(subsets(np.arange(5), (1,), seed)[0])[0] for seed in range(500)]
    np.testing.assert_allclose(np.bincount(firsts) / 500, 0.2, atol=0.06)


@pytest.mark.parametrize("size", [0, 5])
def test_a_size_that_no_sample_has_is_refused(size):
    with pytest.raises(
        ConfigError, match=f"between 1 and the number of rows, 4, but one is {size}"
    ):
        subsets(np.arange(4), (2, size), seed=0)
