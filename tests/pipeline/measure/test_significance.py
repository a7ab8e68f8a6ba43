"""P-values and differences of a run: size, adjustment, and too few groups."""

from dataclasses import fields, replace
from types import MethodType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from probekit.pipeline.measure import significance
from probekit.pipeline.measure.record import _imprecise
from probekit.pipeline.measure.significance import ScoredPredictions, difference_rows, p_value_rows
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.score import scored
from probekit.probes.score.differences import paired_differences
from probekit.probes.score.intervals import jackknife_interval
from probekit.probes.score.metric_table import metric_functions
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions, Resamples, accuracy
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.results.scores import Scores
from probekit.results.table import DIFFERENCES, RESULTS, by_depth, make_table, only

SITES = tuple(f"blocks.{n}.hook_resid_post" for n in range(4))


def prober_of(test_labels, test_groups, folds=1, **settings):
    """A prober whose test rows have these labels and groups; in folds, all rows are test rows."""
    n = len(test_labels)
    if folds == 1:  # as many training rows
        y, groups = np.tile(test_labels, 2), np.append(test_groups, test_groups + n)
        parts = [(np.arange(n, 2 * n), np.arange(n))]
    else:
        y, groups, fold_of_row = test_labels, test_groups, test_groups % folds
        parts = [
            (np.flatnonzero(fold_of_row != k), np.flatnonzero(fold_of_row == k))
            for k in range(folds)
        ]
    labels, names = np.array(["no", "yes"])[y], groups.astype(str)
    data = [ProbeData(labels, names, names, train=train, test=test) for train, test in parts]
    return Prober(data, ProbeSettings(folds=2, control_draws=0, baselines=(), **settings))


def row_of(site, target, value, split="test", probe="logistic"):
    place = {"run": "r", "model": "m", "dataset": "d", "position": "last", "view": "raw"}
    numbers = {"metric": "accuracy", "value": value, "n_test": 9, "seed": 0}
    component, probe = (None, "none") if site is None else ("resid_post", probe)
    own = {"site": site, "head": None, "component": component, "probe": probe}
    return place | numbers | own | {"target": target, "split": split}


def scored_at(site, truth, guess, target="task"):
    predictions = ClassPredictions(truth, guess, 2)
    return ScoredPredictions(row_of(site, target, float(np.mean(truth == guess))), (predictions,))


@pytest.mark.parametrize(("said", "true"), [(0.5, 0.5), (0.52, 0.4), (0.55, 0.35), (0.4, 0.6)])
def test_random_guesses_are_rejected_no_more_often_than_the_level(said, true):
    """Also where the shares of the labels differ from those of the predictions."""
    prober, small = prober_of(np.arange(200) % 2, np.arange(200)), 0
    for seed in range(100):
        generator = np.random.default_rng(seed)
        truth, guess = ((generator.random(200) < share).astype(int) for share in (true, said))
        small += p_value_rows([scored_at(SITES[0], truth, guess)], prober, 99)[0]["value"] <= 0.05
    assert small <= 13  # of 100 at 5 %; a larger number has a probability of 0.001


def words(generator, n_groups, signal):
    """Labels and predictions of groups with two words each; words of a group differ in label."""
    truth = np.tile(np.repeat([0, 1], 4), n_groups)
    word = np.repeat(generator.integers(2, size=2 * n_groups), 4)
    guess = np.where(generator.random(len(truth)) < signal, truth, word)
    return truth, guess, np.repeat(np.arange(n_groups), 8)


def test_p_values_of_all_sites_share_one_null():
    truth, _, groups = words(np.random.default_rng(0), 12, 0)
    prober = prober_of(truth, groups)
    tasks = [
        scored_at(site, truth, words(np.random.default_rng(n), 12, 0.9 * (n == 2))[1])
        for n, site in enumerate(SITES)
    ]
    other = scored_at(SITES[2], truth, truth, "control")
    rows = make_table(p_value_rows([*tasks, other], prober, 500), RESULTS)
    assert rows["metric"].tolist() == [m for m in ("p_value", "p_holm", "p_best") for _ in SITES]
    assert set(rows["target"]) == {"task"}
    assert set(rows["null"]) == {"labels exchanged within groups"}
    assert rows[["ci_low", "ci_high", "chance"]].isna().all(axis=None)
    single, holm, best = (rows["value"].to_numpy()[n : n + 4] for n in (0, 4, 8))
    assert single[2] == 1 / 501  # better than every exchange
    assert (single <= best).all()
    assert (single <= holm).all()
    assert best[2] < 0.05 < best[[0, 1, 3]].min()
    assert p_value_rows(tasks, prober, 0) == []
    # Metrics without scores of rows have none.
    brier = ScoredPredictions(tasks[0].row | {"metric": "brier"}, tasks[0].predictions)
    assert p_value_rows([brier], prober, 500) == []


