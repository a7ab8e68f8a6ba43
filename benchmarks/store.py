"""Speed of the store compared with plain files, and memory of a capture by number of rows.

    python -m benchmarks.store [FOLDER]

Writing: 13 sites in shards, compared with one sequential write of the same bytes with fsync.
Reading: 20 times 200 shuffled rows of one of 13 sites, compared with numpy's memmap of one file.
Verifying: the first read of one site with and without checksum verification, relative to the time
of a logistic probe at that site, without control task and description length.
Times are medians of 5 interleaved rounds. Memory: increase of the peak memory of a process that
captures 1,000, 10,000 and 100,000 rows of every token at 4 sites.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import numpy as np

from probekit.activations.store import ActivationStore
from probekit.data.positions import RowPlan
from tests.activations.small_store import IDENTITY

N_ROWS, WIDTH, SHARD = 8192, 768, 4096
SITES = [f"blocks.{layer}.hook_resid_pre" for layer in range(12)] + ["blocks.11.hook_resid_post"]


def write_store(root: Path, values: np.ndarray) -> ActivationStore:
    """Return a store with the same rows at every site, written in batches."""
    n = len(values)
    plan = RowPlan(np.arange(n), np.zeros(n, dtype=np.int64), np.arange(n + 1))
    shards = np.split(np.arange(n), range(SHARD, n, SHARD))
    store = ActivationStore.create(root, IDENTITY, plan, shards)
    for number, rows in enumerate(shards):
        with store.writing(SITES, number) as writers:
            for batch in np.split(values[rows], 16):
                for site in SITES:
                    writers[site].append(batch)
    store.seal()
    return store


def write_plain(path: Path, values: np.ndarray) -> None:
    """Write the same bytes to one file sequentially, with fsync."""
    with path.open("wb") as file:
        for _ in SITES:
            file.write(values.data)
        file.flush()
        os.fsync(file.fileno())


def timed(work: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def writing(folder: Path, values: np.ndarray) -> None:
    """Print the write throughput of the store and of a plain file."""
    times: dict[str, list[float]] = {"plain": [], "store": []}
    for _ in range(5):
        times["plain"].append(timed(lambda: write_plain(folder / "plain", values)))
        times["store"].append(timed(lambda: write_store(folder / "store", values)))
        shutil.rmtree(folder / "store")
    n_bytes = values.nbytes * len(SITES)
    for name, seconds in times.items():
        print(f"writing, {name}: {n_bytes / median(seconds) / 1e6:8.0f} MB/s")
    ratios = [a / b for a, b in zip(times["plain"], times["store"], strict=True)]
    print(f"writing, throughput relative to plain: {median(ratios):.2f} (goal: at least 0.70)")


def reading(folder: Path, values: np.ndarray) -> None:
    """Print the time of the store and of memmap for 20 reads of 200 shuffled rows."""
    store = ActivationStore.open(write_store(folder / "read", values).folder)
    path = folder / "one.bin"
    path.write_bytes(values.tobytes())
    plain = np.memmap(path, dtype=values.dtype, mode="r", shape=values.shape)
    chosen = [np.random.default_rng(n).permutation(N_ROWS)[:200] for n in range(20)]
    times: dict[str, list[float]] = {"memmap": [], "store": []}
    store.read(SITES[3], chosen[0])
    for _ in range(5):
        times["memmap"].append(timed(lambda: [np.asarray(plain[rows]) for rows in chosen]))
        times["store"].append(timed(lambda: [store.read(SITES[3], rows) for rows in chosen]))
    for name, seconds in times.items():
        print(f"reading, {name}: {median(seconds) * 1e3:8.2f} ms")
    ratios = [b / a for a, b in zip(times["memmap"], times["store"], strict=True)]
    print(f"reading, time relative to memmap: {median(ratios):.2f} (goal: at most 2)")


def verifying(folder: Path, values: np.ndarray) -> None:
    """Print the cost of verifying the shards of a site, as a share of the time of probing it."""
    from probekit.probes.data import ProbeData
    from probekit.probes.prober import Prober
    from probekit.probes.settings import ProbeSettings

    folder = write_store(folder / "verified", values).folder
    times: dict[str, list[float]] = {"trusted": [], "verified": []}
    for _ in range(5):
        for name, seconds in times.items():
            store = ActivationStore.open(folder, verify=name == "verified")
            assert len(store.layout.shards)  # verified in both cases
            seconds.append(timed(lambda store=store: store.read(SITES[3])))
    for name, seconds in times.items():
        print(f"first read of a site, {name}: {median(seconds) * 1e3:8.2f} ms")
    generator = np.random.default_rng(1)
    rows = np.arange(len(values))
    labels = np.where(values[:, :9].sum(axis=1) + generator.normal(size=len(rows)) > 0, "a", "b")
    groups = rows // 4
    test = groups % 5 == 0
    words = groups.astype(str)
    data = ProbeData(y=labels, groups=words, types=words, train=rows[~test], test=rows[test])
    settings = ProbeSettings(control_draws=0, description=False)
    probing = timed(lambda: Prober([data], settings).site(values))
    share = max(0.0, median(times["verified"]) - median(times["trusted"])) / probing
    print(f"probing a site: {probing:8.2f} s")
    print(f"verifying, share of the time of probing: {share:.2%} (goal: at most 5%)")


def capture_and_measure(folder: Path, n_rows: int, pipe: Connection) -> None:
    """Capture rows in this process, and send the increase of its peak memory in kB."""
    import torch

    from probekit.activations.capture import Work, fill
    from probekit.model.families.gpt2 import GPT2, GPT2Config

    torch.set_num_threads(1)
    model = GPT2(GPT2Config(n_layer=4, n_head=4, n_embd=256), seed=0).requires_grad_(False)
    sites = [f"blocks.{layer}.hook_resid_post" for layer in range(4)]
    generator = np.random.default_rng(0)

    def run(n: int) -> None:
        lengths = np.full(n // 20, 20)
        tokens = [generator.integers(0, 50257, size=size) for size in lengths]
        plan = RowPlan(
            example=np.repeat(np.arange(len(tokens)), lengths),
            positions=np.tile(np.arange(20), len(tokens)),
            offsets=np.arange(n + 1),
        )
        fill(Work.begin(model, "", tokens, plan, sites, root=folder, dtype="float32"), folder)

    run(400)  # allocations that do not depend on the number of rows
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(n_rows)
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def memory(folder: Path) -> None:
    """Print the increase of peak memory and the size of the written rows, by number of rows."""
    for n_rows in (1_000, 10_000, 100_000):
        receiver, sender = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=capture_and_measure, args=(folder / str(n_rows), n_rows, sender)
        )
        process.start()
        process.join()
        written = n_rows * 4 * 256 * 4
        print(
            f"memory, {n_rows:7,} rows: {receiver.recv() / 1e3:7.1f} MB peak increase, "
            f"{written / 1e6:7.1f} MB written"
        )
        shutil.rmtree(folder / str(n_rows))


def main() -> None:
    """Print one line per measurement."""
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    folder = Path(tempfile.mkdtemp(dir=given))
    values = np.random.default_rng(0).normal(size=(N_ROWS, WIDTH)).astype(np.float32)
    try:
        writing(folder, values)
        reading(folder, values)
        verifying(folder, values)
        memory(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
