"""Captures: right numbers, however batched; nothing recomputed, stale or lost."""

import dataclasses
import itertools
import multiprocessing
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from probekit.activations import capture as capturing
from probekit.activations import identity as identity_module
from probekit.activations.capture import capture
from probekit.activations.store import ActivationStore
from probekit.data.positions import RowPlan
from probekit.errors import ConfigError, StoreError, StoreMismatchError, UnknownNameError
from probekit.model.gpt2 import GPT2
from tests.model.reference import TINY

# Asking for the norms or for the result of single heads must change no bit elsewhere.
SITES = (
    "blocks.0.hook_resid_pre",
    "blocks.0.ln1.hook_normalized",
    "blocks.1.attn.hook_result",
    "blocks.2.attn.hook_z",
    "blocks.3.hook_resid_post",
)


def make_tokens(n=60, seed=0):
    """Ragged sequences, some of them repeated."""
    generator = np.random.default_rng(seed)
    tokens = [generator.integers(0, 97, size=generator.integers(1, 20)) for _ in range(n)]
    return [*tokens, tokens[3], tokens[0]]


def last_and_mean(tokens):
    """Two rows for every example: its last token, and the mean of all."""
    positions, sizes = [], []
    for ids in tokens:
        positions += [len(ids) - 1, *range(len(ids))]
        sizes += [1, len(ids)]
    return RowPlan(
        example=np.repeat(np.arange(len(tokens)), 2),
        positions=np.array(positions),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
    )


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Shards of 16 rows and batches of 60 tokens, so that small data have many of both."""
    monkeypatch.setattr(capturing, "SHARD_ROWS", 16)
    monkeypatch.setattr(capturing, "BATCH_TOKENS", 60)


@pytest.fixture
def model():
    return GPT2(TINY, seed=1).requires_grad_(False)


def run(root, model, tokens=None, sites=SITES, dtype="float32", tokenizer="t"):
    tokens = make_tokens() if tokens is None else tokens
    return capture(model, tokenizer, tokens, last_and_mean(tokens), sites, root=root, dtype=dtype)


def test_every_row_is_what_one_forward_pass_gives(tmp_path, model):
    tokens = make_tokens()
    store = run(tmp_path, model, tokens).store
    assert len(store.shards) > 5
    for site in SITES:
        rows = store.read(site)
        for n, ids in enumerate(tokens):
            _, cache = model.run_with_cache(torch.from_numpy(ids)[None], sites=[site])
            value = cache[site][0].numpy()
            np.testing.assert_allclose(rows[2 * n], value[-1], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(rows[2 * n + 1], value.mean(0), rtol=1e-4, atol=1e-6)


def test_rows_are_read_in_any_order(tmp_path, model):
    store = run(tmp_path, model).store
    everything = store.read(SITES[0])
    chosen = np.random.default_rng(3).permutation(len(everything))[:40]
    assert np.array_equal(store.read(SITES[0], chosen), everything[chosen])


def test_the_estimate_grows_with_the_tokens_that_will_be_run(model, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(capturing.time, "perf_counter", lambda: next(clock))

    def estimate(tokens):
        return capturing.estimate_seconds(model, tokens, last_and_mean(tokens), SITES)

    sequences = [np.full(10, n) for n in range(48)]  # 6 in a batch, which takes a second
    assert estimate(sequences[:24]) == 4
    assert estimate(sequences) == 8


def test_identical_sequences_run_once(tmp_path, model, monkeypatch):
    seen = []
    forward = GPT2.forward
    monkeypatch.setattr(
        GPT2,
        "forward",
        lambda self, ids, *a, **k: seen.append(len(ids)) or forward(self, ids, *a, **k),
    )
    tokens = make_tokens()
    run(tmp_path, model, tokens)
    assert sum(seen) == len({ids.tobytes() for ids in tokens}) < len(tokens)


def test_a_second_run_computes_nothing_and_a_new_site_only_itself(tmp_path, model):
    first = run(tmp_path, model)
    assert (first.computed, first.reused) == (len(SITES) * len(first.store.shards), 0)
    second = run(tmp_path, model)
    assert (second.computed, second.reused) == (0, len(SITES) * len(first.store.shards))
    assert second.root == first.root
    more = run(tmp_path, model, sites=(*SITES, "blocks.1.hook_mlp_out"))
    assert more.computed == len(first.store.shards)
    assert set(more.store.sites) == {*SITES, "blocks.1.hook_mlp_out"}
    # What others have added says nothing of this capture.
    assert run(tmp_path, model).root == first.root != more.root


def test_the_bytes_do_not_depend_on_when_a_site_was_added(tmp_path, model):
    together = run(tmp_path / "a", model).store
    for site in SITES:
        apart = run(tmp_path / "b", model, sites=(site,)).store
    assert files(together.folder) == files(apart.folder)


def files(folder):
    """All bytes that a reader can come to see."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


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
def test_whatever_changes_the_numbers_never_reuses_a_row(tmp_path, model, change):
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


