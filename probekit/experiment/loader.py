"""Reading experiment files and pretraining recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probekit.errors import ConfigError
from probekit.experiment.document import Document, dump_settings, load_settings
from probekit.experiment.locations import refuse_other, resolve_model, resolve_path
from probekit.experiment.schema import Experiment
from probekit.training.recipe import Recipe


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Return the experiment described by a YAML file, with defaults filled in.

    Args:
        path: the YAML file (YAML 1.2: `no` and `4:8` stay strings).
        overrides: `section.key=value`; each replaces a value of the file.

    >>> load_experiment("experiments/quickstart.yaml", ["probe.folds=3"]).probe.folds
    3

    Raises:
        MissingError: the file does not exist.
        ConfigError: the file is invalid; the message lists every error with its line.
    """
    return Experiment.from_file(path, overrides)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return the pretraining recipe described by a YAML file, with defaults filled in.

    >>> load_recipe("experiments/pretrain_mini.yaml", ["training.steps=20000"]).training.steps
    20000

    Raises:
        MissingError: the file does not exist.
        ConfigError: the file is invalid; the message lists every error with its line.
    """
    return load_settings(Recipe, path, overrides, _resolve_recipe)


def dump_experiment(experiment: Experiment) -> str:
    """Return the experiment as YAML with every default written out.

    >>> print(dump_experiment(load_experiment("experiments/quickstart.yaml"))[:16])
    name: quickstart
    """
    return dump_settings(experiment)


def make_experiment(
    given: Experiment | Mapping[str, Any] | str | Path, data: Any = None
) -> Experiment:
    """Return an experiment from any description of it, with rows in memory if there are any.

    Args:
        given: an experiment, nested dicts with the keys of a file, or the path of a file.
        data: rows in memory; see `Experiment.with_data`.

    Raises:
        ConfigError: the description is invalid.
        DataError: the rows are invalid.
    """
    if isinstance(given, str | Path):
        experiment = load_experiment(given)
    elif isinstance(given, Mapping):
        experiment = Experiment.from_dict(given)
    elif isinstance(given, Experiment):
        experiment = given
    else:
        raise ConfigError(
            f"The experiment is of type {type(given).__name__}. Pass an Experiment, a dict with "
            "the keys of an experiment file, or the path of a file."
        )
    return experiment if data is None else experiment.with_data(data)


_IS_EXPERIMENT = (
    "this is an experiment (it has {keys}), not a pretraining recipe. Run it with `probekit run "
    "{path}`."
)


def _resolve_recipe(values: dict[str, Any], document: Document) -> None:
    refuse_other(values, document, Recipe, Experiment, _IS_EXPERIMENT)
    resolve_path(values, ("corpus", "source"), document)
    resolve_model(values, ("vocabulary", "source"), document)
