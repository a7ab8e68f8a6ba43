"""Studies: files whose section `over` lists data sets and settings, with an experiment for each.

A cell is a combination of one value of each varied key. Its settings are those of the file with
these values put in, so that a cell is checked and run like any other experiment.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from glob import glob
from itertools import product
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from probekit.amounts import one_line
from probekit.data.readers import FORMATS
from probekit.data.table import column_of, csv_table
from probekit.errors import ConfigError, DataError, nearest
from probekit.experiment.activations import ActivationExperiment, AnyExperiment, experiment_in
from probekit.experiment.document import Document
from probekit.experiment.schema import Experiment
from probekit.probes.data import as_number
from probekit.section import KeyPath, json_schema

DATA = "data"  # the varied key of the data sets
_FIXED = ("name", "question", "over", "published", "data.name")  # keys that cannot vary
_LONGEST_PART = 30  # characters of a value in the name of a cell; longer values are numbered
_LONGEST_NAME = 80  # characters of the name of a cell


@dataclass(frozen=True)
class StudyCell:
    """One experiment of a study.

    Attributes:
        values: the value of each varied key, as text; of `data` the name of the data set.
        experiment: the experiment; its name is that of the cell.
    """

    values: Mapping[str, str]
    experiment: AnyExperiment

    @property
    def name(self) -> str:
        """The name of the cell, and of the folder of its runs."""
        return self.experiment.name

    def plain_error(self, message: str) -> tuple[str, str]:
        """Return an error without the name of the cell, and its kind: the same without files."""
        kind = text = message.replace(f"cell {self.name}: ", "")
        files = (getattr(self.experiment.data, key, None) for key in ("file", "train", "test"))
        for file in filter(None, files):
            kind = kind.replace(str(file), "")
        return text, kind


@dataclass(frozen=True)
class Study:
    """An experiment for each combination of data sets and settings.

    Attributes:
        name: name of the study and of its folder.
        question: research question; None if there is none.
        cells: the experiments, in the order of the product: the last key varies fastest.
        published: published score by name of the data set, for those that have one.
        n_unused: number of published scores of other data sets.
    """

    name: str
    question: str | None
    cells: tuple[StudyCell, ...]
    published: Mapping[str, float]
    n_unused: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        """The varied keys, dotted, in the order of the file."""
        return tuple(self.cells[0].values)


class _Value(NamedTuple):
    """A value of a varied key: as text, in the name of the cell, by key, and its location."""

    text: str
    label: str
    changes: Mapping[KeyPath, Any]
    place: KeyPath


class _CellDocument(Document):
    """The settings of a cell; messages name the line of the study that set the value.

    Args:
        content: the settings.
        study: the file of the study.
        over: the document with the section `over`: the file, or settings in memory.
        values: the values of the cell.
        cell: the name of the cell for messages; "" for none.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        study: Document,
        over: Document,
        values: Sequence[_Value],
        cell: str = "",
    ) -> None:
        super().__init__(content, study.path)
        self._study, self._over, self._values = study, over, values
        self._prefix = f"cell {cell}: " if cell else ""

    def put(self, keys: KeyPath, text: str) -> str:
        """Return the text of a message, prefixed with its line and the name of the cell."""
        document, place = self._origin(keys)
        return document.put(place, f"{self._prefix}{text}")

    def absolute(self, keys: KeyPath, text: str) -> Path:
        """Return the absolute path for the text at these keys; see `Document.absolute`."""
        document, place = self._origin(keys)
        return document.absolute(place, text)

    def _origin(self, keys: KeyPath) -> tuple[Document, KeyPath]:
        """Return the document that set a value of the cell, and the keys of the value there."""
        for value in self._values:
            for changed in value.changes:
                n = min(len(changed), len(keys))
                if n and changed[:n] == keys[:n]:
                    # The entry of a data set has the keys of the section `data`.
                    rest = keys[1:] if DATA in value.place else keys[len(changed) :]
                    return self._over, (*value.place, *rest)
        return self._study, keys


