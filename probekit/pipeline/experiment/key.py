"""The run key, which names a run's folder."""

from __future__ import annotations

from probekit.pipeline.experiment.tables import RunInputs
from probekit.provenance import digest_code, digest_json, versions

# This module imports all code that affects the tables of a run.
TABLES = "probekit.pipeline.experiment.tables"
INTERVENTIONS = "probekit.pipeline.intervene.run"
_LIBRARIES = ("scikit-learn", "numpy", "scipy", "torch")


def run_key(inputs: RunInputs) -> str:
    """Return the run key: a hash of every input that affects the results."""
    experiment, prepared = inputs.experiment, inputs.prepared
    config = experiment.model_dump(mode="json")
    for key in ("root", "hub", "memory"):  # results depend on the contents, not on their source
        config["data"].pop(key, None)
    config.get("activations", {}).pop("folder", None)
    roots = [TABLES]
    if config.get("interventions"):
        roots.append(INTERVENTIONS)
    else:  # a run without them keeps its key when their code or keys change
        for key in ("interventions", "measure"):
            config.pop(key, None)
    installed = versions()
    return digest_json(
        {
            "config": config,
            "card": inputs.card,
            "data": prepared.dataset.digest,
            "activations": inputs.source.identity(),
            "code": digest_code(*roots),
            "libraries": {name: installed[name] for name in _LIBRARIES},
        }
    )[:12]
