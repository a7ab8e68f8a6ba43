"""Interventions: the page of a run without probes, their section on another page, and figures."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import counted, fixed
from probekit.files import write_atomic
from probekit.interventions.names import REPLACEMENTS, measure_title
from probekit.report.causes import cause_figures, cause_words
from probekit.report.elements import page, texts
from probekit.report.elements.table import Cell
from probekit.report.figures import layer_curve
from probekit.report.figures.maps import MOST_TEXTS
from probekit.report.pages.parts import file_text, map_part
from probekit.report.sentences.answer import p_words
from probekit.report.sentences.caveats import merged
from probekit.results.cause_verdict import RECOVERY, EditSet
from probekit.results.causes import FOLDER, TABLES, CauseTables
from probekit.results.table import only

METHOD = (
    "The measure is scored for the answer of the unedited text throughout. Intervals are 95 % "
    "intervals of a jackknife over groups of texts; those of patches and ablations allow for "
    "skewed effects of the groups. With fewer than 50 groups, skewed effects can raise the rate of "
    "false positives from 5 % to 7 %, extremely skewed ones to 15 %; intervals then contain the "
    "true value in 92 % and 88 % of data sets.",
    "P-values of patches and ablations are the larger one of two tests over groups: random signs, "
    "and a bootstrap that allows for skewed effects. p and interval of a patch come from different "
    "methods, so that they can disagree near the limit.",
    "Recovery is a ratio of sums over texts; it is undefined if the interval of the denominator "
    "contains 0.",
    "Directions of each fold are fitted on its training texts and act on its test texts. Erasure "
    "replaces the component along the direction by its mean.",
)
NOTE = (
    "Yes: p ≤ 0.05, adjusted for the questions of a direction, and the 95 % interval is above 0. "
    "No: the interval is within 5 % of the effect of the whole vector around 0. p of steers, "
    "silences and swap: comparison with directions on permuted labels; of detects: exchange of "
    "labels."
)
SMALL_ROW = 0.9  # rem, of maps without numbers in their cells
MOST_NAMED = 12  # values in the description of a figure


def write_causes_page(run_dir: Path) -> Path:
    """Write causes.html into the folder of a run and return its path.

    Raises:
        MissingError: the run has no interventions.
        DataError: a file of the run cannot be read.
        StoreError: the page cannot be written.
    """
    path = run_dir / "causes.html"
    write_atomic(path, causes_page(run_dir))
    return path


def causes_page(run_dir: Path) -> str:
    """Return the page of a run's interventions as HTML; equal files give equal bytes.

    Raises:
        MissingError: the run has no interventions.
        DataError: a file of the run cannot be read.
    """
    tables = CauseTables.open(run_dir)
    record = tables.record
    parts = cause_parts(tables)
    # Up to two figures precede the warnings, unless their panels need the width of the page.
    n_first = sum(
        not any(map(_is_wide, parts[:n])) and all(one.is_open for one in parts[:n]) for n in (1, 2)
    )
    shown, folded = cause_items(tables, parts[n_first:])
    sections: list[page.Item] = [page.PageSection("", parts[:n_first], "screen")]
    sections.append(page.Group("causes", shown))
    if folded:
        sections.append(page.PageSection("More figures", folded, "folds"))
    named = {
        "model": texts.model_title(record.model),
        "data": record.dataset,
        "position": record.position,
        "measures": ", ".join(record.measures),
        **{f"{name} token": words for name, words in record.answers.items()},
        "labels": ", ".join(record.classes),
        "folds": counted(record.folds, "fold") if record.folds else "",
        "permutations": f"{record.draws:,}" if record.draws else "",
        "seed": str(record.seed),
    }
    return page.Page(
        eyebrow=["probekit", "interventions", record.name, texts.model_title(record.model)],
        title=record.question or record.name,
        answer=cause_words.cause_answer(tables),
        details=[page.Paragraph(page.unbroken(cause_words.cause_detail(tables)))],
        sections=[*sections, *table_files(run_dir)],
        method=METHOD,
        facts={"": {texts.capitalised(name): words for name, words in named.items() if words}},
        caveats=merged(cause_words.cause_caveats(tables)),
        aside=[cause_words.n_in_words(record)],
        styles=("report.css", "causes.css"),
    ).html()


def causes_section(
    run_dir: Path, tables: CauseTables, parts: Sequence[page.FigurePart]
) -> page.PageSection:
    """Return the section on interventions of a run's page.

    Args:
        run_dir: folder of the run.
        tables: interventions of the run.
        parts: its figures that are not on the first screen.

    Raises:
        DataError: a file cannot be read.
    """
    shown, folded = cause_items(tables, parts)
    items: list[page.Item] = [*shown, *folded, *table_files(run_dir)]
    return page.PageSection("Causes", items, css="causes", anchor="causes")


def cause_items(
    tables: CauseTables, parts: Sequence[page.FigurePart]
) -> tuple[list[page.Item], list[page.FigurePart]]:
    """Return the open figures of interventions and the verdicts, and the folded figures."""
    shown = [part for part in parts if part.is_open]
    figures = [page.Group("wide" if _is_wide(part) else "", [part]) for part in shown]
    folded = [part for part in parts if not part.is_open]
    columns = [page.Group("columns cause-figures", figures, column=34)] if figures else []
    return [*columns, *_verdicts(tables)], folded


def _is_wide(part: page.FigurePart) -> bool:
    """Return whether a figure has a third panel, and is as wide as the page."""
    return "xaxis3" in part.figure["layout"]


def _verdicts(tables: CauseTables) -> Iterator[page.Item]:
    """Yield the table of verdicts with its note, and other directions folded; none without any."""
    table = cause_words.verdict_table(tables.verdict.directions)
    rows = [list(map(_unbroken, row)) for row in table.rows]
    shown, others = rows[: cause_words.MOST_ROWS], rows[cause_words.MOST_ROWS :]
    if not shown:
        return
    yield replace(table, rows=shown)
    yield page.Paragraph(page.unbroken(NOTE), "note")
    if others:
        n = len(others)
        title = "The other direction" if n == 1 else f"The other {n} directions"
        rest = replace(table, title="Verdicts on the other directions", rows=others)
        yield page.Fold(title, [rest])


def _unbroken(cell: Cell | str) -> Cell | str:
    """Return a cell whose values are not broken into two lines."""
    if isinstance(cell, str):  # a dash for a question that was not tested
        return cell
    small = [(page.unbroken(text), css) for text, css in cell.small]
    return replace(cell, text=page.unbroken(cell.text), small=small)


def table_files(run_dir: Path) -> list[page.Files]:
    """Return the links that save the tables of a run's interventions; [] without tables."""
    paths = [run_dir / FOLDER / f"{name}.csv" for name in TABLES]
    links = [(f"Save {one.name}", one.name, file_text(one)) for one in paths if one.exists()]
    return [page.Files(links)] if links else []


