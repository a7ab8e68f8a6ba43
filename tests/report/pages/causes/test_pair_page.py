"""Page of the patches of one pair: sentences, tables, hostile texts."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.report.pages.pair_page import (
    pair_answer,
    pair_detail,
    pair_notes,
    pair_page,
    strongest_patches,
)
from tests.report.conftest import HOSTILE
from tests.report.pictures import patched_pair

PAIR, ESTIMATED = patched_pair(), patched_pair(estimated=True)
PAIRS = {
    "the strongest positions and heads": PAIR,
    "estimates speak of verified patches only": ESTIMATED,
    "answers that are not preferred, and a missing space": replace(
        PAIR, base=-1.0, source=-3.0, unspaced=("is",)
    ),
    "without a difference there is no recovery": replace(
        PAIR, source=PAIR.base, rows=PAIR.rows.assign(recovery=np.nan)
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_sentences_and_strongest_patches_are_those_that_are_stored(snapshot, name):
    """Patches are sorted by their absolute effect."""
    pair = PAIRS[name]
    table = strongest_patches(pair, pair.rows, 7)
    lines = [pair_answer(pair), pair_detail(pair), *pair_notes(pair), str(table.columns)]
    assert "\n".join([*lines, *map(str, table.rows)]) == snapshot


def test_all_verified_patches_have_a_row():
    rows = strongest_patches(ESTIMATED, ESTIMATED.rows, 99).rows
    assert len(rows) == ESTIMATED.rows["effect"].notna().sum()


def test_the_answer_is_about_a_family_with_measured_patches():
    rows = PAIR.rows.assign(recovery=PAIR.rows["recovery"].iloc[12:])  # none of the stream
    assert "patches of attn_out are at " in pair_answer(replace(PAIR, rows=rows))


def test_hostile_texts_stay_text_and_no_machine_path_is_on_the_page():
    tokens = (HOSTILE, *PAIR.clean[1:])
    hostile = replace(PAIR, clean=tokens, corrupt=(tokens[0], *PAIR.corrupt[1:]), answer=HOSTILE)
    page = pair_page(hostile, model="/data/mine/made", facts={"weights": HOSTILE}).html()
    assert HOSTILE not in page
    assert "/data/mine" not in page
