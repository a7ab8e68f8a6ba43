"""Reading an experiment file: every mistake is answered with its line and the nearest right key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    NodeEvent,
)

from probekit.errors import ConfigError, MissingError, nearest
from probekit.experiment.schema import Experiment

MAX_BYTES = 1_000_000
MAX_DEPTH = 20

KeyPath = tuple[str | int, ...]

# Values that are folders when they look like one; found from the folder of the file they stand in.
_FOLDERS: tuple[KeyPath, ...] = (("data", "root"), ("model", "source"))


@dataclass(frozen=True)
class _Document:
    """The parsed file, the overrides laid over it, and where each value came from."""

    path: Path
    content: CommentedMap
    overridden: frozenset[KeyPath]

    def place(self, keys: KeyPath) -> str:
        """Return where the value, or else the section it would stand in, was written."""
        for length in range(len(keys), 0, -1):
            if keys[:length] in self.overridden:
                return f"--set {'.'.join(map(str, keys[:length]))}"
        return f"{self.path}, line {self._line(keys)}"

    def _line(self, keys: KeyPath) -> int:
        node: Any = self.content
        line = 0
        for key in keys:
            if isinstance(node, CommentedMap) and key in node:
                line = node.lc.key(key)[0] if key in (node.lc.data or {}) else line
            elif isinstance(node, CommentedSeq) and isinstance(key, int) and key < len(node):
                line = node.lc.item(key)[0]
            else:
                break
            node = node[key]
        return line + 1

    def folder_of(self, keys: KeyPath) -> Path:
        """Return the folder that a relative path at these keys is found from."""
        return Path.cwd() if keys in self.overridden else self.path.resolve().parent


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Return the experiment that a YAML file describes, defaults filled in.

    Args:
        path: the YAML file (YAML 1.2: `no` and `4:8` stay strings).
        overrides: `section.key=value`, each laid over the file.

    >>> load_experiment("experiments/quickstart.yaml", ["probe.folds=3"]).probe.folds
    3

    Raises:
        MissingError: there is no such file.
        ConfigError: the message lists every mistake with its line.
    """
    path = Path(path)
    document = _override(_Document(path, _parse(_read(path), str(path)), frozenset()), overrides)
    values = _plain(document.content)
    for keys in _FOLDERS:
        _resolve_folder(values, keys, document)
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        faults = [_explain(fault, document) for fault in error.errors()]
        raise ConfigError("\n".join(faults)) from error


def dump_experiment(experiment: Experiment) -> str:
    """Return the experiment as YAML with every default written out.

    >>> print(dump_experiment(load_experiment("experiments/quickstart.yaml"))[:16])
    name: quickstart
    """
    out = StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(experiment.model_dump(mode="json"), out)
    return out.getvalue()


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(
                f"{path} has {path.stat().st_size:,} bytes; an experiment file has at most "
                f"{MAX_BYTES:,}. Is it a data file?"
            )
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise MissingError(f"There is no experiment file {path.absolute()}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}).") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error


def _parse(text: str, name: str) -> CommentedMap:
    try:
        _refuse_what_is_not_plain(text, name)
        content = YAML().load(text)
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1
        key = str(error.problem).split('"')[1]
        raise ConfigError(f"{name}, line {line}: the key {key!r} stands there twice.") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(f"{name}, line {mark.line + 1}: {error.problem}.") from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not valid YAML: {error}.") from error
    if not isinstance(content, CommentedMap):
        raise ConfigError(f"{name} must hold keys and values (`name: ...`).")
    return content


def _refuse_what_is_not_plain(text: str, name: str) -> None:
    """Refuse what makes a small file large (aliases, depth) or a value into an object (tags)."""
    depth = 0
    for event in YAML().parse(StringIO(text)):
        line = event.start_mark.line + 1
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ConfigError(f"{name}, line {line}: nested deeper than {MAX_DEPTH} levels.")
        if isinstance(event, AliasEvent):
            raise ConfigError(f"{name}, line {line}: aliases (*{event.anchor}) are not allowed.")
        tag = getattr(event, "ctag", None) if isinstance(event, NodeEvent) else None
        if tag is not None and str(tag) not in ("None", ""):
            raise ConfigError(f"{name}, line {line}: tags ({tag}) are not allowed.")


def _override(document: _Document, overrides: Sequence[str]) -> _Document:
    for text in overrides:
        key, equals, value = text.partition("=")
        keys = tuple(key.split("."))
        if not equals or not all(keys):
            raise ConfigError(f"--set {text}: write it as section.key=value.")
        section: Any = document.content
        for part in keys[:-1]:
            if section.get(part) is None:
                section[part] = CommentedMap()
            section = section[part]
            if not isinstance(section, CommentedMap):
                raise ConfigError(f"--set {text}: {part!r} is a value, not a section.")
        section[keys[-1]] = _parse(f"value: {value}", f"--set {key}")["value"]
        document = _Document(document.path, document.content, document.overridden | {keys})
    return document


def _plain(node: Any) -> Any:
    """Return the values without what the parser remembers of their looks."""
    if isinstance(node, dict):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _resolve_folder(values: dict[str, Any], keys: KeyPath, document: _Document) -> None:
    section = values.get(str(keys[0]))
    if not isinstance(section, dict):
        return
    name = str(keys[1])
    text = section.get(name, "." if name == "root" else None)
    if isinstance(text, str) and (name == "root" or text.startswith((".", "~"))):
        section[name] = str((document.folder_of(keys) / Path(text).expanduser()).resolve())


def _explain(fault: ErrorDetails, document: _Document) -> str:
    keys: KeyPath = tuple(fault["loc"])
    place, dotted = document.place(keys), ".".join(map(str, keys))
    if fault["type"] == "extra_forbidden":
        allowed = list(_section_fields(keys[:-1]))
        return f"{place}: unknown key {dotted!r}. {nearest(str(keys[-1]), allowed)}"
    if fault["type"] == "missing":
        return f"{place}: the key {dotted!r} is missing; {_described(keys)}."
    if fault["type"] == "value_error":
        problem = fault["msg"].removeprefix("Value error, ")
        return f"{place}: {problem}." if keys else f"{document.path}: {problem}."
    return f"{place}: {dotted} is {fault['input']!r}. {fault['msg']}."


def _section_fields(keys: KeyPath) -> Iterator[str]:
    model: Any = Experiment
    for key in keys:
        model = model.model_fields[str(key)].annotation
    assert issubclass(model, BaseModel)
    yield from model.model_fields


def _described(keys: KeyPath) -> str:
    model: Any = Experiment
    for key in keys[:-1]:
        model = model.model_fields[str(key)].annotation
    field = model.model_fields[str(keys[-1])]
    return field.description or f"a section with {', '.join(field.annotation.model_fields)}"
