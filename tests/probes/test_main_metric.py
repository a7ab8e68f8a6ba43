"""The main metric selects C and the site, and every score follows it."""

import numpy as np
import pytest

from probekit.errors import ConfigError
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.score.metric_table import METRICS
from probekit.probes.settings import ProbeSettings, ProbeSpec

N = 1000
TRAIN, TEST = np.arange(700), np.arange(700, N)


def rare(seed=0):
    """Labels that are "rare" in 3 of 100 rows, in train and in test."""
    positive = np.zeros(N, dtype=bool)
    positive[::33] = True
    return np.where(positive, "rare", "usual"), positive, np.random.default_rng(seed)


def prober(y, **settings):
    row = np.arange(len(y)).astype(str)
    defaults = {"folds": 4, "control_draws": 0, "description": False}
    data = ProbeData(y, row, row, TRAIN, TEST)
    return Prober(data, ProbeSettings(**(defaults | settings)))


def validated(result):
    (row,) = [m for m in result.measurements if (m.split, m.target) == ("validation", "task")]
    return row


def two_sites():
    """A site that marks half of the rare rows and no other, and one that marks most, and others."""
    y, positive, generator = rare()
    careful = positive & (generator.random(N) < 0.5)
    eager = np.where(positive, generator.random(N) < 0.9, generator.random(N) < 0.02)
    noise = 0.01 * generator.normal(size=(2, N, 1))
    return y, [careful[:, None] + noise[0], eager[:, None] + noise[1]]


@pytest.mark.parametrize(
    ("metric", "site"),
    [(None, 0), ("accuracy", 0), ("balanced_accuracy", 1), ("auroc", 1), ("auprc", 1)],
)
def test_with_rare_labels_accuracy_selects_another_site_than_other_metrics(metric, site):
    y, sites = two_sites()
    one = prober(y, metric=metric, C=(1.0,))
    rows = [validated(one.site(X)) for X in sites]
    assert {row.metric for row in rows} == {one.main_metric} == {metric or "accuracy"}
    assert int(np.argmax([row.value for row in rows])) == site


@pytest.mark.parametrize("kind", ["logistic", "ridge", "k_sparse"])
def test_with_rare_labels_accuracy_selects_another_penalty(kind):
    y, positive, generator = rare()
    X = generator.normal(size=(N, 40))
    X[:, :8] += 0.35 * positive[:, None]
    chosen = {}
    for metric in ("accuracy", "auroc"):
        spec = ProbeSpec(kind, (("k", 8),) if kind == "k_sparse" else ())
        result = prober(y, metric=metric, C=(1e-4, 1e-2, 1.0), kinds=(spec,)).site(X)
        chosen[metric] = result.measurements[0].C
    # With strong regularisation all rows are taken for usual, which is right for 97 in 100.
    weak, strong = sorted(chosen.values(), reverse=kind != "ridge")
    assert weak != strong
    assert chosen["auroc"] == weak


def test_the_penalty_is_the_one_with_the_best_held_out_score():
    """The same choice as that of scores computed one value of C at a time."""
    y, positive, generator = rare()
    X = generator.normal(size=(N, 40))
    X[:, :8] += 0.35 * positive[:, None]
    grid = (1e-4, 1e-2, 1.0)
    for metric in ("auroc", "brier"):
        both = prober(y, metric=metric, C=grid).site(X)
        alone = [validated(prober(y, metric=metric, C=(C,)).site(X)).value for C in grid]
        best = np.argmin(alone) if METRICS[metric].lower_is_better else np.argmax(alone)
        assert grid[best] == both.measurements[0].C
        assert validated(both).value == alone[best]


def test_selectivity_is_positive_if_the_task_scores_better():
    y, positive, generator = rare()
    X = 3.0 * positive[:, None] + generator.normal(size=(N, 3))
    row = np.arange(N) % 60
    data = ProbeData(y, np.arange(N).astype(str), row.astype(str), TRAIN, TEST)
    settings = ProbeSettings(metric="brier", folds=3, control_draws=2, C=(1.0,))
    result = Prober(data, settings).site(X)
    (selectivity,) = [m.value for m in result.measurements if m.metric == "selectivity"]
    rows = [m for m in result.measurements if (m.metric, m.split) == ("brier", "test")]
    brier = {m.target: m.value for m in rows}
    assert selectivity == pytest.approx(brier["control"] - brier["task"])
    assert selectivity > 0


def test_baselines_have_the_main_metric_too():
    y, positive, _ = rare()
    words = np.where(positive, "w", "v")
    data = ProbeData(y, np.arange(N).astype(str), words, TRAIN, TEST)
    settings = ProbeSettings(metric="auroc", folds=3, control_draws=0, C=(1.0,))
    measured = Prober(data, settings).baselines().measurements
    values = {(m.target, m.metric): m.value for m in measured}
    assert values["majority", "auroc"] == 0.5
    assert values["word_identity", "auroc"] == 1.0


@pytest.mark.parametrize(
    ("metric", "kinds", "words"),
    [
        ("brier", ["logistic", "svm"], "no score of svm. Allowed: accuracy, auprc, auroc"),
        ("r2", ["logistic"], "no score of logistic"),
        ("accuracy", ["ridge_regression"], "Allowed: r2, spearman"),
        ("codelength", ["logistic"], "no score of logistic"),
        ("balanced", ["logistic"], "Nearest: balanced_accuracy"),
    ],
)
def test_a_metric_that_does_not_fit_is_refused(metric, kinds, words):
    with pytest.raises(ConfigError, match=words):
        ProbeSettings(metric=metric, kinds=tuple(map(ProbeSpec, kinds)))


def test_trees_have_the_default_of_each_kind():
    depth, distance = ProbeSpec("structural_depth"), ProbeSpec("structural_distance")
    assert ProbeSettings(kinds=(depth,)).main_metric == "root_accuracy"
    assert ProbeSettings(kinds=(depth, distance)).main_metrics == ("uuas", "root_accuracy")
    assert ProbeSettings(kinds=(depth, distance), metric="spearman").main_metrics == ("spearman",)
