"""One batch: its results, the memory it keeps alive, and copies from a GPU."""

import numpy as np
import pytest
import torch

from probekit.activations.batches import make_batches
from probekit.activations.forward import run_batch
from probekit.model.families.gpt2 import GPT2
from tests.activations.captures import SITES, last_and_mean, make_tokens
from tests.activations.test_batches import last_token
from tests.model.reference import TINY

LAST = "blocks.3.hook_resid_post"


def first_batch(plan):
    tokens = make_tokens()
    return next(make_batches(tokens, plan(tokens), 60)), plan(tokens)


def shapes_in_the_last_mlp(model, plan):
    shapes = []
    handle = model.h[-1].mlp.register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape))
    batch, rows = first_batch(plan)
    run_batch(model, batch, rows, [LAST], "float32")
    handle.remove()
    return [tuple(shape[:2]) for shape in shapes], batch


def test_the_last_block_is_computed_at_requested_positions_only(model):
    shapes, batch = shapes_in_the_last_mlp(model, last_token)
    assert shapes == [(len(batch.sequences), 1)]
    shapes, batch = shapes_in_the_last_mlp(model, last_and_mean)
    assert shapes == [(len(batch.sequences), len(batch.sequences[0]))]


def test_nothing_runs_behind_the_deepest_site(model):
    ran = []
    handles = [
        module.register_forward_hook(lambda *_, name=name: ran.append(name))
        for name, module in model.named_modules()
        if name
    ]
    batch, rows = first_batch(last_token)
    run_batch(model, batch, rows, ["blocks.1.hook_resid_mid"], "float32")
    for handle in handles:
        handle.remove()
    assert "h.1.attn" in ran
    assert not any(name.startswith(("h.1.mlp", "h.2", "h.3", "ln_f")) for name in ran)


@pytest.mark.parametrize("plan", [last_token, last_and_mean])
def test_rows_keep_no_batch_in_memory(model, plan):
    batch, rows = first_batch(plan)
    part = run_batch(model, batch, rows, SITES, "float32")
    for site, value in part.values.items():
        assert value.untyped_storage().nbytes() == value.nbytes, site
        assert len(value) == len(batch.rows)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
class TestOnAGPU:
    @pytest.mark.parametrize("plan", [last_token, last_and_mean])
    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_rows_are_those_of_the_cpu(self, plan, dtype):
        model = GPT2(TINY, seed=1).requires_grad_(False)
        batch, rows = first_batch(plan)
        expected = run_batch(model, batch, rows, SITES, dtype).arrays()
        found = run_batch(model.cuda(), batch, rows, SITES, dtype).arrays()
        for site, values in expected.items():
            assert found[site].dtype == values.dtype
            scale = np.abs(values).max()
            tolerance = 1e-3 if dtype == "float16" else 1e-4
            np.testing.assert_allclose(found[site], values, rtol=0, atol=tolerance * scale)

    def test_rows_travel_through_pinned_memory_without_waiting(self):
        batch, rows = first_batch(last_token)
        model = GPT2(TINY, seed=1).requires_grad_(False).cuda()
        part = run_batch(model, batch, rows, SITES, "float32")
        assert part.arrival is not None
        assert all(value.is_pinned() for value in part.values.values())

    def test_half_precision_is_near(self):
        batch, rows = first_batch(last_token)
        model = GPT2(TINY, seed=1).requires_grad_(False).cuda()
        expected = run_batch(model, batch, rows, SITES, "float32").arrays()
        found = run_batch(model.bfloat16(), batch, rows, SITES, "float32").arrays()
        for site, values in expected.items():
            scale = np.abs(values).max()
            np.testing.assert_allclose(found[site], values, rtol=0, atol=0.05 * scale)
