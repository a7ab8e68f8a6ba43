"""The form of pages about one network: lens, heads, attribution and patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probekit.report.elements import page
from probekit.report.elements.table import ResultTable
from probekit.report.elements.texts import model_title


@dataclass(frozen=True)
class NetworkPage:
    """Contents of a page about one network.

    Attributes:
        subject: what is shown of the network, such as "heads".
        title: the question that the page answers.
        answer: the answer in a sentence.
        detail: further sentences below it.
        numbers: figures and tables with the numbers of the answer.
        caveat: what these numbers do not show.
        sections: items of the following sections, by heading.
        table: all numbers, hidden until the reader opens them, with their heading; None without.
        method: how the numbers were computed, in sentences.
    """

    subject: str
    title: str
    answer: str
    detail: str
    numbers: page.Group
    caveat: str
    sections: Mapping[str, Sequence[page.Item]]
    table: tuple[str, ResultTable] | None
    method: Sequence[str]

    def html(self, model: str, facts: Mapping[str, str]) -> str:
        """Return the page as HTML, with the name or path of the model and facts by name."""
        sections = [
            page.PageSection("", [self.numbers, page.Paragraph(self.caveat, "note")], "first")
        ]
        sections += [page.PageSection(*section) for section in self.sections.items()]
        if self.table is not None:
            heading, table = self.table
            sections.append(page.PageSection(heading, [page.Fold(table.title, [table])]))
        return page.Page(
            eyebrow=["probekit", self.subject, model_title(model)],
            title=self.title,
            answer=self.answer,
            details=[page.Paragraph(self.detail)],
            sections=sections,
            method=self.method,
            facts={"": facts},
            styles=("report.css", "analysis.css"),  # maps may be wide
        ).html()
