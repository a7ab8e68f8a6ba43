"""Texts of a run's interventions as single lines without invisible characters."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from probekit.report.texts import line_label
from probekit.results.causes.tables import CauseTables

_FREE = ("measure", "unit", "reason", "summary", "site", "erased")  # columns of any text


def legible(tables: CauseTables) -> CauseTables:
    """Return the tables with legible texts: a direction mark in one would reverse its sentence."""
    record = tables.record
    shown = record.model_copy(
        update={
            "name": line_label(record.name),
            "question": record.question and line_label(record.question),
            "position": line_label(record.position),
            "dataset": line_label(record.dataset),
            "classes": tuple(map(line_label, record.classes)),
            "measures": tuple(map(line_label, record.measures)),
            "answers": {line_label(a): line_label(b) for a, b in record.answers.items()},
            "warnings": tuple(map(line_label, record.warnings)),
            "left_out": tuple(
                one.model_copy(update={"reason": line_label(one.reason)}) for one in record.left_out
            ),
        }
    )
    return replace(
        tables,
        record=shown,
        effects=_legible_columns(tables.effects),
        verdicts=_legible_columns(tables.verdicts),
        doses=_legible_columns(tables.doses),
        downstream=_legible_columns(tables.downstream),
    )


def _legible_columns(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(**{name: table[name].map(line_label) for name in _FREE if name in table})
