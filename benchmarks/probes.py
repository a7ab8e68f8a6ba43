"""Speed and accuracy of the batched probes, compared with scikit-learn's logistic regression.

    python -m benchmarks.probes [--quick]

Both use the same rows, folds and cores. probekit fits several sites in parallel, as in a run, and
divides the threads between them. For scikit-learn, rows are standardised inside each fold, except
for LogisticRegressionCV, which does not support this and gets rows that were standardised once
(less work). Times are medians of repeats that alternate between the two. Slow scikit-learn work is
timed on some of the sites and extrapolated; the table marks this. `gap` is the relative excess of
our objective over a reference solved to 1e-10; `agree` is the share of test rows on which our
predictions and those of the reference agree.

On a shared machine, set OMP_WAIT_POLICY=passive: otherwise threads spin while they wait for each
other, which can cost ten times the work of a small site.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import PredefinedSplit
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from probekit.experiment.loader import load_experiment
from probekit.lazy_rows import Codes, Floats
from probekit.pipeline.capture.captures import capture_only
from probekit.pipeline.engines.table import prepare
from probekit.probes.data import group_folds
from probekit.probes.solve.fits import TunedProbeFit, fit_columns
from probekit.probes.solve.solver import Fit, Problem, Solver
from probekit.workers import parallel_map

Rows = NDArray[np.float32]

THREADS = 2
FOLDS = 5
GRID = (1e-3, 1e-2, 1e-1, 1.0)
MAX_ITER = 10_000
EWT = Path(__file__).resolve().parents[2] / "shared" / "datasets" / "ud_english_ewt"
BLOCKS = (1, 3, 5)
SINGLE_C = 1e-2
REPEATS = 3
ONCE = 60.0  # seconds; work that takes longer is timed once


@dataclass(frozen=True)
class Data:
    """Concatenated features of several sites (n_samples, n_features), with labels and groups."""

    X: Rows
    codes: Codes
    groups: NDArray[np.generic]
    origin: str


@dataclass(frozen=True)
class Site:
    """Training rows (n_samples, n_features) with label columns and folds, and test rows."""

    X: Rows
    columns: Sequence[Codes]
    folds: NDArray[np.int64]
    test: Rows


@dataclass(frozen=True)
class Baseline:
    """A scikit-learn baseline, the number of sites to time it on, and the speed-up to reach."""

    name: str
    run: Callable[[Site], object]
    n_sites: int
    goal: float


def load() -> Data:
    """Return activations of English EWT with tags or, without the treebank, synthetic rows."""
    return _captured() if EWT.is_dir() else _synthetic()


def _captured() -> Data:
    sites = ",".join(f"blocks.{block}.hook_resid_post" for block in BLOCKS)
    experiment = load_experiment(
        Path("experiments/ewt_upos.yaml"),
        (
            f"data.root={EWT}",
            f"capture.sites=[{sites}]",
            "model.random_weights=false",
            "data.train=test.conllu",
            "data.test=dev.conllu",
        ),
    )
    with tempfile.TemporaryDirectory() as cache:
        store = capture_only(experiment, cache_root=Path(cache))["task"].store
        X = np.concatenate([store.read(site) for site in store.sites], axis=1).astype(np.float32)
    prepared = prepare(experiment)
    _, codes = np.unique(prepared.design.labels, return_inverse=True)
    origin = f"English EWT (test and dev), probekit's mini, blocks {BLOCKS} concatenated"
    return Data(X, codes, np.asarray(prepared.design.groups), origin)


def _synthetic() -> Data:
    generator = np.random.default_rng(0)
    n_samples, n_features, n_classes = 30_000, 768, 17
    mixing = generator.normal(size=(n_features, n_features)) / np.arange(1, n_features + 1) ** 0.5
    X = (generator.normal(size=(n_samples, n_features)) @ mixing.T).astype(np.float32)
    directions = generator.normal(size=(n_features, n_classes)) / 10
    codes = (X @ directions + generator.gumbel(size=(n_samples, n_classes))).argmax(axis=1)
    return Data(X, codes, np.arange(n_samples) // 12, "synthetic: ../shared does not exist")


def draw(data: Data, n_samples: int, seed: int, features: slice, *, binary: bool) -> Site:
    """Return a site of random rows with tags, or with the most frequent tag and its permutation."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(data.X))
    rows, rest = order[:n_samples], order[n_samples : n_samples + 5000]
    columns = [data.codes[rows]]
    if binary:
        task = (columns[0] == np.bincount(data.codes).argmax()).astype(np.int64)
        columns = [task, generator.permutation(task)]
    folds = group_folds(columns[0], data.groups[rows], FOLDS, seed=0)
    X, test = (np.ascontiguousarray(data.X[chosen, features]) for chosen in (rows, rest))
    return Site(X, columns, folds, test)


