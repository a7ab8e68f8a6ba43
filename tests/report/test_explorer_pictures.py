"""The explorer's opening head, its matrix and lines, box zoom, and long texts, in a browser."""

import re

import numpy as np
import pytest

from probekit.report.attention.opening import scores_beyond_distance
from probekit.report.attention.page import AttentionExplorer
from probekit.results.network import AttentionPrompt
from tests.report.conftest import causal_patterns
from tests.report.test_explorer import Page

LONG = 499
SHORT = 7
WORDS = tuple(f" word{i}" for i in range(LONG))
PAIR = ("The keys to the old cabinet were here", "The keys to the old cabinet was here")


def sparse(n, seed=0):
    weights = np.tril(np.random.default_rng(seed).random((2, 2, n, n), np.float32)) ** 30 + 1e-9
    weights = np.tril(weights)
    return weights / weights.sum(-1, keepdims=True)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    tokens = tuple(f" {letter}" for letter in "abcdefg")
    prompts = {
        "short": [AttentionPrompt(text, tokens, causal_patterns(SHORT)) for text in PAIR],
        "long": [AttentionPrompt("".join(WORDS), WORDS, sparse(LONG))],
        "one layer": [AttentionPrompt("a", tokens, causal_patterns(SHORT)[:1])],
        "one head": [AttentionPrompt("a", tokens, causal_patterns(SHORT)[:, :1])],
        "alone": [AttentionPrompt("שלום, עולם!", tokens, causal_patterns(SHORT)[:1, :1])],
        "two tokens": [AttentionPrompt("?!", tokens[:2], causal_patterns(2))],
    }
    return {
        name: AttentionExplorer.of(given, "gpt2").save(folder / f"{name}.html")
        for name, given in prompts.items()
    }


@pytest.fixture
def show(browser, pages):
    """A function that opens a page of `pages` with a URL fragment."""

    def show(name, hash=""):
        explorer = Page(browser, pages[name])
        explorer.ready()
        if hash:
            explorer.go(hash)
        return explorer

    yield show
    assert browser.trouble == []


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


def test_the_page_opens_on_the_head_that_distance_explains_least_and_gives_the_number(show):
    explorer = show("short")
    found = scores_beyond_distance(causal_patterns(SHORT))
    layer, head = np.unravel_index(found.argmax(), found.shape)
    assert explorer.text(".name") == f"Layer {layer}, head {head}"
    reason = explorer.text(".reason")
    assert "of 12 heads" in reason
    assert f"(beyond distance {found.max():.2f})" in reason
    explorer.go(f"head=1.{layer}.{head}")
    assert explorer.text(".reason") == ""
    explorer.go(f"head=0.{layer}.{(head + 1) % 3}")
    assert explorer.text(".reason") == ""


@pytest.mark.parametrize("name", ["alone", "two tokens"])
def test_a_page_without_a_choice_gives_no_reason(show, name):
    explorer = show(name)
    assert explorer.text(".name") == "Layer 0, head 0"
    assert explorer.text(".reason") == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("short", "Layers downwards, heads across."),
        ("one layer", "Heads across."),
        ("one head", "Layers downwards."),
        ("alone", ""),
    ],
)
def test_the_arrangement_of_the_heads_is_named_where_it_is_true(show, name, text):
    explorer = show(name)
    assert explorer.text(".arrangement") == text
    explorer.control("score", "beyond_distance")
    assert explorer.text(".arrangement") == "Heads by beyond distance, highest first."
    explorer.control("order", "low")
    assert explorer.text(".arrangement") == "Heads by beyond distance, lowest first."
    explorer.control("order", "layer")
    assert explorer.text(".arrangement") == text


def test_a_filter_keeps_the_heads_whose_shown_score_passes(browser, tmp_path):
    scores = {"induction": np.array([[0.494, 0.496, 0.504, 0.506, np.nan]], np.float32)}
    patterns = np.broadcast_to(causal_patterns(4)[:1, :1], (1, 5, 4, 4))
    prompt = AttentionPrompt("a", tuple("abcd"), patterns, scores=scores)
    explorer = Page(browser, AttentionExplorer.of([prompt], "gpt2").save(tmp_path / "a.html"))
    explorer.control("score", "induction")
    shown = explorer.texts(".grid small")
    assert shown == ["0.51", "0.50", "0.50", "0.49", "–"]
    for bound, value, kept in (
        ("low", "0.5", ["0.51", "0.50", "0.50"]),
        ("high", "0.5", ["0.50", "0.50"]),
        ("low", "0.51", []),
        ("high", "0.51", ["0.51"]),
    ):
        explorer.control(bound, value)
        assert explorer.texts(".grid small") == kept
        assert explorer.text(".passed") == f"{len(kept)} of 5 heads"
    assert browser.trouble == []


def test_largest_leaves_out_the_first_token_on_itself(show):
    explorer = show("short", "head=0.1.2")
    weights = causal_patterns(SHORT)[1, 2]
    weights[0, 0] = 0
    row, column = np.unravel_index(weights.argmax(), weights.shape)
    expected = f"largest {weights.max():.4f} at query[{row}] → key[{column}]"
    assert explorer.text(".facts span") == expected
    explorer.go("head=0.1.2&pin=column.0")
    assert "query[0]" not in explorer.text(".readout")
    explorer.go("head=0.1.2&pin=row.0")
    assert explorer.text(".readout") == "query[0] ␣a → key[0] ␣a 1.0000"


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


def test_file_names_begin_with_the_words_that_tell_the_texts_apart(show, tmp_path):
    explorer = show("short", "head=0.1.mean")
    explorer.browser.download_to(tmp_path)
    for name, hash, expected in (
        ("short", "head=0.1.mean", "gpt2-the-keys-to-the-old-cabinet-were-L1-mean"),
        ("short", "head=1.1.2", "gpt2-the-keys-to-the-old-cabinet-was-L1H2"),
        (
            "short",
            "head=0.1.0&other=0.1.2&view=difference",
            "gpt2-the-keys-to-the-old-cabinet-were-L1H0-minus-L1H2",
        ),
        ("alone", "", "gpt2-שלום-עולם-L0H0"),
        ("two tokens", "head=0.0.0", "gpt2-text-L0H0"),
    ):
        explorer = show(name, hash)
        explorer.click("document.querySelector('[name=svg]')")
        explorer.browser.settle(400)
        assert explorer.text(".status") == f"Saved {expected}.svg."
        assert (tmp_path / f"{expected}.svg").is_file()


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
