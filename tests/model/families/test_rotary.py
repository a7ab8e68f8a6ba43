"""Scaled rotary positions equal those of transformers, bit by bit."""

import itertools

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from probekit.errors import ConfigError
from probekit.model.families.rotary import RotaryPositions, frequencies

NEEDED = {"rope_type": "yarn", "original_max_position_embeddings": 64}
OPTIONS = {
    "rope_theta": (3.0, 10000.0),
    "factor": (0.5, 8.0),
    "beta_fast": (None, 5.0),
    "beta_slow": (None, 0.25),
    "truncate": (None, True, False),
    "attention_factor": (None, 1.7),
    "mscale": (None, 0.5),
    "mscale_all_dim": (None, 1.5),
}
SETTINGS = [
    dict(zip(OPTIONS, values, strict=True)) for values in itertools.product(*OPTIONS.values())
]


@pytest.mark.parametrize(
    ("d_head", "n_first", "n_different"), [(2, 5, 4), (26, 64, 55), (8, 4096, 40)]
)
def test_yarn_with_every_option(d_head, n_first, n_different):
    seen = set()
    for settings in SETTINGS:
        entries = {key: value for key, value in settings.items() if value is not None}
        entries |= NEEDED | {"original_max_position_embeddings": n_first}
        config = LlamaConfig(head_dim=d_head, max_position_embeddings=n_first)
        config.rope_parameters = dict(entries)
        expected, factor = ROPE_INIT_FUNCTIONS["yarn"](config)
        ours = RotaryPositions.from_hub({"rope_parameters": entries})
        assert torch.equal(frequencies(ours, d_head), expected), entries
        assert ours.scale == factor, entries
        assert RotaryPositions.from_hub({"rope_parameters": ours.to_json()}) == ours
        seen.add((*expected.tolist(), factor))
    assert len(seen) == n_different


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"factor": None}, "factor of the rotary positions"),
        ({"original_max_position_embeddings": 0}, "must be a positive number, not 0"),
        ({"mscale": -1.0}, "mscale of the rotary positions"),
        ({"truncate": "no"}, "truncate must be true or false"),
        ({"beta_slow": 40.0}, "beta_slow=40.0 must not exceed beta_fast=32.0"),
        ({"rope_theta": 1}, "nor rope_theta be 1"),
        ({"low_freq_factor": 1.0}, "Unknown key 'low_freq_factor'"),
    ],
)
def test_yarn_that_cannot_be_computed_is_refused(entries, message):
    section = {**NEEDED, "factor": 2.0, **entries}
    with pytest.raises(ConfigError, match=message):
        RotaryPositions.from_hub({"rope_parameters": section})
