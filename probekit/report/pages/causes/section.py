"""The section on interventions: answer, table of verdicts, figures and files."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from probekit.amounts import counted
from probekit.files import inside
from probekit.report.causes.cause_answer import VerdictTable, cause_answer, verdict_table
from probekit.report.causes.edits import directions_in, legible
from probekit.report.causes.figure_parts import cause_parts
from probekit.report.pages.parts import FigurePart
from probekit.results.causes import FOLDER, TABLES, CausesRecord, CauseTables, has_causes
from probekit.results.record import reading_run_file

NOTE = (
    "Yes: p ≤ 0.05, adjusted for the questions of a direction, and the 95 % interval is above 0. "
    "No: the interval is within 5 % of the effect of the whole vector around 0. p of steers, "
    "silences and swap: comparison with directions on permuted labels; of detects: exchange of "
    "labels."
)


@dataclass(frozen=True, eq=False)
class CausesSection:
    """Contents of the section.

    Attributes:
        record: facts about the interventions.
        answer: the answer as one sentence.
        verdicts: table of verdicts; None without directions.
        note: how verdicts are defined.
        cautions: doubts about the results, and texts that were left out, in sentences.
        figures: open figures.
        folded: further figures, drawn when they are opened.
        files: contents of the tables by file name, in base64.
    """

    record: CausesRecord
    answer: str
    verdicts: VerdictTable | None
    note: str
    cautions: Sequence[str]
    figures: Sequence[FigurePart]
    folded: Sequence[FigurePart]
    files: Mapping[str, str]

    @classmethod
    def open(cls, run_dir: Path, layers: dict[int, str] | None = None) -> CausesSection:
        """Return the section of a run with interventions.

        Args:
            run_dir: folder of the run.
            layers: labels of the layer axis of the run's layer curve, by depth.

        Raises:
            MissingError: the run has no interventions.
            DataError: a file cannot be read.
        """
        tables = legible(CauseTables.open(run_dir))
        parts = cause_parts(tables, layers)
        directions = directions_in(tables)
        return cls(
            tables.record,
            cause_answer(tables),
            verdict_table(directions) if directions else None,
            NOTE,
            [
                *tables.record.warnings,
                *(f"{counted(o.n, 'text')} left out: {o.reason}" for o in tables.record.left_out),
            ],
            [part for part in parts if part.is_open],
            [part for part in parts if not part.is_open],
            _files(run_dir / FOLDER),
        )


def causes_section(run_dir: Path, layers: dict[int, str] | None = None) -> CausesSection | None:
    """Return the section of a run; None without interventions.

    Raises:
        DataError: a file cannot be read.
    """
    return CausesSection.open(run_dir, layers) if has_causes(run_dir) else None


def cause_figures(run_dir: Path, layers: dict[int, str] | None = None) -> list[FigurePart]:
    """Return the figures of a run's interventions; [] without interventions.

    Raises:
        DataError: a file cannot be read.
    """
    return cause_parts(legible(CauseTables.open(run_dir)), layers) if has_causes(run_dir) else []


def _files(folder: Path) -> dict[str, str]:
    paths = [folder / f"{name}.csv" for name in TABLES]
    found = {}
    for path in paths:
        if path.exists():
            with reading_run_file(path):
                found[path.name] = b64encode(inside(path).read_bytes()).decode()
    return found
