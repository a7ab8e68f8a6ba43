"""Edge cases of the explorer: hostile or long text, narrow windows, notebooks, no JavaScript."""

import html
import time
from pathlib import Path

import numpy as np
import pytest

from probekit.report.attention.page import AttentionExplorer
from probekit.results.network import AttentionPrompt
from tests.report.conftest import causal_patterns

pytestmark = pytest.mark.nightly

AUDIT = Path(__file__).parents[1].joinpath("audit.js").read_text("utf-8")
SCROLLED = "document.documentElement.scrollWidth"


def even(n):
    weights = np.tril(np.ones((n, n), np.float32))
    return weights / weights.sum(axis=1, keepdims=True)


def explorer_of(patterns, **options):
    """Return the explorer of a text with a word for each token."""
    tokens = tuple(f" word{i}" for i in range(patterns.shape[-1]))
    prompt = AttentionPrompt("".join(tokens), tokens, patterns)
    return AttentionExplorer.of([prompt], "gpt2", **options)


def even_explorer(n, layers, heads):
    return explorer_of(np.broadcast_to(even(n), (layers, heads, n, n)))


def test_hostile_tokens_are_text_wherever_they_are_shown(show, tmp_path, hostile):
    tokens = (hostile, "<b>", "%{x}", " שלום", " 👩‍👩‍👧", "<0xE2>", "\r", "\t")
    prompts = [AttentionPrompt(text, tokens, even(8)[None, None]) for text in (hostile, "<b>")]
    page = show(AttentionExplorer.of(prompts, hostile))
    shown = hostile.replace("\u202e", "<U+202E>")
    labels = [shown, "<b>", "%{x}", "␣שלום", "␣👩‍👩‍👧", "<0xE2>", "␍", "⇥"]
    assert page.texts(".view:not([hidden]) .token") == labels
    page.point(".token")
    assert page.text(".readout") == f"query[0] {shown} → key[0] {shown} 1.0000"
    assert page.texts("b b, .tokens b, .readout b") == []
    assert shown in page.browser.evaluate("document.title")
    page.browser.download_to(tmp_path / "saved")
    page.save("svg")
    page.save("png")
    (svg,) = (tmp_path / "saved").glob("*.svg")
    assert "&lt;/script&gt;&lt;b&gt;%{x}&lt;/b&gt;" in svg.read_text("utf-8")
    assert len(list((tmp_path / "saved").glob("*.png"))) == 1


def test_magnifying_scrolls_and_the_tokens_stay_at_the_edges(show):
    page = show(even_explorer(30, 1, 2), width=360)
    box = "document.querySelector('.matrix')"
    for button, is_larger in (("1", True), ("0", False)):
        for _ in range(2):
            page.click(f'.zoom [value="{button}"]')
            page.browser.settle(200)
        assert page.browser.evaluate(f"{box}.scrollWidth > {box}.clientWidth") == is_larger
        page.browser.evaluate(f"{box}.scrollTo(500, 500)")
        page.browser.settle(100)
        has_ink = page.browser.evaluate(
            "(() => { const shown = document.querySelector('.matrix canvas');"
            "const context = new OffscreenCanvas(40, 60).getContext('2d');"
            "context.drawImage(shown, 0, 60 - shown.height);"
            "return context.getImageData(0, 0, 40, 60).data.some(value => value > 0); })()"
        )
        assert has_ink
        assert page.browser.evaluate(SCROLLED) <= 360


@pytest.mark.parametrize("width", [1400, 400])
def test_the_matrix_is_on_the_first_screen_and_pictures_are_level(show, width):
    """The texts have different numbers of lines."""
    prompts = [even_explorer(n, 1, 2).prompts[0] for n in (30, 5)]
    page = show(AttentionExplorer.of(prompts, "gpt2"), "view=side&head=0.0.0", width=width)
    page.browser.evaluate("scrollTo(0, 0)")
    boxes = (
        "[...document.querySelectorAll('.view:not([hidden]) :is(.matrix, .lines)')]"
        ".map(one => one.getBoundingClientRect()).map(({ top, bottom }) => [top, bottom])"
    )
    (left, _), *others = page.browser.evaluate(boxes)
    assert width < 1400 or left == others[1][0]  # the matrix of the other view
    page.go("head=0.0.0")
    (top, bottom), (top_of_lines, _) = page.browser.evaluate(boxes)
    assert bottom <= 900
    assert width < 1400 or top == top_of_lines


