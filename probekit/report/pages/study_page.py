"""Page and sentences of a study: what the network adds to a rival in each cell, chosen layers."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import (
    FEWEST_UNITS,
    LEVEL,
    counted,
    first_names,
    format_difference,
    format_number,
    format_p,
    joined_names,
    percent,
)
from probekit.probes.score.metric_table import METRICS
from probekit.report.elements import page, style
from probekit.report.elements.table import Cell, Column, ResultTable
from probekit.report.sentences.answer import p_words, rival_name
from probekit.report.sentences.comparisons import clause
from probekit.report.sentences.tables import DIFFERENCE
from probekit.results import study
from probekit.results.table import by_depth, differs, metric_name, site_names, ticks

MANY_REPEATED = 0.05  # share of test rows whose text occurs in their training rows
MOST_ROWS = 60  # of a figure; more cells have several figures next to each other
SHOWN = ("bag_of_words", "n_grams", "length", "random_weights")  # rivals in the table of cells
METHOD = (
    "A cell is a run with one data set and one value of each varied key. Its p is two-sided and "
    "tests the difference between the probe and another one on the same test rows.",
    "Better and worse are decided by p-values that are adjusted for all cells with a test: by "
    "Holm, so that the probability of any false result is at most 5 %, or by Benjamini and "
    "Yekutieli, so that at most 5 % of the results are false on average. Both allow cells that "
    "depend on each other, as those with the same texts or network do.",
    "Where the other one predicts the same for all rows, as the majority class does, p is one-"
    "sided and tests whether predictions and labels are associated: there the probe "
    "beats it by being above chance.",
    "Two settings are compared by an exact signed-rank test of their differences, with one "
    "difference for each data set; the median is that of all means of two differences "
    "(Hodges-Lehmann). The test requires that data sets are independent: data sets that share "
    "texts make p too small.",
    "A published score was measured on other rows, and has no interval.",
)


def study_page(result: study.StudyResult) -> page.Page:
    """Return a page of a finished study."""
    table, record, failed = result.table, result.record, result.failed
    metric = next(iter(table.loc[table["metric"] != "", "metric"].mode()), "")
    names = study.measured_rivals(result.rivals)
    # The finished cells compared with each rival.
    of_rivals = {name: study.compared_cells(table, result.rivals, name) for name in names}
    details = study_answer(result)[1:]
    first, sections = list[page.Item](), list[page.Item]()
    settings = study.compared_settings(table, record.keys).replace("[{}]", "", regex=True)
    if len(settings):
        details.append(settings_answer(settings, metric))
    if names:
        figures = [_figures(study.by_gain(rows), name, metric) for name, rows in of_rivals.items()]
        # Each figure is of the first rival; a menu shows the same figure of the others.
        first += [replace(one, others=others) for one, *others in zip(*figures, strict=True)]
        first.append(_rival_table(of_rivals, metric))
    if len(settings) > 1:
        first.append(_settings_table(settings))
    if (table["caveats"] != "").any():
        warnings = _warning_table(table)
        sections.append(page.PageSection(warnings.title, [warnings]))
    if names:
        tables = [(f"Save {one}", one) for one in (study.STUDY, study.STUDY_RIVALS)]
        files = [(title, one, (result.folder / one).read_text("utf-8")) for title, one in tables]
        cells = _cell_table(of_rivals, metric)
        sections.append(page.PageSection("Cells", [cells, page.Files(files)]))
    if len(failed):
        columns = {Column("cell"): failed["cell"], Column("error", "words"): failed["error"]}
        errors = ResultTable.of("Cells that failed", columns)
        sections.append(page.PageSection(errors.title, [errors]))
    return page.Page(
        eyebrow=["probekit", "study", record.study, counted(len(table), "cell")],
        title=record.question
        or f"Where does the probe beat {_rival_name(table, study.main_rival(result.rivals))}?",
        answer=study_answer(result)[0],
        details=[page.Paragraph(" ".join(details))] if details else [],
        sections=[page.PageSection("", first, "screen"), *sections],
        caveats=list(study_warnings(result)),
        method=METHOD,
        head=f"Study {record.study}",
    )


def study_answer(result: study.StudyResult) -> list[str]:
    """Return in which cells the probe is better than words or another rival, briefly first."""
    rival = study.main_rival(result.rivals)
    found = study.compared_cells(result.table, result.rivals, rival).dropna(subset="p")
    found = study.by_gain(found)
    name, n_failed = _rival_name(result.table, rival), len(result.failed)
    better, worse, coarse, constant = (
        found.loc[holds, "cell"].tolist()
        for holds in (
            found["holm"].isin([study.BETTER, study.ABOVE_CHANCE]),
            found["holm"].eq(study.WORSE),
            _is_coarse(found),
            found["is_constant"],
        )
    )
    n, of = len(better), counted(len(found), "cell")
    where = (
        f"{len(coarse)} of {of} undecided, {n}" if coarse else f"{n} of {len(found) if n else of}"
    )
    texts = [clause(f"{where} beat{'s' * (n == 1)} {name}", better)]
    if better:
        shown = found[found["cell"].isin(better)]
        sizes = [f"{row['cell']} {_difference(row)}" for _, row in shown.iterrows()]
        texts.append(f"Differences of the score: {first_names(sizes)}.")
    texts.append(f"A cell counts if its difference is significant, adjusted for {of} (Holm).")
    if not len(found):
        texts = [f"No cell has a test of the difference from {name}."]
    if worse:
        texts.append(clause(f"The probe is worse in {len(worse)}", worse))
    if constant:
        same = f"Where {name} predicts the same for all rows, the probe is tested against chance"
        texts.append(f"{same}: {first_names(constant)}.")
    if coarse:
        texts.append(f"Too few groups or permutations to decide {first_names(coarse)}.")
    if n_failed:
        texts.append(f"{counted(n_failed, 'cell')} failed.")
    return texts


def settings_answer(compared: pd.DataFrame, metric: str) -> str:
    """Return the most significant comparison of two settings, as a sentence.

    Args:
        compared: rows of `compared_settings`, at least one.
        metric: the metric of their scores.
    """
    row = compared.sort_values("p", kind="stable").iloc[0]
    a, b = row["a"], row["b"]
    if pd.isna(row["p"]):
        return (
            f"Too few data sets to compare {a} and {b} ({row['key']}): {row['n']}; a test requires "
            f"{FEWEST_UNITS}."
        )
    lead = f"No significant difference between {a} and {b}"
    if row["p_holm"] < LEVEL:
        better = a if row["difference"] * METRICS[metric].sign > 0 else b
        lead = f"{better} is better than {b if better == a else a}"
    n_tested = compared["p"].count()
    adjusted = f", adjusted for {n_tested} comparisons" if n_tested > 1 else ""
    return (
        f"{lead} ({row['key']}): median difference of {metric_name(metric)} ({a} minus {b}) "
        f"{_difference(row)}, {p_words(row['p_holm'])}{adjusted} (exact signed-rank test over "
        f"{row['n']} data sets)."
    )


def _is_coarse(tested: pd.DataFrame) -> pd.Series:
    """Return which p-values are below 5 %, but could not be small enough for all tested cells.

    Those of sign patterns and of exchanged labels cannot be arbitrarily small.
    """
    least = tested["p"].where(tested["is_constant"], 2.0 ** (1 - tested["n_groups"]))
    return (least * len(tested) >= LEVEL) & (tested["p"] < LEVEL) & (tested["holm"] == "")


def study_warnings(result: study.StudyResult) -> Iterator[str]:
    """Yield a sentence for each reason to doubt the counts, most serious first."""
    table, failed, rivals = result.table, result.failed, study.measured_rivals(result.rivals)
    if len(failed):
        yield f"{_cells(failed)} failed, for reasons that are below."
    rival = study.main_rival(result.rivals)
    done = study.compared_cells(table, result.rivals, rival)
    repeated = done[done["repeated"] > MANY_REPEATED]
    if len(repeated):
        yield (
            f"More than {percent(MANY_REPEATED)} of the test rows have a text of their training "
            f"rows in {_cells(repeated)}, at most {percent(done['repeated'].max())}. Set "
            "`split.drop_repeated`."
        )
    untested = done[done["p"].isna()]
    if len(untested):
        name = _rival_name(table, rival)
        yield f"The difference from {name} has no test in {_cells(untested)}."
    listed, n_tested = list[str](), 0
    for one in rivals:
        tested = study.compared_cells(table, result.rivals, one).dropna(subset="p")
        is_coarse = _is_coarse(tested)
        if is_coarse.any():
            n = counted(int(is_coarse.sum()), "cell")
            listed.append(f"{n} compared with {_rival_name(table, one)}")
            n_tested = max(n_tested, len(tested))
    if listed:
        yield (
            f"p is below {LEVEL}, but cannot be small enough for {counted(n_tested, 'cell')}, in "
            f"{joined_names(listed)}. This requires more groups or, where the rival predicts the "
            f"same for all rows, `probe.permutations` of {20 * n_tested:,} or more."
        )
    metrics = done["metric"].value_counts()
    if len(metrics) > 1:
        names = joined_names([f"{metric_name(str(one))} ({n})" for one, n in metrics.items()])
        yield f"Cells have different metrics: {names}. Settings are compared by the first only."
    doubted = done[done["caveats"] != ""]
    if len(doubted):
        yield f"{len(doubted)} of {counted(len(done), 'run')} have warnings, which are below."
    n_unused = result.record.n_unused
    if n_unused:
        yield f"{counted(n_unused, 'published score')} of other data sets: not used."


def _rival_name(table: pd.DataFrame, rival: str) -> str:
    return rival_name(rival, next((name for name in table["metric"] if name), "accuracy"))


def _cells(rows: pd.DataFrame) -> str:
    """Return the number of cells with the names of the first ones."""
    return f"{counted(len(rows), 'cell')} ({first_names(rows['cell'].tolist())})"


def _difference(row: pd.Series) -> str:
    """Return the difference in a row with its sign and interval."""
    return format_difference(row["difference"], row["ci_low"], row["ci_high"])


def _figures(rows: pd.DataFrame, rival: str, metric: str) -> Iterator[page.FigurePart]:
    """Yield the figures of the differences from a rival and of the chosen layers, best first."""
    title, phrase = _title(rival, metric), rival_name(rival, metric)
    rows = rows.assign(
        added=rows["published"] - rows["value"],
        # Sites of given activations are at their layer.
        depth=by_depth(rows.assign(head=math.nan))["depth"],
    )
    rows["depth"] = rows["depth"].where(rows["site"].str.contains("hook_"), rows["layer"])
    drawn = ["difference", "ci_low", "ci_high", "added"]
    ends = style.with_margin(*style.finite_ends([0, *rows[drawn].to_numpy().ravel()]))
    one_metric = metric_name(metric) if not differs(rows["metric"]) else "score"
    n_parts = math.ceil(len(rows) / MOST_ROWS)
    for number, part in enumerate(np.array_split(np.arange(len(rows)), n_parts)):
        shown = rows.iloc[part]
        figure = _figure(shown, rows, ends, rival)
        figure.layout.xaxis.title.text = f"difference of<br>{one_metric}"
        squares = "; squares: tested against chance" * bool(shown["is_constant"].any())
        of = f", cells {part[0] + 1} to {part[-1] + 1}" if n_parts > 1 else ""
        yield page.FigurePart(
            f"Gain over {phrase}{of} (filled: significant{squares})",
            page.figure_json(figure),
            f"Left: score of each cell minus that of {title}, with 95 % intervals. Filled markers: "
            "significant after Holm's adjustment for all cells; hollow markers: not significant. "
            f"Squares: cells in which {title} predicts the same for all rows; filled if the probe "
            "is above chance. Diamonds: published scores minus the same score. Right: the layer "
            "chosen by cross-validation; norm is the final norm.",
            f"Difference from {title}, best first: "
            + "; ".join(
                f"{row['cell']} {_difference(row)}{', ' if row['holm'] else ''}{row['holm']}"
                for _, row in shown.iterrows()
            ),
            height=7 + len(shown) * min(1.8, max(1.1, 20 / len(shown))),
            metric=title,
            menu="Compared with",
            place=f"cells {number}",
        )


def _figure(shown: pd.DataFrame, rows: pd.DataFrame, ends: list[float], rival: str) -> go.Figure:
    """Return the figure of some cells, with the axes of all `rows`."""
    has_published = bool(rows["added"].notna().any())
    figure = go.Figure(layout={"template": style.TEMPLATE, "showlegend": has_published})
    y, blue = list(range(len(shown))), style.SERIES_COLOURS[0]
    figure.add_vline(x=0, line={"color": style.GREY, "dash": "dash"})
    fill = np.where(shown["holm"] == "", "-open", "")
    shape = np.where(shown["is_constant"], "square", "circle")
    marker = {"color": blue, "size": 8, "symbol": np.char.add(shape, fill).tolist()}
    hover = [_hover(row, rival) for _, row in shown.iterrows()]
    texts = {"hovertext": hover, "hoverinfo": "text", "mode": "markers", "cliponaxis": False}
    edged, bars = {**marker, "line": {"width": 1.5}}, style.error_bars(shown, "difference", 1.5)
    x, depths, added = (shown[name].tolist() for name in ("difference", "depth", "added"))
    figure.add_scatter(x=x, y=y, error_x=bars, marker=edged, name="this study", **texts)
    dots = {**marker, "symbol": np.char.add("circle", fill).tolist()}
    figure.add_scatter(x=depths, y=y, marker=dots, xaxis="x2", showlegend=False, **texts)
    if has_published:
        diamond = {"symbol": "diamond-open", "size": 9, "color": style.SERIES_COLOURS[1]}
        figure.add_scatter(x=added, y=y, name="published", marker=diamond, **texts)
    names = rows["cell"]
    if names.map(style.short_tick).duplicated().any():  # leave out the parts that all cells share
        parts = names.str.split("-", expand=True)
        parts = parts.loc[:, parts.ne(parts.iloc[0]).any()].fillna("")
        names = parts.apply(lambda of_cell: "-".join(filter(None, of_cell)), axis=1)
    cells = list(map(style.short_tick, names[shown.index]))
    figure.update_yaxes(tickvals=y, ticktext=cells, range=[len(shown) - 0.5, -0.5], showgrid=True)
    placed_rows = rows[rows["depth"].notna()].astype({"depth": int})
    layers = go.layout.XAxis()
    if len(placed_rows):
        labels = {at: name.removeprefix("final ") for at, name in ticks(placed_rows).items()}
        style.layer_axis(layers, labels, most=4)
        layers.range = [min(labels) - 0.6, max(labels) + 0.6]
        # The axis is above the plot: names are above the numbers.
        layers.ticktext = [f"{t[4:]}<br> " if t.startswith("<br>") else t for t in layers.ticktext]
    figure.update_layout(
        xaxis={"domain": [0, 0.66], "side": "top", "range": ends, "showgrid": True},
        xaxis2=layers.update(domain=[0.75, 1], side="top", anchor="y"),
        margin={"t": 96, "b": 40 if has_published else 12, "r": 12},
    )
    return figure


def _hover(row: pd.Series, rival: str) -> str:
    """Return the hover text of a cell."""
    lines = [
        f"<b>{style.plotly_text(row['cell'])}</b>",
        f"{metric_name(row['metric'])} {format_number(row['score'])}",
        f"{_title(rival, row['metric'])} {format_number(row['value'])}",
        f"difference {_difference(row)}",
        f"p {format_p(row['p'])}{': ' if row['holm'] else ''}{row['holm']}",
        f"chosen: {style.plotly_text(row['site'])}",
    ]
    if not math.isnan(row["published"]):
        lines.append(f"published {format_number(row['published'])}")
    return "<br>".join(lines)


def _rival_table(of_rivals: Mapping[str, pd.DataFrame], metric: str) -> ResultTable:
    """Return the number of cells by result, for each rival."""
    rows = []
    for name, found in of_rivals.items():
        n_better, n_fdr = (
            found[by].isin([study.BETTER, study.ABOVE_CHANCE]).sum() for by in ("holm", "fdr")
        )
        worse, constant = found["holm"].eq(study.WORSE).sum(), found["is_constant"].sum()
        numbers = found["p"].count(), n_better, n_fdr, worse, constant
        rows.append((_title(name, metric), *map(str, numbers)))
    columns = [Column("compared with", "site"), Column("cells"), Column("better", unit="Holm")]
    columns += [Column("better", unit="5 % FDR"), Column("worse", unit="Holm")]
    columns += [Column("cells", unit="tested against chance")]
    return ResultTable("Cells by result", columns, rows, css="compact")


def _settings_table(settings: pd.DataFrame) -> ResultTable:
    """Return the paired comparisons of settings."""
    pairs = zip(settings["a"], settings["b"], settings["key"], strict=True)
    columns = {
        Column("settings", "words"): [Cell(f"{a} minus {b}", [(key, "")]) for a, b, key in pairs],
        "data sets": settings["n"].map(str),
        "median difference [95 %]": [_difference(row) for _, row in settings.iterrows()],
        "adjusted p": settings["p_holm"].map(format_p),
    }
    return ResultTable.of("Settings compared over data sets", columns, css="compact")


def _cell_table(of_rivals: Mapping[str, pd.DataFrame], metric: str) -> ResultTable:
    """Return the table of finished cells with links to the pages of their runs.

    The first rival has its difference, the others of `SHOWN` only their scores.
    """
    first, *others = of_rivals
    columns = {name: Column(_title(name, metric)) for name in others if name in SHOWN}
    rows = study.by_gain(of_rivals[first])
    rows = rows.assign(**{name: of_rivals[name]["value"] for name in columns})
    columns |= {"published": Column("published")} if rows["published"].notna().any() else {}
    layers, has_metrics = site_names(rows["site"]), differs(rows["metric"])
    cells: list[Sequence[Cell | str]] = [
        (
            Cell(row["cell"], url=quote(f"{row['folder']}/report.html")),
            *([metric_name(row["metric"])] if has_metrics else []),
            "–" if np.isnan(row["n"]) else f"{row['n']:,.0f}",
            Cell.number(format_number(row["score"], row["score_low"], row["score_high"])),
            Cell.number(format_number(row["value"])),
            Cell.number(_difference(row)),
            Cell(format_p(row["p"]), [(row["holm"], "verdict")]),
            *(Cell.number(format_number(row[name])) for name in columns),
            layers[row["site"]] or "–",
            "–" if math.isnan(row["repeated"]) else percent(row["repeated"]),
            str(len(row["caveats"].splitlines())),
        )
        for _, row in rows.iterrows()
    ]
    metrics = [Column("metric", "site")] if has_metrics else []
    headings: list[Column | str] = [Column("cell"), *metrics, "n"]
    headings += ["score" if has_metrics else metric_name(metric), _title(first, metric)]
    headings += [DIFFERENCE, "p", *columns.values()]
    headings += [Column("layer", "site"), "repeated texts", "warnings"]
    return ResultTable("Cells", headings, cells, css="compact stacked", is_sortable=True)


def _warning_table(table: pd.DataFrame) -> ResultTable:
    """Return the warnings of the runs; those that differ only in numbers have one row."""
    cells, texts = defaultdict[str, list[str]](list), dict[str, str]()
    for _, row in table.iterrows():
        for text in row["caveats"].splitlines():
            kind = re.sub(r"[\d.,]+", "0", text)
            texts.setdefault(kind, text)
            cells[kind].append(row["cell"])
    kinds = sorted(cells, key=lambda kind: -len(cells[kind]))
    rows = [(texts[kind], str(len(cells[kind])), first_names(cells[kind])) for kind in kinds]
    warning = Column("warning, with the numbers of the first cell", "value")
    columns = (warning, "cells", Column("names", "value"))
    return ResultTable("Warnings of the runs", columns, rows)


def _title(rival: str, metric: str) -> str:
    """Return the name of a rival without article."""
    return rival_name(rival, metric).removeprefix("the ")