_OVER = {
    "description": "lists of values; there is a cell for each combination",
    "type": "object",
    "minProperties": 1,
    "properties": {
        DATA: {
            "description": "data sets: files, patterns such as tasks/*.csv, or some keys of `data`",
            "type": "array",
            "items": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/DataSection"}]},
            "minItems": 1,
        }
    },
    "additionalProperties": {"type": ["array", "object"]},
}
_PUBLISHED = {
    "description": "CSV file with published scores: the columns `task`, which names a data set, "
    "and `score`; relative to the folder of the file",
    "type": "string",
}


def study_schema() -> str:
    """Return the JSON schema of the file of a study, for editors.

    It is that of an experiment, in which no key but `name` and `over` is required: any other one
    may vary.
    """
    schema = json.loads(json_schema(Experiment, "probekit study"))
    for section in schema["$defs"].values():
        section.pop("required", None)
        section.pop("dependentRequired", None)
    schema["properties"] |= {"over": _OVER, "published": _PUBLISHED}
    schema["required"] = ["name", "over"]
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def make_study(document: Document, over: Mapping[str, Any] | None = None) -> Study:
    """Return the study that a file describes; each of its cells is validated.

    Args:
        document: settings of an experiment and, unless `over` is given, the section `over`.
        over: the values of each varied key, in place of that section; relative paths of models
            start from the current folder.

    Raises:
        ConfigError: a key of `over` has no list of values, is set twice or by an override, no file
            matches a pattern, two cells have the same name or are equal, or a cell is invalid; the
            message names the line and the cell.
        MissingError: the file of published scores, or a checkpoint, does not exist.
        DataError: the file of published scores is invalid.
    """
    source = document if over is None else Document({"over": over})
    base, axes, cells = document.values(), list[list[_Value]](), dict[str, StudyCell]()
    published, equals = base.pop("published", None), dict[str, Sequence[_Value]]()
    base.pop("over", None)
    known = {"over", "published", *Experiment.model_fields, *ActivationExperiment.model_fields}
    for key in (one for one in base if one not in known):
        text = f"unknown key {key!r} of a study. {nearest(key, known)}"
        raise ConfigError(document.put((key,), text))
    lists = [*_lists(source)]
    for key, place, listed in lists:
        if key == DATA:
            axes.append([*_data_values(place, listed, base.get(DATA), document, source)])
        else:
            axes.append(_values(key, place, listed))
    for number, values in enumerate(product(*axes), start=1):
        name = "-".join(value.label for value in values).rstrip("._-")
        if len(name) > _LONGEST_NAME:
            name = f"{name[:_LONGEST_NAME]}-{number}"
        if name.casefold() in cells:
            pairs = zip(values, axes, strict=True)
            alike = [one for one, axis in pairs if sum(one.label == v.label for v in axis) > 1]
            text = f"two cells are named {name}. Values must differ, and data sets of one name "
            place = (alike or values)[0].place
            raise ConfigError(source.put(place, f"{text}need another: {{name: ...}}."))
        settings = _with_values(base, values, document, source)
        experiment = experiment_in(
            _CellDocument(settings | {"name": name}, document, source, values, name)
        )
        if not cells:  # raises if the name of the study itself is missing or invalid
            experiment_in(_CellDocument(settings, document, source, values))
        # Names are no settings: two names of one data set would count it twice.
        settings = experiment.model_dump(exclude={"name": True, "data": {"name"}})
        given = settings["data"]  # one file may have several paths
        for key in {"file", "train", "test"} & given.keys():
            given[key] = given[key] and str(Path(given.get("root", "."), given[key]).resolve())
        dumped = str(settings)
        for one, other in zip(equals.setdefault(dumped, values), values, strict=True):
            if one is not other:
                text = f"{one.text} and {other.text} give equal experiments. Remove one of them."
                raise ConfigError(source.put(other.place, text))
        texts = {key: value.text for (key, *_), value in zip(lists, values, strict=True)}
        cells[name.casefold()] = StudyCell(texts, experiment)
    tasks = dict.fromkeys(cell.experiment.data.name for cell in cells.values())
    drawn, n_unused = dict[str, float](), 0
    if published is not None:
        with document.at("published"):
            drawn, n_unused = _published_scores(document, published, tasks)
    return Study(base["name"], base.get("question"), tuple(cells.values()), drawn, n_unused)


