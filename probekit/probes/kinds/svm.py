"""The linear support vector machine."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from probekit.probes.kinds.base import Training, TunedProbe
from probekit.probes.kinds.inputs import at_least
from probekit.probes.kinds.layers import Solution
from probekit.probes.kinds.scaling import Scaling
from probekit.probes.solver import Floats


class SvmProbe(TunedProbe):
    """Standardised linear SVM with squared hinge loss, one class against the rest.

    Args:
        C: Inverse strength of the penalty on standardised features; of several values the one with
            the best held-out accuracy is taken.
        folds: How many folds choose C.
        max_iter: Upper bound on the solver's passes.
        random_state: Seed of the folds and of the solver.

    >>> X = [[-3.0], [-2.0], [-1.0], [1.0], [2.0], [3.0]]
    >>> probe = SvmProbe(C=0.1).fit(X, ["down", "down", "down", "up", "up", "up"])
    >>> probe.predict([[-5.0], [5.0]]).tolist(), probe.C_
    (['down', 'up'], 0.1)

    Source: Fan et al. (2008), LIBLINEAR, as scikit-learn's LinearSVC; it penalises the intercept
    along with the weights.
    """

    def __init__(
        self,
        C: float | Sequence[float] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0),
        folds: int = 5,
        max_iter: int = 2000,
        random_state: int = 0,
    ) -> None:
        self.C = C
        self.folds = folds
        self.max_iter = max_iter
        self.random_state = random_state

    def _solve(self, data: Training) -> Solution:
        at_least(self, max_iter=1)
        self.C_, solution = self._solve_tuned("C", data)
        return solution

    def _path(self, values: Floats, data: Training) -> list[Solution]:
        scaling = Scaling.standard(data.X)
        rows = scaling.apply(data.X)
        return [self._at(C, rows, data, scaling) for C in values]

    def _at(self, C: float, rows: Floats, data: Training, scaling: Scaling) -> Solution:
        machine = LinearSVC(
            C=C, max_iter=self.max_iter, random_state=self.random_state, dual="auto"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # told by `converged_`
            machine.fit(rows, data.codes)
        layer = scaling.fold(machine.coef_, machine.intercept_)
        n_iter = int(machine.n_iter_)
        return Solution(machine.classes_, (layer,), n_iter, n_iter < self.max_iter)
