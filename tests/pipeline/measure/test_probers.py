"""The estimated time of probing grows with the work, and refuses no experiment."""

import numpy as np
import pytest

from probekit.pipeline.measure.probers import probing_seconds
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.settings import ProbeSettings, ProbeSpec


def prober_of(kind="logistic", n=60):
    y, groups = np.array(["a", "b"] * (n // 2)), np.repeat(["large", "x", "y", "z"], n // 4)
    data = ProbeData(y, groups, groups, train=np.arange(n // 2), test=np.arange(n // 2, n))
    return Prober(data, ProbeSettings(folds=2, control_draws=0, kinds=(ProbeSpec(kind),)))


@pytest.mark.parametrize("kind", ["logistic", "lda"])
def test_probing_takes_longer_for_more_work(kind):
    small = probing_seconds([prober_of(kind)], [4], 1)
    large = probing_seconds([prober_of(kind)] * 3, [4] * 20, 40)
    assert large > 20 * small > 0


def test_a_kind_whose_fits_take_seconds_is_not_estimated():
    assert probing_seconds([prober_of("mlp")], [4], 1) is None


def test_large_groups_are_estimated():
    assert probing_seconds([prober_of(n=20_000)], [2], 1) > 0
