"""Reliability is counted for each kind that has probabilities, where cross-validation was best."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pandas as pd

from probekit.pipeline.measure.calibration import COLUMNS, reliability_rows
from probekit.probes.score.measurement import Measurement
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.site_result import Predictor, SiteResult

TRUTH = np.array([0, 1, 0, 1])


def site(name, probe, sure, validated, are_logs=True):
    """A site whose probe always guesses right, at a confidence of `sure`."""
    shares = np.where(np.eye(2)[TRUTH] > 0, sure, 1 - sure)
    said = ClassPredictions(TRUTH, TRUTH, 2, np.log(shares), are_logs)
    place = {
        "run": "r",
        "dataset": "d",
        "site": name,
        "head": None,
        "position": "last",
        "view": "raw",
    }
    numbers = dict.fromkeys([field.name for field in fields(Measurement)])
    where = {"probe": probe, "target": "task", "split": "validation", "metric": "accuracy"}
    measured = Measurement(**(numbers | where | {"value": validated}))
    return SiteResult([measured], {Predictor(probe, "task"): said}, place=place)


def test_each_kind_is_counted_at_its_best_site():
    found = [
        site("blocks.0.hook_resid_post", "logistic", 0.7, validated=0.9),
        site("blocks.1.hook_resid_post", "logistic", 0.9, validated=0.8),
        site("blocks.1.hook_resid_post", "mass_mean", 0.9, validated=0.8, are_logs=False),
    ]
    table = pd.DataFrame([row for one in found for row in one.rows])
    resamples = Resamples.leave_one_out(np.arange(4))
    prober = SimpleNamespace(resamples_of=lambda probe: resamples)
    bins = reliability_rows(found, table, prober)
    assert tuple(bins.columns) == COLUMNS
    assert bins[["probe", "site", "n_rows"]].to_numpy().tolist() == [
        ["logistic", "blocks.0.hook_resid_post", 4]
    ]
    assert abs(bins["confidence"].iloc[0] - 0.7) < 1e-9
    assert bins["accuracy"].iloc[0] == 1


def test_without_a_choice_there_are_no_bins():
    one = site("blocks.0.hook_resid_post", "logistic", 0.7, validated=0.9)
    table = pd.DataFrame(one.rows).assign(split="test")
    assert reliability_rows([one], table, SimpleNamespace()).empty
