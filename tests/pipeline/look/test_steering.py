"""Generation under steering: the dose, the label, the cache, and probes that cannot steer."""

import numpy as np
import pytest
import torch

from probekit.model.families.gpt2 import GPT2
from probekit.model.generation import Decoding, continue_texts
from probekit.model.sites.sites import SiteSelection
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.look.apply import ProbedModel, steered_texts, steering_vector
from probekit.pipeline.measure.probing import projection_sds
from probekit.probes.saved_probe import ProbeFacts, SavedProbe

SITE = "blocks.2.hook_resid_post"
PROMPTS = ["The old man", "She said that the"]
DECODING = Decoding(6)


@pytest.fixture(scope="module")
def network():
    model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    return ProbedModel(model, tokenizer, (SiteSelection(SITE),))


def probe_of(classes=("no", "yes"), **facts):
    n = len(classes) if len(classes) > 2 else 1
    weights = np.random.default_rng(0).normal(size=(n, 256))
    given = dict.fromkeys(("weights", "tokenizer", "cache", "created"), "")
    given |= {"kind": "logistic", "scores_are_logits": True, "sites": (SITE,), "model": "mini"}
    given |= {"position": {"at": "last"}, "bos": False, "seed": 0, "versions": {}}
    given |= {"compute": "float32", "dtype": "float32"}
    given |= {"projection_sd": tuple(np.arange(2.0, 2.0 + n).tolist())}
    return SavedProbe(((weights, np.zeros(n)),), classes, ProbeFacts(**(given | facts)))


def test_the_vector_is_one_standard_deviation_long_towards_a_label_or_higher_numbers(refused):
    probe, many, number = probe_of(), probe_of(("a", "b", "c")), probe_of(())
    for vector, expected in (
        (steering_vector(probe), 2.0 * probe.unit_directions[0]),
        (steering_vector(probe, "yes"), 2.0 * probe.unit_directions[0]),
        (steering_vector(probe, "no"), -2.0 * probe.unit_directions[0]),
        (steering_vector(many, "c"), 4.0 * many.unit_directions[2]),
        (steering_vector(number), 2.0 * number.unit_directions[0]),
    ):
        np.testing.assert_allclose(vector, expected)
    refused(steering_vector, many)
    refused(steering_vector, many, "d")
    refused(steering_vector, number, "high")


@pytest.mark.parametrize(
    "facts",
    [{"sites": (SITE, "hook_embed")}, {"view": "normalized"}, {"projection_sd": ()}],
    ids=["sites", "view", "no deviation"],
)
def test_probes_that_cannot_steer_are_refused(facts, refused):
    refused(steering_vector, probe_of(**facts))


def test_a_dose_of_0_changes_nothing(network):
    vector = steering_vector(probe_of())
    found = steered_texts(network, PROMPTS, DECODING, vector, 0.0, bos=False)
    assert found == continue_texts(network.model, network.tokenizer, PROMPTS, DECODING, bos=False)


def test_every_token_is_steered_with_the_cache_as_without(network):
    vector = steering_vector(probe_of())
    found = steered_texts(network, PROMPTS, DECODING, vector, 40.0, bos=False)
    shift = torch.from_numpy(40.0 * vector).float()
    for prompt, [continuation] in zip(PROMPTS, found, strict=True):
        ids = torch.from_numpy(network.tokenizer.encode(prompt, bos=False).ids)[None]
        for expected in continuation.ids:
            with torch.no_grad():
                logits = network.model(ids, tap=lambda _, x: x + shift, sites=[SITE])
            assert int(logits[0, -1].argmax()) == expected
            ids = torch.cat([ids, torch.tensor([[expected]])], dim=1)
    assert found != steered_texts(network, PROMPTS, DECODING, vector, 0.0, bos=False)


def test_another_site_of_the_width_can_be_steered(network, refused):
    vector = steering_vector(probe_of())
    other = "blocks.4.hook_resid_post"
    found = steered_texts(network, PROMPTS, DECODING, vector, 40.0, bos=False, site=other)
    assert found != steered_texts(network, PROMPTS, DECODING, vector, 40.0, bos=False)
    given = {"bos": False, "site": "blocks.4.mlp.hook_post"}
    refused(steered_texts, network, PROMPTS, DECODING, vector, 1.0, **given)


def test_standard_deviations_are_those_of_the_fitted_rows():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(30, 5)).astype(np.float32)
    weights, rows = generator.normal(size=(3, 5)), np.arange(4, 25)
    unit = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    found = projection_sds(((weights, np.zeros(3)),), X, rows)
    assert found == pytest.approx((X[rows].astype(float) @ unit.T).std(axis=0).tolist())
    two_layers = ((weights, np.zeros(3)), (np.ones((1, 3)), np.zeros(1)))
    assert projection_sds(two_layers, X, rows) == ()
    assert projection_sds(((np.zeros((1, 5)), np.zeros(1)),), X, rows) == ()
