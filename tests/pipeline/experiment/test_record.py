"""Label counts in run.json for numbers and trees."""

from types import SimpleNamespace

import numpy as np

from probekit.data.splits import Split
from probekit.pipeline.experiment.record import _label_counts, _shown_examples
from probekit.probes.settings import ProbeSettings, ProbeSpec

SPLITS = (Split(np.arange(30), np.arange(30, 40)),)


def prober(kind):
    return SimpleNamespace(settings=ProbeSettings(kinds=(ProbeSpec(kind),)))


def counts(labels, kind):
    return _label_counts(SimpleNamespace(labels=np.array(labels), splits=SPLITS), prober(kind))


def test_many_numbers_are_counted_in_ranges():
    found = counts([str(n) for n in range(40)], "ridge_regression")
    assert list(found["train"]) == ["0 to 7.8", "7.8 to 15.6", "15.6 to 23.4", "23.4 to 31.2"]
    assert sum(found["train"].values()) == 30
    assert sum(found["test"].values()) == 10
    few = counts(["1", "2"] * 20, "ridge_regression")
    assert few["train"] == {"1": 15, "2": 15}


def test_roots_of_trees_are_counted():
    found = counts(["-1", "0", "1", "2"] * 10, "structural_depth")
    assert found["test"] == {"other words": 8, "roots": 2}


def test_examples_are_shown_for_some_numbers_only():
    examples = [SimpleNamespace(label=str(n), group=f"g{n}") for n in range(40)]
    dataset = SimpleNamespace(labels=np.array([e.label for e in examples]), examples=examples)

    def shown(kind):
        return [one.label for one in _shown_examples(dataset, np.arange(40), prober(kind))]

    assert shown("ridge_regression") == ["0", "8", "16", "24", "32"]
    assert len(shown("logistic")) == 40
