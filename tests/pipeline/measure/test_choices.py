"""Each outer fold chooses by its own validation scores, so that noise scores at chance."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from probekit.pipeline.measure import choices
from probekit.pipeline.measure.choices import chosen_sites
from probekit.probes.data import ProbeData, group_folds
from probekit.probes.prober import Prober
from probekit.probes.score.scored import Predictor, SiteResult
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.results.selection import chosen_row

N_ROWS, N_FOLDS, N_SITES, N_RUNS = 150, 3, 24, 8
HEADLINE = Predictor("chosen", "chosen")


class AccuracyProber(Prober):
    """Measures accuracy only, which is all that a choice needs."""

    def measure(self, score):
        return super().measure(replace(score, metric="accuracy"))


def make_prober(seed, kind="ridge", **settings):
    """Balanced labels without groups, in stratified outer folds."""
    generator = np.random.default_rng(seed)
    y = generator.permutation(np.repeat(["no", "yes"], N_ROWS // 2))
    rows, types = np.arange(N_ROWS).astype(str), (np.arange(N_ROWS) % 30).astype(str)
    fold = group_folds(y, rows, N_FOLDS, seed)
    splits = [
        ProbeData(y, rows, types, train=np.flatnonzero(fold != n), test=np.flatnonzero(fold == n))
        for n in range(N_FOLDS)
    ]
    common = {"folds": 3, "control_draws": 0, "baselines": (), "description": False}
    kinds = (ProbeSpec(kind),)
    plain = ProbeSettings(kinds=kinds, C=(0.01, 1.0), **(common | settings))
    return AccuracyProber(splits, plain)


def at(result: SiteResult, layer: int) -> SiteResult:
    """The result with the place of a layer of the residual stream."""
    place = {
        "run": "r", "model": "m", "dataset": "d", "site": f"blocks.{layer}.hook_resid_post",
        "layer": layer, "component": "resid_post", "head": None, "position": "last", "view": "raw",
    }  # fmt: skip
    return replace(result, place=place)


def noise_sites(prober, seed):
    generator = np.random.default_rng([seed, 1])
    features = (generator.normal(size=(N_ROWS, 4)) for _ in range(N_SITES))
    return [at(prober.site(X), layer) for layer, X in enumerate(features)]


@pytest.fixture(scope="module")
def noise():
    """Results at all sites of several runs on noise."""
    probers = [make_prober(seed) for seed in range(N_RUNS)]
    return [(prober, noise_sites(prober, seed)) for seed, prober in enumerate(probers)]


def mean_headline(noise) -> tuple[float, float]:
    """The mean accuracy of the nested choice over the runs, and its Monte Carlo error."""
    values = [
        chosen_sites(results, {"last": prober}).measurements[0].value for prober, results in noise
    ]
    return float(np.mean(values)), 0.5 / np.sqrt(N_ROWS * N_RUNS)


def test_the_nested_choice_scores_at_chance_on_noise(noise):
    mean, error = mean_headline(noise)
    assert abs(mean - 0.5) < 2.5 * error


def test_a_choice_pooled_over_folds_would_be_noticed(noise, monkeypatch):
    """The defect: every fold takes the site whose validation scores are best over all folds."""

    def pooled(table, target="task"):
        rows = pd.DataFrame([chosen_row(table)] * N_FOLDS).assign(fold=range(N_FOLDS))
        return [row for _, row in rows.iterrows()] if target == "task" else []

    monkeypatch.setattr(choices, "fold_choices", pooled)
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
        random = prober.random_site([features], n_networks=1)
        site.measurements.extend(random.measurements)
        site.predictions.update(random.predictions)
    nested = chosen_sites([strong, weak], {"last": prober})
    by_target = {one.target: one.value for one in nested.measurements}
    assert by_target["chosen_random_weights"] > 0.95 > by_target["chosen"]


def test_the_control_task_of_each_fold_is_that_at_its_own_choice():
    prober = make_prober(0, "nearest_mean", control_draws=2)
    sites = strong_and_weak(prober)
    nested = chosen_sites(sites, {"last": prober})
    values = {(one.target, one.metric): one.value for one in nested.measurements}
    assert values["chosen", "selectivity"] == pytest.approx(
        values["chosen", "accuracy"] - values["chosen_control", "accuracy"]
    )
    (own,) = [
        one.value
        for one in sites[0].measurements
        if (one.target, one.split, one.metric) == ("control", "test", "accuracy")
    ]
    assert values["chosen_control", "accuracy"] == pytest.approx(own)  # all folds chose site 0
