"""Weights in the colours, readouts and files of the explorer."""

import numpy as np
import pytest

from probekit.report.attention.page import scores_beyond_average
from tests.report.conftest import causal_patterns
from tests.report.explorer.page import COLOURS, PATTERNS, SHORT, colour_of, head, token

MASKED = [0xE6, 0xE9, 0xED]


SCALES = {"linear": lambda x: x, "sqrt": np.sqrt, "log": lambda x: max(0, 1 + np.log10(x) / 4)}


@pytest.mark.parametrize("scale", SCALES)
def test_cells_have_the_colour_of_their_weight_in_each_scale(explorer, scale):
    explorer.click(f"label:has([name=scale][value={scale}])")
    for destination, source in ((0, 0), (3, 1), (4, 0), (4, 4)):
        expected = colour_of(PATTERNS[0][0, 0, destination, source], SCALES[scale])
        np.testing.assert_allclose(explorer.pixel(destination, source), expected, atol=1)
    assert explorer.pixel(0, 4) == MASKED
    assert ("scale" in explorer.hash()) == (scale != "sqrt")


@pytest.mark.parametrize("rest", [False, True], ids=["all tokens", "without the first"])
def test_colours_can_end_at_the_largest_weight_that_is_not_trivial(explorer, rest):
    mean = PATTERNS[0][0].copy()
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


@pytest.mark.parametrize(
    ("hash", "value"),
    [
        ("head=0.2.0", lambda of: f"{of[0][0, 0, 4, 2]:.4f}"),
        ("head=0.3.mean", lambda of: f"{of[0][1, :, 4, 2].mean():.4f}"),
        ("head=0.3.max", lambda of: f"{of[0][1, :, 4, 2].max():.4f}"),
        ("head=1.7.8", lambda of: f"{of[1][3, 2, 4, 2]:.4f}"),
        # Without the first token, rows are scaled to 1.
        ("head=0.2.0&rest=1", lambda of: f"{of[0][0, 0, 4, 2] / of[0][0, 0, 4, 1:].sum():.3f}"),
    ],
)
def test_the_readout_has_the_weight(explorer, hash, value):
    explorer.go(hash)
    explorer.cell(4, 2)
    assert explorer.text(".readout") == f"query[4] ␣keys → key[2] ␣the {value(PATTERNS)}"


def test_without_the_first_token_its_cells_are_masked(explorer):
    explorer.click("[name=rest]")
    explorer.cell(4, 0)
    assert explorer.text(".readout").endswith("key[0] The –")
    assert explorer.pixel(4, 0) == MASKED
    assert "rest=1" in explorer.hash()


def test_a_difference_is_centred_and_shows_both_values(explorer):
    explorer.go("head=0.7.4&other=1.7.4&view=difference&scale=linear&stretch=1")
    a, b = (PATTERNS[i][3, 1] for i in (0, 1))
    explorer.cell(4, 1)
    difference = f"{a[4, 1] - b[4, 1]:.3f}".replace("-", "−")
    readout = explorer.text(".readout")
    assert readout.startswith(f"query[4] ␣keys → key[1] ␣keys | ␣key {difference} (")
    ends = COLOURS["differences"]["light"]
    assert explorer.pixel(0, 0) == ends[5]
    largest = np.unravel_index(abs(a - b).argmax(), a.shape)
    end = ends[-1 if (a - b)[largest] > 0 else 0]
    np.testing.assert_allclose(explorer.pixel(*map(int, largest)), end, atol=1)
    top = abs(a - b).max()
    assert explorer.texts(".ticks span")[::4] == [f"−{top:.2g}", f"{top:.2g}"]


def test_hovering_shows_what_a_token_attends_to_and_with_shift_what_attends_to_it(explorer):
    weights = PATTERNS[0][0, 0]
    explorer.point(token(3))
    order = np.argsort(-weights[3, :4])[:3]
    labels = ["The", "␣keys", "␣the", "⏎"]
    shown = [f"key[{i}] {labels[i]} {weights[3, i]:.4f}" for i in order]
    assert explorer.text(".readout") == f"query[3] ⏎ → {', '.join(shown)}"
    colours = explorer.colours()
    expected = [colour_of(w, np.sqrt) for w in weights[3, :4]]
    found = [[int(c) for c in text[4:-1].split(",")] for text in colours[:4]]
    np.testing.assert_allclose(found, expected, atol=1)
    assert colours[4] == ""  # masked
    explorer.point(token(3), shift=True)
    assert explorer.text(".readout").startswith("key[3] ⏎ ← ")
    colours = explorer.colours()
    assert colours[:3] == ["", "", ""]
    assert colours[4] == "rgb({:.0f}, {:.0f}, {:.0f})".format(*colour_of(weights[4, 3], np.sqrt))
    explorer.browser.call("Input.dispatchKeyEvent", type="keyUp", key="Shift")
    assert explorer.text(".readout").startswith("query[3]")


