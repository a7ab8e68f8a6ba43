"""The cost of an experiment, before it starts: sizes, memory, and the time of each task.

Sizes follow from shapes and rows. Times are those of short measurements on this machine, scaled by
counts: one batch of the capture, and whole sites, with random features if none are given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from probekit.activations.capture import capture_bytes, described_reading, estimate_seconds
from probekit.activations.forward import make_batches, make_shards
from probekit.activations.records import SHARD_ROWS, batch_tokens
from probekit.errors import ConfigError
from probekit.experiment.activations import AnyExperiment
from probekit.experiment.schema import Experiment
from probekit.lazy_rows import LazyRows
from probekit.memory import fits_in_memory
from probekit.model.config import count_parameters
from probekit.model.families.table import zero_network
from probekit.pipeline.capture.captures import plan_capture
from probekit.pipeline.experiment.prepare import TextRows, width_of
from probekit.pipeline.measure.probers import probing_bytes
from probekit.probes.arrays import Features, Floats
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.products import check_device, threads

if TYPE_CHECKING:
    from probekit.pipeline.given.source import GivenSource  # imports pandas

# The fewest numbers of a measured sample, and the most features and numbers of a measured site.
_FEWEST_NUMBERS, _MOST_FEATURES, _MOST_NUMBERS = 1 << 17, 1024, 1 << 24


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What an experiment takes; of a study's cell, without what other cells have done.

    Attributes:
        sizes: sizes of the capture; see `plan_capture`. Empty for given activations.
        widths: number of features of each site.
        memory: bytes of a process that probes.
        capture_memory: bytes of a process that captures on a CPU; 0 if none does.
        note: how weights are read that are larger than memory; "" otherwise.
        capture: seconds to capture all rows of all networks with all cores of this machine; None if
            nothing is captured, or not on the CPU.
        tasks: seconds of each task of probing on one core or device; None if this machine does not
            have the device.
    """

    sizes: Mapping[str, Any]
    widths: Sequence[int]
    memory: int
    capture_memory: int = 0
    note: str = ""
    capture: float | None = None
    tasks: tuple[float, ...] | None


def cost_of(
    experiment: AnyExperiment,
    source: TextRows | GivenSource,
    probers: Sequence[Prober],
    *,
    limit: float,
    device: str = "cpu",
    has_throughput: bool = False,
    known: dict[Any, tuple[float, ...]] | None = None,
) -> Cost:
    """Return the cost of an experiment.

    Args:
        experiment: the experiment.
        source: its rows, or its given activations.
        probers: the rows and settings at each position.
        limit: expected seconds of a sample from which it is not measured.
        device: where networks run and probes are fitted.
        has_throughput: whether the time of a capture is known, and not measured.
        known: measured times of tasks of other cells of a study; those of this one are added. A
            cell with the settings of another, and about as many rows, is not measured again.

    Raises:
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    sizes, of_capture = dict[str, Any](), dict[str, Any]()
    given, n_networks = dict[int, LazyRows](), 1
    if isinstance(source, TextRows):
        assert isinstance(experiment, Experiment)
        widths = [width_of(one, source.config) for one in source.selections]
        sizes = plan_capture(experiment, source, device)
        n_networks = sizes["caches"]
        if device == "cpu":
            of_capture = _of_capture(experiment, source, measured=not has_throughput)
    else:
        widths, blocks = source.widths, map(source.block, source.rows.selections)
        given = dict(zip(widths, blocks, strict=True))
    try:
        check_device(device)
        size = round(2 * math.log2(len(probers[0].data.y)))
        key = (experiment.probe, experiment.split, tuple(widths), n_networks, size)
        known = {} if known is None else known
        if key not in known:
            known[key] = task_seconds(probers, widths, n_networks, limit, given)
        tasks = known[key]
    except ConfigError:  # another machine has the device
        tasks = None
    return Cost(
        sizes=sizes, widths=widths, memory=probing_bytes(probers, widths), tasks=tasks, **of_capture
    )


def _of_capture(experiment: Experiment, rows: TextRows, *, measured: bool) -> dict[str, Any]:
    """Return the fields of a `Cost` about a capture on the CPU."""
    dtype: torch.dtype = getattr(torch, experiment.on_device("cpu").model.dtype)
    in_memory = experiment.model.in_memory is not None or fits_in_memory(
        count_parameters(rows.config) * dtype.itemsize
    )
    shards = make_shards(make_batches(rows.ids, rows.plan, batch_tokens("cpu")), SHARD_ROWS)
    size = capture_bytes(rows.config, dtype, rows.sites, shards, in_memory=in_memory)
    note = "" if in_memory else described_reading(rows.config, dtype, "cpu", shards)
    seconds = None
    if measured:
        network = zero_network(rows.config, dtype)
        n_networks = 1 + experiment.model.random_weights
        seconds = n_networks * estimate_seconds(network, rows.ids, rows.plan, rows.sites)
    return {"capture_memory": size, "note": note, "capture": seconds}


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
    measured = list[tuple[int, Floats]]()
    for size in sizes:
        if measured and _extrapolated(measured, size).sum() > limit:
            break
        sample = prober.sample(size)
        if sample is not None:
            part, rows = sample
            X = imitated(part.data, width) if given is None else given[rows][:, :width]
            measured.append((size, _seconds(part, X, n_networks)))
    return _extrapolated(measured, n_rows)


def _extrapolated(measured: Sequence[tuple[int, Floats]], n_rows: int) -> Floats:
    """Return the seconds for some number of rows, which grow as before the last measured size."""
    (one, before), (two, seconds) = [(0, np.zeros(2)), *measured][-2:]
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
