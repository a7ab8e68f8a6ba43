"""Plans: the schedule of workers, what limits a run, and the command."""

import re
import shlex
from dataclasses import replace

import numpy as np
import pytest

from probekit.pipeline.experiment import plan as planning
from probekit.pipeline.experiment.plan import Machines, sample_of, scheduled, task_seconds
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.settings import ProbeSettings, ProbeSpec
from tests.pipeline.planted import QUICK


def prober_of(n_rows=400, **settings):
    rows = np.arange(n_rows)
    y, groups = np.array(["a", "b"])[rows % 2], (rows // 4).astype(str)
    data = ProbeData(y, groups, groups, train=rows[: n_rows // 2], test=rows[n_rows // 2 :])
    options = {"folds": 2, "control_draws": 0, "C": (0.01, 1.0), "description": False}
    return Prober(data, ProbeSettings(**(options | settings)))


def test_workers_take_the_next_task_and_share_the_cores():
    tasks = [10.0] * 4
    assert scheduled(tasks, 1, units=2) == 40
    # The second worker starts for 4 seconds, so that the last task begins after 14 of them.
    assert scheduled(tasks, 2, units=2) == 24
    # Four workers share two cores: 12 seconds of starts and 40 of tasks.
    assert scheduled(tasks, 4, units=2) == pytest.approx(26)
    # The longest task is a bound, however many workers there are.
    assert (scheduled([50.0, *tasks], 64, units=64), scheduled([], 4, units=2)) == (50, 0)


def test_the_limit_of_probing_is_named():
    tasks = (1.0, 30.0, 30.0, 30.0)

    def limits(memory=100, n_read=0, **machines):
        machines = {"memory": 1000.0, "bandwidth": 10.0} | machines
        times = planning.probing_times(tasks, memory, n_read, Machines(**machines))
        return max(times, key=lambda name: times[name])

    assert limits(workers=1, cores=1) == "computing"
    assert limits(workers=4, cores=4) == "the slowest site"
    assert limits(workers=4, cores=4, memory=600) == "memory"
    assert limits(workers=4, cores=4, n_read=10_000) == "reading"
    # A task needs a device, and devices are shared.
    on_one = Machines(workers=4, cores=64, device="cuda", devices=1, memory=1e9)
    assert planning.probing_times(tasks, 1, 0, on_one)["computing"] == pytest.approx(91 + 3 * 4)


def test_more_workers_than_shards_do_not_capture_faster():
    sizes = {"caches": 1, "tokens": 1000, "shards_of_a_site": 2, "bytes": 0}

    def seconds(**machines):
        machines = Machines(throughput=1.0, cores=9, **machines)
        return planning.capture_times(sizes, machines, start=4.0)["computing"]

    assert (seconds(), seconds(workers=2), seconds(workers=9)) == (1000, 504, 504)
    assert seconds(workers=2, device="cuda", devices=1) == 1008


def test_a_measured_capture_takes_all_cores_that_workers_use(monkeypatch):
    monkeypatch.setattr(planning, "usable_cores", lambda: 8)
    sizes = {"caches": 1, "tokens": 1000, "shards_of_a_site": 2, "bytes": 0}

    def seconds(workers, cores):
        machines = Machines(workers=workers, cores=cores)
        return planning.capture_times(sizes, machines, seconds=100.0)["computing"]

    assert (seconds(1, 8), seconds(2, 8), seconds(1, 16)) == (100, 100, 50)
    assert seconds(4, 8) == 200  # two of them have no shard


@pytest.mark.parametrize(("size", "n_expected"), [(100, 100), (400, 400), (1000, 400)])
def test_a_sample_is_split_as_all_rows_are(size, n_expected):
    sample, rows = sample_of(prober_of(fit_rows=100), size)
    assert (sample.data.y == prober_of().data.y[rows]).all()
    assert len(sample.data.y) == n_expected
    assert sample.settings.fit_rows == pytest.approx(100 * n_expected / 400)
    for side in ("train", "test"):
        ours = {f"{group}" for group in sample.data.groups[getattr(sample.data, side)]}
        assert ours <= set(prober_of().data.groups[getattr(prober_of().data, side)])


def test_texts_are_sampled_whole_and_too_few_rows_are_no_sample():
    prober = prober_of()
    tokens = Prober(replace(prober.data, examples=np.arange(400) // 4), prober.settings)
    sample, _ = sample_of(tokens, 100)
    assert (np.unique(sample.data.examples, return_counts=True)[1] == 4).all()
    assert sample_of(prober, 3) is None


def test_the_time_of_a_sample_is_that_of_all_rows_in_proportion(monkeypatch):
    """A clock that advances by the rows of each call replaces the time of fits."""
    measured = []

    def seconds(prober, X, n_networks):
        measured.append(len(X))
        return np.array([1.0, 2.0 + n_networks * X.size / 100])

    monkeypatch.setattr(planning, "_seconds", seconds)
    monkeypatch.setattr(planning, "_FEWEST_NUMBERS", 800)
    baselines, *sites = task_seconds([prober_of(1600)], [8, 16], 2, limit=200.0)
    assert (baselines, sites) == (1, [2 + 2 * 8 * 16, 2 + 2 * 16 * 16])
    assert max(measured) == 400
    monkeypatch.setattr(planning, "_MOST_FEATURES", 4)
    monkeypatch.setattr(planning, "_MOST_NUMBERS", 1)
    (_, wide) = task_seconds([prober_of(1600)], [16], 100, limit=1e9)
    assert wide == pytest.approx(100 * 16 * 16, rel=0.01)


@pytest.mark.parametrize("kind", ["logistic", "mlp", "attention_pooled"])
def test_every_kind_is_measured(kind):
    prober = prober_of(kinds=(ProbeSpec(kind=kind),), C=(1.0,), max_iter=5)
    assert min(task_seconds([prober], [4, 8], 2, limit=1.0)[1:]) > 0


def test_a_run_is_planned(planted):
    numbers = planning.plan_run(planted.load(*QUICK), Machines(workers=2, bandwidth=1e9))
    assert numbers["tasks"] == 1 + len(numbers["sites"])
    assert numbers["seconds"].keys() == numbers["hours"].keys() == {"capture", "probing"}
    assert all(hours > 0 for hours in numbers["hours"].values())


def test_cluster_page_shows_the_output_of_the_command(repository, call):
    page = (repository / "docs" / "howto" / "cluster.md").read_text()
    block = r"```console\n(probekit plan [^\n]*)\n```\n\n```text\n(.*?)```"
    shown = re.findall(block, page, re.DOTALL)
    assert len(shown) == 2
    for command, text in shown:
        found = call(*shlex.split(command)[1:])
        assert (found.code, found.stdout, found.stderr) == (0, text, "")
