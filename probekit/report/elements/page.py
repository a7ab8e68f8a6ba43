"""A page: title, answer, caveats, then sections of figures, tables, texts and views.

`render` fills in the templates of assets/, which contain style sheets and scripts too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar

import deflate
import numpy as np
import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from platformdirs import user_cache_path
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from probekit.files import write_atomic
from probekit.report.elements.table import Cell, ResultTable
from probekit.terminal import visible


def figure_json(figure: go.Figure) -> dict[str, Any]:
    """Return a figure as plain JSON values, with NaN as null."""
    plain: dict[str, Any] = json.loads(figure.to_json())
    return plain


# The `kind` of an item selects the part of page.html that draws it.
@dataclass(frozen=True)
class FigurePart:
    """A figure on a page, with its caption and a text alternative.

    Attributes:
        title: heading or summary above the figure.
        figure: Plotly figure as plain JSON values.
        caption: text below the figure.
        description: the main numbers as text, for screen readers.
        is_open: whether the figure is shown when the page loads; others are folded.
        height: height in rem; None for the default of the style sheet.
        width: smallest width in rem, below which the figure scrolls; None if it always fits.
        views: versions of the figure with other colours, by menu entry, given by `changes_of`; the
            first one is `figure`.
        metric: metric of the figure, or another entry of the menu; "" if it is not drawn for
            several.
        place: what the figure shows of its metric; figures of other metrics in the same place can
            replace it.
        others: figures of other metrics that the reader can choose instead.
        menu: label of the menu of metrics.
    """

    kind: ClassVar = "figure"
    title: str
    figure: dict[str, Any]
    caption: str
    description: str
    is_open: bool = True
    height: float | None = None
    width: float | None = None
    views: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metric: str = ""
    place: str = ""
    others: Sequence[FigurePart] = ()
    menu: str = "Metric"

    @property
    def style(self) -> str:
        """Height and smallest width as a style of HTML."""
        sizes = {"height": self.height, "--least": self.width}
        return "; ".join(f"{name}: {size}rem" for name, size in sizes.items() if size is not None)

    @property
    def choices(self) -> list[dict[str, Any]]:
        """The contents of `others` for the script of the page."""
        names = ("metric", "title", "figure", "caption", "description", "style")
        return [{name: getattr(other, name) for name in names} for other in self.others]


@dataclass(frozen=True)
class Paragraph:
    """A text: a paragraph, a heading above items of a section, or a text with a fixed layout.

    Attributes:
        text: the text; in paragraphs, parts between backticks are code.
        css: class of a paragraph.
        kind: `text`, `heading`, or `source` for a fixed layout, such as that of a configuration.
    """

    text: str
    css: str = ""
    kind: str = "text"


@dataclass(frozen=True)
class Texts:
    """A list of texts."""

    kind: ClassVar = "texts"
    rows: Sequence[Cell | str]


@dataclass(frozen=True)
class Pairs:
    """Names with their values."""

    kind: ClassVar = "pairs"
    rows: Sequence[tuple[Cell | str, Cell | str]]
    css: str = "pairs"
    title: str = ""


@dataclass(frozen=True)
class Files:
    """Links that save CSV files, given as the text of the link, the file name and its contents."""

    kind: ClassVar = "files"
    rows: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class View:
    """A part of a page with a template of its own, and scripts, such as coloured tokens."""

    kind: ClassVar = "view"
    template: str
    values: Mapping[str, Any]
    scripts: Sequence[str] = ()

    @property
    def html(self) -> Markup:
        """The view as HTML."""
        return Markup(render(self.template, **self.values))


@dataclass(frozen=True)
class Group:
    """Items that share a layout.

    Attributes:
        layout: class in the style sheet, "" for none: `rows`, `split` for a figure to the left of a
            table, `columns` for figures next to each other, and others.
        items: the items.
        column: smallest width of one of the `columns` in rem.
    """

    kind: ClassVar = "group"
    layout: str
    items: Sequence[Item]
    column: float = 0


@dataclass(frozen=True)
class Fold:
    """Items that are hidden until the reader opens them; `css` is their class."""

    kind: ClassVar = "fold"
    title: str
    items: Sequence[Item]
    css: str = ""
    is_open: bool = False


@dataclass(frozen=True)
class PageSection:
    """A section of a page; `css` is its class.

    It is `first` for the one that follows the answer, or `screen` for that of a run's report.
    """

    kind: ClassVar = "section"
    title: str
    items: Sequence[Item]
    css: str = ""
    anchor: str = ""


Item = (
    FigurePart | ResultTable | Paragraph | Texts | Pairs | Files | View | Group | Fold | PageSection
)


def pairs_of(facts: Mapping[str, Mapping[str, Any]]) -> list[Pairs]:
    """Return names and values for each heading that has any; the heading "" is not shown."""
    return [
        Pairs([(name, str(value)) for name, value in values.items()], title=heading)
        for heading, values in facts.items()
        if values
    ]


# Style sheets of pages about one network, whose maps may be wide.
WITH_MAPS = ("report.css", "analysis.css")


@dataclass(frozen=True)
class Page:
    """Contents of a self-contained page.

    Attributes:
        eyebrow: parts of the line above the title.
        title: the question that the page answers, or its subject.
        answer: the answer in sentences; "" without one, or if `details` contain several.
        sections: sections, in order; the first one contains the numbers of an answer.
        details: items below the answer.
        caveats: warnings, most serious first, shown after the first section, or in it if its class
            is `screen`; texts, or with `weight`, `message` and `similar` those of a run.
        method: how the numbers were computed, in sentences; folded.
        facts: provenance of the numbers, by heading and name; folded.
        aside: parts at the right end of the line above the title.
        head: title of the window; "" for `title`.
        styles: style sheets; `report.css` is that of pages with figures.
        scripts: modules, each given as the names of its scripts.
        is_live: whether the page refreshes itself, for which it may request its own address.
    """

    eyebrow: Sequence[str]
    title: str
    answer: str
    sections: Sequence[Item]
    details: Sequence[Item] = ()
    caveats: Sequence[Any] = ()
    method: Sequence[str] = ()
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    aside: Sequence[str] = ()
    head: str = ""
    styles: Sequence[str] = ("report.css",)
    scripts: Sequence[Sequence[str]] = ()
    is_live: bool = False

    def html(self) -> str:
        """Return the page as HTML; equal contents give equal bytes."""
        return render("page.html", page=self)


def render(name: str, **values: Any) -> str:
    """Return a rendered template of assets/; values are escaped unless they are Markup.

    Control characters, which HTML does not allow or which reverse a line, are written as code
    points in texts and escaped in JSON.
    """
    return _ENVIRONMENT.get_template(name).render(**values)


def _without_controls(value: Any) -> Any:
    r"""Return a text with control characters as code points, and any other value unchanged.

    >>> _without_controls("a\x1bb\u202e")
    'a<U+001B>b<U+202E>'
    """
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def unbroken(text: str) -> str:
    r"""Return a text whose values are not broken into two lines.

    These are 50 %, p < 0.001, n = 8, n-grams and short texts in brackets, such as intervals.

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