def cause_parts(
    tables: CauseTables | None, layers: dict[int, str] | None = None
) -> list[page.FigurePart]:
    """Return the figures of a run's interventions; other measures, tokens and methods are folded.

    Args:
        tables: interventions of the run; without any there are no figures.
        layers: labels of the layer axis of the run's layer curve, by depth; without them the axis
            has those of the edited sites.
    """
    if tables is None:
        return []
    opened: set[tuple[str, str]] = set()
    in_order: dict[str, list[page.FigurePart]] = {"curve": [], "tokens": [], "heads": []}
    for edits in tables.verdict.sets:
        for kind, sites, part in _edit_parts(edits, tables, layers):
            # The first figure of each kind of figure and site is open.
            is_open = edits.measure == tables.verdict.measure and (kind, sites) not in opened
            if is_open:
                opened.add((kind, sites))
            in_order[kind].append(replace(part, is_open=is_open))
    of_edits = chain.from_iterable(in_order.values())
    return [*_use_parts(tables), *of_edits, *_dose_parts(tables), *_refit_parts(tables, layers)]


def _use_parts(tables: CauseTables) -> Iterator[page.FigurePart]:
    """Yield the figure of the direction that the answer names, if it was erased or swapped."""
    best, is_only = tables.verdict.best, len(tables.verdict.directions) == 1
    figure = cause_figures.use_figure(best) if best and (best.uses or is_only) else None
    if best is None or figure is None:
        return
    along = cause_words.NAMES[best.row["along"]]
    title = f"Effect of {along} and of controls · {best.row['short_place']}"
    yield page.FigurePart(
        title,
        page.figure_json(figure),
        "Erased: share of the label's effect that disappears if the direction, or the whole "
        "vector, is replaced by its mean. Swapped: share of the counterfactual's effect that its "
        "value along the direction, or its whole vector, recovers. Error bars: 95 % intervals over "
        f"groups; {cause_words.n_in_words(best.row)}. Bands: 95 % of {tables.record.draws:,} "
        f"directions on permuted labels (tested), and of {cause_words.RANDOM} (not tested).",
        f"{title}. {cause_words.cause_answer(tables)}",
    )


