"""Experiments and recipes: loaded, described in Python, listed, and started from an example.

`python -m probekit.experiment.loader FOLDER` writes the JSON schemas that editors validate with.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from ruamel.yaml import YAML

from probekit.data.readers import read_dataset
from probekit.data.table import Columns
from probekit.errors import ConfigError, nearest
from probekit.experiment.activations import ActivationExperiment, AnyExperiment, experiment_in
from probekit.experiment.document import Document, read_document
from probekit.experiment.locations import bundled_data, bundled_files, find_file, resolve_recipe
from probekit.experiment.schema import Experiment
from probekit.experiment.study import Study, make_study, study_schema
from probekit.files import as_store_error, write_atomic
from probekit.section import FolderName, json_schema
from probekit.training.recipe import Recipe

SCHEMA = "experiment.schema.json"
_TEMPLATE = Path(__file__).with_name("example.yaml")  # of `write_example`
_NAME = "my_question"  # in the template
_EVERY = 3  # the sample has every third subject
_ROWS = 16  # of each subject in the sample
_TABLES = ("csv", "tsv", "jsonl", "parquet")
_MOST_LABELS = 4  # in the question about a table


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


@dataclass(frozen=True)
class BundledExperiment:
    """A bundled experiment or recipe.

    Attributes:
        name: the name that commands accept.
        question: the question of an experiment; for a recipe its purpose.
        needs: what must be available in addition to the package; empty if nothing.
        command: the command that runs it.
    """

    name: str
    question: str
    needs: tuple[str, ...]
    command: str


def bundled_experiments() -> list[BundledExperiment]:
    """Return all bundled experiments, then all recipes, in alphabetical order.

    >>> {one.name: one.needs for one in bundled_experiments()}["quickstart"]
    ()
    """
    listed = []
    for name, path in bundled_files().items():
        document, needs = read_document(path), []
        if "corpus" in document.content:
            recipe = document.settings(Recipe, resolve_recipe)
            command = f"probekit pretrain {name}"
            question = f"Pretraining of the model `{recipe.name}` on the texts of a corpus."
            if not Path(recipe.corpus.source).exists():
                needs.append("texts: --set corpus.source=PATH")
        else:
            loaded = load_any(path)
            cell = loaded.cells[0].experiment if isinstance(loaded, Study) else loaded
            experiment = cast(Experiment, cell)
            question, command = loaded.question or "", f"probekit run {name}"
            data, model = experiment.data, experiment.model.source
            files = [file for file in (data.file, data.train, data.test) if file is not None]
            absent = [file for file in files if not (Path(data.root) / file).is_file()]
            if absent:
                needs.append(f"{', '.join(absent)}: --set data.root=FOLDER")
            if model != "mini" and not Path(model).is_dir():
                needs.append(f"network: downloads {model}")
        listed.append(BundledExperiment(name, question, tuple(needs), command))
    return sorted(listed, key=lambda one: (one.command.startswith("probekit pretrain"), one.name))


def write_example(
    place: Path, table: Path | None = None, columns: Columns | None = None
) -> list[Path]:
    """Write an experiment file and the schema; return the paths of the files.

    Without a table, sample data are written, too. No existing file is changed. If the folder has
    the same schema from an earlier example, it is reused.

    Args:
        place: path of the experiment file, with or without the ending .yaml.
        table: file with the rows, whose extension is its format.
        columns: names of its columns; by default text, label and group.

    Raises:
        ConfigError: another file exists already, the name is not valid for an experiment, or the
            table has another extension or lacks a column.
        MissingError: the table does not exist.
        DataError: the contents of the table are invalid; the message names the row.
        StoreError: the folder cannot be read or written.
    """
    place = place.with_name(re.sub(r"\.ya?ml$", "", place.name))
    name = place.name
    try:
        TypeAdapter(FolderName).validate_python(name)
    except ValidationError as error:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._-")[:80] or _NAME
        other = f"my_{name}" if plain == name else plain  # a name that Windows reserves
        raise ConfigError(
            f"{name!r} cannot be the name of an experiment, which has at most 80 letters, digits "
            f"and the characters . _ -; try {other!r}."
        ) from error
    yaml, written = YAML(), io.StringIO()  # writes comments, and quotes a name such as 12
    yaml.width = 200
    # The name is also part of the names of files.
    values = yaml.load(_TEMPLATE.read_text(encoding="utf-8").replace(_NAME, name))
    values["name"] = values["data"]["name"] = name
    if table is not None:
        columns, kind = columns or Columns(), table.suffix[1:].lower()
        if kind not in _TABLES:
            raise ConfigError(f"{table}: unknown extension. {nearest(kind, _TABLES)}")
        dataset = read_dataset(table, format=kind, columns=columns)
        labels = sorted(set(dataset.labels))
        shown = ", ".join(labels) if len(labels) <= _MOST_LABELS else f"{len(labels):,} labels"
        values["question"] = f"Can the {columns.label} ({shown}) be decoded at the last token?"
        values["data"]["format"] = kind
        values["data"]["file"] = Path(os.path.relpath(table, place.parent)).as_posix()
        named = {"text": columns.text, "label": columns.label, "group": columns.group}
        values["data"]["columns"].update(named)
    yaml.dump(values, written)
    contents = {
        place.with_name(f"{name}.yaml"): written.getvalue(),
        **({} if table else {place.with_name(f"{name}.csv"): sample_rows()}),
        place.with_name(SCHEMA): schemas()[SCHEMA],
    }
    for path, content in contents.items():
        with as_store_error("read", path):
            is_same = path.name == SCHEMA and path.exists() and path.read_text("utf-8") == content
            if path.exists() and not is_same:
                raise ConfigError(
                    f"{path} exists already, and no file is overwritten. Give another name, or "
                    "move the file."
                )
    for path, content in contents.items():
        with as_store_error("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                with path.open("x", encoding="utf-8", newline="\n") as file:
                    file.write(content)
    return [*contents]


def sample_rows() -> str:
    """Return a small balanced part of a bundled data set as the contents of a CSV file.

    >>> sample_rows().splitlines()[0]
    'text,label,group'
    """
    # The last of the columns text, label, group and attractor is left out.
    lines = bundled_data("subject_number").read_text(encoding="utf-8").splitlines()
    header, *rows = [line.rpartition(",")[0] for line in lines]
    of_subject: dict[str, list[str]] = defaultdict(list)
    for row in rows:  # the last column left is the group, which is the subject
        of_subject[row.rpartition(",")[2]].append(row)
    chosen = list(of_subject.values())[::_EVERY]
    sample = [row for rows_of_one in chosen for row in rows_of_one[:_ROWS]]
    return "\n".join([header, *sample, ""])


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
