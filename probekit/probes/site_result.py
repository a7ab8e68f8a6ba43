"""Scores, predictions and fits of all kinds of probe at one site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from probekit.probes.score.measurement import Measurement, Predictions
from probekit.probes.solve.layers import FittedLayers


class Predictor(NamedTuple):
    """Origin of predictions: the kind of probe ("none" for a baseline) and the target."""

    probe: str
    target: str


def control_draw(number: int) -> str:
    """Return the target of the predictions of one draw of the control task.

    >>> control_draw(0)
    'control 0'
    """
    return f"control {number}"


@dataclass(frozen=True, eq=False)
class SiteResult:
    """The measurements of one site, or of the baselines, and the predictions on test rows.

    Attributes:
        measurements: the rows of results.csv, without the columns in `place`.
        predictions: the predictions of each probe on the test rows. With several splits there are
            also predictions of each draw of the control task; `control_draw` gives their target.
        fits: the fit of the task for each kind of probe. A single split is fitted on its training
            rows; with several splits, this is a further fit on all rows. Kinds that are not a
            stack of layers have none, and results read from disk have none.
        penalties: the penalty of each of `fits`, by kind; None for a kind without one.
        place: the columns of results.csv that identify run, site and position.
        probes: digests of the weights of the saved probes, by file name relative to the run's
            folder.
        files: digests of all files of the site, including its probes; empty before it is saved.
    """

    measurements: list[Measurement] = field(default_factory=list)
    predictions: dict[Predictor, Predictions] = field(default_factory=dict)
    fits: dict[str, FittedLayers] = field(default_factory=dict)
    penalties: dict[str, float | None] = field(default_factory=dict)
    place: Mapping[str, Any] = field(default_factory=dict)
    probes: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of results.csv."""
        return [{**self.place, **asdict(measurement)} for measurement in self.measurements]

    def of_kind(self, probe: str) -> list[Measurement]:
        """Return the measurements of one kind of probe, the task on test rows first."""
        return [one for one in self.measurements if one.probe == probe]
