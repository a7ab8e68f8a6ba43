"""The page of several runs: their answers, one curve a run, and a map of runs by layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from probekit.errors import ConfigError, DataError
from probekit.report.answer import answer, company_of
from probekit.report.differences import compare, load_differences
from probekit.report.figures import layer_curve
from probekit.report.maps import map_cells, map_colours
from probekit.report.parts import FigurePart, figure_json, title
from probekit.report.record import RunRecord, changed_files, load_record
from probekit.report.settings import differing, facts_of, load_config
from probekit.report.style import format_number, metric_name, plotly_text
from probekit.report.table import (
    chosen_row,
    differs,
    load_table,
    main_metric,
    measured_metrics,
    n_blocks,
    only,
    placed,
    selection,
    tick,
)
from probekit.report.template import render
from probekit.report.text_map import cell_text, text_map
from probekit.report.views import curve_rows
from probekit.report.words import description

COMPANY = ("control", "random_weights", "word_identity", "majority")


@dataclass(frozen=True, eq=False)
class ShownRun:
    """A run as the page of several shows it; `name` is no other run's.

    Attributes:
        name: experiment and key.
        record: of its run.json.
        table: the rows of its results.csv.
        facts: settings, digests and versions, by name.
        answer: in words.
        warnings: what to know before it is quoted.
    """

    name: str
    record: RunRecord
    table: pd.DataFrame
    facts: Mapping[str, str]
    answer: str
    warnings: tuple[str, ...] = ()

    @classmethod
    def load(cls, folder: Path) -> ShownRun:
        """Return the run in a folder.

        Raises:
            MissingError: A file of the run is not there.
            DataError: A file of the run cannot be read.
        """
        table, record = load_table(folder / "results.csv"), load_record(folder / "run.json")
        comparisons = compare(table, load_differences(folder / "differences.csv"))
        changed = [f"{name} was changed after the run." for name in changed_files(folder, record)]
        name = f"{record.run}/{record.key}"
        facts = facts_of(load_config(folder / "config.yaml"), record)
        return cls(name, record, table, facts, answer(table, comparisons), tuple(changed))


def load_runs(folders: Sequence[Path]) -> list[ShownRun]:
    """Return the runs in folders, in their order.

    Raises:
        MissingError: A file of a run is not there.
        DataError: A file of a run cannot be read, or the runs share no metric.
        ConfigError: A run is given twice.
    """
    runs = [ShownRun.load(folder) for folder in folders]
    names = [run.name for run in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{twice[0]} is given twice. Give each run once.")
    if len({main_metric(run.table) for run in runs}) > 1:
        metrics = ", ".join(f"{run.name} {main_metric(run.table)}" for run in runs)
        raise DataError(
            f"These runs are measured by different metrics: {metrics}. Give runs of one metric."
        )
    return runs


def runs_page(runs: Sequence[ShownRun]) -> str:
    """Return a page of HTML that sets runs side by side; it asks no network."""
    metric = main_metric(runs[0].table)
    return render(
        "runs.html",
        runs=runs,
        metric=metric_name(metric),
        rows=[_cells(run) for run in runs],
        settings=differing([run.facts for run in runs]),
        figures=runs_figures(runs),
        plotly_js=Markup(get_plotlyjs()),
    )


def runs_figures(runs: Sequence[ShownRun]) -> list[FigurePart]:
    """Return the figures of several runs, those that their rows can fill."""
    table = joined_table(runs)
    metric = main_metric(table)
    if metric not in measured_metrics(table):
        return []
    curve = FigurePart(
        f"{title(metric)} by layer and run",
        figure_json(layer_curve(table, metric)),
        "The task of each run; horizontal lines are what is known without the network. A ring "
        "marks the site that each run chose by cross-validation on its training rows. Runs on "
        "other test rows differ by those too: probekit compare says which differences of two "
        "runs hold.",
        description(table, metric),
    )
    cells = _residual(table, metric)
    if not differs(cells["run"]):  # no two runs probed the same part
        return [curve]
    by_layer = FigurePart(
        f"{title(metric)}, runs by layers",
        figure_json(run_map(table, metric)),
        f"The part of the blocks that most runs probed, {cells['line'].iloc[0]}, one row a run, as "
        "for the checkpoints of one model.",
        "; ".join(
            f"{run}: {', '.join(format_number(value) for value in own['value'])}"
            for run, own in cells.groupby("run", sort=False)
        ),
        height=8 + 2.5 * max(len(runs), 3),
    )
    return [curve, by_layer]


def joined_table(runs: Sequence[ShownRun]) -> pd.DataFrame:
    """Return what the curves of all runs are drawn from: the task, and guesses without a network.

    Every row names its run and key; control and random weights stand in the table of the page.
    """
    tables = [
        curve_rows(run.table).assign(run=run.name, model="", dataset="", seed=0) for run in runs
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[~table["target"].isin(["control", "random_weights"])]


def run_map(table: pd.DataFrame, metric: str) -> go.Figure:
    """Return the figure of a metric on the test rows for each run (down) and layer (across).

    Raises:
        UnknownNameError: The table has no test rows of this metric.
    """
    cells = _residual(table, metric)
    runs = list(dict.fromkeys(cells["run"]))
    depths = sorted(cells["depth"].unique())
    at = ([runs.index(run) for run in cells["run"]], [depths.index(d) for d in cells["depth"]])
    values = np.full((len(runs), len(depths)), np.nan)
    values[at] = cells["value"]
    hover = np.full(values.shape, "", dtype=object)
    hover[at] = [
        f"<b>{plotly_text(row['run'])}</b><br>{row['site']}<br>"
        f"{metric_name(metric)}: {format_number(row['value'], row['ci_low'], row['ci_high'])}"
        for _, row in cells.iterrows()
    ]
    blocks = n_blocks(placed(table))
    figure = text_map(
        values,
        [cell_text(value) for value in values.ravel()],
        hover.ravel().tolist(),
        map_colours(cells, metric),
        across=[tick(int(depth), blocks) for depth in depths],
        down=[plotly_text(run) for run in runs],
        title="layer",
    )
    return figure.update_yaxes(title_text=None)


def _residual(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the cells of the line that most runs have, one kind of probe and position a run."""
    cells = map_cells(table, metric)
    line = cells.groupby("line", sort=False)["run"].nunique().idxmax()
    own = only(cells, line=str(line))
    return own.drop_duplicates(["run", "depth"])


def _cells(run: ShownRun) -> dict[str, str]:
    """Return what the table says of a run, by the name of the column."""
    record, chosen = run.record, chosen_row(run.table)
    about = {"model": record.model.source, "data": record.data.name}
    if chosen is None:
        return about | {"chosen": "–"}
    company = company_of(chosen, run.table)
    score = company.get("task")
    return {
        **about,
        "chosen": selection(chosen["site"], chosen["head"]),
        metric_name(chosen["metric"]): "–" if score is None else _number(score),
        **{
            target.replace("_", " "): format_number(company[target]["value"])
            for target in COMPANY
            if target in company
        },
        "test rows": "–" if score is None else f"{score['n_test']:,.0f}",
    }


def _number(row: pd.Series) -> str:
    return format_number(row["value"], row["ci_low"], row["ci_high"])
