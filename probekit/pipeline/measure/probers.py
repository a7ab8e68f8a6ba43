"""The probers of an experiment, and how long they will take.

This module imports neither pandas nor joblib, so that an experiment is validated quickly.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np

from probekit.errors import ConfigError, ProbekitError, TooFewGroupsError
from probekit.experiment.activations import AnyExperiment
from probekit.lazy_rows import LOADED_BYTES, rows_of_block
from probekit.pipeline.setup.design import ExperimentDesign
from probekit.probes.fitters import FittedRows
from probekit.probes.kinds.registry import OWN_WEIGHTS
from probekit.probes.prober import Prober
from probekit.probes.solve.coordinates import hessian_size
from probekit.probes.solve.design import MAPPED_BYTES, RESIDENT_BYTES
from probekit.probes.solve.solver import BATCH_BYTES
from probekit.products import threads

# An estimate is made from fits of so many training rows and features, in less than 0.1 s.
_WARM_UP, _MOST_ROWS, _MOST_FEATURES = 100, 4000, 192
# Measured memory of a process: its libraries, and what a row takes in each split besides its
# features (labels, groups, predictions), twice as much if labels are numbers, each with a text of
# its own. Blocks of rows that are in memory together, in float64.
_LIBRARIES, _OF_ROW, _BLOCKS = 412 << 20, 350, 5
_MEANS = {"mass_mean", "nearest_mean"}  # kinds without a matrix of features by features
_OTHER_WORK = 6.0  # time of a site, in times of its tuned fits: scores, intervals, description


def make_probers(
    experiment: AnyExperiment, design: ExperimentDesign, device: str = "cpu"
) -> tuple[Prober, ...]:
    """Return one prober per position; a prober uses the same folds and controls at all sites.

    Probers of two positions differ in control labels and scaling, which depend on the tokens.

    Raises:
        DataError: the labels, groups or split cannot be probed. Raised before the model runs.
        ConfigError: a requested control task cannot be drawn.
    """
    settings = experiment.probe.on(device)
    if not design.has_types:  # no lookup of words, and no control labels by word
        baselines = tuple(name for name in settings.baselines if name != "word_identity")
        draws = 0 if settings.control_by == "word" else settings.control_draws
        settings = settings.changed(baselines=baselines, control_draws=draws)
    probers = []
    for position, at_position in enumerate(design.positions):
        try:
            positive = experiment.data.positive
            data = design.data(position, positive, design.splits)
            within = design.data(position, positive, design.within)
            if settings.reads == "classes":
                with experiment.at("data", "positive"):
                    # The property raises if no training row has the label.
                    _ = [split.positive_code for split in data]
            try:
                probers.append(Prober(data, settings, within))
            except TooFewGroupsError:
                with experiment.at("probe", "folds"):
                    raise
            except ConfigError:  # a DataError names its rows itself
                with experiment.at("probe", "control_draws"):
                    raise
        except ProbekitError as error:
            is_sweep = len(design.positions) > 1
            error.args = (f"At {at_position.text}: {error}" if is_sweep else str(error),)
            raise
    return tuple(probers)


def probing_seconds(
    probers: Sequence[Prober], widths: Sequence[int], n_networks: int
) -> float | None:
    """Return the estimated time to probe all sites in one process, in seconds.

    A probe of each kind is tuned on random features of some training rows, and its time multiplied
    by how many more numbers all rows of all sites have.
    None if a kind reads whole texts or trees or is an MLP, whose single fits take seconds, or if
    the sampled rows have one label.

    Args:
        probers: the rows and settings at each position.
        widths: number of features of each site.
        n_networks: number of probed networks, the one of the experiment and those with random
            weights.
    """
    prober = probers[0]
    data, settings, width = prober.data, prober.settings, min(max(widths), _MOST_FEATURES)
    if any(kind.task in ("text", "tree") or kind.kind == "mlp" for kind in settings.specs):
        return None
    generator, seconds = np.random.default_rng(0), 0.0
    for most in (_WARM_UP, _MOST_ROWS):
        rows = generator.permutation(data.train)[:most]
        if len(set(data.y[rows])) < 2:
            return None
        fitted = FittedRows(data, settings, rows, np.arange(len(rows)) % settings.folds)
        X = generator.standard_normal((len(rows), width), dtype=np.float32)
        with threads(1):
            start = time.process_time()  # does not depend on what else runs on the machine
            for spec in settings.specs:
                fitted.fitter(spec).tune(X, [fitted.column], lambda *_: None)
            seconds = time.process_time() - start
    n_fits = len(prober.splits) * (n_networks + settings.control_draws * prober.has_control)
    n_fits += len(prober.within)
    size = sum(widths) / width * len(data.train) / len(rows)
    return float(_OTHER_WORK * seconds * n_fits * size * len(probers))


def seconds_of_processes(seconds: float | None, n_sites: int, workers: int | None) -> float | None:
    """Return the time of `probing_seconds` if sites are shared among processes.

    Args:
        seconds: the time of one process; None if it is unknown.
        n_sites: the number of sites.
        workers: the number of processes; None for one per core.

    >>> seconds_of_processes(60.0, n_sites=8, workers=1), seconds_of_processes(None, 8, None)
    (60.0, None)
    """
    cores = usable_cores()
    return seconds and seconds / min(workers or cores, cores, n_sites)


def usable_cores() -> int:
    """Return the number of cores of this machine that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    n_splits = sum(len(one.splits) + len(one.within) for one in probers)
    of_row = _OF_ROW * n_splits * (1 + settings.reads_numbers)
    size = _LIBRARIES + of_row * n_rows + is_loaded * site
    # Standardised rows; kinds without blocks have two copies in float64, means none.
    kinds = {one.kind for one in settings.specs}
    # Aggregated probes read tokens by blocks, unless a rule has weights of its own.
    in_blocks = set() if OWN_WEIGHTS & {*settings.rules} else {"aggregated"}
    of_tokens = {one.kind for one in settings.specs if one.task in ("text", "tree")}
    if kinds & {"svm", "mlp"} or of_tokens - in_blocks:
        size += 16 * n_train * d
    elif kinds - _MEANS:
        size += min(4 * n_train * d, RESIDENT_BYTES if is_loaded else MAPPED_BYTES)
    n_scores = len(prober.data.classes) if len(prober.data.classes) > 2 else 1
    n_groups = n_scores * len(settings.C) * (1 + settings.control_draws * prober.has_control)
    if "aggregated" in kinds:  # held-out scores of all tokens at each C
        size += 8 * n_train * max(2, n_scores) * len(settings.C)
    # At most: only fits of many iterations need Hessians.
    if kinds & {"logistic", "k_sparse", "aggregated"}:
        size += min(4 * n_groups * hessian_size(d), BATCH_BYTES)
    if kinds - _MEANS:
        size += 32 * min(d, n_train) ** 2
    return size + 8 * _BLOCKS * min(rows_of_block(d), n_rows) * d
