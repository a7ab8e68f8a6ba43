"""Reading YAML with plain values only; error messages show the correct syntax."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    NodeEvent,
)

from probekit.errors import ConfigError, MissingError

MAX_BYTES = 1_000_000
MAX_DEPTH = 20

# NUL is invalid in paths; surrogates cannot be encoded in UTF-8.
FORBIDDEN = re.compile("[\0\ud800-\udfff]")

_AFTER_NO_COLON = ("mapping values are not allowed", "expected '<document start>'")
_COLON = re.compile(r":(\s|$)")
# A glob up to the end of its item, including a selection of heads.
_STARRED = re.compile(r"\*[^\s,\[\]{}]*(\[[^\]]*\])?")
_IN_QUOTES = "text that begins with * needs quotes"

# Beginning of the YAML parser's message -> our message.
_PARSER_MESSAGES = {
    "found character '\\t'": "a tab; indent with spaces",
    "mapping values are not allowed": "a second colon; put text that contains a colon in quotes",
    "expected alphabetic or numeric character": f'{_IN_QUOTES}: "*"',
    "but found another document": "a second document begins here. A file contains one document: "
    "delete this line, or move the lines after it to another file",
    "expected <block end>": "this line does not fit the indentation above it",
    "expected ',' or ']'": "the list begun with [ is not closed before this line",
    "expected ',' or '}'": "the section begun with { is not closed before this line",
}


def read_yaml(path: Path) -> str:
    """Return the text of a YAML file.

    Raises:
        MissingError: the file does not exist.
        ConfigError: the file is too large, or not UTF-8; the message gives line and column.
    """
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
        raise MissingError(f"Experiment file {path.absolute()} does not exist.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(_not_utf8(path, error)) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error


def _not_utf8(path: Path, error: UnicodeDecodeError) -> str:
    """Return the message for a byte that is not UTF-8, with its position and how to convert it."""
    before, byte = error.object[: error.start], error.object[error.start]
    line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
    return (
        f"{path}, line {line}, column {column}: the byte {byte:#04x} is not UTF-8 text (in Latin-1 "
        f"it is {chr(byte)!r}). Save the file as UTF-8, or convert it: iconv -f LATIN1 -t UTF-8 "
        f"{path.name} > utf8.yaml"
    )


def parse_yaml(text: str, name: str) -> Any:
    r"""Return the values of a YAML text; error messages call the text `name`.

    Raises:
        ConfigError: the text is not YAML 1.2, or contains aliases, tags or deep nesting.

    >>> parse_yaml("sites: [a]\nmodel gpt2", "x.yaml")
    Traceback (most recent call last):
    probekit.errors.ConfigError: x.yaml, line 2: `model gpt2` has no colon after its key; write ...
    """
    try:
        _check_plain(text, name)
        content = YAML().load(text)
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1
        key = str(error.problem).split('"')[1]
        raise ConfigError(
            f"{name}, line {line}: the key {key!r} is given twice; remove one."
        ) from error
    except MarkedYAMLError as error:
        line, message = _line_and_message(error, text)
        raise ConfigError(f"{name}, line {line}: {message}.") from error
    except ConfigError:  # a subclass of ValueError, whose message is already complete
        raise
    except (YAMLError, ValueError, RecursionError) as error:
        problem = str(error).partition("\n")[0]
        raise ConfigError(f"{name} is not valid YAML: {problem}.") from error
    return content


def _line_and_message(error: MarkedYAMLError, text: str) -> tuple[int, str]:
    """Return the number of the invalid line and the message about it."""
    mark, problem = error.problem_mark or error.context_mark, error.problem
    line = _line_without_colon(error, text.splitlines())
    if line is not None:
        return line, _no_colon(text.splitlines()[line - 1])
    messages = (text for start, text in _PARSER_MESSAGES.items() if problem.startswith(start))
    return mark.line + 1, next(messages, problem)


def _line_without_colon(error: MarkedYAMLError, lines: Sequence[str]) -> int | None:
    """Return the number of the line whose key has no colon; None if the error is another one."""
    if error.problem.startswith("could not find expected ':'"):
        return int(error.context_mark.line) + 1
    if not error.problem.startswith(_AFTER_NO_COLON):
        return None
    # The parser joins a line without a colon to the next one and reports the colon there.
    mark = error.problem_mark
    above = [n for n in range(1, mark.line + 1) if _content(lines[n - 1])]
    is_first_colon = not _COLON.search(lines[mark.line][: mark.column])
    is_missing = above and is_first_colon and not _COLON.search(_content(lines[above[-1] - 1]))
    return above[-1] if is_missing else None


def _content(line: str) -> str:
    """Return a line without its indentation, dashes and comment."""
    return re.sub(r"^(- *)*|(^|\s)#.*", "", line.strip()).strip()


def _no_colon(line: str) -> str:
    """Return the message for a line that has no colon after its key.

    >>> _no_colon("name tense  # why")
    '`name tense` has no colon after its key; write `name: tense`'
    """
    content = _content(line)
    key, separator, value = content.partition(":" if ":" in content else " ")
    fault = "has no space after its colon" if separator == ":" else "has no colon after its key"
    return f"`{content}` {fault}; write `{key.strip()}: {value.strip() or '...'}`"


def _check_plain(text: str, name: str) -> None:
    """Raise ConfigError for YAML that expands (aliases, deep nesting) or creates objects (tags)."""
    depth = 0
    for event in YAML().parse(StringIO(text)):
        line = event.start_mark.line + 1
        if getattr(event, "version", None):
            raise ConfigError(
                f"{name}, line {line}: a %YAML line is not allowed; files are YAML 1.2."
            )
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ConfigError(f"{name}, line {line}: nested deeper than {MAX_DEPTH} levels.")
        forbidden = FORBIDDEN.search(getattr(event, "value", None) or "")
        if forbidden:
            raise ConfigError(
                f"{name}, line {line}: the character {forbidden[0]!r} is not allowed."
            )
        if isinstance(event, AliasEvent):
            raise ConfigError(f"{name}, line {line}: {_no_alias(event, text)}.")
        tag = getattr(event, "ctag", None) if isinstance(event, NodeEvent) else None
        if tag is not None and str(tag) not in ("None", ""):
            raise ConfigError(f"{name}, line {line}: tags ({tag}) are not allowed.")


def _no_alias(event: AliasEvent, text: str) -> str:
    rest = text.splitlines()[event.start_mark.line][event.start_mark.column :]
    starred = _STARRED.match(rest)
    shown = starred[0] if starred else f"*{event.anchor}"
    return f'aliases (*{event.anchor}) are not allowed; {_IN_QUOTES}: "{shown}"'
