"""The cost of an experiment before it starts, and what limits it on given machines.

Sizes follow from shapes and rows. Times are those of short measurements on this machine, scaled by
counts: one batch of the capture, and whole sites, with random features if none are given.
"""

import math
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product, starmap
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from probekit.accelerators import check_device, check_device_name
from probekit.activations.capture import capture_bytes, described_reading
from probekit.activations.forward import make_batches, make_shards, run_batches
from probekit.activations.records import CODES, SHARD_ROWS, batch_tokens
from probekit.amounts import counted, duration, size_in_words
from probekit.chosen.registry import asked
from probekit.data.positions import IntArray, RowPlan
from probekit.errors import ConfigError, DataError
from probekit.experiment.activations import AnyExperiment
from probekit.lazy_rows import LOADED_BYTES, Codes, Features, Floats, LazyRows
from probekit.memory import LIBRARIES, available_memory, fits_in_memory, used_memory
from probekit.model.config import ModelConfig, count_components, count_parameters
from probekit.model.network import Network
from probekit.model.sites.catalogue import describe, layer_of
from probekit.model.weights.files import ITEM_SIZES
from probekit.model.weights.hub import find_model
from probekit.pipeline.capture.jobs import blank_network, plan_capture, plan_tokens
from probekit.pipeline.engines.engine import Engine
from probekit.pipeline.engines.network import NetworkEngine
from probekit.pipeline.engines.table import How, prepare
from probekit.pipeline.intervene.run import predicted_work
from probekit.pipeline.measure.probing import make_probers, probing_bytes
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.solve.kernel import MOST_ROWS, WIDE
from probekit.products import START_UP, threads

# The fewest rows and numbers of a measured sample, and the most features and numbers of a site.
_FEWEST_ROWS, _FEWEST_NUMBERS, _MOST_FEATURES, _MOST_NUMBERS = 256, 1 << 16, 1024, 1 << 24
# Fits from products of rows are one batch of all splits. So many splits are measured; the time of
# a batch grows with this power of the number of fits.
_SPLITS, _OF_MORE = 2, 0.75
# A site of at most so many numbers, times scores of its fits, is measured whole; twice as many if
# its fits are one batch.
_FEW_NUMBERS = 1 << 21
_NUMBERS_OF_SHORT_RUN = 1 << 24  # of all sites; the time of a run of fewer is not predicted
# The measurement takes about this share of the predicted time, and at most so many seconds.
_SHARE, _MOST_SECONDS, _TINY = 0.02, 4.0, 1e-6
_MAPPED = 1 << 30  # bytes of activations that stay mapped; more are released when memory is short
_TIMED = 5 * 10**9  # parameters times tokens of a timed batch, at most; less than a second
# Measured readings of the fitted rows of a site that stays in its file, for each split: by kind,
# and of the others.
_READINGS, _OTHER_READINGS = {"logistic": 80, "k_sparse": 40}, 25


class Probing(NamedTuple):
    """Estimated seconds of probing on one core or device.

    Attributes:
        tasks: of each task: at each position the baselines, then each site.
        untrained: of the networks with random weights, within those of `tasks`.
        analyses: of further probes at all sites, which analyses of the selected probe fit.
    """

    tasks: tuple[float, ...]
    untrained: float
    analyses: float


class Cost(NamedTuple):
    """What an experiment takes; of a study's cell, without what other cells have done.

    Attributes:
        sizes: sizes of the capture, see `plan_capture`, unless activations are given; `memory`,
            bytes of a process that probes; `capture_memory` of one that captures on a CPU; and
            `run_memory` of one that does both, pages of mapped files included.
        widths: number of features of each site.
        probing: seconds of probing; None if this machine does not have the device.
        capture: seconds to capture all rows of all networks with all cores of this machine; None if
            nothing is captured, not on the CPU, or with a known throughput.
        interventions: seconds of the interventions; None without, or if `capture` is None.
        note: how weights are read that are larger than memory; "" otherwise.
    """

    sizes: dict[str, Any]
    widths: Sequence[int]
    probing: Probing | None
    capture: float | None = None
    interventions: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """What computes a run.

    Attributes:
        workers: number of workers.
        cores: number of cores of all workers; None for those of this machine.
        device: where networks run and probes are fitted, such as `cuda`.
        devices: number of accelerators of all workers; None for one for each worker.
        throughput: tokens per second that a worker captures; None to measure it on the CPU.
        bandwidth: bytes per second that the storage reads or writes for all workers together; None
            if it is unknown.
        memory: bytes of memory of all workers; None for what this machine has now.
    """

    workers: int = 1
    cores: int | None = None
    device: str = "cpu"
    devices: int | None = None
    throughput: float | None = None
    bandwidth: float | None = None
    memory: float | None = None

    @property
    def units(self) -> int:
        """The number of devices or cores that compute."""
        if self.device != "cpu":
            return self.devices or self.workers
        return self.cores or usable_cores()


