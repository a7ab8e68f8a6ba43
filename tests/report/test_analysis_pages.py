"""Pages of logit lens, logit attribution and head scores: sentences, and layout in a browser."""

import pandas as pd
import pytest

from probekit.report.pages.attribution_page import (
    attribution_answer,
    attribution_detail,
    attribution_page,
)
from probekit.report.pages.heads_page import heads_answer, heads_page, known_heads_table
from probekit.report.pages.lens_page import lens_accuracy, lens_answer, lens_page, lens_summary
from probekit.results.network import MEAN, AttributedLogit, ScoredHeads
from tests.report.conftest import HOSTILE
from tests.report.pictures import TOKENS, attribution_rows, head_rows, lens_rows

FACTS = {"model": "made", "note": HOSTILE}
KNOWN = {"previous_token": [(1, 2)], "duplicate_token": [(0, 1)]}


def attributed(**changes):
    given = {
        "tokens": TOKENS,
        "position": 4,
        "token": " a",
        "minus": "",
        "logit": 8.0,
        "probability": 0.25,
        "rank": 1234,
        "rows": attribution_rows(),
    }
    return AttributedLogit(**(given | changes))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    both = pd.concat([lens_rows(), lens_rows(("A", " b"), prompt=2)])
    contents = {
        "lens": lens_page(both, model="made", facts=FACTS),
        "attribution": attribution_page(attributed(), model="made", facts=FACTS),
        "heads": heads_page(ScoredHeads(head_rows(), "a text", KNOWN), model="made", facts=FACTS),
    }
    for name, content in contents.items():
        (folder / f"{name}.html").write_text(content, "utf-8")
    return folder


def test_the_summary_counts_at_each_site():
    rows = lens_summary(lens_rows())
    assert rows["layer"].tolist() == ["embed", "0", "1", "2"]
    assert rows["right"].tolist() == [0, 0, 0, 2]
    assert set(rows["n_next"]) == {4}
    assert set(rows["n"]) == {5}
    assert rows["as_output"].tolist() == [3, 3, 3, 5]
    assert rows["rank"].tolist() == [10_000, 1_000, 100, 5.5]
    assert rows["entropy"].tolist() == [5, 4, 3, 2]
    assert rows["kl"].tolist() == [3, 2, 1, 0]


def test_the_summary_of_two_texts_keeps_their_positions_apart():
    alone, both = lens_rows(), pd.concat([lens_rows(), lens_rows(("A", " b"), prompt=2)])
    assert lens_summary(both)["n"].tolist() == [7] * 4
    assert lens_summary(both)["right"].tolist() == [0, 0, 0, 3]
    assert lens_summary(both)["as_output"].tolist() == [4, 4, 4, 7]
    assert "at 2 of 4 positions" in lens_accuracy(alone)
    assert "at 3 of 5 positions" in lens_accuracy(both)


def test_the_caption_of_the_lens_names_both_numbers_of_positions():
    page = lens_page(lens_rows(), model="made", facts=FACTS)
    assert "Share of 5 positions at which the most likely token of a layer is the final one" in page
    assert "and share of 4 with a next token in the text at which it is that token." in page


def test_the_answer_names_the_layer_from_which_the_lens_agrees_with_the_output():
    rows = lens_rows()
    half = "the most likely token is the final prediction at half of the positions or more"
    assert lens_answer(rows) == f"From the embedding on, {half}: 3 of 5 at the embedding."
    rows.loc[rows["layer"] == 0, "token_1"] = "other"
    answer = lens_answer(rows)
    assert answer == f"From layer 1 on, {half}: 3 of 5 at layer 1, 0 of 5 at layer 0."
    rows.loc[rows["site"] != "blocks.2.hook_resid_post", "token_1"] = "other"
    answer = lens_answer(rows)
    assert answer == (
        "Only at the last layer: at layer 1, one site earlier, the most likely token is the final "
        "prediction at 0 of 5 positions."
    )


