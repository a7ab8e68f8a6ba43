"""The result of a run in Python: its answer, table and figures, and how a notebook shows them."""

from __future__ import annotations

import base64
import math
import textwrap
from collections.abc import Mapping
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from probekit.chosen.page import Shown
from probekit.chosen.registry import TABLES
from probekit.errors import ConfigError, MissingError, UnknownNameError, nearest, path_of
from probekit.probes.score.metric_table import METRICS
from probekit.report.elements.page import FigurePart, figure_json, render
from probekit.report.elements.table import ResultTable
from probekit.report.elements.texts import MachinePaths
from probekit.report.figures.figure_files import REM, SavedFigure, file_names
from probekit.report.pages.parts import result_parts
from probekit.report.pages.run_page import run_answers, run_caveats, run_figures
from probekit.report.sentences.tables import NO_SCORE, comparison_table, in_words
from probekit.results import record as records
from probekit.results.causes import CauseTables
from probekit.results.scores import Scores
from probekit.results.study import STUDY_RECORD, StudyResult
from probekit.results.table import SERIES, load_table, metric_name, only, page_table, row_tick
from probekit.results.verdict import HeadlineScore, Verdict

PLOTLY_TYPE = "application/vnd.plotly.v1+json"
WIDTH, HEIGHT = 760, 400  # pixels of the picture
TEXT_WIDTH = 100  # characters
MOST_POINTS = 16  # of the layer curve in the text


