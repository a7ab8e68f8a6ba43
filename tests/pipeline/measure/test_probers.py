"""The estimated memory of probing grows with the work."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.pipeline.measure import probing
from probekit.pipeline.measure.probing import probing_bytes
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.settings import ProbeSettings, ProbeSpec


def prober_of(kind="logistic", n=60):
    y, groups = np.array(["a", "b"] * (n // 2)), np.repeat(["large", "x", "y", "z"], n // 4)
    data = ProbeData(y, groups, groups, train=np.arange(n // 2), test=np.arange(n // 2, n))
    return Prober(data, ProbeSettings(folds=2, control_draws=0, kinds=(ProbeSpec(kind=kind),)))


def test_folds_and_labels_that_are_numbers_need_memory_for_each_row():
    one = prober_of(n=20_000)
    swapped = replace(one.data, train=one.data.test, test=one.data.train)
    ridge = ProbeSettings(control_draws=0, folds=2, kinds=(ProbeSpec(kind="ridge_regression"),))
    numbers = Prober(replace(one.data, y=np.arange(20_000).astype(str)), ridge)
    plain = probing_bytes([one], [64])
    assert probing_bytes([Prober([one.data, swapped], one.settings)], [64]) - plain > 5e6
    assert probing_bytes([numbers], [64]) - plain > 5e6


def test_memory_grows_with_the_features_until_rows_stay_in_their_file(monkeypatch):
    prober = prober_of(n=20_000)
    sizes = [probing_bytes([prober], [d]) for d in (64, 768, 1536)]
    assert sizes == sorted(sizes)
    assert 1.5 * 20_000 * 768 * 4 < sizes[2] - sizes[1] < 8 * 20_000 * 768 * 4
    svm = probing_bytes([prober_of("svm", n=20_000)], [768])
    assert svm == pytest.approx(sizes[1] + 3 * 10_000 * 768 * 4, rel=0.05)
    for name in ("LOADED_BYTES", "MAPPED_BYTES"):
        monkeypatch.setattr(probing, name, 0)
    assert sizes[1] - probing_bytes([prober], [768]) == 1.5 * 20_000 * 768 * 4
