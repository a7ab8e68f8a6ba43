"""The page of what is computed for a picture: figures, tables, and what they rest on.

Lenses, attributions and head scores fill the same frame.
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
    """A figure as the page embeds it.

    Attributes:
        title: above it.
        views: the same figure in several colourings, by the name that a menu gives them; the first
            is shown, and with one there is no menu.
        caption: below it.
        description: its numbers in words, for who cannot see it.
        height: in rem.
        width: in rem, below which it is scrolled.
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
        """What differs from the first view in each trace of a view, and what shows in its gaps."""
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
    """A table as the page shows it, sorted by a click on the name of a column.

    Attributes:
        title: what it holds.
        columns: their names.
        rows: a text for each column.
        is_open: whether it is shown before anybody asks.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_open: bool = False


@dataclass(frozen=True)
class PageSection:
    """A section of the page: a heading, sentences, figures, tables."""

    title: str
    sentences: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Cells] = ()


@dataclass(frozen=True)
class AnalysisPage:
    """All that stands on the page.

    Attributes:
        eyebrow: the line above the title.
        title: of the page.
        answer: what was found, in sentences.
        notes: what has to be known to read it.
        parts: the sections.
        facts: what the numbers rest on, by name.
    """

    eyebrow: str
    title: str
    answer: str
    notes: Sequence[str]
    parts: Sequence[PageSection]
    facts: Mapping[str, str] = field(default_factory=dict)

    def html(self) -> str:
        """Return the page; it asks no network, and the same contents give the same bytes."""
        return render("analysis.html", page=self)