def _lists(source: Document) -> Iterator[tuple[str, KeyPath, list[Any]]]:
    """Yield the dotted key, the location and the values of each varied key.

    Raises:
        ConfigError: there is no key, a key cannot vary, or it has no list of values.
    """
    varied, found = source.values()["over"], dict[KeyPath, Any]()
    # Sections may be nested or have dotted names.
    waiting: list[tuple[KeyPath, Any]] = [(("over",), varied)]
    while waiting:
        place, content = waiting.pop(0)
        if isinstance(content, Mapping):
            waiting = [((*place, key), inner) for key, inner in content.items()] + waiting
        else:
            found[place] = content
    if not isinstance(varied, Mapping) or not found:
        text = "over has no key. Give a list of values to at least one: `data: [tasks/*.csv]`."
        raise ConfigError(source.put(("over",), text))
    for place, listed in found.items():
        key = ".".join(map(str, place[1:]))
        if any(f"{key}.".startswith(f"{fixed}.") for fixed in _FIXED):
            text = f"{key} cannot vary. A cell is named by its values; a data set by {{name: ...}}."
            raise ConfigError(source.put(place, text))
        if key == "probe":  # a column of study.csv
            text = "probe cannot vary as a whole. Vary its keys, such as `probe.C`."
            raise ConfigError(source.put(place, text))
        if not isinstance(listed, list) or not listed:
            text = f"over.{key} is {one_line(listed)}. Write a list of values, such as [a, b]; a "
            raise ConfigError(source.put(place, f"{text}single value belongs to `{key}` itself."))
        yield key, place, listed


def _with_values(
    base: Mapping[str, Any], values: Sequence[_Value], document: Document, source: Document
) -> dict[str, Any]:
    """Return the settings that all cells share with the values of a cell put in.

    Raises:
        ConfigError: a key is in a value, or is set by two values, or by a value and an override.
    """
    settings, taken = deepcopy(dict(base)), dict.fromkeys(document.overridden, "--set")
    for value in values:
        for keys, content in value.changes.items():
            section = settings
            for part in keys[:-1]:
                section = section.setdefault(str(part), {})
                if not isinstance(section, dict):
                    raise ConfigError(source.put(value.place, f"{part} is a value, no section."))
            for other, by in taken.items():
                # An override may have created the section for another of its keys.
                is_inside = keys[: len(other)] == other and (by == "over" or keys[-1] in section)
                if is_inside or other[: len(keys)] == keys:
                    text = f"{'.'.join(map(str, other))} is set by {by}, too. Remove one of them."
                    raise ConfigError(source.put(value.place, text))
            section[str(keys[-1])] = content
        taken |= dict.fromkeys(value.changes, "over")
    return settings


def _values(key: str, place: KeyPath, listed: Sequence[Any]) -> list[_Value]:
    """Return the values of a key other than `data`; those with one label are numbered."""
    values = [_value(key, (*place, n), one) for n, one in enumerate(listed)]
    labels = Counter(value.label.casefold() for value in values)
    return [
        value._replace(label=f"{key.rpartition('.')[2]}-{n}") if labels[label] > 1 else value
        for n, value in enumerate(values, start=1)
        for label in [value.label.casefold()]
    ]


def _value(key: str, place: KeyPath, content: Any) -> _Value:
    """Return a value of a key other than `data`."""
    text, last = one_line(content), key.rpartition(".")[2]
    label = _plain(PurePath(text).name) if isinstance(content, str) else f"{last}-{_plain(text)}"
    if not 0 < len(label) <= _LONGEST_PART:
        label = f"{last}-{int(place[-1]) + 1}"
    return _Value(text, label, {tuple(key.split(".")): content}, place)


