"""Saving the fitted probes of a run: weights and provenance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from probekit.pipeline.experiment.source import RowsOrigin
from probekit.probes.saved_probe import HeldOutScore, LayerArrays, ProbeFacts, SavedProbe, Scalar
from probekit.probes.score.scored import Measurement
from probekit.probes.solve.layers import unit_rows
from probekit.provenance import versions
from probekit.results.site_results import site_stem

_ROWS_AT_ONCE = 10_000  # rows that are converted to float64 together


def probe_path(run_dir: Path, offset: int, site: str, probe: str) -> Path:
    """Return the common stem of the two files of a probe in the folder of a run.

    >>> probe_path(Path("run"), -1, "blocks.0.hook_resid_pre", "k_sparse:4").as_posix()
    'run/probes/-1/blocks.0.hook_resid_pre/k_sparse-4'
    """
    of_site = site_stem(site, offset).relative_to("sites")
    return run_dir / "probes" / of_site / probe.replace(":", "-")


@dataclass(frozen=True, eq=False)
class FittedProbe:
    """Arrays and description of a fitted probe, independent of its estimator.

    Attributes:
        kind: kind of probe, such as `logistic`.
        layers: weight (n_out, n_in) and bias (n_out,) of each layer, for raw activations.
        classes: labels in the order of the scores; empty for a regression probe.
        scores_are_logits: whether the softmax of the scores gives probabilities.
        hyperparameters: hyperparameters of the fit.
        projection_sd: see `projection_sds`.
    """

    kind: str
    layers: tuple[LayerArrays, ...]
    classes: tuple[str, ...]
    scores_are_logits: bool
    hyperparameters: Mapping[str, Scalar]
    projection_sd: tuple[float, ...] = ()


def projection_sds(
    layers: tuple[LayerArrays, ...], X: NDArray[np.floating], rows: NDArray[np.integer]
) -> tuple[float, ...]:
    """Return the standard deviation of the projection on each direction of a probe.

    It is empty for a probe without directions: one of several layers, or with weights of 0 only.

    Args:
        layers: weight (n_out, n_in) and bias of each layer, for raw activations.
        X: features (n_rows, n_in) of all rows.
        rows: numbers of the rows that the probe was fitted on.

    >>> layer = np.array([[0.0, 2.0]]), np.zeros(1)
    >>> projection_sds((layer,), np.array([[5.0, 1.0], [0.0, 7.0]]), np.array([0, 1]))
    (3.0,)
    """
    weights = np.asarray(layers[0][0], np.float64)
    unit = unit_rows(weights) if len(layers) == 1 else None
    if unit is None:
        return ()
    parts = np.array_split(rows, 1 + len(rows) // _ROWS_AT_ONCE)
    projections = np.concatenate([np.asarray(X[part], np.float64) @ unit.T for part in parts])
    return tuple(projections.std(axis=0).tolist())


def save_probe(
    path: Path,
    fitted: FittedProbe,
    origin: RowsOrigin,
    *,
    seed: int,
    sites: Sequence[str],
    measured: Sequence[Measurement] | None,
) -> Path:
    """Write a probe of an experiment and return the path of its JSON.

    Args:
        path: common stem of its two files.
        fitted: the probe.
        origin: origin of the rows that the probe was fitted on.
        seed: random seed for folds and draws.
        sites: sites whose features are concatenated, in the format of `SiteSelection.text`.
        measured: measurements at the site; only the test scores of the task are saved. None for a
            probe that is fitted on all rows and therefore has no test rows.

    Raises:
        DataError: the shapes of weights and classes do not match.
        StoreError: the files cannot be written.
    """
    facts = ProbeFacts(
        kind=fitted.kind,
        scores_are_logits=fitted.scores_are_logits,
        sites=tuple(sites),
        **asdict(origin),
        hyperparameters=dict(fitted.hyperparameters),
        metrics={
            measurement.metric: _score(measurement)
            for measurement in measured or ()
            if measurement.target == "task" and measurement.split == "test"
        },
        projection_sd=fitted.projection_sd,
        is_tested=measured is not None,
        seed=seed,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
    )
    return SavedProbe(fitted.layers, fitted.classes, facts).save(path)


def _score(measurement: Measurement) -> HeldOutScore:
    return HeldOutScore(
        value=measurement.value,
        ci_low=_none_if_nan(measurement.ci_low),
        ci_high=_none_if_nan(measurement.ci_high),
        chance=_none_if_nan(measurement.chance),
        n=measurement.n_test,
        n_groups=measurement.n_groups,
    )


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value
