"""Fixtures that make saved probes and their metadata."""

import numpy as np
import pytest

from probekit.probes.saved_probe import HeldOutScore, ProbeFacts, SavedProbe


@pytest.fixture
def make_facts():
    """A function that makes the metadata of a probe, with changes to the defaults."""

    def make(**others):
        facts = {
            "kind": "logistic",
            "scores_are_logits": True,
            "sites": ("blocks.1.hook_resid_post",),
            "position": {"at": "last", "index": None},
            "bos": False,
            "model": "mini",
            "compute": "float32",
            "dtype": "float32",
            "weights": "ww",
            "tokenizer": "tt",
            "cache": "cc",
            "hyperparameters": {"C": 0.01},
            "seed": 0,
            "metrics": {"accuracy": HeldOutScore(value=0.9, ci_low=0.85, ci_high=0.95, n=200)},
            "created": "2025-01-01T00:00:00+00:00",
            "versions": {"probekit": "0.1.0"},
        }
        return ProbeFacts(**(facts | others))

    return make


@pytest.fixture
def make_probe(make_facts):
    """A function that makes a linear probe of seven features."""

    def make(n_classes=2, facts=None):
        generator = np.random.default_rng(n_classes)
        n_rows = 1 if n_classes == 2 else n_classes
        layer = generator.normal(size=(n_rows, 7)), generator.normal(size=n_rows)
        return SavedProbe((layer,), tuple("abcd"[:n_classes]), facts or make_facts())

    return make
