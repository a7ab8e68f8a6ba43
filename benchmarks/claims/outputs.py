"""A feature that is the network's own confidence: is anything left beyond it?

Whole runs of `probekit.probe` on rows of random logits, which have an entropy; activations contain
the entropy in forms that are not linear. `outputs=` gives the numbers of the baseline
`output`, and the same numbers are the confounds. The label depends on the entropy alone, or also on
a direction that is independent of it.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import log_softmax

import probekit
from benchmarks.claims.rates import Rate
from probekit.amounts import LEVEL

Array = NDArray[np.float64]
ROWS, FEATURES, VOCABULARY = 6, 32, 50
STRENGTH = 2.0  # of the entropy in the log odds of the label
GRID = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
FOLDS = 5


@dataclass(frozen=True)
class Case:
    """A simulated data set.

    Attributes:
        groups: number of groups, each of 6 rows.
        labels: whether each group has one label or several.
        shape: how the label depends on the entropy: a line or a U-shape in the log odds, or whether
            it is above the median, without noise.
        extra: strength of a direction that is independent of the entropy, relative to it.
    """

    groups: int = 100
    labels: Literal["mixed", "constant"] = "mixed"
    shape: Literal["line", "U", "median"] = "line"
    extra: float = 0.0


def cases() -> Iterator[Case]:
    """Yield all simulated data sets."""
    yield Case(shape="median")
    for labels in ("mixed", "constant"):
        yield Case(labels=labels)
        yield Case(labels=labels, shape="U")
        yield Case(labels=labels, extra=0.35)
        yield Case(labels=labels, extra=1.0)
    yield Case(40)
    yield Case(40, extra=1.0)


def drawn(case: Case, rng: np.random.Generator) -> tuple[Array, NDArray[np.int64], Any, Any]:
    """Return activations, labels, groups and the numbers of the output."""
    groups = np.repeat(np.arange(case.groups), ROWS)
    n, is_whole = len(groups), case.labels == "constant"

    def normal(size: int = 1, share: float = 0.3) -> Array:
        """Return numbers (n_rows, size); rows of a group have this share of variance in common."""
        own = rng.normal(size=(case.groups, size))[groups]
        return np.sqrt(share) * own + np.sqrt(1 - share) * rng.normal(size=(n, size))

    temperature = np.exp(0.5 * normal(share=0.8 if is_whole else 0.3))
    logits = 2 * rng.normal(size=(n, VOCABULARY)) / temperature
    logs = log_softmax(logits, axis=1)
    entropy = -(np.exp(logs) * logs).sum(axis=1)
    top = np.sort(logs, axis=1)
    following = (rng.random(n)[:, None] > np.exp(logs).cumsum(axis=1)[:, :-1]).sum(axis=1)
    outputs = pd.DataFrame(
        {
            "entropy": entropy,
            "largest_probability": np.exp(top[:, -1]),
            "margin": top[:, -1] - top[:, -2],
            "next_log_probability": logs[np.arange(n), following],
            "residual_norm": np.exp(0.3 * normal()[:, 0]) * np.linalg.norm(logits, axis=1),
        }
    )
    h = (entropy - entropy.mean()) / entropy.std()
    u = normal(share=1.0 if is_whole else 0.3)[:, 0]
    of_entropy = {"line": h, "U": (h**2 - 1) / np.sqrt(2), "median": h - np.median(h)}[case.shape]
    read = np.stack([h**2, np.sin(2 * h), np.tanh(3 * h), np.maximum(h, 0), u], axis=1)
    directions = np.linalg.qr(rng.normal(size=(FEATURES, read.shape[1])))[0].T
    X = 2 * read @ directions + normal(FEATURES)
    score = STRENGTH * (of_entropy + case.extra * u)
    noise = rng.logistic(size=n)
    if is_whole:  # the label of a group depends on the mean over its rows
        score = (np.bincount(groups, weights=score) / ROWS)[groups]
        noise = noise[groups * ROWS]
    y = (score > (0 if case.shape == "median" else noise)).astype(int)
    return X, y, groups, outputs


def run_of(case: Case, seed: int) -> dict[str, float]:
    """Return p and bits of the rest in a run, and whether its probe is better than the output."""
    rng = np.random.default_rng([54, seed])
    X, y, groups, outputs = drawn(case, rng)
    settings = {"C": list(GRID), "folds": 3, "control_draws": 0, "description": False}
    settings |= {"permutations": 0, "seed": seed, "baselines": ["majority", "output"]}
    options: dict[str, Any] = {"probe": settings, "split": {"folds": FOLDS}, "page": False}
    options |= {"outputs": outputs, "confounds": outputs, "progress": False}
    with tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        layers = {0: rng.normal(size=X.shape), 1: X}
        result = probekit.probe(layers, y, groups=groups, out=folder, **options)
        left = result.left
        assert left is not None, "there are confounds"
        table = pd.read_csv(result.folder / "differences.csv")
    (rival,) = table.loc[table["b"] == "output"].to_dict("records")
    is_better = rival["difference"] > 0 and rival["p_adjusted"] < LEVEL
    row = left.iloc[0]
    return {
        **{name: float(row[name]) for name in ("p", "gain", "gain_low", "gain_high")},
        "better": float(is_better),
    }


def rows(case: Case, draws: int) -> Iterator[dict[str, Any]]:
    """Yield how often something is left, and how often intervals contain the mean gain."""
    found = pd.DataFrame([run_of(case, seed) for seed in range(draws)])
    rate = Rate.of([None if np.isnan(p) else bool(p < LEVEL) for p in found["p"]])
    mean = found["gain"].mean()
    covers = (found["gain_low"] <= mean) & (mean <= found["gain_high"])
    above = {"bits_rate": (found["gain_low"] > 0).mean(), "gain": mean}
    yield {**asdict(rate), **above, "coverage": covers.mean(), "better": found["better"].mean()}
