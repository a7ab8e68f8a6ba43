from probekit.report.sites import site_table
from probekit.report.table import load_table


def test_each_row_holds_what_was_measured_at_its_site(make_run):
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


def test_the_accuracy_that_decided_stands_beside_the_accuracy(make_run):
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
