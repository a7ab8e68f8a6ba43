"""Interventions: the page of a run without probes, their section on another page, and figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from probekit.amounts import counted, fixed
from probekit.files import inside, write_atomic
from probekit.interventions.names import REPLACEMENTS, measure_title
from probekit.report.causes import cause_words
from probekit.report.causes.cause_figures import (
    MOST_HEADS,
    Panel,
    cause_curve,
    curve_lines_of,
    dose_figure,
    dose_panels,
    head_map_of,
    refit_figure,
    refit_panels,
    steepest,
    token_maps,
)
from probekit.report.elements import page
from probekit.report.elements.table import Cell, ResultTable
from probekit.report.elements.texts import capitalised, class_label, model_title
from probekit.report.figures.layer_curve import MOST_PANELS, panels_height
from probekit.report.figures.maps import MOST_TEXTS
from probekit.report.pages.parts import map_part
from probekit.report.sentences.answer import p_words
from probekit.results.cause_verdict import RECOVERY, EditSet
from probekit.results.causes import FOLDER, TABLES, CauseTables, open_causes
from probekit.results.record import reading_run_file
from probekit.results.table import only

METHOD = (
    "The measure is scored for the answer of the unedited text throughout. Intervals are 95 % "
    "intervals of a jackknife over groups of texts; those of patches and ablations allow for "
    "skewed effects of the groups.",
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
ENOUGH_GROUPS = 50
FEW_GROUPS = (
    f"With fewer than {ENOUGH_GROUPS} groups, skewed effects can raise the rate of false positives "
    "from 5 % to 7 %, extremely skewed ones to 15 %; intervals then contain the true value in 92 % "
    "and 88 % of data sets."
)


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
    shown, folded = cause_items(tables)
    sections: list[page.Item] = [page.Group("causes", shown)]
    if folded:
        sections.append(page.PageSection("More figures", folded, "folds"))
    named = {
        "model": model_title(record.model),
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
        eyebrow=["probekit", "interventions", record.name, model_title(record.model)],
        title=record.question or record.name,
        answer=cause_words.cause_answer(tables),
        details=[page.Paragraph(page.unbroken(cause_words.cause_detail(tables)))],
        sections=[*sections, *table_files(run_dir)],
        method=METHOD,
        facts={"": {capitalised(name): words for name, words in named.items() if words}},
        aside=[cause_words.n_in_words(record)],
        styles=("report.css", "causes.css"),
    ).html()


def causes_section(run_dir: Path, tables: CauseTables, layers: dict[int, str]) -> page.PageSection:
    """Return the section on interventions of a run's page.

    Args:
        run_dir: folder of the run.
        tables: interventions of the run.
        layers: labels of the layer axis of the run's layer curve, by depth.

    Raises:
        DataError: a file cannot be read.
    """
    shown, folded = cause_items(tables, layers)
    detail = page.Paragraph(page.unbroken(cause_words.cause_detail(tables)))
    items: list[page.Item] = [detail, *shown, *folded, *table_files(run_dir)]
    return page.PageSection("Causes", items, css="causes", anchor="causes")


def cause_items(
    tables: CauseTables, layers: dict[int, str] | None = None
) -> tuple[list[page.Item], list[page.FigurePart]]:
    """Return the verdicts, cautions and open figures of interventions, and the folded figures.

    Cautions are warnings, and texts that were left out.
    """
    parts = cause_parts(tables, layers)
    shown = [part for part in parts if part.is_open]
    # A figure with a third panel is as wide as the page.
    layouts = ["wide" if "xaxis3" in part.figure["layout"] else "" for part in shown]
    figures = [page.Group(layout, [part]) for layout, part in zip(layouts, shown, strict=True)]
    cautions = [
        *tables.record.warnings,
        *(f"{counted(part.n, 'text')} left out: {part.reason}" for part in tables.record.left_out),
    ]
    items = [*_verdicts(tables), *(page.Paragraph(sentence, "note") for sentence in cautions)]
    folded = [part for part in parts if not part.is_open]
    return [*items, page.Group("columns cause-figures", figures, column=34)], folded


def _verdicts(tables: CauseTables) -> Iterator[page.Item]:
    """Yield the table of verdicts with its note, other directions folded, and verdicts in words.

    The words of a single direction are a paragraph, those of several are folded. Nothing is
    yielded without verdicts.
    """
    table, words = cause_words.verdict_table(tables.verdict.directions)
    shown, others = table.rows[: cause_words.MOST_ROWS], table.rows[cause_words.MOST_ROWS :]
    if not shown:
        return
    yield _unbroken(replace(table, rows=shown))
    if len(shown) == 1 and words.rows:
        yield page.Paragraph(str(words.rows[0][1]))
    yield page.Paragraph(page.unbroken(NOTE), "note")
    if others:
        n = len(others)
        title = "The other direction" if n == 1 else f"The other {n} directions"
        rest = replace(table, title="Verdicts on the other directions", rows=others)
        yield page.Fold(title, [_unbroken(rest)])
    if len(shown) > 1 and words.rows:
        yield page.Fold("Verdicts in words", [words])


def _unbroken(table: ResultTable) -> ResultTable:
    """Return a table whose values are not broken into two lines."""

    def whole(cell: Cell | str) -> Cell | str:
        if isinstance(cell, str):  # a dash for a question that was not tested
            return cell
        small = [(page.unbroken(text), css) for text, css in cell.small]
        return replace(cell, text=page.unbroken(cell.text), small=small)

    return replace(table, rows=[list(map(whole, row)) for row in table.rows])


def cause_figures(run_dir: Path, layers: dict[int, str] | None = None) -> list[page.FigurePart]:
    """Return the figures of a run's interventions; [] without interventions.

    Raises:
        DataError: a file cannot be read.
    """
    tables = open_causes(run_dir)
    return [] if tables is None else cause_parts(tables, layers)


def table_files(run_dir: Path) -> list[page.Files]:
    """Return the links that save the tables of a run's interventions; [] without tables."""
    links = []
    for path in (run_dir / FOLDER / f"{name}.csv" for name in TABLES):
        if path.exists():
            with reading_run_file(path):
                content = inside(path).read_text("utf-8")
            links.append((f"Save {path.name}", path.name, content))
    return [page.Files(links)] if links else []