def tuned(site: Site) -> list[TunedProbeFit]:
    """Return our cross-validated probes of a site, one per label column."""
    return fit_columns(site.X, site.columns, site.folds, GRID)


def single(site: Site) -> list[Fit]:
    """Return our probe of the first label column, with a fixed C."""
    solver = Solver(site.X, [np.ones(len(site.X), dtype=np.float32)])
    return solver.solve([Problem(site.columns[0], SINGLE_C)])


def pipeline(C: float, tol: float = 1e-4) -> Pipeline:
    """Return the usual scikit-learn pipeline of a probe."""
    return make_pipeline(StandardScaler(), LogisticRegression(C=C, tol=tol, max_iter=MAX_ITER))


def looped(site: Site) -> None:
    """Fit each label column, C and fold in a loop, then refit on all rows."""
    for codes in site.columns:
        for C in GRID:
            for fold in range(FOLDS):
                inside = site.folds != fold
                pipeline(C).fit(site.X[inside], codes[inside])
        pipeline(GRID[1]).fit(site.X, codes)


def cross_validated(site: Site) -> None:
    """Tune each label column with LogisticRegressionCV, with folds in parallel processes.

    It does not support a scaler inside the folds, so rows are standardised once before.
    """
    with threadpool_limits(1):
        for codes in site.columns:
            search = LogisticRegressionCV(
                Cs=GRID,
                cv=PredefinedSplit(site.folds),
                tol=1e-4,
                max_iter=MAX_ITER,
                n_jobs=THREADS,
                l1_ratios=(0,),
                scoring="accuracy",
                use_legacy_attributes=False,
            )
            make_pipeline(StandardScaler(), search).fit(site.X, codes)


def fitted_once(site: Site) -> None:
    """Fit scikit-learn's probe of the first label column, with a fixed C."""
    pipeline(SINGLE_C).fit(site.X, site.columns[0])


