"""Rendering of the templates, style sheets and scripts in assets/."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from probekit.terminal import visible


def render(name: str, **values: Any) -> str:
    """Return a rendered template of assets/; values are escaped unless they are Markup.

    Control characters in texts, which HTML does not allow or which reverse a line, are written as
    code points. In JSON they are escaped.
    """
    return _ENVIRONMENT.get_template(name).render(**values)


def _without_controls(value: Any) -> Any:
    r"""Return a text with control characters as code points, and any other value unchanged.

    >>> _without_controls("a\x1bb\u202e")
    'a<U+001B>b<U+202E>'
    """
    is_text = isinstance(value, str) and not hasattr(value, "__html__")
    return visible(value) if is_text else value


def unbroken(text: str) -> str:
    r"""Return a text whose values are not broken into two lines: 50 %, p < 0.001, n-grams.

    >>> unbroken("50 % of n-grams, p < 0.001").split(" ")
    ['50\xa0%', 'of', 'n‑grams,', 'p\xa0<\xa00.001']
    """
    return _BREAKABLE.sub(lambda found: found[0].translate(_UNBREAKABLE), text)


def with_code(text: str) -> Markup:
    """Return a sentence as HTML, in which parts between backticks are code.

    >>> with_code("Set `probe.C` if x < 1.")
    Markup('Set <code>probe.C</code> if x &lt; 1.')
    """
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(visible(text)))))


def breakable(text: str) -> Markup:
    """Return a name that may be broken into two lines after each dot, as HTML.

    >>> breakable("blocks.0")
    Markup('blocks.<wbr>0')
    """
    return Markup(".<wbr>").join(visible(text).split("."))


def _asset(name: str) -> Markup:
    """Return a style sheet or script unescaped, for use inside a <style> or <script> element."""
    return Markup(files("probekit.report").joinpath("assets", name).read_text("utf-8"))


def _plotly_js() -> Markup:
    """Return the Plotly library, so that pages draw their figures offline."""
    return Markup(get_plotlyjs())


_CODE = re.compile("`([^`]+)`")
_BREAKABLE = re.compile(r"(?<=\d) %|\bn-grams\b|\bp [<=>] (?=\d)|\bn = (?=\d)|\[[^][]{1,24}\]")
_UNBREAKABLE = str.maketrans({" ": "\N{NO-BREAK SPACE}", "-": "\N{NON-BREAKING HYPHEN}"})

_ENVIRONMENT = Environment(
    loader=PackageLoader("probekit.report", "assets"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_without_controls,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"breakable": breakable, "unbroken": unbroken, "with_code": with_code}
_ENVIRONMENT.globals.update(asset=_asset, plotly_js=_plotly_js)
