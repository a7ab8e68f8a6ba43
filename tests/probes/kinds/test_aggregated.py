"""The aggregated probe finds planted signals by the right rule, selected like C."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from probekit.lazy_rows import LazyRows
from probekit.probes.data import ProbeData
from probekit.probes.kinds import attention_pooled
from probekit.probes.kinds.aggregated import AggregatedProbe
from probekit.probes.kinds.attention_pooled import TokensOfTexts
from probekit.probes.prober import Prober
from probekit.probes.settings import ProbeSettings, ProbeSpec

RULES = ("mean", "max", "rolling:5")


def texts(where, n=240, seed=0):
    """Tokens, labels and texts, with a signal in one token, a run or all of them."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(10, 30, n)
    text, y = np.repeat(np.arange(n), lengths), np.arange(n) % 2
    X = generator.normal(size=(len(text), 8))
    for number in np.flatnonzero(y):
        rows = np.flatnonzero(text == number)
        at = generator.integers(len(rows) - 5)
        part = {"one": slice(at, at + 1), "run": slice(at, at + 5), "all": slice(None)}[where]
        X[rows[part], 0] += {"one": 5, "run": 1.8, "all": 0.3}[where]
    return X, y[text], text


def auroc(probe, X, y, text):
    first = np.unique(text, return_index=True)[1]
    return roc_auc_score(y[first], probe.decision_function(X, text)[first])


@pytest.mark.parametrize(("where", "rule"), [("one", "max"), ("run", "rolling:5"), ("all", "mean")])
def test_each_planted_signal_is_found_by_its_rule(where, rule):
    X, y, text = texts(where)
    probe = AggregatedProbe(aggregate=RULES).fit(X, y, text)
    assert probe.rule_ == rule
    assert probe.C_ == probe.of_rules_[rule].C
    assert auroc(probe, *texts(where, seed=1)) > 0.75
    assert probe.of_rules_[rule].rating == max(one.rating for one in probe.of_rules_.values())


def test_heads_and_attention_find_one_token_among_many():
    X, y, text = texts("one")
    for rule in ("multimax", "attention"):
        probe = AggregatedProbe(C=0.1, folds=2, aggregate=(rule,)).fit(X, y, text)
        assert auroc(probe, *texts("one", seed=1)) > 0.9
        assert probe.converged_


def test_the_gradient_of_multimax_is_that_of_its_value():
    X, y, text = texts("one", n=20)
    objective = attention_pooled._MultiMax(TokensOfTexts(X, text), y[np.unique(text, True)[1]], 0.5)
    generator = np.random.default_rng(0)
    point, step = generator.normal(size=(2, attention_pooled.HEADS * 8 + 1))
    above, below = (objective(point + sign * 1e-6 * step)[0] for sign in (1, -1))
    assert objective(point)[1] @ step == pytest.approx((above - below) / 2e-6, rel=1e-5)


def test_lazy_rows_in_any_order_of_texts_give_the_same_probe():
    X, y, text = texts("run", n=60)
    expected = AggregatedProbe(folds=2).fit(X, y, text)
    renamed = text.max() - text  # the same texts in the other order, with their tokens in place
    order = np.argsort(renamed, kind="stable")
    lazy = AggregatedProbe(folds=2).fit(LazyRows.of(X[order]), y[order], text[order])
    assert lazy.rule_ == expected.rule_
    scores = lazy.class_scores(LazyRows.of(X), text, 2)[:, 1]
    found = expected.decision_function(X, text)[np.unique(text, True)[1]]
    np.testing.assert_allclose(scores, found, rtol=1e-3, atol=1e-3)


def test_a_maximum_looks_for_the_positive_label():
    X, y, text = texts("one")
    of_second = AggregatedProbe(aggregate=("max",)).fit(X, y, text)
    of_first = AggregatedProbe(aggregate=("max",)).fit(X, 1 - y, text, positive=0)
    assert of_first.fit_.aggregation.weight < [[0.0]] < of_second.fit_.aggregation.weight
    scores = of_second.decision_function(X, text)
    np.testing.assert_allclose(of_first.decision_function(X, text), -scores, rtol=1e-3, atol=1e-3)
    wrong = AggregatedProbe(aggregate=("max",)).fit(X, 1 - y, text)
    new, labels, of_text = texts("one", seed=1)
    assert auroc(wrong, new, 1 - labels, of_text) < auroc(of_first, new, 1 - labels, of_text)


def test_scores_are_calibrated_although_a_maximum_is_larger_than_most_scores():
    X, y, text = texts("one", n=600)
    probe = AggregatedProbe(aggregate=("max",)).fit(X, y, text)
    new, labels, of_text = texts("one", n=600, seed=1)
    first = np.unique(of_text, True)[1]
    predicted = 1 / (1 + np.exp(-probe.decision_function(new, of_text)[first]))
    assert abs(predicted.mean() - 0.5) < 0.05
    likely = predicted > np.median(predicted)
    assert abs(predicted[likely].mean() - labels[first][likely].mean()) < 0.07


def test_three_classes_are_separated_too():
    X, _, text = texts("all", n=150)
    y = np.arange(150) % 3
    X[np.arange(len(X)), 1 + y[text]] += 1.0
    for rules in (RULES, ("multimax",), ("attention",)):
        probe = AggregatedProbe(C=0.1, folds=2, aggregate=rules).fit(X, y[text], text)
        assert np.mean(probe.predict(X, text) == y[text]) > 0.9


def test_test_labels_have_no_part_in_the_selection():
    X, y, text = texts("run", n=100)
    names, test = np.array(["no", "yes"])[y], text >= 70

    def scores(labels):
        rows = np.arange(len(y))
        split = {"train": rows[~test], "test": rows[test], "examples": text, "texts": None}
        data = ProbeData(labels, text, labels, **split)
        how = {"kinds": (ProbeSpec(kind="aggregated"),), "aggregate": RULES, "baselines": ()}
        settings = ProbeSettings(**how, folds=3, control_draws=0)
        return Prober(data, settings).site(X)

    one, other = scores(names), scores(np.where(test, names[::-1], names))
    validation = [one for one in one.measurements if one.split == "validation"]
    assert validation == [one for one in other.measurements if one.split == "validation"]
    assert {one.metric for one in validation} == {"accuracy"}
    assert one.fits["aggregated"].aggregation == other.fits["aggregated"].aggregation
    test_metrics = {one.metric for one in one.measurements if one.split == "test"}
    assert {"accuracy", "auroc", "brier", "ece"} <= test_metrics
    assert {one.n_test for one in one.measurements} == {30, 70}
