"""The MLP probe: a perceptron with one hidden layer, the non-linear reference."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.utils import shuffle
from torch import Tensor

from probekit.lazy_rows import LazyRows, fetched
from probekit.probes.arrays import Codes, Floats
from probekit.probes.kinds.base import TunedProbe
from probekit.probes.kinds.registry import MLP_ALPHAS
from probekit.probes.solve.layers import AffineLayer, FittedLayers
from probekit.probes.training_rows import Scaling, TrainingRows

# With scikit-learn's default of 0.001, a fit on a few hundred rows (two batches per epoch) is far
# from its optimum after 200 epochs.
LEARNING_RATE = 0.01
# Defaults of scikit-learn: rows of a batch, decrease of the loss that counts, and the number of
# epochs without one after which it stops.
BATCH, LEAST_PROGRESS, PATIENCE = 200, 1e-4, 10


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
        lazily = scaling.lazily(data.X)
        if lazily.is_elsewhere:
            rows = lazily.whole()
            return [
                self._on_accelerator(alpha, scaling, lazily, rows, data.codes)
                for alpha in values.tolist()
            ]
        rows = lazily[:].astype(np.float32)  # twice as fast as float64
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

    def _on_accelerator(
        self, alpha: float, scaling: Scaling, lazily: LazyRows, rows: Tensor, codes: Codes
    ) -> FittedLayers:
        """Return the fit at one alpha: scikit-learn's algorithm and random numbers, in torch.

        The device is waited for once an epoch, for the loss.

        Source: MLPClassifier of scikit-learn, with its default batches and stopping rule.
        """
        classes, random = np.unique(codes), np.random.RandomState(self.random_state)
        n_out = 1 if len(classes) == 2 else len(classes)
        truth = lazily.put(codes.astype(np.float32) if n_out == 1 else codes)
        initial = []
        for n_in, n_to in ((rows.shape[1], self.hidden), (self.hidden, n_out)):
            bound = np.sqrt(6 / (n_in + n_to))
            initial += [random.uniform(-bound, bound, shape) for shape in ((n_in, n_to), (n_to,))]
        point = lazily.put(np.concatenate([part.ravel() for part in initial])).requires_grad_()
        mean = square = torch.zeros_like(point, requires_grad=False)
        n_steps, order = 0, np.arange(len(rows))
        best, n_idle, batch, epoch = np.inf, 0, min(BATCH, len(rows)), 0
        while epoch < self.max_iter and n_idle <= PATIENCE:
            order = shuffle(order, random_state=random)
            total: Any = 0.0
            for own in lazily.put(order).split(batch):
                first, bias, last, last_bias = _parts(point, initial)
                outputs = (rows[own] @ first + bias).relu() @ last + last_bias
                if n_out == 1:
                    loss = F.binary_cross_entropy_with_logits(outputs[:, 0], truth[own])
                else:
                    loss = F.cross_entropy(outputs, truth[own])
                squares = first.square().sum() + last.square().sum()
                loss = loss + 0.5 * alpha * squares / len(own)
                (gradient,) = torch.autograd.grad(loss, point)
                n_steps, total = n_steps + 1, total + loss.detach() * len(own)
                mean = 0.9 * mean + 0.1 * gradient
                square = 0.999 * square + 0.001 * gradient**2
                rate = LEARNING_RATE * (1 - 0.999**n_steps) ** 0.5 / (1 - 0.9**n_steps)
                point = (point - rate * mean / (square**0.5 + 1e-8)).detach().requires_grad_()
            current, epoch = float(total) / len(rows), epoch + 1
            n_idle = n_idle + 1 if current > best - LEAST_PROGRESS else 0
            best = min(best, current)
        first, bias, last, last_bias = (fetched(p) for p in _parts(point.detach(), initial))
        layers = (scaling.fold(first.T, bias), AffineLayer(last.T, last_bias))
        return FittedLayers(classes, layers, epoch, epoch < self.max_iter)


def _parts(point: Tensor, alike: Sequence[Floats]) -> list[Tensor]:
    """Return the parameters in a vector as tensors of the shapes of arrays."""
    parts = torch.split(point, [array.size for array in alike])
    return [part.view(array.shape) for part, array in zip(parts, alike, strict=True)]
