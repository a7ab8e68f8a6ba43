"""The attention explorer in a browser: effects of pointer, clicks and keys, and the readout."""

import numpy as np
import pytest

from probekit.report.attention.colours import attention_colours
from probekit.report.attention.page import SCORE_NAMES, AttentionExplorer
from probekit.results.network import AttentionPrompt

LAYERS, HEADS = (2, 3, 5, 7), (0, 4, 8)
TOKENS = ("The", " keys", " the", "\n", " keys")
COLOURS = attention_colours()
OPENING = "Layer 5, head 4"  # the largest score beyond distance


def scores(seed=3):
    drawn = np.random.default_rng(seed).random((len(SCORE_NAMES), 4, 3)).astype(np.float32)
    return dict(zip(SCORE_NAMES, drawn, strict=True))


@pytest.fixture(scope="module")
def patterns():
    from tests.report.conftest import causal_patterns

    return [causal_patterns(5), causal_patterns(5, seed=1), causal_patterns(2)]


@pytest.fixture(scope="module")
def page(patterns, tmp_path_factory):
    texts = (TOKENS, ("The", " key", *TOKENS[2:]), TOKENS[:2])
    prompts = [
        AttentionPrompt("".join(t), t, p, layers=LAYERS, heads=HEADS, scores=scores())
        for t, p in zip(texts, patterns, strict=True)
    ]
    explorer = AttentionExplorer.of(prompts, "gpt2")
    return explorer.save(tmp_path_factory.mktemp("attention") / "attention.html")


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


@pytest.fixture
def explorer(browser, page):
    explorer = Page(browser, page)
    explorer.go("head=0.2.0")
    yield explorer
    assert browser.trouble == []


def colour_of(value, scale=lambda x: x, theme="light"):
    """Colour of a weight in the page's colour scale."""
    stops = np.array(COLOURS["weights"][theme], dtype=float)
    place = np.rint(256 * scale(value)) / 256 * (len(stops) - 1)
    return np.array([np.interp(place, np.arange(len(stops)), channel) for channel in stops.T])


def test_heads_open_by_click_and_by_arrow_keys(explorer):
    assert explorer.text(".name") == "Layer 2, head 0"
    explorer.click(explorer.head("Layer 5, head 8"))
    assert explorer.text(".name") == "Layer 5, head 8"
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft"):
        explorer.browser.press(key)
    explorer.ready()
    assert explorer.text(".name") == "Layer 7, head 4"
    assert explorer.focused() == "Layer 7, head 4"
    assert explorer.hash() == "#head=0.7.4"


def test_the_last_columns_are_the_mean_and_maximum_of_a_layer(explorer, patterns):
    for name, merge in (("mean", np.mean), ("max", np.max)):
        explorer.click(explorer.head(f"Layer 3, {name}"))
        assert explorer.text(".name") == f"Layer 3, {name} of its heads"
        explorer.browser.hover(*explorer.cell(3, 1))
        value = merge(patterns[0][1, :, 3, 1])
        assert explorer.text(".readout") == f"query[3] ⏎ → key[1] ␣keys {value:.4f}"


def test_pointing_at_a_cell_names_it_and_the_future_is_masked(explorer, patterns):
    explorer.browser.hover(*explorer.cell(2, 1))
    weight = patterns[0][0, 0, 2, 1]
    assert explorer.text(".readout") == f"query[2] ␣the → key[1] ␣keys {weight:.4f}"
    explorer.browser.hover(*explorer.cell(1, 3))
    assert "query" not in explorer.text(".readout")


def test_the_keys_move_over_cells_and_pin(explorer, patterns):
    explorer.browser.evaluate("document.querySelector('.matrix').focus()")
    for key in ("ArrowDown",) * 9 + ("ArrowRight",) * 2 + ("ArrowUp",):
        explorer.browser.press(key)
    weight = patterns[0][0, 0, 3, 2]
    assert explorer.text(".readout") == f"query[3] ⏎ → key[2] ␣the {weight:.4f}"
    label = "document.querySelector('.matrix').getAttribute('aria-label')"
    expected_text = f"Layer 2, head 0. query[3] ⏎ → key[2] ␣the {weight:.4f}"
    assert explorer.browser.evaluate(label) == expected_text
    explorer.browser.press("Enter")
    assert "pin=row.3" in explorer.hash()
    explorer.browser.press("Enter", shift=True)
    assert "pin=column.2" in explorer.hash()


