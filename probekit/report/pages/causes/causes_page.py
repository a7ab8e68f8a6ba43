"""Interventions: the page of a run that has only these, and their section on the page of a run."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from probekit.amounts import counted
from probekit.files import inside, write_atomic
from probekit.report.causes.cause_answer import VerdictTable, cause_answer, verdict_table
from probekit.report.causes.edits import directions_in, legible, n_in_words
from probekit.report.causes.figure_parts import cause_parts
from probekit.report.pages.page import (
    FigurePart,
    Files,
    Fold,
    Group,
    Item,
    Page,
    PageSection,
    Pairs,
    Paragraph,
)
from probekit.report.pages.table import Cell, Column, ResultTable
from probekit.report.pages.template import unbroken
from probekit.report.texts import capitalised, model_title
from probekit.results.causes import FOLDER, TABLES, CausesRecord, CauseTables, has_causes
from probekit.results.record import reading_run_file

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
    tables = legible(CauseTables.open(run_dir))
    record = tables.record
    shown, folded = cause_items(tables)
    sections: list[Item] = [Group("causes", shown)]
    if folded:
        sections.append(PageSection("More figures", folded, "folds"))
    return Page(
        eyebrow=["probekit", "interventions", record.name, model_title(record.model)],
        title=record.question or record.name,
        answer=cause_answer(tables),
        sections=[*sections, *table_files(run_dir)],
        method=METHOD,
        facts={"": _facts(record)},
        aside=[n_in_words(record)],
        styles=("report.css", "causes.css"),
    ).html()


def _facts(record: CausesRecord) -> dict[str, str]:
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
    return {capitalised(name): words for name, words in named.items() if words}


def causes_section(run_dir: Path, tables: CauseTables, layers: dict[int, str]) -> PageSection:
    """Return the section on interventions of a run's page.

    Args:
        run_dir: folder of the run.
        tables: interventions of the run.
        layers: labels of the layer axis of the run's layer curve, by depth.

    Raises:
        DataError: a file cannot be read.
    """
    shown, folded = cause_items(tables, layers)
    return PageSection("Causes", [*shown, *folded, *table_files(run_dir)], "causes", "causes")


def cause_items(
    tables: CauseTables, layers: dict[int, str] | None = None
) -> tuple[list[Item], list[FigurePart]]:
    """Return the verdicts, doubts and open figures of interventions, and the folded figures.

    Doubts are warnings, and texts that were left out.
    """
    parts = cause_parts(tables, layers)
    figures = [_framed(part) for part in parts if part.is_open]
    cautions = [
        *tables.record.warnings,
        *(f"{counted(one.n, 'text')} left out: {one.reason}" for one in tables.record.left_out),
    ]
    items = [*_verdicts(tables), *(Paragraph(sentence, "note") for sentence in cautions)]
    return [*items, Group("cause-figures", figures)], [one for one in parts if not one.is_open]


def _framed(part: FigurePart) -> Group:
    """Return a figure in a frame, which is wide for figures of several panels."""
    return Group("wide" if "xaxis3" in part.figure["layout"] else "", [part])


def _verdicts(tables: CauseTables) -> Iterator[Item]:
    """Yield the table of verdicts with its note, other directions folded, and the summaries."""
    directions = directions_in(tables)
    if not directions:
        return
    found = verdict_table(directions)
    yield _directions(found, found.rows, "Verdicts on directions")
    is_single = len(found.rows) == 1
    if is_single and found.rows[0]["summary"]:
        yield Paragraph(found.rows[0]["summary"])
    yield Paragraph(unbroken(NOTE), "note")
    if found.folded:
        n = len(found.folded)
        title = "The other direction" if n == 1 else f"The other {n} directions"
        others = "Verdicts on the other directions"
        yield Fold(title, [_directions(found, found.folded, others)])
    if not is_single and any(row["summary"] for row in found.rows):
        yield Fold("Verdicts in words", [_summaries(found.rows), _summaries(found.folded)])


def _directions(found: VerdictTable, rows: Sequence[Mapping[str, Any]], title: str) -> ResultTable:
    """Return the table of some rows of the verdicts."""
    columns = [Column(name, "words", unit=unit) for name, unit in found.columns]
    return ResultTable(
        title,
        [Column("direction at", "site"), *columns],
        [(_name(row), *map(_cell, row["cells"])) for row in rows],
        css="verdict-table",
    )


def _name(row: Mapping[str, Any]) -> Cell:
    remarks = [(unbroken(remark), "remark") for remark in row["remarks"]]
    return Cell(row["site"], [(row["details"], ""), *remarks], hint=row["name"])


def _cell(cell: Mapping[str, str] | None) -> Cell | str:
    if cell is None:
        return "–"
    small = [(unbroken(cell["p"]), ""), (cell["remark"], "remark")]
    return Cell(unbroken(cell["effect"]), small, lead=cell["answer"])


def _summaries(rows: Sequence[Mapping[str, Any]]) -> Pairs:
    """Return the verdicts in words, by direction."""
    named = [
        (Cell(row["site"], [(row["details"], "")]), row["summary"])
        for row in rows
        if row["summary"]
    ]
    return Pairs(named, css="summaries")


def cause_figures(run_dir: Path, layers: dict[int, str] | None = None) -> list[FigurePart]:
    """Return the figures of a run's interventions; [] without interventions.

    Raises:
        DataError: a file cannot be read.
    """
    return cause_parts(legible(CauseTables.open(run_dir)), layers) if has_causes(run_dir) else []


def table_files(run_dir: Path) -> list[Files]:
    """Return the links that save the tables of a run's interventions."""
    found = []
    for path in (run_dir / FOLDER / f"{name}.csv" for name in TABLES):
        if path.exists():
            with reading_run_file(path):
                content = b64encode(inside(path).read_bytes()).decode()
            found.append((f"Save {path.name}", path.name, content))
    return [Files(found)] if found else []
