"""Columns that an experiment does not use, on a page."""

from collections.abc import Iterator

from probekit.amounts import LEVEL
from probekit.chosen.page import Columns, Shown, written_table
from probekit.report.elements.page import PageSection, Paragraph
from probekit.report.sentences.caveats import Caveat
from probekit.results.verdict import Verdict

NOTE = (
    "Columns of the data that the experiment does not use, tested against the label by random "
    "signs of groups (rank and square of numbers, values of categories), p adjusted by Holm. The "
    f"AUROC of a column alone in held-out groups is computed if p < {LEVEL:g}; from 0.60 on there "
    "is a warning. Row numbers, names, constants and free texts are left out."
)
COLUMNS: Columns = {"column": "column", "adjusted p": "p_holm", "AUROC alone": "auroc"}


def details(run: Shown) -> Iterator[PageSection]:
    """Yield the section of a run whose data have further columns."""
    rows = run.rows("unasked.csv")
    if rows is not None:
        rows = rows.sort_values(["p_holm", "auroc"], ascending=[True, False])
        table = written_table("Table of columns that are not used", COLUMNS, rows)
        yield PageSection("Columns of the data", [table, Paragraph(NOTE, "note")])


def doubts(v: Verdict) -> Iterator[Caveat]:
    """Yield a warning for each column that predicts the label."""
    yield from (Caveat("unasked", text) for text in v.unasked)