def test_the_code_is_part_of_the_identity(tmp_path, model, monkeypatch):
    first = run(tmp_path, model)
    monkeypatch.setattr(identity_module, "digest_code", lambda *packages: "other code")
    assert run(tmp_path, model).store.folder != first.store.folder


def test_a_layout_of_other_rows_is_never_read(tmp_path, model):
    store = run(tmp_path, model).store
    path = store.folder / "rows.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match="delete the folder"):
        run(tmp_path, model)


def test_a_finished_cache_is_read_where_nothing_can_be_written(tmp_path, model, monkeypatch):
    run(tmp_path, model)

    def read_only(*arguments):
        raise AssertionError

    monkeypatch.setattr("probekit.activations.store.write_atomic", read_only)
    monkeypatch.setattr(ActivationStore, "locked", read_only)
    assert run(tmp_path, model).computed == 0


def test_what_a_killed_writer_left_half_written_is_swept(tmp_path, model):
    store = run(tmp_path, model).store
    left = store.folder / SITES[0] / ".00000.safetensors.x1y2"
    left.write_bytes(b"half")
    # The writer of these files holds no lock: it may be another run that has just begun.
    beginning = store.folder / ".rows.safetensors.a9b8"
    beginning.write_bytes(b"half")
    run(tmp_path, model, sites=(*SITES, "blocks.1.hook_mlp_out"))
    assert not left.exists()
    assert beginning.exists()


def test_opening_with_another_expectation_lists_what_differs(tmp_path, model):
    store = run(tmp_path, model).store
    expected = dataclasses.replace(store.identity, weights="ab", dtype="float16")
    with pytest.raises(StoreMismatchError) as error:
        ActivationStore.open(store.folder, expect=expected)
    assert "weights: there" in str(error.value)
    assert "dtype: there 'float32', here 'float16'" in str(error.value)
    assert "tokens" not in str(error.value)


def _capture_slowly(root, seed):
    """Run in a process of its own, with pauses, so that kills find it at work."""
    capturing.SHARD_ROWS, capturing.BATCH_TOKENS = 16, 60
    commit = ActivationStore.commit

    def slow(self, *arguments):
        time.sleep(0.01)
        commit(self, *arguments)

    ActivationStore.commit = slow
    run(root, GPT2(TINY, seed=1))


def test_killed_at_random_moments_and_resumed_gives_the_same_bytes(tmp_path, model):
    expected = run(tmp_path / "whole", model).store
    root = tmp_path / "killed"
    context = multiprocessing.get_context("fork")
    moments = random.Random(0)
    interrupted = 0
    for _ in range(20):
        committed = len(list(root.rglob("0*.json")))
        process = context.Process(target=_capture_slowly, args=(root, 0))
        process.start()
        process.join(moments.uniform(0.02, 0.25))
        interrupted += process.is_alive()
        process.kill()
        process.join()
        assert len(list(root.rglob("0*.json"))) >= committed  # nothing committed is lost
        if process.exitcode == 0:
            shutil.rmtree(root)  # came to its end: start over, so that each kill finds work
    assert interrupted >= 10
    resumed = run(root, model)
    assert files(resumed.store.folder) == files(expected.folder)
    assert process.exitcode in (0, -signal.SIGKILL)


@pytest.mark.parametrize("damage", ["truncated", "lost", "record lost", "record broken"])
def test_a_shard_that_is_not_whole_is_made_again(tmp_path, model, damage):
    first = run(tmp_path, model)
    path = first.store.folder / SITES[3] / "00002.safetensors"
    expected = files(first.store.folder)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-7])
    elif damage == "lost":
        path.unlink()
    elif damage == "record lost":
        path.with_suffix(".json").unlink()
    else:
        path.with_suffix(".json").write_text("{")
    with pytest.raises(UnknownNameError, match="does not hold all of"):
        first.store.read(SITES[3])
    again = run(tmp_path, model)
    assert again.computed == 1
    assert files(again.store.folder) == expected


def test_one_flipped_bit_is_found_and_named(tmp_path, model):
    store = run(tmp_path, model).store
    store.verify()
    path = store.folder / SITES[-1] / "00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    message = r"1 files are not.*hook_resid_post/00001\.safetensors"
    with pytest.raises(StoreError, match=message):
        store.verify()
    with pytest.raises(StoreError, match=message):  # no run takes such rows for numbers
        run(tmp_path, model)
    # Nor one that goes on with the site after a kill.
    path.with_name("00002.json").unlink()
    with pytest.raises(StoreError, match=message):
        run(tmp_path, model)


