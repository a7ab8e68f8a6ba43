"""Objectives of the same problem with several weights, and random points to evaluate them at."""

import numpy as np
import torch

from probekit.probes.solve.design import Objectives, shared
from tests.probes.logistic import problem


def objectives_of(n_classes, C=0.1, n_fits=3):
    """The same problem for each fit, with different weights."""
    X, codes = problem(n_classes)
    generator = np.random.default_rng(1)
    shares = [generator.uniform(0.1, 2, size=len(X)) for _ in range(n_fits)]
    design = shared(X, shares, np.ones(len(X), dtype=bool))
    total = design.weights.sum(dim=1)
    labels = torch.as_tensor(np.stack([codes] * n_fits))
    made = Objectives(
        rows=design.rows,
        axes=design.axes,
        variances=design.variances,
        codes=labels.double() if n_classes == 2 else labels,
        weights=design.weights / total[:, None],
        units=design.units,
        penalty=1 / (C * total),
        group=torch.zeros(n_fits, dtype=torch.int64),
    )
    return made, X, codes, shares


def random_point(n_classes, n_fits=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = n_fits, 1 if n_classes == 2 else n_classes, 8
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def values(objectives, point):
    losses, _ = objectives.losses(objectives.scores(point))
    return losses + 0.5 * objectives.penalties(point, point)
