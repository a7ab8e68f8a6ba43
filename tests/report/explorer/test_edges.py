"""Edge cases of the explorer: hostile or long text, narrow windows, notebooks, no JavaScript."""

import html
import time
from pathlib import Path

import numpy as np
import pytest

from probekit.report.attention.page import AttentionExplorer
from probekit.results.network import AttentionPrompt

pytestmark = pytest.mark.nightly

AUDIT = Path(__file__).parents[1].joinpath("audit.js").read_text("utf-8")


def even(n):
    weights = np.tril(np.ones((n, n), np.float32))
    return weights / weights.sum(axis=1, keepdims=True)


def explorer_of(n, layers, heads, tokens=None):
    tokens = tokens or tuple(f" word{i}" for i in range(n))
    patterns = np.broadcast_to(even(n), (layers, heads, n, n))
    return AttentionExplorer.of([AttentionPrompt("".join(tokens), tokens, patterns)], "gpt2")


def texts(browser, selector):
    return browser.evaluate(
        f"[...document.querySelectorAll({selector!r})].map(part => part.textContent)"
    )


def test_hostile_tokens_are_text_wherever_they_are_shown(browser, tmp_path, hostile):
    tokens = (hostile, "<b>", "%{x}", " שלום", " 👩‍👩‍👧", "<0xE2>", "\r", "\t")
    prompts = [AttentionPrompt(text, tokens, even(8)[None, None]) for text in (hostile, "<b>")]
    browser.open(AttentionExplorer.of(prompts, hostile).save(tmp_path / "hostile.html"))
    shown = hostile.replace("\u202e", "<U+202E>")
    labels = [shown, "<b>", "%{x}", "␣שלום", "␣👩‍👩‍👧", "<0xE2>", "␍", "⇥"]
    assert texts(browser, ".view:not([hidden]) .token") == labels
    browser.hover(*browser.middle("document.querySelector('.token')"))
    assert texts(browser, ".readout")[0] == f"query[0] {shown} → key[0] {shown} 1.0000"
    assert browser.evaluate("document.querySelectorAll('b b, .tokens b, .readout b').length") == 0
    assert shown in browser.evaluate("document.title")
    folder = tmp_path / "saved"
    browser.download_to(folder)
    for kind in ("svg", "png"):
        browser.click(*browser.middle(f"document.querySelector('[name={kind}]')"))
        browser.settle(500)
    (svg,) = folder.glob("*.svg")
    assert "&lt;/script&gt;&lt;b&gt;%{x}&lt;/b&gt;" in svg.read_text("utf-8")
    assert len(list(folder.glob("*.png"))) == 1
    assert browser.trouble == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_large_model_and_a_long_text_fit_every_window(browser, tmp_path, dark):
    browser.open(explorer_of(200, 12, 12).save(tmp_path / "long.html"), width=1920, dark=dark)
    assert len(texts(browser, ".grid button")) == 12 * 14
    for width in (1400, 700, 360):
        browser.resize(width)
        browser.settle(400)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.trouble == []


def test_magnifying_scrolls_and_the_tokens_stay_at_the_edges(browser, tmp_path):
    browser.open(explorer_of(30, 1, 2).save(tmp_path / "magnified.html"), width=360)
    box = "document.querySelector('.matrix')"
    for button, is_larger in (("1", True), ("0", False)):
        for _ in range(2):
            browser.click(*browser.middle(f"document.querySelector('.zoom [value=\"{button}\"]')"))
            browser.settle(200)
        assert browser.evaluate(f"{box}.scrollWidth > {box}.clientWidth") == is_larger
        browser.evaluate(f"{box}.scrollTo(500, 500)")
        browser.settle(100)
        has_ink = browser.evaluate(
            "(() => { const shown = document.querySelector('.matrix canvas');"
            "const context = new OffscreenCanvas(40, 60).getContext('2d');"
            "context.drawImage(shown, 0, 60 - shown.height);"
            "return context.getImageData(0, 0, 40, 60).data.some(value => value > 0); })()"
        )
        assert has_ink
        assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    assert browser.trouble == []


def test_1024_tokens_open_in_8_bits_and_single_weights_can_be_reached(browser, tmp_path):
    tokens = tuple(f" word{i}" for i in range(1024))
    weights = np.tril(np.random.default_rng(0).random((1, 2, 1024, 1024), np.float32)) ** 8
    weights /= weights.sum(-1, keepdims=True)
    explorer = AttentionExplorer.of([AttentionPrompt("long", tokens, weights)], "gpt2", most_mb=1)
    assert explorer.reduction.levels <= 255
    browser.open(explorer.save(tmp_path / "context.html"))
    assert browser.evaluate("document.querySelector('.view .pooled').hidden") is False
    browser.evaluate("location.hash = 'head=0.0.1&zoom=8'")
    browser.settle(600)
    assert browser.evaluate("document.querySelector('.view .pooled').hidden") is True
    browser.evaluate("document.querySelector('.matrix').focus()")
    browser.press("ArrowDown")
    browser.press("ArrowRight")
    told, value = texts(browser, ".readout")[0].rsplit(" ", 1)
    assert told == "query[1] ␣word1 → key[1] ␣word1"
    assert float(value) == pytest.approx(weights[0, 1, 1, 1], abs=explorer.reduction.error(1))
    assert browser.trouble == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_can_be_read(browser, tmp_path, make_patterns, dark):
    prompt = AttentionPrompt("a b", tuple(f" t{i}" for i in range(30)), make_patterns(30))
    page = AttentionExplorer.of([prompt], "gpt2").save(tmp_path / "contrast.html")
    browser.open(page, dark=dark)
    browser.evaluate("location.hash = 'head=0.2.0&pin=row.29&scale=log&view=side'")
    browser.settle(500)
    assert browser.evaluate(AUDIT) == []


def test_a_page_without_its_script_shows_a_still_picture(browser, tmp_path):
    page = explorer_of(6, 2, 3).save(tmp_path / "still.html")
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
    frames = [explorer_of(n, 2, 3)._repr_html_() for n in (4, 6)]
    page = tmp_path / "notebook.html"
    page.write_text(f"<!doctype html><body>{''.join(frames)}", "utf-8")
    browser.trouble.clear()
    browser.call("Page.navigate", url=page.as_uri())
    browser.settle(1500)
    assert browser.evaluate("document.querySelectorAll('iframe').length") == 2
    assert browser.evaluate(
        "[...document.querySelectorAll('iframe')].every(f => !f.contentDocument)"
    )
    assert html.escape("'none'") in frames[0]
    assert browser.trouble == []


def test_a_window_that_changes_size_while_the_page_loads(browser, tmp_path):
    """Frames of notebooks do; the second drawing begins before the grid of the first is decoded."""
    page = tmp_path / "resized.html"
    # Thumbnails of many heads take longer to decode than the weights of one.
    many = "for (let n = 0; n < 100; n++) setTimeout(() => dispatchEvent(new Event('resize')), n);"
    resize = f'<script type="module">{many}</script>'
    page.write_text(explorer_of(5, 24, 24).page().replace("</body>", f"{resize}</body>"), "utf-8")
    browser.open(page)
    assert browser.evaluate("document.querySelectorAll('.heads button').length") >= 24 * 24
    assert browser.evaluate("document.querySelector('.view .name').textContent")
    assert browser.trouble == []
