"""What names the folder of a run: everything that its files depend on."""

from __future__ import annotations

from probekit.activations.identity import identify
from probekit.code_digest import digest_code
from probekit.experiment.schema import Experiment
from probekit.pipeline.capture.captures import Models
from probekit.pipeline.experiment.prepare import Prepared
from probekit.provenance import digest_json, versions

# What a run's files depend on beside its inputs and activations, whose identity says it itself.
# A test follows the imports of a run and fails on a module that is missing.
CODE = (
    "probekit.amounts",
    "probekit.probes",
    "probekit.data",
    "probekit.activations.store.committed",
    "probekit.activations.store.layout",
    "probekit.activations.store.reader",
    "probekit.analysis.head_scores",
    "probekit.model.sites",
    "probekit.model.text.tokenizer",
    "probekit.pipeline.measure.predictions",
    "probekit.pipeline.look.apply",
    "probekit.pipeline.look.attention",
    "probekit.pipeline.measure.calibration",
    "probekit.pipeline.capture.captures",
    "probekit.pipeline.measure.chosen",
    "probekit.pipeline.capture.local_workers",
    "probekit.pipeline.capture.devices",
    "probekit.pipeline.experiment.features",
    "probekit.pipeline.experiment.holdout",
    "probekit.pipeline.capture.jobs",
    "probekit.pipeline.measure.saving",
    "probekit.pipeline.measure.site_results",
    "probekit.pipeline.experiment.key",
    "probekit.pipeline.experiment.norms",
    "probekit.pipeline.experiment.over_training",
    "probekit.pipeline.experiment.prepare",
    "probekit.pipeline.measure.probing",
    "probekit.pipeline.experiment.record",
    "probekit.pipeline.experiment.rows",
    "probekit.pipeline.experiment.run",
    "probekit.pipeline.measure.significance",
    "probekit.pipeline.measure.sparse_features",
    "probekit.results.table",
)
_LIBRARIES = ("scikit-learn", "numpy", "scipy", "torch")


def run_key(experiment: Experiment, prepared: Prepared, models: Models, card: str | None) -> str:
    """Return what names the run's folder: a hash of all that its files depend on."""
    config = experiment.model_dump(mode="json")
    del config["data"]["root"]  # where the files lie does not change what they say
    found = versions()
    return digest_json(
        {
            "config": config,
            "card": card,
            "data": prepared.dataset.digest,
            "activations": {
                target: identify(
                    model,
                    prepared.tokenizer.digest,
                    prepared.ids,
                    prepared.plan,
                    experiment.capture.dtype,
                ).to_json()
                for target, model in models.items()
            },
            "code": digest_code(
                *(c for c in CODE if c not in ("probekit.probes", "probekit.data"))
            ),
            "libraries": {name: found[name] for name in _LIBRARIES},
        }
    )[:12]
