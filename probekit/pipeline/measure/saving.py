"""Keeping a fitted probe of a run: its weights with where they came from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from probekit.activations.identity import Identity
from probekit.experiment.schema import Experiment
from probekit.probes.saved.facts import HeldOutScore, ProbeFacts, Scalar
from probekit.probes.saved.files import LayerArrays
from probekit.probes.saved.saved_probe import SavedProbe
from probekit.probes.score.measurement import Measurement
from probekit.provenance import versions


@dataclass(frozen=True, eq=False)
class FittedProbe:
    """A fitted probe as a matter of arrays, whatever estimator it came from.

    Attributes:
        kind: such as `logistic`.
        layers: weight (n_out, n_in) and bias (n_out,) of each, for raw activations.
        classes: the labels in the order of the scores; none for a probe of numbers.
        scores_are_logits: whether the softmax of the scores is the probability.
        hyperparameters: of the fit.
    """

    kind: str
    layers: tuple[LayerArrays, ...]
    classes: tuple[str, ...]
    scores_are_logits: bool
    hyperparameters: Mapping[str, Scalar]


def save_probe(
    path: Path,
    fitted: FittedProbe,
    experiment: Experiment,
    identity: Identity,
    *,
    sites: Sequence[str],
    measured: Sequence[Measurement],
    view: Literal["raw", "normalized"] = "raw",
) -> Path:
    """Write a probe of an experiment and return the path of its JSON.

    Args:
        path: the stem of its two files.
        fitted: the probe.
        experiment: gives the position and the names.
        identity: of the store that the rows were read from.
        sites: what the features were read at, side by side, as `SiteSelection.text` writes it.
        measured: of the site; kept are those of the task on the test rows.
        view: of the rows that were fitted.

    Raises:
        DataError: weights and classes make no probe.
        StoreError: the files cannot be written.
    """
    facts = ProbeFacts(
        kind=fitted.kind,
        scores_are_logits=fitted.scores_are_logits,
        sites=tuple(sites),
        view=view,
        position=experiment.tokens.position.model_dump(mode="json"),
        bos=experiment.tokens.bos,
        model=experiment.model.source,
        compute=experiment.model.dtype,
        dtype=experiment.capture.dtype,
        weights=identity.weights,
        tokenizer=identity.tokenizer,
        cache=identity.key,
        hyperparameters=dict(fitted.hyperparameters),
        metrics={
            measurement.metric: _score(measurement)
            for measurement in measured
            if measurement.target == "task" and measurement.split == "test"
        },
        seed=experiment.probe.seed,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
    )
    return SavedProbe(fitted.layers, fitted.classes, facts).save(path)


def _score(measurement: Measurement) -> HeldOutScore:
    return HeldOutScore(
        value=measurement.value,
        ci_low=_known(measurement.ci_low),
        ci_high=_known(measurement.ci_high),
        chance=_known(measurement.chance),
        n=measurement.n_test,
        n_groups=measurement.n_groups,
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
