"""Identity of a cache: any change that affects a number gives another cache."""

import dataclasses

import numpy as np
import pytest
import torch

from probekit.activations.capture import capture
from probekit.model.families.gpt2 import GPT2
from probekit.provenance import PART_VERSIONS
from tests.activations.captures import SITES, last_and_mean, make_tokens, run
from tests.model.reference import TINY


def other_weights(model):
    model.h[3].mlp.c_fc.weight.data[0, 0] += 1e-6
    return {}


def other_text(model):
    tokens = make_tokens()
    tokens[5] = (tokens[5] + 1) % 97
    return {"tokens": tokens}


CHANGES = {
    "weights": other_weights,
    "text": other_text,
    "order": lambda model: {"tokens": make_tokens()[::-1]},
    "tokenizer": lambda model: {"tokenizer": "u"},
    "dtype on disk": lambda model: {"dtype": "float16"},
    "dtype of compute": lambda model: model.double() and {},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_change_of_the_inputs_prevents_reuse(tmp_path, model, change):
    first = run(tmp_path, model)
    second = run(tmp_path, model, **change(model))
    assert second.reused == 0
    assert second.store.folder != first.store.folder


@pytest.mark.parametrize("size", [{"n_head": 1}, {"layer_norm_epsilon": 0.1}])
def test_sizes_that_no_parameter_shows_are_part_of_the_identity(tmp_path, size):
    other = GPT2(dataclasses.replace(TINY, **size), seed=1)
    first, second = run(tmp_path, GPT2(TINY, seed=1)), run(tmp_path, other)
    assert second.reused == 0
    assert second.store.folder != first.store.folder


def test_positions_are_part_of_the_identity(tmp_path, model):
    tokens = make_tokens()
    plan = last_and_mean(tokens)
    first = capture(model, "t", tokens, plan, SITES, root=tmp_path)
    moved = dataclasses.replace(plan, positions=np.maximum(plan.positions - 1, 0))
    assert capture(model, "t", tokens, moved, SITES, root=tmp_path).reused == 0
    assert first.computed > 0


@pytest.mark.parametrize(
    "place", [(PART_VERSIONS, "capture"), (GPT2, "VERSION")], ids=["capture", "network"]
)
def test_the_versions_of_the_numbers_are_part_of_the_identity(tmp_path, model, monkeypatch, place):
    first = run(tmp_path, model)
    owner, name = place
    change = monkeypatch.setitem if isinstance(owner, dict) else monkeypatch.setattr
    change(owner, name, 2)
    assert run(tmp_path, model).store.folder != first.store.folder


def test_reduced_precision_products_give_another_cache(tmp_path, model):
    first = run(tmp_path, model)
    torch.set_float32_matmul_precision("medium")
    try:
        second = run(tmp_path, model)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert second.reused == 0
    assert second.store.identity.compute == "float32, products in bf16"
    assert run(tmp_path, model).store.folder == first.store.folder
