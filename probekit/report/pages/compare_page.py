"""Page of a comparison of two runs: differences by layer, with intervals and p-values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import counted, format_number, format_p
from probekit.report.elements import page
from probekit.report.elements.style import TEMPLATE, error_bars, plotly_text, series_marker
from probekit.report.elements.table import Cell, Column, ResultTable
from probekit.report.elements.texts import MachinePaths
from probekit.report.figures.line_labels import name_traces
from probekit.report.sentences import comparisons
from probekit.report.sentences.tables import DIFFERENCE
from probekit.results.comparison import RunComparison, both_places
from probekit.results.site_results import NESTED_SITE
from probekit.results.table import by_depth, metric_name, ticks

MOST_LINES = 12  # with more lines, such as single heads, only the table is shown
_LINE = ["line", "probe", "position_a"]  # columns that are constant in a line of the figure
SELECTED = "selected probe"
METHOD = (
    "In the table, p is two-sided, and the interval excludes 0 exactly if p is below 0.05. A "
    "comparison is significant if its p, adjusted for all comparisons of the page, is below 0.05; "
    "p and interval of the answer are adjusted in this way.",
    "Nothing was fitted again: the predictions of both runs for their test rows were compared.",
)
SETTINGS = (
    "Settings, input digests and versions that are not equal in all runs; names, questions and "
    "folders are ignored."
)
_STEP = 0.06  # in layers, from the error bars of one line to those of the next


def comparison_page(comparison: RunComparison) -> str:
    """Return a self-contained HTML page with figure, tables and the settings that differ.

    There is no figure if it would have no line, or more than `MOST_LINES`.
    """
    sites = comparison.sites
    main = comparison.rows[comparison.rows["what"] != "site"]
    names, metric = comparison.names, metric_name(comparison.metric)
    paths = MachinePaths.of([list(texts) for texts in comparison.settings.values()])
    settings = {name: list(map(paths.hide, texts)) for name, texts in comparison.settings.items()}
    sections: list[page.Item] = []
    if len(main):
        title = "Selected probes and baselines"
        is_equal = main["difference"].eq(0) & main["what"].ne("chosen")
        items: list[page.Item] = []
        if not is_equal.all():
            items.append(_table(comparison, main[~is_equal], title))
        if is_equal.any():
            equal = f"{counted(int(is_equal.sum()), 'score')} equal in both runs"
            items.append(page.Fold(equal, [_table(comparison, main[is_equal], equal)]))
        sections.append(page.PageSection(title, items, "first"))
    sections += [page.Paragraph(note, "note") for note in comparison.notes]
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
    ).html()


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
    cells = []
    for _, row in rows.iterrows():
        difference, _, interval = comparisons.difference_words(row).partition(" ")
        result = [(comparisons.result_words(row), "verdict")]
        sites = both_places(row) if _place(row) == SELECTED else ""
        cells.append(
            (
                Cell(_place(row), [(sites, "badge")]),
                format_number(row["value_a"]),
                format_number(row["value_b"]),
                Cell(difference, [(interval, "")]),
                Cell(format_p(row["p"]), result, is_strong=row["holds"]),
            )
        )
    return ResultTable(
        title,
        ("probe", *names, DIFFERENCE, "p"),
        cells,
        css="compact stacked",
        chosen=[index for index, what in enumerate(rows["what"]) if what == "chosen"],
    )


def _place(row: pd.Series) -> str:
    """Return the name of the compared probes: `SELECTED`, or a baseline, site or nested choice."""
    is_single = row["what"] == "chosen" and NESTED_SITE not in (row["site_a"], row["site_b"])
    return SELECTED if is_single else both_places(row)


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
    figure.add_hline(y=0, line={"color": "#7A7F87", "width": 1.5, "dash": "longdash"})
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
    return "<br>".join(
        [
            f"<b>{plotly_text(both_places(row))}</b>",
            f"{a} {format_number(row['value_a'])}, {b} {format_number(row['value_b'])}",
            f"difference {format_number(row['difference'], row['ci_low'], row['ci_high'])}",
            f"p {format_p(row['p'])}, adjusted {format_p(row['p_adjusted'])}: "
            + ("significant" if row["holds"] else "not significant"),
        ]
    )