def test_the_page_opens_on_the_head_with_the_highest_score_and_gives_the_number(show):
    explorer = show("short")
    found = scores_beyond_average(causal_patterns(SHORT))
    layer, number = np.unravel_index(found.argmax(), found.shape)
    assert explorer.text(".name") == f"Layer {layer}, head {number}, prompt 1"
    explorer.click("label:has([name=view][value=one])")
    assert explorer.text(".name") == f"Layer {layer}, head {number}"
    reason = explorer.text(".reason")
    assert reason.endswith(f"by distance and by key (“beyond average” {found.max():.2f}).")


def test_several_texts_open_side_by_side_and_a_link_to_a_head_shows_that_head(show):
    explorer = show("short")
    titles = "[...document.querySelectorAll('.view:not([hidden]) .name')].map(n => n.textContent)"
    names = explorer.browser.evaluate(titles)
    assert [name[-8:] for name in names] == ["prompt 1", "prompt 2"]
    assert names[0][:-1] == names[1][:-1]
    explorer.load("head=1.0.1")
    assert explorer.browser.evaluate(titles) == ["Layer 0, head 1"]


def test_thumbnails_of_a_difference_are_those_of_the_first_minus_the_second_text(explorer):
    pixel = (
        f"(() => {{ const shown = document.querySelector({head('Layer 7, head 4')!r} + ' canvas');"
        "return [...shown.getContext('2d').getImageData(1, 4, 1, 1).data].slice(0, 3); })()"
    )
    explorer.go("head=0.2.0&other=1.2.0&scale=linear&view=side")
    own, other = (PATTERNS[number][3, 1, 4, 1] for number in (0, 1))
    np.testing.assert_allclose(explorer.browser.evaluate(pixel), colour_of(own), atol=2)
    explorer.click("label:has([name=view][value=difference])")
    stops = np.array(COLOURS["differences"]["light"], dtype=float)
    at = np.linspace(-1, 1, len(stops))
    expected = [np.interp(own - other, at, channel) for channel in stops.T]
    np.testing.assert_allclose(explorer.browser.evaluate(pixel), expected, atol=2)
    assert "Each thumbnail is prompt 1 minus prompt 2." in explorer.text(".arrangement")
    explorer.click(head("Layer 7, head 4"))  # the difference that the thumbnail shows
    assert explorer.text(".name") == "Layer 7, head 4, prompt 1 minus Layer 7, head 4, prompt 2"
    explorer.go("head=0.2.0&other=2.2.0&view=difference")  # another number of tokens
    np.testing.assert_allclose(explorer.browser.evaluate(pixel), colour_of(own, np.sqrt), atol=2)


def test_back_shows_the_head_and_the_ticks_that_the_reader_left(explorer):
    explorer.click(head("Layer 5, head 8"))
    explorer.click("[name=rest]")
    explorer.browser.call("Page.navigate", url="about:blank")  # before the URL is written
    explorer.browser.back()
    explorer.ready()
    assert explorer.text(".name") == "Layer 5, head 8"
    ticks = "['rest', 'stretch'].map(name => document.querySelector(`[name=${name}]`).checked)"
    assert explorer.browser.evaluate(ticks) == [True, False]
    assert explorer.hash() == "#head=0.5.8&rest=1"


def test_the_url_restores_the_whole_state(explorer):
    hash = (
        "head=1.5.max&other=0.3.4&view=side&picture=lines&scale=log&rest=1&stretch=1&box=1-4.0-2"
        "&score=entropy&order=low&low=0.1&high=0.9&pin=column.2"
    )
    explorer.go(hash)
    before = explorer.follow([])
    assert before.endswith(f"URL: #{hash}")
    explorer.load(hash)
    assert explorer.follow([]) == before


def test_values_are_copied_as_a_table(explorer):
    explorer.browser.call(
        "Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"]
    )
    explorer.click("[name=tsv]")
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
        expected = PATTERNS[0][0, 0, destination, : destination + 1]
        np.testing.assert_allclose(weights, expected, atol=1e-5)


def test_pictures_are_saved(explorer, tmp_path):
    explorer.browser.download_to(tmp_path)
    explorer.go("head=0.5.4&other=1.5.4&view=difference")
    for kind in ("svg", "png"):
        explorer.save(kind)
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
