"""Runs whose sites and edits several processes do, with the tables of a single process."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from probekit.activations.store import ActivationStore
from probekit.errors import DamagedError, StoreMismatchError
from probekit.experiment.loader import load_experiment
from probekit.pipeline.experiment import run_job
from probekit.pipeline.experiment.run import run
from probekit.pipeline.experiment.run_job import work_on
from probekit.pipeline.measure import run_folder
from probekit.pipeline.measure.probing import SiteJob
from probekit.pipeline.measure.run_folder import do_task, until_done
from probekit.provenance import PART_VERSIONS
from probekit.results.record import runs_in_progress
from tests.pipeline.intervene.cause_experiment import write_experiment
from tests.pipeline.planted import QUICK, QUICK_SITES, helped
from tests.pipeline.scale import Heard


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    monkeypatch.setattr(run_folder, "_PAUSE", 0.05)


def tables(folder):
    """The bytes of all tables and results of sites of a run."""
    paths = [*folder.rglob("*.csv"), *folder.glob("sites/**/*"), *folder.glob("causes/parts/*")]
    paths = [path for path in paths if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in paths}


def test_workers_measure_every_site_once_and_the_tables_are_those_of_one_process(planted, own):
    alone = planted.run(*QUICK)
    start = partial(own.run, *QUICK, workers=0, page=False)
    shared, done = helped(start, own.folder / "runs", n_workers=3)
    names = [task.task for of_worker in done for task in of_worker]
    assert sorted(names) == sorted(f"{name} at last" for name in ("baselines", *QUICK_SITES))
    assert tables(shared.folder) == tables(alone.folder)
    # The time of the run, not of a task: two processes without locks write the same bytes.
    facts = [json.loads(path.read_text()) for path in shared.folder.glob("probes/**/*.json")]
    assert {one["facts"]["created"] for one in facts} == {shared.record["created"]}
    assert not (shared.folder / "job.json").exists()
    assert not (shared.folder / "claims").exists()


def test_workers_go_on_when_the_run_process_died_and_it_resumes_with_their_results(
    planted, own, monkeypatch
):
    def die():
        raise KeyboardInterrupt  # as if it were killed while it waits

    with monkeypatch.context() as patch:
        patch.setattr(run_job, "pause", die)
        with pytest.raises(KeyboardInterrupt):
            own.run(*QUICK, workers=0, page=False)
    root = own.folder / "runs"
    (folder,) = runs_in_progress(root)
    assert len(list(work_on(root))) == 1 + len(QUICK_SITES)
    assert list(work_on(root)) == []  # a late worker has nothing to do and does not wait
    with monkeypatch.context() as patch:
        patch.setattr(SiteJob, "__call__", None)  # would fail if a site were measured again
        own.run(*QUICK, workers=0, page=False)
    assert tables(folder) == tables(planted.run(*QUICK).folder)


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


def test_a_worker_with_other_code_is_refused(interrupted, monkeypatch):
    monkeypatch.setitem(PART_VERSIONS, next(iter(PART_VERSIONS)), 99)
    with pytest.raises(StoreMismatchError, match="differs from the run in parts"):
        list(work_on(interrupted))


def test_a_run_that_was_given_up_does_not_stop_a_worker_of_all_runs(own, interrupted, monkeypatch):
    monkeypatch.setitem(PART_VERSIONS, next(iter(PART_VERSIONS)), 99)
    heard = Heard()
    assert list(work_on(own.folder / "runs", watcher=heard)) == []
    (message,) = heard.messages
    assert message.startswith(f"{interrupted} is passed over: This worker differs")


def test_a_worker_with_other_data_is_refused(own, interrupted):
    own.rows.iloc[2:].to_csv(own.folder / "rows.csv", index=False)
    with pytest.raises(StoreMismatchError, match="differs from the run in data"):
        list(work_on(interrupted))


def test_a_damaged_job_is_reported(interrupted):
    (interrupted / "job.json").write_text("{}")
    with pytest.raises(DamagedError, match=r"job\.json"):
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
