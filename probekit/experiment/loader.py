"""Experiments and recipes: loaded from files, and described in Python.

`python -m probekit.experiment.loader FOLDER` writes the JSON schemas that editors validate with.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probekit.errors import ConfigError
from probekit.experiment.activations import ActivationExperiment, AnyExperiment, experiment_in
from probekit.experiment.document import Document, read_document
from probekit.experiment.locations import find_file, resolve_recipe
from probekit.experiment.schema import Experiment
from probekit.experiment.study import Study, make_study, study_schema
from probekit.files import write_atomic
from probekit.section import json_schema
from probekit.training.recipe import Recipe

SCHEMA = "experiment.schema.json"


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Return the experiment described by a YAML file, with defaults filled in.

    Args:
        path: the YAML file (YAML 1.2: `no` and `4:8` stay strings), or the name of a bundled one.
        overrides: `section.key=value`; each replaces a value of the file.

    >>> load_experiment("quickstart", ["probe.folds=3"]).probe.folds
    3

    Raises:
        MissingError: the file, or a checkpoint that it names, does not exist.
        ConfigError: the file is invalid; the message lists every error with its line.
    """
    return Experiment.from_file(path, overrides)


def load_any_experiment(path: str | Path, overrides: Sequence[str] = ()) -> AnyExperiment:
    """Return the experiment described by a YAML file, on texts or on given activations.

    Args:
        path: the YAML file; its section `activations`, if any, names the given activations.
        overrides: `section.key=value`; each replaces a value of the file.

    Raises:
        MissingError: the file, or a checkpoint that it names, does not exist.
        ConfigError: the file is invalid; the message lists every error with its line.
    """
    return experiment_in(read_document(find_file(path), overrides))


def load_any(path: str | Path, overrides: Sequence[str] = ()) -> AnyExperiment | Study:
    """Return the experiment, or with the section `over` the study, that a YAML file describes.

    Raises:
        MissingError: the file, or a checkpoint that it names, does not exist.
        ConfigError: the file is invalid; the message lists every error with its line.
        DataError: the file of published scores of a study is invalid.
    """
    document = read_document(find_file(path), overrides)
    return make_study(document) if "over" in document.content else experiment_in(document)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return the pretraining recipe described by a YAML file, with defaults filled in.

    >>> load_recipe("experiments/pretrain_mini.yaml", ["training.steps=20000"]).training.steps
    20000

    Raises:
        MissingError: the file does not exist.
        ConfigError: the file is invalid; the message lists every error with its line.
    """
    return read_document(find_file(path), overrides).settings(Recipe, resolve_recipe)


def make_any(
    given: AnyExperiment | Study | Mapping[str, Any] | str | Path,
    over: Mapping[str, Any] | None = None,
) -> AnyExperiment | Study:
    """Return an experiment from any description of it; with `over`, a study.

    Args:
        given: an experiment or study, nested dicts with the keys of a file, or its path.
        over: the section `over`, in place of that of the file: values of each varied key.

    Raises:
        MissingError: the file, or a checkpoint that it names, does not exist.
        ConfigError: the description is invalid.
        DataError: the file of published scores of a study is invalid.
    """
    if isinstance(given, Experiment | ActivationExperiment | Study) and over is None:
        return given
    if isinstance(given, str | Path):
        document = read_document(find_file(given))
    elif isinstance(given, Mapping):
        document = Document(given)
    elif isinstance(given, Experiment | ActivationExperiment):
        document = Document(given.model_dump(mode="json"))
    else:
        raise ConfigError(
            f"The experiment is of type {type(given).__name__}. Pass an Experiment, a dict or a "
            "path."
        )
    if over is not None or "over" in document.content:
        return make_study(document, over)
    return experiment_in(document)


def make_experiment(
    given: AnyExperiment | Study | Mapping[str, Any] | str | Path,
    data: Any = None,
    model: Any = None,
) -> AnyExperiment:
    """Return an experiment from any description of it, with rows and network in memory, if any.

    Args:
        given: an experiment, nested dicts with the keys of a file, or the path of a file.
        data: rows in memory; see `Experiment.with_data`.
        model: network in memory; see `Experiment.with_model`.

    Raises:
        MissingError: the file, or a checkpoint that it names, does not exist.
        ConfigError: the description is invalid, or that of a study, or there are rows or a network
            for given activations.
        DataError: the rows are invalid.
    """
    experiment = make_any(given)
    if isinstance(experiment, Study):
        raise ConfigError(
            f"{experiment.name} is a study. A single experiment, without `over`, is required here, "
            "as for rows or a network in memory."
        )
    if data is None and model is None:
        return experiment
    if isinstance(experiment, ActivationExperiment):
        raise ConfigError(
            "The experiment has given activations. Pass labels and activations to probekit.probe."
        )
    experiment = experiment if model is None else experiment.with_model(model)
    return experiment if data is None else experiment.with_data(data)


def make_text_experiment(
    given: Experiment | Mapping[str, Any] | str | Path, data: Any = None, model: Any = None
) -> Experiment:
    """Return an experiment on texts from any description of it; see `make_experiment`.

    Raises:
        MissingError: the file, or a checkpoint that it names, does not exist.
        ConfigError: the description is invalid, or that of an experiment on given activations.
    """
    experiment = make_experiment(given, data, model)
    if isinstance(experiment, ActivationExperiment):
        raise ConfigError(
            f"The experiment {experiment.name} has given activations; this step reads texts."
        )
    return experiment


def schemas() -> dict[str, str]:
    """Return the JSON schema of each kind of file, by file name; editors validate with them."""
    return {
        SCHEMA: json_schema(Experiment, "probekit experiment"),
        "activations.schema.json": json_schema(
            ActivationExperiment, "probekit experiment on given activations"
        ),
        "study.schema.json": study_schema(),
        "recipe.schema.json": json_schema(Recipe, "probekit pretraining recipe"),
    }


if __name__ == "__main__":
    for name, text in schemas().items():
        write_atomic(Path(sys.argv[1], name), text)