@pytest.mark.parametrize(
    ("metric", "folds", "n"), [("auprc", 3, 1), ("auprc", 1, 0), ("auroc", 3, 0)]
)
def test_few_positive_rows_in_a_fold_are_a_warning(metric, folds, n):
    truth, groups = np.tile([0, 0, 0, 1], 60), np.repeat(np.arange(60), 4)  # 20 in each fold
    assert not [*_imprecise(prober_of(truth, groups, folds, metric=metric))]
    truth[3] = 0
    found = _imprecise(prober_of(truth, groups, folds, metric=metric))
    assert ["A fold tests 19 rows of 'yes'" in one.message for one in found] == [True] * n


@pytest.mark.parametrize("power", [1, 3])
def test_numbers_with_heavy_tails_have_no_interval_of_r2(power):
    truth, groups = np.random.default_rng(0).normal(size=60) ** power, np.arange(60)
    guess = truth + np.random.default_rng(1).normal(size=60)
    data = ProbeData(np.char.mod("%.6f", np.tile(truth, 2)), *[np.arange(120).astype(str)] * 2,
                     train=np.arange(60, 120), test=groups)  # fmt: skip
    settings = ProbeSettings(kinds=(ProbeSpec(kind="ridge_regression"),), folds=2, control_draws=0)
    prober = Prober(data, settings.changed(baselines=()))
    assert [one.code for one in _imprecise(prober)] == ["heavy-tails"] * (power > 1)
    predictions = NumberPredictions(truth, guess)
    facts = scored.FitFacts(probe="ridge_regression", target="task", n_train=60, seed=0)
    fits = scored.Scored((predictions,), (predictions,), groups, facts)
    r2, spearman = scored.measure(fits, Resamples.leave_one_out(groups))
    assert np.isnan([r2.ci_low, r2.ci_high]).tolist() == [power > 1] * 2
    assert r2.value > 0
    assert spearman.ci_low < spearman.value


