"""False positive rates on new negatives, at thresholds for 1 % and 5 % of the training rows.

Each draw is a new training set with its own probe, so the means refer to rates over training sets.
Both methods read the same probe and the same new rows:

folds      thresholds from the scores of the cross-validation folds
left_out   thresholds of the package: for logistic and ridge, scores without the own group
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from probekit.lazy_rows import Floats
from probekit.probes.data import ProbeData
from probekit.probes.kinds.registry import C_GRID
from probekit.probes.score.metrics import RATES, ClassPredictions, fixed_thresholds, with_alarms
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.split import SplitProber

NEGATIVES = 1200  # training rows; 1 % needs at least 1,000
NEW = 4000  # new negatives in each draw
SHARED = 0.3  # share of the variance of features that the rows of a group share
LEVEL = 2.0  # distance of the class means, in standard deviations of the negatives along it


@dataclass(frozen=True)
class Monitor:
    """A training set of a monitor.

    Attributes:
        kind: kind of probe.
        features: number of features.
        group_size: number of rows in each group; 1 for no groups.
        positives: share of positive rows. Each group has rows of one label.
        weakest: whether only the weakest penalty C = 1 is a candidate, else those of the kind.
    """

    kind: str
    features: int
    group_size: int
    positives: float
    weakest: bool = False

    def draw(self, generator: np.random.Generator) -> tuple[Floats, ProbeData]:
        """Return random rows (n_rows, n_features) and their data; tests are new negatives."""
        n_positive = round(NEGATIVES * self.positives / (1 - self.positives))
        counts = np.array([NEGATIVES, n_positive, NEW, self.group_size]) // self.group_size
        y = np.repeat(np.tile(["usual", "event"], 2), counts * self.group_size)
        group = np.arange(len(y)) // self.group_size
        # Variances of activations fall like 1 / k over the principal axes.
        spread = np.arange(1, self.features + 1) ** -0.5
        of_group = generator.normal(size=(group[-1] + 1, self.features))[group]
        own = generator.normal(size=(len(y), self.features))
        X = (np.sqrt(SHARED) * of_group + np.sqrt(1 - SHARED) * own) * spread
        direction = generator.normal(size=self.features) * spread
        direction *= LEVEL / np.linalg.norm(direction / spread)
        X += (y == "event")[:, None] * direction
        axes, _ = np.linalg.qr(generator.normal(size=(self.features, self.features)))
        n_train = int(counts[:2].sum()) * self.group_size
        rows, names = np.arange(len(y)), group.astype(str)
        data = ProbeData(y, names, names, rows[:n_train], rows[n_train:], positive="event")
        return (X @ axes).astype(np.float32), data


def cases() -> Iterator[Monitor]:
    """Yield all designs, for logistic with and without selection of the penalty, and for ridge."""
    for (kind, weakest), *design in product(
        (("logistic", True), ("logistic", False), ("ridge", False)),
        (400, 768),
        (1, 10),
        (0.5, 0.05),
    ):
        yield Monitor(kind, *design, weakest)


def rows(case: Monitor, draws: int) -> Iterator[dict[str, Any]]:
    """Yield the mean false positive rate of each method, with its Monte Carlo error."""
    generator = np.random.default_rng(4)
    of_draws = np.array([_achieved(case, generator) for _ in range(draws)])
    for method, achieved in zip(("folds", "left_out"), of_draws.swapaxes(0, 1), strict=True):
        for rate, values in zip(RATES, achieved.T, strict=True):
            spread = values.std(ddof=1)
            error = spread / np.sqrt(draws)
            facts = {"rate": values.mean(), "error": error, "spread": spread}
            yield {"method": method, "stated": rate, **facts, "draws": draws}


def _achieved(case: Monitor, generator: np.random.Generator) -> Floats:
    """Return the false positive rates (2, n_rates) of both methods for one training set."""
    X, data = case.draw(generator)
    spec = ProbeSpec(kind=case.kind)
    settings = ProbeSettings(
        kinds=(spec,),
        C=(1.0,) if case.weakest else C_GRID,
        control_draws=0,
        baselines=(),
        description=False,
        seed=int(generator.integers(1000)),
    )
    test, validation, *_ = SplitProber(data, settings).read(spec, X, False, lambda *_: None)
    predictions, validated = test.predictions[0], validation.predictions[0]
    assert isinstance(predictions, ClassPredictions)
    assert isinstance(validated, ClassPredictions)
    by_folds = with_alarms(predictions, fixed_thresholds(validated))
    is_negative = predictions.truth != predictions.positive
    alarms = [one.alarms[is_negative] for one in (by_folds, predictions) if one.alarms is not None]
    return np.stack(alarms).mean(axis=1)
