"""The MLP probe: a perceptron with one hidden layer, the non-linear reference."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from probekit.probes.arrays import Floats
from probekit.probes.kinds.base import TunedProbe
from probekit.probes.kinds.registry import MLP_ALPHAS
from probekit.probes.solve.layers import AffineLayer, FittedLayers
from probekit.probes.training_rows import Scaling, TrainingRows

# With scikit-learn's default of 0.001, a fit on a few hundred rows (two batches per epoch) is far
# from its optimum after 200 epochs.
LEARNING_RATE = 0.01


@dataclass(eq=False, repr=False)
class MlpProbe(TunedProbe):
    """Perceptron with one hidden layer of ReLU units on standardised features, trained by Adam.

    The same seed gives the same probe.

    Args:
        hidden: Number of hidden units.
        alpha: L2 regularisation strength; of several values the one with the highest held-out
            accuracy is selected.
        folds: Number of cross-validation folds that select alpha.
        max_iter: Maximum number of epochs.
        random_state: Random seed for the folds, the initial weights and the order of the rows.

    >>> X, y = [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 50, [0, 1, 1, 0] * 50
    >>> probe = MlpProbe(hidden=8, alpha=0.01).fit(X, y)
    >>> probe.predict(X[:4]).tolist(), [layer.weight.shape for layer in probe.layers_]
    ([0, 1, 1, 0], [(8, 2), (1, 8)])
    """

    penalty = "alpha"
    counts = ("hidden", "max_iter")

    hidden: int = 64
    alpha: float | Sequence[float] = MLP_ALPHAS
    folds: int = 5
    max_iter: int = 1000
    random_state: int = 0

    def path(self, values: Floats, data: TrainingRows) -> list[FittedLayers]:
        """Return the fit at each value of alpha."""
        scaling = Scaling.standard(data.measured)
        rows = scaling.lazily(data.X)[:].astype(np.float32)  # twice as fast as float64
        solutions, shared = [], {"max_iter": self.max_iter, "random_state": self.random_state}
        for alpha in values:
            network = MLPClassifier(
                (self.hidden,), alpha=alpha, learning_rate_init=LEARNING_RATE, **shared
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # recorded in `converged`
                warnings.filterwarnings("error", "Training interrupted", UserWarning)
                try:
                    network.fit(rows, data.codes)
                except UserWarning as warning:
                    # scikit-learn turns a KeyboardInterrupt into this warning. The interrupt, which
                    # is the context of the warning, is raised instead. A warning without a context
                    # is an error only by a filter of the caller, and stays one.
                    raise warning.__context__ or warning from None
            (first, last), (first_bias, last_bias) = network.coefs_, network.intercepts_
            output = AffineLayer(last.T.astype(np.float64), last_bias.astype(np.float64))
            layers = (scaling.fold(first.T, first_bias), output)
            classes, n_iter = np.asarray(network.classes_), network.n_iter_
            solutions.append(FittedLayers(classes, layers, n_iter, n_iter < self.max_iter))
        return solutions
