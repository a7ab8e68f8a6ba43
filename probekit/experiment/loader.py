"""Reading experiment files and pretraining recipes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probekit.errors import ConfigError, MissingError
from probekit.experiment.bundled import find_file
from probekit.experiment.document import Document, dump_settings, load_settings
from probekit.experiment.schema import URL, Experiment
from probekit.model.config import KNOWN_MODELS
from probekit.section import Section
from probekit.training.recipe import Recipe
from probekit.training.saved import find_checkpoints


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Return the experiment described by a YAML file, with defaults filled in.

    Args:
        path: the YAML file (YAML 1.2: `no` and `4:8` stay strings), or the name of a bundled one.
        overrides: `section.key=value`; each replaces a value of the file.

    >>> load_experiment("quickstart", ["probe.folds=3"]).probe.folds
    3

    Raises:
        MissingError: the file does not exist.
        ConfigError: the file is invalid; the message lists every error with its line.
    """
    return load_settings(Experiment, find_file(path), overrides, _resolve_experiment)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return the pretraining recipe described by a YAML file, with defaults filled in.

    >>> load_recipe("experiments/pretrain_mini.yaml", ["training.steps=20000"]).training.steps
    20000

    Raises:
        MissingError: the file does not exist.
        ConfigError: the file is invalid; the message lists every error with its line.
    """
    return load_settings(Recipe, find_file(path), overrides, _resolve_recipe)


def dump_experiment(experiment: Experiment) -> str:
    """Return the experiment as YAML with every default written out.

    >>> print(dump_experiment(load_experiment("experiments/quickstart.yaml"))[:16])
    name: quickstart
    """
    return dump_settings(experiment)


def _refuse_other(
    values: dict[str, Any], document: Document, own: type[Section], other: type[Section], hint: str
) -> None:
    """Raise ConfigError if a file is of the wrong kind, judged by its keys.

    It is if it has keys that only the other kind of file has, and none that only its own kind has.

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
        text = hint.format(keys=", ".join(keys), path=document.path)
        raise ConfigError(document.put((keys[0],), text))


_IS_RECIPE = (
    "this is a pretraining recipe (it has {keys}), not an experiment. Run it with `probekit "
    "pretrain {path}`."
)
_IS_EXPERIMENT = (
    "this is an experiment (it has {keys}), not a pretraining recipe. Run it with `probekit run "
    "{path}`."
)


def _resolve_experiment(values: dict[str, Any], document: Document) -> None:
    _refuse_other(values, document, Experiment, Recipe, _IS_RECIPE)
    data = values.get("data")
    if isinstance(data, dict):
        data.setdefault("root", ".")
    _resolve_path(values, ("data", "root"), document)
    _resolve_path(values, ("model", "path"), document)
    _resolve_model(values, ("model", "source"), document)
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


def _resolve_recipe(values: dict[str, Any], document: Document) -> None:
    _refuse_other(values, document, Recipe, Experiment, _IS_EXPERIMENT)
    _resolve_path(values, ("corpus", "source"), document)
    _resolve_model(values, ("vocabulary", "source"), document)


def _resolve_path(values: dict[str, Any], keys: tuple[str, str], document: Document) -> None:
    """Make a path absolute; URLs are left to the schema, which rejects them."""
    section, key = values.get(keys[0]), keys[1]
    path = section.get(key) if isinstance(section, dict) else None
    if isinstance(section, dict) and isinstance(path, str) and path and not URL.match(path):
        section[key] = str(document.absolute(keys, path))


def _resolve_model(values: dict[str, Any], keys: tuple[str, str], document: Document) -> None:
    """Make a model's source absolute if it is a folder, not a name."""
    section, key = values.get(keys[0]), keys[1]
    source = section.get(key) if isinstance(section, dict) else None
    if isinstance(section, dict) and isinstance(source, str) and source not in ("", *KNOWN_MODELS):
        folder = document.absolute(keys, source)
        is_folder = source.startswith((".", "~")) or folder.is_dir()
        section[key] = str(folder) if is_folder else source
