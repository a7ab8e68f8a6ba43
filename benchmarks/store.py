"""The store beside plain files, and the memory of a capture as the data grow.

    python -m benchmarks.store [FOLDER]

Writing: 13 sites in shards, beside one plain sequential write of the same bytes with fsync.
Reading: 20 times 200 shuffled rows of one site of 13, beside numpy's memmap of one plain file.
Verifying: the first read of one site with its shards digested and without, beside the time that a
logistic probe takes at that site, without control task and description length.
All are interleaved, medians of 5 rounds. Memory: the most that a process held beyond what it
began with, while it captured 1,000, 10,000 and 100,000 rows of every token at 4 sites.
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

from probekit.activations.identity import Identity
from probekit.activations.store.store import ActivationStore
from probekit.data.positions import RowPlan

N_ROWS, WIDTH, SHARD = 8192, 768, 4096
SITES = [f"blocks.{layer}.hook_resid_pre" for layer in range(12)] + ["blocks.11.hook_resid_post"]
IDENTITY = Identity(
    weights="",
    config={},
    tokenizer="",
    tokens="",
    rows="",
    dtype="float32",
    compute="float32",
    device="cpu",
    torch="",
    code="",
)


def write_store(root: Path, values: np.ndarray) -> ActivationStore:
    """Return a store whose every site has the same rows, written batch by batch."""
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
    """Write the same bytes one after the other, and wait until they are on the disk."""
    with path.open("wb") as file:
        for _ in SITES:
            file.write(values.data)
        file.flush()
        os.fsync(file.fileno())


def timed(work: Callable[[], object]) -> float:
    """Return how long a call takes, in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def writing(folder: Path, values: np.ndarray) -> None:
    """Print the throughput of both."""
    times: dict[str, list[float]] = {"plain": [], "store": []}
    for _ in range(5):
        times["plain"].append(timed(lambda: write_plain(folder / "plain", values)))
        times["store"].append(timed(lambda: write_store(folder / "store", values)))
        shutil.rmtree(folder / "store")
    n_bytes = values.nbytes * len(SITES)
    for name, seconds in times.items():
        print(f"writing, {name}: {n_bytes / median(seconds) / 1e6:8.0f} MB/s")
    ratios = [a / b for a, b in zip(times["plain"], times["store"], strict=True)]
    print(f"writing, throughput beside plain: {median(ratios):.2f} (goal: at least 0.70)")


def reading(folder: Path, values: np.ndarray) -> None:
    """Print how long both take for 20 times 200 shuffled rows."""
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
    print(f"reading, time beside memmap: {median(ratios):.2f} (goal: at most 2)")


def verifying(folder: Path, values: np.ndarray) -> None:
    """Print what it costs to digest the shards of a site before they are read and probed."""
    from probekit.probes.curve import Prober
    from probekit.probes.data import ProbeData
    from probekit.probes.settings import ProbeSettings

    place = write_store(folder / "verified", values).folder
    times: dict[str, list[float]] = {"trusted": [], "verified": []}
    for _ in range(5):
        for name, seconds in times.items():
            store = ActivationStore.open(place, verify=name == "verified")
            assert len(store.layout.shards)  # is digested in both cases
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


def capture_and_tell(folder: Path, n_rows: int, pipe: Connection) -> None:
    """Capture rows in a process of its own, and tell how far its memory grew."""
    import torch

    from probekit.activations.capture import capture
    from probekit.model.config import GPT2Config
    from probekit.model.gpt2 import GPT2

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
        capture(model, "", tokens, plan, sites, root=folder)

    run(400)  # what is there anyway
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(n_rows)
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def memory(folder: Path) -> None:
    """Print the peak memory beyond the beginning, beside the size of what was written."""
    for n_rows in (1_000, 10_000, 100_000):
        here, there = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=capture_and_tell, args=(folder / str(n_rows), n_rows, there)
        )
        process.start()
        process.join()
        written = n_rows * 4 * 256 * 4
        print(
            f"memory, {n_rows:7,} rows: {here.recv() / 1e3:7.1f} MB more at the peak, "
            f"{written / 1e6:7.1f} MB written"
        )
        shutil.rmtree(folder / str(n_rows))


def main() -> None:
    """Print one line for each number."""
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
