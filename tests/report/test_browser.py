"""The pages as a browser shows them: nothing on its console, nothing asked, nothing cut off."""

import numpy as np
import pandas as pd
import pytest

from probekit.report.attention import AttentionPrompt, attention_page
from probekit.report.page import write_report


@pytest.fixture(scope="module")
def page(write_run, tmp_path_factory):
    return write_report(write_run(tmp_path_factory.mktemp("run")))


@pytest.fixture
def attention(make_patterns, tmp_path, hostile):
    tokens = ("The", " keys", " the", " the", hostile)
    prompts = [
        AttentionPrompt("first", tokens, make_patterns(5), layers=(2, 3, 5, 7), heads=(0, 4, 8)),
        AttentionPrompt("second", tokens[:2], make_patterns(2)),
    ]
    path = tmp_path / "attention.html"
    path.write_text(attention_page(prompts, model="gpt2"), "utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_report_fits_every_window_in_silence(browser, page, dark):
    browser.open(page, width=1920, dark=dark)
    assert browser.evaluate("document.querySelectorAll('.plot .main-svg').length") >= 3
    for width in (1400, 700, 360):
        browser.resize(width)
        browser.settle()
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        box = "document.querySelector('.plot .main-svg').getBoundingClientRect()"
        assert browser.evaluate(f"{box}.right") <= width
    assert browser.trouble == []


@pytest.mark.parametrize("kind", ["heads", "sweep"])
def test_maps_fit_every_window_in_silence(browser, make_run, kind, request):
    browser.open(write_report(make_run(request.getfixturevalue(kind))), width=1400)
    cells = "document.querySelectorAll('.plot .hm image').length"
    assert browser.evaluate(cells) == 2  # accuracy and selectivity
    for width in (1400, 700, 360):
        browser.resize(width)
        browser.settle()
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.trouble == []


@pytest.mark.parametrize(
    ("media", "scheme"), [("screen", "light"), ("print", "dark")], ids=["light", "paper"]
)
def test_figures_take_the_ink_of_the_page_and_change_with_it(browser, page, media, scheme):
    ink = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    body = "getComputedStyle(document.body).color"
    browser.open(page, dark=True)
    dark = browser.evaluate(ink)
    assert dark == browser.evaluate(body)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", media=media, features=features)
    browser.settle()
    assert browser.evaluate(ink) == browser.evaluate(body) != dark


def test_a_folded_figure_is_drawn_when_it_is_opened(browser, page):
    browser.open(page)
    folded = "document.querySelectorAll('details .main-svg').length"
    assert browser.evaluate(folded) == 0
    browser.evaluate("document.querySelector('summary').click()")
    browser.settle()
    assert browser.evaluate(folded) > 0
    assert browser.trouble == []


def test_the_data_card_opens_in_silence_and_wraps(browser, make_run, record):
    record["data"]["card"] = "word " * 300
    browser.open(write_report(make_run(record=record)), width=360)
    browser.evaluate("document.querySelector('.card summary').click()")
    browser.settle()
    card = "document.querySelector('.card pre')"
    assert browser.evaluate(f"{card}.scrollWidth <= {card}.clientWidth")
    assert browser.evaluate(f"{card}.clientHeight") > 100
    assert browser.trouble == []


def test_nothing_offers_to_upload(browser, page):
    browser.open(page)
    titles = browser.evaluate(
        "[...document.querySelectorAll('.modebar-btn')].map(button => button.dataset.title)"
    )
    assert titles
    assert not [title for title in titles if "loud" in title or "hare" in title]


def test_hostile_names_reach_the_figure_as_text(browser, make_run, table, hostile):
    both = pd.concat([table.assign(dataset=hostile), table])
    browser.open(write_report(make_run(both)))
    legend = browser.evaluate(
        "[...document.querySelectorAll('.plot .legendtext')].map(text => text.textContent)"
    )
    assert f"task · {hostile}" in legend
    assert browser.trouble == []


READOUT = "document.querySelector('.readout').textContent"
NAME = "document.querySelector('.name').textContent"


def test_heads_open_by_click_and_by_arrow_keys(browser, attention):
    browser.open(attention)
    assert browser.evaluate(NAME) == "Layer 2, head 0"
    browser.evaluate("document.querySelector('[aria-label=\"Layer 5, head 8\"]').click()")
    assert browser.evaluate(NAME) == "Layer 5, head 8"
    browser.evaluate("document.querySelector('[aria-pressed=true]').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft"):
        browser.press(key)
    assert browser.evaluate(NAME) == "Layer 7, head 4"
    assert (
        browser.evaluate("document.activeElement.getAttribute('aria-label')") == "Layer 7, head 4"
    )
    assert browser.trouble == []


def test_the_readout_says_the_weight_by_position(browser, attention, make_patterns, hostile):
    browser.open(attention)
    browser.evaluate("document.querySelector('.head canvas').focus()")
    for key in ("ArrowDown",) * 9 + ("ArrowRight",) * 2:
        browser.press(key)
    weight = make_patterns(5)[0, 0, 4, 2]
    shown = hostile.replace("\u202e", "<U+202E>")
    assert browser.evaluate(READOUT) == f"dest[4] {shown} → src[2] ␣the {weight:.4f}"


def test_pointing_at_a_cell_names_it_and_the_future_is_masked(browser, attention, make_patterns):
    browser.open(attention)
    browser.evaluate("document.querySelector('.head canvas').scrollIntoView()")

    def point(destination, source):
        x, y = browser.evaluate(
            "(() => { const box = document.querySelector('.head canvas').getBoundingClientRect();"
            "const [left, top] = [box.right - 5 * 34, box.bottom - box.height + 7];"
            f"return [left + {source + 0.5} * 34, top + {destination + 0.5} * 34]; }})()"
        )
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    point(3, 1)
    weight = make_patterns(5)[0, 0, 3, 1]
    assert browser.evaluate(READOUT) == f"dest[3] ␣the → src[1] ␣keys {weight:.4f}"
    point(1, 3)
    assert browser.evaluate(READOUT).startswith("dest[3]")


PIXEL = """(() => {{
    const canvas = document.querySelector('.head canvas');
    const [x, y] = [canvas.width - (5 - {source} - .5) * 34, 7 + ({destination} + .5) * 34];
    return [...canvas.getContext('2d').getImageData(x, y, 1, 1).data].slice(0, 3);
}})()"""


def test_cells_have_the_colour_of_their_weight(browser, attention):
    browser.open(attention)
    one = browser.evaluate(PIXEL.format(destination=0, source=0))
    masked = browser.evaluate(PIXEL.format(destination=0, source=4))
    assert one == [0xFD, 0xE7, 0x25]  # the upper end of viridis, for a weight of exactly 1
    assert masked == [0xD9, 0xDD, 0xE2]


def test_another_prompt_can_be_chosen(browser, attention):
    browser.open(attention)
    browser.evaluate(
        "(() => { const choice = document.querySelector('select'); choice.value = 1;"
        "choice.dispatchEvent(new Event('change')); })()"
    )
    assert browser.evaluate(NAME) == "Layer 0, head 0"
    assert browser.evaluate("document.querySelector('.head canvas').width") < 250
    assert browser.trouble == []


@pytest.mark.parametrize("width", [360, 1400])
def test_a_large_model_and_a_long_prompt_scroll_in_their_own_boxes(browser, tmp_path, width):
    n = 200
    even = np.tril(np.ones((n, n), np.float32))
    even /= even.sum(axis=1, keepdims=True)
    patterns = np.broadcast_to(even, (12, 12, n, n))
    path = tmp_path / "long.html"
    prompt = AttentionPrompt("long", tuple(f" word{i}" for i in range(n)), patterns)
    path.write_text(attention_page([prompt], model="gpt2"), "utf-8")
    browser.open(path, width=width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.querySelectorAll('.grid button').length") == 144
    assert browser.trouble == []
