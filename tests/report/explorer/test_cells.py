"""Heads and cells of the explorer: effects of pointer, clicks and keys, and the readout."""

import numpy as np

from tests.report.conftest import causal_patterns
from tests.report.explorer.page import SHORT, colour_of


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
