"""Captures on a Ray cluster of two nodes, also if one of them fails."""

import signal
import sys
import time
from functools import partial

import pytest

from probekit.activations.capture import Captured, Work
from probekit.errors import ConfigError, MissingError, StoreError
from probekit.pipeline.capture.captures import capture_only
from probekit.pipeline.capture.jobs import work_at
from probekit.pipeline.experiment import ray_workers
from probekit.pipeline.experiment.ray_workers import by_ray, tasks_by_ray
from tests.activations.captures import files
from tests.pipeline.planted import QUICK
from tests.pipeline.scale import N_SHARDS, Heard, load

ray = pytest.importorskip("ray", reason="Ray is not there: pip install -e '.[ray]'")
cluster_utils = pytest.importorskip("ray.cluster_utils")

# Resources that Ray itself does not close.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    head = {"num_cpus": 1, "include_dashboard": False}
    there = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no node has the tests
    ray.init(address=there.address, log_to_driver=False, logging_level="error")
    yield there
    ray.shutdown()
    there.shutdown()


def capture(experiment, root, heard, crew=by_ray, **options) -> Captured:
    hired = partial(crew, **{"n_workers": None, "device": "cpu", "watcher": heard} | options)
    return capture_only(experiment, cache_root=root, watcher=heard, crew=hired)["task"]


def together(place, **options):
    """Shards of a worker that starts together with one on another node, which never finishes one.

    The other one runs on the node named in the file `doomed` until that node is removed.
    """
    folder, node = place.parent, ray.get_runtime_context().get_node_id()
    compute = Work.compute

    def wait_and_compute(work, missing):
        (folder / f"{node}.begun").touch()
        is_doomed = (folder / "doomed").read_text() == node
        deadline = time.monotonic() + 300
        while is_doomed or len(list(folder.glob("*.begun"))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        compute(work, missing)

    Work.compute = wait_and_compute
    try:
        yield from work_at(place, **options)
    finally:
        Work.compute = compute


def test_failed_node_loses_no_shard_and_no_shard_is_computed_twice(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_workers, "work_at", together)
    experiment = load(tmp_path)
    alone = capture_only(experiment, cache_root=tmp_path / "alone")["task"]
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "doomed").write_text(second.node_id)
    is_gone = []

    def remove_one(done):
        if done and not is_gone:
            is_gone.append(done)
            cluster.remove_node(second, allow_graceful=False)

    heard = Heard(remove_one)
    found = capture(experiment, tmp_path / "ray", heard)
    assert 0 < is_gone[0] < found.store.n_rows  # it was in the middle
    assert found.root == alone.root
    assert len(heard.done) == 1 + N_SHARDS  # each shard was reported once
    assert heard.done[-1] == found.store.n_rows
    assert any("a worker died and is replaced" in message for message in heard.messages)
    found.store.files.sweep()
    assert files(found.store.folder) == files(alone.store.folder)  # also no rows of a second writer
    assert capture(experiment, tmp_path / "ray", heard).computed == 0


def test_errors_of_a_worker_of_a_capture_are_raised_unchanged(cluster, tmp_path):
    def crew(job, work, *arguments, **options):
        (tmp_path / "scale.csv").unlink()
        by_ray(job, work, *arguments, **options)

    with pytest.raises(MissingError, match=r"scale\.csv"):
        capture(load(tmp_path), tmp_path / "ray", Heard(), crew)


def test_a_run_on_a_cluster_that_loses_a_node_has_the_tables_of_one_process(cluster, own, planted):
    alone = planted.run()
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    is_gone = []

    def remove_one(done):
        if done and heard.steps[-1][0] == "probe" and not is_gone:
            is_gone.append(done)
            cluster.remove_node(second, allow_graceful=False)

    heard = Heard(remove_one)
    found = own.run(engine="ray", workers=2, page=False, watcher=heard)
    assert 0 < is_gone[0] < heard.done[-1]  # in the middle
    paths = [path for path in alone.folder.rglob("*") if path.suffix == ".csv"]
    assert paths
    for path in paths:
        of_cluster = found.folder / path.relative_to(alone.folder)
        assert of_cluster.read_bytes() == path.read_bytes(), path.name


def test_errors_of_a_worker_of_a_run_are_raised_unchanged(cluster, own, monkeypatch):
    def lose_the_data(folder, *arguments, **options):
        (own.folder / "rows.csv").unlink()
        return tasks_by_ray(folder, *arguments, **options)

    monkeypatch.setattr(ray_workers, "tasks_by_ray", lose_the_data)
    with pytest.raises(MissingError, match=r"rows\.csv"):
        own.run(*QUICK, engine="ray", workers=1, page=False)


def dying(place, **options):
    """Exit immediately, in place of doing the shards of a worker."""
    import os

    yield os._exit(1)


def test_repeatedly_failing_workers_end_the_capture(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_workers, "work_at", dying)
    monkeypatch.setattr(ray_workers, "_DEATHS_IN_A_ROW", 1)
    heard = Heard()
    with pytest.raises(StoreError, match="2 workers died in a row"):
        capture(load(tmp_path), tmp_path / "ray", heard, n_workers=1)
    (death,) = [text for text in heard.messages if not text.startswith("waiting for resources")]
    assert death.startswith("a worker died and is replaced")


def test_missing_ray_and_cluster_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match=r"Cannot reach the cluster at 127\.0\.0\.1:9: .*refused"):
        capture(load(tmp_path), tmp_path / "ray", Heard(), address="127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[ray\]'"):
        capture(load(tmp_path), tmp_path / "ray", Heard())


def test_sigterm_handler_is_restored_after_ray(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    # As ray.init sets its own.
    monkeypatch.setattr(ray, "init", lambda *_, **__: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    with ray_workers._connected(None):
        assert signal.getsignal(signal.SIGTERM) == before
