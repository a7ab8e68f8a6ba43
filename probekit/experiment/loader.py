"""Reading experiment files and pretraining recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from probekit.errors import ConfigError
from probekit.experiment.activations import ActivationExperiment, AnyExperiment
from probekit.experiment.bundled import find_file
from probekit.experiment.document import (
    Document,
    dump_settings,
    load_settings,
    settings_of_values,
    top_keys,
)
from probekit.experiment.locations import (
    refuse_other,
    resolve_activations,
    resolve_model,
    resolve_path,
)
from probekit.experiment.schema import Experiment
from probekit.training.recipe import Recipe


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
    return Experiment.from_file(path, overrides)


def load_any_experiment(path: str | Path, overrides: Sequence[str] = ()) -> AnyExperiment:
    """Return the experiment described by a YAML file, on texts or on given activations.

    Args:
        path: the YAML file; its section `activations`, if any, names the given activations.
        overrides: `section.key=value`; each replaces a value of the file.

    Raises:
        MissingError: the file does not exist.
        ConfigError: the file is invalid; the message lists every error with its line.
    """
    path = find_file(path)
    keys = top_keys(path, overrides)
    is_misspelt = "model" not in keys and bool(get_close_matches("activations", keys))
    if "activations" in keys or is_misspelt:
        return load_settings(ActivationExperiment, path, overrides, resolve_activations)
    return load_experiment(path, overrides)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return the pretraining recipe described by a YAML file, with defaults filled in.

    >>> load_recipe("experiments/pretrain_mini.yaml", ["training.steps=20000"]).training.steps
    20000

    Raises:
        MissingError: the file does not exist.
        ConfigError: the file is invalid; the message lists every error with its line.
    """
    return load_settings(Recipe, find_file(path), overrides, _resolve_recipe)


def dump_experiment(experiment: AnyExperiment) -> str:
    """Return the experiment as YAML with every default written out.

    >>> print(dump_experiment(load_experiment("experiments/quickstart.yaml"))[:16])
    name: quickstart
    """
    return dump_settings(experiment)


def make_experiment(
    given: AnyExperiment | Mapping[str, Any] | str | Path, data: Any = None
) -> AnyExperiment:
    """Return an experiment from any description of it, with rows in memory if there are any.

    Args:
        given: an experiment, nested dicts with the keys of a file, or the path of a file.
        data: rows in memory; see `Experiment.with_data`.

    Raises:
        ConfigError: the description is invalid, or there are rows for given activations.
        DataError: the rows are invalid.
    """
    if isinstance(given, str | Path):
        experiment = load_any_experiment(given)
    elif isinstance(given, Mapping):
        experiment = (
            settings_of_values(ActivationExperiment, given, resolve_activations)
            if "activations" in given
            else Experiment.from_dict(given)
        )
    elif isinstance(given, Experiment | ActivationExperiment):
        experiment = given
    else:
        raise ConfigError(
            f"The experiment is of type {type(given).__name__}. Pass an Experiment, a dict with "
            "the keys of an experiment file, or the path of a file."
        )
    if data is None:
        return experiment
    if isinstance(experiment, ActivationExperiment):
        raise ConfigError(
            "`data` are rows of texts, but the experiment has given activations. Pass labels and "
            "activations to probekit.probe."
        )
    return experiment.with_data(data)


def make_text_experiment(given: Experiment | Mapping[str, Any] | str | Path) -> Experiment:
    """Return an experiment on texts from any description of it.

    Raises:
        ConfigError: the description is invalid, or that of an experiment on given activations.
    """
    experiment = load_experiment(given) if isinstance(given, str | Path) else make_experiment(given)
    if isinstance(experiment, ActivationExperiment):
        raise ConfigError(
            f"The experiment {experiment.name} has given activations, and this step needs a model "
            "that reads texts. Use probekit.run."
        )
    return experiment


_IS_EXPERIMENT = (
    "this is an experiment (it has {keys}), not a pretraining recipe. Run it with `probekit run "
    "{path}`."
)


def _resolve_recipe(values: dict[str, Any], document: Document) -> None:
    refuse_other(values, document, Recipe, Experiment, _IS_EXPERIMENT)
    resolve_path(values, ("corpus", "source"), document)
    resolve_model(values, ("vocabulary", "source"), document)
