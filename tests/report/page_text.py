"""The visible text of a page, for comparison with a stored one, and its compressed texts."""

import base64
import json
import re
import zlib
from html.parser import HTMLParser

MARKS = {"h1": "# ", "h2": "## ", "h3": "### ", "summary": "+ ", "li": "- ", "mark": "**"}
CELLS = ("td", "th", "dd")
LINES = {"p", "div", "tr", "dt", "section", "table", "pre", "option", "label", "br", "a", "figure"}
HIDDEN = ("script", "style", "svg")


class Text(HTMLParser):
    """Visible text; headings, folds, lists and cells have marks of their own."""

    def __init__(self):
        super().__init__()
        self.text, self.n_hidden = "", 0

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.n_hidden += tag in HIDDEN
        if tag in CELLS:
            self.text += " | (bad) " if given.get("class") == "bad" else " | "
        elif tag != "mark" and tag in {*MARKS, *LINES}:
            self.text += "\n"
        self.text += MARKS.get(tag, "")
        if given.get("role") in ("group", "img"):
            self.text += f"\n{given.get('aria-label', '')[:70]}\n"

    def handle_endtag(self, tag):
        self.n_hidden -= tag in HIDDEN
        if tag in MARKS:
            self.text += "**" if tag == "mark" else "\n"

    def handle_data(self, data):
        self.text += "" if self.n_hidden else data


def text_of(page):
    """Return the sentences of a page, one a line, and the first words that describe a figure."""
    parser = Text()
    parser.feed(page)
    lines = (" ".join(line.split()) for line in parser.text.replace(". ", ".\n").splitlines())
    return "\n".join(line for line in lines if line)


def packed_texts(page):
    """Return the texts that a page contains compressed, in their order."""
    ascii85 = str.maketrans(",.:", "&<>")  # to the digits of RFC 1924
    texts = []
    for n_bytes, digits in re.findall(r'class="packed" data-bytes="(\d+)">(.*?)</script>', page):
        data = base64.b85decode(digits.translate(ascii85))[: int(n_bytes)]
        texts.append(zlib.decompress(data).decode())
    return texts


def figures_of(page):
    """Return the figures of a page in their order, as Plotly's JSON."""
    return [json.loads(text) for text in packed_texts(page) if text.startswith('{"data"')]
