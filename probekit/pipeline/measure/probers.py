"""The probers of an experiment, and how long they will take.

This module imports neither pandas nor joblib, so that an experiment is validated quickly.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from probekit.errors import ConfigError, ProbekitError, TooFewGroupsError
from probekit.experiment.activations import AnyExperiment
from probekit.lazy_rows import LOADED_BYTES, rows_of_block
from probekit.pipeline.experiment.rows import Rows
from probekit.probes.arrays import Features
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.solve.coordinates import hessian_size
from probekit.probes.solve.design import MAPPED_BYTES, RESIDENT_BYTES
from probekit.probes.solve.solver import BATCH_BYTES
from probekit.products import START_UP, threads

# The smallest sample, and the most features and numbers that are measured.
_WARM_UP, _MOST_FEATURES, _MOST_NUMBERS = 128, 1024, 1 << 24
# Measured memory of a process: its libraries, and what a row takes in each split besides its
# features (labels, groups, predictions), twice as much if labels are numbers, each with a text of
# its own. Blocks of rows that are in memory together, in float64.
_LIBRARIES, _OF_ROW, _BLOCKS = 412 << 20, 350, 5
_MEANS = {"mass_mean", "nearest_mean"}  # kinds without a matrix of features by features


def make_probers(experiment: AnyExperiment, rows: Rows, device: str = "cpu") -> tuple[Prober, ...]:
    """Return one prober per position; a prober uses the same folds and controls at all sites.

    Probers of two positions differ in control labels and scaling, which depend on the tokens.

    Raises:
        DataError: the labels, groups or split cannot be probed. Raised before the model runs.
        ConfigError: a requested control task cannot be drawn.
    """
    with experiment.at("probe", "kinds"):
        settings = experiment.probe.settings(device)
    if not rows.has_types:  # no lookup of words, and no control labels by word
        baselines = tuple(name for name in settings.baselines if name != "word_identity")
        draws = 0 if settings.control_by == "word" else settings.control_draws
        settings = replace(settings, baselines=baselines, control_draws=draws)
    probers = []
    for position, at_position in enumerate(rows.positions):
        try:
            data = rows.data(position, experiment.data.positive)
            if settings.reads == "classes":
                with experiment.at("data", "positive"):
                    # The property raises if no training row has the label.
                    _ = [split.positive_code for split in data]
            try:
                probers.append(Prober(data, settings))
            except TooFewGroupsError:
                with experiment.at("probe", "folds"):
                    raise
            except ConfigError:  # a DataError names its rows itself
                with experiment.at("probe", "control_draws"):
                    raise
        except ProbekitError as error:
            is_sweep = len(rows.positions) > 1
            error.args = (f"At {at_position.text}: {error}" if is_sweep else str(error),)
            raise
    return tuple(probers)


def probing_seconds(
    probers: Sequence[Prober], widths: Sequence[int], n_networks: int, limit: float = 0.05
) -> tuple[float, ...] | None:
    """Return the estimated time of each task of probing on one core, in seconds.

    The tasks of a position are its baselines and its sites. A site with random features is measured
    on larger and larger samples of examples; the time then grows with the rows as it grew from the
    last sample but one to the last. None if no sample can be split as all rows are.

    Args:
        probers: the rows and settings at each position.
        widths: number of features of each site.
        n_networks: number of probed networks, the one of the experiment and those with random
            weights.
        limit: seconds of a sample after which no larger one is measured.
    """
    measured = {width: _measured(probers[0], width, n_networks, limit) for width in set(widths)}
    sites = [found for width in widths if (found := measured[width]) is not None]
    if len(sites) < len(widths):
        return None
    return len(probers) * (sites[0][0], *(seconds for _, seconds in sites))


def _measured(
    prober: Prober, width: int, n_networks: int, limit: float
) -> tuple[float, float] | None:
    """Return the estimated seconds of the baselines and of a site; None if they are unknown."""
    n_rows = len(prober.data.y)
    if width > _MOST_FEATURES and n_rows * width > _MOST_NUMBERS:
        # The time grows with a power of the width, which is that from half the features to all.
        half, whole = (
            _measured(prober, part, n_networks, limit)
            for part in (_MOST_FEATURES // 2, _MOST_FEATURES)
        )
        power = np.log2(width / _MOST_FEATURES)
        return half and whole and (whole[0], float(whole[1] * (whole[1] / half[1]) ** power))
    halvings = range(int(np.log2(max(1, n_rows / _WARM_UP))) // 2 * 2, -1, -2)
    sizes, seconds = list[int](), list[tuple[float, float]]()
    for size in (_WARM_UP, *(n_rows >> number for number in halvings)):
        sample = prober.sample(size)
        if sample is None:
            continue
        X = imitated(sample.data, width)
        with threads(1):
            clock = [_clock(sample)]
            sample.baselines()
            clock.append(_clock(sample))
            sample.site(X)
            clock.append(_clock(sample))
            if n_networks > 1:
                sample.random_site([X], 1)
            clock.append(_clock(sample))
        baselines, site, random = np.diff(clock)
        sizes.append(size)
        seconds.append((baselines, site + (n_networks - 1) * random))
        if clock[-1] - clock[0] > limit and len(sizes) > 1:
            break
    if len(sizes) < 2:
        return None
    one, two = np.array(seconds[-2:])
    growth = np.maximum(0, two - one) / max(1, sizes[-1] - sizes[-2])
    baselines, site = two + growth * (n_rows - sizes[-1])
    return float(baselines), float(site)


def _clock(prober: Prober) -> float:
    """Return the seconds of this process, which do not depend on what else runs on the machine."""
    if prober.settings.device == "cpu":
        return time.process_time()
    return time.perf_counter()


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
    return np.asarray(X / np.sqrt(np.arange(1, width + 1)) @ axes, np.float32)


def usable_cores() -> int:
    """Return the number of cores of this machine that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seconds_of_processes(
    tasks: Sequence[float] | None, workers: int | None, cores: int | None = None
) -> float | None:
    """Return the time in which processes do tasks, each the next one when it is free, in seconds.

    Args:
        tasks: the time of each task on one core; None if it is unknown.
        workers: number of processes; None for one per core. Each but the first starts for a few
            seconds. If they are more than the cores, they share these equally.
        cores: number of cores; None for those of this machine.

    >>> seconds_of_processes([2.0, 2.0, 6.0], 1), seconds_of_processes(None, 1)
    (10.0, None)
    """
    if tasks is None:
        return None
    cores = cores or usable_cores()
    workers = min(workers or cores, len(tasks))
    if workers == 1 or sum(tasks) < 2 * START_UP:
        return sum(tasks)
    waiting = deque(tasks)
    # What is left to do of the start or of the task of each process.
    left, now = [waiting.popleft(), *[START_UP] * (workers - 1)], 0.0
    while left:
        passed = min(left)
        now += passed * max(1.0, len(left) / cores)
        left = [one - passed for one in left if one > passed]
        while waiting and len(left) < workers:
            left.append(waiting.popleft())
    return now