def test_hovering_shows_what_a_token_attends_to_and_with_shift_what_attends_to_it(
    explorer, patterns
):
    weights = patterns[0][0, 0]
    explorer.point(explorer.token(3))
    order = np.argsort(-weights[3, :4])[:3]
    labels = ["The", "␣keys", "␣the", "⏎"]
    shown = [f"key[{i}] {labels[i]} {weights[3, i]:.4f}" for i in order]
    assert explorer.text(".readout") == f"query[3] ⏎ → {', '.join(shown)}"
    colours = explorer.colours()
    expected = [colour_of(w, np.sqrt) for w in weights[3, :4]]
    found = [[int(c) for c in text[4:-1].split(",")] for text in colours[:4]]
    np.testing.assert_allclose(found, expected, atol=1)
    assert colours[4] == ""  # masked
    explorer.point(explorer.token(3), shift=True)
    assert explorer.text(".readout").startswith("key[3] ⏎ ← ")
    colours = explorer.colours()
    assert colours[:3] == ["", "", ""]
    assert colours[4] == "rgb({:.0f}, {:.0f}, {:.0f})".format(*colour_of(weights[4, 3], np.sqrt))
    explorer.browser.call("Input.dispatchKeyEvent", type="keyUp", key="Shift")
    assert explorer.text(".readout").startswith("query[3]")


def test_a_click_pins_and_escape_unpins(explorer, patterns):
    explorer.click(explorer.token(3))
    pinned = explorer.colours()
    explorer.point(explorer.token(1))
    assert explorer.colours() == pinned
    weight = patterns[0][0, 0, 3, 1]
    assert explorer.text(".readout") == f"query[3] ⏎ → key[1] ␣keys {weight:.4f}"
    explorer.point("document.querySelector('h1')")
    assert explorer.colours() == pinned
    assert "pin=row.3" in explorer.hash()
    explorer.browser.press("Escape")
    explorer.ready()
    assert set(explorer.colours()) == {""}
    assert "pin" not in explorer.hash()
    explorer.browser.click(*explorer.cell(4, 2), shift=True)
    assert "pin=column.2" in explorer.hash()


def test_the_tokens_are_reached_by_keys(explorer):
    explorer.browser.evaluate("document.querySelector('.token').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End"):
        explorer.browser.press(key)
    assert explorer.focused() == "␣keys"
    assert explorer.text(".readout").startswith("query[1] ␣keys → ")
    tabs = "[...document.querySelectorAll('.token')].map(token => token.tabIndex)"
    assert explorer.browser.evaluate(tabs) == [-1, 0, -1, -1, -1]


@pytest.mark.parametrize(
    ("scale", "share"),
    [
        ("linear", lambda x: x),
        ("sqrt", np.sqrt),
        ("log", lambda x: np.maximum(0, 1 + np.log10(x) / 4)),
    ],
)
def test_cells_have_the_colour_of_their_weight_in_each_scale(explorer, patterns, scale, share):
    explorer.click(f"document.querySelector('[name=scale][value={scale}] + span')")
    for destination, source in ((0, 0), (3, 1), (4, 0), (4, 4)):
        expected = colour_of(patterns[0][0, 0, destination, source], share)
        np.testing.assert_allclose(explorer.pixel(destination, source), expected, atol=1)
    assert explorer.pixel(0, 4) == [0xE6, 0xE9, 0xED]  # masked
    assert ("scale" in explorer.hash()) == (scale != "sqrt")