def cause_parts(tables: CauseTables, layers: dict[int, str] | None = None) -> list[page.FigurePart]:
    """Return the figures of a run's interventions; other measures, tokens and methods are folded.

    Args:
        tables: interventions of the run.
        layers: labels of the layer axis of the run's layer curve, by depth; without them the axis
            has those of the edited sites.
    """
    main = tables.verdict.measure
    opened: set[tuple[str, str]] = set()
    in_order: dict[str, list[page.FigurePart]] = {"curve": [], "tokens": [], "heads": []}
    for edits in tables.verdict.sets:
        for kind, sites, part in _edit_parts(edits, tables, layers):
            # The first figure of each kind of figure and site is open.
            is_open = edits.measure == main and (kind, sites) not in opened
            if is_open:
                opened.add((kind, sites))
            in_order[kind].append(replace(part, is_open=is_open))
    parts = [part for of_kind in in_order.values() for part in of_kind]
    return [*parts, *_sized(_dose_parts(tables)), *_sized(_refit_parts(tables, layers))]


def _edit_parts(
    edits: EditSet, tables: CauseTables, layers: dict[int, str] | None
) -> Iterator[tuple[str, str, page.FigurePart]]:
    """Yield kind, sites and figure for each figure of the patches or ablations of a set.

    The kind is `curve`, `tokens` or `heads`; the one curve has all sites, written as "".
    """
    noun, replacement = REPLACEMENTS[edits.replacement]
    # The facts that the figures of a set of edits share.
    measure = f"{measure_title(edits.measure)} ({edits.unit}{_answers(tables)})"
    quantity = f"Measure: change of the {measure} relative to the unedited text."
    if edits.shown == RECOVERY:
        quantity = (
            f"Recovery of the {measure}: share of the difference between the counterfactual and "
            "the unedited text."
        )
    elif edits.do == "patch":
        quantity += (
            " Recovery is undefined, because the interval of the difference between counterfactual "
            "and unedited text contains 0."
        )
    p, test = edits.rows["p_best"].min(), "Not tested."  # p is NaN if no edit was tested
    if not pd.isna(p):
        few = f" {FEW_GROUPS}" if edits.rows["groups"].min() < ENOUGH_GROUPS else ""
        test = (
            f"Control: the unedited text; smallest {p_words(float(p))}, adjusted for "
            f"{counted(edits.n_edits, 'edit')}.{few}"
        )
    caption = (
        f"Replacement: {replacement}, {cause_words.where(tables.record, edits.at)}. "
        f"{quantity} {sizes_in_words(edits.rows)}. {test}"
    )
    place = f"{noun} {cause_words.where(tables.record, edits.at)}"
    title = capitalised(edits.title)
    if edits.shown == RECOVERY and edits.measure != tables.verdict.measure:
        title = f"Recovery of {measure_title(edits.measure)}"
    # Edits at each token have only maps by token; others have a curve and maps by head.
    if edits.at == "each":
        for sites, rows, figure in token_maps(edits, tables.record):
            n_heads = len(rows[["layer", "head"]].dropna().drop_duplicates())
            most = f" Shown: the {MOST_HEADS} heads with the largest effects, of {n_heads}."
            selection = most if n_heads > MOST_HEADS else ""
            words = f"{caption}{selection}{_tokens(tables)} Framed: the largest absolute value."
            heading = f"{title} by layer and token · {sites}, {noun}"
            description = edit_description(edits, rows, f" by layer and token, {sites}")
            yield "tokens", sites, _resized(map_part(heading, figure, words, description))
        return
    of_parts = {str(part): rows for part, rows in edits.of_heads.groupby("part", sort=False)}
    rows = curve_lines_of(edits)
    if not rows.empty:
        maps_of = f" Single heads of {', '.join(of_parts)} have a map of their own."
        curve = page.FigurePart(
            f"{title} by layer · {place}",
            page.figure_json(cause_curve(edits, layers)),
            f"{caption} Bands or bars: 95 % intervals over groups.{maps_of if of_parts else ''}",
            edit_description(edits, rows, " by layer"),
        )
        yield "curve", "", curve
    for part, rows in of_parts.items():
        heading = f"{title} by layer and head · {part}, {place}"
        words = f"{caption} Framed: the head with the largest absolute value."
        description = edit_description(edits, rows, f" by layer and head, {part}")
        head_map = map_part(heading, head_map_of(edits, part), words, description)
        yield "heads", part, _resized(head_map)


