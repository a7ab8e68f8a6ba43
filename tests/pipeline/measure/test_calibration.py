"""Reliability of each kind with probabilities, at its site of best cross-validated score."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pandas as pd

from probekit.pipeline.measure.significance import RELIABILITY, reliability_rows
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.score.scored import Measurement, Predictor, SiteResult

TRUTH = np.array([0, 1, 0, 1])


def site(name, probe, sure, validated, are_logs=True):
    """Return a site with a probe that is always correct, with confidence `sure`."""
    shares = np.where(np.eye(2)[TRUTH] > 0, sure, 1 - sure)
    said = ClassPredictions(TRUTH, TRUTH, 2, np.log(shares), are_logs)
    names = ("run", "dataset", "site", "head", "position", "view", "main_metric")
    place = dict(zip(names, ("r", "d", name, None, "last", "view", "accuracy"), strict=True))
    numbers = dict.fromkeys([field.name for field in fields(Measurement)])
    where = {"probe": probe, "target": "task", "split": "validation", "metric": "accuracy"}
    measured = Measurement(**(numbers | where | {"value": validated}))
    return SiteResult([measured], {Predictor(probe, "task"): said}, place=place)


def test_reliability_is_computed_at_the_best_site_of_each_kind():
    found = [
        site("blocks.0.hook_resid_post", "logistic", 0.7, validated=0.9),
        site("blocks.1.hook_resid_post", "logistic", 0.9, validated=0.8),
        site("blocks.1.hook_resid_post", "mass_mean", 0.9, validated=0.8, are_logs=False),
    ]
    table = pd.DataFrame([row for one in found for row in one.rows])
    resamples = Resamples.leave_one_out(np.arange(4))
    prober = SimpleNamespace(resamples_of=lambda probe: resamples)
    bins = reliability_rows(found, table, prober)
    assert tuple(bins.columns) == RELIABILITY
    assert bins[["probe", "site", "n_rows"]].to_numpy().tolist() == [
        ["logistic", "blocks.0.hook_resid_post", 4]
    ]
    assert abs(bins["confidence"].iloc[0] - 0.7) < 1e-9
    assert bins["accuracy"].iloc[0] == 1


def test_reliability_is_empty_without_validation_scores():
    one = site("blocks.0.hook_resid_post", "logistic", 0.7, validated=0.9)
    table = pd.DataFrame(one.rows).assign(split="test")
    assert reliability_rows([one], table, SimpleNamespace()).empty
