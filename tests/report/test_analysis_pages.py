"""Pages of logit lens, logit attribution and head scores: sentences, and layout in a browser.

The texts of whole pages are in test_every_page.py.
"""

import pandas as pd
import pytest

from probekit.report.pages.attribution_page import (
    attribution_answer,
    attribution_detail,
    attribution_page,
    largest_table,
)
from probekit.report.pages.heads_page import heads_answer, heads_page, known_heads_table
from probekit.report.pages.lens_page import lens_accuracy, lens_answer, lens_page, lens_summary
from probekit.results.network import MEAN, AttributedLogit, ScoredHeads
from tests.report.conftest import HOSTILE
from tests.report.page_text import text_of
from tests.report.pictures import TOKENS, attribution_rows, head_rows, lens_rows

FACTS = {"model": "made", "note": HOSTILE}
KNOWN = {"previous_token": [(1, 2)], "duplicate_token": [(0, 1)]}
LAST = "blocks.2.hook_resid_post"
LENS, HEADS = lens_rows(), head_rows()
BOTH = pd.concat([LENS, lens_rows(("A", " b"), prompt=2)])


LAYERS = [f"blocks.{layer}.hook_resid_post" for layer in range(30)]
LONG = lens_rows(tuple(f" w{number}" for number in range(25)), ["blocks.0.hook_resid_pre", *LAYERS])
WIDE = {
    "the last token of a lens": (
        lambda: lens_page(LONG.assign(probability_1=0.5), model="made", facts={}),
        "␣w24",
    ),
    "the MLPs of an attribution": (
        lambda: attribution_page(attributed(rows=attribution_rows(30, 24)), model="made", facts={}),
        "MLP",
    ),
}


def attributed(*values, **changes):
    """An attribution, with other contributions: zero beyond those that are given."""
    rows = attribution_rows()
    if values:
        rows["value"] = [*values, *[0.0] * (len(rows) - len(values))]
    given = {"tokens": TOKENS, "position": 4, "token": " a", "minus": "", "logit": 8.0}
    given |= {"probability": 0.25, "rank": 1234, "rows": rows}
    return AttributedLogit(**(given | changes))


