"""Colours, scores, comparisons and the URL of the explorer."""

import numpy as np
import pytest

from probekit.report.attention.page import AttentionExplorer, scores_beyond_distance
from probekit.results.network import AttentionPrompt
from tests.report.conftest import causal_patterns
from tests.report.explorer.page import COLOURS, HEADS, LAYERS, SHORT, Page, colour_of, scores

OPENING = "Layer 5, head 4"  # the largest score beyond distance


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
