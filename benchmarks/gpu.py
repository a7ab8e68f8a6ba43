"""Speed of captures and fits on an accelerator, compared with other libraries and with its limits.

    SCIPY_ARRAY_API=1 python -m benchmarks.gpu [--device cuda] [--only capture|fits]
    SCIPY_ARRAY_API=1 python -m benchmarks.gpu --device cpu --small

Captures: a network of GPT-2's shape with random weights writes all its residual streams at every
token to disk. transformers computes the same hidden states in the same dtype and discards them. So
does TransformerLens, in the environment that `make bench` creates; its line is skipped without it.
Times are medians of several rounds, in which the libraries alternate.

Fits: one label column with 5 folds and 10 penalties, on rows in a memory map. `read` only copies
the rows to the device. The gigabytes are those of all blocks that are computed with, and their rate
is compared with that of a copy within the device. scikit-learn's array API keeps all rows on the
device; if it cannot run, the reason is shown.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import torch
from sklearn import config_context
from sklearn.linear_model import RidgeClassifier
from transformers import GPT2Config as TheirConfig
from transformers import GPT2LMHeadModel

from benchmarks.capture import PEERS, Peer, random_tokens, seconds
from probekit.accelerators import check_device
from probekit.activations import capture
from probekit.activations.records import batch_tokens
from probekit.data.positions import RowPlan
from probekit.experiment.model import dtype_on
from probekit.lazy_rows import Codes, LazyRows
from probekit.model.families.gpt2 import GPT2Config
from probekit.model.families.table import in_dtype, random_network
from probekit.probes.kinds.ridge import ridge_path
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.design import DesignRows
from probekit.probes.solve.fits import SEARCH_TOLERANCE, fit_columns
from probekit.probes.solve.solver import Problem, Solver

ROUNDS, N_CTX, FOLDS = 3, 512, 5
GRID = tuple(10.0 ** np.linspace(-4, 0, 10))


@torch.inference_mode()
def captures(device: str, *, small: bool) -> Iterator[str]:
    """Yield the lines of the table of captures."""
    sizes = {"n_layer": 3, "n_head": 4, "n_embd": 128} if small else {}
    config, dtype = GPT2Config(n_positions=N_CTX, **sizes), dtype_on(device)
    kind: dict[str, Any] = {"device": device, "dtype": getattr(torch, dtype)}
    at_once, rounds = batch_tokens(device) // N_CTX, 2 if small else ROUNDS
    tokens = random_tokens(at_once * (2 if small else 8), N_CTX)
    n_tokens = len(tokens) * N_CTX
    sites = [f"blocks.{layer}.hook_resid_post" for layer in range(config.n_layer)]
    sites = ["blocks.0.hook_resid_pre", *sites]
    model = random_network(config, 0, kind["dtype"], device).requires_grad_(False)
    of_shape = TheirConfig(
        n_positions=N_CTX, n_layer=config.n_layer, n_head=config.n_head, n_embd=config.n_embd
    )
    theirs = GPT2LMHeadModel(of_shape).to(**kind).eval().transformer
    place = np.arange(n_tokens)
    plan = RowPlan(place // N_CTX, place % N_CTX, np.append(place, n_tokens))
    n_bytes = n_tokens * len(sites) * config.n_embd * kind["dtype"].itemsize

    def ours(*, exact: bool = False) -> float:
        with tempfile.TemporaryDirectory(dir=".") as name:
            folder, start = Path(name), time.perf_counter()
            reference = (lambda: in_dtype(model, torch.float32)) if exact else None
            work = capture.Work.begin(
                model, "", tokens, plan, sites, root=folder, dtype=dtype, exact=reference
            )
            capture.fill(work, folder)
            return time.perf_counter() - start

    def hidden_states() -> None:
        for ids in torch.from_numpy(np.stack(tokens)).split(at_once):
            theirs(ids.to(device), output_hidden_states=True, use_cache=False)

    def plain_file() -> None:
        block = bytes(1 << 24)
        with tempfile.NamedTemporaryFile(dir=".") as file:
            for start in range(0, n_bytes, len(block)):
                file.write(block[: n_bytes - start])
            file.flush()
            os.fsync(file.fileno())

    works: dict[str, Callable[[], object]] = {f"probekit, {len(sites)} sites to disk": ours}
    if dtype != "float32":
        works[f"probekit, with the errors of {dtype}"] = lambda: ours(exact=True)
    works["transformers, discarded"] = hidden_states
    with ExitStack() as stack:
        if (PEERS / "installed").exists() and not small:
            peer = stack.enter_context(Peer("gpt2", device, dtype, at_once, N_CTX))
            # It computes one batch.
            works["TransformerLens, discarded"] = lambda: peer.run() * len(tokens) / at_once
        works["one plain file of these bytes"] = plain_file
        times = [[seconds(work, device) for work in works.values()] for _ in range(rounds + 1)]
    medians = [median(column) for column in zip(*times[1:], strict=True)]  # without a warm-up
    yield f"{dtype}, {config.n_layer} layers of {config.n_embd}, {n_tokens:,} tokens"
    yield f"{'capture':34} {'tokens/s':>10} {'MB/s':>8} {'ratio':>6}"
    for name, taken in zip(works, medians, strict=True):
        rates = f"{n_tokens / taken:10,.0f} {n_bytes / taken / 1e6:8,.0f}"
        yield f"{name:34} {rates} {medians[0] / taken:6.2f}"


@dataclass(frozen=True)
class Data:
    """Rows (n_samples, n_features) of a file, with labels and folds."""

    rows: LazyRows
    codes: Codes
    folds: Codes

    @classmethod
    def make(cls, path: Path, n_rows: int, n_features: int, device: str) -> Data:
        """Return rows that are written to a file by blocks, with two classes that overlap."""
        generator = np.random.default_rng(0)
        file = np.memmap(path, np.float32, "w+", shape=(n_rows, n_features))
        codes, direction = generator.integers(2, size=n_rows), generator.normal(size=n_features)
        for place, _ in LazyRows.of(file).blocks():
            block = generator.standard_normal((place.stop - place.start, n_features), np.float32)
            file[place] = block + np.outer(codes[place], direction / n_features**0.5)
        return cls(LazyRows.of(file).on(device), codes, np.arange(n_rows) % FOLDS)


def read(data: Data) -> None:
    """Read all rows and copy them to the device."""
    for _ in data.rows.computed():
        pass


def logistic(data: Data) -> None:
    """Fit all folds and penalties as columns of one problem, then the final fit."""
    fit_columns(data.rows, [data.codes], data.folds, GRID)


def logistic_loop(data: Data) -> None:
    """Fit the same problems one at a time, to the same tolerance."""
    stopping = StoppingRule(SEARCH_TOLERANCE, aim=SEARCH_TOLERANCE)
    for fold in range(FOLDS):
        for C in GRID:
            problem = Problem(data.codes, C)
            Solver(data.rows, [data.folds != fold]).solve([problem], stopping)
    Solver(data.rows, [data.folds >= 0]).solve([Problem(data.codes, GRID[-1])])


def ridge(data: Data, at_once: int = len(GRID)) -> None:
    """Fit some penalties of a fold at once from one decomposition."""
    signs = np.where(data.codes == 1, 1.0, -1.0)[:, None]
    for fold in range(FOLDS):
        inside = data.folds != fold
        for alphas in np.split(1 / np.array(GRID), len(GRID) // at_once):
            ridge_path(data.rows.select(inside), signs[inside], alphas)


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
    "ridge, one fit at a time": lambda data: ridge(data, 1),
    "ridge, scikit-learn array API": ridge_array_api,
}


def copy_rate(device: str, *, is_within: bool) -> float:
    """Return the bytes per second of copies to the device or, reads and writes, within it."""
    pinned = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=device.startswith("cuda"))
    there = pinned.to(device, copy=True)
    source = there.clone() if is_within else pinned
    times = [seconds(lambda: there.copy_(source), device) for _ in range(ROUNDS + 1)]
    return (1 + is_within) * there.nbytes / median(times[1:])


def fits(data: Data) -> Iterator[str]:
    """Yield the lines of the table of fits, each as soon as it is measured."""
    device, n_bytes = data.rows.device, 0

    def counted(blocks: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def counting(*arguments: Any) -> Iterator[Any]:
            nonlocal n_bytes
            for place, block in blocks(*arguments):
                n_bytes += block.nbytes
                yield place, block

        return counting

    limit = copy_rate(device, is_within=True)
    yield f"rows {data.rows.shape}, {FOLDS} folds x {len(GRID)} penalties"
    yield f"{'fits':34} {'seconds':>10} {'GB':>8} {'GB/s':>8} {'limit':>6}"
    yield f"{'copy within the device':54} {limit / 1e9:8.2f} {1:6.1%}"
    yield f"{'copy to the device':54} {copy_rate(device, is_within=False) / 1e9:8.2f}"
    with (
        mock.patch.object(LazyRows, "computed", counted(LazyRows.computed)),
        mock.patch.object(DesignRows, "blocks", counted(DesignRows.blocks)),
    ):
        for name, work in WORKS.items():
            n_bytes = 0
            try:
                taken = seconds(lambda work=work: work(data), device)
            except (RuntimeError, ValueError, TypeError) as error:
                yield f"{name:34} not measured: {str(error).splitlines()[0][:60]}"
                continue
            rate = n_bytes / taken
            numbers = f"{n_bytes / 1e9:8.2f} {rate / 1e9:8.2f} {rate / limit:6.1%}"
            yield f"{name:34} {taken:10.2f} {numbers if n_bytes else ''}".rstrip()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="device of networks and fits")
    parser.add_argument("--only", choices=["capture", "fits"], help="one of the two tables")
    parser.add_argument("--rows", type=int, default=1_000_000, help="number of rows of fits")
    parser.add_argument("--features", type=int, default=4096, help="number of features of fits")
    parser.add_argument("--small", action="store_true", help="small sizes, for a test on a CPU")
    given = parser.parse_args()
    check_device(given.device)
    is_cuda = given.device.startswith("cuda")
    print(torch.cuda.get_device_name(given.device) if is_cuda else f"{given.device}, not a GPU")
    if given.only != "fits":
        for line in captures(given.device, small=given.small):
            print(line)
    if given.only != "capture":
        n_rows, n_features = (4000, 64) if given.small else (given.rows, given.features)
        with tempfile.TemporaryDirectory() as folder:
            data = Data.make(Path(folder) / "rows", n_rows, n_features, given.device)
            for line in fits(data):
                print(line, flush=True)


if __name__ == "__main__":
    main()
