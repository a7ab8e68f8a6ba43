"""Runs whose sites and edits several processes do, with the tables of a single process."""

import errno
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from probekit.activations.store import ActivationStore
from probekit.errors import (
    ConfigError,
    MissingError,
    OutOfMemoryError,
    StoreError,
    StoreMismatchError,
)
from probekit.experiment.loader import load_experiment
from probekit.files import try_lock
from probekit.pipeline.experiment import run_job
from probekit.pipeline.experiment.run import run
from probekit.pipeline.experiment.run_job import at_work, work_on
from probekit.pipeline.measure import run_folder
from probekit.pipeline.measure.probing import SiteJob
from probekit.pipeline.measure.run_folder import RunFolder, do_task, until_done
from probekit.provenance import PART_VERSIONS
from probekit.results.record import STARTED, runs_in_progress
from tests.pipeline.intervene.cause_experiment import write_experiment
from tests.pipeline.planted import QUICK, QUICK_SITES, helped
from tests.pipeline.scale import Heard


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    monkeypatch.setattr(run_folder, "PAUSE", 0.05)


def tables(folder):
    """The bytes of all tables and results of sites of a run."""
    paths = [*folder.rglob("*.csv"), *folder.glob("sites/**/*"), *folder.glob("causes/parts/*")]
    paths = [path for path in paths if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in paths}


def test_workers_measure_every_site_once_and_the_tables_are_those_of_one_process(planted, own):
    start = partial(own.run, *QUICK, workers=0, page=False)
    shared, done = helped(start, own.folder / "runs", n_workers=3)
    names = [task.task for of_worker in done for task in of_worker]
    assert sorted(names) == sorted(f"{name} at last" for name in ("baselines", *QUICK_SITES))
    assert tables(shared.folder) == tables(planted.run(*QUICK).folder)
    # The time of the run, not of a task: two processes without locks write the same bytes.
    facts = [json.loads(path.read_text()) for path in shared.folder.glob("probes/**/*.json")]
    assert {one["facts"]["created"] for one in facts} == {shared.record["created"]}
    assert not (shared.folder / "job.json").exists()
    assert not (shared.folder / "claims").exists()


def test_workers_go_on_when_the_run_process_died_and_it_resumes_with_their_results(
    planted, own, monkeypatch
):
    def die(*_):
        raise KeyboardInterrupt  # as if it were killed while it waits

    with monkeypatch.context() as patch:
        patch.setattr(run_job, "pause", die)
        with pytest.raises(KeyboardInterrupt):
            own.run(*QUICK, workers=0, page=False)
    root = own.folder / "runs"
    (folder,) = runs_in_progress(root)
    assert len(list(work_on(root))) == 1 + len(QUICK_SITES)
    heard = Heard()
    assert list(work_on(root, watcher=heard)) == []  # a late worker does not wait
    (message,) = heard.messages
    assert message.startswith(f"{folder} has not finished, and no process runs it: ")
    with monkeypatch.context() as patch:
        patch.setattr(SiteJob, "__call__", None)  # would fail if a site were measured again
        own.run(*QUICK, workers=0, page=False)
    assert tables(folder) == tables(planted.run(*QUICK).folder)


def test_a_worker_reports_only_runs_that_have_not_finished_meanwhile(tmp_path, monkeypatch):
    finished, dead = folders = [tmp_path / name / "key" for name in ("finished", "dead")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / STARTED).touch()
    (dead / run_job.JOB).touch()

    def work(*_):
        (finished / STARTED).unlink()
        yield None

    monkeypatch.setattr(run_job, "_work_on_run", work)
    heard = Heard()
    assert list(work_on(tmp_path, watcher=heard)) == []
    (message,) = heard.messages
    assert message.startswith(f"{dead} has not finished")