def _data_values(
    place: KeyPath, listed: Sequence[Any], section: Any, document: Document, source: Document
) -> Iterator[_Value]:
    """Yield a value for each data set; the name of a file is by default that of its data set.

    Args:
        place: location of the list.
        listed: paths, patterns, or sections with some keys of the section `data`.
        section: the section `data` that all cells share.
        document: the file with that section.
        source: the document with the list.

    Raises:
        ConfigError: an item is of another type, or matches no file.
    """
    shared = section if isinstance(section, Mapping) else {}
    root = document.absolute((DATA, "root"), str(shared.get("root", ".")))
    for number, item in enumerate(listed):
        entry = {"file": item} if isinstance(item, str) else item
        if not isinstance(entry, Mapping):
            text = f"{one_line(item)} is no data set. Give a file, a pattern such as tasks/*.csv, "
            raise ConfigError(source.put((*place, number), f"{text}or {{name: ..., file: ...}}."))
        files: list[Any] = [entry.get("file")]
        if isinstance(files[0], str) and not (root / files[0]).is_file():
            found = glob(files[0], root_dir=root, recursive=True)  # noqa: PTH207  # relative paths
            files = sorted(PurePath(one).as_posix() for one in found if (root / one).is_file())
            if not files:
                text = f"no file matches {entry['file']!r} in {root}."
                raise ConfigError(source.put((*place, number), text))
        for file in files:
            own = dict(entry)
            path = PurePath(str(file or entry.get("train", "")))
            if path.name:
                own = {"name": _plain(path.stem) or f"data-{number + 1}", **own}
                own |= {"file": file} if file else {}
                ending = path.suffix[1:].lower()
                if "format" not in shared and ending in FORMATS and FORMATS[ending].is_file:
                    own = {"format": ending} | own
            name = str(own.get("name", f"data-{number + 1}"))
            # Columns that the entry does not name are those of the shared section.
            columns = own.pop("columns", None)
            changes: dict[KeyPath, Any] = {(DATA, key): content for key, content in own.items()}
            if isinstance(columns, Mapping):
                changes |= {(DATA, "columns", key): one for key, one in columns.items()}
            elif columns is not None:
                changes[DATA, "columns"] = columns
            yield _Value(name, _plain(name) or f"data-{number + 1}", changes, (*place, number))


def _plain(text: str) -> str:
    """Return a text with the characters that names of folders can have.

    >>> _plain("EleutherAI/pythia 70m")
    'EleutherAI_pythia_70m'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._-")


def _published_scores(
    document: Document, published: Any, data_sets: Iterable[str]
) -> tuple[dict[str, float], int]:
    """Return the published scores of data sets, and the number of those of other data sets.

    Args:
        document: the file of the study.
        published: path of a CSV file with the columns `task` and `score`.
        data_sets: names of the data sets of the study.

    Raises:
        ConfigError: `published` is no path, a column is missing, or no task is a data set.
        MissingError: the file does not exist.
        DataError: a score is not a number from 0 to 1.
    """
    if not isinstance(published, str):
        raise ConfigError(f"published is {one_line(published)}. Give the path of a CSV file.")
    path, scores = document.absolute(("published",), published), dict[str, float]()
    # A table is read once, so there is one for each column.
    tasks, texts = (column_of(csv_table(path, (name,)), name) for name in ("task", "score"))
    for task, text in zip(tasks, texts, strict=True):
        score = as_number(text) if text.isascii() else None
        if score is None or not 0 <= score <= 1:
            problem = f"the score of {task} is {text!r}. It must be a number from 0 to 1"
            raise DataError(f"{path}: {problem}; of percentages, a hundredth.")
        if scores.setdefault(task, score) != score:
            raise DataError(f"{path}: {task} has two scores, {scores[task]:g} and {score:g}.")
    drawn = {task: scores[task] for task in data_sets if task in scores}
    if not drawn:
        near = nearest(next(iter(scores)), data_sets)
        raise ConfigError(f"no task of {published} is the name of a data set. {near}")
    return drawn, len(scores) - len(drawn)
