"""The report in a browser: no console messages, no requests, nothing cut off."""

import pytest

from probekit.report.pages.run_page import write_report
from tests.report.conftest import four_kinds


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


def test_all_but_the_results_is_closed_and_folded_figures_are_drawn_when_opened(browser, page):
    browser.open(page)
    summaries = browser.evaluate(
        "[...document.querySelectorAll('details:not([open]) > summary')].map(e => e.textContent)"
    )
    for closed in ("About this figure", "Data card", "Data checks and notes", "Full configuration"):
        assert closed in summaries
    assert browser.evaluate("document.querySelectorAll('details[open]').length") == 0
    folded = "document.querySelectorAll('details .main-svg').length"
    assert browser.evaluate(folded) == 0
    browser.evaluate("document.querySelector('details:has(.plot) > summary').click()")
    browser.settle()
    assert browser.evaluate(folded) > 0
    titles = browser.evaluate(
        "[...document.querySelectorAll('.modebar-btn')].map(button => button.dataset.title)"
    )
    assert titles
    # Figures have no upload button.
    assert not [title for title in titles if "loud" in title or "hare" in title]
    assert browser.trouble == []


def test_the_data_card_opens_and_wraps(browser, make_run, record):
    record["data"]["card"] = "word " * 300
    browser.open(write_report(make_run(record=record)), width=360)
    browser.evaluate("document.querySelector('.card summary').click()")
    browser.settle()
    card = "document.querySelector('.card pre')"
    assert browser.evaluate(f"{card}.scrollWidth <= {card}.clientWidth")
    assert browser.evaluate(f"{card}.clientHeight") > 100
    assert browser.trouble == []


def test_buttons_of_a_figure_work_with_the_keyboard(browser, make_run):
    kinds = four_kinds()
    is_elsewhere = kinds["target"].eq("random_weights") & ~kinds["site"].str.contains("resid")
    browser.open(write_report(make_run(kinds[~is_elsewhere])))  # this line is in the legend
    plot = "document.querySelector('.plot .drawing')"
    shown = f"{plot}.data.filter(trace => trace.visible === 'legendonly').length"
    assert browser.evaluate(shown) == 0
    browser.evaluate(f"{plot}.querySelector('.legendtoggle').focus()")
    browser.press("Enter")
    browser.settle(1000)  # Plotly waits for a possible double click
    assert browser.evaluate(shown) > 0
    reach = f"({plot}.layout.xaxis.range[1] - {plot}.layout.xaxis.range[0])"
    before = browser.evaluate(reach)
    name = 'aria-label="Zoom in"'
    browser.evaluate(f"{plot}.querySelector('.modebar-btn[{name}]').focus()")
    browser.press("Enter")
    browser.settle()
    assert browser.evaluate(reach) < before


def test_a_figure_stays_zoomed_when_its_colours_or_the_window_change(browser, page):
    browser.open(page)
    plot = "document.querySelector('.plot .drawing')"
    reach = f"({plot}.layout.xaxis.range[1] - {plot}.layout.xaxis.range[0])"
    before = browser.evaluate(reach)
    browser.evaluate(f"{plot}.querySelector('[data-title=\"Zoom in\"]').click()")
    browser.settle()
    zoomed = browser.evaluate(reach)
    assert zoomed < before
    browser.evaluate("switchTheme()")
    browser.settle()
    assert browser.evaluate(reach) == zoomed
    browser.resize(600)
    browser.settle()
    assert browser.evaluate(reach) == zoomed
    browser.evaluate("switchTheme()")  # the choice lasts in the storage of the browser
    assert browser.trouble == []


def test_a_dark_page_is_printed_in_light_colours_by_browsers_that_copy_it_first(browser, page):
    """These send no event of the media query."""
    browser.open(page, dark=True)
    theme = "document.documentElement.dataset.theme"
    themes = [
        browser.evaluate(f"{change} {theme}")
        for change in (
            "",
            "dispatchEvent(new Event('beforeprint'));",
            "dispatchEvent(new Event('afterprint'));",
        )
    ]
    assert themes == ["dark", "light", "dark"]


BOTTOM = "document.querySelector('{}').getBoundingClientRect().bottom"


@pytest.mark.parametrize("kind", ["plain", "heads", "sweep"])
def test_answer_table_and_first_warning_are_on_the_first_screen(browser, report_of, kind):
    browser.open(report_of(kind), width=1400)
    for selector in (".answer", ".screen .compact", ".warnings li"):
        assert browser.evaluate(BOTTOM.format(selector)) <= 900, selector
    if kind == "plain":  # a plain run: one position, no maps
        assert browser.evaluate("document.documentElement.scrollHeight") <= 4000
    left, right = (
        browser.evaluate(f"document.querySelector('.screen > {one}').getBoundingClientRect().left")
        for one in ("figure", "div")
    )
    assert left < right
    # No table is cut off.
    assert browser.evaluate(
        "[...document.querySelectorAll('.screen .scroll')]"
        ".every(one => one.scrollWidth <= one.clientWidth)"
    )


def test_comparisons_that_are_not_significant_fit_their_table(browser, page):
    """No word is broken, and the table does not scroll, with the longest cells in every row."""
    browser.open(page, width=1400)
    cells = (
        "<td>0.500</td><td>+0.004 <small>[−0.046, 0.054]</small></td><td>0.99 "
        '<small class="verdict">not significant</small> <small class="sided">one-sided</small></td>'
    )
    names = browser.evaluate(
        "[...document.querySelectorAll('.compact tbody tr')].map(row => {"
        f"row.innerHTML = `<th scope='row'>embedding</th>{cells}`;"
        "return row.cells[0].getBoundingClientRect().height < 50; })"
    )
    assert names
    assert all(names)
    assert browser.evaluate(
        "(one => one.scrollWidth <= one.clientWidth)(document.querySelector('.screen .scroll'))"
    )


@pytest.mark.parametrize("width", [700, 400])
def test_narrow_windows_show_answer_figure_table_and_warnings_in_this_order(browser, page, width):
    browser.open(page, width=width)
    selectors = (".answer", ".screen figure", ".screen table", ".warnings")
    tops = [browser.evaluate(BOTTOM.format(one)) for one in selectors]
    assert tops == sorted(tops)
    titles = browser.evaluate("[...document.querySelectorAll('h1, h2')].map(e => e.textContent)")
    assert titles[1:4] == ["Accuracy by layer", "Comparisons", "Warnings (1)"]
    assert browser.evaluate(
        "[...document.querySelectorAll('.compact thead th, .compact tbody th')]"
        ".every(one => one.scope)"
    )
