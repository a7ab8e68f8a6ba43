"""Long texts in the explorer: text and lines that follow the pointer, and zoom to a box."""

import numpy as np
import pytest

from tests.report.explorer.page import LONG, token

pytestmark = pytest.mark.nightly


@pytest.fixture
def explorer(show):
    return show("long", "head=0.0.1")


def test_the_text_follows_the_pointer(explorer):
    assert explorer.tokens_in_view()[0] == 0
    for x, y in ((-130, 200), (-100, 10), (150, 240)):
        query, key = explorer.pointed(*explorer.inside(".matrix", x, y))
        assert query > key
        first, last = explorer.tokens_in_view()
        assert first < query < last
        nearby = explorer.texts(".nearby > *")
        assert nearby[::4] == [f"query[{query}]", f"key[{key}]"]
        for at, (before, own, after) in ((query, nearby[1:4]), (key, nearby[5:8])):
            assert own == f"␣word{at}"
            assert before.endswith(f"␣word{at - 1}")
            assert after.startswith(f"␣word{at + 1}")
    chosen = explorer.browser.evaluate(
        "[...document.querySelectorAll('.token.paired')].map(one => Number(one.dataset.at))"
    )
    assert chosen == sorted([query, key])


def test_the_text_does_not_move_under_the_pointer(explorer):
    explorer.go("head=0.0.1&pin=row.450")
    explorer.browser.evaluate("document.querySelector('.tokens').scrollTop = 0")
    explorer.browser.settle(100)
    x, y = explorer.browser.evaluate(
        f'(({{ x, y }}) => [x + 3, y + 3])(document.querySelector("{token(30)}")'
        ".getBoundingClientRect())"
    )
    assert explorer.pointed(x, y) == [450, 30]
    first, last = explorer.tokens_in_view()
    assert first == 0
    assert 30 <= last < 450


def test_the_lines_of_a_long_text_follow_the_pointer_and_leave_the_window(explorer):
    seen = (
        "(box => [box.scrollTop, box.scrollTop + box.clientHeight - 24]"
        ".map(y => Math.floor(y / 14)))(document.querySelector('.lines'))"
    )
    assert explorer.browser.evaluate(seen)[0] == 0
    query, _ = explorer.pointed(*explorer.inside(".matrix", -100, 200))
    first, end = explorer.browser.evaluate(seen)
    assert first <= query < end < LONG
    assert end - first > 30
    explorer.go("head=0.0.1&picture=lines&pin=row.450")
    first, end = explorer.browser.evaluate(seen)
    assert first <= 450 < end


def test_dragging_zooms_to_a_box_and_a_double_click_or_escape_resets(explorer):
    fitted = explorer.size()
    x, y = start = explorer.inside(".matrix", -130, 100)
    end = (x + 60, y + 50)
    first, last = explorer.pointed(*start), explorer.pointed(*end)
    explorer.drag(start, (x + 20, y + 20), end)
    box = f"box={first[0]}-{last[0]}.{first[1]}-{last[1]}"
    assert box in explorer.hash()
    assert "pin" not in explorer.hash()  # the click that ends a drag pins nothing
    assert explorer.size() > 4 * fitted
    # The middle of the box is in the middle of the window.
    row, column = explorer.pointed(*explorer.inside(".matrix", 40, 40))
    assert first[0] < row < last[0]
    assert first[1] < column < last[1]
    explorer.press("Escape")
    assert "box" not in explorer.hash()
    assert explorer.size() == fitted
    explorer.go(f"head=0.0.1&{box}&pin=row.450")
    assert explorer.size() > 4 * fitted
    middle = explorer.inside(".matrix", 40, 40)
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            explorer.browser._mouse(kind, *middle, button="left", clickCount=count)
    explorer.ready()
    assert "box" not in explorer.hash()
    assert "pin=row.450" in explorer.hash()
    assert explorer.size() == fitted


def test_a_box_of_masked_cells_and_a_short_drag_do_not_zoom(explorer):
    fitted = explorer.size()
    x, y = masked = explorer.inside(".matrix", 150, -100)
    explorer.drag(masked, (x + 20, y + 20), (x + 60, y + 40))
    assert explorer.size() == fitted
    x, y = start = explorer.inside(".matrix", -100, 100)
    explorer.drag(start, (x + 2, y + 1))
    assert explorer.size() == fitted
    assert "pin=row" in explorer.hash()  # a click


def test_a_box_is_selected_by_keys(explorer):
    fitted = explorer.size()
    explorer.focus(".matrix")
    explorer.press("ArrowDown " * 20)
    explorer.press("ArrowDown " * 30 + "ArrowRight " * 10, shift=True)
    explorer.press("Escape Enter")  # clears the selection, and pins
    assert "pin=row.50" in explorer.hash()
    explorer.press("Enter")
    explorer.press("ArrowUp " * 5 + "ArrowLeft", shift=True)
    explorer.press("Enter")
    assert "box=45-50.9-10" in explorer.hash()
    assert "pin" not in explorer.hash()
    assert explorer.size() > 4 * fitted
    explorer.press("Escape")
    assert explorer.size() == fitted


def test_magnifying_starts_from_the_box_and_keeps_the_middle(explorer):
    explorer.go("head=0.0.1&box=300-399.150-249")
    before = explorer.pointed(*explorer.inside(".matrix", 40, 40))
    for button in ("1", "-1"):
        explorer.click(f'.zoom [value="{button}"]')
        assert "box" not in explorer.hash()
        after = explorer.pointed(*explorer.inside(".matrix", 40, 40))
        assert np.abs(np.subtract(after, before)).max() <= 8