def _edit_parts(
    edits: EditSet, tables: CauseTables, layers: dict[int, str] | None
) -> Iterator[tuple[str, str, page.FigurePart]]:
    """Yield kind, sites and figure for each figure of the patches or ablations of a set.

    The kind is `curve`, `tokens` or `heads`; the one curve has all sites, written as "".
    """
    noun, replacement = REPLACEMENTS[edits.replacement]
    tokens = cause_words.where(tables.record, edits.at)
    # The facts that the figures of a set of edits share.
    measure = f"{measure_title(edits.measure)} ({edits.unit}{_answers(tables)})"
    quantity = f"Measure: change of the {measure} relative to the unedited text."
    if edits.shown == RECOVERY:
        quantity = (
            f"Recovery: share of the way from the unedited to the counterfactual text's {measure}."
        )
    elif edits.do == "patch":
        quantity += (
            " Recovery is undefined, because the interval of the difference between counterfactual "
            "and unedited text contains 0."
        )
    p, test = edits.rows["p_best"].min(), "Not tested."  # p is NaN if no edit was tested
    if not pd.isna(p):
        test = (
            f"Control: the unedited text; smallest {p_words(float(p))}, adjusted for "
            f"{counted(edits.n_edits, 'edit')}."
        )
    caption = f"Replacement: {replacement}. {quantity} {sizes_in_words(edits.rows)}. {test}"
    title = texts.capitalised(edits.title)
    if edits.shown == RECOVERY and edits.measure != tables.verdict.measure:
        title = f"Recovery of {measure_title(edits.measure)}"
    along_tokens = ""
    if tables.record.tokens:
        along_tokens = " Tokens of the first text; in italics where other texts have another token."
        if all(tables.record.same_tokens):
            along_tokens = " All texts have these tokens."
    # Edits at each token have only maps by token; others have a curve and maps by head.
    if edits.at == "each":
        for sites, rows, figure in cause_figures.token_maps(edits, tables.record):
            n_heads = len(rows[["layer", "head"]].dropna().drop_duplicates())
            most = cause_figures.MOST_HEADS
            largest = f" Shown: the {most} heads with the largest effects, of {n_heads}."
            selection = largest if n_heads > most else ""
            words = f"{caption}{selection}{along_tokens} Framed: the largest absolute value."
            heading = f"{title} by layer and token · {sites}, {noun}"
            description = edit_description(edits, rows, f" by layer and token, {sites}")
            yield "tokens", sites, _cell_map(heading, figure, words, description)
        return
    of_parts = {str(part): rows for part, rows in edits.of_heads.groupby("part", sort=False)}
    rows = cause_figures.curve_lines_of(edits)
    patched = tables.verdict.patched
    marked = "" if patched is None or patched["at"] != edits.at else str(patched["site"])
    if not rows.empty:
        maps_of = f" Single heads of {', '.join(of_parts)} have a map of their own."
        curve = page.FigurePart(
            f"{title} by layer · {noun} {tokens}",
            page.figure_json(cause_figures.cause_curve(edits, layers, marked)),
            f"{caption} Bands or bars: 95 % intervals over groups.{maps_of if of_parts else ''}",
            edit_description(edits, rows, " by layer"),
        )
        yield "curve", "", curve
    for part, rows in of_parts.items():
        heading = f"{title} by layer and head · {part}, {noun} {tokens}"
        words = f"{caption} Framed: the head with the largest absolute value."
        description = edit_description(edits, rows, f" by layer and head, {part}")
        figure = cause_figures.head_map_of(edits, part)
        yield "heads", part, _cell_map(heading, figure, words, description)


def _cell_map(heading: str, figure: go.Figure, caption: str, description: str) -> page.FigurePart:
    """Return a map as a part of the page, with lower rows if too many cells have no numbers."""
    part = map_part(heading, figure, caption, description)
    n_rows, n_columns = np.shape(figure.data[0].z)
    if n_rows * n_columns <= MOST_TEXTS:
        return part
    # 10 rem are for titles and tick labels. A map of few rows is as high as one of 16.
    return replace(part, height=10 + SMALL_ROW * max(n_rows, 16))


def _answers(tables: CauseTables) -> str:
    """Return the end of a measure's unit that names the answer and the wrong one, or "".

    They are those of the first measure: the record has no others.
    """
    named = tables.record.answers
    words = " against ".join(named[name] for name in ("answer", "wrong") if name in named)
    return f"; {words}" if "answer" in named else ""


def sizes_in_words(rows: pd.DataFrame) -> str:
    """Return the number of texts and groups; if rows differ in them, their range."""
    sizes = rows[["n", "groups"]]
    low, high = cause_words.n_in_words(sizes.min()), cause_words.n_in_words(sizes.max())
    return low if low == high else f"{low} to {high}"


def edit_description(edits: EditSet, rows: pd.DataFrame, place: str) -> str:
    """Return the largest absolute values of a figure as text, at most `MOST_NAMED`.

    `place` ends the title of the figure.
    """
    largest = rows.reindex(rows["value"].abs().nlargest(MOST_NAMED).index)
    named = [
        row["place"]
        + (f" at position {row['position']:.0f}" if edits.at == "each" else "")
        + f" {cause_words.value_in_words(row)}"
        for _, row in largest.iterrows()
    ]
    return f"{texts.capitalised(edits.title)}{place}, largest first. {'; '.join(named)}."


