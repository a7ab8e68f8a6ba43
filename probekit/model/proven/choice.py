"""Which models transformers computes: those that no family does, or whose name has this engine."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from probekit.errors import ConfigError, nearest
from probekit.model.weights import sources
from probekit.model.weights.files import read_json
from probekit.model.weights.hub import find_model
from probekit.terminal import SILENT, Watcher


class Proving(NamedTuple):
    """Where a model is proven before its sites are known, and what receives the progress."""

    device: str = "cpu"
    watcher: Watcher = SILENT


ON_CPU = Proving()
ENGINES = ("auto", "native", "transformers")
ADAPTER = "adapter_config.json"


def computed_by(source: str | Path, engine: str) -> str | Path:
    """Return the name of a model with its engine; `auto` adds nothing.

    >>> computed_by("mini", "transformers")
    'mini?engine=transformers'
    """
    if engine == "auto":
        return source
    return f"{sources.without_options(source)}{sources.ENGINE}{engine}"


def engine_named(source: str | Path) -> str:
    """Return the engine in the name of a model: `auto`, `native` or `transformers`.

    >>> engine_named("gpt2?engine=transformers"), engine_named("gpt2")
    ('transformers', 'auto')

    Raises:
        ConfigError: there is no such engine.
    """
    engine = str(source).partition(sources.ENGINE)[2] or "auto"
    if engine not in ENGINES:
        raise ConfigError(f"{source}: the engine is {engine!r}. {nearest(engine, ENGINES)}")
    return engine


def uses_transformers(source: str | Path, model_types: Collection[str]) -> bool:
    """Return whether transformers computes a model.

    Args:
        source: name or folder; its end may name the engine, as in `mini?engine=transformers`.
        model_types: values of `model_type` that the families of the package compute.

    Raises:
        ConfigError: the name is not valid.
        MissingError: there is no such model.
    """
    engine = engine_named(source)
    if engine != "auto" or sources.without_options(source) in sources.KNOWN_MODELS:
        return engine == "transformers"
    if is_gguf(source):
        return True
    folder = find_model(source, "config")
    path = folder / "config.json"
    is_adapter = (folder / ADAPTER).exists()
    return is_adapter or (path.exists() and _is_foreign(read_json(path), model_types))


def runs_in_transformers(model: Any, engine: str, model_types: Collection[str]) -> bool:
    """Return whether transformers computes a loaded model of its own.

    Args:
        model: the model.
        engine: `auto`, `native` or `transformers`.
        model_types: see `uses_transformers`.

    Raises:
        ConfigError: there is no such engine.
    """
    if engine_named(computed_by("", engine)) != "auto":
        return engine == "transformers"
    is_quantised = any(hasattr(one, "__tensor_flatten__") for one in model.parameters())
    is_adapted = hasattr(model, "peft_config")
    return is_quantised or is_adapted or _is_foreign(model.config.to_dict(), model_types)


def _is_foreign(entries: Mapping[str, Any], model_types: Collection[str]) -> bool:
    """Return whether no family computes a model with this config.json."""
    is_known = entries.get("model_type", "gpt2") in model_types
    return not is_known or bool(entries.get("quantization_config"))


def is_gguf(source: str | Path) -> bool:
    """Return whether a model is a file of llama.cpp."""
    return sources.without_options(source).endswith(".gguf")
