"""The lines of the explorer from token to token."""

import re

import numpy as np
import pytest

from tests.report.conftest import causal_patterns
from tests.report.explorer.page import SHORT, focus, inside

pytestmark = pytest.mark.nightly

# Number of pixels with ink half way between queries and keys, where only lines are.
INK = """(() => {
  const shown = document.querySelector(".lines canvas");
  const context = new OffscreenCanvas(1, shown.height).getContext("2d");
  context.drawImage(shown, -Math.floor(shown.width / 2), 0);
  const { data } = context.getImageData(0, 0, 1, shown.height);
  return data.filter((value, i) => i % 4 === 3 && value > 0).length;
})()"""


def test_a_line_has_the_opacity_of_its_weight(show, tmp_path):
    explorer = show("short", "head=0.3.1&picture=lines")
    explorer.browser.download_to(tmp_path)
    weights = causal_patterns(SHORT)[3, 1]
    assert drawn_lines(explorer, tmp_path) == expected_lines(weights, range(SHORT))
    explorer.go("head=0.3.1&picture=lines&pin=row.5")
    assert drawn_lines(explorer, tmp_path) == expected_lines(weights, [5])
    explorer.go("head=0.3.1&picture=lines&pin=column.2")
    both = expected_lines(weights, range(SHORT))
    assert drawn_lines(explorer, tmp_path) == {p: v for p, v in both.items() if p[1] == 2}


def expected_lines(weights, rows):
    shown = {(i, j): round(float(weights[i, j]), 4) for i in rows for j in range(i + 1)}
    return {place: value for place, value in shown.items() if value >= 0.01}


def drawn_lines(explorer, folder):
    """The opacity of each line of the saved picture, by query and key."""
    for old in folder.glob("*.svg"):
        old.unlink()
    explorer.click("document.querySelector('[name=svg]')")
    explorer.browser.evaluate(
        "new Promise(done => { const wait = () => document.querySelector('.status').textContent "
        "? done() : setTimeout(wait, 5); wait(); })"
    )
    explorer.browser.settle(400)
    (path,) = folder.glob("*.svg")
    lines = re.findall(
        r'<line x1="[\d.]+" y1="([\d.]+)" x2="[\d.]+" y2="([\d.]+)" .*?stroke-opacity="([\d.]+)"',
        path.read_text(),
    )
    return {
        (round(float(y1) / 15 - 1.5), round(float(y2) / 15 - 1.5)): float(opacity)
        for y1, y2, opacity in lines
    }


def test_pointing_at_a_token_of_the_lines_isolates_them(show):
    explorer = show("short", "head=0.0.1&picture=lines")
    weights = causal_patterns(SHORT)[0, 1]

    all_lines = explorer.browser.evaluate(INK)
    explorer.browser.hover(*inside(explorer, ".lines", -100, 12 + 18 * (4 - 3)))
    order = np.argsort(-weights[4, :5])[:3]
    assert explorer.text(".readout").startswith("query[4] ␣e → ")
    assert [int(i) for i in re.findall(r"key\[(\d)", explorer.text(".readout"))] == order.tolist()
    assert 0 < explorer.browser.evaluate(INK) < all_lines / 2
    explorer.browser.hover(*inside(explorer, ".lines", 100, 12 + 18 * (2 - 3)))
    assert explorer.text(".readout").startswith("key[2] ␣c ← ")


def test_the_lines_are_moved_through_by_keys(show):
    explorer = show("short", "head=0.0.1&picture=lines")
    focus(explorer, ".lines")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
        explorer.browser.press(key)
    assert explorer.text(".readout").startswith("query[2] ␣c → ")
    label = "document.querySelector('.lines').getAttribute('aria-label')"
    assert explorer.browser.evaluate(label).startswith("Layer 0, head 1. query[2] ␣c → ")
    explorer.browser.press("ArrowRight")
    assert explorer.text(".readout").startswith("key[2] ␣c ← ")
    explorer.browser.press("Enter")
    explorer.ready()
    assert "pin=column.2" in explorer.hash()


def test_the_picture_can_be_the_matrix_the_lines_or_both(show):
    explorer = show("short")
    visible = (
        "['.matrix', '.lines', '.zoom'].map(it => document.querySelector(it).checkVisibility())"
    )
    for choice, expected in (
        ("both", [True, True, True]),
        ("matrix", [True, False, True]),
        ("lines", [False, True, False]),
    ):
        explorer.click(f"document.querySelector('[name=picture][value={choice}] + span')")
        assert explorer.browser.evaluate(visible) == expected
        assert ("picture=" in explorer.hash()) == (choice != "both")
    explorer.browser.settle(100)


def test_lines_and_matrix_are_saved_together(show, tmp_path):
    explorer = show("short", "head=0.3.1")
    explorer.browser.download_to(tmp_path)
    assert drawn_lines(explorer, tmp_path) == expected_lines(
        causal_patterns(SHORT)[3, 1], range(SHORT)
    )
    (path,) = tmp_path.glob("*.svg")
    assert path.read_text().count("<rect") >= SHORT * (SHORT + 1) / 2


@pytest.mark.parametrize("name", ["short", "long"])
def test_the_matrix_begins_on_the_first_screen(browser, pages, name):
    browser.open(pages[name], width=1400)
    top = browser.evaluate("document.querySelector('.matrix').getBoundingClientRect().top")
    assert top < 560  # of 900


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["short", "long"])
def test_both_pictures_fit_every_window(browser, pages, name, dark):
    browser.open(pages[name], dark=dark)
    for width in (1400, 700, 400):
        browser.resize(width)
        browser.settle(400)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        edges = browser.evaluate(
            "['.matrix', '.lines'].map(it => document.querySelector(it).getBoundingClientRect())"
            ".map(({ left, right, width }) => [left, right, width])"
        )
        for left, right, wide in edges:
            assert left >= 0
            assert right <= width
            assert wide > 150
    assert browser.trouble == []
