"""Figures of a run for notebooks: Plotly figures, with a picture where kaleido is installed."""

from __future__ import annotations

import base64
from typing import Any

import plotly.graph_objects as go

from probekit.errors import MissingError
from probekit.report.figures.figure_files import REM, check_engine
from probekit.report.pages.page import FigurePart, figure_json

PLOTLY_TYPE = "application/vnd.plotly.v1+json"
WIDTH, HEIGHT = 760, 400  # pixels of the picture


class ResultFigure(go.Figure):  # type: ignore[misc]  # plotly has no types
    """Plotly figure of a run, which can be changed like any other.

    JupyterLab and VS Code draw it with Plotly. Viewers without Plotly, such as HTML that nbconvert
    writes, show a picture if kaleido is installed (extra `png`), and a text otherwise.
    """

    # IPython would prefer Plotly's own methods, which leave no picture for nbconvert.
    _ipython_display_ = None
    _repr_html_ = None

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

    def _repr_mimebundle_(self, *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        """Return the figure for Plotly's renderer, a picture if it can be drawn, and a text."""
        bundle = {PLOTLY_TYPE: figure_json(self), "text/plain": repr(self)}
        try:
            check_engine()
        except MissingError:
            return bundle
        import kaleido

        size = {"width": WIDTH, "height": self.layout.height or HEIGHT, "format": "png"}
        # kaleido would load MathJax from a CDN.
        png = kaleido.calc_fig_sync(self.to_dict(), opts=size, kopts={"mathjax": False})
        return bundle | {"image/png": base64.b64encode(png).decode()}

    def __repr__(self) -> str:
        return f"{self.title_text}. {self._meta('description')}"