def test_rows_of_another_site_or_store_are_made_again(tmp_path, model):
    store = run(tmp_path, model).store
    expected = files(store.folder)
    first, second = (store.folder / site for site in (SITES[0], SITES[-1]))
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    assert run(tmp_path, model).computed == 2 * len(store.shards)
    other = run(tmp_path, GPT2(TINY, seed=8)).store
    shutil.rmtree(first)
    shutil.copytree(other.folder / SITES[0], first)
    assert run(tmp_path, model).computed == len(store.shards)
    assert files(store.folder) == expected


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000, None])
def test_a_manifest_that_is_not_whole_is_made_again(tmp_path, model, content):
    store = run(tmp_path, model).store
    path = store.folder / "manifest.json"
    whole = path.read_bytes()
    path.unlink() if content is None else path.write_text(content)
    assert run(tmp_path, model).computed == 0
    assert path.read_bytes() == whole


@pytest.mark.parametrize("rows", [[True, False], [0.0], [-1], [10**6], [[0]]])
def test_rows_are_read_by_number_only(tmp_path, model, rows):
    store = ActivationStore.open(str(run(tmp_path, model).store.folder))
    with pytest.raises(ConfigError, match="rows must be numbers from 0 to"):
        store.read(SITES[0], np.array(rows))
    assert len(store.read(SITES[0], [])) == 0


def test_non_finite_rows_are_refused_by_site_and_row(tmp_path, model):
    model.wte.weight.data[7] = float("nan")
    tokens = [np.array([1, 2]), np.array([7])]
    with pytest.raises(StoreError, match=r"2 rows of blocks\.0.*first row 2"):
        run(tmp_path, model, tokens)
    assert not list(tmp_path.rglob("0*.json"))


def test_float16_overflow_is_refused_with_the_advice(tmp_path, model):
    model.wte.weight.data[7] = 1e6
    with pytest.raises(StoreError, match="store float32"):
        run(tmp_path, model, [np.array([1, 2]), np.array([7])], dtype="float16")
    run(tmp_path, model, [np.array([1, 2]), np.array([7])])


def test_sites_over_pairs_of_positions_are_refused(tmp_path, model):
    with pytest.raises(ConfigError, match="query_pos key_pos"):
        run(tmp_path, model, sites=("blocks.0.attn.hook_pattern",))
    with pytest.raises(ConfigError, match="bfloat16"):
        run(tmp_path, model, dtype="bfloat16")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_keeps_what_was_committed(tmp_path, model):
    """A real limit on the size of files, in a process of its own."""
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()

    def limited():
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
        try:
            run(tmp_path, model)
        except StoreError as error:
            answer.put(str(error))

    process = context.Process(target=limited)
    process.start()
    process.join(60)
    assert "Cannot write" in answer.get()
    assert not [path for path in tmp_path.rglob(".*") if path.name != ".lock"]
    run(tmp_path, model).store.verify()


def test_a_cache_folder_that_cannot_be_written_is_told(tmp_path, model):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StoreError, match="Cannot write"):
        run(blocked, model)


class Waiting:
    """A watcher that releases what it is told to wait for."""

    def __init__(self):
        self.messages = []

    def progress(self, step, done, total):
        pass

    def tell(self, message):
        self.messages.append(message)


def _hold(folder, held, let_go):
    with ActivationStore.open(folder).locked(print):
        held.set()
        let_go.wait(30)


def test_two_runs_on_one_cache_the_second_waits_and_then_reuses(tmp_path, model):
    first = run(tmp_path, model)
    context = multiprocessing.get_context("fork")
    held, let_go = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(first.store.folder, held, let_go))
    other.start()
    assert held.wait(30)
    watcher = Waiting()
    tell = watcher.tell
    watcher.tell = lambda message: (tell(message), let_go.set())
    tokens = make_tokens()
    sites = (*SITES, "blocks.1.hook_mlp_out")
    again = capture(
        model, "t", tokens, last_and_mean(tokens), sites, root=tmp_path, watcher=watcher
    )
    other.join(30)
    assert again.reused == first.computed
    assert "another run is writing" in watcher.messages[0]


def test_the_store_says_what_it_holds(tmp_path, model):
    store = ActivationStore.open(run(tmp_path, model).store.folder)
    assert store.sites == tuple(sorted(SITES))
    assert store.n_rows == 2 * len(make_tokens())
    with pytest.raises(UnknownNameError, match="resid_post"):
        store.read("blocks.3.hook_resid_pots")
    assert Path(store.folder / "manifest.json").exists()