def seconds(work: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def exactness(site: Site, fit: Fit) -> tuple[float, float]:
    """Return the relative optimality gap of a fit, and the share of test rows that agree.

    Both compare a fit of the first label column with a scikit-learn reference solved to 1e-10.
    """
    codes, scaler = site.columns[0], StandardScaler()
    Z = scaler.fit_transform(site.X.astype(np.float64))
    reference = LogisticRegression(C=fit.C, tol=1e-10, max_iter=10 * MAX_ITER).fit(Z, codes)
    coef, intercept = fit.coef * scaler.scale_, fit.intercept + fit.coef @ scaler.mean_
    best = objective(Z, codes, fit.C, reference.coef_, reference.intercept_)
    gap = objective(Z, codes, fit.C, coef, intercept) / best - 1
    guesses = reference.predict(scaler.transform(site.test.astype(np.float64)))
    return gap, float(np.mean(guesses == fit.predict(site.test)))


def objective(Z: Floats, codes: Codes, C: float, coef: Floats, intercept: Floats) -> float:
    """Return scikit-learn's objective on standardised rows (n_samples, n_features)."""
    scores = Z @ coef.T + intercept
    if scores.shape[1] == 1:
        scores = np.hstack([np.zeros_like(scores), scores])
    losses = logsumexp(scores, axis=1) - scores[np.arange(len(Z)), codes]
    return float(losses.sum() + np.sum(coef**2) / (2 * C))


def compare(
    name: str,
    sites: Sequence[Site],
    own: Callable[[Site], list[Any]],
    baselines: Sequence[Baseline],
) -> None:
    """Print one row per baseline as soon as it is measured."""
    first = own(sites[0])[0]  # warms up, and is checked for accuracy
    gap, agree = exactness(sites[0], first.solution if isinstance(first, TunedProbeFit) else first)
    for baseline in baselines:
        some = sites[: baseline.n_sites]
        times: list[tuple[float, float]] = []
        while not times or (len(times) < REPEATS and times[0][1] < ONCE):
            mine = seconds(lambda: list(parallel_map(own, sites, THREADS)))
            theirs = seconds(lambda run=baseline.run, some=some: [run(site) for site in some])
            times.append((mine, theirs * len(sites) / len(some)))
        ours, theirs = (median(column) for column in zip(*times, strict=True))
        scaled = (
            f"timed on {len(some)} of {len(sites)} sites, extrapolated"
            if len(some) < len(sites)
            else ""
        )
        print(
            f"{name:33} {baseline.name:22} {ours:8.2f} {theirs:9.2f} {theirs / ours:7.1f} "
            f"{baseline.goal:5.0f} {gap:9.1e} {agree:8.2%} {len(times):4} {scaled}",
            flush=True,
        )


def main() -> None:
    """Print the table; `--quick` measures fewer sites and rows."""
    parser = argparse.ArgumentParser(description="Compare batched probes with scikit-learn.")
    parser.add_argument("--quick", action="store_true", help="use fewer sites and rows")
    quick = parser.parse_args().quick
    torch.set_num_threads(THREADS)
    data = load()
    print(f"rows: {data.origin}; {len(data.X)} x {data.X.shape[1]}, {THREADS} threads each")
    print(
        f"{'work':33} {'baseline':22} {'ours s':>8} {'theirs s':>9} {'faster':>7} {'goal':>5} "
        f"{'gap':>9} {'agree':>8} {'runs':>4}"
    )
    whole = slice(None)
    with threadpool_limits(THREADS):
        n_rows = 10_000
        site = draw(data, n_rows, 0, whole, binary=True)
        one = Baseline("LogisticRegression", fitted_once, 1, goal=3)
        compare(f"one fit, {n_rows:,} rows", [site], single, [one])
        n_sites = 2 if quick else 13
        sites = [draw(data, 4000, seed, whole, binary=True) for seed in range(n_sites)]
        baselines = [
            Baseline("loop", looped, 1 if quick else 3, goal=60),
            Baseline("LogisticRegressionCV", cross_validated, 1 if quick else 3, goal=30),
        ]
        compare(f"binary, {n_sites} sites, 4,000 rows", sites, tuned, baselines)
        n_sites = 12 if quick else 144
        heads = [
            draw(data, 4000, seed, slice(start, start + 64), binary=True)
            for seed in range(n_sites // 12)
            for start in range(0, data.X.shape[1], 64)
        ]
        per_head = Baseline("LogisticRegressionCV", cross_validated, 3 if quick else 12, goal=10)
        compare(f"heads, {len(heads)} sites of 64 features", heads, tuned, [per_head])
        for n_rows, goal in ((4000, 12),) if quick else ((10_000, 12), (25_000, 20)):
            tags = draw(data, n_rows, 0, whole, binary=False)
            per_tag = Baseline("LogisticRegressionCV", cross_validated, 1, goal)
            compare(f"tags, 17 classes, {n_rows:,} rows", [tags], tuned, [per_tag])


if __name__ == "__main__":
    main()
