"""Page of the patches of one pair: sentences, tables, hostile texts."""

from dataclasses import replace

import numpy as np

from probekit.report.pages.page import with_code
from probekit.report.pages.pair_page import (
    CAVEAT,
    pair_answer,
    pair_detail,
    pair_notes,
    pair_page,
    strongest_patches,
)
from tests.report.conftest import HOSTILE
from tests.report.pictures import patched_pair


def test_the_answer_names_the_strongest_positions_and_heads():
    assert pair_answer(patched_pair()) == (
        "The strongest position of the residual stream is “␣key → ␣keys” [1] at embed to layer 0 "
        "(recovery 1.00 to 0.75), then “␣here” [3] at layer 1 (recovery 1.00). The heads with the "
        "largest recovery are L1H2 (0.50), L1H1 (−0.25), L0H1 (0.13)."
    )


def test_estimates_speak_of_verified_patches_only():
    pair = patched_pair(estimated=True)
    assert pair_answer(pair).startswith("Among the verified patches, the strongest position")
    table = strongest_patches(pair, pair.rows, 99)
    assert table.columns[1] == "estimated effect"
    rows = table.rows
    assert len(rows) == pair.rows["effect"].notna().sum()
    assert {len(row) for row in rows} == {5}


def test_the_strongest_patches_are_sorted_by_absolute_effect():
    pair = patched_pair()
    rows = strongest_patches(pair, pair.of_heads, 2).rows
    assert rows == [("L1H2", "+1.00", "−1.00", "0.50"), ("L1H1", "+2.50", "+0.50", "−0.25")]


def test_the_detail_has_both_measures():
    assert pair_detail(patched_pair()) == (
        "Logit of “␣is” minus logit of “␣are”: +2.00 after “The key is here” (clean), 0.00 after "
        "“The keys is here” (corrupt). The network does not prefer “␣are” after the corrupt text."
    )


def test_answers_of_the_network_and_missing_spaces_are_noted():
    pair = replace(patched_pair(), base=-1.0, source=-3.0, unspaced=("is",))
    assert pair_notes(pair) == [
        "“is” has no leading space; “␣is” is a single token, too, and begins a new word.",
        "The network does not prefer “␣is” after the clean text.",
    ]


def test_a_pair_without_a_difference_has_no_recovery():
    pair = patched_pair()
    same = replace(pair, source=pair.base, rows=pair.rows.assign(recovery=np.nan))
    assert "nothing to recover" in pair_answer(same)
    page = pair_page(same, model="made", facts={})
    assert "<td>–</td>" in page


def test_the_page_says_what_one_pair_can_show():
    page = pair_page(patched_pair(), model="/data/mine/made", facts={"weights": "abc"})
    assert with_code(CAVEAT) in page
    assert "n = 1 pair" in page
    assert "/data/mine" not in page
    assert "attn_out by token" in page.lower()


def test_hostile_texts_stay_text():
    pair = patched_pair()
    tokens = (HOSTILE, *pair.clean[1:])
    hostile = replace(pair, clean=tokens, corrupt=(tokens[0], *pair.corrupt[1:]), answer=HOSTILE)
    assert HOSTILE not in pair_page(hostile, model=HOSTILE, facts={"weights": HOSTILE})
