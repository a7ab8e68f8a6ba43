"""Long texts in the explorer: text and lines that follow the pointer, and zoom to a box."""

import numpy as np
import pytest

from tests.report.explorer.page import LONG, drag, focus, inside, pointed, size, tokens_in_view

pytestmark = pytest.mark.nightly


def test_the_text_follows_the_pointer(show):
    explorer = show("long", "head=0.0.1")
    assert tokens_in_view(explorer)[0] == 0
    for x, y in ((-150, 200), (-100, 10), (150, 240)):
        explorer.browser.hover(*inside(explorer, ".matrix", x, y))
        query, key = pointed(explorer)
        assert query > key
        first, last = tokens_in_view(explorer)
        assert first < query < last
        nearby = explorer.texts(".nearby > *")
        assert nearby[::4] == [f"query[{query}]", f"key[{key}]"]
        for token, (before, own, after) in zip(
            (query, key), (nearby[1:4], nearby[5:8]), strict=True
        ):
            assert own == f"␣word{token}"
            assert before.endswith(f"␣word{token - 1}")
            assert after.startswith(f"␣word{token + 1}")
    chosen = explorer.browser.evaluate(
        "[...document.querySelectorAll('.token.paired')].map(one => Number(one.dataset.at))"
    )
    assert chosen == sorted([query, key])


def test_the_text_does_not_move_under_the_pointer(show):
    explorer = show("long", "head=0.0.1&pin=row.450")
    explorer.browser.evaluate("document.querySelector('.tokens').scrollTop = 0")
    explorer.browser.settle(100)
    x, y = explorer.browser.evaluate(
        f"(({{ x, y }}) => [x + 3, y + 3])({explorer.token(30)}.getBoundingClientRect())"
    )
    explorer.browser.hover(x, y)
    assert pointed(explorer) == [450, 30]
    first, last = tokens_in_view(explorer)
    assert first == 0
    assert 30 <= last < 450


def test_a_short_text_has_no_lines_of_context(show):
    explorer = show("short")
    visible = "document.querySelector('.nearby').checkVisibility()"
    assert explorer.browser.evaluate(visible) is False


def test_the_lines_of_a_long_text_follow_the_pointer_and_leave_the_window(show, tmp_path):
    explorer = show("long", "head=0.0.1")
    seen = (
        "(box => [box.scrollTop, box.scrollTop + box.clientHeight - 24]"
        ".map(y => Math.floor(y / 14)))(document.querySelector('.lines'))"
    )
    assert explorer.browser.evaluate(seen)[0] == 0
    explorer.browser.hover(*inside(explorer, ".matrix", -100, 200))
    query, _ = pointed(explorer)
    first, end = explorer.browser.evaluate(seen)
    assert first <= query < end < LONG
    assert end - first > 40
    explorer.go("head=0.0.1&picture=lines&pin=row.450")
    first, end = explorer.browser.evaluate(seen)
    assert first <= 450 < end


def test_dragging_zooms_to_a_box_and_a_double_click_or_escape_resets(show):
    explorer = show("long", "head=0.0.1")
    fitted = size(explorer)
    start = inside(explorer, ".matrix", -150, 100)
    explorer.browser.hover(*start)
    first = pointed(explorer)
    end = (start[0] + 60, start[1] + 50)
    explorer.browser.hover(*end)
    last = pointed(explorer)
    drag(explorer, start, (start[0] + 20, start[1] + 20), end)
    box = f"box={first[0]}-{last[0]}.{first[1]}-{last[1]}"
    assert box in explorer.hash()
    assert "pin" not in explorer.hash()  # the click that ends a drag pins nothing
    assert size(explorer) > 4 * fitted
    explorer.browser.hover(*inside(explorer, ".matrix", 40, 40))
    row, column = pointed(explorer)  # the middle of the box is in the middle of the window
    assert first[0] < row < last[0]
    assert first[1] < column < last[1]
    explorer.browser.press("Escape")
    explorer.ready()
    assert "box" not in explorer.hash()
    assert size(explorer) == fitted
    explorer.go(f"head=0.0.1&{box}&pin=row.450")
    assert size(explorer) > 4 * fitted
    middle = inside(explorer, ".matrix", 40, 40)
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            explorer.browser._mouse(kind, *middle, button="left", clickCount=count)
    explorer.ready()
    assert "box" not in explorer.hash()
    assert "pin=row.450" in explorer.hash()
    assert size(explorer) == fitted


def test_a_box_of_masked_cells_and_a_short_drag_do_not_zoom(show):
    explorer = show("long", "head=0.0.1")
    fitted = size(explorer)
    masked = inside(explorer, ".matrix", 150, -100)
    drag(explorer, masked, (masked[0] + 20, masked[1] + 20), (masked[0] + 60, masked[1] + 40))
    assert size(explorer) == fitted
    start = inside(explorer, ".matrix", -100, 100)
    drag(explorer, start, (start[0] + 2, start[1] + 1))
    assert size(explorer) == fitted
    assert "pin=row" in explorer.hash()  # a click


def test_a_box_is_selected_by_keys(show):
    explorer = show("long", "head=0.0.1")
    fitted = size(explorer)
    focus(explorer, ".matrix")
    for _ in range(20):
        explorer.browser.press("ArrowDown")
    for _ in range(30):
        explorer.browser.press("ArrowDown", shift=True)
    for _ in range(10):
        explorer.browser.press("ArrowRight", shift=True)
    explorer.browser.press("Escape")  # clears the selection
    explorer.browser.press("Enter")  # pins
    explorer.ready()
    assert "pin=row.50" in explorer.hash()
    explorer.browser.press("Enter")
    for _ in range(5):
        explorer.browser.press("ArrowUp", shift=True)
    explorer.browser.press("ArrowLeft", shift=True)
    explorer.browser.press("Enter")
    explorer.ready()
    assert "box=45-50.9-10" in explorer.hash()
    assert "pin" not in explorer.hash()
    assert size(explorer) > 4 * fitted
    explorer.browser.press("Escape")
    explorer.ready()
    assert size(explorer) == fitted


def test_magnifying_starts_from_the_box_and_keeps_the_middle(show):
    explorer = show("long", "head=0.0.1&box=200-299.50-149")
    explorer.browser.hover(*inside(explorer, ".matrix", 40, 40))
    before = pointed(explorer)
    for button in ("1", "-1"):
        explorer.click(f"document.querySelector('.zoom [value=\"{button}\"]')")
        assert "box" not in explorer.hash()
        explorer.browser.hover(*inside(explorer, ".matrix", 40, 40))
        assert np.abs(np.subtract(pointed(explorer), before)).max() <= 8
