"""Page layout shared by the logit lens, logit attribution and head scores.

The answer, then sections of figures and tables, then the method and provenance of the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

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
        is_open: whether the table is shown when the page loads; others are folded.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_open: bool = False


@dataclass(frozen=True)
class PageSection:
    """A section of the page: heading, figures and tables.

    Attributes:
        title: heading; "" for the section under the answer, which needs none.
        pictures: figures.
        tables: tables.
        layout: `rows` for one below the other, `split` for figures to the left of tables, `grid`
            for figures next to each other.
        note: remark under the figures.
    """

    title: str
    pictures: Sequence[Picture] = ()
    tables: Sequence[Cells] = ()
    layout: Literal["rows", "split", "grid"] = "rows"
    note: str = ""


@dataclass(frozen=True)
class AnalysisPage:
    """Contents of a page of figures and tables.

    Attributes:
        eyebrow: line above the title.
        title: question that the page answers.
        answer: the answer, as one sentence.
        detail: the circumstances of the answer, in sentences.
        caveat: the most important limit of the method, shown under the first section.
        parts: sections, in order; the first one contains the numbers of the answer.
        method: how the numbers were computed, in sentences; folded.
        facts: provenance of the numbers, by name; folded.
    """

    eyebrow: str
    title: str
    answer: str
    detail: str
    caveat: str
    parts: Sequence[PageSection]
    method: Sequence[str]
    facts: Mapping[str, str] = field(default_factory=dict)

    def html(self) -> str:
        """Return the page as self-contained HTML; equal contents give equal bytes."""
        return render("analysis.html", page=self)
