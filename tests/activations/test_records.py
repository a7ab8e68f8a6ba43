"""Identity of a cache: any change that affects a number gives another cache."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probekit.activations.records import identity_of
from probekit.model.families.gpt2 import GPT2
from probekit.provenance import PART_VERSIONS
from tests.activations.captures import last_and_mean, make_tokens, run
from tests.model.reference import TINY

TOKENS = make_tokens()
PLAN = last_and_mean(TOKENS)


def key(change=None, tokenizer="t", tokens=TOKENS, plan=PLAN, dtype="float32", **sizes):
    model = GPT2(replace(TINY, **sizes), seed=1).requires_grad_(False)
    if change is not None:
        change(model)
    return identity_of(model, tokenizer, tokens, plan, dtype).key


def other_weight(model):
    model.h[3].mlp.c_fc.weight.data[0, 0] += 1e-6


@pytest.mark.parametrize(
    "change",
    [
        {"change": other_weight},
        {"change": torch.nn.Module.double},
        {"n_head": 1},  # no parameter shows it
        {"layer_norm_epsilon": 0.1},
        {"tokenizer": "u"},
        {"tokens": [*TOKENS[:5], (TOKENS[5] + 1) % 97, *TOKENS[6:]]},
        {"tokens": TOKENS[::-1]},
        {"plan": replace(PLAN, positions=np.maximum(PLAN.positions - 1, 0))},
        {"plan": replace(PLAN, skip_massive=True)},
        {"dtype": "float16"},
        {"dtype": "bfloat16"},
    ],
    ids=" ".join,
)
def test_any_change_of_the_inputs_gives_another_key(change):
    assert key(**change) != key() == key()


def test_the_versions_of_the_numbers_are_part_of_the_key(monkeypatch):
    before = key()
    with monkeypatch.context() as patch:
        patch.setitem(PART_VERSIONS, "capture", 2)
        assert key() != before
    monkeypatch.setattr(GPT2, "VERSION", 2)
    assert key() != before


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
