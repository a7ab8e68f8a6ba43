"""Page of several runs: their main results, a layer curve per run, and a heat map of all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import pandas as pd

from probekit.amounts import format_number
from probekit.errors import ConfigError, DataError
from probekit.report.causes.cause_words import run_answers
from probekit.report.elements import page
from probekit.report.elements.style import plotly_text
from probekit.report.elements.table import Cell, Column, ResultTable
from probekit.report.elements.texts import MachinePaths
from probekit.report.figures.layer_curve import curve_figure, facets_height
from probekit.report.figures.line_labels import NULL_BAND
from probekit.report.figures.maps import cell_map, colour_words, map_cells, map_colours
from probekit.report.figures.views import curve_rows
from probekit.report.pages.compare_page import settings_section
from probekit.report.pages.parts import title
from probekit.report.sentences.answer import nested_line
from probekit.report.sentences.captions import description
from probekit.report.sentences.comparisons import chosen_words
from probekit.results.causes import open_causes
from probekit.results.comparison import differing, run_facts, run_titles, settings_of
from probekit.results.record import RunRecord, check_finished, load_config, open_record
from probekit.results.scores import Scores
from probekit.results.table import differs, metric_name, only, ticks
from probekit.results.verdict import Verdict

MAP_ROW = ["run", "probe", "position", "view"]  # columns that are constant in a row of the map
SELECTED = (
    "Values on held-out rows, with 95 % intervals; each site was selected by cross-validation on "
    "training rows."
)
RINGS = "A ring marks the site that each run selected by cross-validation on its training rows."
REFERENCES = ("control", "random_weights", "word_identity", "majority")


@dataclass(frozen=True, eq=False)
class ShownRun:
    """A run on a page of several runs.

    Attributes:
        name: title of the run, unique on the page.
        folder: path of its folder.
        record: contents of its run.json, without folders of the machine.
        scores: its scores.
        settings: settings that affect the results, by name.
        facts: settings, digests and versions, by name, without folders of the machine.
        answer: main results, in one line.
    """

    name: str
    folder: Path
    record: RunRecord
    scores: Scores
    settings: Mapping[str, str]
    facts: Mapping[str, str]
    answer: str

    @property
    def verdict(self) -> Verdict:
        """The verdict of the run."""
        return self.record.verdict

    @property
    def identity(self) -> str:
        """Experiment and key, as in the run's folder NAME/KEY."""
        return f"{self.record.run}/{self.record.key}"

    @classmethod
    def load(cls, folder: Path) -> ShownRun:
        """Return the run in a folder.

        Raises:
            MissingError: A file of the run is missing.
            DataError: A file of the run cannot be read, or was changed after the run.
        """
        check_finished(folder)
        record = open_record(folder)
        config = load_config(folder / "config.yaml")
        paths = MachinePaths.of(config, record.model.source)
        facts = run_facts(config, record)
        return cls(
            name=record.run,  # `load_runs` makes it unique
            folder=folder,
            record=paths.hide_in(record),
            scores=Scores.load(folder / "results.csv"),
            settings=settings_of(config),
            facts={name: paths.hide(text) for name, text in facts.items()},
            answer=" ".join(run_answers(open_causes(folder), record)),
        )


def load_runs(folders: Sequence[Path]) -> list[ShownRun]:
    """Return the runs in the given folders, in the same order, each with a unique title.

    Raises:
        MissingError: A file of a run is missing.
        DataError: A file of a run cannot be read, or the runs have different main metrics.
        ConfigError: A run is given twice.
    """
    runs = [ShownRun.load(folder) for folder in folders]
    for one, other in combinations(runs, 2):
        if one.identity == other.identity:
            raise ConfigError(
                f"One run is given twice: {one.folder} and {other.folder} have the same key. Give "
                "each run once."
            )
    titles = run_titles([(run.record, run.settings) for run in runs])
    named = [replace(run, name=name) for run, name in zip(runs, titles, strict=True)]
    if len({run.verdict.metric for run in named}) > 1:
        metrics = ", ".join(f"{run.name}: {run.verdict.metric}" for run in named)
        raise DataError(
            f"These runs have different main metrics ({metrics}). Give runs with the same metric."
        )
    return named


