"""The templates, style sheets and scripts that lie in assets/."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs


def render(name: str, **values: Any) -> str:
    """Return a template of assets/ filled with values; text is escaped unless it is Markup."""
    return _ENVIRONMENT.get_template(name).render(**values)


def _asset(name: str) -> Markup:
    """Return a style sheet or script as it is, to stand inside its own element."""
    return Markup(files("probekit.report").joinpath("assets", name).read_text("utf-8"))


def _plotly_js() -> Markup:
    """Return the script of plotly, so that a page draws its figures without a network."""
    return Markup(get_plotlyjs())


_ENVIRONMENT = Environment(
    loader=PackageLoader("probekit.report", "assets"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals.update(asset=_asset, plotly_js=_plotly_js)
