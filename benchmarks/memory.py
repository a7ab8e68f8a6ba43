"""Peak memory of captures and probing: predicted by `validate`, and measured.

    python -m benchmarks.memory [--large] [--only NAME ...]

Each case runs in a process of its own: `predicted` is the formula of `validate`, `measured` the
largest resident memory of the process or of one of its workers. `--large` adds networks with the
shape of GPT-2 small and random weights. The temporary folder needs 2 GB then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ALL, LAST = ["blocks.*.hook_resid_post"], ["blocks.2.hook_resid_post"]
MANY = ["blocks.*.hook_resid_post", "blocks.*.mlp.hook_post", "blocks.*.attn.hook_z"]
# By name: model, texts, tokens of a text, sites, and what differs from the defaults below.
CAPTURES: dict[str, tuple[str, int, int, list[str], dict[str, Any]]] = {
    "mini, last token": ("mini", 300, 20, LAST, {}),
    "mini, all tokens": ("mini", 300, 100, MANY, {"at": "all"}),
    "mini, two workers": ("mini", 600, 200, ALL, {"at": "all", "workers": 2}),
    "mini, 16,384 tokens of a batch": ("mini", 300, 100, MANY, {"at": "all", "batch": 16384}),
}
LARGE: dict[str, tuple[str, int, int, list[str], dict[str, Any]]] = {
    "GPT-2, one site": ("gpt2", 100, 50, LAST, {}),
    "GPT-2, all tokens, many sites": ("gpt2", 100, 100, MANY, {"at": "all"}),
    "GPT-2, long texts": ("gpt2", 8, 1000, ALL, {}),
    "GPT-2, bfloat16": ("gpt2", 100, 50, ALL, {"at": "all", "dtype": "bfloat16"}),
    "GPT-2, 16,384 tokens of a batch": ("gpt2", 300, 100, ALL, {"at": "all", "batch": 16384}),
    "GPT-2, untrained networks": ("gpt2", 100, 50, LAST, {"untrained": 2}),
    "GPT-2, block by block": ("gpt2", 100, 100, ALL, {"at": "all", "limit": 550}),
    "GPT-2, block by block, bfloat16, untrained": (
        # Few tokens: products in bfloat16 are slow on processors without instructions for them.
        "gpt2", 20, 100, ALL, {"dtype": "bfloat16", "limit": 280, "untrained": 1, "batch": 1024},
    ),
    "GPT-2, two workers": ("gpt2", 100, 100, ALL, {"at": "all", "workers": 2}),
}  # fmt: skip
# By name: rows, features, classes, and settings of the section `probe`.
PROBES: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "2 classes": (3000, 768, 2, {"control_draws": 0}),
    "control task": (3000, 768, 2, {"control_draws": 3}),
    "17 classes": (3000, 768, 17, {}),
    "17 classes, 8 C, 3 folds": (
        3000, 768, 17, {"C": [1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0], "folds": 3},
    ),
    "4096 features": (2000, 4096, 2, {"control_draws": 0}),
    "4096 features, control task": (2000, 4096, 2, {"control_draws": 3}),
    "one C, 10 folds": (3000, 768, 2, {"C": 1.0, "folds": 10}),
    "mass_mean": (3000, 768, 2, {"kinds": [{"kind": "mass_mean"}]}),
    "svm": (2000, 768, 2, {"kinds": [{"kind": "svm"}]}),
    "mlp": (2000, 768, 2, {"kinds": [{"kind": "mlp"}]}),
}  # fmt: skip


def write_capture(folder: Path, name: str) -> None:
    """Write the experiment of a case, its texts, and its network unless that is `mini`."""
    import random
    import shutil

    from probekit.model.families.gpt2 import PUBLISHED
    from probekit.model.families.table import random_network
    from probekit.model.weights.sources import MINI

    model, n_texts, n_tokens, sites, options = (CAPTURES | LARGE)[name]
    if model != "mini" and not (folder / model).exists():
        random_network(PUBLISHED[model], seed=0).save_pretrained(folder / model)
        for file in ("vocab.json", "merges.txt"):
            shutil.copy(MINI / file, folder / model)
    draw, lines = random.Random(0), ["text,label"]
    for number in range(n_texts):
        # A letter and a space are about one token each.
        text = " ".join(draw.choices("bcdfghjk", k=n_tokens // 2))
        lines.append(f"{text} {number},{'ab'[number % 2]}")
    (folder / "texts.csv").write_text("\n".join(lines) + "\n")
    experiment = {
        "name": "memory",
        "model": {
            "source": model if model == "mini" else str(folder / model),
            "dtype": options.get("dtype", "float32"),
            "random_weights": options.get("untrained", 0),
        },
        "data": {"name": "texts", "format": "csv", "file": str(folder / "texts.csv")},
        "tokens": {"bos": False, "position": {"at": options.get("at", "last")}},
        "capture": {"sites": sites},
        "probe": {"kinds": [{"kind": "mass_mean"}], "control_draws": 0},
    }
    (folder / "case.json").write_text(json.dumps(experiment))


def run_capture(folder: Path, name: str) -> None:
    """Print the predicted memory of a capture, then capture."""
    import resource
    from functools import partial

    import torch

    from probekit.activations import records
    from probekit.activations.capture import capture_bytes
    from probekit.activations.forward import make_batches, make_shards
    from probekit.experiment.loader import make_experiment
    from probekit.memory import PROC, fits_in_memory
    from probekit.model.config import count_parameters
    from probekit.pipeline.capture.captures import capture_only
    from probekit.pipeline.capture.jobs import by_processes
    from probekit.pipeline.engines.table import prepare
    from probekit.terminal import SILENT

    options = (CAPTURES | LARGE)[name][-1]
    records.BATCH_TOKENS["cpu"] = options.get("batch", records.BATCH_TOKENS["cpu"])
    experiment = make_experiment(json.loads((folder / "case.json").read_text()))
    if "limit" in options:
        lines = (PROC / "self/status").read_text().splitlines()
        (used,) = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData")]
        most = used + options["limit"] * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    texts, dtype = prepare(experiment).texts, getattr(torch, experiment.model.dtype)
    batches = make_batches(texts.ids, texts.plan, records.BATCH_TOKENS["cpu"])
    shards = make_shards(batches, records.SHARD_ROWS)
    fits = fits_in_memory(count_parameters(texts.config) * dtype.itemsize)
    print(capture_bytes(texts.config, dtype, texts.sites, shards, in_memory=fits), flush=True)
    n_workers, crew = options.get("workers", 1), None
    if n_workers > 1:
        crew = partial(by_processes, n_workers=n_workers, device="cpu", watcher=SILENT, n_threads=1)
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        capture_only(experiment, cache_root=Path(cache), crew=crew)


def run_probing(folder: Path, name: str) -> None:
    """Probe random activations, and print the predicted memory."""
    import numpy as np

    from probekit.pipeline.experiment.probe import probe
    from probekit.pipeline.measure import probing

    n_rows, d, n_classes, settings = PROBES[name]
    rng, predict = np.random.default_rng(0), probing.probing_bytes
    labels = rng.integers(n_classes, size=n_rows)
    X = rng.standard_normal((n_rows, d), dtype=np.float32)
    X[:, :n_classes] += np.eye(n_classes, dtype=np.float32)[labels]

    def printed(*arguments: Any) -> int:
        predicted = predict(*arguments)
        print(predicted + X.nbytes, flush=True)  # this process holds the activations, too
        return predicted

    probing.probing_bytes = printed
    words = [f"word{number % 200}" for number in range(n_rows)]
    with tempfile.TemporaryDirectory(dir=folder) as out:
        probe(
            {"site": X}, labels, tokens=words, probe={"permutations": 0} | settings, out=out,
            workers=1, progress=False, page=False,
        )  # fmt: skip


def peak_of(part: str, name: str, folder: str) -> tuple[str, int]:
    """Run a part of this module in a process; return its output and its peak memory in bytes."""
    command = [sys.executable, "-m", "benchmarks.memory", "--part", part, name, folder]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return output, usage.ru_maxrss * 1024  # the largest of the process and its workers


def main() -> None:
    """Print the predicted and the measured memory of each case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--large", action="store_true", help="also networks of 124M parameters")
    parser.add_argument("--only", nargs="*", help="names of cases")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        part, name, folder = options.part
        {"write": write_capture, "capture": run_capture, "probe": run_probing}[part](
            Path(folder), name
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or [*CAPTURES, *(LARGE if options.large else ()), *PROBES]:
            if name not in PROBES:
                peak_of("write", name, folder)
            output, measured = peak_of("probe" if name in PROBES else "capture", name, folder)
            predicted = int(output.split()[0])
            print(
                f"{name:43} predicted {predicted / 1e6:7,.0f} MB, measured {measured / 1e6:7,.0f} "
                f"MB, {predicted / measured - 1:+.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