def probing_bytes(probers: Sequence[Prober], widths: Sequence[int]) -> int:
    """Return the predicted peak memory of one process that probes the sites, in bytes.

    Pages of mapped files are not counted. Activations that the caller holds come on top.

    Args:
        probers: the rows and settings at each position.
        widths: number of features of each site.
    """
    prober, d = probers[0], max(widths)
    settings, n_rows, n_train = prober.settings, len(prober.data.y), len(prober.data.train)
    site = 4 * n_rows * d
    is_loaded = site <= LOADED_BYTES
    of_row = _OF_ROW * sum(one.n_splits for one in probers) * (1 + settings.reads_numbers)
    size = _LIBRARIES + of_row * n_rows + is_loaded * site
    # Standardised rows; kinds without blocks have two copies in float64, means none.
    kinds = {one.kind for one in settings.kinds}
    if kinds & {"svm", "mlp"} or {one.task for one in settings.kinds} & {"text", "tree"}:
        size += 16 * n_train * d
    elif kinds - _MEANS:
        size += min(4 * n_train * d, RESIDENT_BYTES if is_loaded else MAPPED_BYTES)
    n_scores = len(prober.data.classes) if len(prober.data.classes) > 2 else 1
    n_groups = n_scores * len(settings.C) * (1 + settings.control_draws * prober.has_control)
    if kinds & {"logistic", "k_sparse"}:  # at most: only fits of many iterations need Hessians
        size += min(4 * n_groups * hessian_size(d), BATCH_BYTES)
    if kinds - _MEANS:
        size += 32 * min(d, n_train) ** 2
    return size + 8 * _BLOCKS * min(rows_of_block(d), n_rows) * d
