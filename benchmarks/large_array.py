"""Probes of a mapped array that is larger than memory, killed and resumed.

    python -m benchmarks.large_array [--rows 1_830_000 --features 4096 --kind mass_mean --alone]

A sparse .npy file has real values in a share of its rows and zeros elsewhere; two names of it are
two sites. A process probes them, is killed in the second site, and another one resumes. Then a
process probes them without interruption (unless `--alone` is given), and the tables are compared.
"peak" is the largest resident memory of a process, mapped files and libraries included.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import probekit
from benchmarks.large_network import JsonWatcher, lines_of
from probekit.lazy_rows import Codes

REAL_ROWS = 4000  # spread over the file; the others are zeros
GB = 10**9


def labels(n_rows: int) -> Codes:
    """Return the class of each row, 0 or 1."""
    return np.random.default_rng(0).integers(2, size=n_rows)


def write_sites(folder: Path, n_rows: int, n_features: int) -> None:
    """Write the array of the two sites; the classes differ in the first features of real rows."""
    folder.mkdir()
    codes, draw = labels(n_rows), np.random.default_rng(1)
    with (folder / "layer_0.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (n_rows, n_features)}
        np.lib.format.write_array_header_1_0(file, header)
        start = file.tell()
        file.truncate(start + 4 * n_rows * n_features)
        for row in range(0, n_rows, max(1, n_rows // REAL_ROWS)):
            values = draw.standard_normal(n_features, dtype=np.float32)
            values[:8] += 2 * codes[row] - 1
            file.seek(start + 4 * row * n_features)
            file.write(values.tobytes())
    os.link(folder / "layer_0.npy", folder / "layer_1.npy")


def probe(folder: Path, out: Path, n_rows: int, kind: str) -> None:
    """Probe the sites of a folder in this process, and print time and memory."""
    options = {
        "kinds": [{"kind": kind}],
        **({"C": [0.01]} if kind == "logistic" else {}),
        "folds": 2,
        "control_draws": 0,
        "description": False,
        "permutations": 0,
    }
    start = time.process_time()
    probekit.probe(
        folder, labels(n_rows), probe=options, out=out, workers=1, watcher=JsonWatcher(), page=False
    )
    status = Path("/proc/self/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
    print(json.dumps({"seconds": time.process_time() - start, "peak": peak}), flush=True)


def files_of_sites(out: Path) -> dict[str, tuple[int, bytes]]:
    """Return time of change and content of each file with results of a site, by name."""
    return {
        path.name: (path.stat().st_mtime_ns, path.read_bytes())
        for path in out.glob("*/*/sites/**/*")
        if path.is_file() and not path.name.startswith(".")
    }


def main() -> None:
    """Print time and memory of each process, and whether nothing was lost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--kind", default="logistic", help="kind of probe")
    parser.add_argument("--alone", action="store_true", help="no run without an interruption")
    parser.add_argument("--folder", help="folder for the array, instead of the temporary one")
    parser.add_argument("--probe", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.probe:
        folder, out, n_rows, kind = given.probe
        probe(Path(folder), Path(out), int(n_rows), kind)
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        write_sites(folder / "sites", given.rows, given.features)
        print(f"two sites of {given.rows:,} x {given.features} float32", flush=True)

        def start(out: str) -> subprocess.Popen[str]:
            module = [sys.executable, "-m", "benchmarks.large_array", "--probe"]
            command = [*module, str(folder / "sites"), str(folder / out), str(given.rows)]
            return subprocess.Popen([*command, given.kind], stdout=subprocess.PIPE, text=True)

        def finished(out: str) -> None:
            """Probe to the end, and print time and memory."""
            process = start(out)
            last = list(lines_of(process))[-1]
            if process.wait():
                raise SystemExit(process.returncode)
            print(f"{out:8} {last['seconds']:.0f} s, peak {last['peak'] / GB:.2f} GB", flush=True)

        killed = start("resumed")
        for line in lines_of(killed):
            if 1 < line.get("rows", 0) < 2:  # the first site is done, the second is not
                killed.kill()
                break
        if killed.wait() != -9:
            raise SystemExit("The process ended before it was killed.")
        before = files_of_sites(folder / "resumed")
        print(f"killed in the second site, with {len(before)} files of the first", flush=True)
        finished("resumed")
        after = files_of_sites(folder / "resumed")
        is_same = bool(before) and all(after[name] == file for name, file in before.items())
        print(f"the first site was not probed again: {is_same}")
        if not given.alone:
            finished("whole")
            tables = [next(folder.glob(f"{out}/*/*/results.csv")) for out in ("resumed", "whole")]
            is_equal = tables[0].read_bytes() == tables[1].read_bytes()
            print(f"the tables are the same: {is_equal}")
            is_same = is_same and is_equal
        if not is_same:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
