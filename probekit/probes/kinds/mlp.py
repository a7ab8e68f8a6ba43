"""The MLP probe: a perceptron with one hidden layer, the non-linear reference."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.utils import shuffle
from torch.nn.functional import cross_entropy, pad

from probekit.lazy_rows import Codes, Floats, LazyRows, fetched
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
    max_iter: int = 1000

    def path(self, values: Floats, data: TrainingRows) -> list[FittedLayers]:
        """Return the fit at each value of alpha."""
        scaling, solutions = Scaling.standard(data.X, data.typical), []
        rows = scaling.lazily(data.X)
        classes, codes = np.unique(data.codes, return_inverse=True)
        for alpha in values:
            train = self._train_elsewhere if rows.is_elsewhere else self._train
            (first, first_bias, last, last_bias), n_iter = train(alpha, rows, codes)
            output = AffineLayer(last.T.astype(np.float64), last_bias.astype(np.float64))
            layers = (scaling.fold(first.T, first_bias), output)
            solutions.append(FittedLayers(classes, layers, n_iter, n_iter < self.max_iter))
        return solutions

    def _train(self, alpha: Any, rows: LazyRows, codes: Codes) -> tuple[Sequence[Any], int]:
        """Return weight (n_in, n_out) and bias of both layers, and the number of epochs."""
        shared = {"max_iter": self.max_iter, "random_state": self.random_state}
        network = MLPClassifier(
            (self.hidden,), alpha=alpha, learning_rate_init=LEARNING_RATE, **shared
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # recorded in `converged`
            warnings.filterwarnings("error", "Training interrupted", UserWarning)
            try:
                network.fit(rows[:].astype(np.float32), codes)  # twice as fast as float64
            except UserWarning as warning:
                # scikit-learn turns a KeyboardInterrupt into this warning. The interrupt, which is
                # the context of the warning, is raised instead. A warning without a context is an
                # error only by a filter of the caller, and stays one.
                raise warning.__context__ or warning from None
        (first, last), (first_bias, last_bias) = network.coefs_, network.intercepts_
        return (first, first_bias, last, last_bias), network.n_iter_

    def _train_elsewhere(
        self, alpha: Any, lazily: LazyRows, codes: Codes
    ) -> tuple[Sequence[Any], int]:
        """Return the same by scikit-learn's algorithm and random numbers, on an accelerator.

        The device is waited for once an epoch, for the loss.

        Source: MLPClassifier of scikit-learn, with its default batches and stopping rule.
        """
        rows, truth = lazily.whole(), lazily.put(codes)
        random, n_classes = np.random.RandomState(self.random_state), int(codes.max()) + 1
        n_out = 1 if n_classes == 2 else n_classes
        layers = (rows.shape[1], self.hidden), (self.hidden, n_out)
        initial = []
        for n_in, n_to in layers:  # the random numbers of the weight, then of the bias
            bound = np.sqrt(6 / (n_in + n_to))
            initial.append(random.uniform(-bound, bound, (n_in + 1) * n_to))
        point = lazily.put(np.concatenate(initial)).requires_grad_()

        def parts() -> list[Any]:
            """Return views of weight and bias of both layers."""
            sizes = [n for n_in, n_to in layers for n in (n_in * n_to, n_to)]
            first, bias, last, last_bias = point.split(sizes)
            return [first.view(layers[0]), bias, last.view(layers[1]), last_bias]

        mean = square = torch.zeros_like(point, requires_grad=False)
        order, n_steps, best, n_idle, epoch = np.arange(len(rows)), 0, np.inf, 0, 0
        while epoch < self.max_iter and n_idle <= PATIENCE:
            order, total = shuffle(order, random_state=random), 0.0
            for own in lazily.put(order).split(BATCH):
                first, bias, last, last_bias = parts()
                scores = (rows[own] @ first + bias).relu() @ last + last_bias
                logits = pad(scores, (n_classes - n_out, 0))  # the reference class has 0
                squares = first.square().sum() + last.square().sum()
                loss = cross_entropy(logits, truth[own]) + 0.5 * alpha * squares / len(own)
                (gradient,) = torch.autograd.grad(loss, point)
                n_steps, total = n_steps + 1, total + loss.detach() * len(own)
                mean = 0.9 * mean + 0.1 * gradient
                square = 0.999 * square + 0.001 * gradient**2
                rate = LEARNING_RATE * (1 - 0.999**n_steps) ** 0.5 / (1 - 0.9**n_steps)
                point = (point - rate * mean / (square**0.5 + 1e-8)).detach().requires_grad_()
            current, epoch = float(total) / len(rows), epoch + 1
            n_idle = n_idle + 1 if current > best - LEAST_PROGRESS else 0
            best = min(best, current)
        return [fetched(part.detach()) for part in parts()], epoch