@pytest.mark.parametrize("rest", [False, True], ids=["all tokens", "without the first"])
def test_colours_can_end_at_the_largest_weight_that_is_not_trivial(explorer, patterns, rest):
    mean = patterns[0][0].copy()
    if rest:
        mean[:, :, 0] = 0
        mean[:, 1:] /= mean[:, 1:].sum(-1, keepdims=True)
    mean = mean.mean(0)
    # The first token that is left attends only to itself: its weight is always 1.
    mean[: 1 + rest] = 0
    explorer.go(f"head=0.2.mean&scale=linear&stretch=1{'&rest=1' * rest}")
    top = mean.max()
    assert top < 0.9
    np.testing.assert_allclose(explorer.pixel(3, 1), colour_of(mean[3, 1] / top), atol=1)
    assert explorer.texts(".ticks span")[-1] == f"{top:.2g}"
    row, column = np.unravel_index(mean.argmax(), mean.shape)
    expected = f"largest {top:.{3 if rest else 4}f} at query[{row}] → key[{column}]"
    assert explorer.text(".facts span") == expected


def test_without_the_first_token_rows_are_scaled_to_1(explorer, patterns):
    explorer.click("document.querySelector('[name=rest]')")
    weights = patterns[0][0, 0, 4]
    explorer.browser.hover(*explorer.cell(4, 2))
    expected = weights[2] / weights[1:].sum()
    assert explorer.text(".readout") == f"query[4] ␣keys → key[2] ␣the {expected:.3f}"
    explorer.browser.hover(*explorer.cell(4, 0))
    assert explorer.text(".readout").endswith("key[0] The –")
    assert explorer.pixel(4, 0) == [0xE6, 0xE9, 0xED]
    assert "rest=1" in explorer.hash()


def test_heads_are_sorted_and_filtered_by_a_score(explorer):
    values = scores()["induction"]
    places = [(layer, head) for layer in range(4) for head in range(3)]
    explorer.control("score", "induction")
    best_first = sorted(places, key=lambda place: -values[place])
    names = [f"L{LAYERS[layer]}H{HEADS[head]}" for layer, head in best_first]
    assert explorer.texts(".grid b") == names
    assert explorer.texts(".grid small") == [f"{values[place]:.2f}" for place in best_first]
    explorer.control("order", "low")
    assert explorer.texts(".grid b") == names[::-1]
    explorer.control("low", "0.5")
    kept = [name for name, place in zip(names, best_first, strict=True) if values[place] >= 0.5]
    assert explorer.texts(".grid b") == kept[::-1]
    assert explorer.text(".passed") == f"{len(kept)} of 12 heads"
    explorer.browser.evaluate("document.querySelector('.grid button').focus()")
    explorer.browser.press("ArrowRight")
    explorer.ready()
    assert explorer.focused().startswith("Layer")
    assert kept[-2] == explorer.text(".grid [tabindex='0'] b")
    explorer.control("order", "layer")
    assert len(explorer.texts(".grid .out")) == 12 - len(kept)


def test_side_by_side_prompts_share_the_hovered_cell(explorer, patterns):
    explorer.click("document.querySelector('[name=view][value=side] + span')")
    assert explorer.texts(".name") == ["Layer 2, head 0, prompt 1", "Layer 2, head 0, prompt 2"]
    explorer.browser.hover(*explorer.cell(4, 1, view=1))
    a, b = (patterns[i][0, 0, 4, 1] for i in (0, 1))
    assert explorer.texts(".readout") == [
        f"query[4] ␣keys → key[1] ␣keys {a:.4f}",
        f"query[4] ␣keys → key[1] ␣key {b:.4f}",
    ]
    explorer.click("document.querySelectorAll('.letter')[1]")
    explorer.click(explorer.head("Layer 7, head 8"))
    assert explorer.texts(".name")[1] == "Layer 7, head 8, prompt 2"
    assert explorer.hash() == "#head=0.2.0&other=1.7.8&view=side"


def test_a_difference_is_centred_and_shows_both_values(explorer, patterns):
    explorer.go("head=0.7.4&other=1.7.4&view=difference&scale=linear&stretch=1")
    a, b = (patterns[i][3, 1] for i in (0, 1))
    explorer.browser.hover(*explorer.cell(4, 1))
    difference = f"{a[4, 1] - b[4, 1]:.3f}".replace("-", "−")
    expected_text = explorer.text(".readout")
    assert expected_text.startswith(f"query[4] ␣keys → key[1] ␣keys | ␣key {difference} (")
    middle = COLOURS["differences"]["light"][5]
    assert explorer.pixel(0, 0) == middle
    largest = np.unravel_index(abs(a - b).argmax(), a.shape)
    ends = COLOURS["differences"]["light"]
    end = ends[-1 if (a - b)[largest] > 0 else 0]
    np.testing.assert_allclose(explorer.pixel(*map(int, largest)), end, atol=1)
    top = abs(a - b).max()
    assert explorer.texts(".ticks span")[::4] == [f"−{top:.2g}", f"{top:.2g}"]


