"""Reading a YAML file of settings; every error message names the line and the key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path, PurePath
from typing import Any, TypeVar

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from probekit.errors import ConfigError
from probekit.experiment.messages import example_at, example_of, explain, find_faults
from probekit.experiment.parsing import FORBIDDEN, parse_yaml, read_yaml
from probekit.section import KeyLocation, KeyPath, Section, prefix_key

Settings = TypeVar("Settings", bound=Section)

MAX_FAULTS = 20  # reported at once

_ITEM = re.compile(r"\[|\.\d+(\.|$)")  # kinds[0], kinds.0


@dataclass(frozen=True)
class Document:
    """A parsed file with overrides applied, and the keys that were overridden.

    Attributes:
        path: the file; None for settings in memory, whose location is the key alone.
        content: the contents, with line numbers.
        overridden: the keys that were overridden.
    """

    path: Path | None
    content: CommentedMap
    overridden: frozenset[KeyPath]

    @property
    def name(self) -> str:
        """The path that messages show; "FILE" for settings in memory."""
        return "FILE" if self.path is None else str(self.path)

    def put(self, keys: KeyPath, text: str) -> str:
        """Return the text of a message, prefixed with the line or override that set the value."""
        override = ".".join(map(str, self._override_of(keys)))
        if self.path is None:
            return prefix_key(keys, text)
        if not override:
            below = sorted(".".join(map(str, o)) for o in self.overridden if o[: len(keys)] == keys)
            or_there = f" or --set {', '.join(below)}" if below else ""
            return f"{self.path}, line {self._line(keys)}{or_there}: {text}"
        # Do not repeat a key that the text names.
        return f"--set: {text}" if override in text else f"--set {override}: {text}"

    def _override_of(self, keys: KeyPath) -> KeyPath:
        """Return the keys of the override that set the value; () if the file did."""
        prefixes = (keys[:length] for length in range(len(keys), 0, -1))
        return next((keys for keys in prefixes if keys in self.overridden), ())

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

    @contextmanager
    def at(self, *keys: str | int) -> Iterator[None]:
        """Prefix the message of errors raised in the block with the location of a key."""
        with KeyLocation(self.put).before(keys):
            yield

    def folder_of(self, keys: KeyPath) -> Path:
        """Return the folder that a relative path at these keys starts from."""
        in_file = self.path is not None and not self._override_of(keys)
        return self.path.resolve().parent if self.path and in_file else Path.cwd()

    def absolute(self, keys: KeyPath, text: str) -> Path:
        """Return the absolute path for the text at these keys.

        Raises:
            ConfigError: the text is not a valid path.
        """
        try:
            path = (self.folder_of(keys) / Path(text).expanduser()).resolve()
            path.is_dir()  # raises for a path that is invalid on this file system
        except (OSError, RuntimeError, ValueError) as error:
            message = (
                f"{'.'.join(map(str, keys))} is {text[:80]!r}, which is not a valid path ({error})."
            )
            raise ConfigError(self.put(keys, message)) from error
        return path


def load_settings(
    kind: type[Settings],
    path: str | Path,
    overrides: Sequence[str],
    find_folders: Callable[[dict[str, Any], Document], None],
) -> Settings:
    """Return the settings in a YAML file, with defaults filled in.

    Args:
        kind: data model of the file.
        path: the YAML file (YAML 1.2: `no` and `4:8` stay strings).
        overrides: `section.key=value`; each replaces a value of the file.
        find_folders: makes the paths among the values absolute.

    Raises:
        MissingError: the file does not exist.
        ConfigError: the file is invalid; the message lists every error with its line.
    """
    path = Path(path)
    text = read_yaml(path)
    content = parse_yaml(text, str(path))
    if not isinstance(content, CommentedMap):
        raise ConfigError(f"{path}, line {_first_line(text)}: {_no_keys(content, kind)}")
    for override in overrides:
        _check_override(override, kind)
    document = _override(Document(path, content, frozenset()), overrides)
    values = _plain(document.content)
    find_folders(values, document)
    return validated(kind, values, KeyLocation(document.put))


def settings_of_values(
    kind: type[Settings],
    values: Mapping[str, Any],
    find_folders: Callable[[dict[str, Any], Document], None],
) -> Settings:
    """Return the settings in nested mappings, with defaults filled in.

    Args:
        kind: data model of the settings.
        values: the settings; sequences, paths and NumPy's numbers are allowed as values.
        find_folders: makes the paths among the values absolute.

    Raises:
        ConfigError: a value is invalid; the message lists every error with its key.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"The settings are of type {type(values).__name__}. Pass a dict with at least the keys "
            f"of {example_of(kind)}."
        )
    document = Document(None, CommentedMap(), frozenset())
    plain = _plain(values)
    find_folders(plain, document)
    return validated(kind, plain, KeyLocation(document.put))


