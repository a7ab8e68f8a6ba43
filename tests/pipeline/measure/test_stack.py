"""A probe of the scores of all sites, which are held out for its training rows."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from probekit.errors import ConfigError
from probekit.pipeline.measure.stack import site_scores
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.settings import ProbeSettings
from probekit.results.selection import chosen_row
from probekit.results.table import PAGE_TABLES, only
from tests.pipeline.planted import QUICK


def test_scores_of_training_rows_are_held_out():
    generator = np.random.default_rng(0)
    y, row = np.tile(["no", "yes"], 60), np.arange(120).astype(str)
    data = ProbeData(y, row, row, train=np.arange(80), test=np.arange(80, 120))
    prober = Prober(data, ProbeSettings(control_draws=0, baselines=()))
    noise = generator.normal(size=(120, 100))
    source = SimpleNamespace(block=lambda *_: noise)
    scores = site_scores(source, 0, prober, "logistic", None, 1.0)[:, 0]
    assert roc_auc_score(y[:80] == "yes", scores[:80]) < 0.75  # fitted rows would be separated
    fitted = prober.saved_rows
    assert roc_auc_score(y[:80] == "yes", noise[:80] @ _direction(fitted, noise)) == 1


def _direction(fitted, X):
    (fit,) = fitted.fitter(ProbeSettings().kinds[0]).refit(
        X[fitted.rows], [(fitted.column, 1.0)], [np.ones(len(fitted.rows), dtype=bool)]
    )
    return fit[0].layers[0].weight[0]


def test_stack_is_compared_with_the_selected_probe(planted):
    result = planted.run(*QUICK, "probe.layers=stack")
    stack, chosen = result.stack, chosen_row(result.table)
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