def test_texts_of_different_lengths_have_no_difference_and_an_explanation(explorer):
    explorer.go("head=0.2.0&other=2.2.0&view=difference")
    assert "have 5 and 2 tokens" in explorer.text(".refusal")
    explorer.go("head=0.2.0&other=2.2.0&view=side")
    assert explorer.texts(".name") == ["Layer 2, head 0, prompt 1", "Layer 2, head 0, prompt 3"]


def test_the_url_restores_the_whole_state(explorer):
    hash = (
        "head=1.5.max&other=0.3.4&view=side&picture=lines&scale=log&rest=1&stretch=1&box=1-4.0-2"
        "&score=entropy&order=low&low=0.1&high=0.9&pin=column.2"
    )
    explorer.go(hash)
    before = explorer.texts(".name, .readout, .passed, .grid b")
    assert explorer.hash() == f"#{hash}"
    again = Page(explorer.browser, explorer.page)
    explorer.browser.call("Page.navigate", url="about:blank")
    explorer.browser.call("Page.navigate", url=f"{explorer.page.as_uri()}#{hash}")
    explorer.browser.settle(500)
    again.ready()
    assert again.texts(".name, .readout, .passed, .grid b") == before


@pytest.mark.parametrize(
    "hash",
    [
        "head=9.9.9",
        "head=0.2.9&view=x&picture=p&scale=y&zoom=z&box=4-2.0-1&score=none&pin=row.77",
        "head=&pin=row.-1",
        "%",
    ],
)
def test_an_invalid_url_fragment_shows_the_opening_head(explorer, hash):
    explorer.browser.call("Page.navigate", url="about:blank")
    explorer.browser.call("Page.navigate", url=f"{explorer.page.as_uri()}#{hash}")
    explorer.browser.settle(500)
    explorer.ready()
    assert explorer.text(".name") == OPENING
    assert set(explorer.colours()) == {""}
    assert explorer.hash().startswith("#head=0.5.4")
    assert "box" not in explorer.hash()


def test_values_are_copied_as_a_table(explorer, patterns):
    explorer.browser.call(
        "Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"]
    )
    explorer.click("document.querySelector('[name=tsv]')")
    explorer.browser.settle(200)
    assert explorer.text(".status") == "Copied 5 rows and columns."
    copied = explorer.browser.evaluate("navigator.clipboard.readText()")
    rows = [line.split("\t") for line in copied.split("\n")]
    assert rows[0] == ["", "key[0] The", "key[1] ␣keys", "key[2] ␣the", "key[3] ⏎", "key[4] ␣keys"]
    assert [row[0] for row in rows[1:]] == [f"query[{i}] {rows[0][i + 1][7:]}" for i in range(5)]
    for destination in range(5):
        found = rows[destination + 1][1:]
        assert found[destination + 1 :] == [""] * (4 - destination)
        weights = [float(text) for text in found[: destination + 1]]
        expected = patterns[0][0, 0, destination, : destination + 1]
        np.testing.assert_allclose(weights, expected, atol=1e-5)


def test_pictures_are_saved(explorer, tmp_path):
    explorer.browser.download_to(tmp_path)
    explorer.go("head=0.5.4&other=1.5.4&view=difference")
    for kind in ("svg", "png"):
        explorer.click(f"document.querySelector('[name={kind}]')")
        explorer.browser.settle(600)
    name = "gpt2-the-keys-the-keys-L5H4-minus-the-key-the-keys-L5H4"
    svg = (tmp_path / f"{name}.svg").read_text()
    assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert svg.count("<rect") >= 15 + 1 + 50
    assert "␣keys | ␣key" in svg
    assert "difference of attention weights (square-root scale)" in svg
    png = (tmp_path / f"{name}.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert len(png) > 5000
    assert explorer.text(".status") == f"Saved {name}.png."
