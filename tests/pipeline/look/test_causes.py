"""Erasure of used directions affects predictions more than chance, of unused ones it does not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probekit.errors import ConfigError, DataError
from probekit.model.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.look.causes import erase, erasure_effect

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


def test_erasure_removes_only_the_direction():
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(2, 5, 3, 7, generator=generator)
    direction = np.random.default_rng(0).normal(size=(1, 7))
    left = erase(direction, head=1)("blocks.0.attn.hook_z", value)
    along = left[:, :, 1] @ torch.as_tensor(direction[0], dtype=torch.float32)
    torch.testing.assert_close(along, torch.zeros(2, 5), atol=1e-5, rtol=0)
    torch.testing.assert_close(left[:, :, [0, 2]], value[:, :, [0, 2]], atol=0, rtol=0)
    assert not torch.equal(left[:, :, 1], value[:, :, 1])


def test_dependent_directions_are_erased_once():
    first, second = np.random.default_rng(0).normal(size=(2, 7))
    three = np.array([first, second, -(first + second)]).astype(np.float32)
    value = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left = erase(three)("blocks.0.hook_resid_post", value)
    assert torch.linalg.matrix_rank((value - left).reshape(-1, 7), rtol=1e-6) == 2
    torch.testing.assert_close(left, erase(three[:2])("blocks.0.hook_resid_post", value))
    with pytest.raises(DataError, match="nothing to erase"):
        erase(np.zeros((1, 7)))


def test_probe_of_several_sites_is_refused(kept):
    probe, *_ = kept.keep("blocks.2.hook_resid_post", "blocks.2.mlp.hook_post")
    with pytest.raises(ConfigError, match="requires a probe of a single site"):
        erasure_effect(probe, TEXTS)


@pytest.mark.parametrize(
    ("directions", "head", "shape", "message"),
    [
        (np.ones((1, 5)), None, (2, 3, 7), r"^hook has 7 features, but the directions have 5\. "),
        (np.ones((1, 5)), None, (2, 3, 2, 4), r"^hook has 8 features.*shape \(n, 8\)"),
        (np.ones((1, 5)), 1, (2, 3, 2, 4), r"^head 1 of hook has 4 features"),
        (np.ones((1, 4)), 2, (2, 3, 2, 4), r"^hook has heads 0 to 1, but head is 2\.$"),
        (np.ones((1, 4)), 0, (2, 3, 4), r"^hook has no heads, but head is 0\.$"),
    ],
)
def test_directions_of_a_different_width_or_head_are_refused(directions, head, shape, message):
    tap = erase(directions, head)
    with pytest.raises(DataError, match=message):
        tap("hook", torch.ones(shape))


@pytest.mark.parametrize("directions", [np.ones(5), np.ones((1, 2, 5)), np.full((1, 5), np.nan)])
def test_non_numeric_directions_are_refused(directions):
    with pytest.raises(DataError, match=r"finite numbers of shape \(n, n_features\)"):
        erase(directions)
