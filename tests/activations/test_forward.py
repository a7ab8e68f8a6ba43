"""Batches of any size and any rows give the numbers of one forward pass."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from probekit.activations import records
from probekit.activations.forward import make_batches, make_shards, row_means, run_batches
from probekit.data.positions import RowPlan
from probekit.pipeline.look.apply import stream_rows
from tests.activations.captures import SITES as STORED_SITES
from tests.activations.captures import last_and_mean, last_token, make_tokens
from tests.model.gpt2_sites import expand
from tests.model.reference import TINY
from tests.stored import each_row

# The last block, which is computed at the asked places alone, and one before it.
SITES = expand(
    ["blocks.1.hook_resid_post", "blocks.3.*_[oqz]*", "blocks.3.hook_*", "ln_final.*"], TINY.n_layer
)


def some_tokens(tokens):
    """The mean of two tokens, and a token: as many as leave the last block at few places."""
    rows = [p for ids in tokens for p in (0, len(ids) // 2, len(ids) - 1)]
    sizes = [size for _ in tokens for size in (2, 1)]
    example = np.repeat(np.arange(len(tokens)), 2)
    return RowPlan(example, np.array(rows), np.concatenate([[0], np.cumsum(sizes)]))


PLANS = {"last": last_token, "some": some_tokens, "all": last_and_mean}


def rows_of(model, tokens, plan, sites=SITES):
    found = {}
    for numbers, values in stream_rows(model, tokens, plan, sites):
        for site, rows in values.items():
            whole = found.setdefault(site, np.full((len(plan.example), *rows.shape[1:]), np.nan))
            whole[numbers] = rows
    return found


def assert_near(found, expected, tolerance=1e-5):
    for site, rows in expected.items():
        atol = tolerance * np.abs(rows).max()
        np.testing.assert_allclose(found[site], rows, rtol=0, atol=atol, err_msg=site)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_size_of_batches_changes_no_row(model, plan, monkeypatch, tokens):
    expected = rows_of(model, tokens, plan(tokens))
    for size in (1, 25, 10_000):
        monkeypatch.setitem(records.BATCH_TOKENS, "cpu", size)
        assert_near(rows_of(model, tokens, plan(tokens)), expected)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_order_of_examples_changes_no_bit(model, plan, tokens):
    expected = rows_of(model, tokens, plan(tokens))
    order = np.random.default_rng(5).permutation(len(tokens))
    turned = [tokens[n] for n in order]
    of_each = len(plan(tokens).example) // len(tokens)
    found = rows_of(model, turned, plan(turned))
    for site, rows in expected.items():
        by_example = rows.reshape(len(tokens), of_each, *rows.shape[1:])
        again = found[site].reshape(by_example.shape)
        np.testing.assert_array_equal(again, by_example[order], err_msg=site)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_company_changes_no_bit(model, plan, tokens):
    together = rows_of(model, tokens, plan(tokens))
    for site in SITES:
        alone = rows_of(model, tokens, plan(tokens), [site])
        np.testing.assert_array_equal(alone[site], together[site], err_msg=site)


def test_batches_hold_every_row_once_within_the_budget():
    tokens = [*make_tokens(), np.arange(90)]
    batches = list(make_batches(tokens, last_and_mean(tokens), 60))
    assert sorted(np.concatenate([batch.rows for batch in batches])) == list(range(2 * len(tokens)))
    lengths = [len(ids) for batch in batches for ids in batch.sequences]
    assert lengths == sorted(lengths, reverse=True)
    assert len(lengths) == len({ids.tobytes() for ids in tokens})
    padded = [len(batch.sequences) * len(batch.sequences[0]) for batch in batches]
    assert padded[0] == 90  # longer than the budget, and alone
    assert max(padded[1:]) <= 60
    for batch in batches:
        for row, member in zip(batch.rows, batch.member, strict=True):
            assert np.array_equal(batch.sequences[member], tokens[row // 2])


def test_shards_are_whole_batches(tokens):
    batches = list(make_batches(tokens, last_and_mean(tokens), 60))
    shards = make_shards(batches, 16)
    assert [batch for shard in shards for batch in shard] == batches
    sizes = [[len(batch.rows) for batch in shard] for shard in shards]
    assert all(sum(size) <= 16 or len(size) == 1 for size in sizes)
    for before, after in pairwise(sizes):
        assert sum(before) + after[0] > 16


def test_tokens_of_any_integers_are_the_same_tokens(model):
    tokens = make_tokens(12)
    plan = last_and_mean(tokens)
    expected = rows_of(model, tokens, plan)
    for given in ([ids.astype(np.int32) for ids in tokens], [ids.tolist() for ids in tokens]):
        np.testing.assert_equal(rows_of(model, given, plan), expected)


def test_an_example_without_tokens_is_never_run(model, monkeypatch):
    monkeypatch.setitem(records.BATCH_TOKENS, "cpu", 3)
    tokens = [np.arange(3), np.array([], dtype=np.int64)]
    plan = RowPlan(np.array([0]), np.array([2]), np.array([0, 1]))
    assert len(rows_of(model, tokens, plan)[SITES[0]]) == 1


@each_row("example, positions, offsets")
def test_a_missing_row_is_an_error(model, example, positions, offsets):
    tokens = [np.arange(1, 5), np.arange(3, 9)]
    plan = RowPlan(*(np.array(array, dtype=np.int64) for array in (example, positions, offsets)))
    with pytest.raises(AssertionError):
        rows_of(model, tokens, plan)


@pytest.mark.parametrize("site", ["blocks.*.hook_resid_post", "resid_post"])
def test_a_site_needs_its_full_name(model, site, refused):
    tokens = make_tokens(4)
    refused(rows_of, model, tokens, last_token(tokens), [site])


def test_torch_settings_of_the_caller_change_no_bit(model, tokens):
    plan = last_and_mean(tokens)
    expected = rows_of(model, tokens, plan)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            found = rows_of(model, tokens, plan)
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_equal(found, expected)


LAST = "blocks.3.hook_resid_post"


def run_batch(model, batch, plan, sites, dtype):
    [part] = run_batches(model, [batch], plan, sites, dtype)
    return part


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
    for site, (value, _) in run_batch(model, batch, rows, STORED_SITES, "float32").values.items():
        assert value.untyped_storage().nbytes() == value.nbytes, site
        assert len(value) == len(batch.rows)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("plan", [last_token, last_and_mean])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-4), ("float16", 1e-3), ("bfloat16", 1e-2)]
)
def test_rows_of_a_gpu_are_those_of_the_cpu_by_way_of_pinned_memory(model, plan, dtype, tolerance):
    batch, rows = first_batch(plan)
    expected = run_batch(model, batch, rows, STORED_SITES, dtype).arrays()
    part = run_batch(model.cuda(), batch, rows, STORED_SITES, dtype)
    assert all(value.is_pinned() and arrival for value, arrival in part.values.values())
    found = part.arrays()
    assert all(found[site].dtype == values.dtype for site, values in expected.items())
    assert_near(found, expected, tolerance)
    half = run_batch(model.bfloat16(), batch, rows, STORED_SITES, dtype)
    assert_near(half.arrays(), expected, 0.05)


@pytest.mark.parametrize("sizes", [(1,), (2, 3), (5, 1, 9)], ids=str)
def test_a_mean_leaves_massive_tokens_out(sizes):
    picked = torch.randn(sum(sizes), 3, 7, generator=torch.Generator().manual_seed(0))
    picked[sizes[0] - 1] *= 40  # of a row of one token it is kept
    expected = []
    for part in picked.split(sizes):
        norms = [token.norm().item() for token in part]
        median = sorted(norms)[(len(norms) - 1) // 2]
        expected.append(part[[norm <= 5 * median for norm in norms]].mean(0))
    row = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    torch.testing.assert_close(
        row_means(picked, row, torch.tensor(sizes), skip_massive=True), torch.stack(expected)
    )


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_token_that_is_not_finite_is_not_left_out_as_massive(value):
    picked = torch.ones(4, 3)
    picked[1, 2] = value
    means = row_means(picked, torch.zeros(4, dtype=int), torch.tensor([4]), skip_massive=True)
    assert not means.isfinite().all()
