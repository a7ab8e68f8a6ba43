"""What names the folder of a run: everything that its files depend on."""

from __future__ import annotations

from probekit.activations.identity import identify
from probekit.code_digest import digest_code
from probekit.experiment.schema import Experiment
from probekit.pipeline.capture.captures import Models
from probekit.pipeline.experiment.prepare import Prepared
from probekit.provenance import digest_json, versions

# Everything that it imports is digested, too.
CODE = "probekit.pipeline.experiment.run"
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
            "code": digest_code(CODE),
            "libraries": {name: found[name] for name in _LIBRARIES},
        }
    )[:12]