def _resized(part: page.FigurePart) -> page.FigurePart:
    """Return a map with rows of less height if it has too many cells for numbers in them."""
    rows = part.figure["data"][0]["z"]
    if len(rows) * len(rows[0]) <= MOST_TEXTS:
        return part
    # 10 rem are for titles and tick labels. A map of few rows is as high as one of 16.
    return replace(part, height=10 + SMALL_ROW * max(len(rows), 16))


def _answers(tables: CauseTables) -> str:
    """Return the end of a measure's unit that names the answer and the wrong one, or "".

    They are those of the first measure: the record has no others.
    """
    named = tables.record.answers
    words = " against ".join(named[name] for name in ("answer", "wrong") if name in named)
    return f"; {words}" if "answer" in named else ""


def _tokens(tables: CauseTables) -> str:
    """Return a sentence, after a space, on the tokens along an axis; "" if they are unknown."""
    record = tables.record
    if not record.tokens:
        return ""
    if all(record.same_tokens):
        return " All texts have these tokens."
    return " Tokens of the first text; in italics where other texts have another token."


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
    return f"{capitalised(edits.title)}{place}, largest first. {'; '.join(named)}."


def _dose_parts(tables: CauseTables) -> Iterator[page.FigurePart]:
    """Yield the dose-response figure of each method and choice of tokens.

    A figure has at most `MOST_PANELS` sites, those with the largest effects.
    """
    for along, at, panels in dose_panels(tables):
        shown = steepest(panels)
        named = []
        for title, rows in shown:
            ends = rows.sort_values("by").iloc[[0, -1]]
            doses = [f"{fixed(row['effect'], 2)} at {row['by']:+g}" for _, row in ends.iterrows()]
            named.append(f"{title} {', '.join(doses).replace('-', '−')}")
        yield page.FigurePart(
            f"Dose-response · {cause_words.METHODS[along]}, {cause_words.where(tables.record, at)}",
            page.figure_json(dose_figure(shown)),
            dose_caption(along, at, shown, n_all=len(panels), tables=tables),
            f"Change of the measure by dose. {'; '.join(named)}.",
        )


