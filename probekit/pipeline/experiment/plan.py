"""The cost of an experiment before it starts, and what limits it on given machines.

Sizes follow from shapes and rows. Times are those of short measurements on this machine, scaled by
counts: one batch of the capture, and whole sites, with random features if none are given.
"""

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product, starmap
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from probekit.accelerators import check_device, check_device_name
from probekit.activations.capture import capture_bytes, described_reading
from probekit.activations.forward import make_batches, make_shards, run_batches
from probekit.activations.records import CODES, SHARD_ROWS, batch_tokens
from probekit.amounts import counted, duration, size_in_words
from probekit.data.positions import IntArray, RowPlan
from probekit.errors import ConfigError, DataError
from probekit.experiment.activations import AnyExperiment
from probekit.lazy_rows import LOADED_BYTES, Codes, Features, Floats, LazyRows
from probekit.memory import available_memory, fits_in_memory
from probekit.model.config import ModelConfig, count_components, count_parameters
from probekit.model.families.table import network_class
from probekit.model.network import Network
from probekit.model.proven.config import ProvenConfig
from probekit.model.sites.catalogue import describe, layer_of
from probekit.model.weights.files import ITEM_SIZES
from probekit.pipeline.capture.jobs import plan_capture, plan_tokens
from probekit.pipeline.engines.engine import Engine
from probekit.pipeline.engines.network import NetworkEngine
from probekit.pipeline.engines.table import How, prepare
from probekit.pipeline.measure.probing import make_probers, probing_bytes, usable_cores
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.products import START_UP, threads

# The fewest numbers of a measured sample, and the most features and numbers of a measured site.
_FEWEST_NUMBERS, _MOST_FEATURES, _MOST_NUMBERS = 1 << 19, 1024, 1 << 24
_TIMED = 5 * 10**9  # parameters times tokens of a timed batch, at most; less than a second
_LIMIT = 20.0  # expected seconds of a sample from which it is not measured
# Measured readings of the fitted rows of a site that stays in its file, for each split: by kind,
# and of the others.
_READINGS, _OTHER_READINGS = {"logistic": 80, "k_sparse": 40}, 25


