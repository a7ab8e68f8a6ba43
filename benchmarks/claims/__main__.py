"""Command of the simulations; see the package's description."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import pandas as pd

from benchmarks.claims import (
    association,
    comparisons,
    edges,
    estimates,
    false_alarms,
    folds,
    intervals,
    left,
    monitors,
    outputs,
    strata,
    unasked,
    unlike,
)
from benchmarks.claims.designs import designs
from benchmarks.claims.rates import simulate
from benchmarks.claims.table import write_claims

# Cases, rows of a case, and number of draws of each part.
PARTS = {
    "association": (designs, association.rows, 2000),
    "differences": (comparisons.cases, comparisons.rows, 2000),
    "intervals": (intervals.cases, intervals.rows, 1000),
    "unlike": (unlike.cases, unlike.rows, 1000),
    "edges": (edges.cases, edges.rows, 400),
    "folds": (folds.cases, folds.rows, 1000),
    "false_alarms": (false_alarms.cases, false_alarms.rows, 80),
    "monitors": (monitors.cases, monitors.rows, 1000),
    "estimates": (estimates.cases, estimates.rows, 200),
    "left": (left.cases, left.rows, 200),
    "strata": (strata.cases, strata.rows, 400),
    "unasked": (unasked.cases, unasked.rows, 400),
    "outputs": (outputs.cases, outputs.rows, 150),
}


def main() -> None:
    """Simulate the requested parts and write the page."""
    parser = argparse.ArgumentParser(description="Simulate the statistical claims.")
    parser.add_argument(
        "--part", choices=PARTS, action="append", help="part to simulate; repeatable"
    )
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the draws")
    parser.add_argument("--draws", type=int, help="number of draws, instead of the part's own")
    parser.add_argument(
        "--folder", type=Path, default=Path("claims"), help="folder of the CSV files"
    )
    parser.add_argument("--page", type=Path, help="Markdown page to write, such as docs/claims.md")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, pd.DataFrame] = {}
    for part in chosen.part or PARTS:
        cases, rows, draws = PARTS[part]
        draws = chosen.draws or (draws // 50 if chosen.quick else draws)
        tables[part] = simulate(chosen.folder / f"{part}.csv", cases(), partial(rows, draws=draws))
    if chosen.page:
        write_claims(chosen.page, tables)


if __name__ == "__main__":
    main()
