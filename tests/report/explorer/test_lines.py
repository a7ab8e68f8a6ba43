"""The lines of the explorer from token to token."""

import re

import numpy as np
import pytest

from tests.report.conftest import causal_patterns
from tests.report.explorer.page import SHORT

pytestmark = pytest.mark.nightly

# Number of pixels with ink half way between queries and keys, where only lines are.
INK = """(() => {
  const shown = document.querySelector(".lines canvas");
  const context = new OffscreenCanvas(1, shown.height).getContext("2d");
  context.drawImage(shown, -Math.floor(shown.width / 2), 0);
  const { data } = context.getImageData(0, 0, 1, shown.height);
  return data.filter((value, i) => i % 4 === 3 && value > 0).length;
})()"""


def expected_lines(weights, rows):
    shown = {(i, j): round(float(weights[i, j]), 4) for i in rows for j in range(i + 1)}
    return {place: value for place, value in shown.items() if value >= 0.01}


def drawn_lines(explorer, folder):
    """Opacity of each line of the saved picture, by query and key, and its number of cells."""
    for old in folder.glob("*.svg"):
        old.unlink()
    explorer.save("svg")
    (path,) = folder.glob("*.svg")
    lines = re.findall(
        r'<line x1="[\d.]+" y1="([\d.]+)" x2="[\d.]+" y2="([\d.]+)" .*?stroke-opacity="([\d.]+)"',
        path.read_text(),
    )
    places = {
        (round(float(y1) / 15 - 1.5), round(float(y2) / 15 - 1.5)): float(opacity)
        for y1, y2, opacity in lines
    }
    return places, path.read_text().count("<rect")


def test_a_line_has_the_opacity_of_its_weight_with_and_without_the_matrix(show, tmp_path):
    explorer = show("short", "head=0.3.1")
    explorer.browser.download_to(tmp_path)
    weights = causal_patterns(SHORT)[3, 1]
    lines = expected_lines(weights, range(SHORT))
    drawn, n_cells = drawn_lines(explorer, tmp_path)
    assert drawn == lines
    assert n_cells >= SHORT * (SHORT + 1) / 2
    for pin, pinned in (
        ("", lines),
        ("&pin=row.5", expected_lines(weights, [5])),
        ("&pin=column.2", {place: value for place, value in lines.items() if place[1] == 2}),
    ):
        explorer.go(f"head=0.3.1&picture=lines{pin}")
        assert drawn_lines(explorer, tmp_path)[0] == pinned


def test_pointing_at_a_token_of_the_lines_isolates_them(show):
    explorer = show("short", "head=0.0.1&picture=lines")
    weights = causal_patterns(SHORT)[0, 1]
    all_lines = explorer.browser.evaluate(INK)
    explorer.browser.hover(*explorer.inside(".lines", -100, 12 + 18 * (4 - 3)))
    order = np.argsort(-weights[4, :5])[:3]
    assert explorer.text(".readout").startswith("query[4] ␣e → ")
    assert [int(i) for i in re.findall(r"key\[(\d)", explorer.text(".readout"))] == order.tolist()
    assert 0 < explorer.browser.evaluate(INK) < all_lines / 2
    explorer.browser.hover(*explorer.inside(".lines", 100, 12 + 18 * (2 - 3)))
    assert explorer.text(".readout").startswith("key[2] ␣c ← ")


PICTURES = [f"label:has([name=picture][value={name}])" for name in ("both", "matrix", "lines")]
SESSIONS = {
    "lines are moved through by keys": [
        "go('head=0.0.1&picture=lines')",
        "focus('.lines')",
        "press('ArrowDown ArrowDown ArrowDown ArrowUp')",
        "press('ArrowRight')",
        "press('Enter')",
    ],
    "the picture is the matrix, the lines or both": [
        step for picture in PICTURES for step in (f"click('{picture}')", "hash()")
    ],
}


@pytest.mark.parametrize("name", SESSIONS)
def test_a_reader_sees(name, show, snapshot):
    assert show("short").follow(SESSIONS[name]) == snapshot


@pytest.mark.parametrize("name", ["short", "long"])
def test_the_matrix_begins_on_the_first_screen(browser, page_of, name):
    browser.open(page_of(name), width=1400)
    top = browser.evaluate("document.querySelector('.matrix').getBoundingClientRect().top")
    assert top < 560  # of 900


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["short", "long", "large"])
def test_both_pictures_fit_every_window(browser, page_of, name, dark):
    browser.open(page_of(name), width=1920, dark=dark)
    for width in (1400, 700, 400, 360):
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
