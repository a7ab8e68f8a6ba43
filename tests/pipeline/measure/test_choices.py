"""Each outer fold chooses by its own validation scores, so that noise scores at chance."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from probekit.pipeline.measure.choices import chosen_sites
from probekit.pipeline.measure.significance import difference_rows, scored
from probekit.pipeline.selftest import planted_direction
from probekit.probes.data import ProbeData, group_folds
from probekit.probes.prober import Prober
from probekit.probes.score.scored import Predictor
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.results.scores import Scores
from probekit.results.table import RESULTS, make_table

N_ROWS, N_FOLDS, N_SITES, N_RUNS = 150, 3, 24, 8
HEADLINE = Predictor("chosen", "chosen")


class AccuracyProber(Prober):
    """Measures accuracy only, which is all that a choice needs."""

    def measure(self, score):
        return super().measure(replace(score, metric="accuracy"))


def make_prober(seed, kind="ridge", **settings):
    """Balanced labels without groups, in stratified outer folds."""
    y = np.random.default_rng(seed).permutation(np.repeat(["no", "yes"], N_ROWS // 2))
    rows, types = np.arange(N_ROWS).astype(str), (np.arange(N_ROWS) % 30).astype(str)
    fold = group_folds(y, rows, N_FOLDS, seed)
    splits = [
        ProbeData(y, rows, types, train=np.flatnonzero(fold != n), test=np.flatnonzero(fold == n))
        for n in range(N_FOLDS)
    ]
    common = {"folds": 3, "control_draws": 0, "baselines": (), "description": False}
    plain = ProbeSettings(kinds=(ProbeSpec(kind=kind),), C=(0.01, 1.0), **(common | settings))
    return AccuracyProber(splits, plain)


def at(result, layer):
    """The result with the place of a layer of the residual stream, or that of baselines."""
    place = {"run": "r", "model": "m", "dataset": "d", "head": None, "layer": layer}
    place |= {"component": "resid_post", "position": "last", "view": "raw"}
    site = None if layer is None else f"blocks.{layer}.hook_resid_post"
    return replace(result, place=place | {"site": site})


@pytest.fixture(scope="module")
def noise():
    """Results at all sites of several runs on noise."""
    runs = []
    for seed in range(N_RUNS):
        prober, generator = make_prober(seed), np.random.default_rng([seed, 1])
        features = (generator.normal(size=(N_ROWS, 4)) for _ in range(N_SITES))
        runs.append((prober, [at(prober.site(X), layer) for layer, X in enumerate(features)]))
    return runs


def mean_headline(noise) -> tuple[float, float]:
    """The mean accuracy of the nested choice over the runs, and its Monte Carlo error."""
    nested = [chosen_sites(results, {"last": prober}) for prober, results in noise]
    values = [one.measurements[0].value for one in nested]
    return float(np.mean(values)), 0.5 / np.sqrt(N_ROWS * N_RUNS)


def test_the_nested_choice_scores_at_chance_on_noise(noise):
    mean, error = mean_headline(noise)
    assert abs(mean - 0.5) < 2.5 * error


def test_a_choice_pooled_over_folds_would_be_noticed(noise, monkeypatch):
    """The defect: every fold takes the site whose validation scores are best over all folds."""

    def pooled(scores, target="task"):
        rows = pd.DataFrame([scores.chosen] * N_FOLDS).assign(fold=range(N_FOLDS))
        return [row for _, row in rows.iterrows()] if target == "task" else []

    monkeypatch.setattr(Scores, "fold_choices", pooled)
    mean, error = mean_headline(noise)
    assert mean - 0.5 > 2.5 * error


def signal(prober):
    """Features that predict the label; in reverse order of the rows they do not."""
    X = np.random.default_rng(3).normal(size=(N_ROWS, 2))
    X[:, 0] += 4 * np.where(prober.data.y == "yes", 1, -1)
    return X


def strong_and_weak(prober):
    """The results at a site with the signal and at one without."""
    X = signal(prober)
    return [at(prober.site(features), n) for n, features in enumerate((X, X[::-1]))]


def validation(result, fold, value):
    """The result with another validation score of one outer fold."""
    measured = [
        replace(one, value=value) if (one.split, one.fold) == ("validation", fold) else one
        for one in result.measurements
    ]
    return replace(result, measurements=measured)


def with_random(result, prober, features, n_networks):
    """The result with those of untrained networks added."""
    random = prober.random_site(features, n_networks)
    result.measurements.extend(random.measurements)
    result.predictions.update(random.predictions)
    return result


@pytest.fixture
def two_sites():
    """A prober, a site with the signal, and a site without, which one outer fold prefers."""
    prober = make_prober(0, "nearest_mean")
    strong, weak = strong_and_weak(prober)
    return prober, [validation(strong, 1, 0.1), validation(weak, 1, 0.9)]


def test_each_fold_contributes_the_predictions_of_its_own_choice(two_sites):
    prober, (strong, weak) = two_sites
    nested = chosen_sites([strong, weak], {"last": prober})
    found = nested.predictions[HEADLINE]
    for fold, site in enumerate((strong, weak, strong)):
        own = site.predictions[Predictor("nearest_mean", "task")]
        rows = found.folds == fold
        assert np.array_equal(rows, own.folds == fold)
        np.testing.assert_array_equal(found.guess[rows], own.guess[rows])
        np.testing.assert_array_equal(found.truth[rows], own.truth[rows])
    (accuracy,) = nested.measurements
    assert accuracy.value == np.mean(found.guess == found.truth)
    assert (accuracy.n_test, accuracy.n_train, accuracy.fold) == (N_ROWS, 100, None)
    assert nested.place["site"] is None
    assert nested.place["position"] == "last"


def test_random_weights_choose_by_their_own_validation_scores(two_sites):
    prober, (strong, weak) = two_sites
    X = signal(prober)
    for site, features in ((strong, X[::-1]), (weak, X)):
        with_random(site, prober, [features], 1)
    nested = chosen_sites([strong, weak], {"last": prober})
    by_target = {one.target: one.value for one in nested.measurements}
    assert by_target["chosen_random_weights"] > 0.95 > by_target["chosen"]


def test_the_control_task_of_each_fold_is_that_at_its_own_choice():
    prober = make_prober(0, "nearest_mean", control_draws=2)
    sites = strong_and_weak(prober)
    nested = chosen_sites(sites, {"last": prober})
    values = {(one.target, one.metric): one.value for one in nested.measurements}
    lead = values["chosen", "accuracy"] - values["chosen_control", "accuracy"]
    assert values["chosen", "selectivity"] == pytest.approx(lead)
    own = accuracy(sites, "control", 0)
    assert values["chosen_control", "accuracy"] == pytest.approx(own)  # all folds chose site 0


@pytest.fixture(scope="module")
def networks():
    X, data, _ = planted_direction(300, seed=0)
    common = {"folds": 3, "control_draws": 0, "description": False}
    prober = Prober(data, ProbeSettings(C=(0.01,), baselines=("majority",), **common))
    results, generator = [at(prober.baselines(), None)], np.random.default_rng(0)
    # The first untrained network has its signal at the first site, the second at the second.
    for number, strengths in enumerate([(2.0, 0.1), (0.1, 2.0)]):
        weak = (X + generator.normal(size=X.shape) / strength for strength in strengths)
        results.append(at(with_random(prober.site(X), prober, weak, 2), number))
    return prober, results, chosen_sites(results, {"last": prober})


def accuracy(results, target, layer):
    (result,) = (one for one in results if one.place["layer"] == layer)
    values = {(m.target, m.split, m.metric): m.value for m in result.measurements}
    return values[target, "test", "accuracy"]


def test_pitfall_47_each_network_is_scored_at_its_own_best_site(networks):
    prober, results, rival = networks
    own = accuracy([rival], "chosen_random_weights", None)
    assert own > max(accuracy(results, "random_weights", layer) for layer in range(2)) + 0.05
    truth, at_best = prober.truth_of("logistic"), enumerate(results[1:])
    guesses = [one.predictions["logistic", f"random_weights_{n}"].guess for n, one in at_best]
    assert own == pytest.approx(np.mean([np.mean(guess == truth) for guess in guesses]))


def test_the_rival_is_in_the_differences_as_the_mean_of_the_networks(networks):
    prober, results, rival = networks
    everything = [*results, rival]
    table = make_table([row for one in everything for row in one.rows], RESULTS)
    found = difference_rows(scored(everything, "accuracy"), Scores.of(table).chosen, table, prober)
    rows = pd.DataFrame(found).set_index("b")
    own = accuracy([rival], "chosen_random_weights", None)
    assert rows.loc["chosen_random_weights", "value_b"] == pytest.approx(own)
    at_site = "blocks.1.hook_resid_post last logistic random_weights"
    assert rows.loc[at_site, "value_b"] == pytest.approx(accuracy(results, "random_weights", 1))


def test_without_untrained_networks_there_is_no_rival(networks):
    prober, results, _ = networks
    measured = ([m for m in one.measurements if m.target == "task"] for one in results)
    trained = [replace(one, measurements=m) for one, m in zip(results, measured, strict=True)]
    assert chosen_sites(trained, {"last": prober}) is None
    assert {m.fold for one in results for m in one.measurements} == {None}
