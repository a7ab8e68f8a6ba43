"""What the interventions of an experiment will do: rows that are left out, passes, memory."""

from __future__ import annotations

from collections.abc import Mapping

from probekit.amounts import counted
from probekit.data.findings import Finding
from probekit.experiment.interventions import CHOSEN
from probekit.experiment.schema import Experiment
from probekit.interventions.base_pass import BATCH_BYTES, BasePass
from probekit.interventions.causes.responses import TEXTS_AT_ONCE
from probekit.pipeline.experiment.prepare import TextRows
from probekit.pipeline.intervene.inputs import CauseInputs, cause_inputs
from probekit.pipeline.intervene.verdict_rows import DOSES, DRAWS

_WORKING = 2  # texts and their counterfactuals


def cause_findings(experiment: Experiment, prepared: TextRows) -> tuple[Finding, ...]:
    """Return warnings about rows that are left out, and the cost of the interventions.

    Raises:
        ConfigError: a site does not exist, or the probed position is not a single token.
        DataError: no rows are left.
    """
    if not experiment.interventions:
        return ()
    inputs = cause_inputs(experiment, prepared)
    n_passes = 0
    for number, step in enumerate(experiment.interventions):
        named = [pattern for pattern in step.sites if pattern != CHOSEN]
        with experiment.at("interventions", number, "sites"):
            selected = prepared.config.sites.select(named) if named else ()
        n_sites = len(selected) + (len(step.sites) > len(named))
        if step.has_direction:
            doses = len(step.by or DOSES) if step.do == "steer" else 1
            n_passes += n_sites * len(step.along or ("probe",)) * (step.draws or DRAWS) * doses
        else:
            n_tokens = inputs.batch.mask.shape[1]
            places = sum(n_tokens if at == "each" else 1 for at in step.at)
            n_passes += n_sites * places
    message = (
        f"Interventions: {counted(n_passes, 'edit')} of each of {len(inputs.test):,} texts, "
        f"{_memory(prepared.config.axis_sizes, inputs) / 1e6:,.0f} MB for the activations of "
        f"{counted(min(TEXTS_AT_ONCE, len(inputs.batch)), 'text')} at a time."
    )
    return (*inputs.findings, Finding("info", "interventions", message))


def _memory(sizes: Mapping[str, int], inputs: CauseInputs) -> int:
    n_texts, n_positions = inputs.batch.ids.shape
    return BATCH_BYTES + _WORKING * BasePass.bytes_kept(
        sizes, min(TEXTS_AT_ONCE, n_texts), n_positions, n_sites=1
    )
