"""The probers of an experiment, and how long they will take.

This module imports neither pandas nor joblib, so that an experiment is validated quickly.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from probekit.errors import ConfigError, DataError, ProbekitError, TooFewGroupsError
from probekit.experiment.activations import AnyExperiment
from probekit.pipeline.experiment.rows import Rows
from probekit.probes.data import sample_groups
from probekit.probes.fitters import FittedRows
from probekit.probes.prober import Prober

# Training rows of the fits that an estimate is made from, and their features in all.
_ROWS_OF_ESTIMATE, _NUMBERS_OF_ESTIMATE = 4000, 4 << 20
_LONG_ESTIMATE = 0.5  # seconds, in which a warm-up no longer matters
_OTHER_WORK = 4.0  # time of a site, in times of its tuned fits: scores, intervals, description


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
    probers: Sequence[Prober], widths: Sequence[int], n_networks: int, workers: int | None = None
) -> float | None:
    """Return the estimated time to probe all sites, in seconds.

    A probe of each kind is tuned on random features of some training rows, and its time multiplied.
    None if a kind reads whole texts or trees, or the sampled rows cannot be fitted.

    Args:
        probers: the rows and settings at each position.
        widths: number of features of each site.
        n_networks: number of probed networks, the one of the experiment and those with random
            weights.
        workers: number of sites probed in parallel; None for one per core.
    """
    prober = probers[0]
    data, settings, width = prober.data, prober.settings, max(widths)
    if {kind.task for kind in settings.kinds} & {"text", "tree"}:
        return None
    seconds = math.inf
    try:
        most = min(_ROWS_OF_ESTIMATE, 1 + _NUMBERS_OF_ESTIMATE // width)
        rows = data.train[sample_groups(data.groups[data.train], most, settings.seed)]
        fitted = FittedRows.of(data, settings, rows)
        X = np.random.default_rng(0).standard_normal((len(rows), width), dtype=np.float32)
        for _ in range(2):  # the first is a warm-up
            start = time.perf_counter()
            for spec in settings.kinds:
                fitted.fitter(spec).tune(X, [fitted.column], _no_fit_reported)
            seconds = min(seconds, time.perf_counter() - start)
            if seconds > _LONG_ESTIMATE:
                break
    except DataError:  # too few rows, groups or labels in the sample
        return None
    n_fits = prober.n_splits * (n_networks + settings.control_draws * prober.has_control)
    size = sum(widths) / width * len(data.train) / len(rows)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    n_parallel = min(workers or cores or 1, cores or 1, len(widths))
    return float(_OTHER_WORK * seconds * n_fits * size * len(probers) / n_parallel)


def _no_fit_reported(done: int, total: int) -> None:
    """Report no progress."""
    del done, total