def runs_page(runs: Sequence[ShownRun]) -> str:
    """Return a self-contained HTML page that compares several runs."""
    metric = metric_name(runs[0].verdict.metric)
    experiment = ", ".join(dict.fromkeys(run.record.run for run in runs))
    questions = {run.record.question for run in runs}
    common = next(iter(questions)) if len(questions) == 1 else None  # the question of all runs
    answers = [
        # Below each answer its question, unless all runs have the same one.
        (
            one.name,
            Cell(
                page.unbroken(one.answer), [("" if common else one.record.question or "", "note")]
            ),
        )
        for one in runs
    ]
    names = [run.name for run in runs]
    folders = page.Pairs([(run.name, run.identity) for run in runs])
    # The table of the selected sites.
    numbers = [_numbers(run) for run in runs]
    columns = list(dict.fromkeys(name for cells in numbers for name in cells))
    texts = [Column(name, "words", "names") for name in ("model", "data", "chosen")]
    rows = [
        (
            run.name,
            run.record.model.source,
            run.record.data.name,
            chosen_words(run.verdict),
            *(cells.get(name, "–") for name in columns),
        )
        for run, cells in zip(runs, numbers, strict=True)
    ]
    headings: list[Column | str] = [Column("run", "words"), *texts, *columns]
    selected = ResultTable("Table of selected sites", headings, rows, is_sortable=True)
    return page.Page(
        eyebrow=["probekit", experiment, f"{len(runs):,} runs", metric],
        title=common or f"Comparison of {len(runs):,} runs",
        answer="",
        details=[page.Pairs(answers, css="verdicts")],
        sections=[
            *(page.PageSection(part.title, [part]) for part in runs_figures(runs)),
            page.PageSection("Selected sites", [selected, page.Paragraph(SELECTED, "note")]),
            settings_section(names, differing([run.facts for run in runs])),
            page.PageSection("", [page.Fold("Folders of the runs", [folders])]),
        ],
        head=f"{experiment}: {len(runs):,} runs by {metric}",
    ).html()


