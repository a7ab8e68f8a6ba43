"""Erasure of used directions affects predictions more than chance, of unused ones it does not."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.errors import ConfigError
from probekit.model.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.look.causes import erasure_effect

TEXTS = ["The keys to the old cabinet", "The key", "He gave the child a"]
LAST = "blocks.5.hook_resid_post"


def reading(probe, direction, site=LAST):
    layers = ((np.asarray(direction, dtype=np.float64)[None], np.zeros(1)),)
    return replace(probe, layers=layers, facts=probe.facts.model_copy(update={"sites": (site,)}))


@pytest.fixture(scope="module")
def probe(kept):
    return kept.keep("blocks.2.hook_resid_post")[0]


@pytest.fixture(scope="module")
def used():
    """Return the direction of the last block's output at the last token of a text."""
    model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    _, cache = model.run_with_cache(tokenizer.batch(TEXTS[:1], bos=False, side="left").ids)
    return cache[LAST][0, -1].double().numpy()


def test_pitfall_29_erasing_a_used_direction_differs_from_chance(probe, used):
    effect = erasure_effect(reading(probe, used), TEXTS, draws=99)
    assert effect.probe > 3 * effect.random.mean()
    assert effect.p == 0.01


def test_erasing_an_unused_direction_does_not_differ_from_chance(probe):
    unused = np.random.default_rng(5).normal(size=256)
    effect = erasure_effect(reading(probe, unused), TEXTS, draws=99)
    assert effect.p > 0.05
    assert len(effect.random) == 99


def test_same_seed_gives_the_same_directions(probe, used):
    first, second = (erasure_effect(reading(probe, used), TEXTS, draws=3, seed=1) for _ in "ab")
    np.testing.assert_array_equal(first.random, second.random)


def test_probe_of_several_sites_is_refused(kept):
    probe, *_ = kept.keep("blocks.2.hook_resid_post", "blocks.2.mlp.hook_post")
    with pytest.raises(ConfigError, match="requires a probe of a single site"):
        erasure_effect(probe, TEXTS)
