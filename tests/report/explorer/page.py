"""The attention explorer in a browser, in the terms of its tests."""

import re
from pathlib import Path

import numpy as np

from probekit.report.attention.page import SCORE_NAMES, attention_colours
from tests.report.conftest import causal_patterns
from tests.stored import changed

LONG, SHORT = 499, 7  # numbers of tokens
LAYERS, HEADS = (2, 3, 5, 7), (0, 4, 8)
TOKENS = ("The", " keys", " the", "\n", " keys")
PATTERNS = [causal_patterns(5), causal_patterns(5, seed=1), causal_patterns(2)]
COLOURS = attention_colours()
STATE = Path(__file__).with_name("state.js").read_text("utf-8")


def scores(seed=3):
    drawn = np.random.default_rng(seed).random((len(SCORE_NAMES), 4, 3)).astype(np.float32)
    return dict(zip(SCORE_NAMES, drawn, strict=True))


def colour_of(value, scale=lambda x: x, theme="light"):
    """Colour of a weight in the page's colour scale."""
    stops = np.array(COLOURS["weights"][theme], dtype=float)
    place = np.rint(256 * scale(value)) / 256 * (len(stops) - 1)
    return np.array([np.interp(place, np.arange(len(stops)), channel) for channel in stops.T])


def head(name):
    """Selector of the button of a head."""
    return f'.grid [aria-label^="{name}"]'


def token(number):
    """Selector of a token of the first text."""
    return f".token[data-at='{number}']"


class Page:
    """The explorer in a browser; elements are given by selectors."""

    def __init__(self, browser, page, hash="", **window):
        self.browser, self.page = browser, page
        browser.call("Page.navigate", url="about:blank")  # a change of hash alone loads nothing
        browser.open(f"{page.as_uri()}#{hash}" if hash else page, **window)

    def load(self, hash):
        """Load the page again, at a URL with this fragment."""
        self.browser.call("Page.navigate", url="about:blank")
        self.browser.call("Page.navigate", url=f"{self.page.as_uri()}#{hash}")
        self.browser.settle(500)
        self.ready()

    def go(self, hash):
        self.browser.evaluate(f"location.hash = {hash!r}")
        self.ready()

    def ready(self):
        self.browser.evaluate(
            "new Promise(done => { const wait = () => document.getElementById('attention')"
            ".getAttribute('aria-busy') === 'false' ? done() : setTimeout(wait, 5); wait(); })"
        )

    def follow(self, steps):
        """Return the state of the page, the changes of each step (a call as text), and the URL."""
        shown = self.browser.evaluate(STATE)
        lines = [shown]
        for step in steps:
            returned = eval(f"page.{step}", {"page": self, "head": head, "token": token})
            before, shown = shown, self.browser.evaluate(STATE)
            lines += [f"> {step}", *([returned] if returned else []), changed(before, shown)]
        return "\n".join(filter(None, [*lines, f"URL: {self.hash()}"]))

    def text(self, selector):
        return self.browser.evaluate(f"document.querySelector({selector!r}).textContent")

    def texts(self, selector):
        return self.browser.evaluate(
            f"[...document.querySelectorAll({selector!r})].map(part => part.textContent)"
        )

    def point(self, selector, *, shift=False):
        middle = self.browser.middle(f"document.querySelector({selector!r})")
        self.browser.hover(*middle, shift=shift)

    def click(self, selector, *, shift=False):
        """Click on an element, after opening the options if it is one of them."""
        self.browser.evaluate(
            f"document.querySelector({selector!r}).closest('details')?.setAttribute('open', '')"
        )
        middle = self.browser.middle(f"document.querySelector({selector!r})")
        self.browser.click(*middle, shift=shift)
        self.ready()

    def save(self, kind):
        """Save a picture, and wait until the file is written."""
        self.click(f"[name={kind}]")
        self.browser.settle(500)

    def focus(self, selector):
        self.browser.evaluate(f"document.querySelector({selector!r}).focus()")

    def press(self, keys, *, shift=False):
        """Press keys, one after the other."""
        for key in keys.split():
            self.browser.press(key, shift=shift)
        self.ready()

    def cell(self, destination, source, view=0, *, click=False, shift=False):
        """Point at a cell of a matrix of five tokens, or click on it."""
        self.browser.middle(f"document.querySelectorAll('.matrix')[{view}]")
        right, bottom = self.browser.evaluate(
            "(() => { const box = "
            f"document.querySelectorAll('.matrix')[{view}].getBoundingClientRect();"
            "return [box.right - 1, box.bottom - 1]; })()"
        )
        point = right - (5 - source - 0.5) * 34, bottom - (5 - destination - 0.5) * 34
        (self.browser.click if click else self.browser.hover)(*point, shift=shift)

    def control(self, name, value):
        """Set a list or field and send the event that a user would trigger."""
        self.browser.evaluate(
            f"(() => {{ const it = document.querySelector('.sorting [name={name}]');"
            f"it.value = {value!r};"
            "it.dispatchEvent(new Event('input', { bubbles: true })); })()"
        )
        self.ready()

    def hash(self):
        self.browser.settle(350)
        return self.browser.evaluate("location.hash")

    def colours(self):
        return self.browser.evaluate(
            "[...document.querySelectorAll('.token')].map(token => token.style.background)"
        )

    def pixel(self, destination, source):
        """The colour of a cell of a matrix of five tokens."""
        return self.browser.evaluate(
            "(() => { const shown = document.querySelector('.matrix canvas');"
            f"const x = shown.width - 1 - (5 - {source} - .5) * 34;"
            f"const y = shown.height - 1 - (5 - {destination} - .5) * 34;"
            "const context = new OffscreenCanvas(1, 1).getContext('2d');"
            "context.drawImage(shown, -Math.floor(x), -Math.floor(y));"
            "return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3); })()"
        )

    def size(self):
        """Width and height of a cell of the long text, from the extent of the matrix."""
        extent = "document.querySelector('.matrix .extent')"
        return self.browser.evaluate(f"parseFloat({extent}.style.width)")

    def inside(self, selector, x, y):
        """A point of an element, from its centre."""
        left, top = self.browser.middle(f"document.querySelector({selector!r})")
        return left + x, top + y

    def drag(self, *points):
        self.browser.hover(*points[0])
        self.browser._mouse("mousePressed", *points[0], button="left", buttons=1, clickCount=1)
        for point in points[1:]:
            self.browser._mouse("mouseMoved", *point, button="left", buttons=1)
        self.browser._mouse("mouseReleased", *points[-1], button="left", clickCount=1)
        self.ready()

    def tokens_in_view(self):
        """First and last token of the text that can be seen."""
        return self.browser.evaluate(
            "(() => { const box = document.querySelector('.tokens').getBoundingClientRect();"
            "const seen = [...document.querySelectorAll('.view:not([hidden]) .token')].filter("
            "one => { const { top, bottom } = one.getBoundingClientRect();"
            "return top >= box.top && bottom <= box.bottom; });"
            "return [Number(seen[0].dataset.at), Number(seen.at(-1).dataset.at)]; })()"
        )

    def pointed(self, *point):
        """Query and key under the pointer, from the readout, after it has moved to a point."""
        if point:
            self.browser.hover(*point)
        found = re.findall(r"(?:query|key)\[(\d+)\]", self.text(".readout"))
        return [int(number) for number in found[:2]]
