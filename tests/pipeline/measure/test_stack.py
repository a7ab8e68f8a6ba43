"""A probe of the scores of all sites, which are held out for its training rows."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from probekit.chosen.selected_probe import SelectedProbe
from probekit.chosen.stack.measure import site_scores
from probekit.chosen.stack.measure import tables as stack_tables
from probekit.errors import ConfigError
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.results.scores import Scores
from probekit.results.table import PAGE_TABLES, RESULTS, make_table, only
from tests.pipeline.planted import QUICK


def test_scores_of_training_rows_are_held_out():
    generator = np.random.default_rng(0)
    y, row = np.tile(["no", "yes"], 60), np.arange(120).astype(str)
    data = ProbeData(y, row, row, train=np.arange(80), test=np.arange(80, 120))
    prober = Prober(data, ProbeSettings(control_draws=0, baselines=()))
    noise = generator.normal(size=(120, 100))
    scores = site_scores(prober, ProbeSpec(kind="logistic"), noise, 1.0)[:, 0]
    assert roc_auc_score(y[:80] == "yes", scores[:80]) < 0.75  # fitted rows would be separated
    fitted = prober.saved_rows
    assert roc_auc_score(y[:80] == "yes", noise[:80] @ _direction(fitted, noise)) == 1


def _direction(fitted, X):
    (fit,) = fitted.fitter(ProbeSettings().specs[0]).refit(
        X[fitted.rows], [(fitted.column, 1.0)], [np.ones(len(fitted.rows), dtype=bool)]
    )
    return fit[0].layers[0].weight[0]


@pytest.mark.parametrize("kind", ["ridge_regression", "mass_mean", "logistic"])
def test_stack_of_numbers_of_kinds_without_penalty_and_with_a_rare_label(kind):
    generator, reads_numbers = np.random.default_rng(0), kind == "ridge_regression"
    X = generator.normal(size=(120, 4))
    y = X[:, 0].astype(str) if reads_numbers else np.where(X[:, 0] > 0, "yes", "no")
    if kind == "logistic":
        y[[0, 1]] = "rare"  # in one training group, so that a fold has not learnt it
    groups = (np.arange(120) // 2).astype(str)
    data = ProbeData(y, groups, groups, train=np.arange(80), test=np.arange(80, 120))
    settings = ProbeSettings(kinds=(ProbeSpec(kind=kind),), control_draws=0, baselines=())
    prober, site = Prober(data, settings), SimpleNamespace(text="blocks.0.hook_resid_post")
    result = prober.site(X)
    metric = prober.main_metric
    place = {"site": site.text, "head": None, "position": "last", "main_metric": metric}
    result = replace(result, place=place)
    design = SimpleNamespace(positions=[SimpleNamespace(text="last")])
    source = SimpleNamespace(
        design=design, selections=[site], activations=SimpleNamespace(block=lambda *_: X)
    )
    scores = Scores.of(make_table(result.rows, RESULTS))
    chosen = SelectedProbe(scores.chosen, scores, [result], source, [prober], None)
    found = stack_tables("stack", chosen)["stack.csv"]
    (row,) = [row for row in found if row["metric"] == metric]
    assert row["value"] == pytest.approx(row["single"], abs=0.1)
    assert [one["metric"] for one in found if one["p"] is not None] == [metric]


def test_stack_is_compared_with_the_selected_probe(planted):
    result = planted.run(*QUICK, "probe.layers=stack")
    stack, chosen = result.stack, Scores.of(result.table).chosen
    assert set(PAGE_TABLES["stack.csv"]) <= set(stack)
    tested = only(result.table, target="task", split="test", site=chosen["site"])
    metrics = tested.set_index("metric")["value"]
    row = stack.set_index("metric").loc[chosen["metric"]]
    assert row["single"] == pytest.approx(metrics[chosen["metric"]], rel=1e-12)
    assert row["difference"] == pytest.approx(row["value"] - row["single"])
    assert row["n_sites"] == (result.table["site"].unique() != "").sum()
    assert "Stack of all sites" in result.report.read_text()


def test_a_stack_needs_one_test_set_and_probes_of_rows(planted):
    with pytest.raises(ConfigError, match="single test set"):
        planted.load("probe.layers=stack", "split.folds=3")
