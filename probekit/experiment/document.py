"""Reading a YAML file of settings: every mistake is answered with its line and the right key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
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

from probekit.errors import ConfigError, MissingError
from probekit.experiment.messages import example_of, explain, find_faults
from probekit.section import KeyLocation, KeyPath, Section

Settings = TypeVar("Settings", bound=Section)

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_FAULTS = 20  # told at once

# No path can hold the first, no UTF-8 file the others.
_UNFIT = re.compile("[\0\ud800-\udfff]")

# How the YAML parser begins its complaint, and what is meant.
_PARSER_WORDS = {
    "found character '\\t'": "a tab; indent with spaces",
    "mapping values are not allowed": "a second colon; put a text that has one in quotes",
    "expected <block end>": "this line does not fit the indentation above it",
    "expected ',' or ']'": "the list begun with [ is not closed before this line",
    "expected ',' or '}'": "the section begun with { is not closed before this line",
}


@dataclass(frozen=True)
class Document:
    """The parsed file, the overrides laid over it, and where each value came from."""

    path: Path
    content: CommentedMap
    overridden: frozenset[KeyPath]

    def put(self, keys: KeyPath, text: str) -> str:
        """Return the text behind where the value, or else its section, was written."""
        override = ".".join(map(str, self._override_of(keys)))
        if not override:
            below = sorted(".".join(map(str, o)) for o in self.overridden if o[: len(keys)] == keys)
            or_there = f" or --set {', '.join(below)}" if below else ""
            return f"{self.path}, line {self._line(keys)}{or_there}: {text}"
        # What the text names is not named again.
        return f"--set: {text}" if override in text else f"--set {override}: {text}"

    def _override_of(self, keys: KeyPath) -> KeyPath:
        """Return the keys of the override that gave the value, () if the file did."""
        beginnings = (keys[:length] for length in range(len(keys), 0, -1))
        return next((keys for keys in beginnings if keys in self.overridden), ())

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
        """Put the place of a key before what is raised on its account."""
        with KeyLocation(self.put).before(keys):
            yield

    def folder_of(self, keys: KeyPath) -> Path:
        """Return the folder that a relative path at these keys is found from."""
        return Path.cwd() if self._override_of(keys) else self.path.resolve().parent

    def absolute(self, keys: KeyPath, text: str) -> Path:
        """Return the absolute path that is meant by the text at these keys."""
        try:
            path = (self.folder_of(keys) / Path(text).expanduser()).resolve()
            path.is_dir()  # raises for a path that no file system could have
        except (OSError, RuntimeError, ValueError) as error:
            words = (
                f"{'.'.join(map(str, keys))} is {text[:80]!r}, which cannot be a path ({error})."
            )
            raise ConfigError(self.put(keys, words)) from error
        return path


def load_settings(
    kind: type[Settings],
    path: str | Path,
    overrides: Sequence[str],
    find_folders: Callable[[dict[str, Any], Document], None],
) -> Settings:
    """Return the settings that stand in a YAML file, defaults filled in.

    Args:
        kind: what the file must hold.
        path: the YAML file (YAML 1.2: `no` and `4:8` stay strings).
        overrides: `section.key=value`, each laid over the file.
        find_folders: makes the paths among the values absolute.

    Raises:
        MissingError: there is no such file.
        ConfigError: the message lists every mistake with its line.
    """
    path = Path(path)
    text = _read(path)
    content = _parse(text, str(path))
    if not isinstance(content, CommentedMap):
        raise ConfigError(f"{path}, line {_first_line(text)}: {_no_keys(content, kind)}")
    document = _override(Document(path, content, frozenset()), overrides)
    values = _plain(document.content)
    find_folders(values, document)
    try:
        return kind.model_validate(values, context=KeyLocation(document.put))
    except ValidationError as error:
        faults = find_faults(error)
        lines = [document.put(*explain(fault, kind)) for fault in faults[:MAX_FAULTS]]
        if len(faults) > MAX_FAULTS:
            lines.append(f"... and {len(faults) - MAX_FAULTS:,} more.")
        raise ConfigError("\n".join(lines)) from error


def dump_settings(settings: Section) -> str:
    """Return the settings as YAML with every default written out."""
    out = StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(settings.model_dump(mode="json"), out)
    return out.getvalue()


def _read(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is not a file.")
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


def _first_line(text: str) -> int:
    """Return the number of the first line that is no comment, 1 if there is none."""
    lines = enumerate(text.splitlines(), start=1)
    return next((n for n, line in lines if line.strip() and not line.lstrip().startswith("#")), 1)


def _no_keys(content: Any, kind: type[Section]) -> str:
    """Return what is wrong with a file that does not hold keys and values."""
    held = "a list" if isinstance(content, CommentedSeq) else "a value without a key"
    return (
        f"{'the file is empty' if content is None else held}. A file holds keys and values, "
        f"at the least those of {example_of(kind)}."
    )


def _parse(text: str, name: str) -> Any:
    try:
        _refuse_what_is_not_plain(text, name)
        content = YAML().load(text)
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1
        key = str(error.problem).split('"')[1]
        raise ConfigError(
            f"{name}, line {line}: the key {key!r} stands there twice; keep one."
        ) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(f"{name}, line {mark.line + 1}: {_in_words(error.problem)}.") from error
    except ConfigError:  # a ValueError as well, but one whose message is complete
        raise
    except (YAMLError, ValueError, RecursionError) as error:
        problem = str(error).partition("\n")[0]
        raise ConfigError(f"{name} is not valid YAML: {problem}.") from error
    return content


def _in_words(problem: str) -> str:
    return next((w for begin, w in _PARSER_WORDS.items() if problem.startswith(begin)), problem)


def _refuse_what_is_not_plain(text: str, name: str) -> None:
    """Refuse what makes a small file large (aliases, depth) or a value into an object (tags)."""
    depth = 0
    for event in YAML().parse(StringIO(text)):
        line = event.start_mark.line + 1
        if getattr(event, "version", None):
            raise ConfigError(
                f"{name}, line {line}: a %YAML line is not allowed; YAML 1.2 is read."
            )
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ConfigError(f"{name}, line {line}: nested deeper than {MAX_DEPTH} levels.")
        unfit = _UNFIT.search(getattr(event, "value", None) or "")
        if unfit:
            raise ConfigError(f"{name}, line {line}: the character {unfit[0]!r} is not allowed.")
        if isinstance(event, AliasEvent):
            raise ConfigError(f"{name}, line {line}: aliases (*{event.anchor}) are not allowed.")
        tag = getattr(event, "ctag", None) if isinstance(event, NodeEvent) else None
        if tag is not None and str(tag) not in ("None", ""):
            raise ConfigError(f"{name}, line {line}: tags ({tag}) are not allowed.")


def _override(document: Document, overrides: Sequence[str]) -> Document:
    for text in overrides:
        key, equals, value = text.partition("=")
        keys = tuple(key.split("."))
        if not equals or not all(keys):
            raise ConfigError(f"--set {text}: write it as section.key=value.")
        section: Any = document.content
        given = {keys}
        for depth, part in enumerate(keys[:-1], start=1):
            if section.get(part) is None:
                section[part] = CommentedMap()
                given.add(keys[:depth])
            section = section[part]
            if not isinstance(section, CommentedMap):
                raise ConfigError(f"--set {text}: {part!r} is a value, not a section.")
        parsed = _parse(f"value: {value}", f"--set {key}")
        if len(parsed) > 1:
            raise ConfigError(f"--set {key}: give one value on one line.")
        section[keys[-1]] = parsed["value"]
        document = Document(document.path, document.content, document.overridden | given)
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
