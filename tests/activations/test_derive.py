"""Rows derived from a cache of all tokens equal those of a capture bit for bit."""

import numpy as np
import pytest

from probekit.activations.capture import capture
from probekit.data.positions import RowPlan
from probekit.errors import DamagedError
from probekit.model.families.gpt2 import GPT2
from tests.activations.captures import SITES, files, last_and_mean, make_tokens, shard_file


def every_token(tokens):
    lengths = [len(ids) for ids in tokens]
    return RowPlan(
        example=np.repeat(np.arange(len(tokens)), lengths),
        positions=np.concatenate([np.arange(n) for n in lengths]),
        offsets=np.arange(sum(lengths) + 1),
    )


def last(tokens):
    n = len(tokens)
    positions = np.array([len(ids) - 1 for ids in tokens])
    return RowPlan(np.arange(n), positions, np.arange(n + 1))


@pytest.fixture
def forward(monkeypatch):
    """Counts the sequences that the model runs."""
    seen = []
    run = GPT2.forward
    monkeypatch.setattr(
        GPT2, "forward", lambda self, ids, *a, **k: seen.append(len(ids)) or run(self, ids, *a, **k)
    )
    return seen


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("plan", [last, last_and_mean])
def test_derived_rows_are_the_captured_ones(tmp_path, model, forward, plan, dtype):
    tokens, sites = make_tokens(), SITES[:-1]
    options = {"dtype": dtype}
    apart = capture(model, "t", tokens, plan(tokens), sites, root=tmp_path / "apart", **options)
    capture(model, "t", tokens, every_token(tokens), sites, root=tmp_path / "one", **options)
    del forward[:]
    derived = capture(model, "t", tokens, plan(tokens), sites, root=tmp_path / "one", **options)
    assert derived.root == apart.root
    assert files(derived.store.folder) == files(apart.store.folder)
    # Means of rounded numbers are not those of the numbers: these are computed again.
    assert bool(forward) == (plan is last_and_mean and dtype == "float16")


@pytest.mark.parametrize("site", ["blocks.3.hook_resid_post", "ln_final.hook_normalized"])
def test_sites_computed_at_requested_positions_only_are_not_derived(tmp_path, model, forward, site):
    tokens = make_tokens()
    capture(model, "t", tokens, every_token(tokens), [site], root=tmp_path / "one")
    del forward[:]
    found = capture(model, "t", tokens, last(tokens), [site], root=tmp_path / "one")
    assert forward
    apart = capture(model, "t", tokens, last(tokens), [site], root=tmp_path / "apart")
    assert found.root == apart.root


def test_only_available_sites_are_derived(tmp_path, model, forward):
    tokens = make_tokens()
    capture(model, "t", tokens, every_token(tokens), SITES[:2], root=tmp_path)
    del forward[:]
    found = capture(model, "t", tokens, last(tokens), SITES, root=tmp_path)
    assert found.computed == len(found.store.shards) * (len(SITES) - 2)
    assert forward


@pytest.mark.parametrize("change", ["weights", "tokens", "tokenizer", "positions"])
def test_nothing_is_derived_from_a_cache_of_another_capture(tmp_path, model, forward, change):
    tokens = make_tokens()
    plan = every_token(tokens)
    if change == "positions":  # token 0 of the first example is not there
        plan = RowPlan(plan.example[1:], plan.positions[1:], plan.offsets[1:] - 1)
    capture(model, "t", tokens, plan, SITES, root=tmp_path)
    if change == "weights":
        model.wte.weight.data[0, 0] += 1
    if change == "tokens":
        tokens[1] = tokens[1][::-1].copy() + 0
        tokens[2] = (tokens[2] + 1) % 97
    del forward[:]
    other = "u" if change == "tokenizer" else "t"
    found = capture(model, other, tokens, last_and_mean(tokens), SITES, root=tmp_path)
    assert sum(forward) == len({ids.tobytes() for ids in tokens})
    assert found.reused == 0


def test_nothing_is_derived_from_a_damaged_cache(tmp_path, model):
    tokens = make_tokens()
    source = capture(model, "t", tokens, every_token(tokens), SITES, root=tmp_path).store
    path = shard_file(source.folder, SITES[1], 0)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=path.name):
        capture(model, "t", tokens, last(tokens), SITES, root=tmp_path)