def usable_cores() -> int:
    """Return the number of cores of this machine that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def capture_times(
    numbers: dict[str, Any], machines: Machines, seconds: float | None = None, start: float = 0.0
) -> dict[str, float]:
    """Return the seconds of a capture by what takes them, as far as they are known.

    Computing and writing are done at the same time.

    Args:
        numbers: sizes of the capture; see `plan_capture`.
        machines: what captures.
        seconds: time to capture all rows of all networks with all cores of this machine, if it is
            known.
        start: seconds until a worker begins, for each network; a single one is this process.

    >>> sizes = {"caches": 2, "tokens": 300, "shards_of_a_site": 3, "bytes": 1000}
    >>> capture_times(sizes, Machines(workers=4, cores=4, throughput=1.0, bandwidth=10.0))
    {'computing': 200.0, 'writing': 100.0}
    """
    times, n_workers, n_shards = dict[str, float](), machines.workers, numbers["shards_of_a_site"]
    # More workers than shards would have nothing to do; shards are not divided.
    n_busy = min(n_workers, n_shards)
    if machines.throughput is not None:
        n_busy = min(n_busy, machines.units)
        seconds = numbers["caches"] * numbers["tokens"] / machines.throughput / n_busy
    elif seconds is not None:
        used = n_busy * max(1, machines.units // n_workers) / machines.units
        seconds *= usable_cores() / machines.units / min(1.0, used)
    if seconds is not None:
        seconds *= math.ceil(n_shards / n_busy) * n_busy / n_shards
        starts = numbers["caches"] * start * max(1, n_workers / machines.units)
        times["computing"] = seconds + (starts if n_workers > 1 else 0.0)
    if machines.bandwidth is not None:
        times["writing"] = numbers["bytes"] / machines.bandwidth
    return times


def probing_times(
    tasks: tuple[float, ...] | None, memory: int, n_read: float, machines: Machines
) -> dict[str, float]:
    """Return the seconds of probing by what takes them, as far as they are known.

    Computing and reading are done at the same time. The key of computing is `the slowest site` if
    that takes most of it, and `memory` if fewer processes fit into memory than could compute.

    Args:
        tasks: time of each task on one core or device; None if it is unknown.
        memory: bytes of a process.
        n_read: bytes that are read from files.
        machines: what probes.

    >>> machines = Machines(workers=3, cores=3, memory=250, bandwidth=20.0)
    >>> probing_times((20.0, 30.0, 40.0), 100, 600, machines)
    {'memory': 60.0, 'reading': 30.0}
    """
    times, n_workers = dict[str, float](), machines.workers
    n_fit = int((machines.memory or available_memory()) // memory)
    if tasks is not None:
        seconds = scheduled(tasks, max(1, min(n_workers, n_fit)), machines.units)
        name = "computing"
        if n_fit < min(n_workers, machines.units, len(tasks)):
            name = "memory"
        elif n_workers > 1 and max(tasks) > 0.8 * seconds:
            name = "the slowest site"
        times[name] = seconds
    if machines.bandwidth is not None:
        times["reading"] = n_read / machines.bandwidth
    return times


def scheduled(tasks: Sequence[float], workers: int, units: int) -> float:
    """Return the time in which workers do tasks, each the next one when it is free, in seconds.

    Each worker but the first starts for a few seconds, unless all tasks are done about as fast. If
    workers are more than the cores or devices, they share these equally.

    Args:
        tasks: the time of each task on one core or device.
        workers: number of workers.
        units: number of cores or devices.

    >>> scheduled([2.0, 2.0, 6.0], 1, units=1), scheduled([10.0] * 4, 2, units=2)
    (10.0, 24.0)
    """
    if sum(tasks) < 2 * START_UP:  # see `parallel_map`
        workers = 1
    waiting = deque(tasks)
    # Seconds that the start or the task of each worker still needs.
    left, now = [0.0, *[START_UP] * (min(workers, len(tasks)) - 1)], 0.0
    while left:
        passed = min(left)
        now += passed * max(1.0, len(left) / units)
        left = [one - passed for one in left if one > passed]
        while waiting and len(left) < workers:
            left.append(waiting.popleft())
    return now


def cost_of(
    source: Engine, probers: Sequence[Prober], machines: Machines, known: dict[Any, Probing]
) -> Cost:
    """Return the cost of an experiment.

    Args:
        source: the experiment with its rows, and with their activations if these are given.
        probers: the rows and settings at each position.
        machines: the device, and the throughput if it need not be measured.
        known: measured times of other cells of a study; those of this one are added. A
            cell with the settings of another, and about as many rows, is not measured again.

    Raises:
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    experiment, widths, n_networks = source.experiment, source.widths, len(source.networks)
    sizes, note, capture, interventions = dict[str, Any](), "", None, None
    # Bytes besides libraries and tokenizer: of weights next to their files, and of a capture.
    loaded, captured, used = 0, 0, used_memory() or LIBRARIES
    if source.texts is not None:
        texts, source = source.texts, cast(NetworkEngine, source)
        sizes = plan_capture(source, machines.device)
        if machines.device == "cpu":
            config, model = texts.config, source.experiment.on_device("cpu").model
            dtype = getattr(torch, model.dtype)
            needed = count_parameters(config) * dtype.itemsize
            in_memory = model.in_memory is not None or fits_in_memory(needed)
            batches = make_batches(texts.ids, texts.plan, batch_tokens("cpu"))
            shards = make_shards(batches, SHARD_ROWS)
            sizes["capture_memory"] = capture_bytes(
                config, dtype, texts.sites, shards, in_memory=in_memory
            )
            captured = sizes["capture_memory"] - LIBRARIES
            if model.in_memory is None and in_memory:
                files = find_model(model.source).glob("*.safetensors")
                loaded = needed + sum(path.stat().st_size for path in files)
            if not in_memory:
                note = described_reading(config, dtype, "cpu", shards)
            if machines.throughput is None:
                network = zero_network(config, dtype)
                seconds = estimate_seconds(network, texts.ids, texts.plan, texts.sites)
                capture = n_networks * seconds
                if source.experiment.interventions:
                    # Texts pass the captured blocks; an edit passes those after its site.
                    n_blocks = 1 + max(layer_of(site) or 0 for site in texts.sites)
                    work, activations = predicted_work(source, network)
                    interventions = work * seconds / (n_blocks * sizes["tokens"])
                    captured = max(captured, needed + activations)
    size = round(2 * math.log2(len(probers[0].data.y)))
    shape = len(probers), len(probers[0].data.classes), tuple(widths), n_networks, size
    key = experiment.probe, experiment.split, *shape, *(one.text for one in source.selections)
    is_here = False
    with suppress(ConfigError):  # another machine has the device
        check_device(machines.device)
        is_here = True
    if is_here and key not in known:
        known[key] = task_seconds(source, probers)
    sizes["memory"] = probing_bytes(probers, widths)
    # What a capture has freed stays with the process.
    probed = captured + sizes["memory"] - LIBRARIES + min(source.n_bytes, _MAPPED)
    sizes["run_memory"] = round(used + max(loaded, probed))
    return Cost(sizes, widths, known.get(key), capture, interventions, note)


