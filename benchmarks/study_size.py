"""Time and memory of a study of 113 data sets of 500 sentences on two processes.

`python -m benchmarks.study_size A B FOLDER` draws the data sets from two files with a sentence per
line, one file per label, every fifth with labels in random order. It runs the study on `mini`, each
process with one thread, and prints its time and the largest memory of its processes together.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from scripts.bundled.table import rows_as_csv

CELLS, ROWS = 113, 500
STUDY = """
name: large
question: How much do time and memory grow with the number of data sets?
model: {source: mini}
data: {root: tasks, columns: {text: text, label: label}}
tokens: {bos: false, position: {at: last}}
over: {data: ["*.csv"]}
"""


def write_tasks(files: list[Path], folder: Path, cells: int) -> None:
    """Write the data sets and the file of the study."""
    (folder / "tasks").mkdir(parents=True)
    (folder / "study.yaml").write_text(STUDY)
    lines = [path.read_text("utf-8", "replace").splitlines() for path in files]
    sentences = [(line, str(label)) for label, of_file in enumerate(lines) for line in of_file]
    for number in range(cells):
        generator = random.Random(number)
        texts, labels = map(list, zip(*generator.sample(sentences, ROWS), strict=True))
        if number % 5 == 4:
            generator.shuffle(labels)
        rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
        (folder / "tasks" / f"t{number:03}.csv").write_text(rows_as_csv(("text", "label"), rows))


def resident(number: int) -> int:
    """Return the memory in kB of a process and of all that it has started."""
    found, folder = 0, Path(f"/proc/{number}")
    with suppress(OSError, IndexError):  # it has ended, or ends and has no memory any more
        found = int(re.findall(r"VmRSS:\s*(\d+)", (folder / "status").read_text())[0])
        for path in folder.glob("task/*/children"):
            found += sum(map(resident, map(int, path.read_text().split())))
    return found


def main() -> None:
    """Write the data sets, run the study and print its time and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs=2, metavar="A B")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", type=int, default=CELLS)
    given = parser.parse_args()
    write_tasks(given.files, given.folder, given.cells)
    options = ["--cache", "cache", "--out", "runs", "--workers", "2"]
    command = [sys.executable, "-m", "probekit", "run", "study.yaml", *options]
    start, largest = time.monotonic(), 0
    run = subprocess.Popen(command, cwd=given.folder)
    while run.poll() is None:
        largest = max(largest, resident(run.pid))
        time.sleep(0.2)
    minutes = (time.monotonic() - start) / 60
    print(f"{given.cells} cells: {minutes:.1f} minutes, at most {largest / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
