"""Independent workers compute each shard once; those of dead workers are computed again."""

import multiprocessing
import os
import signal
import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from probekit import files as disk
from probekit.activations.capture import MAX_WAITING, Work, in_background
from probekit.activations.upkeep import collect_garbage, remove_cache, shard_locks
from probekit.files import Disk
from probekit.model.families.gpt2 import GPT2
from probekit.pipeline.capture import jobs
from probekit.pipeline.capture.jobs import compute_shards
from probekit.pipeline.look.apply import stream_rows
from tests.activations.captures import SITES, files, last_and_mean, make_tokens, run, shard_file
from tests.model.reference import TINY

FORK = multiprocessing.get_context("fork")


def begin(root, model):
    tokens = make_tokens()
    return Work.begin(model, "t", tokens, last_and_mean(tokens), SITES, root=root, dtype="float32")


def _work(root, seed, before, answers):
    """Run a worker process that reports the start and end of each shard."""
    torch.set_num_threads(1)
    work = begin(root, GPT2(TINY, seed=1))
    compute = Work.compute

    def slow(self, missing):
        answers.put(("begins", seed, *missing))
        before()
        compute(self, missing)

    Work.compute = slow
    for done in compute_shards(work, seed):
        answers.put(("done", seed, done.shard))
    work.store.seal()


def start(root, seed, before, answers):
    """Start a worker that calls `before()` after locking a shard and before computing it."""
    process = FORK.Process(target=_work, args=(root, seed, before, answers))
    process.start()
    return process


def meet(workers):
    """Return a function that blocks until every worker has a first shard."""
    barrier, waited = FORK.Barrier(workers), []

    def wait():
        if not waited:
            waited.append(barrier.wait(100))

    return wait


def drain(answers):
    events = []
    while not answers.empty():
        events.append(answers.get())
    return events


@pytest.fixture
def answers():
    return FORK.SimpleQueue()


def test_three_workers_compute_each_shard_once_and_produce_the_same_bytes(tmp_path, model, answers):
    expected = run(tmp_path / "alone", model).store
    all_have_one = meet(3)
    for worker in [start(tmp_path / "many", seed, all_have_one, answers) for seed in range(3)]:
        worker.join(100)
        assert worker.exitcode == 0
    events = drain(answers)
    begun = [shard for what, _, shard in events if what == "begins"]
    assert sorted(begun) == list(range(expected.spec.sizes.shards))  # none twice, none left out
    assert len({seed for _, seed, _ in events}) == 3
    assert files(tmp_path / "many" / expected.identity.key) == files(expected.folder)


def test_the_shard_of_a_killed_worker_is_computed_by_another(tmp_path, model, answers):
    expected = run(tmp_path / "alone", model).store
    own = FORK.SimpleQueue()  # the killed process may hold its lock
    killed = start(tmp_path / "many", 0, partial(time.sleep, 1000), own)
    _, _, shard = own.get()
    store = begin(tmp_path / "many", model).store
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    assert shard_locks(store.files) == [f"{shard:05d}.claim"]
    start(tmp_path / "many", 1, partial(time.sleep, 0), answers).join(100)
    assert ("done", 1, shard) in drain(answers)
    store.files.sweep()
    assert files(store.folder) == files(expected.folder)


def test_the_shard_of_a_living_worker_is_waited_for(tmp_path, model, answers, monkeypatch):
    monkeypatch.setattr(disk, "WAITED", 0.1)
    slow = start(tmp_path, 0, partial(time.sleep, 1.0), answers)
    _, _, shard = answers.get()
    quick, messages = begin(tmp_path, model), []
    mine = [done.shard for done in compute_shards(quick, 1, SimpleNamespace(tell=messages.append))]
    slow.join(100)
    assert messages[0].startswith(f"waiting for process {slow.pid} on ")
    assert shard not in mine
    assert quick.missing_sites() == {}


