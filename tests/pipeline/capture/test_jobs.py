"""Captures by several processes: identical bytes, killed or interrupted workers, and plans."""

import json
import os
import subprocess
import sys
from functools import partial

import pytest

from probekit.activations import records
from probekit.activations.store import ActivationStore
from probekit.activations.upkeep import caches_in, summarize
from probekit.errors import ConfigError, DamagedError, MissingError, StoreError, StoreMismatchError
from probekit.experiment.loader import load_experiment
from probekit.pipeline.capture import jobs
from probekit.pipeline.capture.captures import capture_only
from probekit.pipeline.capture.jobs import plan_tokens, work_at
from probekit.pipeline.engines.table import prepare
from tests.activations.captures import files
from tests.interrupting import interrupt
from tests.pipeline.scale import N_SHARDS, Heard, load, write_experiment


def captured(experiment, folder, watcher, root=None):
    """The capture by two processes in a folder."""
    crew = partial(jobs.by_processes, n_workers=2, device="cpu", n_threads=1, watcher=watcher)
    root = root or folder / "caches"
    return capture_only(experiment, cache_root=root, watcher=watcher, crew=crew)["task"]


def probekit(*arguments, cwd):
    """A command in a process of its own, and how it is started."""
    env = os.environ | {"PROBEKIT_CACHE": str(cwd / "caches")}
    streams = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE) | {"text": True}
    return [sys.executable, "-m", "probekit", *arguments], {"cwd": cwd, "env": env, **streams}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The capture of a single process."""
    folder = tmp_path_factory.mktemp("alone")
    return capture_only(load(folder), cache_root=folder / "caches")["task"]


def test_two_processes_write_the_same_bytes_as_one(tmp_path, alone):
    heard = Heard()
    both = captured(load(tmp_path), tmp_path, heard)
    assert (both.root, both.computed) == (alone.root, 3 * N_SHARDS)  # two sites, and the output
    assert files(both.store.folder) == files(alone.store.folder)
    assert len(heard.done) == 1 + N_SHARDS
    assert (heard.done[-1], heard.messages) == (alone.store.n_rows, [])


def test_separately_started_workers_write_the_same_bytes_as_one_process(
    tmp_path, alone, call, monkeypatch
):
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "caches"))
    write_experiment(tmp_path)
    laid_out = call("cache", "scale.yaml", "--workers", "0").stdout
    [cache] = caches_in(tmp_path / "caches")
    assert f"in {N_SHARDS} shards" in laid_out
    assert laid_out.strip().endswith(f"probekit worker {cache}")
    command, how = probekit("worker", "caches", "--threads", "1", "--json", cwd=tmp_path)
    workers = [subprocess.Popen(command, **how) for _ in range(2)]
    outputs = [worker.communicate(timeout=600) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    lines = [json.loads(line) for out, _ in outputs for line in out.splitlines()]
    assert sorted(line["shard"] for line in lines) == list(range(N_SHARDS))  # no shard twice
    assert {line["sites"] for line in lines} == {2}
    assert files(cache) == files(alone.store.folder)
    late = call("worker", "caches", "--threads", "1", "--json")
    assert (late.code, late.stdout) == (0, "")
    assert "0 shards computed; no other shard is ready in" in late.stderr


@pytest.fixture
def children(monkeypatch):
    """The processes that are started."""
    started, popen = [], subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(jobs.subprocess, "Popen", start)
    return started


def test_other_workers_compute_the_shards_of_a_killed_worker(tmp_path, alone, children):
    heard = Heard(lambda done: done and children[0].kill())
    left = captured(load(tmp_path), tmp_path, heard)
    assert left.root == alone.root
    assert "1 of 2 workers failed" in heard.messages[0]
    assert "killed by signal 9" in heard.messages[0]
    left.store.files.sweep()
    assert files(left.store.folder) == files(alone.store.folder)


def test_capture_fails_if_all_workers_are_killed_and_resumes_later(tmp_path, alone, children):
    heard = Heard(lambda done: [child.kill() for child in children if done])
    experiment = load(tmp_path)
    with pytest.raises(StoreError, match=r"of 4 shards are missing.*run the same command"):
        captured(experiment, tmp_path, heard)
    [cache] = caches_in(tmp_path / "caches")
    assert sum(summarize(cache).sites.values())
    whole = captured(experiment, tmp_path, Heard())
    assert whole.reused
    assert whole.root == alone.root
    assert files(cache) == files(alone.store.folder)


def test_ctrl_c_keeps_committed_shards(tmp_path, call, monkeypatch):
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "caches"))
    write_experiment(tmp_path)
    command, how = probekit("cache", "scale.yaml", "--workers", "2", cwd=tmp_path)
    code, errors = interrupt(command, lambda: list(tmp_path.glob("caches/*/*/0*.json")), **how)
    assert code == 130, errors
    assert "cache scale.yaml --workers 2" in errors
    assert "Traceback" not in errors
    [cache] = caches_in(tmp_path / "caches")
    assert sum(summarize(cache).sites.values())
    assert not list(cache.glob("*.claim"))
    ActivationStore.open(cache).verify()
    assert call("cache", "scale.yaml", "--workers", "2").code == 0
    assert not list(cache.glob("*.claim"))
    ActivationStore.open(cache).verify()


def test_worker_reports_errors(tmp_path):
    with pytest.raises(MissingError, match=r"contains no cache.*--workers 0"):
        list(work_at(tmp_path))
    experiment = load(tmp_path)
    store = jobs.lay_out(experiment, cache_root=tmp_path / "caches")["task"]
    [(name, job)] = jobs.jobs_in(store.files).items()
    assert job.experiment == experiment.on_device("cpu")
    (tmp_path / "scale.csv").write_text("text,label\n" + "one,a\ntwo,b\n" * 9)
    with pytest.raises(StoreMismatchError, match="tokens: stored"):
        list(work_at(store.folder))
    (store.folder / name).write_bytes((store.folder / name).read_bytes().replace(b"mini", b"maxi"))
    with pytest.raises(DamagedError, match=r"job\.json is damaged"):
        list(work_at(store.folder))
    (store.folder / name).unlink()
    store.files.begin("hook_embed")
    with pytest.raises(MissingError, match="is incomplete and has no job"):
        list(work_at(store.folder))


def test_several_workers_require_exclusive_creation(tmp_path, monkeypatch):
    monkeypatch.setattr("probekit.activations.object_store.creates_atomically", lambda _: False)
    with pytest.raises(StoreError, match="several writers would overwrite each other"):
        captured(load(tmp_path), tmp_path, Heard(), "memory://crews")


def test_plan_equals_numbers_computed_by_hand():
    numbers = plan_tokens("gpt2", 10_240_000, sites=["blocks.*.hook_resid_post"], device="cuda:1")
    assert (numbers["device"], numbers["tokens_of_a_batch"]) == ("cuda", 16_384)
    assert numbers["rows_of_a_site"] == 10_240_000
    # A batch of 16,384 tokens has 16 sequences of 1,024, which is more than one shard.
    assert numbers["shards_of_a_site"] == 625
    assert numbers["files"] == 2 * 12 * 625 + 5  # one has the errors of bfloat16
    assert numbers["bytes"] == pytest.approx(12 * 10_240_000 * 768 * 2, rel=0.01)
    on_cpu = plan_tokens("gpt2", 10_240_000, sites=["hook_embed"], dtype="float32")
    assert on_cpu["shards_of_a_site"] == 2500  # two batches of two sequences each
    assert on_cpu["bytes"] == pytest.approx(10_240_000 * 768 * 4, rel=0.02)


# Rows with an axis of heads, which are means of several positions, of two models.
MEANS = ["capture.sites=[blocks.0.attn.hook_z, blocks.1.hook_resid_post]", "capture.dtype=float16"]
MEANS += ["model.dtype=bfloat16", "model.random_weights=1", "tokens.position.at=mean"]


@pytest.mark.parametrize("overrides", [[], MEANS])
def test_plan_equals_the_files_and_bytes_of_the_capture(tmp_path, monkeypatch, overrides):
    monkeypatch.setattr(records, "SHARD_ROWS", 60)
    monkeypatch.setitem(records.BATCH_TOKENS, "cpu", 60)
    experiment = load_experiment(write_experiment(tmp_path, n_texts=100), overrides)
    numbers = jobs.plan_capture(prepare(experiment))
    captured = capture_only(experiment, cache_root=tmp_path / "caches")
    there = [path for path in (tmp_path / "caches").rglob("*") if path.is_file()]
    assert numbers["caches"] == len(captured)
    assert numbers["shards_of_a_site"] == len(captured["task"].store.shards)
    assert numbers["files"] == len(there)
    assert numbers["bytes"] == sum(path.stat().st_size for path in there if path.name != ".lock")


def test_a_site_that_cannot_be_stored_is_refused():
    with pytest.raises(ConfigError, match="query_pos key_pos"):
        plan_tokens("gpt2", 5, sites=["blocks.0.attn.hook_pattern"])
