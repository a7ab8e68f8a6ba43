"""Draws docs/gallery: one picture of each kind of figure, from the shipped experiments.

`python -m benchmarks.gallery [EXPERIMENT.yaml ...]`; runs that are finished are not made again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from probekit.pipeline.run import run
from probekit.report.figure_files import file_names, write_figures
from probekit.report.page import run_figures

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ("quickstart.yaml", "previous_token_heads.yaml")
MOST_BYTES = 2_000_000  # of all pictures together


def main(names: tuple[str, ...]) -> None:
    """Write the pictures and say how large they are."""
    folder, drawn = ROOT / "docs" / "gallery", {}
    for name in names or EXPERIMENTS:
        found = run(ROOT / "experiments" / name, out=ROOT / "runs")
        parts = run_figures(found.folder)
        for title, part in zip(file_names([part.title for part in parts]), parts, strict=True):
            drawn.setdefault(title, part)
    for path in folder.glob("*.svg"):
        path.unlink()
    written = write_figures(list(drawn.values()), folder, ["svg"], columns=1)
    size = sum(path.stat().st_size for path in written)
    if size > MOST_BYTES:
        raise SystemExit(f"{size:,} bytes of pictures are more than {MOST_BYTES:,}.")
    print(f"{len(written)} pictures, {size:,} bytes, in {folder}")


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
