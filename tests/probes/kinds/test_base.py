import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import StandardScaler

from probekit.errors import ConfigError, DataError
from probekit.probes.kinds.base import Scaling, refuse_mixed_types, units_of
from probekit.probes.kinds.logistic import LinearProbe
from probekit.probes.kinds.registry import positive_grid
from probekit.probes.kinds.ridge import RidgeProbe, RidgeRegressionProbe


def test_it_scales_as_scikit_learn_does():
    X = np.random.default_rng(0).normal(size=(50, 4)) * [1, 100, 0.01, 5] + 3
    np.testing.assert_allclose(Scaling.standard(X).apply(X), StandardScaler().fit_transform(X))


@pytest.mark.parametrize("constant", [0.0, 3.1, -1e4, 1e8])
def test_the_last_bits_of_a_constant_are_no_data(constant):
    X = np.full((999, 1), constant, dtype=np.float32)
    X[::2] = np.nextafter(X[0], np.float32(np.inf)) if constant else 0
    assert not Scaling.standard(X).apply(X).any()
    assert not Scaling.standard(X.astype(np.float64)).apply(X).any() or constant


@pytest.mark.parametrize(
    "labels",
    [
        ["a", "b"],
        [1, 2.5, True, np.int64(3)],
        (False, True),
        np.array(["a", "b"], dtype=object),
        pd.Series(["a", "b"]),
        np.array([1.5, 2.0]),
        ["a", np.str_("b")],
        [],
    ],
)
def test_labels_of_one_type_pass(labels):
    refuse_mixed_types(labels)


@pytest.mark.parametrize("labels", [["a", 1], ["a", None], pd.Series([1, "a"], dtype=object)])
def test_others_do_not(labels):
    with pytest.raises(DataError, match="have several types"):
        refuse_mixed_types(labels)


def test_groups_of_which_some_are_missing_are_refused():
    with pytest.raises(DataError, match="The groups have several types: NoneType, str"):
        units_of(np.zeros((3, 1)), ["a", None, "b"])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([1, 2, np.nan], "Row 2 has no group"),
        ([None] * 3, "Row 0 has no group"),
        (np.zeros((3, 2)), r"have shape \(3, 2\)"),
        (5, r"have shape \(\)"),
    ],
)
def test_each_row_has_one_group(groups, message):
    with pytest.raises(DataError, match=message):
        units_of(np.zeros((3, 1)), groups)


@pytest.mark.parametrize("build", [LinearProbe, RidgeProbe, RidgeRegressionProbe], ids=str)
def test_features_lost_to_rounding_give_a_warning(build):
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    X[:, 0] += 3 * y
    probe = build(folds=2)
    with pytest.warns(UserWarning, match="vary less than the rounding error of their mean"):
        probe.fit((X + 1e7).astype(np.float32), y)
    assert probe.fit(X.astype(np.float32), y).coef_.any()


@pytest.mark.parametrize(
    "values",
    ["abc", [0.1, "abc"], [[1.0], [2.0, 3.0]], [[1.0, 2.0]], [[1.0], [2.0]], None, [1, None], True],
)
def test_a_penalty_that_is_no_number_is_refused(values):
    with pytest.raises(ConfigError, match=r"C is .* Give at least one number"):
        positive_grid("C", values)
