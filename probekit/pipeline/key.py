"""What names the folder of a run: everything that its files depend on."""

from __future__ import annotations

from probekit.activations.identity import identify
from probekit.experiment.schema import Experiment
from probekit.pipeline.captures import Models
from probekit.pipeline.prepare import Prepared
from probekit.provenance import digest_code, digest_json, versions

# What a run's files depend on beside its inputs and activations, whose identity says it itself.
# A test follows the imports of a run and fails on a module that is missing.
CODE = (
    "probekit.amounts",
    "probekit.csv_files",
    "probekit.probes",
    "probekit.data",
    "probekit.activations.committed",
    "probekit.activations.layout",
    "probekit.activations.reader",
    "probekit.analysis.head_scores",
    "probekit.model.sites",
    "probekit.model.tokenizer",
    "probekit.pipeline.answers",
    "probekit.pipeline.apply",
    "probekit.pipeline.attention",
    "probekit.pipeline.calibration",
    "probekit.pipeline.captures",
    "probekit.pipeline.chosen",
    "probekit.pipeline.crews",
    "probekit.pipeline.devices",
    "probekit.pipeline.features",
    "probekit.pipeline.folder",
    "probekit.pipeline.holdout",
    "probekit.pipeline.jobs",
    "probekit.pipeline.keeping",
    "probekit.pipeline.kept",
    "probekit.pipeline.key",
    "probekit.pipeline.norms",
    "probekit.pipeline.over_training",
    "probekit.pipeline.prepare",
    "probekit.pipeline.probing",
    "probekit.pipeline.record",
    "probekit.pipeline.rows",
    "probekit.pipeline.run",
    "probekit.pipeline.significance",
    "probekit.pipeline.sparse_features",
    "probekit.report.table",
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
            "code": digest_code(*CODE),
            "libraries": {name: found[name] for name in _LIBRARIES},
        }
    )[:12]
