"""Plans: the schedule of workers, what limits a run, and the command."""

import re
import shlex
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from probekit.errors import DataError
from probekit.model.sites.sites import SiteSelection
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


def source_of(widths, n_networks=2, **own):
    """An engine with random features."""
    sites = [SiteSelection(f"blocks.{n}.hook_resid_post") for n in range(len(widths))]
    facts = {"widths": widths, "selections": sites, "networks": range(n_networks), "texts": ""}
    facts |= {"experiment": None, "axis_sizes": {"d_model": widths[0]}}
    return SimpleNamespace(**facts | own)


@pytest.mark.parametrize(("n_rows", "width", "power"), [(1600, 8, 1.0), (1600, 1000, 1.5)])
def test_the_time_of_a_sample_grows_with_a_power_of_the_rows(monkeypatch, n_rows, width, power):
    """A clock that advances by a power of the rows of each call replaces the time of fits."""
    measured = []

    def seconds(source, prober, X, sites):
        measured.append(len(X))
        return np.array([1.0, len(X) ** power, 0.0, 1e-3 * len(X) ** power])

    monkeypatch.setattr(planning, "_seconds", seconds)
    monkeypatch.setattr(planning, "_FEW_NUMBERS", 1)
    monkeypatch.setattr(planning, "_FEWEST_NUMBERS", 400 * width)
    found = task_seconds(source_of([width, width]), [prober_of(n_rows)])
    assert found.tasks == pytest.approx((1, n_rows**power, n_rows**power), rel=0.01)
    of_batch = 0.2**0.25 if power > 1 else 1.0  # a fifth of a batch of fits is timed
    assert found.analyses == pytest.approx(1e-3 * of_batch * n_rows**power, rel=0.01)
    assert measured == [400, n_rows]


def test_few_splits_are_measured_of_several():
    rows, one = np.arange(400), prober_of(max_iter=5, C=(1.0,))
    folds = [rows // 4 % 5 == number for number in range(5)]
    parts = [replace(one.data, train=rows[~fold], test=rows[fold]) for fold in folds]

    def seconds(splits):  # the least of three: others use the processor, too
        found = [task_seconds(source_of([8]), [Prober(splits, one.settings)]) for _ in range(3)]
        return min(each.tasks[1] for each in found)

    assert 2 < seconds(parts) / seconds(parts[:1]) < 12


def test_a_wide_site_of_many_rows_is_not_measured(monkeypatch):
    times = {2: (1.0, 2.0), 4: (1.0, 8.0)}
    monkeypatch.setattr(planning, "_MOST_FEATURES", 4)
    monkeypatch.setattr(planning, "_MOST_NUMBERS", 1)
    monkeypatch.setattr(
        planning, "_seconds", lambda _source, _prober, X, _: np.array([*times[X.shape[1]], 0, 0])
    )
    (_, wide) = task_seconds(source_of([16]), [prober_of(1600)]).tasks
    assert wide == pytest.approx(8.0 * 4**2, rel=0.01)


def test_a_fold_of_a_single_group_is_measured_with_the_others():
    one = prober_of(max_iter=5, C=(1.0,))
    data = replace(one.data, groups=(np.arange(400) // 100).astype(str))
    folds = [np.arange(400) // 100 == number for number in range(4)]
    parts = [replace(data, train=np.flatnonzero(~a), test=np.flatnonzero(a)) for a in folds]
    prober = Prober(parts, one.settings)
    assert task_seconds(source_of([8]), [prober]).tasks[1] > 0


def test_more_selected_features_than_a_part_has_are_measured_whole(monkeypatch):
    monkeypatch.setattr(planning, "_MOST_FEATURES", 8)
    monkeypatch.setattr(planning, "_MOST_NUMBERS", 1)
    prober = prober_of(kinds=(ProbeSpec(kind="k_sparse", k=(6,)),), C=(1.0,), max_iter=5)
    assert task_seconds(source_of([16]), [prober]).tasks[1] > 0


def test_a_run_whose_sample_cannot_be_probed_has_no_prediction(monkeypatch):
    def fail(*_):
        raise DataError("too few rows")

    monkeypatch.setattr(planning, "_NUMBERS_OF_SHORT_RUN", 0)
    monkeypatch.setattr(planning, "task_seconds", fail)
    assert planning.expected_seconds(source_of([8]), [prober_of()]) is None


@pytest.mark.parametrize("kind", ["logistic", "mlp", "attention_pooled"])
def test_every_kind_is_measured(kind):
    prober = prober_of(kinds=(ProbeSpec(kind=kind),), C=(1.0,), max_iter=5)
    assert min(task_seconds(source_of([4, 8]), [prober]).tasks[1:]) > 0


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