def runs_figures(runs: Sequence[ShownRun]) -> list[page.FigurePart]:
    """Return the layer curves of several runs and, if they share a kind of site, a heat map.

    The list is empty if the main metric has no score at single sites.
    """
    # Columns in which runs may differ are made equal: the title of a run has its differences.
    tables = [
        curve_rows(run.scores).rows.assign(run=run.name, model="", dataset="", seed=0)
        for run in runs
    ]
    table, metric = pd.concat(tables, ignore_index=True), runs[0].verdict.metric
    # The page has control task and random weights in a table.
    scores = Scores.of(table[~table["target"].isin(["control", "random_weights"])])
    if metric not in scores.metrics:
        return []
    named = named_by_run(scores)
    drawn = curve_figure(named, metric)
    null = ""
    if any(trace.legendgroup == NULL_BAND for trace in drawn.data):
        null = "Grey band: 95 % of the scores under exchanged labels, over all runs of a panel. "
    nested = [run.verdict for run in runs if run.verdict.is_nested]
    marks = [RINGS] if len(nested) < len(runs) else []
    if nested and marks:
        marks.append("Runs with a nested cross-validation have a line instead.")
    # One sentence for all of them: that of the first one with a line.
    lines = [line for line in map(nested_line, nested) if line]
    marks += lines[:1]
    curve = page.FigurePart(
        f"{title(metric)} by layer and run",
        page.figure_json(drawn),
        "Score of each run; horizontal lines are baselines that do not use the model. "
        f"{null}{' '.join(marks)} Runs may have "
        "different test rows; use probekit compare to test the differences of two runs.",
        description(named, metric),
        height=facets_height(drawn),
    )
    cells = _cells_of_common_line(scores, metric)
    if not differs(cells["run"]):  # no two runs probed the same kind of site
        return [curve]
    depths = sorted(cells["depth"].unique())
    first = cells.drop_duplicates("run")
    kinds = first["probe"] + " at " + first["position"]
    probes = f"Probes: {kinds.iloc[0]}."
    if differs(kinds):
        listed = "; ".join(f"{run} {kind}" for run, kind in zip(first["run"], kinds, strict=True))
        probes = (
            f"Each run with the probe and position of its best cross-validated score: {listed}."
        )
    hover = [
        f"<b>{plotly_text(row['run'])}</b><br>{plotly_text(row['site'])}<br>"
        f"{plotly_text(row['probe'])} at {plotly_text(row['position'])}<br>"
        f"{metric_name(metric)}: {format_number(row['value'], row['ci_low'], row['ci_high'])}"
        for _, row in cells.iterrows()
    ]
    labels = ticks(cells)
    heat_map = cell_map(
        cells.assign(hover=hover),
        map_colours(cells),
        down=("run", {run: plotly_text(run).replace(" · ", "<br>") for run in cells["run"]}),
        across=("depth", {depth: plotly_text(labels[int(depth)]) for depth in depths}),
        title="layer",
    )
    by_layer = page.FigurePart(
        f"{title(metric)}, runs by layers",
        page.figure_json(heat_map.update_yaxes(title_text=None)),
        f"One row per run, for the kind of site that most runs probed: {cells['line'].iloc[0]}. "
        f"{probes} {colour_words(cells)}",
        "; ".join(
            f"{run}: {', '.join(map(format_number, of_run['value']))}"
            for run, of_run in cells.groupby("run", sort=False)
        ),
        height=8 + 2.5 * max(len(runs), 3),
    )
    return [curve, by_layer]


def named_by_run(scores: Scores) -> Scores:
    """Return the scores with one probe, position and view in all runs if each run has only one.

    This is decided for each of the three columns by itself. Lines are then named by the titles of
    the runs, which contain settings that differ. At least one run must have a single site.
    """
    sited, equal = scores.sited, scores.rows.copy()
    of_runs = [of_run for _, of_run in sited.groupby("run")]
    for column in ("probe", "position", "view"):
        if not any(differs(of_run[column]) for of_run in of_runs):
            equal.loc[sited.index, column] = sited[column].iloc[0]
    return Scores(equal)


def _cells_of_common_line(scores: Scores, metric: str) -> pd.DataFrame:
    """Return one cell per run and layer, for the kind of site that most runs probed.

    Runs that did not probe it have no cell. Of sites with the same depth, such as resid_pre of a
    block and resid_post of the block before, the first is kept.

    Each run is shown with one kind of probe, position and view: those of its best cross-validated
    score at these sites, or the first ones if it has no such score.
    """
    cells = map_cells(scores, metric)
    line = str(cells.groupby("line", sort=False)["run"].nunique().idxmax())
    at_line, ranked = only(cells, line=line), only(scores.ranked, line=line)
    # The first row of each run: its best one, or without scores the first cell.
    shown = pd.concat([ranked, at_line])[MAP_ROW].drop_duplicates("run")
    return at_line.merge(shown, on=MAP_ROW).drop_duplicates(["run", "depth"])


def _numbers(run: ShownRun) -> dict[str, Cell | str]:
    """Return the numbers of a run, by column name; {} if no site was chosen."""
    v = run.verdict
    if not v.is_chosen:
        return {}
    cells: dict[str, Cell | str] = {metric_name(v.metric): Cell("–")}
    if v.score is not None:
        text = format_number(v.score.value, v.score.ci_low, v.score.ci_high)
        value, _, limits = text.partition(" ")
        cells[metric_name(v.metric)] = Cell(value, [(limits, "")])
    for target in REFERENCES:
        if target in v.rivals:
            cells[target.replace("_", " ")] = format_number(v.rivals[target].value)
    return cells | {"test rows": "–" if v.score is None else f"{v.score.n:,}"}
