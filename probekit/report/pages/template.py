"""Rendering of the templates, style sheets and scripts in assets/."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs


def render(name: str, **values: Any) -> str:
    """Return a rendered template of assets/; values are escaped unless they are Markup."""
    return _ENVIRONMENT.get_template(name).render(**values)


def _asset(name: str) -> Markup:
    """Return a style sheet or script unescaped, for use inside a <style> or <script> element."""
    return Markup(files("probekit.report").joinpath("assets", name).read_text("utf-8"))


def _plotly_js() -> Markup:
    """Return the Plotly library, so that pages draw their figures offline."""
    return Markup(get_plotlyjs())


_ENVIRONMENT = Environment(
    loader=PackageLoader("probekit.report", "assets"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals.update(asset=_asset, plotly_js=_plotly_js)
