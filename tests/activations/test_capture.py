"""Captures are correct for any batching; nothing is recomputed, stale or lost."""

import itertools
import multiprocessing
import platform
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from probekit import files as disk_module
from probekit.activations import capture as capturing
from probekit.activations.forward import make_batches, make_shards
from probekit.activations.store import ActivationStore
from probekit.data.positions import RowPlan
from probekit.errors import DamagedError, OutOfMemoryError, StoreError
from probekit.files import Disk
from probekit.model.families.gpt2 import GPT2, PUBLISHED
from probekit.pipeline.experiment.plan import estimate_seconds
from probekit.pipeline.look.apply import stream_rows
from tests.activations.captures import (
    SITES,
    capture,
    files,
    flip_last_bit,
    last_and_mean,
    last_token,
    make_tokens,
    run,
    shard_file,
)


def test_every_row_is_what_one_forward_pass_gives(tmp_path, model, tokens):
    store = run(tmp_path, model, tokens).store
    assert len(store.shards) > 5
    for site in SITES:
        rows = store.read(site)
        for n, ids in enumerate(tokens):
            _, cache = model.run_with_cache(torch.from_numpy(ids)[None], sites=[site])
            value = cache[site][0].numpy()
            np.testing.assert_allclose(rows[2 * n], value[-1], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(rows[2 * n + 1], value.mean(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_streamed_rows_are_those_that_a_store_holds(tmp_path, model, dtype, tokens):
    store = run(tmp_path, model, tokens, dtype=dtype).store
    found = {site: np.full_like(store.read(site), np.nan) for site in SITES}
    parts = list(stream_rows(model, tokens, last_and_mean(tokens), SITES, dtype=dtype))
    for rows, values in parts:
        for site in SITES:
            found[site][rows] = values[site]
    for site in SITES:
        np.testing.assert_array_equal(found[site], store.read(site))
    assert len(parts) > len(store.shards)
    assert sum(len(rows) for rows, _ in parts) == store.n_rows


def test_rows_of_one_example_need_not_be_adjacent(model):
    tokens = make_tokens(20)
    plan = last_and_mean(tokens)
    turned = RowPlan(
        example=plan.example[::-1],
        positions=plan.positions[::-1],
        offsets=np.concatenate([[0], np.cumsum(np.diff(plan.offsets)[::-1])]),
    )
    rows = [np.empty((len(plan.example), 21)) for _ in range(2)]
    for out, order in zip(rows, (plan, turned), strict=True):
        for numbers, values in stream_rows(model, tokens, order, SITES[:1]):
            out[numbers] = values[SITES[0]]
    np.testing.assert_allclose(rows[1][::-1], rows[0], rtol=1e-5, atol=1e-6)


def test_the_estimate_grows_with_the_tokens_that_will_be_run(model, monkeypatch):
    for name in ("time.perf_counter", "time.process_time"):  # the shorter counts
        monkeypatch.setattr(name, itertools.count().__next__)

    def estimate(tokens):
        return estimate_seconds(model, tokens, last_and_mean(tokens), SITES)

    sequences = [np.full(10, n) for n in range(48)]  # 6 in a batch, which takes a second
    assert estimate(sequences[:24]) == 4
    assert estimate(sequences) == 8


@pytest.fixture
def forward(monkeypatch):
    """Counts the sequences that the model runs."""
    seen = []
    run = GPT2.forward
    monkeypatch.setattr(
        GPT2, "forward", lambda self, ids, *a, **k: seen.append(len(ids)) or run(self, ids, *a, **k)
    )
    return seen


def test_identical_sequences_run_once(tmp_path, model, forward, tokens):
    run(tmp_path, model, tokens)
    assert sum(forward) == len({ids.tobytes() for ids in tokens}) < len(tokens)


def test_a_second_run_computes_nothing_and_a_new_site_only_itself(tmp_path, model):
    first = run(tmp_path, model)
    assert (first.computed, first.reused) == (len(SITES) * len(first.store.shards), 0)
    second = run(tmp_path, model)
    assert (second.computed, second.reused) == (0, len(SITES) * len(first.store.shards))
    assert second.root == first.root
    more = run(tmp_path, model, sites=(*SITES, "blocks.1.hook_mlp_out"))
    assert more.computed == len(first.store.shards)
    assert set(more.store.sites) == {*SITES, "blocks.1.hook_mlp_out"}
    # Rows added by other captures do not count.
    assert run(tmp_path, model).root == first.root != more.root


def test_the_bytes_do_not_depend_on_when_a_site_was_added(tmp_path, model):
    together = run(tmp_path / "a", model).store
    for site in SITES:
        apart = run(tmp_path / "b", model, sites=(site,)).store
    assert files(together.folder) == files(apart.folder)


def test_a_finished_cache_is_readable_on_a_read_only_disk(tmp_path, model, monkeypatch):
    run(tmp_path, model)

    def read_only(*arguments):
        raise AssertionError

    for name in ("create", "open_lock", "make_folder", "rename", "link", "remove", "sync_folder"):
        monkeypatch.setattr(Disk, name, read_only)
    assert run(tmp_path, model).computed == 0


def test_non_finite_rows_are_refused_by_site_and_row(tmp_path, model, refused):
    model.wte.weight.data[7] = float("nan")
    refused(run, tmp_path, model, [np.array([1, 2]), np.array([7])])
    assert not list(tmp_path.rglob("0*.json"))


def test_float16_overflow_is_refused_with_the_advice(tmp_path, model, refused):
    model.wte.weight.data[7] = 1e6
    refused(run, tmp_path, model, [np.array([1, 2]), np.array([7])], dtype="float16")
    run(tmp_path, model, [np.array([1, 2]), np.array([7])])


def test_bfloat16_rounds_as_torch_and_keeps_large_numbers(tmp_path, model):
    model.wte.weight.data[7] *= 1e30
    tokens, site = [np.array([1, 2]), np.array([7])], SITES[0]
    exact, rounded = (
        capture(model, "t", tokens, last_token(tokens), [site], root=tmp_path, dtype=dtype).store
        for dtype in ("float32", "bfloat16")
    )
    expected = torch.from_numpy(exact.read(site)).bfloat16()
    assert exact.identity.key != rounded.identity.key
    assert np.array_equal(rounded.read(site), expected.float().numpy())
    assert abs(rounded.read(site)).max() > 1e28
    model.wte.weight.data[7] = 3.4e38  # the largest bfloat16 is 3.39e38
    with pytest.raises(StoreError, match=r"2 rows of .* are not finite.*compute in float32"):
        run(tmp_path, model, tokens, sites=[site], dtype="bfloat16")


def test_sites_over_pairs_of_positions_are_refused(tmp_path, model, tokens, refused):
    pattern = ["blocks.0.attn.hook_pattern"]
    refused(run, tmp_path, model, sites=pattern)
    refused(next, stream_rows(model, tokens, last_and_mean(tokens), pattern))
    assert not list(tmp_path.iterdir())


def _hold(folder, held, let_go):
    with ActivationStore.open(folder).files.lock(print):
        held.set()
        let_go.wait(30)


def test_of_two_runs_on_one_cache_the_second_waits_and_reuses(tmp_path, model, tokens, monkeypatch):
    first = run(tmp_path, model)
    context = multiprocessing.get_context("fork")
    held, let_go = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(first.store.folder, held, let_go))
    other.start()
    assert held.wait(30)
    messages, plan = [], last_and_mean(tokens)
    monkeypatch.setattr(disk_module, "WAITED", 0.1)

    def tell(message):
        messages.append(message)
        let_go.set()

    watcher = SimpleNamespace(progress=lambda *_: None, tell=tell)
    sites = (*SITES, "blocks.1.hook_mlp_out")
    again = capture(model, "t", tokens, plan, sites, root=tmp_path, watcher=watcher)
    other.join(30)
    assert again.reused == first.computed
    assert messages[0].startswith(f"waiting for process {other.pid} on {platform.node()}, which ")


def every_token(tokens):
    lengths = [len(ids) for ids in tokens]
    return RowPlan(
        example=np.repeat(np.arange(len(tokens)), lengths),
        positions=np.concatenate([np.arange(n) for n in lengths]),
        offsets=np.arange(sum(lengths) + 1),
    )


def without_massive(tokens):
    return replace(last_and_mean(tokens), skip_massive=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("plan", [last_token, last_and_mean, without_massive])
def test_derived_rows_are_the_captured_ones(tmp_path, model, tokens, forward, plan, dtype):
    model.wte.weight.data[tokens[0][0]] *= 100  # a massive token
    sites, options = SITES[:-1], {"dtype": dtype}
    apart = capture(model, "t", tokens, plan(tokens), sites, root=tmp_path / "apart", **options)
    capture(model, "t", tokens, every_token(tokens), sites, root=tmp_path / "one", **options)
    del forward[:]
    derived = capture(model, "t", tokens, plan(tokens), sites, root=tmp_path / "one", **options)
    assert derived.root == apart.root
    assert files(derived.store.folder) == files(apart.store.folder)
    # Means of rounded numbers are not those of the numbers: these are computed again.
    assert bool(forward) == (plan is not last_token and dtype != "float32")


@pytest.mark.parametrize("site", ["blocks.3.hook_resid_post", "ln_final.hook_normalized"])
def test_sites_of_requested_positions_only_are_not_derived(tmp_path, model, forward, site, tokens):
    capture(model, "t", tokens, every_token(tokens), [site], root=tmp_path / "one")
    del forward[:]
    found = capture(model, "t", tokens, last_token(tokens), [site], root=tmp_path / "one")
    assert forward
    apart = capture(model, "t", tokens, last_token(tokens), [site], root=tmp_path / "apart")
    assert found.root == apart.root


def test_only_available_sites_are_derived(tmp_path, model, forward, tokens):
    capture(model, "t", tokens, every_token(tokens), SITES[:2], root=tmp_path)
    del forward[:]
    found = capture(model, "t", tokens, last_token(tokens), SITES, root=tmp_path)
    assert found.computed == len(found.store.shards) * (len(SITES) - 2)
    assert forward


@pytest.mark.parametrize("change", ["weights", "tokens", "tokenizer", "positions"])
def test_nothing_is_derived_from_another_capture(tmp_path, model, forward, change, tokens):
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


def test_nothing_is_derived_from_a_damaged_cache(tmp_path, model, tokens):
    source = capture(model, "t", tokens, every_token(tokens), SITES, root=tmp_path).store
    path = shard_file(source.folder, SITES[1], 0)
    flip_last_bit(path)
    with pytest.raises(DamagedError, match=path.name):
        capture(model, "t", tokens, last_token(tokens), SITES, root=tmp_path)


@pytest.mark.parametrize("tokens_together", [0, 150, 10_000])
def test_weights_read_by_shard_give_the_same_bytes(model, tmp_path, monkeypatch, tokens_together):
    expected = run(tmp_path / "whole", model)
    model.save_pretrained(tmp_path / "model")
    read = GPT2.from_pretrained(tmp_path / "model", in_memory=False)
    # Batches of a shard that go through a block together: one, some, and all.
    monkeypatch.setattr(capturing, "tokens_together", lambda *_: tokens_together)
    assert files(run(tmp_path / "read", read).store.folder) == files(expected.store.folder)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 B."), "can't allocate"),
        (torch.AcceleratorError("CUDA error: out of memory"), "out of memory"),  # no lost GPU
    ],
)
def test_a_capture_without_memory_says_what_lowers_it(model, tmp_path, monkeypatch, error, words):
    monkeypatch.setattr(capturing.forward, "run_batches", Mock(side_effect=error))
    needs = rf"to capture .*{words}.*about \d.*MB.* are available.*capture.sites.*bfloat16"
    with pytest.raises(OutOfMemoryError, match=needs):
        run(tmp_path, model)


def test_predicted_memory_follows_the_settings_that_lower_it():
    config, sites = PUBLISHED["gpt2"], [f"blocks.{n}.hook_resid_post" for n in range(12)]
    texts = [np.full(1000, n) for n in range(16)]
    plan = RowPlan(np.repeat(np.arange(16), 1000), np.tile(np.arange(1000), 16), np.arange(16_001))

    def predicted(dtype=torch.float32, n_sites=12, batch_tokens=2000, in_memory=True):
        shards = make_shards(make_batches(texts, plan, batch_tokens), 4096)
        return capturing.capture_bytes(config, dtype, sites[:n_sites], shards, in_memory=in_memory)

    most, weights = predicted(), 124_439_808
    assert most - predicted(torch.bfloat16) > 2 * weights  # activations become smaller, too
    assert most - predicted(n_sites=1) == 11 * 4 * 768 * 4000  # of two batches in a shard
    assert predicted(batch_tokens=1000) < most < predicted(batch_tokens=4000)
    # The token embedding is the largest part; the residual streams of a shard come on top.
    read = predicted(n_sites=1, in_memory=False) - predicted(n_sites=1)
    assert read == 4 * (50_257 * 768 - weights) + 4 * 768 * 4000


def test_residual_streams_that_go_through_a_block_together_fill_a_quarter_of_memory(monkeypatch):
    monkeypatch.setattr(capturing, "available_memory", lambda _device: 4 * 10 * 4 * 768)
    config = PUBLISHED["gpt2"]
    for dtype, n_tokens in ((torch.float32, 10), (torch.bfloat16, 10), (torch.float64, 5)):
        assert capturing.tokens_together(config, dtype, "cpu") == n_tokens
