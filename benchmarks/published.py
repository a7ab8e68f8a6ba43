"""Run the lesson on a published model as it is written, and draw its figures again.

    python -m benchmarks.published FOLDER [--work FOLDER]

FOLDER is SmolLM2-135M-Instruct, saved by transformers. The files and commands are the blocks of the
lesson, in its order; finished runs in the folder of --work are reused.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
LESSON = ROOT / "docs" / "lessons" / "published_model.md"
FIGURES = LESSON.parent / "published"
BLOCK = re.compile(r"^```(yaml|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Figures that the commands write next to the runs, and those of each run that the lesson shows.
WRITTEN = ("head.svg", "lens.svg")
OF_RUNS = {
    "number": {"accuracy-by-layer": "accuracy-by-layer"},
    "by_block": {
        "recovery-by-layer-patches-at-the-last-token": "recovery-by-layer",
        "recovery-by-layer-and-head-attn-z-patches-at-the-last-token": "recovery-by-head",
    },
    "alarm": {"scores-by-label": "scores-by-label"},
}


def main() -> None:
    """Run the blocks, and copy the figures into the lesson."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("--work", type=Path, help="folder of runs (default: a temporary one)")
    given = parser.parse_args()
    with TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        for name, target in (("smollm2", given.model.resolve()), ("data", ROOT / "data")):
            (work / name).unlink(missing_ok=True)
            (work / name).symlink_to(target)
        _run_blocks(work)
        FIGURES.mkdir(exist_ok=True)
        for name in WRITTEN:
            shutil.copy(work / name, FIGURES)
        for run, figures in OF_RUNS.items():
            (folder,) = (work / "runs" / run).iterdir()
            _run(f"probekit report {folder} --figures svg", work)
            for figure, name in figures.items():
                shutil.copy(folder / "figures" / f"{figure}.svg", FIGURES / f"{name}.svg")


def _run_blocks(work: Path) -> None:
    """Write each experiment of the lesson, and run its commands but the download."""
    for language, block in BLOCK.findall(LESSON.read_text(encoding="utf-8")):
        if language == "yaml":
            name = block.partition("\n")[0].removeprefix("name: ")
            (work / f"{name}.yaml").write_text(block, encoding="utf-8")
        elif not block.startswith("hf "):
            _run(block, work)


def _run(commands: str, work: Path) -> None:
    """Run commands of a shell, with those of this environment first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    subprocess.run(["sh", "-ec", commands], cwd=work, env=environment, check=True)


if __name__ == "__main__":
    main()
