"""Processor seconds, growth and peak memory with the numbers of rows, groups and sites.

python -m benchmarks.scale            sizes for continuous integration
python -m benchmarks.scale --large    200,000 rows of 768 features, 160,000 groups, 384 sites

Each work and size is a process of its own. Its memory is the peak minus that before the work, so
libraries and given arrays do not count; `probe` is called once on few rows before.
"""

from __future__ import annotations

import argparse
import atexit
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import probekit
from probekit.lazy_rows import BLOCK_ROWS, Codes, Features
from probekit.probes.kinds.left_out import logistic_left_out
from probekit.probes.score.contributions import of_accuracy
from probekit.probes.score.exchange import LabelExchange
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.score.scored import metrics_of
from probekit.probes.solve.fits import fit_columns
from probekit.probes.solve.layers import AffineLayer
from probekit.probes.training_rows import TrainingRows
from probekit.products import threads

GROUP_ROWS = 4  # rows of each group in the exchanges of labels
GROUPS = 4000
GRID = (0.001, 0.01, 0.1, 1.0)  # values of C
DRAWS_A_SITE, MOST_DRAWS = 80, 20_000  # as in a run


def predictions(n_rows: int, seed: int = 0) -> ClassPredictions:
    """Return predictions of two classes that are better than chance."""
    generator = np.random.default_rng(seed)
    truth = generator.integers(2, size=n_rows)
    scores = generator.normal(size=(n_rows, 2))
    scores[np.arange(n_rows), truth] += 0.5
    return ClassPredictions.of_scores(truth, scores, are_logits=True, positive=1)


def jackknife(n_groups: int) -> None:
    """Compute the jackknife of four metrics, each row in a group of its own."""
    given, resamples = predictions(n_groups), Resamples.leave_one_out(np.arange(n_groups))
    for name in ("accuracy", "balanced_accuracy", "auroc", "brier"):
        metrics_of(given)[name](given, resamples)


def exchange(n_sites: int) -> None:
    """Compute the null distribution of the accuracy at so many sites."""
    generator = np.random.default_rng(0)
    codes = np.repeat(generator.integers(2, size=GROUPS), GROUP_ROWS)
    groups, folds = np.repeat(np.arange(GROUPS), GROUP_ROWS), np.zeros(len(codes), dtype=np.int64)
    draws = min(DRAWS_A_SITE * n_sites, MOST_DRAWS)
    labels = np.eye(2)[codes]
    rows = []
    for _ in range(n_sites):
        guess = np.where(generator.random(len(codes)) < 0.6, codes, 1 - codes)
        rows.append(of_accuracy(ClassPredictions(codes, guess, 2)))
    LabelExchange(labels, groups, folds, draws, seed=0).null(rows)


def left_out(n_rows: int) -> None:
    """Compute the scores of single rows by fits without them, with 256 features."""
    generator = np.random.default_rng(0)
    X = generator.standard_normal((n_rows, 256), dtype=np.float32)
    layer = AffineLayer(0.02 * generator.standard_normal((1, 256)), np.zeros(1))
    data = TrainingRows(X, generator.integers(2, size=n_rows), groups=np.arange(n_rows))
    logistic_left_out(data, layer, C=1.0)


def site_of(n_rows: int, n_features: int, n_classes: int) -> tuple[Features, Codes]:
    """Return correlated rows far from 0, and labels that depend on some of their directions."""
    generator = np.random.default_rng(0)
    mixing = generator.standard_normal((n_features, n_features), dtype=np.float32)
    mixing /= math.sqrt(n_features)
    X = np.empty((n_rows, n_features), dtype=np.float32)
    for start in range(0, n_rows, BLOCK_ROWS):
        block = X[start : start + BLOCK_ROWS]
        block[:] = generator.standard_normal(block.shape, dtype=np.float32) @ mixing + 3
    scores = (X[:, :n_classes] - 3) * 1.5 + generator.gumbel(size=(n_rows, n_classes))
    return X, scores.argmax(axis=1)