def _still(part: FigurePart) -> Markup:
    """Return a figure as an <svg> element."""
    from probekit.report.elements.static import still  # imports matplotlib

    return Markup(still(part.figure, part.height))


def _asset(*names: str) -> Markup:
    """Return a style sheet, or the scripts of a module, unescaped for a <style> or <script>.

    Lines of comments and indentation are left out.
    """
    found = [(files("probekit.report") / "assets" / name).read_text("utf-8") for name in names]
    return Markup(re.sub(r"(?m)^ *//.*\n|^ +", "", "\n".join(found)))


def compressed(text: str, data: bytes = b"") -> Markup:
    """Return a <script> element with a compressed text, which `unpack` in packed.js reads.

    The text is compressed in the format of zlib, unless `data` is given, which is the result, and
    written in base 85: four bytes are five digits, the most significant digit first. Base 64, which
    browsers decode themselves, would be 7 % longer.

    >>> compressed("text")
    Markup('<script type="text/plain" class="packed" data-bytes="15">c-jF30Q:)RWq5Q1X930l</script>')
    """
    data = data or bytes(deflate.zlib_compress(text.encode(), 10))
    words = np.frombuffer(data + bytes(-len(data) % 4), ">u4").astype(np.uint32)
    digits = [words // 85**power % 85 for power in (4, 3, 2, 1, 0)]
    table = np.frombuffer(_DIGITS.encode(), np.uint8)
    content = table[np.stack(digits, axis=1).ravel()].tobytes().decode()
    return Markup(
        f'<script type="text/plain" class="packed" data-bytes="{len(data)}">{content}</script>'
    )


def compressed_json(value: Any) -> Markup:
    """Return a <script> element with a value as packed JSON."""
    return compressed(json.dumps(value, sort_keys=True))


@cache
def _plotly_js() -> Markup:
    """Return the Plotly library packed, so that pages draw their figures offline.

    Compressing it takes as long as the rest of a small page: the user's cache folder keeps it.
    Libdeflate makes it 4 % smaller than zlib does.
    """
    text = get_plotlyjs()
    name = f"plotly-{get_plotlyjs_version()}-deflate-{deflate.__version__}"
    # Without a home folder, on a full disk, or if the file is damaged, it is compressed again.
    with suppress(OSError, RuntimeError, deflate.DeflateError):
        path = user_cache_path("probekit") / "pages" / name
        if not path.exists():
            write_atomic(path, bytes(deflate.zlib_compress(text.encode(), 10)))
        data = path.read_bytes()
        if deflate.zlib_decompress(data, len(text.encode())) == text.encode():
            return compressed(text, data)
    return compressed(text)


# Those of RFC 1924, but "," "." ":" for "&" "<" ">", which HTML would not leave as they are.
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%,()*+-;.=:?@^_`{|}~"
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
_ENVIRONMENT.filters |= {"compressed": compressed, "compressed_json": compressed_json}
_ENVIRONMENT.globals.update(asset=_asset, digits=Markup(_DIGITS), plotly_js=_plotly_js)
_ENVIRONMENT.globals.update(pairs_of=pairs_of, still=_still)
