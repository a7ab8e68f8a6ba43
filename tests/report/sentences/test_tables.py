"""The table of comparisons and the table of sites have the numbers of the run."""

import math

import pandas as pd
import pytest

from probekit.report.sentences import tables
from probekit.results.judging import reported_differences
from probekit.results.record import BY_WORD, Control
from probekit.results.scores import Scores
from probekit.results.table import DIFFERENCES
from probekit.results.table import make_table as make_rows
from tests.report.conftest import SITES, difference, judged, make_heads, make_table, row
from tests.report.sentences.cases import CASES, NESTED, with_p

TABLE, HEADS = make_table(), make_heads()
NETWORKS = [
    row(SITES[3], f"random_weights_{n}", 0.7, split="validation", ci_low=None, ci_high=None)
    for n in range(3)
]
REASON = Control(why_none="No control task: test words are new. A probe can learn few.")
UNCONTROLLED = TABLE[~TABLE["target"].eq("control") & ~TABLE["metric"].eq("selectivity")]
LDA = TABLE[TABLE["target"] == "task"].assign(probe="lda")
LDA.loc[LDA["split"] == "validation", "value"] -= 0.5
NEIGHBOURS = [
    difference("blocks.1.hook_resid_post last logistic task", 0.001, p=0.88),
    difference("blocks.3.hook_resid_post last logistic task", p=0.001),
    difference("blocks.2.hook_resid_post last lda task", p=math.nan),
]
TESTED = [difference("majority", p=0.001), difference("word_identity", -0.1, p=0.01, score=0.71)]
ONE_SIDED = ("better", "tested against the majority only", "worse than chance")
ONE_SIDED += ("associated, but not more often correct",)
# A table, rows of differences.csv, and the control.
COMPARISONS = {
    "every comparison": (pd.concat([TABLE, pd.DataFrame(NETWORKS)]), TESTED, BY_WORD),
    "the reason for no control task": (UNCONTROLLED, [], REASON),
    "no control task and no reason": (UNCONTROLLED, [], BY_WORD),
    "a control task that was measured needs no reason": (TABLE, [], REASON),
    "every tested row has a verdict": (pd.concat([TABLE, LDA]), NEIGHBOURS, BY_WORD),
    "a third decimal": (TABLE, [difference("majority", 0.004, 0.003, 0.01)], BY_WORD),
    **{
        f"one-sided p-values are marked: {name}": (one.table, one.differences, BY_WORD)
        for name, one in CASES.items()
        if name in ONE_SIDED
    },
}
TASK_ALONE = (TABLE["target"] == "task") & (TABLE["metric"] == "accuracy")
SITE_TABLES = {
    "each row has the scores of its site": TABLE,
    "with p-values": with_p(TABLE, 0.25),
    "columns that no site fills are left out": TABLE[TASK_ALONE & (TABLE["split"] == "test")],
    "heads are named, concatenated sites come last": HEADS,
    "heads are in the order of blocks": HEADS.sort_values("head", ignore_index=True),
    "choices of outer folds are counted": NESTED,
}


def lines(rows):
    """The cells of the rows of a table as text."""
    return "\n".join(" | ".join(getattr(one, "line", one) for one in row) for row in rows)


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_are_those_that_are_stored(snapshot, name):
    table, differences, control = COMPARISONS[name]
    assert lines(tables.comparison_table(judged(table, differences), control).rows) == snapshot


@pytest.mark.parametrize("name", SITE_TABLES)
def test_tables_of_sites_are_those_that_are_stored(snapshot, name):
    table = SITE_TABLES[name]
    sites = tables.site_rows(Scores.of(table), judged(table))
    columns = tables.filled_columns(sites)
    rows = []
    for one in sites:
        cells = [" ".join(one.cells.get(name, ("–",))).strip() for name in columns]
        rows.append(("*" * one.chosen, one.layer, one.site, one.badge, *cells))
    assert lines([("", "layer", "site", "badge", *columns), *rows]) == snapshot


def test_differences_of_the_chosen_probe_are_columns_of_the_table_of_sites():
    rows = [
        difference(f"{SITES[1]} last logistic task", 0.14, p=0.001),
        difference(f"{SITES[1]} last logistic random_weights", 0.21, 0.3, p=math.nan),
        difference("majority"),
    ]
    v = judged(TABLE, rows)
    differences = reported_differences(make_rows(rows, DIFFERENCES), v)
    (whole,) = tables.site_tables(Scores.of(TABLE), v, differences)
    assert [column.name for column in whole.headings[-2:]] == list(tables.CHOSEN_MINUS.values())[:2]
    assert lines(row[-2:] for row in whole.rows[:2]).splitlines() == [
        "– | –",
        "+0.14 [0.09, 0.19] p 0.001 | +0.21 [−0.09, 0.51]",
    ]


def test_of_many_sites_only_the_best_by_cross_validation_are_unfolded():
    (whole,) = tables.site_tables(Scores.of(HEADS), judged(HEADS))
    assert (whole.title, whole.chosen) == ("Table of all sites", [3])
    site = TABLE[TABLE["site"] == "blocks.2.hook_resid_post"].assign(site="blocks.0.attn.hook_z")
    many = [site.assign(head=float(head)) for head in range(tables.MOST_ROWS + 1)]
    for head, rows in enumerate(many):
        rows.loc[rows["split"] == "validation", "value"] = (head * 7 % len(many)) / 100
    joined = pd.concat(many, ignore_index=True)
    best, others = tables.site_tables(Scores.of(joined), judged(joined))
    assert len(best.rows) == tables.BEST_ROWS
    assert len(best.rows + others.rows) == tables.MOST_ROWS + 1
    at = [column.name for column in best.headings].index("cross-validated")
    order = [float(row[at].text) for row in best.rows + others.rows]
    assert order == sorted(order, reverse=True)
    assert (best.chosen, others.chosen) == ([0], [])


def test_the_cross_validated_column_holds_the_score_of_all_folds():
    nested, single = (tables.site_rows(Scores.of(one), judged(one)) for one in (NESTED, TABLE))
    assert [one.cross_validated for one in nested] == [one.cross_validated for one in single]
