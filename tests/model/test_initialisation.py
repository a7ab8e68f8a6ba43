"""The weights that training starts from: their law, not just their width."""

from dataclasses import replace

import pytest
import torch
from scipy import stats

from probekit.model.families.gpt2 import GPT2, GPT2Config, LayerNorm
from tests.model.reference import TINY

SIZES = GPT2Config(n_layer=3, n_embd=192, n_head=3, vocab_size=500, tie_word_embeddings=False)


def test_every_matrix_is_drawn_from_its_normal_distribution():
    names = []
    for name, parameter in GPT2(SIZES, seed=0).named_parameters():
        if parameter.ndim == 2:
            expected = 0.02 / (6**0.5) if name.endswith("c_proj.weight") else 0.02
            drawn = parameter.detach().flatten().double()
            assert abs(drawn.std().item() / expected - 1) < 0.02, name
            assert abs(drawn.mean().item()) < 5 * expected / len(drawn) ** 0.5, name
            assert stats.kstest((drawn / expected).numpy(), "norm").pvalue > 1e-4, name
            names.append(name)
    assert len(names) == 3 * 4 + 3
    assert "lm_head.weight" in names


def test_biases_are_zero_and_gains_are_one():
    model = GPT2(SIZES, seed=0)
    gains = {m.weight.data_ptr() for m in model.modules() if isinstance(m, LayerNorm)}
    assert len(gains) == 2 * 3 + 1
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert (parameter == float(parameter.data_ptr() in gains)).all(), name


def test_the_standard_deviation_is_that_of_the_config():
    model = GPT2(replace(SIZES, initializer_range=0.1), seed=0)
    assert abs(model.wpe.weight.std().item() / 0.1 - 1) < 0.02
    assert abs(model.h[1].mlp.c_proj.weight.std().item() / (0.1 / 6**0.5) - 1) < 0.02


def test_seeded_weights_are_reproducible_and_leave_the_global_generator_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, second, other = GPT2(TINY, seed=5), GPT2(TINY, seed=5), GPT2(TINY, seed=6)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.wte.weight, second.wte.weight)
    assert not torch.equal(first.wte.weight, other.wte.weight)


@pytest.mark.parametrize("switch", ["bias", "qkv_bias"])
def test_a_switch_removes_only_its_biases(switch):
    full = dict(GPT2(TINY, seed=0).named_parameters())
    less = dict(GPT2(replace(TINY, **{switch: False}), seed=0).named_parameters())
    gone = [name for name in full if name not in less]
    endings = (".bias",) if switch == "bias" else ("c_attn.bias",)
    assert gone == [name for name in full if name.endswith(endings)]
    assert all(torch.equal(full[name], less[name]) for name in less)
