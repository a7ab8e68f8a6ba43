"""The section on interventions: answer, table of verdicts, figures and files."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path

from probekit.amounts import counted
from probekit.files import inside
from probekit.report.causes.directions import directions_in
from probekit.report.causes.figure_parts import cause_parts
from probekit.report.causes.legible import legible
from probekit.report.causes.verdict_table import (
    VerdictCell,
    VerdictRow,
    VerdictTable,
    verdict_table,
)
from probekit.report.pages.page import FigurePart, Files, Fold, Group, Item, Pairs, Section, Text
from probekit.report.pages.table import Cell, Column, Table
from probekit.report.pages.template import unbroken
from probekit.results.causes import FOLDER, TABLES, CauseTables, has_causes
from probekit.results.record import reading_run_file

NOTE = (
    "Yes: p ≤ 0.05, adjusted for the questions of a direction, and the 95 % interval is above 0. "
    "No: the interval is within 5 % of the effect of the whole vector around 0. p of steers, "
    "silences and swap: comparison with directions on permuted labels; of detects: exchange of "
    "labels."
)


def causes_section(run_dir: Path, tables: CauseTables, layers: dict[int, str]) -> Section:
    """Return the section on interventions of a run's page.

    Args:
        run_dir: folder of the run.
        tables: interventions of the run.
        layers: labels of the layer axis of the run's layer curve, by depth.

    Raises:
        DataError: a file cannot be read.
    """
    shown, folded = cause_items(tables, layers)
    return Section("Causes", [*shown, *folded, *table_files(run_dir)], "causes", "causes")


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
    items = [*_verdicts(tables), *(Text(sentence, "note") for sentence in cautions)]
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
    yield directions_table(found, found.rows, "Verdicts on directions")
    is_single = len(found.rows) == 1
    if is_single and found.rows[0].summary:
        yield Text(found.rows[0].summary)
    yield Text(unbroken(NOTE), "note")
    if found.folded:
        n = len(found.folded)
        title = "The other direction" if n == 1 else f"The other {n} directions"
        others = "Verdicts on the other directions"
        yield Fold(title, [directions_table(found, found.folded, others)])
    if not is_single and any(row.summary for row in found.rows):
        yield Fold("Verdicts in words", [_summaries(found.rows), _summaries(found.folded)])


def directions_table(
    found: VerdictTable, rows: Sequence[VerdictRow], title: str = "direction at"
) -> Table:
    """Return the table of some rows of the verdicts."""
    columns = [Column(name, "words", unit=unit) for name, unit in found.columns]
    return Table(
        title,
        [Column("direction at", "site"), *columns],
        [(_name(row), *map(_cell, row.cells)) for row in rows],
        css="verdict-table",
    )


def _name(row: VerdictRow) -> Cell:
    remarks = [(unbroken(remark), "remark") for remark in row.remarks]
    return Cell(row.site, [(row.details, ""), *remarks], hint=row.name)


def _cell(cell: VerdictCell | None) -> Cell | str:
    if cell is None:
        return "–"
    small = [(unbroken(cell.p), ""), (cell.remark, "remark")]
    return Cell(unbroken(cell.effect), small, lead=cell.answer)


def _summaries(rows: Sequence[VerdictRow]) -> Pairs:
    """Return the verdicts in words, by direction."""
    named = [(Cell(row.site, [(row.details, "")]), row.summary) for row in rows if row.summary]
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
