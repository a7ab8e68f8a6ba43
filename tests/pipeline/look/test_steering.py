"""Generation under steering: the dose, the label, the cache, and probes that cannot steer."""

import numpy as np
import pytest
import torch

from probekit.errors import ConfigError, DataError, UnknownNameError
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
    given = {
        "kind": "logistic", "scores_are_logits": True, "sites": (SITE,),
        "position": {"at": "last"}, "bos": False, "model": "mini", "compute": "float32",
        "dtype": "float32", "weights": "", "tokenizer": "", "cache": "", "seed": 0, "created": "",
        "versions": {}, "projection_sd": tuple(np.arange(2.0, 2.0 + n).tolist()),
    }  # fmt: skip
    return SavedProbe(((weights, np.zeros(n)),), classes, ProbeFacts(**(given | facts)))


def test_the_vector_is_one_standard_deviation_long():
    probe = probe_of()
    vector = steering_vector(probe)
    np.testing.assert_allclose(vector, 2.0 * probe.unit_directions[0])
    np.testing.assert_allclose(steering_vector(probe, "yes"), vector)
    np.testing.assert_allclose(steering_vector(probe, "no"), -vector)


def test_each_of_several_labels_has_a_vector():
    probe = probe_of(("a", "b", "c"))
    np.testing.assert_allclose(steering_vector(probe, "c"), 4.0 * probe.unit_directions[2])
    with pytest.raises(ConfigError, match="--towards: a, b, c"):
        steering_vector(probe)
    with pytest.raises(UnknownNameError, match="no label 'd'"):
        steering_vector(probe, "d")


def test_a_probe_of_numbers_points_to_higher_ones():
    probe = probe_of(())
    np.testing.assert_allclose(steering_vector(probe), 2.0 * probe.unit_directions[0])
    with pytest.raises(ConfigError, match="no labels"):
        steering_vector(probe, "high")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"sites": (SITE, "hook_embed")}, "single site"),
        ({"view": "normalized"}, "raw view"),
        ({"projection_sd": ()}, "without the standard deviation"),
    ],
)
def test_probes_that_cannot_steer_are_refused(facts, message):
    with pytest.raises(ConfigError, match=message):
        steering_vector(probe_of(**facts))


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


def test_another_site_can_be_steered(network):
    vector = steering_vector(probe_of())
    other = "blocks.4.hook_resid_post"
    found = steered_texts(network, PROMPTS, DECODING, vector, 40.0, bos=False, site=other)
    assert found != steered_texts(network, PROMPTS, DECODING, vector, 40.0, bos=False)
    site = "blocks.4.mlp.hook_post"
    with pytest.raises(DataError, match="1024"):
        steered_texts(network, PROMPTS, DECODING, vector, 1.0, bos=False, site=site)


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
