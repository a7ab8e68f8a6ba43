"""Each network with random weights is scored at the site that its own validation scores choose."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from probekit.pipeline.measure.choices import chosen_sites
from probekit.pipeline.measure.significance import difference_rows, scored
from probekit.pipeline.selftest import planted_direction
from probekit.probes.prober import Prober
from probekit.probes.settings import ProbeSettings
from probekit.results.selection import chosen_row
from probekit.results.table import RESULTS, make_table

SITES = ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
SETTINGS = ProbeSettings(
    C=(0.01,), folds=3, control_draws=0, description=False, baselines=("majority",)
)


def place(site):
    return {
        "run": "r", "model": "m", "dataset": "d", "site": site, "component": "resid_post",
        "head": None, "position": "last", "view": "raw",
    }  # fmt: skip


def results_of(prober, X, networks):
    """Results of a trained network, and of untrained ones given by the signal at each site."""
    generator = np.random.default_rng(0)

    def weak(strength):
        return X + generator.normal(size=X.shape) / strength

    found = []
    for number, site in enumerate(SITES):
        result = prober.site(X)
        random = prober.random_site((weak(n[number]) for n in networks), len(networks))
        result.measurements.extend(random.measurements)
        result.predictions.update(random.predictions)
        found.append(replace(result, place=place(site)))
    return [replace(prober.baselines(), place=place(None)), *found]


@pytest.fixture(scope="module")
def run():
    X, data, _ = planted_direction(300, seed=0)
    prober = Prober(data, SETTINGS)
    # The first network has its signal at the first site, the second at the second.
    results = results_of(prober, X, [(2.0, 0.1), (0.1, 2.0)])
    return prober, results, chosen_sites(results, {"last": prober})


def accuracy(results, target, site):
    return next(
        m.value
        for result in results
        if result.place["site"] == site
        for m in result.measurements
        if (m.target, m.split, m.metric) == (target, "test", "accuracy")
    )


def test_pitfall_47_each_network_is_scored_at_its_own_best_site(run):
    prober, results, rival = run
    means = [accuracy(results, "random_weights", site) for site in SITES]
    own = accuracy([rival], "chosen_random_weights", None)
    assert own > max(means) + 0.05
    guesses = [
        results[n + 1].predictions["logistic", f"random_weights_{n}"].guess for n in range(2)
    ]
    truth = prober.truth_of("logistic")
    assert own == pytest.approx(np.mean([np.mean(guess == truth) for guess in guesses]))


def test_the_rival_is_in_the_differences_as_the_mean_of_the_networks(run):
    prober, results, rival = run
    everything = [*results, rival]
    table = make_table([row for one in everything for row in one.rows], RESULTS)
    rows = pd.DataFrame(
        difference_rows(scored(everything, "accuracy"), chosen_row(table), table, prober)
    ).set_index("b")
    own = accuracy([rival], "chosen_random_weights", None)
    assert rows.loc["chosen_random_weights", "value_b"] == pytest.approx(own)
    at_site = f"{SITES[1]} last logistic random_weights"
    mean = accuracy(results, "random_weights", SITES[1])
    assert rows.loc[at_site, "value_b"] == pytest.approx(mean)


def test_without_untrained_networks_there_is_no_rival(run):
    prober, results, _ = run
    trained = [
        replace(one, measurements=[m for m in one.measurements if m.target == "task"])
        for one in results
    ]
    assert chosen_sites(trained, {"last": prober}) is None
