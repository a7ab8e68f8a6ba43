import numpy as np
import pandas as pd
import pytest

from probekit.errors import DataError
from probekit.probes.inputs import refuse_mixed_types


@pytest.mark.parametrize(
    "labels",
    [
        ["a", "b"],
        [1, 2.5, True, np.int64(3)],
        (False, True),
        np.array(["a", "b"], dtype=object),
        pd.Series(["a", "b"]),
        np.array([1.5, 2.0]),
        [],
    ],
)
def test_labels_of_one_type_pass(labels):
    refuse_mixed_types(labels)


@pytest.mark.parametrize("labels", [["a", 1], ["a", None], pd.Series([1, "a"], dtype=object)])
def test_others_do_not(labels):
    with pytest.raises(DataError, match="mix types"):
        refuse_mixed_types(labels)