def test_1024_tokens_open_in_8_bits_and_single_weights_can_be_reached(show):
    weights = np.tril(np.random.default_rng(0).random((1, 2, 1024, 1024), np.float32)) ** 8
    weights /= weights.sum(-1, keepdims=True)
    explorer = explorer_of(weights, most_mb=1)
    assert explorer.reduction.levels <= 255
    page = show(explorer)
    assert page.browser.evaluate("document.querySelector('.view .pooled').hidden") is False
    page.go("head=0.0.1&zoom=8")
    page.browser.settle(600)
    assert page.browser.evaluate("document.querySelector('.view .pooled').hidden") is True
    page.focus(".matrix")
    page.press("ArrowDown ArrowRight")
    label, value = page.text(".readout").rsplit(" ", 1)
    assert label == "query[1] ␣word1 → key[1] ␣word1"
    assert float(value) == pytest.approx(weights[0, 1, 1, 1], abs=explorer.reduction.error(1))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_can_be_read(show, dark):
    page = show(explorer_of(causal_patterns(30)), dark=dark)
    page.go("head=0.2.0&pin=row.29&scale=log&view=side")
    page.browser.settle(500)
    assert page.browser.evaluate(AUDIT) == []


def test_a_page_without_its_script_shows_a_still_picture(browser, tmp_path):
    page = even_explorer(6, 2, 3).save(tmp_path / "still.html")
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.call("Page.navigate", url=page.as_uri())
        image = None
        for _ in range(200):  # without scripts the page cannot wait for itself
            time.sleep(0.02)
            image = image or browser.evaluate(
                "(it => it?.naturalWidth ? [it.alt, it.naturalWidth] : null)"
                "(document.querySelector('.explorer noscript img'))"
            )
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "2 layers (downwards) by 3 heads (across)" in image[0]
    assert image[1] == 5 * 7


def test_several_stand_in_a_notebook_each_by_itself(browser, tmp_path):
    frames = [even_explorer(n, 2, 3)._repr_html_() for n in (4, 6)]
    page = tmp_path / "notebook.html"
    page.write_text(f"<!doctype html><body>{''.join(frames)}", "utf-8")
    browser.trouble.clear()
    browser.call("Page.navigate", url=page.as_uri())
    browser.settle(1500)
    shown = "[...document.querySelectorAll('iframe')]"
    assert browser.evaluate(f"{shown}.map(frame => frame.contentDocument)") == [None, None]
    assert html.escape("'none'") in frames[0]
    assert browser.trouble == []


def test_a_window_that_changes_size_while_the_page_loads(browser, tmp_path):
    """Frames of notebooks do; the second drawing begins before the grid of the first is decoded."""
    page = tmp_path / "resized.html"
    # Thumbnails of many heads take longer to decode than the weights of one.
    many = "for (let n = 0; n < 100; n++) setTimeout(() => dispatchEvent(new Event('resize')), n);"
    resize = f'<script type="module">{many}</script>'
    page.write_text(even_explorer(5, 24, 24).page().replace("</body>", f"{resize}</body>"), "utf-8")
    browser.open(page)
    assert browser.evaluate("document.querySelectorAll('.heads button').length") >= 24 * 24
    assert browser.evaluate("document.querySelector('.view .name').textContent")
    assert browser.trouble == []


def test_a_dark_page_is_drawn_light_before_it_is_printed(show):
    """Browsers print after `beforeprint` and the promises that are settled by then."""
    page = show(even_explorer(5, 1, 2))
    page.browser.evaluate("document.documentElement.dataset.theme === 'dark' || switchTheme()")
    page.browser.settle()
    is_busy = page.browser.evaluate(
        "(async () => { dispatchEvent(new Event('beforeprint'));"
        "for (let turn = 0; turn < 300; turn += 1) await null;"
        "return document.querySelector('#attention').ariaBusy; })()"
    )
    assert is_busy == "false"
    # The choice lasts in the storage of the browser, and paper is not dark: leave it first.
    page.browser.evaluate("dispatchEvent(new Event('afterprint')); switchTheme()")
    assert page.browser.evaluate("localStorage.getItem('theme')") == ""
