"""Predictions of `probekit plan` compared with runs by several numbers of workers.

    python -m benchmarks.plan [--workers 1 2 4] [--case quickstart given wide]

Each case is planned once for each number of workers, then captured (`probekit cache --workers W`)
and run (`probekit run --workers W`) in a new folder. The measured time of a capture is that of the
command without that of the same command when there is nothing left to compute; the time of probing
is that in run.json. "memory" is the largest resident memory of a process. Ratios are predictions
divided by measurements. Nothing else should run on the machine.

For given activations, the time of a hundred such sites is predicted for up to 64 workers, each with
a core, from the measured time of a site.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from probekit.experiment.loader import load_any_experiment
from probekit.experiment.locations import bundled_files
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.experiment.plan import Machines, plan_run, scheduled, task_seconds
from probekit.pipeline.measure.probing import make_probers

# Rows and features of each site of given activations, and their number.
SIZES = {"given": (40_000, 512, 12), "wide": (4_000, 4096, 6)}


def write_given(folder: Path, n_rows: int, n_features: int, n_sites: int) -> Path:
    """Write arrays with similar rows in each group, and with a label in a few directions."""
    draw = np.random.default_rng(0)
    stories, codes = draw.integers(n_rows // 10, size=n_rows), draw.integers(2, size=n_rows)
    of_story = draw.standard_normal((n_rows // 10, n_features), dtype=np.float32)
    (folder / "sites").mkdir(parents=True)
    for site in range(n_sites):
        X = draw.standard_normal((n_rows, n_features), dtype=np.float32) + of_story[stories]
        X[:, :8] += 0.3 * (2 * codes[:, None] - 1)
        np.save(folder / "sites" / f"layer_{site}.npy", X)
    lines = [f"{'ab'[code]},{story}" for code, story in zip(codes, stories, strict=True)]
    (folder / "rows.csv").write_text("\n".join(["label,group", *lines]))
    path = folder / "given.yaml"
    path.write_text(
        "name: given\nactivations: {folder: sites}\n"
        "data: {name: rows, format: csv, file: rows.csv, columns: {label: label, group: group}}\n"
    )
    return path


def command(*words: object) -> tuple[float, int]:
    """Return the seconds of a command of probekit, and the largest memory of its processes."""
    script = (
        "import resource, subprocess, sys;"
        "subprocess.run([sys.executable, '-m', 'probekit', *sys.argv[1:]], check=True,"
        "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, words)], check=True, capture_output=True, text=True
    )
    return time.perf_counter() - start, 1024 * int(done.stdout)


def compare(file: Path, n_workers: int, folder: Path) -> None:
    """Print a line of predictions, measurements and their ratios."""
    numbers = plan_run(load_any_experiment(file), Machines(workers=n_workers))
    hours = numbers["hours"]
    words = ("--cache", folder / "caches")
    cells = [f"{n_workers:7}"]
    if "capture" in hours:
        several = () if n_workers == 1 else ("--workers", n_workers)
        capture = ("cache", file, *several, *words)
        (all_seconds, _), (start, _) = command(*capture), command(*capture)
        cells.append(compared(3600 * hours["capture"], all_seconds - start))
        there = [path for path in (folder / "caches").rglob("*") if path.is_file()]
        sizes = len(there), sum(path.stat().st_size for path in there)
        cells.append("exact" if sizes == (numbers["files"], numbers["bytes"]) else f"{sizes}")
    else:
        cells += [f"{'':24}", f"{'':5}"]
    _, peak = command(
        "run", file, "--workers", n_workers, "--out", folder / "runs", "--no-page", *words
    )
    (record,) = folder.glob("runs/*/*/run.json")
    cells.append(
        compared(3600 * hours["probing"], json.loads(record.read_text())["seconds"]["probe"])
    )
    cells.append(compared(numbers["memory"] / 1e6, peak / 1e6))
    print("  ".join(cells), flush=True)


def simulate(file: Path) -> None:
    """Print the predicted time of a hundred sites like those of given activations."""
    source = prepare(load_any_experiment(file))
    probers = make_probers(source.experiment, source.design)
    baselines, site, *_ = task_seconds(source, probers).tasks
    tasks = [baselines, *[site] * 100]
    print("workers  100 sites, seconds  times as fast")
    for n_workers in (1, 2, 4, 8, 16, 32, 64):
        seconds = scheduled(tasks, n_workers, n_workers)
        print(f"{n_workers:7}  {seconds:18.1f}  {sum(tasks) / seconds:13.1f}")


def compared(predicted: float, measured: float) -> str:
    """Return both numbers and their ratio."""
    return f"{predicted:8.1f} {measured:8.1f} {predicted / measured:6.2f}"


def main() -> None:
    """Compare all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--case", nargs="+", default=["quickstart", *SIZES])
    options = parser.parse_args()
    for case in options.case:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            file = bundled_files().get(case) or write_given(folder, *SIZES[case])
            print(
                f"{case}: predicted, measured, ratio\nworkers  {'capture, seconds':24}  files  ",
                end="",
            )
            print(f"{'probing, seconds':24}  memory, MB")
            for n_workers in options.workers:
                compare(Path(file), n_workers, folder / str(n_workers))
                shutil.rmtree(folder / str(n_workers))
            if case in SIZES:
                simulate(Path(file))


if __name__ == "__main__":
    main()