def test_without_file_locks_a_timeout_detects_dead_workers(tmp_path, model, monkeypatch):
    work = begin(tmp_path, model)
    (work.store.folder / "00001.claim").touch()
    monkeypatch.setattr(Disk, "lock", lambda *_: None)
    monkeypatch.setattr(jobs, "PATIENCE", 0.3)
    start = time.monotonic()
    *_, last = compute_shards(work, 0)
    assert last.shard == 1
    assert time.monotonic() - start > 0.3
    assert work.missing_sites() == {}


def test_object_stores_are_shared_too(model, monkeypatch):
    work = begin("memory://locks", model)
    assert work.store.files.create("00000.claim", b"")
    monkeypatch.setattr(jobs, "PATIENCE", 0.1)
    shards = [done.shard for done in compute_shards(work, 0)]
    assert sorted(shards) == list(range(len(work.shards)))
    assert shards[-1] == 0
    assert shard_locks(work.store.files) == ["00000.claim"]
    assert remove_cache(work.store.folder) == []


def test_what_is_damaged_meanwhile_is_made_again(tmp_path, model):
    work = begin(tmp_path, model)
    done = compute_shards(work, 0)
    first = next(done)
    path = shard_file(work.store.folder, SITES[2], first.shard)
    path.write_bytes(path.read_bytes()[:-1])
    assert work.store.missing_sites(SITES, first.shard) == [SITES[2]]
    assert [(again.shard, again.sites) for again in done][-1] == (first.shard, 1)
    work.store.verify()


def test_gc_and_rm_remove_leftover_shard_locks(tmp_path, model):
    store = begin(tmp_path, model).store
    for name in ("00007.claim", "00008.claim"):
        (store.folder / name).touch()
    with (
        store.files.try_lock("00009.claim") as is_first_locked,
        store.files.try_lock("00009.claim") as is_second_locked,
    ):
        assert (is_first_locked, is_second_locked) == (True, False)
        assert set(collect_garbage(store.folder)) == {"00007.claim", "00008.claim"}
        assert shard_locks(store.files) == ["00009.claim"]
    assert shard_locks(store.files) == []
    (store.folder / "00007.claim").touch()
    assert remove_cache(store.folder) == []


def test_rows_do_not_depend_on_the_number_of_threads(model):
    tokens = make_tokens(200)
    before = torch.get_num_threads()
    found = []
    for n_threads in (1, 2, 3):
        torch.set_num_threads(n_threads)
        rows = stream_rows(model, tokens, last_and_mean(tokens), SITES)
        found.append([values[site] for _, values in rows for site in SITES])
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(np.array_equal, found[0], other))


def test_calls_run_in_another_thread_in_order():
    done = []
    with in_background() as submit:
        for number in range(50):
            submit(lambda n: done.append((n, threading.get_ident())), number)
    assert [n for n, _ in done] == list(range(50))
    assert {thread for _, thread in done}.isdisjoint({threading.get_ident()})
    assert len({thread for _, thread in done}) == 1


def test_no_more_than_a_few_pieces_wait():
    gate, given = threading.Event(), []

    def give():
        with in_background() as submit:
            for number in range(10):
                submit(gate.wait, 30)
                given.append(number)

    giver = threading.Thread(target=give)
    giver.start()
    giver.join(0.3)
    waiting = len(given)
    gate.set()
    giver.join(30)
    assert waiting == MAX_WAITING
    assert len(given) == 10


def test_a_failure_is_raised_and_nothing_is_done_after_it():
    gate, done = threading.Event(), []

    def fail():
        gate.wait(30)
        raise ZeroDivisionError

    def work():
        with in_background() as submit:
            submit(lambda: done.append("before"))
            submit(fail)
            submit(lambda: done.append("behind"))  # waits already when the other fails
            gate.set()

    with pytest.raises(ZeroDivisionError):
        work()
    assert done == ["before"]


def test_a_failure_of_the_last_piece_is_raised_too():
    with pytest.raises(ZeroDivisionError), in_background() as submit:
        submit(lambda: 1 / 0)


def test_when_the_block_fails_what_waits_is_dropped():
    gate, done = threading.Event(), []

    def first():
        gate.wait(30)
        done.append("first")

    def fail():
        with in_background() as submit:
            submit(first)
            submit(lambda: done.append("second"))
            threading.Timer(0.1, gate.set).start()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert done == ["first"]