def test_too_few_groups_give_no_p_values(snapshot):
    for n_groups, n_rows in ((4, 0), (5, 3)):  # 16 and 32 arrangements
        truth, guess, groups = words(np.random.default_rng(0), n_groups, 1.0)
        prober = prober_of(truth, groups)
        assert len(p_value_rows([scored_at(SITES[0], truth, guess)], prober, 500)) == n_rows
        findings = _imprecise(prober)
        assert [finding.code for finding in findings] == ([] if n_rows else ["few-exchanges"])
    # Two groups of each label, and one of both.
    assert [*_imprecise(prober_of(np.repeat([0, 1], 10), np.arange(20) // 4))] == snapshot


def test_folds_name_and_widen_their_null():
    truth, guess, groups = words(np.random.default_rng(1), 12, 0.25)
    p = {}
    for folds in (1, 3):
        prober = prober_of(truth, groups, folds)
        order = prober.test_rows
        found = p_value_rows([scored_at(SITES[0], truth[order], guess[order])], prober, 500)[0]
        p[folds] = found["value"]
        assert ("widened 1.41 times for dependent folds" in found["null"]) == (folds == 3)
    assert p[3] > p[1]


def test_kinds_that_read_whole_texts_have_exchanges_of_their_own():
    """They are scored on other rows, whose groups and labels are exchanged, not those of tokens."""
    truth, guess, groups = words(np.random.default_rng(0), 12, 0.9)
    prober = prober_of(truth, groups)
    first = np.arange(0, 96, 4)  # one row of each word
    rows_of = {"logistic": np.arange(96), "attention_pooled": first}
    other = SimpleNamespace(
        data=prober.data,
        settings=prober.settings,
        rows_of=rows_of.get,
        fold_of=lambda probe: np.zeros(len(rows_of[probe]), int),
    )
    other.label_exchange = MethodType(Prober.label_exchange, other)
    tokens = scored_at(SITES[0], truth, guess)
    texts = scored_at(SITES[0], truth[first], guess[first])
    texts = replace(texts, row=texts.row | {"probe": "attention_pooled"})
    both = p_value_rows([tokens, texts], other, 500)
    assert [row["probe"] for row in both] == ["logistic", "attention_pooled"] * 3
    of_texts = p_value_rows([texts], other, 500)
    assert [row["value"] for row in both[1::2]] == [row["value"] for row in of_texts]


@pytest.fixture(scope="module")
def run():
    """Predictions of four sites (the second is best), with baselines and their tables."""
    truth, _, groups = words(np.random.default_rng(0), 12, 0)
    prober, rows, predictions = prober_of(truth, groups), [], []
    for n, site in enumerate(SITES):
        guess = words(np.random.default_rng(n), 12, (0.5, 0.8, 0.7, 0.6)[n])[1]
        one = scored_at(site, truth, guess)
        predictions.append(one)
        rows += [one.row, one.row | {"split": "validation"}]
    lookup = words(np.random.default_rng(9), 12, 0.3)[1]
    for target, guess in (("majority", 0 * truth), ("word_identity", lookup)):
        predictions.append(scored_at(None, truth, guess, target))
        rows.append(predictions[-1].row)
    rows += p_value_rows(predictions, prober, 500)
    table = make_table(rows, RESULTS)
    chosen = Scores.of(table).chosen
    assert chosen["site"] == SITES[1]
    found = make_table(difference_rows(predictions, chosen, table, prober), DIFFERENCES)
    resamples = prober.resamples_of("logistic")
    values = {one.name: accuracy(one.predictions[0], resamples) for one in predictions}
    return table, found.set_index("b"), values, prober


def name(n):
    return f"{SITES[n]} last logistic task"


def test_the_majority_row_takes_the_p_of_the_chosen_site(run):
    table, differences, values, prober = run
    resamples = prober.resamples_of("logistic")
    (own,) = only(table, metric="p_value", site=SITES[1])["value"]
    majority = differences.loc["majority"]
    assert majority["p"] == majority["p_adjusted"] == own
    (own_test,) = paired_differences([(values[name(1)], values["majority"])], resamples)
    assert own_test.p != own  # a test of the difference would be a second answer
    # The labels are balanced in each group, so that a constant guess scores 0.5 on any rows.
    assert (values["majority"] == 0.5).all()
    score = jackknife_interval(values[name(1)], resamples, (0, 1))
    assert (majority["ci_low"], majority["ci_high"]) == (score.low - 0.5, score.high - 0.5)


def test_where_the_majority_varies_its_row_has_the_limits_of_the_difference():
    truth, guess, groups = words(np.random.default_rng(1), 12, 0.8)
    truth[:40] = 0  # the labels of five groups
    prober = prober_of(truth, groups)
    own, constant = scored_at(SITES[1], truth, guess), scored_at(None, truth, 0 * truth, "majority")
    rows = [own.row | {"split": "validation"}, *p_value_rows([own], prober, 99)]
    table = make_table(rows, RESULTS)
    length = scored_at(None, truth, 0 * truth, "length")
    found, same = difference_rows([own, constant, length], by_depth(table).iloc[0], table, prober)
    # A baseline that guesses the same is the same comparison.
    assert {**same, "b": "majority"} == found
    resamples = prober.resamples_of("logistic")
    values = [accuracy(one.predictions[0], resamples) for one in (own, constant)]
    limits = jackknife_interval(values[0] - values[1], resamples)
    assert (found["ci_low"], found["ci_high"]) == (limits.low, limits.high)


@pytest.mark.parametrize("named", [True, False])
def test_differences_are_adjusted_among_the_named_or_among_all(run, named):
    _, differences, values, prober = run
    rivals = [name(0), name(2), "word_identity"]  # the neighbours and a baseline
    among = rivals if named else [other for other in values if other != name(1)]
    pairs = [(values[name(1)], values[other]) for other in among]
    found = paired_differences(pairs, prober.resamples_of("logistic"))
    expected = dict(zip(among, found, strict=True))
    for other in rivals if named else [name(3)]:
        row = differences.loc[other]
        assert (row["p"], row["p_adjusted"]) == (expected[other].p, expected[other].p_adjusted)
        assert (row["n_test"], row["n_groups"]) == (96, 12)


def test_without_a_p_value_the_majority_row_has_its_own(run):
    table, _, _, prober = run
    table = table[~table["metric"].str.startswith("p_")]
    predictions = [scored_at(SITES[0], *pair) for pair in [(np.arange(96) % 2,) * 2]]
    predictions.append(scored_at(None, np.arange(96) % 2, np.zeros(96, int), "majority"))
    chosen = only(by_depth(table), site=SITES[0], split="validation").iloc[0]
    (found,) = difference_rows(predictions, chosen, table, prober, has_p_values=False)
    assert found["p"] == found["p_adjusted"] == 2 / 2**12
    # The constant guess has the same score on any rows: one interval for the score and its lead.
    resamples = prober.resamples_of("logistic")
    score = scored.with_interval("accuracy", predictions[0].predictions, resamples)
    assert (found["ci_low"], found["ci_high"]) == (score.low - 0.5, score.high - 0.5)
    (found,) = difference_rows(predictions, chosen, table, prober)
    assert np.isnan(found["p"])  # p-values were requested, but there were too few groups


def test_without_a_p_value_the_interval_of_the_lead_agrees_with_that_of_the_difference():
    """A few wrong groups widen the paired interval, and not that of the score, or the reverse."""
    results = []
    for seed in range(60):
        truth, guess, groups = words(np.random.default_rng(seed), 8, 0.62)
        prober = prober_of(truth, groups)
        own, other = (
            scored_at(SITES[1], truth, guess),
            scored_at(None, truth, 0 * truth, "majority"),
        )
        table = by_depth(make_table([own.row | {"split": "validation"}], RESULTS))
        (found,) = difference_rows([own, other], table.iloc[0], table, prober, has_p_values=False)
        assert (found["p"] < 0.05) == (found["ci_low"] > 0 or found["ci_high"] < 0)
        results.append(found["p"] < 0.05)
    assert {*results} == {True, False}


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "macro_f1", "auroc", "auprc"])
def test_the_band_of_the_null_holds_the_scores_of_permuted_labels(metric):
    """Rows are groups of their own, so that the exchanges are free permutations."""
    generator = np.random.default_rng(0)
    truth = (generator.random(400) < 0.3).astype(int)
    scores = generator.normal(size=400) + truth
    both = np.column_stack([-scores, scores])
    one = ClassPredictions(truth, (scores > 1).astype(int), 2, both, positive=1)
    function = metric_functions("class", frozenset({"scores"}))[metric]
    whole = Resamples.whole(400)
    value = float(function(one, whole)[0])
    draws = (replace(one, truth=generator.permutation(truth)) for _ in range(500))
    permuted = [function(draw, whole)[0] for draw in draws]
    row = row_of(SITES[0], "task", value) | {"metric": metric}
    prober = prober_of(truth, np.arange(400))
    found = p_value_rows([ScoredPredictions(row, (one,))], prober, 1000)[0]
    band = found["null_low"], found["null_high"]
    if metric == "auprc":  # its row scores are those of a projection
        assert np.isnan(band).all()
    else:
        np.testing.assert_allclose(band, np.quantile(permuted, [0.025, 0.975]), atol=0.015)


def site(name, probe, sure, validated, are_logs=True):
    """Return a site with a probe that is always correct, with confidence `sure`."""
    truth = np.array([0, 1, 0, 1])
    shares = np.where(np.eye(2)[truth] > 0, sure, 1 - sure)
    said = ClassPredictions(truth, truth, 2, np.log(shares), are_logs)
    place = {"run": "r", "dataset": "d", "site": name, "head": None, "position": "last"}
    place |= {"view": "view", "main_metric": "accuracy"}
    numbers = dict.fromkeys([field.name for field in fields(scored.Measurement)])
    where = {"probe": probe, "target": "task", "split": "validation", "metric": "accuracy"}
    measured = scored.Measurement(**(numbers | where | {"value": validated}))
    return scored.SiteResult([measured], {scored.Predictor(probe, "task"): said}, place=place)


def test_reliability_is_computed_at_the_best_site_of_each_kind():
    found = [
        site(SITES[0], "logistic", 0.7, validated=0.9),
        site(SITES[1], "logistic", 0.9, validated=0.8),
        site(SITES[1], "mass_mean", 0.9, validated=0.8, are_logs=False),
    ]
    table = pd.DataFrame([row for one in found for row in one.rows])
    resamples = Resamples.leave_one_out(np.arange(4))
    prober = SimpleNamespace(resamples_of=lambda probe: resamples)
    bins = significance.reliability_rows(found, table, prober)
    assert tuple(bins.columns) == significance.RELIABILITY
    assert bins[["probe", "site", "n_rows"]].to_numpy().tolist() == [["logistic", SITES[0], 4]]
    assert abs(bins["confidence"].iloc[0] - 0.7) < 1e-9
    assert bins["accuracy"].iloc[0] == 1

    # Without validation scores there are no bins.
    assert significance.reliability_rows(found, table.assign(split="test"), SimpleNamespace()).empty
