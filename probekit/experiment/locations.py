"""Absolute locations of the files, folders and models that settings name."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from probekit.errors import ConfigError, MissingError
from probekit.experiment.data import URL
from probekit.experiment.document import Document
from probekit.model.weights.sources import KNOWN_MODELS
from probekit.section import Section
from probekit.training.recipe import Recipe
from probekit.training.run_files import find_checkpoints

_IS_RECIPE = (
    "this is a pretraining recipe (it has {keys}), not an experiment. Run it with `probekit "
    "pretrain {path}`."
)
_ON_ACTIVATIONS = (
    "this is an experiment on given activations, and this step needs a model that reads texts. Use "
    "`probekit validate {path}` or `probekit run {path}`."
)
_MODEL_TOO = (
    "the sections `{key}` and `activations` exclude each other: given activations have been "
    "computed already. Remove one of them."
)


def resolve_activations(values: dict[str, Any], document: Document) -> None:
    """Make the paths of an experiment on given activations absolute.

    Raises:
        ConfigError: the file has sections that describe a model, or a path is invalid.
    """
    for key in ("model", "tokens", "capture", "attention"):
        if key in values:
            raise ConfigError(document.put((key,), _MODEL_TOO.format(key=key)))
    data = values.get("data")
    if isinstance(data, dict):
        data.setdefault("root", ".")
    resolve_path(values, ("data", "root"), document)
    resolve_path(values, ("activations", "folder"), document)


def resolve_experiment(kind: type[Section], values: dict[str, Any], document: Document) -> None:
    """Make the paths of an experiment absolute, and choose the checkpoints of its model.

    Args:
        kind: the class of experiments.
        values: the contents of the file; changed in place.
        document: the file.

    Raises:
        ConfigError: the file is a recipe, or a path is invalid.
        MissingError: a checkpoint does not exist.
    """
    refuse_other(values, document, kind, Recipe, _IS_RECIPE)
    if "activations" in values and "model" not in values:
        text = _ON_ACTIVATIONS.format(path=document.name)
        raise ConfigError(document.put(("activations",), text))
    data = values.get("data")
    if isinstance(data, dict):
        data.setdefault("root", ".")
    resolve_path(values, ("data", "root"), document)
    resolve_path(values, ("model", "path"), document)
    resolve_model(values, ("model", "source"), document)
    resolve_model(values, ("data", "hub", "name"), document, known=())
    model = values.get("model")
    if isinstance(model, dict) and isinstance(model.get("path"), str):
        _choose_checkpoints(model, document)


def _choose_checkpoints(model: dict[str, Any], document: Document) -> None:
    """Fill in the list of checkpoints, and set `source` to the last one.

    Raises:
        MissingError: the folder has no checkpoints, or a requested one is missing.
        ConfigError: `source` is given too.
    """
    with document.at("model", "path"):
        folders = find_checkpoints(Path(model["path"]))
    if model.get("checkpoints") in ("all", []):
        model["checkpoints"] = sorted(folders)
    requested: Any = model.get("checkpoints")
    is_steps = isinstance(requested, list) and all(type(step) is int for step in requested)
    listed = requested if is_steps else []  # other values are rejected later, by the schema
    absent = [step for step in listed if step not in folders]
    if absent:
        steps = ", ".join(map(str, folders))
        text = f"{model['path']} has no checkpoint of step {absent[0]}; it has {steps}."
        raise MissingError(document.put(("model", "checkpoints"), text))
    last = str(folders[max(listed or folders)])
    if model.setdefault("source", last) != last:
        raise ConfigError(
            document.put(("model", "source"), "give either `source` or `path`, not both.")
        )


def refuse_other(
    values: dict[str, Any], document: Document, own: type[Section], other: type[Section], hint: str
) -> None:
    """Raise ConfigError if the keys of a file show that it is of another kind.

    That is so if it has keys that only the other kind allows, and none that only its own allows.

    Args:
        values: the contents of the file.
        document: the file.
        own: data model of the expected kind of file.
        other: data model of the other kind.
        hint: template of the message, with fields `keys` and `path`.
    """
    own_keys, other_keys = own.model_fields.keys(), other.model_fields.keys()
    keys = [key for key in values if key in other_keys - own_keys]
    if keys and not (own_keys - other_keys) & values.keys():
        text = hint.format(keys=", ".join(keys), path=document.name)
        raise ConfigError(document.put((keys[0],), text))


def resolve_path(values: dict[str, Any], keys: tuple[str, str], document: Document) -> None:
    """Make a path absolute; URLs are left to the schema, which rejects them."""
    section, key = values.get(keys[0]), keys[1]
    path = section.get(key) if isinstance(section, dict) else None
    if isinstance(section, dict) and isinstance(path, str) and path and not URL.match(path):
        section[key] = str(document.absolute(keys, path))


def resolve_model(
    values: dict[str, Any],
    keys: tuple[str, ...],
    document: Document,
    *,
    known: Collection[str] = KNOWN_MODELS,
) -> None:
    """Make the source of a model or data set absolute if it is a folder, not a `known` name."""
    section: Any = values
    for above in keys[:-1]:
        section = section.get(above) if isinstance(section, dict) else None
    key = keys[-1]
    source = section.get(key) if isinstance(section, dict) else None
    if isinstance(section, dict) and isinstance(source, str) and source not in ("", *known):
        folder = document.absolute(keys, source)
        is_folder = source.startswith((".", "~")) or folder.is_dir()
        section[key] = str(folder) if is_folder else source
