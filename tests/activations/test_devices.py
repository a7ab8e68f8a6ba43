"""Captures on GPUs, which are simulated: the same bytes on several, and after one is lost."""

import threading

import numpy as np
import pytest
import torch

from probekit.activations import capture as capturing
from probekit.activations import forward, records
from probekit.activations.capture import Work, fill
from probekit.activations.store import ActivationStore
from probekit.activations.upkeep import copy_cache, remove_cache
from probekit.data.positions import RowPlan
from probekit.errors import DeviceLostError
from probekit.model.families.gpt2 import GPT2
from probekit.model.families.table import in_dtype, load_model
from tests.activations.captures import SITES, capture, files, last_and_mean, make_tokens, run
from tests.fake_gpus import Stream, fake_gpus
from tests.model.reference import TINY

DEVICES = ["cuda:0", "cuda:1"]


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setitem(records.BATCH_TOKENS, "cuda", 60)
    forward._copies_from.cache_clear()
    with fake_gpus():
        yield
    forward._copies_from.cache_clear()


@pytest.fixture
def saved(model, tmp_path):
    """The folder of the model."""
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_spread_network_fills_the_same_cache(gpus, saved, tmp_path, in_memory):
    one, several = load_model(saved, device="cuda:0"), load_model(saved, device=DEVICES)
    if not in_memory:
        several = load_model(saved, device=DEVICES, in_memory=False)
    expected, found = run(tmp_path / "one", one), run(tmp_path / "several", several)
    assert files(found.store.folder) == files(expected.store.folder)
    assert found.store.identity.device == "cuda"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_are_those_of_the_cpu_and_copied_on_a_stream(gpus, model, saved, tmp_path, dtype):
    found = run(tmp_path / "gpu", load_model(saved, device=DEVICES), dtype=dtype).store
    expected = run(tmp_path / "cpu", model, dtype=dtype).store
    for site in SITES:
        rows, scale = expected.read(site), np.abs(expected.read(site)).max()
        tolerance = 1e-5 if dtype == "float32" else 1e-2
        np.testing.assert_allclose(found.read(site), rows, rtol=0, atol=tolerance * scale)
    for name in DEVICES:
        stream = forward._copies_from(torch.device(name))
        assert isinstance(stream, Stream)
        assert len(stream.copies) == len(stream.waited_for) > 0
        assert {str(one.device) for one in stream.waited_for} == {name}


def test_a_shard_is_written_while_the_next_one_is_computed(tmp_path, model, monkeypatch):
    run_batches, begun = forward.run_batches, [threading.Event() for _ in range(100)]
    n_batches = iter(range(100))
    publish = ActivationStore._commit

    def computed(*arguments):
        begun[next(n_batches)].set()
        yield from run_batches(*arguments)

    def committed(store, record):
        if record.shard == 0:  # waits for the first batch of the next shard
            assert begun[len(work.shards[0])].wait(30)
        publish(store, record)

    monkeypatch.setattr(forward, "run_batches", computed)
    monkeypatch.setattr(ActivationStore, "_commit", committed)
    tokens, how = make_tokens(), {"root": tmp_path, "dtype": "float32"}
    work = Work.begin(model, "t", tokens, last_and_mean(tokens), SITES, **how)
    assert fill(work, tmp_path).computed == len(work.shards) * len(SITES)


LOST = [
    torch.AcceleratorError("CUDA error: unspecified launch failure"),
    RuntimeError("CUDA error: device-side assert triggered\nCompile with ..."),
]


@pytest.mark.parametrize("lost", LOST, ids=["accelerator", "runtime"])
def test_after_a_lost_device_the_same_bytes_are_written(tmp_path, model, monkeypatch, lost):
    expected = run(tmp_path / "whole", model)
    run_batches, left = forward.run_batches, iter(range(5))

    def failing(*arguments):
        if next(left, None) is None:
            raise lost
        return run_batches(*arguments)

    monkeypatch.setattr(capturing.forward, "run_batches", failing)
    words = r"The device cpu was lost: CUDA error: .*\. Finished shards .* same command resumes"
    with pytest.raises(DeviceLostError, match=words):
        run(tmp_path / "lost", model)
    [folder] = (tmp_path / "lost").iterdir()
    n_finished = len(ActivationStore.open(folder).records(SITES[0]))
    assert n_finished > 0
    assert not [path for path in folder.rglob(".*.safetensors*") if path.is_file()]
    monkeypatch.setattr(capturing.forward, "run_batches", run_batches)
    resumed = run(tmp_path / "lost", GPT2(TINY, seed=1))
    assert resumed.reused == n_finished * len(SITES)
    assert files(resumed.store.folder) == files(expected.store.folder)


def test_errors_of_half_precision_are_measured_and_kept(tmp_path, model, monkeypatch):
    monkeypatch.setattr(capturing, "ROWS_COMPARED", 5)
    tokens, half = make_tokens(), GPT2(TINY, seed=1).requires_grad_(False).bfloat16()
    plan = last_and_mean(tokens)
    counts = np.diff(plan.offsets)
    tokens_of_rows = RowPlan(
        np.repeat(plan.example, counts), plan.positions, np.arange(len(plan.positions) + 1)
    )

    def begin(sites, **how):
        how = {"root": tmp_path / "caches", "dtype": "float32"} | how
        return Work.begin(half, "t", tokens, plan, sites, **how)

    fill(begin(SITES[:2], exact=lambda: model), tmp_path)
    store = fill(begin(SITES, exact=lambda: model), tmp_path).store
    of_tokens, exact = (
        capture(one, "t", tokens, tokens_of_rows, SITES, root=tmp_path / "exact").store
        for one in (half, model)
    )
    assert exact.identity.key != store.identity.key
    assert exact.errors() == {}
    first = begin(SITES).shards[0][0].rows
    places = np.concatenate([np.arange(*plan.offsets[row : row + 2]) for row in first])
    places = places[np.linspace(0, len(places) - 1, 5).astype(int)]
    for site in SITES:
        x, y = (one.read(site, places).reshape(len(places), -1) for one in (of_tokens, exact))
        measured = np.linalg.norm(x - y, axis=1) / np.linalg.norm(y, axis=1)
        expected = (np.median(measured), measured.max())
        assert store.errors()[site] == pytest.approx(expected, rel=2e-3)
        assert 1e-4 < expected[0] < expected[1] < 0.02
    copy, _ = copy_cache(store.folder, tmp_path / "copies")
    assert copy.errors() == store.errors()
    assert set(copy.errors(SITES[1:])) == set(SITES[1:])
    (store.folder / records.ERRORS).write_text("{}")
    assert store.errors() == {}
    assert remove_cache(store.folder) == []


def test_a_network_in_memory_is_compared_with_its_weights_in_float32(model):
    half = GPT2(TINY, seed=1).requires_grad_(False).bfloat16()
    exact, tokens = in_dtype(half, torch.float32), torch.tensor([[3, 1, 4, 1, 5]])
    assert exact.dtype == torch.float32
    model.load_state_dict({name: weight.float() for name, weight in half.state_dict().items()})
    assert torch.equal(exact(tokens), model(tokens))
