"""The attention explorer in a browser, in the terms of its tests."""

import re

import numpy as np

from probekit.report.attention.page import SCORE_NAMES, attention_colours

LONG, SHORT = 499, 7  # numbers of tokens
LAYERS, HEADS = (2, 3, 5, 7), (0, 4, 8)
TOKENS = ("The", " keys", " the", "\n", " keys")
COLOURS = attention_colours()


def scores(seed=3):
    drawn = np.random.default_rng(seed).random((len(SCORE_NAMES), 4, 3)).astype(np.float32)
    return dict(zip(SCORE_NAMES, drawn, strict=True))


def colour_of(value, scale=lambda x: x, theme="light"):
    """Colour of a weight in the page's colour scale."""
    stops = np.array(COLOURS["weights"][theme], dtype=float)
    place = np.rint(256 * scale(value)) / 256 * (len(stops) - 1)
    return np.array([np.interp(place, np.arange(len(stops)), channel) for channel in stops.T])


class Page:
    """The explorer in a browser, in the terms of its tests."""

    def __init__(self, browser, page):
        self.browser, self.page = browser, page
        browser.call("Page.navigate", url="about:blank")  # a change of hash alone loads nothing
        browser.open(page)

    def go(self, hash):
        self.browser.evaluate(f"location.hash = {hash!r}")
        self.ready()

    def ready(self):
        self.browser.evaluate(
            "new Promise(done => { const wait = () => document.getElementById('attention')"
            ".getAttribute('aria-busy') === 'false' ? done() : setTimeout(wait, 5); wait(); })"
        )

    def text(self, selector):
        return self.browser.evaluate(f"document.querySelector({selector!r}).textContent")

    def texts(self, selector):
        return self.browser.evaluate(
            f"[...document.querySelectorAll({selector!r})].map(part => part.textContent)"
        )

    def focused(self):
        return self.browser.evaluate(
            "(it => it.getAttribute('aria-label') ?? it.textContent)(document.activeElement)"
        )

    def point(self, element, *, shift=False):
        self.browser.hover(*self.browser.middle(element), shift=shift)

    def click(self, element, *, shift=False):
        self.browser.click(*self.browser.middle(element), shift=shift)
        self.ready()

    def head(self, name):
        return f"document.querySelector('.grid [aria-label^=\"{name}\"]')"

    def token(self, number):
        return f"document.querySelectorAll('.token')[{number}]"

    def cell(self, destination, source, view=0):
        """Position in the window of a cell of a matrix of five tokens."""
        self.browser.middle(f"document.querySelectorAll('.matrix')[{view}]")
        right, bottom = self.browser.evaluate(
            "(() => { const box = "
            f"document.querySelectorAll('.matrix')[{view}].getBoundingClientRect();"
            "return [box.right - 1, box.bottom - 1]; })()"
        )
        return right - (5 - source - 0.5) * 34, bottom - (5 - destination - 0.5) * 34

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


def size(explorer):
    """Width and height of a cell of the long text, from the extent of the matrix."""
    return explorer.browser.evaluate(
        "parseFloat(document.querySelector('.matrix .extent').style.width)"
    )


def inside(explorer, selector, x, y):
    """A point of an element, from its centre."""
    left, top = explorer.browser.middle(f"document.querySelector({selector!r})")
    return left + x, top + y


def drag(explorer, *points):
    browser = explorer.browser
    browser.hover(*points[0])
    browser._mouse("mousePressed", *points[0], button="left", buttons=1, clickCount=1)
    for point in points[1:]:
        browser._mouse("mouseMoved", *point, button="left", buttons=1)
    browser._mouse("mouseReleased", *points[-1], button="left", clickCount=1)
    explorer.ready()


def focus(explorer, selector):
    explorer.browser.evaluate(f"document.querySelector({selector!r}).focus()")


def tokens_in_view(explorer):
    """First and last token of the text that can be seen."""
    return explorer.browser.evaluate(
        "(() => { const box = document.querySelector('.tokens').getBoundingClientRect();"
        "const seen = [...document.querySelectorAll('.view:not([hidden]) .token')].filter(one => {"
        "const { top, bottom } = one.getBoundingClientRect();"
        "return top >= box.top && bottom <= box.bottom; });"
        "return [Number(seen[0].dataset.at), Number(seen.at(-1).dataset.at)]; })()"
    )


def pointed(explorer):
    """Query and key under the pointer, from the readout."""
    return [int(i) for i in re.findall(r"(?:query|key)\[(\d+)\]", explorer.text(".readout"))[:2]]