def validated(kind: type[Settings], values: Mapping[str, Any], location: KeyLocation) -> Settings:
    """Return the settings with these values, with defaults filled in.

    Raises:
        ConfigError: a value is invalid; the message lists every error with its location.
    """
    try:
        return kind.model_validate(values, context=location)
    except ValidationError as error:
        faults = find_faults(error)
        lines = [location.put(*explain(fault, kind)) for fault in faults[:MAX_FAULTS]]
        if len(faults) > MAX_FAULTS:
            lines.append(f"... and {len(faults) - MAX_FAULTS:,} more.")
        raise ConfigError("\n".join(lines)) from error


def top_keys(path: str | Path, overrides: Sequence[str] = ()) -> set[str]:
    """Return the names of the sections of a YAML file, and of those that overrides add.

    Raises:
        MissingError: the file does not exist.
        ConfigError: the file is not valid YAML.
    """
    content = parse_yaml(read_yaml(Path(path)), str(path))
    keys = map(str, content) if isinstance(content, CommentedMap) else ()
    return {*keys, *(text.partition("=")[0].partition(".")[0] for text in overrides)}


def dump_settings(settings: Section) -> str:
    """Return the settings as YAML with every default written out."""
    out = StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(settings.model_dump(mode="json"), out)
    return out.getvalue()


def _first_line(text: str) -> int:
    """Return the number of the first line that is not a comment; 1 if there is none."""
    lines = enumerate(text.splitlines(), start=1)
    return next((n for n, line in lines if line.strip() and not line.lstrip().startswith("#")), 1)


def _no_keys(content: Any, kind: type[Section]) -> str:
    """Return the message for a file that is not a mapping of keys to values."""
    found = "a list" if isinstance(content, CommentedSeq) else "a value without a key"
    return (
        f"{'the file is empty' if content is None else found}. A file must have keys and values, "
        f"at least those of {example_of(kind)}."
    )


def _check_override(text: str, kind: type[Section]) -> None:
    """Raise ConfigError if an override is not `section.key=value`."""
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(f"--set {text}: write it as section.key=value.")
    is_empty = not value.strip()
    if item := _ITEM.search(key):
        list_key = key[: item.start()]
        example = example_at(tuple(list_key.split(".")), kind) or "[...]"
        raise ConfigError(
            f"--set {text}: {'no value after the =, and ' * is_empty}a single item of a list "
            f"cannot be set. Give the whole list: --set '{list_key}={example}'."
        )
    if is_empty:
        raise ConfigError(
            f"--set {text}: no value after the =. Write {key}=VALUE, or {key}=null where null is "
            "allowed."
        )


def _override(document: Document, overrides: Sequence[str]) -> Document:
    for text in overrides:
        key, _, value = text.partition("=")
        keys = tuple(key.split("."))
        section: Any = document.content
        given = {keys}
        for depth, part in enumerate(keys[:-1], start=1):
            if section.get(part) is None:
                section[part] = CommentedMap()
                given.add(keys[:depth])
            section = section[part]
            if not isinstance(section, CommentedMap):
                raise ConfigError(f"--set {text}: {part!r} is a value, not a section.")
        parsed = parse_yaml(f"value: {value}", f"--set {key}")
        if len(parsed) > 1:
            raise ConfigError(f"--set {key}: give one value on one line.")
        section[keys[-1]] = parsed["value"]
        document = Document(document.path, document.content, document.overridden | given)
    return document


def _plain(node: Any) -> Any:
    """Return the values as plain Python types, without the parser's formatting data."""
    if isinstance(node, Mapping):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple | range):
        return [_plain(value) for value in node]
    if isinstance(node, PurePath):
        return str(node)
    if hasattr(node, "tolist"):  # NumPy
        return _plain(node.tolist())
    if isinstance(node, str) and FORBIDDEN.search(node):
        raise ConfigError(
            f"The text {node[:80]!r} contains NUL or a lone surrogate, which is not a character. "
            "Remove it."
        )
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node
