"""Findings: results of the checks of a data set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from probekit.data.examples import Example

Severity = Literal["error", "warning", "info"]

_LEVELS: tuple[Severity, ...] = ("error", "warning", "info")
_SHOWN_ROWS = 3


@dataclass(frozen=True)
class Finding:
    """Result of a check.

    Attributes:
        level: "error" if results are wrong, "warning" if they may be, else "info".
        code: short, stable identifier.
        message: description with numbers.
    """

    level: Severity
    code: str
    message: str


def by_level(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings sorted by level, errors first, otherwise in their order."""
    return tuple(sorted(findings, key=lambda finding: _LEVELS.index(finding.level)))


def rows_of(examples: Sequence[Example]) -> str:
    """Return the sources of the first few examples, such as file and line.

    >>> from probekit.data.examples import RowSource
    >>> sources = [RowSource("a.csv", line) for line in range(2, 7)]
    >>> examples = [Example("a", "x", "g", str(row), source=row) for row in sources]
    >>> rows_of(examples)
    'a.csv:2, a.csv:3, a.csv:4, and 2 more'
    """
    more = f", and {len(examples) - _SHOWN_ROWS:,} more" if len(examples) > _SHOWN_ROWS else ""
    return ", ".join(example.where for example in examples[:_SHOWN_ROWS]) + more