class Cost(NamedTuple):
    """What an experiment takes; of a study's cell, without what other cells have done.

    Attributes:
        sizes: sizes of the capture, see `plan_capture`, unless activations are given; `memory`,
            bytes of a process that probes; and `capture_memory` of one that captures on a CPU.
        widths: number of features of each site.
        tasks: seconds of each task of probing on one core or device; None if this machine does not
            have the device.
        capture: seconds to capture all rows of all networks with all cores of this machine; None if
            nothing is captured, not on the CPU, or with a known throughput.
        note: how weights are read that are larger than memory; "" otherwise.
    """

    sizes: dict[str, Any]
    widths: Sequence[int]
    tasks: tuple[float, ...] | None
    capture: float | None = None
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
    source: Engine,
    probers: Sequence[Prober],
    machines: Machines,
    *,
    limit: float,
    known: dict[Any, tuple[float, ...]],
) -> Cost:
    """Return the cost of an experiment.

    Args:
        source: the experiment with its rows, and with their activations if these are given.
        probers: the rows and settings at each position.
        machines: the device, and the throughput if it need not be measured.
        limit: expected seconds of a sample from which it is not measured.
        known: measured times of tasks of other cells of a study; those of this one are added. A
            cell with the settings of another, and about as many rows, is not measured again.

    Raises:
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    experiment, widths, n_networks = source.experiment, source.widths, len(source.networks)
    sizes, given, note = dict[str, Any](), dict[int, LazyRows](), ""
    capture: float | None = None
    if source.texts is None:
        sites = zip(widths, source.selections, strict=True)
        given = {width: source.activations.block(site) for width, site in sites}
    else:
        texts, source = source.texts, cast(NetworkEngine, source)
        sizes = plan_capture(source, machines.device)
        if machines.device == "cpu":
            config, model = texts.config, source.experiment.on_device("cpu").model
            dtype = getattr(torch, model.dtype)
            in_memory = model.in_memory is not None or fits_in_memory(
                count_parameters(config) * dtype.itemsize
            )
            batches = make_batches(texts.ids, texts.plan, batch_tokens("cpu"))
            shards = make_shards(batches, SHARD_ROWS)
            sizes["capture_memory"] = capture_bytes(
                config, dtype, texts.sites, shards, in_memory=in_memory
            )
            if not in_memory:
                note = described_reading(config, dtype, "cpu", shards)
            if machines.throughput is None:
                network = zero_network(config, dtype)
                seconds = estimate_seconds(network, texts.ids, texts.plan, texts.sites)
                capture = n_networks * seconds
    size = round(2 * math.log2(len(probers[0].data.y)))
    key = (experiment.probe, experiment.split, tuple(widths), n_networks, size)
    with suppress(ConfigError):  # another machine has the device
        check_device(machines.device)
        if key not in known:
            known[key] = task_seconds(probers, widths, n_networks, limit, given)
    sizes["memory"] = probing_bytes(probers, widths)
    return Cost(sizes, widths, known.get(key), capture, note)


def task_seconds(
    probers: Sequence[Prober],
    widths: Sequence[int],
    n_networks: int,
    limit: float,
    given: Mapping[int, LazyRows] = MappingProxyType({}),
) -> tuple[float, ...]:
    """Return the estimated time of each task of probing on one core or device, in seconds.

    The tasks of a position are its baselines and its sites. Sites are measured with larger and
    larger samples of examples, as far as that takes seconds.

    Args:
        probers: the rows and settings at each position.
        widths: number of features of each site.
        n_networks: number of probed networks, the one of the experiment and those with random
            weights.
        limit: expected seconds of a sample from which it is not measured.
        given: the rows of a site of each width; random features are used for a width without.
    """
    of_width = {
        width: _of_width(probers[0], width, n_networks, limit, given.get(width))
        for width in set(widths)
    }
    baselines = of_width[widths[0]][0]
    return len(probers) * (float(baselines), *(float(of_width[width][1]) for width in widths))


def _of_width(
    prober: Prober, width: int, n_networks: int, limit: float, given: LazyRows | None
) -> Floats:
    """Return the estimated seconds of the baselines, and of a site."""
    n_rows = len(prober.data.y)
    if width > _MOST_FEATURES and n_rows * width > _MOST_NUMBERS:
        # The time grows with a power of the width, which is that from half the features to all.
        half, whole = (
            _of_width(prober, part, n_networks, limit, given)
            for part in (_MOST_FEATURES // 2, _MOST_FEATURES)
        )
        power = np.log2(width / _MOST_FEATURES)
        return np.array([whole[0], whole[1] * (whole[1] / half[1]) ** power])
    sizes = [n_rows]
    while sizes[0] // 4 * width >= _FEWEST_NUMBERS:
        sizes.insert(0, sizes[0] // 4)
    measured = [(0, np.zeros(2))]
    for size in sizes:
        if measured[1:] and _extrapolated(measured, size).sum() > limit:
            break
        if (sample := sample_of(prober, size)) is not None:
            part, rows = sample
            X = imitated(part.data, width) if given is None else given[rows][:, :width]
            measured.append((size, _seconds(part, X, n_networks)))
    return _extrapolated(measured, n_rows)


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


def _extrapolated(measured: Sequence[tuple[int, Floats]], n_rows: int) -> Floats:
    """Return the seconds for some number of rows, which grow as before the last measured size."""
    (one, before), (two, seconds) = measured[-2:]
    return seconds + np.maximum(0, seconds - before) / (two - one) * (n_rows - two)


def _seconds(prober: Prober, X: Features, n_networks: int) -> Floats:
    """Return the seconds of the baselines, and of a site with the features X."""
    # Seconds of this process do not depend on what else runs on the machine.
    clock = time.process_time if prober.settings.device == "cpu" else time.perf_counter
    with threads(1):
        times = [clock()]
        prober.baselines()
        times.append(clock())
        prober.site(X)
        times.append(clock())
        if n_networks > 1:
            prober.random_site([X], 1)
        times.append(clock())
    baselines, site, random = np.diff(times)
    return np.array([baselines, site + (n_networks - 1) * random])


def imitated(data: ProbeData, width: int) -> Features:
    """Return random features (n_rows, width) whose fits need about as long as those of activations.

    Rows of one group, word or label are similar, and few directions have most of the variance.
    """
    generator = np.random.default_rng(0)
    X = generator.standard_normal((len(data.y), width))
    for names, scale in ((data.groups, 1.0), (data.types, 1.0), (data.y, 4 / width**0.5)):
        distinct, codes = np.unique(names, return_inverse=True)
        X += scale * generator.standard_normal((len(distinct), width))[codes]
    axes, _ = np.linalg.qr(generator.standard_normal((width, width)))
    return np.asarray(X / np.arange(1, width + 1) @ axes, np.float32)


def plan_model(
    model: str, tokens: int, sites: Sequence[str], dtype: str, machines: Machines
) -> dict[str, Any]:
    """Return the sizes and times of a capture of tokens; see `plan_tokens` and `plan_run`."""
    numbers = plan_tokens(model, tokens, sites=sites, dtype=dtype, device=machines.device)
    return numbers | slowest_steps(capture=capture_times(numbers, machines))


def plan_run(
    experiment: AnyExperiment, machines: Machines, known: dict[Any, tuple[float, ...]] | None = None
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
        known: measured times of tasks of experiments of a study; those of this one are added. An
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
    cost = cost_of(source, probers, machines, limit=_LIMIT, known=known)
    numbers, bytes_of_number = cost.sizes, 4
    if "caches" in numbers:
        bytes_of_number = ITEM_SIZES[CODES[numbers["dtype"]]] * numbers["caches"]
        times["capture"] = capture_times(numbers, machines, cost.capture, start)
    n_read = bytes_of_number * sum(starmap(_numbers_read, product(probers, cost.widths)))
    times["probing"] = probing_times(cost.tasks, numbers["memory"], n_read, machines)
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
            start = time.perf_counter()
            for part in run_batches(model, [batch], plan, sites, "float32"):
                part.arrays()
            times.append(time.perf_counter() - start)
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
    if isinstance(config, ProvenConfig):
        return config.network
    network = network_class(config)(config, seed=None).requires_grad_(False)
    shapes = {name: like.shape for name, like in network.named_parameters()}
    n_bytes = dtype.itemsize * max(shape.numel() for shape in shapes.values())
    zeros = torch.from_numpy(np.zeros(n_bytes, np.uint8)).view(dtype)
    weights = {name: zeros[: shape.numel()].view(shape) for name, shape in shapes.items()}
    network.load_state_dict(weights, assign=True)
    return network
