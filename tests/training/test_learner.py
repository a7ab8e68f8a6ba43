"""Initial weights are drawn by the seed; each parameter belongs to one optimizer."""

import pytest
import torch

from probekit.model.families.gpt2 import GPT2, GPT2Config
from probekit.training.learner import initial_model, make_optimizers, sinusoids
from probekit.training.recipe import TrainingSection

CONFIG = GPT2Config(n_layer=2, n_head=3, n_embd=21, n_inner=11, vocab_size=97, n_positions=16)


def test_sinusoids_change_only_the_positions_and_have_the_requested_scale(make_recipe):
    drawn = initial_model(make_recipe(), 300).state_dict()
    begun = initial_model(make_recipe(model__position_waves=0.1), 300).state_dict()
    assert {name for name in drawn if not torch.equal(drawn[name], begun[name])} == {"wpe.weight"}
    assert abs(begun["wpe.weight"].pow(2).mean().sqrt() - 0.1) < 1e-3


def test_one_rotation_leads_from_every_position_to_the_next():
    positions = sinusoids(64, 24).double()
    rotation = torch.linalg.lstsq(positions[:-1], positions[1:]).solution
    assert (positions[:-1] @ rotation - positions[1:]).abs().max() < 1e-4
    drawn = torch.randn(64, 24, generator=torch.Generator().manual_seed(0)).double()
    rotation = torch.linalg.lstsq(drawn[:-1], drawn[1:]).solution
    assert (drawn[:-1] @ rotation - drawn[1:]).abs().max() > 0.5


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("tied", [True, False])
def test_each_parameter_is_in_one_group(optimizer, tied):
    model = GPT2(GPT2Config(**(CONFIG.to_json() | {"tie_word_embeddings": tied})))
    optimizers = make_optimizers(model, TrainingSection(steps=1, batch=1, optimizer=optimizer))
    groups = [group for one in optimizers for group in one.param_groups]
    assert places(p for g in groups for p in g["params"]) == places(model.parameters())
    decayed = places(p for g in groups if g["weight_decay"] for p in g["params"])
    assert decayed == places(p for p in model.parameters() if p.ndim == 2)
    of_blocks = {n: p for n, p in model.named_parameters() if n.startswith("h.") and p.ndim == 2}
    if optimizer == "muon":  # it trains only the matrices of the blocks
        assert places(optimizers[0].param_groups[0]["params"]) == places(of_blocks.values())


def places(parameters):
    """Return the memory address of each element; views of one matrix share its storage."""
    found = [p.data_ptr() + 4 * n for p in parameters for n in range(p.numel())]
    assert len(found) == len(set(found))
    return set(found)


def test_muon_moves_queries_and_keys_as_much_as_values():
    model = GPT2(CONFIG).requires_grad_()
    before = model.h[0].attn.c_attn.weight.detach().clone()
    model.loss(torch.arange(12).reshape(1, 12)).backward()
    gradients = [g.norm().item() for g in model.h[0].attn.c_attn.weight.grad.chunk(3)]
    assert gradients[2] > 10 * max(gradients[:2])
    for one in make_optimizers(model, TrainingSection(steps=1, batch=1, optimizer="muon")):
        one.step()
    moved = [part.norm().item() for part in (model.h[0].attn.c_attn.weight - before).chunk(3)]
    assert min(moved) > 0.6 * max(moved)


def test_both_optimizers_make_updates_of_equal_size():
    moved = {}
    for optimizer in ("adamw", "muon"):
        model = GPT2(CONFIG).requires_grad_()
        before = model.h[0].mlp.c_fc.weight.detach().clone()
        training = TrainingSection(steps=1, batch=1, optimizer=optimizer, learning_rate=1e-3)
        tokens = torch.arange(12).reshape(1, 12)
        model.loss(tokens).backward()
        for one in make_optimizers(model, training):
            one.step()
        moved[optimizer] = (model.h[0].mlp.c_fc.weight - before).pow(2).mean().sqrt().item()
    # Muon's steps have a fifth of the size of AdamW's first, whose entries all have size 1.
    assert 0.1 < moved["muon"] / moved["adamw"] < 0.5
