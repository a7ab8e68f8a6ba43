"""Fixtures: commands with an empty cache, and a saved probe."""

from functools import partial

import numpy as np
import pytest

from probekit.model.families.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.state_dict import digest_weights
from probekit.probes.saved_probe import ProbeFacts, SavedProbe


@pytest.fixture
def probekit(call, tmp_path, monkeypatch):
    """As `call`, with an empty cache; the function returns exit code and joined output."""
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "cache"))

    def probekit(*arguments):
        ended = call(*arguments)
        return ended.code, ended.stdout + ended.stderr

    return probekit


@pytest.fixture(scope="session")
def mini_digests():
    """Digests of mini, as stored with a probe."""
    return {
        "weights": digest_weights(GPT2.from_pretrained("mini")),
        "tokenizer": Tokenizer.from_pretrained("mini").digest,
    }


def save_probe(folder, digests, name="probe", classes=("no", "yes"), **facts):
    """Save a probe of mini with random directions under a name."""
    n_scores = len(classes) if len(classes) > 2 else 1
    layer = np.random.default_rng(1).normal(size=(n_scores, 256)) / 10, np.zeros(n_scores)
    given = {
        "kind": "logistic", "scores_are_logits": True, "sites": ("blocks.1.hook_resid_post",),
        "position": {"at": "last"}, "bos": False, "model": "mini", "compute": "float32",
        "dtype": "float32", "cache": "", "seed": 0, "created": "", "versions": {},
    }  # fmt: skip
    probe = SavedProbe((layer,), classes, ProbeFacts(**(given | digests | facts)))
    return probe.save(folder / name)


@pytest.fixture
def keep(tmp_path, mini_digests):
    """A function that saves a probe in the test's folder."""
    return partial(save_probe, tmp_path, mini_digests)