def dose_caption(
    along: str, at: str, panels: Sequence[Panel], n_all: int, tables: CauseTables
) -> str:
    """Return the caption of dose-response curves; `panels` are the shown ones of `n_all`.

    The number of texts is that of the verdicts at their sites, or without any that of the record.
    """
    rows, record = pd.concat([of_panel for _, of_panel in panels]), tables.record
    verdicts = only(tables.verdicts, along=along, at=at)
    verdicts = verdicts[verdicts["site"].isin(rows["site"])]
    towards = f" towards {class_label(record.classes[-1])}" if record.classes else ""
    measure = measure_title(record.measures[0]) if record.measures else "measure"
    size = cause_words.n_in_words(record) if verdicts.empty else sizes_in_words(verdicts)
    folds = f" and {counted(record.folds, 'fold')}" if record.folds > 1 else ""
    known = rows.dropna(subset="other_loss").sort_values("other_loss")
    loss = ""
    if not known.empty:
        worst = known.iloc[-1][["other_loss", "other_low", "other_high"]]
        most = cause_words.interval_in_words(*worst)
        loss = f" Change of the loss on other texts: at most {most} nats per token."
    n = len(panels)
    chosen = f" The {n} of {n_all} sites with the largest effects." if n < n_all else ""
    return (
        "Edit: multiples of the standard deviation of the projection are added along the "
        f"direction ({cause_words.METHODS[along]}), {cause_words.where(record, at)}. Measure: mean "
        f"change of the {measure} ({rows['unit'].iloc[0]}{_answers(tables)}){towards}. "
        f"{size}{folds}. Controls: 95 % of {record.draws:,} directions on permuted labels, which "
        "the test compares with (grey); 95 % of random directions with the features' covariance, "
        f"not tested (dotted).{loss}{chosen}"
    )


def _refit_parts(tables: CauseTables, layers: dict[int, str] | None) -> Iterator[page.FigurePart]:
    """Yield figures of the accuracy of probes fitted again after erasure.

    There is a figure for each method and choice of tokens, with its first `MOST_PANELS` panels.
    """
    for along, at, panels in refit_panels(tables):
        shown, named, n_all = panels[:MOST_PANELS], [], len(panels)
        for title, rows in shown:
            first, last = rows.iloc[0], rows.iloc[-1]
            named.append(
                f"{title}: {fixed(first['before'], 2)} before and {fixed(first['after'], 2)} after "
                f"at the first site, {fixed(last['before'], 2)} and {fixed(last['after'], 2)} at "
                "the last"
            )
        size = sizes_in_words(pd.concat([rows for _, rows in shown]))
        first_ones = f" Shown: the first {len(shown)} of {n_all}." if n_all > MOST_PANELS else ""
        method, tokens = cause_words.METHODS[along], cause_words.where(tables.record, at)
        yield page.FigurePart(
            f"Accuracy after erasure · {method}, {tokens}",
            page.figure_json(refit_figure(shown, layers)),
            f"Edit: erasure ({method}), replaced by the mean, {tokens}. Probes are fitted again at "
            "this site and every later one. Measure: balanced accuracy (share); bands: 95 % "
            f"intervals over groups. {size}. Controls: the same probes without erasure, and "
            f"chance.{first_ones}",
            f"Balanced accuracy before and after erasure. {'; '.join(named)}.",
        )


def _sized(parts: Iterable[page.FigurePart]) -> Iterator[page.FigurePart]:
    """Yield figures of panels with the height for their number; the first one is open.

    One or two panels are one row, for which the default height is enough.
    """
    for number, part in enumerate(parts):
        n = sum(name.startswith("xaxis") for name in part.figure["layout"])
        yield replace(part, is_open=number == 0, height=panels_height(n) if n > 2 else None)