@pytest.fixture(scope="module")
def lens(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "lens.html"
    path.write_text(lens_page(BOTH, model="made", facts=FACTS).html(), "utf-8")
    return path


def other_token(rows, is_other):
    return rows.assign(token_1=rows["token_1"].mask(is_other, "other"))


NOT_LAST = LENS["site"] != LAST
NOT_OUTPUT = LENS.assign(kl=1.0)
LENSES = {
    "it agrees from the embedding on": LENS,
    "it agrees from a layer on": other_token(LENS, LENS["layer"] == 0),
    "it agrees at the last layer only": other_token(LENS, NOT_LAST),
    "a last site that is not the output is named": NOT_OUTPUT,
    "it agrees at such a last site only": other_token(NOT_OUTPUT, NOT_LAST),
    "texts of one token have no next token": lens_rows(("A",)),
    "two texts keep their positions apart": BOTH,
}


@pytest.mark.parametrize("name", LENSES)
def test_sentences_and_summary_of_a_lens_are_those_that_are_stored(snapshot, name):
    rows = LENSES[name]
    summary = lens_summary(rows).to_csv(index=False)
    assert f"{lens_answer(rows)}\n{lens_accuracy(rows)}\n{summary}" == snapshot


ATTRIBUTIONS = {
    "the fewest parts that add half of a difference": attributed(
        3.0, 2.5, 2.0, 1.5, -1, minus=" b"
    ),
    "one part of a difference from the mean": attributed(-3.0, 0.5, minus=MEAN, logit=-2.5),
    "a single logit has no shares": attributed(5.0, 1.0, logit=6.0),
    "numbers add up as written": attributed(2.404, 1.464, 2.966, logit=6.834),
    "contributions that cancel have no shares": attributed(5.0, -4.9, minus=" b", logit=0.1),
    "the largest contributions sum to the logit": attributed(minus=" b"),
}


@pytest.mark.parametrize("name", ATTRIBUTIONS)
def test_sentences_and_table_of_an_attribution_are_those_that_are_stored(snapshot, name):
    found = ATTRIBUTIONS[name]
    lines = [attribution_answer(found), attribution_detail(found)]
    assert "\n".join([*lines, *map(str, largest_table(found).rows)]) == snapshot


def test_code_in_the_detail_is_marked_as_code_and_no_machine_path_is_shown():
    page = attribution_page(attributed(), model="/data/mine/made", facts={}).html()
    assert "<code>--minus</code> gives a logit difference" in page
    assert "/data/mine" not in page


def test_the_name_of_a_menu_stays_on_one_line(browser, lens):
    browser.open(lens, width=400)
    lines = browser.evaluate(
        "(() => { const range = document.createRange();"
        "range.selectNode(document.querySelector('.choice').firstChild);"
        "return range.getClientRects().length; })()"
    )
    assert lines == 1


HALF = HEADS.assign(value=HEADS["value"] / 2)
ONE = HALF.assign(value=HALF["value"].mask(HALF["layer"].eq(1) & HALF["head"].eq(0), 0.9))
HEAD_SCORES = {
    "heads of each type are counted": HEADS,
    "none of a type": HALF,
    "one of each type": ONE,
    "undefined scores": HEADS.assign(value=float("nan")),
}


@pytest.mark.parametrize("name", HEAD_SCORES)
def test_sentences_and_known_heads_are_those_that_are_stored(snapshot, name):
    """Known heads have their value and rank."""
    scored = ScoredHeads(HEAD_SCORES[name], "a text", KNOWN)
    assert "\n".join([heads_answer(scored), *map(str, known_heads_table(scored).rows)]) == snapshot


def test_the_page_of_a_text_of_one_token_has_no_share_of_next_tokens():
    assert "one token each" in lens_page(lens_rows(("A",)), model="made", facts={}).html()


def test_a_page_of_undefined_scores_has_no_numbers(snapshot):
    none = ScoredHeads(HEAD_SCORES["undefined scores"], "a text")
    assert text_of(heads_page(none, model="made", facts={}).html()) == snapshot


GROUND = "getComputedStyle(document.querySelectorAll('.plot .textpoint text')[{at}]).fill"


def test_the_menu_switches_between_colourings(browser, lens):
    browser.open(lens)

    def choose(number):
        browser.evaluate(
            "(() => { const menu = document.querySelector('.choice select'); "
            f"menu.selectedIndex = {number}; menu.dispatchEvent(new Event('change')); }})()"
        )
        browser.settle()
        return browser.evaluate(
            "(({z, zmax, colorbar}) => [z[1][0], z[1][4], zmax, colorbar.title.text])"
            "(document.querySelector('.plot:has(.choice) .drawing').data[0])"
        )

    assert choose(1) == [3, None, 4, "rank of the token that follows in the text"]
    assert choose(2) == [4, 4, 5, "entropy, nats"]
    assert choose(3) == [2, 2, 3, "KL divergence from the output, nats"]
    *ends, title = choose(0)
    assert ends == pytest.approx([0.3, 0.3, 1])
    assert title == "probability of the token in the cell"
    inks = [browser.evaluate(GROUND.format(at=at)) for at in (0, 15)]
    assert inks == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
    second = "document.querySelectorAll('.plot:has(.choice) .drawing')[1].data[0].z[0]"
    assert browser.evaluate(second) == [0.1, 0.1]
    assert browser.trouble == []


def test_pointing_at_a_cell_shows_its_tokens(browser, lens):
    browser.open(lens)
    browser.middle("document.querySelector('.plot:has(.choice) .nsewdrag')")
    x, y = browser.evaluate(
        "(box => [box.left + box.width / 10, box.top + box.height * 7 / 8])"
        "(document.querySelector('.plot:has(.choice) .nsewdrag').getBoundingClientRect())"
    )
    browser.hover(x, y)
    browser.settle()
    shown = browser.evaluate("document.querySelector('.plot:has(.choice) .hoverlayer').textContent")
    assert "1. ␣keys 0.700" in shown
    assert "follows: ␣keys 0.700, rank 1" in shown


def test_long_texts_have_a_short_heading_and_a_note_about_omitted_tokens(browser, tmp_path):
    rows = lens_rows(tuple(f" word{number}" for number in range(1024)))
    page = lens_page(rows, model="made", facts={}).html()
    assert "too many cells" in page
    assert "too many cells" not in lens_page(lens_rows(), model="made", facts={}).html()
    (tmp_path / "long.html").write_text(page, "utf-8")
    browser.open(tmp_path / "long.html", width=700)
    shown = browser.evaluate("document.querySelector('.eyebrow').textContent")
    assert len(shown) < 150
    assert shown.endswith("word1022 word1023")
    assert browser.evaluate("document.documentElement.scrollWidth") <= 700
    assert browser.evaluate("document.querySelectorAll('.plot .xtick').length") < 200
    assert browser.trouble == []


@pytest.mark.parametrize("name", WIDE)
def test_the_column_of_the_answer_and_all_layers_are_on_the_first_screen(browser, tmp_path, name):
    page, label = WIDE[name]
    (tmp_path / "wide.html").write_text(page().html(), "utf-8")
    browser.open(tmp_path / "wide.html")
    # The ticks below the last layer, in the part of the map that is not scrolled out.
    places = browser.evaluate(
        "(() => { const plot = document.querySelector('.scroll');"
        "const {left, right} = plot.getBoundingClientRect();"
        "const at = [...plot.querySelectorAll('.xtick')].map(one => [one.textContent,"
        " one.getBoundingClientRect()]).filter(([, box]) => box.left > left && box.right < right"
        " && box.bottom < innerHeight);"
        "return at.map(([text]) => text); })()"
    )
    assert label in places
    assert browser.evaluate("innerHeight") == 900
    layers = "document.querySelectorAll('.scroll:first-of-type .ytick').length"
    assert browser.evaluate(layers) >= 30
    texts = browser.evaluate("document.querySelectorAll('.scroll .textpoint').length")
    assert texts >= 30 * 17
