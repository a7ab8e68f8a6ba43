"""The page of several runs: their answers, one curve a run, and a map of runs by layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.errors import ConfigError, DataError
from probekit.report.figures.layer_curve import layer_curve
from probekit.report.figures.style import format_number, plotly_text
from probekit.report.figures.views import curve_rows
from probekit.report.maps.maps import map_cells, map_colours
from probekit.report.maps.text_map import cell_text, text_map
from probekit.report.pages.parts import FigurePart, figure_json, title
from probekit.report.pages.template import render
from probekit.report.sentences.answer import answer, comparison_rows
from probekit.report.sentences.words import colour_words, description
from probekit.results.differences import load_differences, rival_differences
from probekit.results.metrics import metric_name
from probekit.results.record import OLD_RECORD, RunRecord, open_record
from probekit.results.selection import (
    chosen_row,
    main_metric,
    measured_metrics,
    ranked_rows,
    selection,
)
from probekit.results.settings import differing, load_config, run_facts, settings_of
from probekit.results.table import differs, load_table, n_blocks, only, placed, tick

# A name that needs more than so many settings, or characters, tells less than the key of the run.
MOST_SETTINGS = 3
LONGEST_NAME = 60
PROBED = ["run", "probe", "position", "view"]  # what one row of the map has in common
COMPANY = ("control", "random_weights", "word_identity", "majority")


@dataclass(frozen=True)
class RunsTableRow:
    """A row of the page's table: the name of the run, and its cells by the name of the column.

    Of a number that has an interval, this stands below it.
    """

    name: str
    words: Mapping[str, str]
    numbers: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, eq=False)
class ShownRun:
    """A run as the page of several shows it; `name` is no other run's.

    Attributes:
        name: what tells it from the others, in few words.
        record: of its run.json.
        table: the rows of its results.csv.
        settings: by name.
        facts: settings, digests and versions, by name.
        answer: in words.
        warnings: what to know before it is quoted.
    """

    name: str
    record: RunRecord
    table: pd.DataFrame
    settings: Mapping[str, str]
    facts: Mapping[str, str]
    answer: str
    warnings: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """Experiment and key, as the folders of runs are named."""
        return f"{self.record.run}/{self.record.key}"

    @classmethod
    def load(cls, folder: Path) -> ShownRun:
        """Return the run in a folder.

        Raises:
            MissingError: A file of the run is not there.
            DataError: A file of the run cannot be read, or was changed after the run.
        """
        record = open_record(folder)
        table = load_table(folder / "results.csv")
        comparisons = rival_differences(table, load_differences(folder / "differences.csv"))
        config = load_config(folder / "config.yaml")
        return cls(
            record.run,
            record,
            table,
            settings_of(config),
            run_facts(config, record),
            answer(table, comparisons),
            () if record.is_sealed else (OLD_RECORD,),
        )


def load_runs(folders: Sequence[Path]) -> list[ShownRun]:
    """Return the runs in folders, in their order, each under a name of its own.

    Raises:
        MissingError: A file of a run is not there.
        DataError: A file of a run cannot be read, or the runs share no metric.
        ConfigError: A run is given twice.
    """
    runs = [ShownRun.load(folder) for folder in folders]
    names = [run.identity for run in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{twice[0]} is given twice. Give each run once.")
    if len({main_metric(run.table) for run in runs}) > 1:
        metrics = ", ".join(f"{run.identity} {main_metric(run.table)}" for run in runs)
        raise DataError(
            f"These runs are measured by different metrics: {metrics}. Give runs of one metric."
        )
    return [replace(run, name=name) for run, name in zip(runs, _names(runs), strict=True)]


def _names(runs: Sequence[ShownRun]) -> list[str]:
    """Return a name for each run: its experiment, else with the settings that differ, else its key.

    Settings tell a reader what a key does not; but many of them are no name.
    """
    experiments = [run.record.run for run in runs]
    settings = differing([run.settings for run in runs])
    told = [
        [f"{name.rpartition('.')[2]} {values[number]}" for name, values in settings.items()]
        for number in range(len(runs))
    ]
    with_settings = [
        " · ".join([experiment, *own]) for experiment, own in zip(experiments, told, strict=True)
    ]
    is_short = len(settings) <= MOST_SETTINGS and max(map(len, with_settings)) <= LONGEST_NAME
    candidates = [experiments, *([with_settings] if is_short else [])]
    unique = (names for names in candidates if len(set(names)) == len(runs))
    return next(unique, [run.identity for run in runs])


def runs_page(runs: Sequence[ShownRun]) -> str:
    """Return a page of HTML that sets runs side by side; it asks no network."""
    metric = main_metric(runs[0].table)
    rows = [RunsTableRow(run.name, _words(run), _numbers(run)) for run in runs]
    return render(
        "runs.html",
        runs=runs,
        metric=metric_name(metric),
        rows=rows,
        words=list(rows[0].words),
        columns=list(dict.fromkeys(name for row in rows for name in row.numbers)),
        settings=differing([run.facts for run in runs]),
        figures=runs_figures(runs),
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
        f"for the checkpoints of one model. {_probe_words(cells)} {colour_words(cells, metric)}",
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
        f"{plotly_text(row['probe'])} at {plotly_text(row['position'])}<br>"
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
        down=[plotly_text(run).replace(" · ", "<br>") for run in runs],
        title="layer",
    )
    return figure.update_yaxes(title_text=None)


def _residual(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the cells of the line that most runs have, one kind of probe and position a run.

    They are those of a run's highest cross-validated score on the line; without one, the first.
    """
    cells = map_cells(table, metric)
    line = str(cells.groupby("line", sort=False)["run"].nunique().idxmax())
    own, ranked = only(cells, line=line), only(ranked_rows(table), line=line)
    shown = pd.concat([ranked, own])[PROBED].drop_duplicates("run")
    return own.merge(shown, on=PROBED).drop_duplicates(["run", "depth"])


def _probe_words(cells: pd.DataFrame) -> str:
    """Return which kind of probe and position stands for each run of a map."""
    first = cells.drop_duplicates("run")
    kinds = first["probe"] + " at " + first["position"]
    if not differs(kinds):
        return f"Probes: {kinds.iloc[0]}."
    told = "; ".join(f"{run} {kind}" for run, kind in zip(first["run"], kinds, strict=True))
    return f"Of each run the kind of probe and position of its best cross-validated score: {told}."


def _words(run: ShownRun) -> dict[str, str]:
    """Return what the table says of a run in words, by the name of the column."""
    chosen = chosen_row(run.table)
    return {
        "model": run.record.model.source,
        "data": run.record.data.name,
        "chosen": "–" if chosen is None else selection(chosen["site"], chosen["head"]),
    }


def _numbers(run: ShownRun) -> dict[str, tuple[str, str]]:
    """Return the numbers of a run, each with its interval if it has one, by the column's name."""
    chosen = chosen_row(run.table)
    if chosen is None:
        return {}
    company = comparison_rows(chosen, run.table)
    score = company.get("task")
    return {
        metric_name(chosen["metric"]): ("–", "") if score is None else _number(score),
        **{
            target.replace("_", " "): (format_number(company[target]["value"]), "")
            for target in COMPANY
            if target in company
        },
        "test rows": ("–" if score is None else f"{score['n_test']:,.0f}", ""),
    }


def _number(row: pd.Series) -> tuple[str, str]:
    """Return a value, and its interval."""
    value, _, interval = format_number(row["value"], row["ci_low"], row["ci_high"]).partition(" ")
    return value, interval