class ResultFigure(SavedFigure):
    """Plotly figure of a run, which can be changed like any other.

    JupyterLab and VS Code draw it with Plotly. Viewers without Plotly, such as HTML that nbconvert
    writes, show a picture.
    """

    # IPython would prefer Plotly's own methods, which leave no picture for nbconvert.
    _ipython_display_ = None
    _repr_html_ = None

    @classmethod
    def of(cls, part: FigurePart) -> ResultFigure:
        """Return the figure of a part of a page."""
        figure = cls(part.figure)
        texts = {"title": part.title, "caption": part.caption, "description": part.description}
        figure.update_layout(meta=texts)
        if part.height is not None:
            figure.update_layout(height=round(REM * part.height))
        return figure

    @property
    def title_text(self) -> str:
        """The heading of the figure on the page of the run."""
        return self._meta("title")

    @property
    def caption(self) -> str:
        """What the figure shows, with its intervals and baselines."""
        return self._meta("caption")

    def _meta(self, name: str) -> str:
        meta = self.layout.meta
        return str(meta.get(name, "")) if isinstance(meta, dict) else ""

    def _repr_mimebundle_(self, *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        """Return the figure for Plotly's renderer, a picture and a text."""
        png = self.to_image("png", width=WIDTH, height=self.layout.height or HEIGHT)
        picture = {"image/png": base64.b64encode(png).decode()}
        return {PLOTLY_TYPE: figure_json(self), "text/plain": repr(self)} | picture

    def __repr__(self) -> str:
        return f"{self.title_text}. {self._meta('description')}"


def _table_of(file: str) -> cached_property[pd.DataFrame | None]:
    """Return a property with the rows of a file of a run; None without this file."""
    return cached_property(lambda result: page_table(result.folder, file))


class RunResult:
    """A finished run, whose files are read when they are needed.

    Notebooks show the answer, the layer curve and the warnings; elsewhere `print` shows them as
    text. `probekit.run` returns it, and `probekit.open_run` opens the folder of an earlier run.

    Args:
        folder: the folder of the run, `<out>/<name>/<key>`, with config.yaml, run.json and the
            files of the other attributes.

    Attributes:
        sources: the rows of sources.csv, the worst source first; None without `split.leave_out`.
        monitor: the thresholds of the monitor, a row per false positive rate; None without one.
        negatives: the scores of the monitor's negatives, a row each; None without one.
        stack: the scores of the stack of all sites, a row per metric; None without a stack.
        leakage: the scores on test texts without cues, a row per metric; None without `leakage`.
        left: what the probe adds to `confounds`, in one row; None without any.
        unasked: the columns of the data that the experiment does not use; None without any.
        cascade: cost and TPR of words, then the site, then the stack; None without a cascade.
        aggregation: the rules of an aggregated probe, a row each; None for another selected probe.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = path_of("folder", folder)

    @property
    def results(self) -> Path:
        """The path of results.csv."""
        return self.folder / "results.csv"

    @property
    def report(self) -> Path | None:
        """The path of report.html; None if no page was written."""
        page = self.folder / "report.html"
        return page if page.exists() else None

    @cached_property
    def table(self) -> pd.DataFrame:
        """The rows of results.csv; empty cells are "" in text columns and NaN in number columns."""
        return load_table(self.results)

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """Each predicted test row, with what the reported probe and its rivals predict for it.

        See predictions.csv in the reference. Rows without a guess are left out, unless no probe
        has any row by row.
        """
        table = page_table(self.folder, "predictions.csv")
        if table is None:
            problem = f"{self.folder} has no predictions.csv: it is of an earlier version."
            raise MissingError(f"{problem} Run the experiment again.")
        if "guess" not in table:
            return table
        table, as_numbers = table[table["guess"] != ""].copy(), ["fold"]
        as_numbers += table.filter(regex="^score_").columns.tolist()
        if METRICS[self._record.verdict.metric].fits("number", ()):
            as_numbers += table.filter(regex="^(truth$|guess)").columns.tolist()
        table[as_numbers] = table[as_numbers].replace("", "nan").astype(float)
        if table["line"].str.isdecimal().all():
            table["line"] = table["line"].astype(int)
        return table

    sources = _table_of("sources.csv")
    monitor = _table_of("monitor.csv")
    negatives = _table_of("negatives.csv")
    stack = _table_of("stack.csv")
    leakage = _table_of("leakage.csv")
    left = _table_of("left.csv")
    unasked = _table_of("unasked.csv")
    cascade = _table_of("cascade.csv")
    aggregation = _table_of("aggregation.csv")

    @cached_property
    def record(self) -> Mapping[str, Any]:
        """The contents of run.json."""
        return self._record.model_dump()

    @property
    def answer(self) -> str:
        """The first sentence of `answers`."""
        return self.answers[0]

    @cached_property
    def answers(self) -> tuple[str, ...]:
        """The sentences on interventions and analyses, if any, then that on the score."""
        return tuple(one.text for one in run_answers(self._shown))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each reason to doubt the result, most serious first."""
        config = records.load_config(self.folder / "config.yaml")
        paths = MachinePaths.of_run(config, self._record.model.source)
        return tuple(paths.hide(str(one)) for one in run_caveats(self._shown))

    @property
    def figures(self) -> tuple[str, ...]:
        """The names of the figures of the page, in its order; `figure` returns one of them."""
        return tuple(part.title for part in self._parts)

    def figure(self, name: str | None = None) -> ResultFigure:
        """Return a figure of the page, as a Plotly figure.

        Args:
            name: one of `figures`, or its file name such as `accuracy-by-layer`; case does not
                matter. None for the first one, which is the layer curve if there is one.

        Raises:
            UnknownNameError: the run has no figure of this name, or no figure of its scores if the
                name is None; or the name is not a text.
        """
        part = self._curve
        if name is None:
            if part is None:
                raise UnknownNameError("This run has no layer curve. See `figures` for the others.")
        elif not isinstance(name, str):
            raise UnknownNameError(
                f"A figure is given by its name, not {name!r}. {nearest('', self.figures)}"
            )
        elif part is None or name.casefold() != part.title.casefold():
            by_name = {part.title.casefold(): part for part in self._parts}
            by_name |= dict(zip(file_names(self.figures), self._parts, strict=True))
            part = by_name.get(name.casefold())
            if part is None:
                near = nearest(name, self.figures)
                raise UnknownNameError(f"This run has no figure {name!r}. {near}")
        return ResultFigure.of(part)

    @property
    def _shown(self) -> Shown:
        return Shown(self.folder, self._record)

    @cached_property
    def _record(self) -> records.RunRecord:
        records.check_finished(self.folder)
        return records.open_record(self.folder)

    @cached_property
    def _curve(self) -> FigurePart | None:
        """The first figure of the scores, mostly the layer curve, drawn without the others."""
        scores, record = Scores.of(self.table), self._record
        return next(result_parts(scores, record.verdict, record.control), None)

    @cached_property
    def _parts(self) -> list[FigurePart]:
        """All figures of the page."""
        return run_figures(self.folder)

    @property
    def _compared(self) -> ResultTable | None:
        return comparison_table(self._record.verdict, self._record.control)

    @property
    def best(self) -> HeadlineScore | None:
        """The reported score, with `site`, `value`, `ci_low`, `ci_high`, `chance` and `p`.

        It is that of the chosen site on the test rows; with outer folds, that of the pooled
        predictions of each fold's own choice. None if no site was chosen, or without a test row.
        """
        return self._record.verdict.score

    def _ipython_display_(self) -> None:
        """Show the answer and the warnings, then the layer curve."""
        from IPython import display as ipython

        display: Any = ipython.display  # it has no types
        display({"text/html": self._repr_html_(), "text/plain": repr(self)}, raw=True)
        if self._curve is not None:
            display(ResultFigure.of(self._curve))

    def _repr_html_(self) -> str:
        shown: dict[str, Any] = {"answers": self.answers, "warnings": self.warnings}
        shown |= {"run": self._record.run, "question": self._record.question}
        compared = self._compared and in_words(self._compared)
        return render("run_card.html", **shown, compared=compared, report=self.report)

    def __repr__(self) -> str:
        """Return the result as about ten lines of text."""
        wrapped = partial(textwrap.wrap, width=TEXT_WIDTH, subsequent_indent="  ")
        lines = [f"Run {self._record.run}: {self._record.question or 'no question'}"]
        lines += chain.from_iterable(map(wrapped, self.answers))
        lines += _curve_lines(Scores.of(self.table), self._record.verdict)
        rows = self._compared.rows if self._compared else ()
        rivals = ", ".join(f"{name} {score}" for name, score, *_ in rows if score != NO_SCORE)
        lines += wrapped(f"Compared with: {rivals}.") if rivals else []
        if self.warnings:
            number = len(self.warnings)
            # About two lines together with the words before it.
            first = textwrap.shorten(self.warnings[0], 2 * TEXT_WIDTH - 20, placeholder=" …")
            lines += wrapped(f"{number} warning{'s' if number > 1 else ''} (.warnings): {first}")
        lines += [f"Page: {self.report}" if self.report else f"Folder: {self.folder}"]
        tables = [name for file in TABLES if (name := Path(file).stem) in vars(RunResult)]
        more = [f".{name}" for name in tables if (self.folder / f"{name}.csv").exists()]
        lines += [", ".join(["Also: .table", *more, ".figure()", ".figures", ".record"])]
        return "\n".join(lines)


def open_run(folder: Path | str) -> RunResult | StudyResult | CauseTables:
    """Return the result of an earlier run, given its folder.

    Of interventions without probes (`probekit.intervene`) it returns their tables, of a study its
    result.

    Args:
        folder: the folder of the run, `<out>/<name>/<key>`, or of a study, `<out>/<name>`.

    Raises:
        ConfigError: `folder` is not a path.
        MissingError: the folder does not exist or contains no finished run.
    """
    if isinstance(folder, RunResult):
        raise ConfigError(
            "folder is a RunResult, so the run is open. Use it as it is, or give its `folder`."
        )
    path = path_of("folder", folder, "Give the folder of a run, `<out>/<name>/<key>`.")
    if records.has_causes_alone(path):
        return CauseTables.open(path)
    if (path / STUDY_RECORD).exists():
        return StudyResult(path)
    records.check_finished(path)
    return RunResult(path)


def _curve_lines(scores: Scores, v: Verdict) -> list[str]:
    """Return the main score by layer as text, for the series of the chosen site.

    Without a choice, it is the series of the first test row. Of more than `MOST_POINTS` layers,
    only every n-th one is written; without test rows there is no text.
    """
    test = only(scores.sited, target="task", metric=v.metric, split="test")
    if v.best is not None:
        # The rows of the chosen site come first.
        names = {"site", "head", "position", "probe", "view"}
        place = v.best.model_dump(include=names, exclude_none=True)
        test = pd.concat([only(test, **place), test])
    if test.empty:
        return []
    first = test.iloc[0]
    series = only(test, **{column: first[column] for column in SERIES})
    series = series.drop_duplicates("depth").sort_values("depth")
    step = math.ceil(len(series) / MOST_POINTS)
    name = metric_name(v.metric)
    lines, ticks, values = [f"{name[:1].upper()}{name[1:]} by layer:"], "", ""
    # Two lines of text at a time: ticks, and below each of them its value.
    for _, row in series[::step].iterrows():
        tick, value = row_tick(row, scores.blocks), f"{row['value']:.2f}"
        width = 2 + max(len(tick), len(value))
        if ticks and len(ticks) + width > TEXT_WIDTH:
            lines, ticks, values = [*lines, ticks, values], "", ""
        ticks, values = ticks + tick.rjust(width), values + value.rjust(width)
    return [*lines, ticks, values]