def fits(n_classes: int, n_rows: int) -> Callable[[], object]:
    """Tune a logistic probe on 768 features, with 5 folds and 4 values of C."""
    X, codes = site_of(n_rows, 768, n_classes)
    return lambda: fit_columns(X, [codes], np.arange(n_rows) % 5, GRID)


def whole_probe(n_rows: int, *, mapped: bool) -> Callable[[], object]:
    """Call `probekit.probe` on 768 features, without control task, code length and p-values."""
    X, codes = site_of(n_rows, 768, 2)
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    activations: Any = {"layer_0": X}
    if mapped:
        np.save(folder / "layer_0.npy", X)
        activations = folder
        del X
    options: dict[str, Any] = {
        "control_draws": 0,
        "description": False,
        "permutations": 0,
        "C": list(GRID),
    }
    others: dict[str, Any] = {
        "out": folder / "runs",
        "page": False,
        "progress": False,
        "workers": 1,
    }
    # Imports do not count.
    few = {"layer_0": np.random.default_rng(1).standard_normal((200, 8))}
    probekit.probe(few, np.arange(200) % 2, probe=options, **others)
    return lambda: probekit.probe(activations, codes, probe=options, **others)


# Name -> function of a size that returns the work, sizes, and how much larger the large ones are.
WORKS: Mapping[str, tuple[Callable[[int], Callable[[], object]], Sequence[int], int]] = {
    "jackknife, groups": (lambda n: partial(jackknife, n), (10_000, 20_000, 40_000), 4),
    "exchanges, sites": (lambda n: partial(exchange, n), (24, 48, 96), 4),
    "left out, rows": (lambda n: partial(left_out, n), (4_000, 8_000, 16_000), 4),
    "fits of 2 classes, rows": (partial(fits, 2), (5_000, 10_000, 20_000), 10),
    "fits of 17 classes, rows": (partial(fits, 17), (1_250, 2_500, 5_000), 4),
    "probe, rows in memory": (partial(whole_probe, mapped=False), (5_000, 10_000, 20_000), 10),
    "probe, rows in a file": (partial(whole_probe, mapped=True), (5_000, 10_000, 20_000), 10),
}


def measured(name: str, size: int) -> tuple[float, float]:
    """Return processor seconds of a work, and by how many GB it raises the memory, at its peak."""
    work = WORKS[name][0](size)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of the work alone
    before = resident("VmRSS")
    with threads(1):
        start = time.process_time()
        work()
        seconds = time.process_time() - start
    return seconds, resident("VmHWM") - before


def resident(field: str) -> float:
    """Return the memory of this process now (VmRSS) or at its peak (VmHWM), in GB."""
    status = Path("/proc/self/status").read_text()
    match = re.search(rf"{field}:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024 / 1e9


def main() -> None:
    """Print seconds and memory of each kind of work, and the exponent of growth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--only", default="", help="beginning of the names of works")
    parser.add_argument("--one", nargs=2, help="name and size of one work, for this process")
    given = parser.parse_args()
    if given.one:
        print(*measured(given.one[0], int(given.one[1])))
        return
    for name, (_, sizes, factor) in WORKS.items():
        if not name.startswith(given.only):
            continue
        print(name, flush=True)
        found = []
        for size in sizes:
            n = size * factor if given.large else size
            command = [sys.executable, "-m", "benchmarks.scale", "--one", name, str(n)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            seconds, memory = map(float, out.split()[-2:])
            found.append(seconds)
            print(f"  {n:>9,}: {seconds:7.2f} s {memory:6.2f} GB", flush=True)
        growth = math.log(found[-1] / max(found[0], 1e-4)) / math.log(sizes[-1] / sizes[0])
        print(f"  exponent {growth:.2f}", flush=True)


if __name__ == "__main__":
    main()
