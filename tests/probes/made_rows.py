"""Rows without a signal, features with a planted one, and probers of them."""

from dataclasses import replace

import numpy as np

from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.score.scored import Measurement
from probekit.probes.settings import ProbeSettings

N_TRAIN = 300
SETTINGS = ProbeSettings(C=(1e-3, 1e-1), folds=3, control_draws=2, description=False)


def make_data(n_rows: int = 450, seed: int = 0, **changes) -> ProbeData:
    """Three rows a group, forty word types, labels that do not depend on either."""
    generator = np.random.default_rng(seed)
    parts = {
        "y": generator.choice(["no", "yes"], size=n_rows),
        "groups": np.array([f"g{row // 3}" for row in range(n_rows)]),
        "types": generator.choice([f"w{i}" for i in range(40)], size=n_rows),
        "train": np.arange(N_TRAIN),
        "test": np.arange(N_TRAIN, n_rows),
    }
    return ProbeData(**(parts | changes))


def signal(data: ProbeData, strength: float, seed: int = 1) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(len(data.y), 8))
    noise[:, 2] += strength * np.where(data.y == "yes", 1, -1)
    return noise.astype(np.float32)


def site(prober: Prober, X, **options):
    """The measurements of all kinds."""
    return prober.site(X, **options).measurements


def baselines(prober: Prober):
    return prober.baselines().measurements


def pick(measured, target="task", metric="accuracy", split="test") -> Measurement:
    (found,) = [m for m in measured if (m.target, m.metric, m.split) == (target, metric, split)]
    return found


def nested(data: ProbeData, **changes) -> Prober:
    """A prober of three outer folds of all rows, with consecutive groups in each."""
    n_rows = len(data.y)
    fold = np.arange(n_rows) * 3 // n_rows
    splits = [
        replace(data, train=np.flatnonzero(fold != n), test=np.flatnonzero(fold == n))
        for n in range(3)
    ]
    return Prober(splits, replace(SETTINGS, **({"control_draws": 0} | changes)))
