"""Time of fits on an accelerator, compared with one fit at a time and with scikit-learn.

    SCIPY_ARRAY_API=1 python -m benchmarks.gpu [--device cuda] [--rows 1000000] [--features 4096]

Each work fits probes of one label column with 5 folds and 10 penalties on the same rows in a memory
map. `read` only reads the rows and copies them to the device: no fit that reads them once can take
less time. The bandwidth is the size of the rows divided by the time. scikit-learn's array API keeps
all rows on the device; it is measured where it runs, else the reason is shown. Without an
accelerator, `--device cpu` measures the same works on the CPU, with few rows, to test this file.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn import config_context
from sklearn.linear_model import RidgeClassifier

from probekit.lazy_rows import LazyRows
from probekit.probes.arrays import Codes
from probekit.probes.kinds.ridge import ridge_path
from probekit.probes.solve.fits import fit_columns
from probekit.probes.solve.solver import Problem, Solver
from probekit.products import check_device

FOLDS = 5
GRID = tuple(10.0 ** np.linspace(-4, 0, 10))


@dataclass(frozen=True)
class Data:
    """Rows (n_samples, n_features) of a file, with labels and folds."""

    rows: LazyRows
    codes: Codes
    folds: Codes


def made(path: Path, n_rows: int, n_features: int, device: str) -> Data:
    """Return rows that are written to a file by blocks, with two classes that overlap."""
    generator = np.random.default_rng(0)
    file = np.memmap(path, np.float32, "w+", shape=(n_rows, n_features))
    codes, direction = generator.integers(2, size=n_rows), generator.normal(size=n_features)
    for place, _ in LazyRows.of(file).blocks():
        block = generator.standard_normal((place.stop - place.start, n_features), np.float32)
        file[place] = block + np.outer(codes[place], direction / n_features**0.5)
    return Data(LazyRows.of(file).on(device), codes, np.arange(n_rows) % FOLDS)


def read(data: Data) -> None:
    """Read all rows and copy them to the device."""
    for _ in data.rows.computed():
        pass


def logistic(data: Data) -> None:
    """Fit all folds and penalties as columns of one problem, then the final fit."""
    fit_columns(data.rows, [data.codes], data.folds, GRID)


def logistic_loop(data: Data) -> None:
    """Fit the same problems one at a time."""
    for fold in range(FOLDS):
        for C in GRID:
            Solver(data.rows, [data.folds != fold]).solve([Problem(data.codes, C)])


def ridge(data: Data) -> None:
    """Fit all penalties of a fold from one decomposition."""
    signs = np.where(data.codes == 1, 1.0, -1.0)[:, None]
    for fold in range(FOLDS):
        inside = data.folds != fold
        ridge_path(data.rows.select(inside), signs[inside], 1 / np.array(GRID))


def ridge_loop(data: Data) -> None:
    """Fit ridge regression one penalty at a time."""
    signs = np.where(data.codes == 1, 1.0, -1.0)[:, None]
    for fold in range(FOLDS):
        inside = data.folds != fold
        for C in GRID:
            ridge_path(data.rows.select(inside), signs[inside], np.array([1 / C]))


def ridge_array_api(data: Data) -> None:
    """Fit scikit-learn's RidgeClassifier on tensors, one fold and penalty at a time."""
    device = data.rows.device
    X, y = (torch.from_numpy(array).to(device) for array in (data.rows[:], data.codes))
    with config_context(array_api_dispatch=True):
        for fold in range(FOLDS):
            inside = torch.from_numpy(data.folds != fold).to(device)
            for C in GRID:
                RidgeClassifier(alpha=1 / C, solver="svd").fit(X[inside], y[inside])


WORKS: dict[str, Callable[[Data], None]] = {
    "read": read,
    "logistic, one batch": logistic,
    "logistic, one fit at a time": logistic_loop,
    "ridge, one decomposition": ridge,
    "ridge, one fit at a time": ridge_loop,
    "ridge, scikit-learn array API": ridge_array_api,
}


def lines(data: Data) -> Iterator[str]:
    """Yield a line of the table for each work, as soon as it is measured."""
    for name, work in WORKS.items():
        start = time.perf_counter()
        try:
            work(data)
            if data.rows.device.startswith("cuda"):
                torch.cuda.synchronize(data.rows.device)
        except (RuntimeError, ValueError, TypeError) as error:
            yield f"{name:32} not measured: {str(error).splitlines()[0][:60]}"
            continue
        seconds = time.perf_counter() - start
        yield f"{name:32} {seconds:9.2f} {data.rows.nbytes / seconds / 1e9:8.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure fits on an accelerator.")
    parser.add_argument("--device", default="cuda", help="device of the fits")
    parser.add_argument("--rows", type=int, default=1_000_000, help="number of rows")
    parser.add_argument("--features", type=int, default=4096, help="number of features")
    given = parser.parse_args()
    check_device(given.device)
    if given.device == "cuda":
        print(f"device: {torch.cuda.get_device_name()}")
    else:
        print(f"device: {given.device}. Numbers of a GPU have not been measured.")
    print(f"{'work':32} {'seconds':>9} {'GB/s':>8}")
    with tempfile.TemporaryDirectory() as folder:
        data = made(Path(folder) / "rows", given.rows, given.features, given.device)
        for line in lines(data):
            print(line, flush=True)


if __name__ == "__main__":
    main()