def _dose_parts(tables: CauseTables) -> Iterator[page.FigurePart]:
    """Yield the dose-response figure of each method and choice of tokens, the first one open.

    A figure has at most `MOST_PANELS` sites, those with the largest effects. The number of texts is
    that of the verdicts at its sites, or without any that of the record.
    """
    record = tables.record
    towards = f" towards {texts.class_label(record.classes[-1])}" if record.classes else ""
    measure = measure_title(record.measures[0]) if record.measures else "measure"
    folds = f" and {counted(record.folds, 'fold')}" if record.folds > 1 else ""
    for number, (along, at, panels) in enumerate(cause_figures.dose_panels(tables)):
        shown, named = cause_figures.steepest(panels), []
        for title, of_panel in shown:
            ends = of_panel.sort_values("by").iloc[[0, -1]]
            doses = [f"{fixed(row['effect'], 2)} at {row['by']:+g}" for _, row in ends.iterrows()]
            named.append(f"{title} {', '.join(doses).replace('-', '−')}")
        rows = pd.concat([of_panel for _, of_panel in shown])
        verdicts = only(tables.verdicts, along=along, at=at)
        verdicts = verdicts[verdicts["site"].isin(rows["site"])]
        size = cause_words.n_in_words(record) if verdicts.empty else sizes_in_words(verdicts)
        known, loss = rows.dropna(subset="other_loss").sort_values("other_loss"), ""
        if not known.empty:
            worst = known.iloc[-1][["other_loss", "other_low", "other_high"]]
            most = cause_words.interval_in_words(*worst)
            loss = f" Change of the loss on other texts: at most {most} nats per token."
        low, high = rows["matched_low"].min(), rows["matched_high"].max()
        within = f"{cause_words.RANDOM} are within {fixed(low, 2)} and {fixed(high, 2)}"
        wide = f" Not tested: at each dose, at least 95 % of {within}."
        n, n_all = len(shown), len(panels)
        chosen = f" The {n} of {n_all} sites with the largest effects." if n < n_all else ""
        method, tokens = cause_words.METHODS[along], cause_words.where(record, at)
        yield page.FigurePart(
            f"Dose-response · {method}, {tokens}",
            page.figure_json(cause_figures.dose_figure(shown)),
            f"Mean change of the {measure} ({rows['unit'].iloc[0]}{_answers(tables)}){towards} if "
            f"multiples of the projection's SD are added along the direction; {size}{folds}. Grey: "
            f"95 % of {record.draws:,} directions on permuted labels (tested)."
            f"{wide * bool(low <= high)}{loss}{chosen}",
            f"Change of the measure by dose. {'; '.join(named)}.",
            is_open=number == 0,
            height=_height(n),
        )


def _height(n_panels: int) -> float | None:
    """Return the height of a figure of panels; the default one is enough for one row of them."""
    return layer_curve.panels_height(n_panels) if n_panels > 2 else None


def _refit_parts(tables: CauseTables, layers: dict[int, str] | None) -> Iterator[page.FigurePart]:
    """Yield figures of the accuracy of probes fitted again after erasure, the first one open.

    There is a figure for each method and choice of tokens, with its first `MOST_PANELS` panels.
    """
    for number, (along, at, panels) in enumerate(cause_figures.refit_panels(tables)):
        shown, named = panels[: layer_curve.MOST_PANELS], []
        for title, rows in shown:
            first, last = rows.iloc[0], rows.iloc[-1]
            named.append(
                f"{title}: {fixed(first['before'], 2)} before and {fixed(first['after'], 2)} after "
                f"at the first site, {fixed(last['before'], 2)} and {fixed(last['after'], 2)} at "
                "the last"
            )
        size, n = sizes_in_words(pd.concat([rows for _, rows in shown])), len(shown)
        first_ones = f" Shown: the first {n} of {len(panels)}." if n < len(panels) else ""
        method, tokens = cause_words.METHODS[along], cause_words.where(tables.record, at)
        yield page.FigurePart(
            f"Accuracy after erasure · {method}, {tokens}",
            page.figure_json(cause_figures.refit_figure(shown, layers)),
            f"Edit: erasure ({method}), replaced by the mean, {tokens}. Probes are fitted again at "
            "this site and every later one. Measure: balanced accuracy (share); bands: 95 % "
            f"intervals over groups. {size}. Controls: the same probes without erasure, and "
            f"chance.{first_ones}",
            f"Balanced accuracy before and after erasure. {'; '.join(named)}.",
            is_open=number == 0,
            height=_height(n),
        )
