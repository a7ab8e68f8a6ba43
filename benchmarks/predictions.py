"""Predictions of `probekit validate` compared with runs: time of each step, and peak memory.

    python -m benchmarks.predictions [--case mini causes wide ...] [--models FOLDER] [--workers 1]

Each case is validated and run in processes of its own. `mini` and `causes` are included
experiments; `wide` has arrays of 1,000 rows, 4,096 features and 32 layers; each folder of a model
in FOLDER, such as SmolLM2 and Gemma 3, is a case with 1,000 sentences and one network with random
weights. `--sites 5` uses so many of the layers, evenly spaced, of `wide` and of the models.

Seconds are those of the processor, on one thread and by one worker, so that other work on the
machine hardly matters; `--wall` uses a clock and all cores. Memory is the largest resident memory.
Ratios are predictions divided by measurements.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

N_TEXTS, N_LAYERS = 1000, 32
STEPS = ("capture", "probe", "look", "intervene")
NAMES = {"interventions": "intervene"}  # of `validate`, where it differs from that of a run


def write_wide(folder: Path, n_layers: int) -> Path:
    """Write arrays of 1,000 rows and 4,096 features, and an experiment that probes them."""
    import numpy as np

    from benchmarks.usual import N_GROUPS, labelled, power_law

    (folder / "sites").mkdir(parents=True)
    layers = [power_law(1000, 4096, seed) for seed in range(n_layers)]
    for number, X in enumerate(layers):
        np.save(folder / "sites" / f"layer_{number}.npy", X)
    codes = labelled(layers[n_layers // 2], 0)
    groups = np.arange(len(codes)) % N_GROUPS
    lines = [f"{'ab'[code]},{group}" for code, group in zip(codes, groups, strict=True)]
    (folder / "rows.csv").write_text("\n".join(["label,group", *lines]))
    experiment = {
        "name": "wide",
        "activations": {"folder": str(folder / "sites")},
        "data": {"name": "rows", "format": "csv", "file": str(folder / "rows.csv")},
        "split": {"folds": 5},
    }
    experiment["data"]["columns"] = {"label": "label", "group": "group"}  # type: ignore[index]
    (folder / "case.yaml").write_text(json.dumps(experiment))
    return folder / "case.yaml"


def write_texts(folder: Path, model: Path, n_sites: int | None) -> Path:
    """Write sentences of whole groups, and an experiment that reads them with a model."""
    from probekit.experiment.locations import bundled_data

    with bundled_data("sentiment").open() as file:
        rows = list(csv.DictReader(file))
    order = {group: f"{hash_of(group):032x}" for group in {row["group"] for row in rows}}
    rows = sorted(rows, key=lambda row: order[row["group"]])[:N_TEXTS]
    with (folder / "texts.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["text", "label", "group"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    experiment: dict[str, Any] = {
        "name": model.name,
        "model": {"source": str(model), "random_weights": 1},
        "data": {"name": "texts", "format": "csv", "file": str(folder / "texts.csv")},
        "tokens": {"position": {"at": "last"}},
        "split": {"folds": 5},
    }
    experiment["data"]["columns"] = {"text": "text", "label": "label", "group": "group"}
    if n_sites is not None:
        n_layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
        numbers = sorted({number * (n_layers - 1) // (n_sites - 1) for number in range(n_sites)})
        experiment["capture"] = {"sites": [f"blocks.{one}.hook_resid_post" for one in numbers]}
    (folder / "case.yaml").write_text(json.dumps(experiment))
    return folder / "case.yaml"


def hash_of(text: str) -> int:
    """Return a number that depends on a text alone."""
    from hashlib import md5

    return int(md5(text.encode(), usedforsecurity=False).hexdigest(), 16)


def part(name: str, file: str, folder: str, n_workers: int, wall: bool) -> None:
    """Predict the seconds and the memory of an experiment, or run it, and print them as JSON."""
    import resource

    if not wall:
        time.perf_counter = time.process_time  # type: ignore[assignment]
    from probekit.pipeline.experiment import plan, run, validate

    start = time.process_time()
    if name == "predict":
        plan.usable_cores = validate.plan.usable_cores = lambda: n_workers
        report = validate.validate(file)
        seconds = {NAMES.get(step, step): one for step, one in report.seconds.items()}
        memory = report.run_memory
    else:
        run.run(file, out=folder, cache_root=f"{folder}/caches", workers=n_workers, progress=False)
        (record,) = Path(folder).glob("*/*/run.json")
        seconds = json.loads(record.read_text())["seconds"]
        memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spent = time.process_time() - start
    print(json.dumps({"seconds": seconds, "memory": memory, "spent": spent}))


def parts(*arguments: str, wall: bool) -> Iterator[dict[str, Any]]:
    """Yield the predicted numbers, then the measured ones, each from a process of its own."""
    threads = {} if wall else {"OMP_NUM_THREADS": "1"}
    for name in ("predict", "run"):
        command = [sys.executable, "-m", "benchmarks.predictions", "--part", name, *arguments]
        command += ["--wall"] * wall
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | threads
        )
        yield json.loads(done.stdout.splitlines()[-1])


def compare(case: str, file: Path, folder: Path, n_workers: int, wall: bool) -> None:
    """Print the predicted and the measured seconds of each step, the memory, and the ratios."""
    start = time.perf_counter()
    arguments = (str(file), str(folder / "runs"), str(n_workers))
    predicted, measured = parts(*arguments, wall=wall)
    elapsed, load = time.perf_counter() - start, os.getloadavg()[0]
    print(f"{case}: predicted in {predicted['spent']:.1f} s; {elapsed:.0f} s, load {load:.1f}")
    of_run = {step: measured["seconds"][step] for step in STEPS}
    of_steps = [predicted["seconds"].get(step, 0.0) for step in STEPS]
    lines = list(zip(STEPS, of_steps, of_run.values(), strict=True))
    lines.append(("all steps", sum(of_steps), sum(measured["seconds"].values())))
    lines.append(("memory, MB", predicted["memory"] / 1e6, measured["memory"] / 1e6))
    for name, one, two in lines:
        ratio = f"{one / two:6.2f}" if one and two else ""
        print(f"    {name:12} {one:9.1f} {two:9.1f} {ratio}", flush=True)


def main() -> None:
    """Compare all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="+")
    parser.add_argument("--models", type=Path)
    parser.add_argument("--sites", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--part", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        name, file, folder, n_workers = options.part
        part(name, file, folder, int(n_workers), options.wall)
        return
    models = {} if options.models is None else {one.name: one for one in options.models.iterdir()}
    from probekit.experiment.locations import bundled_files

    for case in options.case or ["mini", "causes", "wide", *models]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if case in models:
                file = write_texts(folder, models[case], options.sites)
            elif case == "wide":
                file = write_wide(folder, options.sites or N_LAYERS)
            else:
                file = Path(bundled_files()[{"mini": "quickstart"}.get(case, case)])
            compare(case, file, folder, options.workers, options.wall)


if __name__ == "__main__":
    main()
