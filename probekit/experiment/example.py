"""Bundled experiments listed, and an experiment of one's own started from an example."""

import io
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import TypeAdapter, ValidationError
from ruamel.yaml import YAML

from probekit.data.readers import FORMATS, TableFormat, read_dataset
from probekit.data.table import Columns
from probekit.errors import ConfigError, UnknownNameError, nearest
from probekit.experiment.document import read_document
from probekit.experiment.loader import SCHEMA, load_any, schemas
from probekit.experiment.locations import bundled_data, bundled_files, resolve_recipe
from probekit.experiment.schema import Experiment
from probekit.experiment.study import Study
from probekit.files import as_store_error, write_atomic
from probekit.section import FolderName
from probekit.training.recipe import Recipe

_TEMPLATE = Path(__file__).with_name("example.yaml")  # of `write_example`
_NAME = "my_question"  # in the template
_EVERY = 3  # the sample has every third subject
_ROWS = 16  # of each subject in the sample
_TABLES = get_args(TableFormat)
_MOST_LABELS = 4  # in the question about a table
_LONGEST = 20  # characters of each of them


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
        from probekit.data.labels import appearance, misspelt_labels, similar  # imports pandas

        columns, kind = columns or Columns(), _format_of(table)
        dataset = read_dataset(table, format=kind, columns=columns)
        labels = sorted(set(dataset.labels))
        # Labels that need work, or are long, would make a question of their own.
        is_plain = all(appearance(one) == one.casefold() and len(one) <= _LONGEST for one in labels)
        doubtful = [*misspelt_labels(dataset), *similar("label", dataset)]
        is_shown = is_plain and not doubtful and len(labels) <= _MOST_LABELS
        shown = ", ".join(labels) if is_shown else f"{len(labels):,} labels"
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
    for path, content in reversed(contents.items()):  # after a full disk, a second try is possible
        if not path.exists():
            write_atomic(path, content)
    return [*contents]


def keys_of(section: str) -> list[tuple[str, str, str, str]]:
    """Return name, allowed values, default and description of each key of a section.

    Args:
        section: a section or key of experiment files, such as `probe`; "" for the file.

    Raises:
        UnknownNameError: there is no such section.

    >>> keys_of("monitor")[1]
    ('format', 'csv, tsv, jsonl, parquet', '"csv"', 'format of this file')
    """
    schema = json.loads(schemas()[SCHEMA])
    here = schema

    def section_of(key: Any) -> dict[str, Any]:
        """Return the schema of the section that a key holds; {} for a value."""
        inner = [one["$ref"] for one in _alternatives(key) if "$ref" in one]
        return schema["$defs"][inner[0].rpartition("/")[2]] if inner else {}

    for name in filter(None, section.split(".")):
        keys = here.get("properties", {})
        if name not in keys:
            raise UnknownNameError(f"No key {name!r} in an experiment. {nearest(name, list(keys))}")
        here = section_of(keys[name]) or {**here, "properties": {name: keys[name]}}
    required = here.get("required", [])
    return [
        (
            name,
            _value_words(one),
            "required" if name in required else json.dumps(one.get("default")),
            str({**section_of(one), **one}.get("description", "")).partition("\n")[0],
        )
        for name, one in here.get("properties", {}).items()
    ]


def _alternatives(key: Any) -> Iterator[Any]:
    """Yield the schemas of a key's values and of the items of its lists; null is left out."""
    for one in key.get("anyOf", key.get("oneOf", [key])):
        if isinstance(one.get("items"), dict):
            yield from _alternatives(one["items"])
        elif one.get("type") != "null":
            yield one


def _value_words(key: Any) -> str:
    """Return the values that the schema of a key allows.

    >>> _value_words({"anyOf": [{"type": "number"}, {"items": {"enum": ["a", True]}}]})
    'number, list of a, true'
    """
    words = []
    for one in key.get("anyOf", key.get("oneOf", [key])):
        if isinstance(one.get("items"), dict):
            words.append(f"list of {_value_words(one['items'])}")
        elif "const" in one or "enum" in one:
            values = one.get("enum", [one.get("const")])
            words += [json.dumps(value).strip('"') for value in values]
        elif one.get("type") != "null":
            kind = str(one.get("type", "any")).replace("array", "list")
            words.append("a section" if "$ref" in one else kind)
    return ", ".join(dict.fromkeys(words))


def _format_of(table: Path) -> str:
    """Return the format of a table by its extension; ConfigError for another one."""
    kind = table.suffix[1:].lower()
    if kind not in _TABLES:
        raise ConfigError(f"{table}: unknown extension. {nearest(kind, _TABLES)}")
    return kind


def table_columns(table: Path) -> list[str]:
    """Return the names of the columns of a table.

    Raises:
        ConfigError: it has another extension.
        MissingError: it does not exist.
        DataError: it cannot be read.
    """
    found = FORMATS[_format_of(table)].read(table, ())
    first = next(iter(found.rows), None)
    return list(found.names or (() if first is None else first.cells))


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
