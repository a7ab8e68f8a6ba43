import pandas as pd

from probekit.report.sentences.sites_table import BEST_ROWS, MOST_ROWS, site_rows, site_table
from probekit.results.table import load_table


def test_each_row_has_the_scores_of_its_site(make_run):
    sites = site_table(load_table(make_run() / "results.csv"))
    assert [row.layer for row in sites.rows] == ["embed", "0", "1", "2", "3", "final norm"]
    row = sites.rows[3]
    assert row.site == "blocks.2.hook_resid_post"
    assert row.cells == {
        "accuracy": ("0.941", "[0.921, 0.961]"),
        "cross-validated": ("0.931", ""),
        "control task": ("0.547", "[0.527, 0.567]"),
        "selectivity": ("0.394", "[0.374, 0.414]"),
        "random weights": ("0.736", "[0.716, 0.756]"),
        "C": ("0.01", ""),
    }


def test_the_cross_validated_score_follows_the_test_score(make_run):
    sites = site_table(load_table(make_run() / "results.csv"))
    assert sites.columns[:2] == ("accuracy", "cross-validated")


def test_only_the_chosen_site_is_marked(make_run):
    sites = site_table(load_table(make_run() / "results.csv"))
    assert [row.chosen for row in sites.rows] == [False, False, False, True, False, False]


def test_columns_that_no_site_fills_are_left_out(make_run, table):
    bare = (table["target"] == "task") & (table["metric"] == "accuracy")
    run = make_run(table[bare & (table["split"] == "test")])
    sites = site_table(load_table(run / "results.csv"))
    assert sites.columns == ("accuracy", "C")


def test_heads_are_named_and_concatenated_sites_come_last_without_a_layer(make_run, heads):
    sites = site_table(load_table(make_run(heads) / "results.csv"))
    assert [(row.layer, row.site) for row in sites.rows][3:] == [
        ("3", "blocks.3.attn.hook_z[head=2]"),
        ("–", "blocks.1.attn.hook_z + blocks.3.attn.hook_z"),
    ]
    assert [row.chosen for row in sites.rows] == [False, False, False, True, False]
    assert sites.folded == ()


def test_of_many_sites_only_the_best_by_cross_validation_are_unfolded(table):
    site = table[table["site"] == "blocks.2.hook_resid_post"].assign(site="blocks.0.attn.hook_z")
    many = [site.assign(head=float(head)) for head in range(MOST_ROWS + 1)]
    for head, rows in enumerate(many):
        rows.loc[rows["split"] == "validation", "value"] = (head * 7 % len(many)) / 100
    sites = site_table(pd.concat(many, ignore_index=True))
    assert len(sites.rows) == BEST_ROWS
    assert len(sites.rows + sites.folded) == MOST_ROWS + 1
    order = [float(row.cells["cross-validated"][0]) for row in sites.rows + sites.folded]
    assert order == sorted(order, reverse=True)
    assert [row.chosen for row in sites.rows].index(True) == 0


def test_heads_are_in_the_order_of_blocks(heads):
    """The table of results has them by head."""
    shuffled = heads.sort_values("head", kind="stable", ignore_index=True)
    sites = [row.site for row in site_rows(shuffled)]
    single = sites[:-1]
    assert single == sorted(single)
    assert len({site.partition(".attn")[0] for site in single[:2]}) == 1
    assert " + " in sites[-1]
