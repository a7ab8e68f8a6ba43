"""Figures of a run for notebooks: interactive with Plotly, and as a picture everywhere else."""

from __future__ import annotations

import html
from typing import Any

import plotly.graph_objects as go

from probekit.report.figures.figure_files import REM
from probekit.report.notebooks.picture import HEIGHT, figure_svg
from probekit.report.pages.parts import FigurePart, figure_json

PLOTLY_TYPE = "application/vnd.plotly.v1+json"


class ResultFigure(go.Figure):  # type: ignore[misc]  # plotly has no types
    """Plotly figure of a run, which can be changed like any other.

    JupyterLab and VS Code draw it with Plotly. Everywhere else, such as in HTML that nbconvert
    writes, it is an SVG picture of a few kilobytes that needs neither a script nor a network.
    """

    # IPython would prefer Plotly's own method, which leaves no picture for nbconvert.
    _ipython_display_ = None

    @classmethod
    def of(cls, part: FigurePart) -> ResultFigure:
        """Return the figure of a part of a page."""
        figure = cls(part.figure)
        texts = {"title": part.title, "caption": part.caption, "description": part.description}
        figure.update_layout(meta=texts)
        if part.height is not None:
            figure.update_layout(height=round(REM * part.height))
        return figure

    @property
    def title_text(self) -> str:
        """The heading of the figure on the page of the run."""
        return self._meta("title")

    @property
    def caption(self) -> str:
        """What the figure shows, with its intervals and baselines."""
        return self._meta("caption")

    def _meta(self, name: str) -> str:
        meta = self.layout.meta
        return str(meta.get(name, "")) if isinstance(meta, dict) else ""

    def svg(self) -> str:
        """Return the figure as an SVG element, drawn without a browser."""
        height = self.layout.height or HEIGHT
        return figure_svg(figure_json(self), self._meta("description"), height=height)

    def _repr_html_(self) -> str:
        caption = html.escape(self.caption)
        return (
            f'<figure style="margin:0;max-width:760px"><strong>{html.escape(self.title_text)}'
            f"</strong>{self.svg()}<figcaption>{caption}</figcaption></figure>"
        )

    def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the representations of Plotly's renderer, a picture and a text."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(*args, **kwargs)
        own = {
            PLOTLY_TYPE: figure_json(self),
            "text/html": self._repr_html_(),
            "text/plain": repr(self),
        }
        return own | bundle

    def __repr__(self) -> str:
        return f"{self.title_text}. {self._meta('description')}"
