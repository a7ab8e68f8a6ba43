import numpy as np

from probekit.probes.solve.layers import AffineLayer, FittedLayers, apply_layers


def test_values_between_layers_are_cut_at_zero_and_those_of_the_last_are_not():
    split = AffineLayer(np.array([[1.0], [-1.0]]), np.array([0.0, -1.0]))
    join = AffineLayer(np.array([[-1.0, 10.0]]), np.array([0.5]))
    values = apply_layers((split, join), np.array([[2.0], [-3.0]]))
    assert values.tolist() == [[-1.5], [20.5]]


def test_a_guess_is_a_code_that_was_fitted():
    layer = AffineLayer(np.array([[1.0]]), np.array([0.0]))
    solution = FittedLayers(np.array([3, 5]), (layer,))
    assert solution.guess(np.array([[-1.0], [1.0]])).tolist() == [3, 5]
