"""Scores by layer and training step, from the rows of training.csv."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from probekit.errors import DataError
from probekit.report.figures.style import format_number
from probekit.report.figures.views import step_tables
from probekit.report.maps.maps import layer_map, map_cells
from probekit.report.pages.page import FigurePart
from probekit.report.pages.parts import map_part, title
from probekit.report.sentences.captions import map_caption
from probekit.results.selection import measured_metrics
from probekit.results.table import check_columns, load_table, metric_name
from probekit.results.verdict import Verdict


def load_training(path: Path) -> pd.DataFrame | None:
    """Return the rows of all checkpoints with an integer column `step`; None if no file exists.

    Raises:
        DataError: The file cannot be read, or `step` is missing or not an integer.
    """
    if not path.is_file():
        return None
    table = load_table(path)
    check_columns(table, ["step"], path)
    try:
        return table.assign(step=table["step"].astype(int))
    except ValueError as error:
        raise DataError(f"{path}, column 'step': {error}. Run the experiment again.") from error


def step_parts(table: pd.DataFrame | None, v: Verdict) -> Iterator[FigurePart]:
    """Yield a map of the main metric by layer and step for each series of the layer curve."""
    if table is None:
        return
    metric = v.metric
    for name, rows in step_tables(table):
        if metric in measured_metrics(rows):
            yield map_part(
                f"{title(metric)} by layer and step of training · {name}",
                layer_map(rows, metric, "step"),
                "Each column is a checkpoint, labelled with its training step. "
                + map_caption(rows, v, metric),
                _description(rows, metric),
            )


def _description(rows: pd.DataFrame, metric: str) -> str:
    cells = map_cells(rows, metric).sort_values("value", kind="stable")
    best = cells.iloc[-1]
    return (
        f"{metric_name(metric)} by layer and step of training, {cells['step'].nunique()} "
        f"checkpoints, from {format_number(cells['value'].min())} to "
        f"{format_number(best['value'])}; the highest is at {best['site']} after {best['step']:,} "
        "steps."
    )
