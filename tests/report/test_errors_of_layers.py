"""The worst errors of each layer, as a browser shows them: hover, click, menu, hostile texts."""

import json

import pytest

from probekit.report.pages.run_page import write_report
from probekit.results.scores import answers_name
from probekit.terminal import visible
from tests.report.conftest import HOSTILE, SITES, row, seal_run, write_shown

VISIBLE = "[...document.querySelectorAll('.errors [data-probe]')].filter(list => !list.hidden)"
TITLE = f"{VISIBLE}.map(list => list.querySelector('h3').textContent).join()"
PLOT = "document.querySelector('.plot .drawing')"


def name_of(site):
    return answers_name(row(site, "task", 0.9))


def wrong(label=HOSTILE):
    """The contents of wrong.json of a run in which every site has one error of its own."""
    example = {"text": "chosen", "span": None, "group": "g", "label": label, "guess": "Sing"}
    row = {"span": [0, 4], "group": "g", "label": label}
    rows = [row | {"text": f"{label} {site}"} for site in SITES]
    place = {"head": None, "position": "last", "probe": "logistic", "n_rows": 1039}
    probes = [
        place
        | {"name": name_of(site), "site": site, "n_wrong": 60 + number}
        | {"errors": [{"row": number, "guess": "Sing", "ahead": 1.5}]}
        for number, site in enumerate(SITES)
    ]
    examples = [example | {"ahead": 3.0}]
    return {"classes": [label, "Sing"], "examples": examples, "probes": probes, "rows": rows}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    run = write_shown(tmp_path_factory.mktemp("errors") / "run")
    (run / "wrong.json").write_text(json.dumps(wrong()))
    return write_report(seal_run(run))


def place(browser, number):
    """The position of a point of the task line in the window."""
    browser.middle(PLOT)
    return browser.evaluate(
        f"(() => {{ const plot = {PLOT}, box = plot.getBoundingClientRect();"
        "const line = plot.data.find(trace => trace.customdata);"
        "const { xaxis, yaxis } = plot._fullLayout;"
        f"return [box.x + xaxis._offset + xaxis.d2p(line.x[{number}]),"
        f"box.y + yaxis._offset + yaxis.d2p(line.y[{number}])]; }})()"
    )


def test_pointing_at_a_layer_shows_its_errors_and_a_click_keeps_them(browser, page):
    browser.open(page)
    assert browser.evaluate(TITLE) == "The chosen probe"
    peek = "document.querySelector('.peek')"
    for number in (2, 4):
        browser.hover(*place(browser, number))
        browser.settle()
        assert browser.evaluate(TITLE) == SITES[number]
        text = browser.evaluate(f"{VISIBLE}[0].textContent")
        assert f"{visible(HOSTILE)} {SITES[number]}" in text
        assert f"{60 + number} of 1,039 held-out rows" in text
        assert SITES[number] in browser.evaluate(f"{peek}.textContent")
    browser.hover(5, 5)
    browser.settle()
    assert browser.evaluate(TITLE) == "The chosen probe"
    assert "The chosen probe" in browser.evaluate(f"{peek}.textContent")
    assert browser.evaluate(f"{peek}.closest('.screen') !== null")
    browser.click(*place(browser, 2))
    browser.settle(500)
    browser.hover(5, 5)
    browser.settle()
    assert browser.evaluate(TITLE) == SITES[2]
    assert browser.evaluate("document.querySelector('.errors select').value") == name_of(SITES[2])
    assert browser.trouble == []


def test_the_menu_chooses_with_the_keyboard(browser, page):
    browser.open(page, width=400)
    browser.evaluate("document.querySelector('.errors select').focus()")
    for _ in range(2):
        browser.press("ArrowDown")
        browser.settle()
    assert browser.evaluate(TITLE) == SITES[1]
    assert browser.evaluate("document.documentElement.scrollWidth") <= 400
    assert SITES[1] in browser.evaluate("document.querySelector('.peek').textContent")
    assert browser.trouble == []


def test_a_run_without_errors_at_its_chosen_site_still_has_those_of_others(browser, make_run):
    run = make_run()
    (run / "wrong.json").write_text(json.dumps(wrong() | {"examples": []}))
    browser.open(write_report(seal_run(run)))
    assert "No held-out row is misclassified." in browser.evaluate(f"{VISIBLE}[0].textContent")
    assert browser.evaluate("document.querySelector('.errors select').length") == 1 + len(SITES)