def test_a_last_site_that_is_not_the_output_is_named():
    rows = lens_rows().assign(kl=1.0)
    assert "is that of layer 2 at half of the positions or more: 3 of 5" in lens_answer(rows)
    rows.loc[rows["site"] != "blocks.2.hook_resid_post", "token_1"] = "other"
    assert lens_answer(rows).startswith("Only at layer 2: at layer 1, one site earlier,")


def test_texts_of_one_token_have_no_next_token():
    assert "no next token" in lens_accuracy(lens_rows(("A",)))


def share_rows(*values):
    rows = attribution_rows()
    return rows.assign(value=[*values, *[0.0] * (len(rows) - len(values))])


def test_the_answer_of_a_logit_difference_has_the_fewest_parts_that_add_half_of_it():
    found = attributed(minus=" b", rows=share_rows(3.0, 2.5, 2.0, 1.5, -1.0), logit=8.0)
    assert attribution_answer(found) == (
        "token embedding (38 %) and position embedding (31 %) carry 69 % of the logit difference "
        "of +8.00 between “␣a” and “␣b”; the other 13 of 15 components add +2.50."
    )
    one = attributed(minus=MEAN, rows=share_rows(-3.0, 0.5), logit=-2.5)
    assert attribution_answer(one) == (
        "token embedding (120 %) carries 120 % of the logit difference of −2.50 between “␣a” and "
        "the mean of all tokens; the other 14 of 15 components add +0.50."
    )


def test_a_single_logit_has_no_shares():
    found = attributed(rows=share_rows(5.0, 1.0), logit=6.0)
    assert attribution_answer(found) == (
        "token embedding (+5.00) carries +5.00 of the logit of “␣a”, +6.00; the other 14 of "
        "15 components add +1.00."
    )
    assert "defined only up to a constant" in attribution_detail(found)
    assert "constant" not in attribution_detail(attributed(minus=" b"))
    assert "a probability of 0.250 (rank 1,234)" in attribution_detail(found)


def test_the_numbers_of_the_answer_add_up_as_written():
    found = attributed(rows=share_rows(2.404, 1.464, 2.966), logit=6.834)
    assert "(+2.97)" in attribution_answer(found)
    assert " carry +5.37 of the logit" in attribution_answer(found)
    assert attribution_answer(found).endswith(", +6.83; the other 13 of 15 components add +1.46.")


def test_code_in_the_detail_is_marked_as_code():
    page = attribution_page(attributed(), model="made", facts={})
    assert "<code>--minus</code> gives a logit difference" in page


def test_contributions_that_cancel_have_no_shares():
    found = attributed(minus=" b", rows=share_rows(5.0, -4.9), logit=0.1)
    assert attribution_answer(found) == (
        "No component carries the logit difference of +0.10 between “␣a” and “␣b”: contributions "
        "of +5.00 and −4.90 cancel; the largest are token embedding +5.00, position embedding "
        "−4.90."
    )


def test_the_table_of_the_largest_contributions_sums_to_the_logit():
    page = attribution_page(attributed(minus=" b"), model="/data/mine/made", facts={})
    assert "<bdi>other 7 of 15 components</bdi>" in page
    assert "<td>100 %</td>" in page
    assert "/data/mine" not in page


def test_the_name_of_a_menu_stays_on_one_line(browser, pages):
    browser.open(pages / "lens.html", width=400)
    lines = browser.evaluate(
        "(() => { const range = document.createRange();"
        "range.selectNode(document.querySelector('.choice').firstChild);"
        "return range.getClientRects().length; })()"
    )
    assert lines == 1


def test_known_heads_have_their_value_and_rank():
    scored = ScoredHeads(head_rows(), "a text", KNOWN)
    assert known_heads_table(scored).rows == [
        ("previous token", "L1H2", "0.300", "6 of 12"),
        ("duplicate token", "L0H1", "–", "undefined for all tokens"),
    ]


