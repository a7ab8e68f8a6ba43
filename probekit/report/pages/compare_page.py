"""Pages that compare runs: the differences of two runs, and the results of several ones."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import counted, format_difference, format_number, format_p, joined_names
from probekit.chosen.page import Shown
from probekit.errors import ConfigError, DataError
from probekit.probes.score.metric_table import METRICS
from probekit.report.elements import page, style
from probekit.report.elements.style import TEMPLATE, error_bars, plotly_text, series_marker
from probekit.report.elements.table import Cell, Column, ResultTable
from probekit.report.elements.texts import MachinePaths
from probekit.report.figures.layer_curve import curve_figure, facets_height
from probekit.report.figures.line_labels import NULL_BAND, name_traces
from probekit.report.figures.maps import cell_map, colour_words, map_cells, map_colours
from probekit.report.figures.views import curve_rows
from probekit.report.pages.further_figures import at_site, scores_part
from probekit.report.pages.parts import title
from probekit.report.pages.run_page import run_answers, run_caveats
from probekit.report.sentences import comparisons
from probekit.report.sentences.answer import score_texts
from probekit.report.sentences.captions import description
from probekit.report.sentences.comparisons import chosen_words, site_words
from probekit.report.sentences.tables import TESTED
from probekit.results.comparison import (
    RunComparison,
    both_places,
    differing,
    run_facts,
    run_titles,
    settings_of,
)
from probekit.results.judging import INTERVAL
from probekit.results.record import RunRecord, check_finished, load_config, open_record
from probekit.results.scores import Scores
from probekit.results.site_results import NESTED_SITE
from probekit.results.table import by_depth, differs, metric_name, only, ticks

MOST_LINES = 12  # with more lines, such as single heads, only the table is shown
_LINE = ["line", "probe", "position_a"]  # columns that are constant in a line of the figure
SELECTED_PROBE = "selected probes"
METHOD = (
    "p is two-sided, and adjusted for all comparisons of the page. So is the interval of the "
    "answer; those of tables and figures are not, and exclude 0 exactly if p is below 0.05 before "
    "the adjustment.",
    "Nothing was fitted again: the predictions of both runs for their test rows were compared.",
)
SETTINGS = (
    "Settings, input digests and versions that are not equal in all runs; names, questions and "
    "folders are ignored."
)
_STEP = 0.06  # in layers, from the error bars of one line to those of the next
MAP_ROW = ["run", "probe", "position", "view"]  # columns that are constant in a row of the map
SELECTED = (
    "Values on held-out rows, with 95 % intervals; each site was selected by cross-validation on "
    "training rows."
)
# Whether outer folds chose the sites of a run -> what marks them in its curve.
MARKS = {
    False: "Rings mark the sites that runs selected by cross-validation on their training rows.",
    True: "Runs whose outer folds chose sites have a line at the score of these choices.",
}
REFERENCES = ("control", "random_weights", "word_identity", "majority")


def comparison_page(comparison: RunComparison) -> page.Page:
    """Return a page with figure, tables and the settings that differ.

    There is no figure if it would have no line, or more than `MOST_LINES`.
    """
    sites = comparison.sites
    main = comparison.rows[comparison.rows["what"] != "site"]
    names, metric = comparison.names, metric_name(comparison.metric)
    paths = MachinePaths.of([list(texts) for texts in comparison.settings.values()])
    settings = {name: list(map(paths.hide, texts)) for name, texts in comparison.settings.items()}
    sections: list[page.Item] = []
    items: list[page.Item] = [*forest_part(comparison, main)]
    if len(main):
        items.append(_table(comparison, main, "Selected probes and baselines"))
    items += [page.Paragraph(note, "note") for note in comparison.notes]
    if items:
        sections.append(page.PageSection("", items, "screen"))
    lines = difference_lines(comparison)
    has_figure = 0 < len(lines[_LINE].drop_duplicates()) <= MOST_LINES
    if has_figure:
        part = page.FigurePart(
            f"Difference of {metric} by layer",
            page.figure_json(difference_figure(comparison)),
            f"{' minus '.join(names)}, with 95 % intervals of the {comparison.pairing} differences "
            "over groups. Filled markers: significant after adjustment for all comparisons; hollow "
            "markers: not significant.",
            f"Difference of {metric} by layer. "
            + " ".join(
                f"{both_places(row)}: {format_number(row['difference'])}"
                f"{' (significant).' if row['holds'] else '.'}"
                for _, row in lines.iterrows()
            ),
        )
        sections.append(page.PageSection(part.title, [part]))
    if len(sites):
        title = f"{counted(len(sites), 'comparison')} of the same site in both runs"
        table = _table(comparison, sites, "Comparisons by site")
        sections.append(page.PageSection("", [page.Fold(title, [table], is_open=not has_figure)]))
    settings_differ = comparisons.settings_words(names, settings)
    eyebrow = ("probekit", "comparison of two runs", comparison.experiment, metric)
    return page.Page(
        eyebrow=[text for text in eyebrow if text],
        title=comparisons.comparison_question(comparison),
        answer=comparisons.comparison_answer(comparison),
        details=[page.Paragraph(settings_differ)] if settings_differ else [],
        sections=[*sections, settings_section(names, settings)],
        caveats=comparisons.comparison_warnings(comparison),
        method=[comparison.verdict, *METHOD],
        head=" and ".join(names),
    )


def forest_part(comparison: RunComparison, main: pd.DataFrame) -> Iterator[page.FigurePart]:
    """Yield the differences of the selected probes and baselines with intervals, if any."""
    # A baseline that guesses as the majority class does in both runs compares the data alone.
    scores = main[["value_a", "value_b"]]
    is_constant = scores.eq(scores[main["target"] == "majority"].max()).all(axis=1)
    rows = main[main["ci_low"].notna() & ~is_constant]
    if rows.empty:
        return
    names, minus = list[str](), "\N{NO-BREAK SPACE}−\N{NO-BREAK SPACE}"
    for _, row in rows.iterrows():
        both = (format_number(row[name]) for name in ("value_a", "value_b"))
        names.append(f"{_place(row)}: {minus.join(both)}")
    estimates = rows[["difference", "ci_low", "ci_high"]].to_numpy().tolist()
    yield scores_part(
        comparison.metric,
        f"of {' minus '.join(comparison.names)} (filled: significant)",
        {},
        dict(zip(names, estimates, strict=True)),
        "Scores of both runs, and their difference. Filled: significant after adjustment for all "
        "comparisons.",
        unit=f"difference of {metric_name(comparison.metric)}",
        filled=list(compress(names, rows["holds"])),
    )


def settings_section(
    names: Sequence[str], settings: Mapping[str, Sequence[str]]
) -> page.PageSection:
    """Return the section with the settings that differ between runs.

    Args:
        names: titles of the runs.
        settings: the values of each setting in these runs, by its name.
    """
    title = "Settings that differ"
    if not settings:
        equal = page.Paragraph("All settings, input digests and versions are equal.")
        return page.PageSection(title, [equal])
    columns = [Column("setting"), *(Column(name, "value", "title") for name in names)]
    rows = [(name, *values) for name, values in settings.items()]
    inputs = [row for row in rows if row[0].startswith(comparisons.INPUTS)]
    own = [row for row in rows if row not in inputs]
    items: list[page.Item] = [ResultTable(title, columns, own)] if own else []
    if inputs:
        of_inputs = f"Digests and versions that differ ({len(inputs)})"
        items.append(page.Fold(of_inputs, [ResultTable(of_inputs, columns, inputs)]))
    return page.PageSection(title, [*items, page.Paragraph(SETTINGS, "note")])


def _table(comparison: RunComparison, rows: pd.DataFrame, title: str) -> ResultTable:
    """Return the table of these comparisons; the sites of the selected probes are in a badge."""
    names = (Column(name, form="title") for name in comparison.names)
    cells = list[Sequence[Cell | str]]()
    for _, row in rows.iterrows():
        result = [(comparisons.result_words(row), "verdict")]
        is_single = row["what"] == "chosen" and NESTED_SITE not in (row["site_a"], row["site_b"])
        sites = both_places(row) if is_single else ""
        p = Cell(format_p(row["p_adjusted"]), result, is_strong=row["holds"])
        numbers = (format_number(row[name]) for name in ("value_a", "value_b"))
        difference = format_difference(row["difference"], row["ci_low"], row["ci_high"])
        place = Cell(_place(row), [(sites, "badge")])
        cells.append((place, *numbers, Cell.number(difference), p))
    return ResultTable(
        title,
        ("probe", *names, *TESTED),
        cells,
        css="compact stacked",
        chosen=[index for index, what in enumerate(rows["what"]) if what == "chosen"],
    )


def _place(row: pd.Series) -> str:
    """Return the name of the compared probes, which is `SELECTED_PROBE`, a baseline or a site."""
    return SELECTED_PROBE if row["what"] == "chosen" else both_places(row)


def difference_lines(comparison: RunComparison) -> pd.DataFrame:
    """Return the rows that compare the same site in both runs, with `depth`, `line` and `probe`.

    The probe has both names if they differ. Nested choices are left out. Sites of given
    activations, which have no `hook_` in their names, form one line, in their order.
    """
    rows = comparison.rows[comparison.rows["site_a"].ne(NESTED_SITE)]
    same = rows[rows["site_a"].notna() & (rows["site_a"] == rows["site_b"])].copy()
    named = same["site_a"].str.extract(r"^(?P<site>.*?)(?:\[head=(?P<head>\d+)\])?$")
    same["site"], same["head"] = named["site"], named["head"].astype(float)
    is_given = ~same["site"].astype(str).str.contains("hook_", regex=False)
    if is_given.any():
        # The pair of selected probes comes first, and its site again in its place.
        places = same["site"].drop_duplicates(keep="last").tolist()
        order = same["site"].map(places.index).where(is_given)
        same = same.assign(order=order, component="given", layer=math.nan)
    both = zip(same["probe_a"], same["probe_b"], strict=True)
    same["probe"] = [" | ".join(dict.fromkeys(pair)) for pair in both]
    return by_depth(same)


def difference_figure(comparison: RunComparison) -> go.Figure:
    """Return the figure of differences by depth, with a line per kind of site, probe and position.

    The comparison must have a row of `difference_lines`.
    """
    rows = difference_lines(comparison)
    figure = go.Figure(layout={"template": TEMPLATE})
    figure.add_hline(y=0, line=style.CHANCE_LINE)
    series = rows.groupby(_LINE, sort=False)
    for number, (names, points) in enumerate(series):
        marker = series_marker(number + 1, 9)
        hollow = f"{marker['symbol']}-open"
        symbols = np.where(points["holds"], marker["symbol"], hollow).tolist()
        figure.add_scatter(
            x=(points["depth"] + _STEP * number).tolist(),
            y=points["difference"].tolist(),
            error_y=error_bars(points, "difference", 1.5),
            mode="lines+markers",
            line={"color": marker["color"], "width": 1.5},
            marker={"size": 9, "symbol": symbols, "line": {"width": 2}},
            name=plotly_text(" · ".join(map(str, names))),
            hovertext=[_hover(row, comparison.names) for _, row in points.iterrows()],
            hoverinfo="text",
        )
    depths, labels = sorted(set(rows["depth"])), ticks(rows)
    is_given = "order" in rows and rows["order"].notna().all()
    figure.update_xaxes(
        title_text="site" if is_given else "layer",
        range=[depths[0] - 0.3, depths[-1] + _STEP * len(series) + 0.2],
        tickvals=depths,
        ticktext=[labels[depth] for depth in depths],
    )
    figure.update_yaxes(title_text=f"difference of {metric_name(comparison.metric)}")
    name_traces(figure)
    return figure


def _hover(row: pd.Series, runs: tuple[str, str]) -> str:
    """Return the hover text of a comparison; `runs` are the titles of both runs."""
    a, b = map(plotly_text, runs)
    return (
        f"<b>{plotly_text(both_places(row))}</b><br>{a} {format_number(row['value_a'])}, "
        f"{b} {format_number(row['value_b'])}<br>"
        f"difference {format_number(row['difference'], row['ci_low'], row['ci_high'])}<br>"
        f"adjusted p {format_p(row['p_adjusted'])}: {comparisons.result_words(row)}"
    )


@dataclass(frozen=True, eq=False)
class ShownRun:
    """A run on a page of several runs.

    Attributes:
        name: title of the run, unique on the page.
        record: contents of its run.json, without folders of the machine.
        scores: its scores.
        facts: settings, digests and versions, by name, without folders of the machine.
        answer: the first sentence of its answer, or why it is not valid.
        is_above: whether it is valid and its score significantly above chance.
    """

    name: str
    record: RunRecord
    scores: Scores
    facts: Mapping[str, str]
    answer: str
    is_above: bool


def load_runs(folders: Sequence[Path]) -> list[ShownRun]:
    """Return the runs in the given folders, in the same order, each with a unique title.

    Raises:
        MissingError: A file of a run is missing.
        DataError: A file of a run cannot be read, or the runs have different main metrics.
        ConfigError: A run is given twice.
    """
    runs, settings, seen = list[ShownRun](), [], dict[str, Path]()
    for folder in folders:
        check_finished(folder)
        record, config = open_record(folder), load_config(folder / "config.yaml")
        paths = MachinePaths.of(config, record.model.source)
        facts = {name: paths.hide(text) for name, text in run_facts(config, record).items()}
        scores = Scores.load(folder / "results.csv")
        shown = Shown(folder, paths.hide_in(record))
        answers, warnings = run_answers(shown), run_caveats(shown)
        answer = answers[0].text.partition("; the folds chose ")[0].removesuffix(".") + "."
        for one in warnings[:1]:  # this page does not have it
            answer = answer.replace("see the first warning.", one.message)
        # The last sentence is that of the probe, which is `bad` if the data invalidate it.
        is_above = record.verdict.case in ("yes", "not better") and not answers[-1].css
        runs.append(ShownRun(record.run, shown.record, scores, facts, answer, is_above))
        settings.append((record, settings_of(config)))
        first = seen.setdefault(_identity(runs[-1]), folder)
        if len(seen) < len(runs):
            raise ConfigError(
                f"One run is given twice: {first} and {folder} have the same key. Give each run "
                "once."
            )
    runs = [replace(run, name=name) for run, name in zip(runs, run_titles(settings), strict=True)]
    if len({run.record.verdict.metric for run in runs}) > 1:
        metrics = ", ".join(f"{run.name}: {run.record.verdict.metric}" for run in runs)
        raise DataError(
            f"These runs have different main metrics ({metrics}). Give runs with the same metric."
        )
    return runs


def _identity(run: ShownRun) -> str:
    """Return experiment and key of a run, as in its folder NAME/KEY."""
    return f"{run.record.run}/{run.record.key}"


def runs_page(runs: Sequence[ShownRun]) -> str:
    """Return a self-contained HTML page that compares several runs."""
    metric = metric_name(runs[0].record.verdict.metric)
    experiment = ", ".join(dict.fromkeys(run.record.run for run in runs))
    questions = {run.record.question for run in runs}
    common = next(iter(questions)) if len(questions) == 1 else None  # the question of all runs
    answers = []
    for one in runs:  # below each name its question, unless all runs have the same one
        asked = "" if common else one.record.question or ""
        answers.append((Cell(one.name, [(asked, "")]), page.unbroken(one.answer)))
    table = ResultTable("Answers", [Column("run", "words"), Column("answer", "value")], answers)
    names, first = [run.name for run in runs], runs_figures(runs)
    folders = page.Pairs([(run.name, _identity(run)) for run in runs])
    # The table of the selected sites.
    numbers = [_numbers(run) for run in runs]
    columns = list(dict.fromkeys(name for cells in numbers for name in cells))
    texts = [Column(name, "words", "names") for name in ("model", "data", "chosen")]
    rows = [
        (
            run.name,
            run.record.model.source,
            run.record.data.name,
            chosen_words(run.record.verdict),
            *(cells.get(name, "–") for name in columns),
        )
        for run, cells in zip(runs, numbers, strict=True)
    ]
    headings: list[Column | str] = [Column("run", "words"), *texts, *columns]
    selected = ResultTable("Table of selected sites", headings, rows, is_sortable=True)
    return page.Page(
        eyebrow=["probekit", experiment, f"{len(runs):,} runs", metric],
        title=common or f"Comparison of {len(runs):,} runs",
        answer=_extremes(runs),
        sections=[
            page.PageSection("", [*first[:1], table], "screen"),
            *(page.PageSection(part.title, [part]) for part in first[1:]),
            page.PageSection("Selected sites", [selected, page.Paragraph(SELECTED, "note")]),
            settings_section(names, differing([run.facts for run in runs])),
            page.PageSection("", [page.Fold("Folders of the runs", [folders])]),
        ],
        head=f"{experiment}: {len(runs):,} runs by {metric}",
    ).html()


def _extremes(runs: Sequence[ShownRun]) -> str:
    """Return how many runs are above chance, the range of scores, and which curves are equal."""
    verdicts = {run.name: run.record.verdict for run in runs}
    scores = {n: v.score for n, v in verdicts.items() if v.score and not math.isnan(v.score.value)}
    metric = METRICS[runs[0].record.verdict.metric]
    ordered = sorted(scores, key=lambda name: scores[name].value * metric.sign)
    curves: dict[tuple[float, ...], list[str]] = {}
    for name, v in verdicts.items():
        curves.setdefault(tuple(round(value, 9) for value in v.curve), []).append(name)
    untested, text = ("untested", "too few groups"), ""
    n_tested = sum(verdicts[name].case not in untested for name in scores)
    if ordered:
        runs_tested = counted(n_tested, "run" if n_tested == len(runs) else "tested run")
        n_above = f"Above chance in {sum(run.is_above for run in runs)} of {runs_tested}"
        chances = {score.chance for score in scores.values()}
        shares = [scores[ordered[0]].value, scores[ordered[-1]].value, min(chances)]
        (worst, best, chance), unit = score_texts(shares, metric.in_percent)
        level = f", chance {chance}{unit}." if len(chances) == 1 and chance != "nan" else "."
        lead = n_above if n_tested else "Not tested against chance"
        text = f"{lead}: {metric.title} {worst}{unit}"
        if worst != best:
            level += " Differences are not tested here."
            lowest, highest = (
                joined_names([name for name in ordered if scores[name].value == scores[end].value])
                for end in (ordered[0], ordered[-1])
            )
            text += f" ({lowest}) to {best}{unit} ({highest})"
        text += level
    equal = [joined_names(names) for curve, names in curves.items() if curve and names[1:]]
    return text + "".join(f" The curves of {names} are equal." for names in equal)


def _forest(runs: Sequence[ShownRun]) -> Iterator[page.FigurePart]:
    """Yield the figure of the reported scores and of other kinds at the same sites, if any."""
    rows, own, metric = dict[str, list[float]](), list[str](), runs[0].record.verdict.metric
    scored = [(run, v, v.score) for run in runs if (v := run.record.verdict).score]
    chances = {score.chance for *_, score in scored if not math.isnan(score.chance)}
    for run, v, score in scored:
        if math.isnan(score.value):
            continue
        level = f", chance {format_number(score.chance)}" if len(chances) > 1 else ""
        own.append(f"{run.name}: {site_words(v)}{level}")
        rows[own[-1]] = [score.value, score.ci_low, score.ci_high]
        kinds = {} if v.best is None or v.is_nested else at_site(run.scores, metric, v.best)
        kinds.pop(score.probe, None)
        rows |= {f"{run.name}: {kind}": row[INTERVAL].tolist() for kind, row in kinds.items()}
    if rows:
        has_others = len(rows) > len(own)
        of = "by run" + " (filled: selected probe)" * has_others
        caption = SELECTED + " Grey: other kinds of probe at the same site." * has_others
        chance = chances.pop() if len(chances) == 1 else math.nan
        yield scores_part(metric, of, rows, {}, caption, chance, filled=own)


def runs_figures(runs: Sequence[ShownRun]) -> list[page.FigurePart]:
    """Return the scores of several runs, their layer curves, and a heat map if they share sites.

    There are neither curves nor map if the main metric has no score at single sites.
    """
    # Columns in which runs may differ are made equal: the title of a run has its differences.
    tables = [
        curve_rows(run.scores).rows.assign(run=run.name, model="", dataset="", seed=0)
        for run in runs
    ]
    table, metric = pd.concat(tables, ignore_index=True), runs[0].record.verdict.metric
    # The page has control task and random weights in a table.
    scores = Scores.of(table[~table["target"].isin(["control", "random_weights"])])
    forest = list(_forest(runs))
    if metric not in scores.metrics:
        return forest
    named = named_by_run(scores)
    drawn = curve_figure(named, metric)
    has_null = any(trace.legendgroup == NULL_BAND for trace in drawn.data)
    are_nested = {run.record.verdict.is_nested for run in runs}
    marks = [words for is_nested, words in MARKS.items() if is_nested in are_nested]
    null = "Grey band: 95 % of the scores under exchanged labels, over all runs of a panel. "
    curve = page.FigurePart(
        f"{title(metric)} by layer and run",
        page.figure_json(drawn),
        "Score of each run; horizontal lines are baselines that do not use the model. "
        f"{null * has_null}{' '.join(marks)} Runs may have "
        "different test rows; use probekit compare to test "
        "the differences of two runs.",
        description(named, metric),
        height=facets_height(drawn),
    )
    cells = _cells_of_common_line(scores, metric)
    if not differs(cells["run"]):  # no two runs probed the same kind of site
        return [*forest, curve]
    depths = sorted(cells["depth"].unique())
    first = cells.drop_duplicates("run")
    kinds = ", ".join((first["probe"] + " at " + first["position"]).unique())
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
        f"Probes: {kinds}. {colour_words(cells)}",
        "; ".join(
            f"{run}: {', '.join(map(format_number, of_run['value']))}"
            for run, of_run in cells.groupby("run", sort=False)
        ),
        height=8 + 2.5 * max(len(runs), 3),
    )
    return [*forest, curve, by_layer]


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
    v = run.record.verdict
    if not v.is_chosen:
        return {}
    score = (v.score.value, v.score.ci_low, v.score.ci_high) if v.score else (math.nan,)
    cells: dict[str, Cell | str] = {metric_name(v.metric): Cell.number(format_number(*score))}
    for target in REFERENCES:
        if target in v.rivals:
            cells[target.replace("_", " ")] = format_number(v.rivals[target].value)
    return cells | {"test rows": "–" if v.score is None else f"{v.score.n:,}"}
