"""Which models transformers computes: those that no family does, or whose name says so."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from probekit.model.weights import sources
from probekit.model.weights.files import read_json
from probekit.model.weights.hub import find_model

ADAPTER = "adapter_config.json"


def uses_transformers(source: str | Path, model_types: Collection[str]) -> bool:
    """Return whether transformers computes a model.

    Args:
        source: name or folder; its end may name the engine, as in `mini?engine=transformers`.
        model_types: values of `model_type` that the families of the package compute.

    Raises:
        ConfigError: the name is not valid.
        MissingError: there is no such model.
    """
    engine = sources.engine_named(source)
    if engine != "auto" or sources.without_options(source) in sources.KNOWN_MODELS:
        return engine == "transformers"
    if is_gguf(source):
        return True
    folder = find_model(source, "config")
    if (folder / ADAPTER).exists():
        return True
    path = folder / "config.json"
    return path.exists() and needs_transformers(read_json(path), model_types)


def needs_transformers(entries: Mapping[str, Any], model_types: Collection[str]) -> bool:
    """Return whether no family computes a model, given its config.json."""
    is_known = entries.get("model_type", "gpt2") in model_types
    return not is_known or bool(entries.get("quantization_config"))


def is_gguf(source: str | Path) -> bool:
    """Return whether a model is a file of llama.cpp."""
    return sources.without_options(source).endswith(".gguf")
