"""Page layout shared by the logit lens, logit attribution and head scores.

Sections of figures and tables, followed by the provenance of the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from probekit.report.figures.style import TEMPLATE
from probekit.report.pages.parts import figure_json
from probekit.report.pages.template import render


@dataclass(frozen=True)
class Picture:
    """A figure on the page, with its title, caption and text alternative.

    Attributes:
        title: heading above the figure.
        views: versions of the figure with different colours, by menu entry. The page shows the
            first one; there is no menu for a single version.
        caption: text below the figure.
        description: the main numbers as text, for screen readers.
        height: height in rem.
        width: smallest width in rem; narrower windows scroll.
    """

    title: str
    views: Mapping[str, go.Figure]
    caption: str
    description: str
    height: float
    width: float = 0

    @property
    def figure(self) -> dict[str, Any]:
        """The first view, as plain JSON values."""
        return figure_json(next(iter(self.views.values())))

    @property
    def changes(self) -> dict[str, dict[str, Any]]:
        """How each view differs from the first: its trace properties, and its background colour."""
        first = self.figure["data"]
        return {
            name: {
                "traces": [
                    {key: value for key, value in trace.items() if value != base.get(key)}
                    for trace, base in zip(figure_json(view)["data"], first, strict=True)
                ],
                "ground": view.layout.plot_bgcolor or TEMPLATE.layout.plot_bgcolor,
            }
            for name, view in self.views.items()
        }


@dataclass(frozen=True)
class Cells:
    """A table on the page, sortable by a click on a column heading.

    Attributes:
        title: title of the table.
        columns: column headings.
        rows: cell texts, one per column.
        is_open: whether the table is expanded when the page loads.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_open: bool = False


@dataclass(frozen=True)
class PageSection:
    """A section of the page: heading, sentences, figures and tables."""

    title: str
    sentences: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Cells] = ()


@dataclass(frozen=True)
class AnalysisPage:
    """Contents of a page of figures and tables.

    Attributes:
        eyebrow: line above the title.
        title: title of the page.
        answer: main result, in sentences.
        notes: notes on how to read the page.
        parts: sections, in order.
        facts: provenance of the numbers, by name.
    """

    eyebrow: str
    title: str
    answer: str
    notes: Sequence[str]
    parts: Sequence[PageSection]
    facts: Mapping[str, str] = field(default_factory=dict)

    def html(self) -> str:
        """Return the page as self-contained HTML; equal contents give equal bytes."""
        return render("analysis.html", page=self)
