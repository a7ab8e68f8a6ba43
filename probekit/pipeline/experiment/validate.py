"""What can be said of an experiment before any work is done."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from probekit.activations.capture import estimate_seconds
from probekit.activations.sizing import shape_of
from probekit.data.checks import Finding
from probekit.errors import DataError
from probekit.experiment.schema import Experiment
from probekit.model.gpt2 import GPT2
from probekit.pipeline.experiment.prepare import Prepared, prepare, read_card
from probekit.pipeline.experiment.record import findings
from probekit.pipeline.measure.probing import make_probers

_BYTES = {"float32": 4, "float16": 2}


@dataclass(frozen=True)
class ValidationReport:
    """What `probekit validate` shows.

    Attributes:
        findings: of the data, errors first.
        n_examples: that give rows.
        n_rows: of every captured site.
        n_sites: that are captured.
        bytes: of all captured activations, both models together.
        minutes: that the capture will take on this machine's CPU, from a timed batch of it.
    """

    findings: tuple[Finding, ...]
    n_examples: int = 0
    n_rows: int = 0
    n_sites: int = 0
    bytes: int = 0
    minutes: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing found would stop a run or make its numbers false."""
        return all(finding.level != "error" for finding in self.findings)


def validate(experiment: Experiment) -> ValidationReport:
    """Return the findings on an experiment's data, and what its capture will cost.

    Raises:
        ProbekitError: a file is missing or cannot be read; what is wrong with readable data is
            among the findings.
    """
    read_card(experiment.data)
    try:
        prepared = prepare(experiment)
        probers = make_probers(experiment, prepared)
    except DataError as error:
        return ValidationReport((Finding("error", "data", str(error)),))
    n_models = 1 + experiment.model.random_weights
    return ValidationReport(
        findings=findings(prepared, probers),
        n_examples=len(prepared.dataset),
        n_rows=len(prepared.plan.example),
        n_sites=len(prepared.sites),
        bytes=n_models * _bytes(prepared, experiment.capture.dtype),
        minutes=n_models * _seconds(prepared, experiment) / 60,
    )


def _bytes(prepared: Prepared, dtype: str) -> int:
    features = sum(math.prod(shape_of(site, prepared.config)) for site in prepared.sites)
    return len(prepared.plan.example) * features * _BYTES[dtype]


def _seconds(prepared: Prepared, experiment: Experiment) -> float:
    model = GPT2(prepared.config).to(getattr(torch, experiment.model.dtype))
    return estimate_seconds(model, prepared.ids, prepared.plan, prepared.sites)