def test_heads_of_each_type_are_counted():
    rows = head_rows()
    assert heads_answer(ScoredHeads(rows, "a text")) == (
        "2 previous-token heads, L2H3 highest (0.55, next 0.50); 2 induction heads, L2H3 highest "
        "(0.57, next 0.52); 2 first-token heads, L2H3 highest (0.58, next 0.53)."
    )
    rows["value"] /= 2
    assert "o previous-token head (highest 0.28)" in heads_answer(ScoredHeads(rows, "a text"))
    rows.loc[(rows["layer"] == 1) & (rows["head"] == 0), "value"] = 0.9
    assert "1 induction head, L1H0 (0.90, next 0.29)" in heads_answer(ScoredHeads(rows, "a text"))
    none = ScoredHeads(rows.assign(value=float("nan")), "a text")
    assert heads_answer(none).startswith("No score")
    assert "undefined for all tokens" in heads_page(none, model="made", facts={})


def test_the_same_contents_give_the_same_bytes():
    pages = [lens_page(lens_rows(), model="made", facts=FACTS) for _ in range(2)]
    assert pages[0] == pages[1]


@pytest.mark.parametrize("name", ["lens", "attribution", "heads"])
def test_hostile_text_stays_text(pages, name):
    page = (pages / f"{name}.html").read_text("utf-8")
    assert HOSTILE not in page
    assert "<b>%{x}" not in page


GROUND = "getComputedStyle(document.querySelectorAll('.plot .textpoint text')[{at}]).fill"


def test_the_menu_switches_between_colourings(browser, pages):
    browser.open(pages / "lens.html")

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
    assert inks == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
    second = "document.querySelectorAll('.plot:has(.choice) .drawing')[1].data[0].z[0]"
    assert browser.evaluate(second) == [0.1, 0.1]
    assert browser.trouble == []


def test_pointing_at_a_cell_shows_its_tokens(browser, pages):
    browser.open(pages / "lens.html")
    x, y = browser.evaluate(
        "(() => { const area = document.querySelector('.plot:has(.choice) .nsewdrag');"
        "area.scrollIntoView({ block: 'center' }); const box = area.getBoundingClientRect();"
        "return [box.left + box.width / 10, box.top + box.height * 7 / 8]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    browser.settle()
    shown = browser.evaluate("document.querySelector('.plot:has(.choice) .hoverlayer').textContent")
    assert "1. ␣keys 0.700" in shown
    assert "follows: ␣keys 0.700, rank 1" in shown


def test_a_table_is_sorted_by_a_click_and_back(browser, pages):
    browser.open(pages / "heads.html")
    table = "[...document.querySelectorAll('.sortable')].at(-1)"
    column = f"[...{table}.tBodies[0].rows].map(row => row.cells[1].textContent)"
    before = browser.evaluate(column)
    click = f"{table}.tHead.rows[0].cells[1].querySelector('button').click()"
    browser.evaluate(click)
    assert browser.evaluate(column) == sorted(before, reverse=True)
    assert browser.evaluate(f"{table}.tHead.rows[0].cells[1].ariaSort") == "descending"
    browser.evaluate(click)
    assert browser.evaluate(column) == sorted(before)
    browser.evaluate(click.replace("cells[1]", "cells[0]"))
    heads = browser.evaluate(f"[...{table}.tBodies[0].rows].map(row => row.cells[0].textContent)")
    assert heads == sorted(heads, reverse=True)
    assert browser.trouble == []


def test_long_texts_have_a_short_heading_and_a_note_about_omitted_tokens(browser, tmp_path):
    rows = lens_rows(tuple(f" word{number}" for number in range(1024)))
    page = lens_page(rows, model="made", facts={})
    assert "too many cells" in page
    assert "too many cells" not in lens_page(lens_rows(), model="made", facts={})
    (tmp_path / "long.html").write_text(page, "utf-8")
    browser.open(tmp_path / "long.html", width=700)
    assert browser.evaluate("document.querySelector('section h2').textContent.length") < 120
    assert browser.evaluate("document.documentElement.scrollWidth") <= 700
    assert browser.evaluate("document.querySelectorAll('.plot .xtick').length") < 200
    assert browser.trouble == []
