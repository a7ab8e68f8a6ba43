"""The run key, which names a run's folder."""

from __future__ import annotations

from probekit.pipeline.experiment.tables import RunInputs
from probekit.provenance import PART_VERSIONS, digest_json, digest_sources, versions

_LIBRARIES = ("scikit-learn", "numpy", "scipy", "torch")


def run_key(inputs: RunInputs) -> str:
    """Return the run key: a hash of every input that affects the results, and of all source files.

    Unlike activations, results of changed code are always computed again: a run costs minutes, and
    a table must not mix numbers of two versions of the code.
    """
    config = inputs.experiment.model_dump(mode="json")
    for key in ("root", "hub", "memory"):  # results depend on the contents, not on their source
        config["data"].pop(key, None)
    config.get("activations", {}).pop("folder", None)
    installed = versions()
    return digest_json(
        {
            "config": config,
            "card": inputs.card,
            "data": inputs.prepared.dataset.digest,
            "activations": inputs.source.identity(),
            "parts": PART_VERSIONS,
            "sources": digest_sources(),
            "libraries": {name: installed[name] for name in _LIBRARIES},
        }
    )[:12]
