import numpy as np
import pandas as pd
import pytest

from probekit.errors import ConfigError, DataError
from probekit.probes.inputs import positive, refuse_mixed_types, units_of


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
    with pytest.raises(DataError, match="mix types"):
        refuse_mixed_types(labels)


def test_groups_of_which_some_are_missing_are_refused():
    with pytest.raises(DataError, match="the groups mix types: NoneType, str"):
        units_of(np.zeros((3, 1)), ["a", None, "b"])


@pytest.mark.parametrize("values", ["abc", [0.1, "abc"], [[1.0], [2.0, 3.0]]])
def test_a_penalty_that_is_no_number_is_refused(values):
    with pytest.raises(ConfigError, match=r"C is .* Give one number or more"):
        positive("C", values)