def expected_seconds(source: Engine, probers: Sequence[Prober]) -> Probing | None:
    """Return the `task_seconds` of a run; None if it is short, or they are not known.

    A run may work although a sample of its rows cannot be probed.
    """
    n_numbers = len(probers[0].data.y) * sum(source.widths) * len(source.networks)
    if n_numbers < _NUMBERS_OF_SHORT_RUN:
        return None
    with suppress(ConfigError, DataError):
        return task_seconds(source, probers)
    return None


def task_seconds(source: Engine, probers: Sequence[Prober]) -> Probing:
    """Return the estimated time of probing on one core or device.

    Some splits of a sample of the rows are measured, first of few rows, then of as many as a small
    share of the predicted time allows. Features are those of a given site, or random.

    Args:
        source: the experiment, its sites and its networks.
        probers: the rows and settings at each position.
    """
    widths, n_random, of_width = source.widths, len(source.networks) - 1, dict[int, Floats]()
    for width in set(widths):
        sites = [one for one, own in zip(source.selections, widths, strict=True) if own == width]
        middle = sites[len(sites) // 2]
        given = None if source.texts is not None else source.activations.block(middle)
        of_width[width] = _of_width(source, probers[0], width, given, sites)
    tasks = [of_width[widths[0]][0]]
    tasks += [of_width[width][1] + n_random * of_width[width][2] for width in widths]
    untrained = len(probers) * n_random * sum(of_width[width][2] for width in widths)
    analyses = sum(found[3] for found in of_width.values())
    return Probing(len(probers) * tuple(map(float, tasks)), float(untrained), float(analyses))


def _of_width(
    source: Engine, prober: Prober, width: int, given: LazyRows | None, sites: Sequence[Any]
) -> Floats:
    """Return the estimated seconds of the entries of `_seconds`, for all rows and splits.

    The time grows with a power of the rows, which is measured: 0 to 1, or up to 2 if fits are
    computed from products of rows.

    Args:
        source: the experiment and its networks.
        prober: the rows and settings.
        width: the number of features that is measured.
        given: the rows of a site, at least as wide; None for random ones.
        sites: the probed sites that these are.
    """
    n_rows, splits = len(prober.data.y), prober.splits
    is_wide = n_rows <= min(MOST_ROWS, WIDE * width)
    most_selected = max(
        int(np.max(one.k or 0)) for one in prober.settings.specs
    )  # of k-sparse probes
    is_large = width > _MOST_FEATURES and n_rows * width > _MOST_NUMBERS
    if is_large and not is_wide and most_selected <= _MOST_FEATURES // 2:
        # The time grows with a power of the width, which is that from half the features to all.
        half, whole = (
            _of_width(source, prober, part, given, sites)
            for part in (_MOST_FEATURES // 2, _MOST_FEATURES)
        )
        power = np.log2(width / _MOST_FEATURES)
        return np.array([whole[0], *(whole[1:] * (whole[1:] / half[1:]) ** power)])
    n_splits, n_few = len(splits), _SPLITS if is_wide else 1
    few, ratios = prober, np.ones(4)
    if not prober.within:
        with suppress(ConfigError, DataError):  # such as a fold of a single group
            few = Prober([one.data for one in splits[:n_few]], prober.settings)
    if few.has_control != prober.has_control:
        few = prober
    if len(few.splits) < n_splits:
        # A site of several splits has a further fit, of all rows. More fits from products take less
        # time each.
        of_site = (n_splits + 0.5) / (n_few + 0.5 * (n_few > 1))
        ratios = np.array([n_splits / n_few, of_site, n_splits / n_few, 1.0])
        ratios[1:3] **= _OF_MORE if is_wide else 1.0
    if is_wide:  # a fifth of the fits of analyses is timed
        ratios[3] = 0.2 ** (1 - _OF_MORE)
    most, n_scores = 2.0 if is_wide else 1.0, max(1, len(prober.data.classes) - 1)
    # A sample is fitted by the same algorithm as all rows.
    size = max(_FEWEST_ROWS, _FEWEST_NUMBERS // width, 0 if is_wide else int(2 * WIDE * width))
    is_quick = {one.kind for one in prober.settings.specs} == {"logistic"}
    if is_quick and n_rows * width * n_scores <= most * _FEW_NUMBERS:
        size = n_rows
    measured = list[tuple[int, Floats]]()
    while len(measured) < 2 and size > (1.5 * measured[0][0] if measured else 0):
        sample = sample_of(few, size) if size < n_rows else (few, np.arange(n_rows))
        if sample is None:
            size *= 2
            continue
        part, rows = sample
        X = imitated(part.data, width) if given is None else given[rows][:, :width]
        start = time.process_time()
        measured.append((len(rows), _TINY + ratios * _seconds(source, part, X, sites)))
        spent = time.process_time() - start
        # With the time of all sites, the size that may still be measured.
        all_rows = measured[0][1] * (n_rows / len(rows)) ** (0.75 * most)
        total = all_rows[0] + len(source.widths) * all_rows[1:3].sum() + all_rows[3]
        allowed = min(_MOST_SECONDS, _SHARE * total) / spent
        size = int(min(n_rows, len(rows) * allowed ** (1 / most)))
    n, seconds = measured[-1]
    power = np.full(4, 0.75 * most)
    if len(measured) > 1:
        power = np.log(seconds / measured[0][1]) / math.log(n / measured[0][0])
    return np.asarray(seconds * (n_rows / n) ** power.clip(0, most))


def sample_of(prober: Prober, size: int) -> tuple[Prober, Codes] | None:
    """Return the prober of random examples with about `size` rows, and the numbers of its rows.

    Rows stay on their side of the split. None if they are too few to be split and labelled as
    all rows are.
    """
    n_rows, examples = len(prober.data.y), prober.data.examples
    distinct, codes = np.unique(
        np.arange(n_rows) if examples is None else examples, return_inverse=True
    )
    share = min(1.0, size / n_rows)
    chosen = np.random.default_rng(0).permutation(len(distinct)) < share * len(distinct)
    rows = np.flatnonzero(chosen[codes])
    new = np.full(n_rows, -1)
    new[rows] = np.arange(len(rows))
    columns = ("y", "groups", "types", "typical", "words", "texts", "replies", "neighbours")
    found = {name: getattr(prober.data, name) for name in (*columns, "examples")}
    selected: dict[str, Any] = {
        name: None if column is None else column[rows] for name, column in found.items()
    }
    fit_rows, splits = prober.settings.fit_rows, list[ProbeData]()
    try:
        for one in (*prober.splits, *prober.within):
            train, test = (side[chosen[codes[side]]] for side in (one.data.train, one.data.test))
            if prober.settings.reads == "classes":
                test = test[np.isin(one.data.y[test], one.data.y[train])]
                # The scores of all folds are concatenated, so that they need the same classes.
                if prober.is_nested and {*one.data.y[train]} != {*one.data.y[one.data.train]}:
                    return None
            selected |= {"train": new[train], "test": new[test]}
            splits.append(replace(one.data, **selected))
        settings = prober.settings.changed(fit_rows=fit_rows and math.ceil(fit_rows * share))
        sample = Prober(splits[: len(prober.splits)], settings, splits[len(prober.splits) :])
    except (ConfigError, DataError):
        return None
    return (sample, rows) if sample.has_control == prober.has_control else None


def _seconds(source: Engine, prober: Prober, X: Features, sites: Sequence[Any]) -> Floats:
    """Return the seconds of baselines, a site, an untrained network there, and further probes.

    The last ones are of analyses of the selected probe, at all `sites` of this width.
    """
    of_untrained = imitated(prober.data, X.shape[1], 0.0) if len(source.networks) > 1 else None
    # Seconds of this process do not depend on what else runs on the machine.
    clock = time.process_time if prober.settings.device == "cpu" else time.perf_counter
    with threads(1):
        times = [clock()]
        prober.baselines()
        times.append(clock())
        site = prober.site(X)
        times.append(clock())
        if of_untrained is not None:
            prober.random_site([of_untrained], 1)
        times.append(clock())
        analyses, spec = 0.0, prober.settings.specs[0]
        for analysis, _ in asked(source.experiment):
            work = analysis.door("measure", "work")
            fit = site.fits.get(spec.text)
            if work is not None and fit is not None and len(fit.layers) == 1:
                start, penalty = clock(), site.penalties[spec.text]
                n_times = work(sites, prober.saved_rows, spec, X, penalty)
                analyses += n_times * (clock() - start)
    return np.array([*np.diff(times), analyses])


def imitated(data: ProbeData, width: int, of_label: float = 4.0) -> Features:
    """Return random features (n_rows, width) whose fits need about as long as those of activations.

    Rows of one group, word or label are similar, and few directions have most of the variance. Of
    networks with random weights, labels have no part (`of_label`) in the features.
    """
    generator, n_axes = np.random.default_rng(0), min(width, len(data.y))
    X = generator.standard_normal((len(data.y), n_axes))
    for names, scale in ((data.groups, 1.0), (data.types, 1.0), (data.y, of_label / n_axes**0.5)):
        distinct, codes = np.unique(names, return_inverse=True)
        X += scale * generator.standard_normal((len(distinct), n_axes))[codes]
    axes, _ = np.linalg.qr(generator.standard_normal((width, n_axes)))
    return np.asarray(X / np.arange(1, n_axes + 1) @ axes.T, np.float32)


def plan_model(
    model: str, tokens: int, sites: Sequence[str], dtype: str, machines: Machines
) -> dict[str, Any]:
    """Return the sizes and times of a capture of tokens; see `plan_tokens` and `plan_run`."""
    numbers = plan_tokens(model, tokens, sites=sites, dtype=dtype, device=machines.device)
    return numbers | slowest_steps(capture=capture_times(numbers, machines))


def plan_run(
    experiment: AnyExperiment, machines: Machines, known: dict[Any, Probing] | None = None
) -> dict[str, Any]:
    """Return the sizes of an experiment, its memory, and the times of capture and probing.

    Data are read, weights are not. Earlier checkpoints and interventions are not included. The keys
    are those of `plan_capture`, unless activations are given, and

    - `memory`: bytes of a process that probes, and `capture_memory` of one that captures on a CPU.
    - `tasks`: number of tasks of probing, which workers share.
    - `seconds`: for `capture` and `probing`, the seconds of all that they do at the same time, as
      far as they are known.
    - `hours` and `bottleneck`: the longest of these, and its name; None if they are unknown.

    Args:
        experiment: the experiment.
        machines: what computes it.
        known: measured times of experiments of a study; those of this one are added. An
            experiment with the settings of another, and about as many rows, is not measured again.

    Raises:
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    check_device_name(machines.device)
    times, began = dict[str, dict[str, float]](), time.perf_counter()
    source = prepare(experiment, How(machines.device))
    start = START_UP + time.perf_counter() - began
    probers = make_probers(experiment, source.design, machines.device)
    known = {} if known is None else known
    cost = cost_of(source, probers, machines, known)
    numbers, bytes_of_number = cost.sizes, 4
    if "caches" in numbers:
        bytes_of_number = ITEM_SIZES[CODES[numbers["dtype"]]] * numbers["caches"]
        times["capture"] = capture_times(numbers, machines, cost.capture, start)
    n_read = bytes_of_number * sum(starmap(_numbers_read, product(probers, cost.widths)))
    times["probing"] = probing_times(
        cost.probing and cost.probing.tasks, numbers["memory"], n_read, machines
    )
    numbers["tasks"] = len(probers) * (1 + len(cost.widths))
    return numbers | slowest_steps(**times)


def _numbers_read(prober: Prober, width: int) -> int:
    """Return the number of numbers that the probes of a site read."""
    settings, n_rows, n_fitted = prober.settings, len(prober.data.y), len(prober.data.train)
    if 4 * n_rows * width <= LOADED_BYTES:
        return n_rows * width
    readings = sum(_READINGS.get(one.kind, _OTHER_READINGS) for one in settings.specs)
    n_fitted = min(n_fitted, settings.fit_rows or n_fitted)
    return width * len(prober.splits) * (readings * n_fitted + len(prober.data.test))


def slowest_steps(**times: dict[str, float]) -> dict[str, Any]:
    """Return the hours of each step, and what limits it; None if its computing time is unknown."""
    hours, bottleneck = dict[str, float | None](), dict[str, str | None]()
    for step, seconds in times.items():
        is_known = bool(seconds.keys() - {"reading", "writing"})
        longest = max(seconds, key=lambda name: seconds[name], default=None)
        hours[step] = seconds[longest] / 3600 if longest and is_known else None
        bottleneck[step] = longest if is_known else None
    return {"seconds": times, "hours": hours, "bottleneck": bottleneck}


def described_plan(numbers: Mapping[str, Any]) -> str:
    """Return the result of `plan_run` or `plan_model` as lines of text."""
    lines = {"cells": f"{numbers['cells']:,}"} if "cells" in numbers else {}
    if "cells" in numbers and "bytes" in numbers:
        lines["bytes"] = f"{size_in_words(numbers['bytes'])}, in {numbers['files']:,} files"
    if names := numbers.get("sites"):
        n_tokens, n_bytes = numbers["tokens"], numbers["bytes"]
        models = f", by {numbers['caches']} models" if numbers["caches"] > 1 else ""
        shards = counted(numbers["shards_of_a_site"], "shard")
        lines = {
            "tokens read": f"{n_tokens:,}{models}",
            "device": f"{numbers['device']}, {numbers['tokens_of_a_batch']:,} tokens a batch",
            "rows": f"{numbers['rows_of_a_site']:,} at {counted(len(names), 'site')}, as "
            f"{numbers['dtype']}",
            # The first and the last site, or the only one.
            "sites": " to ".join(dict.fromkeys([names[0], names[-1]])),
            "bytes": f"{size_in_words(n_bytes)}, {size_in_words(n_bytes / n_tokens)} a token",
            "files": f"{numbers['files']:,}, in {shards} of each site",
        }
    if "memory" in numbers:
        lines["memory"] = f"{size_in_words(numbers['memory'])} in each process that probes"
        if "capture_memory" in numbers:
            of_capture = size_in_words(numbers["capture_memory"])
            lines["memory"] += f", {of_capture} in each that captures"
    for step, times in numbers["seconds"].items():
        hours, limit = numbers["hours"][step], numbers["bottleneck"][step]
        lines[step] = "unknown" if step == "probing" else "unknown; give --throughput"
        if hours is not None:
            lines[step] = f"{duration(3600 * hours)}, limited by {limit}"
        if others := [f"{name}: {duration(times[name])}" for name in times if name != limit]:
            lines[step] += f" ({', '.join(others)})"
    if "tasks" in numbers:
        lines["tasks"] = f"{numbers['tasks']} of probing, which workers share"
    return "\n".join(f"{name:12} {text}" for name, text in lines.items())


def estimate_seconds(
    model: Network, tokens: Sequence[IntArray], plan: RowPlan, sites: Sequence[str]
) -> float:
    """Return the estimated time to compute all rows in this process, in seconds.

    One small batch is timed; of a large network, only its first blocks. The weights may be random.
    The estimate includes rows that are already cached.
    """
    config = model.config
    n_blocks = 0
    for site in sites:
        layer, is_first = layer_of(site), describe(site).stage == "embedding"
        n_blocks = max(n_blocks, config.n_layers * (not is_first) if layer is None else layer + 1)
    of_block = sum(one.number for one in count_components(config) if one.times > 1)
    # Few tokens need more time each.
    n_tokens = min(batch_tokens("cpu"), max(256, _TIMED // (1 + of_block * n_blocks)))
    batches = list(make_batches(tokens, plan, n_tokens))
    # Of median length, and not the last, smaller one, unless it is the only one.
    batch = batches[(len(batches) - 1) // 2]

    def timed(sites: Sequence[str]) -> float:
        times = []
        for _ in range(3):  # the first is a warm-up
            start, own = time.perf_counter(), time.process_time()
            for part in run_batches(model, [batch], plan, sites, "float32"):
                part.arrays()
            # The time of a busy machine is longer than that of this process.
            times.append(min(time.perf_counter() - start, time.process_time() - own))
        return min(times[1:])

    if n_blocks > 2 and of_block * n_blocks * batch.n_tokens > 2 * _TIMED:
        one, two = (timed([f"blocks.{number}.hook_resid_post"]) for number in (0, 1))
        seconds = one + (n_blocks - 1) * (two - one)
    else:
        seconds = timed(sites)
    return seconds * sum(batch.n_tokens for batch in batches) / batch.n_tokens


def zero_network(config: ModelConfig, dtype: torch.dtype) -> Network:
    """Return a network whose weights are 0, for timing; they take no memory.

    One that transformers computes is loaded already, and returned with its weights.

    All are parts of one array of zeros, which the system maps to a single page until it is written.
    """
    network = blank_network(config, dtype)
    if network.device.type != "meta":
        return network
    shapes = {name: like.shape for name, like in network.named_parameters()}
    n_bytes = dtype.itemsize * max(shape.numel() for shape in shapes.values())
    zeros = torch.from_numpy(np.zeros(n_bytes, np.uint8)).view(dtype)
    weights = {name: zeros[: shape.numel()].view(shape) for name, shape in shapes.items()}
    network.load_state_dict(weights, assign=True)
    return network
