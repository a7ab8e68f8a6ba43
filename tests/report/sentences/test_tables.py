"""The table of comparisons and the table of sites have the numbers of the run."""

import math

import pandas as pd
import pytest

from probekit.report.sentences.tables import (
    BEST_ROWS,
    MOST_ROWS,
    comparison_table,
    filled_columns,
    site_rows,
    site_tables,
)
from probekit.results.record import BY_WORD, Control
from tests.report.conftest import SITES, difference, judged, row
from tests.report.sentences.cases import BEST, CASES, NESTED, with_p


def lines(table):
    """The cells of a table as text."""
    return [tuple(one if isinstance(one, str) else one.line for one in row) for row in table.rows]


def compared(table, differences=(), control=BY_WORD):
    return lines(comparison_table(judged(table, differences), control))


def sites_of(table):
    return site_rows(table, judged(table))


def test_the_table_has_every_comparison_with_its_difference(table):
    networks = [
        row(SITES[3], f"random_weights_{n}", 0.7, split="validation", ci_low=None, ci_high=None)
        for n in range(3)
    ]
    found = [difference("majority", p=0.001), difference("word_identity", -0.1, p=0.01, score=0.71)]
    assert compared(pd.concat([table, pd.DataFrame(networks)]), found) == [
        ("majority class", "0.50", "+0.20 [0.15, 0.25]", "0.001*"),
        ("word identity", "0.71", "−0.10 [−0.15, −0.05]", "0.010* worse"),
        ("random weights, own best sites (mean of 3)", "0.74", "–", "–"),
        ("embedding", "0.71", "–", "–"),
        ("control task", "0.55", "+0.39 [0.37, 0.41]", "–"),
    ]


@pytest.mark.parametrize(
    ("case", "p"),
    [
        ("better", "0.001* one-sided"),
        ("tested against the majority only", "0.001*"),
        ("associated, but not more often correct", "<0.001 not better one-sided"),
        ("worse than chance", "1.00 worse one-sided"),
    ],
)
def test_a_p_value_of_an_association_is_marked_as_one_sided(case, p):
    assert compared(CASES[case].table, CASES[case].differences)[0][-1] == p


def test_the_reason_for_no_control_task_is_in_the_table(table):
    reason = Control(why_none="No control task: test words are new. A probe can learn few.")
    without = table[~table["target"].eq("control") & ~table["metric"].eq("selectivity")]
    words = ("control task", "none", "–", "– test words are new")
    assert compared(without, control=reason)[-1] == words
    assert "control task" not in {name for name, *_ in compared(without)}
    # A control task that was measured needs no reason.
    measured = [score for name, score, *_ in compared(table, control=reason) if "control" in name]
    assert measured == ["0.55"]


def test_every_tested_row_has_a_verdict(table):
    other = table[table["target"] == "task"].assign(probe="lda")
    other.loc[other["split"] == "validation", "value"] -= 0.5
    found = [
        difference("blocks.1.hook_resid_post last logistic task", 0.001, p=0.88),
        difference("blocks.3.hook_resid_post last logistic task", p=0.001),
        difference("blocks.2.hook_resid_post last lda task", p=math.nan),
    ]
    rows = compared(pd.concat([table, other], ignore_index=True), found)
    p_values = {name: p for name, *_, p in rows}
    assert p_values["neighbour: block 1"] == "0.88 not significant"
    assert (p_values["neighbour: block 3"], p_values["lda, same site"]) == ("0.001*", "–")


def test_small_differences_keep_a_third_decimal(table):
    first, *_ = compared(table, [difference("majority", 0.004, 0.003, 0.01)])
    assert first[1:3] == ("0.500", "+0.004 [0.001, 0.007]")


def test_each_row_has_the_scores_of_its_site(table):
    sites = sites_of(table)
    assert [row.layer for row in sites] == ["embed", "0", "1", "2", "3", "final norm"]
    assert [row.chosen for row in sites] == [False, False, False, True, False, False]
    assert sites[3].site == "blocks.2.hook_resid_post"
    assert sites[3].cells == {
        "accuracy": ("0.941", "[0.921, 0.961]"),
        "cross-validated": ("0.931", ""),
        "control task": ("0.547", "[0.527, 0.567]"),
        "selectivity": ("0.394", "[0.374, 0.414]"),
        "random weights": ("0.736", "[0.716, 0.756]"),
        "C": ("0.01", ""),
    }
    assert filled_columns(sites)[:2] == ("accuracy", "cross-validated")
    tested = with_p(table, 0.25)
    assert sites_of(tested)[0].cells["p"] == ("0.25", "")


def test_columns_that_no_site_fills_are_left_out(table):
    bare = (table["target"] == "task") & (table["metric"] == "accuracy")
    assert filled_columns(sites_of(table[bare & (table["split"] == "test")])) == ("accuracy", "C")


def test_heads_are_named_and_concatenated_sites_come_last_without_a_layer(heads):
    sites = sites_of(heads)
    assert [(row.layer, row.site) for row in sites][3:] == [
        ("3", "blocks.3.attn.hook_z[head=2]"),
        ("–", "blocks.1.attn.hook_z + blocks.3.attn.hook_z"),
    ]
    assert [row.chosen for row in sites] == [False, False, False, True, False]
    (whole,) = site_tables(heads, judged(heads))
    assert (whole.title, whole.chosen) == ("Table of all sites", [3])


def test_of_many_sites_only_the_best_by_cross_validation_are_unfolded(table):
    site = table[table["site"] == "blocks.2.hook_resid_post"].assign(site="blocks.0.attn.hook_z")
    many = [site.assign(head=float(head)) for head in range(MOST_ROWS + 1)]
    for head, rows in enumerate(many):
        rows.loc[rows["split"] == "validation", "value"] = (head * 7 % len(many)) / 100
    joined = pd.concat(many, ignore_index=True)
    best, others = site_tables(joined, judged(joined))
    assert len(best.rows) == BEST_ROWS
    assert len(best.rows + others.rows) == MOST_ROWS + 1
    at = [column.name for column in best.headings].index("cross-validated")
    order = [float(row[at].text) for row in best.rows + others.rows]
    assert order == sorted(order, reverse=True)
    assert (best.chosen, others.chosen) == ([0], [])


def test_heads_are_in_the_order_of_blocks(heads):
    """The table of results has them by head."""
    shuffled = heads.sort_values("head", kind="stable", ignore_index=True)
    *single, last = [row.site for row in sites_of(shuffled)]
    assert single == sorted(single)
    assert len({site.partition(".attn")[0] for site in single[:2]}) == 1
    assert " + " in last


def test_the_choices_of_outer_folds_are_counted(table):
    rows = sites_of(NESTED)
    assert {row.site: row.badge for row in rows if row.badge} == {
        BEST[2]: "chosen by 1 of 3 outer folds",
        BEST[0]: "chosen by 2 of 3 outer folds",
    }
    single = sites_of(table)
    assert [row.badge for row in single if row.chosen] == ["chosen by cross-validation"]
    # The cross-validated column holds the score of all folds.
    assert [row.cross_validated for row in rows] == [row.cross_validated for row in single]