def test_edits_are_tasks_of_the_same_workers(tmp_path):
    erase = {"do": "erase", "along": "mean_difference", "sites": "chosen", "draws": 59}
    named = [{"do": "patch", "from": "counterfactual", "sites": "blocks.[15].hook_resid_post"}]
    path, sites = write_experiment(tmp_path), "capture.sites=[blocks.1.hook_resid_post]"
    experiment = load_experiment(path, [sites, f"interventions={json.dumps([*named, erase])}"])
    alone = run(experiment, out=tmp_path / "alone", workers=1, page=False, progress=False).folder
    start = partial(run, experiment, out=tmp_path / "runs", workers=0, page=False, progress=False)
    shared, (done,) = helped(start, tmp_path / "runs")
    assert "answers without edits" in {task.task for task in done}
    assert tables(shared.folder) == tables(alone)


def test_sites_that_are_copied_to_this_machine_are_measured_first_from_the_copy(
    planted, own, monkeypatch
):
    cache = Path(planted.run(*QUICK).record["caches"]["task"])
    copy = shutil.copytree(cache, own.folder / "copies" / cache.name)
    shutil.rmtree(copy / QUICK_SITES[0])
    read, original = [], ActivationStore.read

    def noted(store, site, *arguments):
        read.append((store.folder, site))
        return original(store, site, *arguments)

    monkeypatch.setattr(ActivationStore, "read", noted)
    start = partial(own.run, *QUICK, workers=0, page=False)
    _, (done,) = helped(start, own.folder / "runs", cache_root=copy.parent)
    assert done[0].task.startswith(QUICK_SITES[1])
    # The run itself only reads the best site, from the cache, for the scatter plot.
    assert read[:2] == [(copy, QUICK_SITES[1]), (cache, QUICK_SITES[0])]


@pytest.fixture
def interrupted(own, monkeypatch):
    """The folder of a run that was interrupted before its first site."""
    with monkeypatch.context() as patch:
        patch.setattr(SiteJob, "__call__", None)
        with pytest.raises(TypeError):
            own.run(*QUICK, page=False)
    (folder,) = runs_in_progress(own.folder / "runs")
    return folder


def test_a_worker_finds_caches_of_a_relative_folder_from_another_folder(
    planted, own, monkeypatch, tmp_path, request
):
    monkeypatch.chdir(planted.cache.parent)
    own.cache = Path(planted.cache.name)
    request.getfixturevalue("interrupted")
    monkeypatch.chdir(tmp_path)
    assert len(list(work_on(own.folder / "runs"))) == 1 + len(QUICK_SITES)


def test_a_worker_with_other_code_is_refused_and_one_of_all_runs_passes_over_the_run(
    own, interrupted, monkeypatch
):
    monkeypatch.setitem(PART_VERSIONS, next(iter(PART_VERSIONS)), 99)
    with pytest.raises(StoreMismatchError, match="differs from the run in parts"):
        list(work_on(interrupted))
    heard = Heard()
    assert list(work_on(own.folder / "runs", watcher=heard)) == []
    (message,) = heard.messages
    assert message.startswith(f"{interrupted} is passed over: This worker differs")


def test_a_worker_waits_for_the_process_of_a_run_and_then_does_what_it_passed_over(
    planted, own, interrupted
):
    (interrupted / "job.json").write_text("{}")
    heard = Heard()
    with ThreadPoolExecutor() as threads:
        worker = threads.submit(list, work_on(own.folder / "runs", wait=60, watcher=heard))
        while not heard.messages and not worker.done():
            time.sleep(0.01)
        shared = own.run(*QUICK, workers=0, page=False)
        assert len(worker.result()) == 1 + len(QUICK_SITES)
    (message,) = heard.messages
    assert "job.json is damaged" in message
    assert tables(shared.folder) == tables(planted.run(*QUICK).folder)


def test_a_worker_ends_if_the_folder_of_the_run_is_deleted(interrupted):
    tasks = work_on(interrupted)
    next(tasks)
    shutil.rmtree(interrupted)
    assert list(tasks) == []
    assert not interrupted.exists()


def test_a_run_ends_if_its_folder_is_deleted_while_it_waits(own, monkeypatch):
    monkeypatch.setattr(run_job, "pause", lambda *_: shutil.rmtree(own.folder / "runs"))
    with pytest.raises(StoreError, match="was deleted or changed during the run"):
        own.run(*QUICK, workers=0, page=False)


