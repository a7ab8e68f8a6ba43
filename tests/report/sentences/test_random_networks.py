"""Probes without a selected site give a warning if random networks are as good at every site."""

import math

import numpy as np
import pandas as pd
import pytest

from probekit.cli.show.runs import show_warnings
from probekit.report.notebooks.run_result import RunResult
from probekit.report.pages.run_page import write_report
from probekit.report.sentences.random_networks import n_better_sites, nowhere_better

SITE = "blocks.2.hook_resid_post"


@pytest.fixture
def trees(table):
    """Test scores of two structural probes at six sites, with random networks that are as good."""
    kept = table["target"].isin(["task", "random_weights"]) & (table["split"] == "test")
    rows = table[kept & (table["metric"] == "accuracy")].assign(chance=0.4, C=math.nan)
    rows = rows.assign(value=0.4, ci_low=0.38, ci_high=0.42)
    distance = rows.assign(probe="structural_distance:64", metric="uuas")
    depth = rows.assign(probe="structural_depth:64", metric="root_accuracy")
    return pd.concat([distance, depth], ignore_index=True)


def set_task(table, value, **where):
    rows = table["target"] == "task"
    for column, cell in where.items():
        rows &= table[column] == cell
    table.loc[rows, ["value", "ci_low", "ci_high"]] = [value, value - 0.02, value + 0.02]


def test_each_structural_probe_is_compared_at_all_sites(trees):
    set_task(trees, 0.43, site=SITE, metric="uuas")
    first, second = nowhere_better(trees)
    assert first == (
        "The UUAS of the structural_distance:64 probe is at none of 6 sites significantly better "
        f"than that of networks with random weights (largest difference at {SITE}: 0.430 [0.410, "
        "0.450], random 0.400 [0.380, 0.420]): the result may not depend on what the network has "
        "learnt. Interpret the difference, not the score; more test rows make its interval "
        "narrower."
    )
    assert second.startswith("The root accuracy of the structural_depth:64 probe is at none of 6")


@pytest.mark.parametrize(("value", "is_reported"), [(0.437, True), (0.439, False)])
def test_one_site_that_is_better_suffices(trees, value, is_reported):
    # The limit is 1.346 times the half-width of the difference, 0.0283, for six sites.
    set_task(trees, value, site=SITE)
    assert bool(nowhere_better(trees)) == is_reported


def test_scores_without_intervals_are_not_compared(trees):
    set_task(trees, 0.9)
    trees[["ci_low", "ci_high"]] = math.nan
    assert n_better_sites(trees) == {}
    assert nowhere_better(trees) == []


def test_a_single_site_is_not_adjusted(trees):
    one = trees[(trees["site"] == SITE) & (trees["metric"] == "uuas")].copy()
    (text,) = nowhere_better(one)
    assert "probe is not significantly better" in text
    set_task(one, 0.429)
    assert nowhere_better(one) == []


def test_a_lower_score_is_better_for_some_metrics(trees):
    rows = trees[trees["metric"] == "uuas"].assign(metric="brier", main_metric="brier")
    set_task(rows, 0.5)
    assert len(nowhere_better(rows)) == 1
    set_task(rows, 0.3, site=SITE)
    assert nowhere_better(rows) == []


def test_positions_are_compared_separately_and_named(trees):
    rows = trees[trees["metric"] == "uuas"]
    other = rows.assign(position="word:first")
    set_task(other, 0.9)
    (text,) = nowhere_better(pd.concat([rows, other], ignore_index=True))
    assert "structural_distance:64 probe at last is at none of 6 sites" in text


def test_a_probe_with_a_selected_site_is_compared_there_only(table):
    table.loc[table["target"] == "random_weights", "value"] = 0.99
    assert nowhere_better(table) == []
    assert nowhere_better(table[table["target"] != "random_weights"]) == []
    assert nowhere_better(table[table["split"] == "test"])


def test_the_warning_is_on_the_terminal_and_on_the_page(trees, record, make_run, capsys):
    folder = make_run(trees, record)
    (folder / "differences.csv").unlink(missing_ok=True)
    show_warnings(RunResult(folder))
    sentences = nowhere_better(trees)
    assert len(sentences) == 2
    printed, page = capsys.readouterr().err, write_report(folder).read_text("utf-8")
    page = page.replace("&nbsp;", " ").replace("\xa0", " ").replace("\u2011", "-")
    for sentence in sentences:
        assert f"warning: {sentence}\n" in printed
        assert sentence in page


def test_equal_networks_are_rarely_called_better():
    """Simulation: 13 sites, 40 sentences of shared difficulty, both networks equally good.

    The promise is at most 2.5 % of runs without the warning, when scores are independent.
    """
    generator = np.random.default_rng(0)
    n, n_sites, n_runs = 40, 13, 150
    scores = generator.normal(size=(n_runs, 2, n, n_sites)) * 0.5
    scores += generator.normal(size=(n_runs, 2, n, 1))
    mean, half = scores.mean(axis=2), 2.02 / math.sqrt(n) * scores.std(axis=2, ddof=1)
    run, target, site = (axis.ravel() for axis in np.indices(mean.shape))
    table = pd.DataFrame({"run": run, "target": np.array(["task", "random_weights"])[target]})
    table["site"] = [f"blocks.{number}.hook_resid_post" for number in site]
    table["value"] = mean.ravel()
    table["ci_low"], table["ci_high"] = (mean - half).ravel(), (mean + half).ravel()
    facts = {"dataset": "d", "model": "m", "head": math.nan, "position": "last", "view": "raw"}
    tested = {"probe": "structural_distance:8", "split": "test", "metric": "uuas"}
    n_without_warning = n_runs - len(nowhere_better(table.assign(**facts, **tested)))
    assert 0 <= n_without_warning / n_runs <= 0.05


def test_a_score_that_is_not_defined_is_left_out(trees):
    trees.loc[trees["metric"] == "uuas", "value"] = math.nan
    assert len(nowhere_better(trees)) == 1
