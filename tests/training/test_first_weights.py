"""Initial weights are drawn by the seed, except for sinusoidal position embeddings."""

import torch

from probekit.model.families.gpt2 import GPT2
from probekit.training.first_weights import initial_model, sinusoids


def test_it_is_the_drawn_network(make_recipe):
    recipe = make_recipe(seed=3)
    drawn = GPT2(recipe.model.config(300), seed=3).state_dict()
    for name, tensor in initial_model(recipe, 300).state_dict().items():
        assert torch.equal(tensor, drawn[name]), name


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
