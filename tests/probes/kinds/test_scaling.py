import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from probekit.probes.kinds.scaling import Scaling


@pytest.mark.parametrize("scaling", [Scaling.standard, Scaling.centred])
def test_a_folded_layer_answers_on_raw_rows_as_the_layer_does_on_scaled_ones(scaling):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(50, 4)) * [1, 100, 0.01, 0] + [0, 1000, 5, 7]
    weight, bias = generator.normal(size=(3, 4)), generator.normal(size=3)
    scaled = scaling(X)
    layer = scaled.fold(weight, bias)
    np.testing.assert_allclose(
        X @ layer.weight.T + layer.bias, scaled.apply(X) @ weight.T + bias, atol=1e-8
    )


def test_it_scales_as_scikit_learn_does():
    X = np.random.default_rng(0).normal(size=(50, 4)) * [1, 100, 0.01, 5] + 3
    np.testing.assert_allclose(Scaling.standard(X).apply(X), StandardScaler().fit_transform(X))


@pytest.mark.parametrize("constant", [0.0, 3.1, -1e4, 1e8])
def test_the_last_bits_of_a_constant_are_no_data(constant):
    X = np.full((999, 1), constant, dtype=np.float32)
    X[::2] = np.nextafter(X[0], np.float32(np.inf)) if constant else 0
    assert not Scaling.standard(X).apply(X).any()
    assert not Scaling.standard(X.astype(np.float64)).apply(X).any() or constant