def test_the_job_of_a_killed_run_is_removed_before_the_next_one_captures(interrupted):
    RunFolder(interrupted, "now")
    assert list(work_on(interrupted)) == []


def test_a_worker_that_cannot_write_the_folder_is_refused(interrupted, monkeypatch):
    opened = os.open

    def refuse(path, flags, *mode):
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(path, flags, *mode)

    with try_lock(interrupted / ".lock"), monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(StoreError, match="Read-only file system"):
            list(work_on(interrupted.parent))


def test_a_run_ends_with_the_error_of_a_failed_worker_unless_another_is_left(
    planted, own, monkeypatch
):
    def fail(job, task):
        raise OutOfMemoryError("There is not enough memory.")

    root, heard = own.folder / "runs", Heard()
    start = partial(own.run, *QUICK, workers=0, page=False, watcher=heard)
    with ThreadPoolExecutor() as threads:
        running = threads.submit(start)
        while not list(root.rglob("job.json")):
            time.sleep(0.01)
        (folder,) = runs_in_progress(root)
        with monkeypatch.context() as patch, at_work(folder):  # another worker, without a task yet
            patch.setattr(SiteJob, "_measured", fail)
            with pytest.raises(OutOfMemoryError):
                list(work_on(root))
            while "has failed: There is not enough memory." not in heard.messages[-1]:
                time.sleep(0.01)
            assert not running.done()
        with pytest.raises(StoreError, match=r"not enough memory\. No worker is left"):
            running.result()
    # The same command resumes: errors of earlier workers do not end it.
    shared, _ = helped(start, root)
    assert tables(shared.folder) == tables(planted.run(*QUICK).folder)


def test_a_run_reports_a_killed_worker_and_waits_for_another(planted, own):
    messages = (heard := Heard()).messages
    with ThreadPoolExecutor() as threads:
        running = threads.submit(own.run, *QUICK, workers=0, page=False, watcher=heard)
        while not messages or "waiting for workers" not in messages[-1]:
            time.sleep(0.01)
        (folder,) = runs_in_progress(own.folder / "runs")
        worker = at_work(folder)
        with pytest.raises(KeyboardInterrupt), worker:
            raise KeyboardInterrupt  # its lock is released, as by a kill
        while "was stopped" not in messages[-1]:
            time.sleep(0.01)
        list(work_on(folder))
        assert running.result().folder == folder


def test_a_worker_with_other_data_is_refused(own, interrupted):
    own.rows.iloc[2:].to_csv(own.folder / "rows.csv", index=False)
    with pytest.raises(StoreMismatchError, match="differs from the run in data"):
        list(work_on(interrupted))


def test_a_task_is_done_by_one_process_at_a_time(tmp_path):
    task, unread = (tmp_path, Path("sites/a.json")), lambda: None
    fail = partial(pytest.fail, "computed twice")
    # Another process tries while the first one computes, and when it has computed.
    assert do_task(*task, unread, lambda: [do_task(*task, unread, fail)]) == [None]
    assert do_task(*task, lambda: "saved", fail) is None


def test_tasks_of_others_are_attempted_again_after_a_pause():
    events = []

    def attempt(tasks):
        for task in tasks:
            events.append(task)
            # Others do "b" until the second pause.
            yield None if task == "b" and events.count("pause") < 2 else task.upper()

    found = until_done(["a", "b"], attempt, lambda: events.append("pause"))
    assert dict(found) == {"a": "A", "b": "B"}
    assert events == ["a", "b", "b", "pause", "b", "pause", "b"]


def test_a_machine_without_the_folder_of_the_run_is_named(tmp_path):
    with pytest.raises(MissingError, match=r"absent does not exist on .* all machines share"):
        list(work_on(tmp_path / "absent"))


def test_a_device_that_is_absent_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--device warp"):
        list(work_on(tmp_path, device="warp"))
