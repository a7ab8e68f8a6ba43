"""Reading YAML: plain values only, and what the parser refuses in words that say what to write."""

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

# No path can hold the first, no UTF-8 file the others.
_UNFIT = re.compile("[\0\ud800-\udfff]")

_AFTER_NO_COLON = ("mapping values are not allowed", "expected '<document start>'")
_COLON = re.compile(r":(\s|$)")
# A glob, up to the end of its item, with the heads that it chooses.
_STARRED = re.compile(r"\*[^\s,\[\]{}]*(\[[^\]]*\])?")
_IN_QUOTES = "a text that begins with * needs quotes"

# How the YAML parser begins its complaint, and what is meant.
_PARSER_WORDS = {
    "found character '\\t'": "a tab; indent with spaces",
    "mapping values are not allowed": "a second colon; put a text that has one in quotes",
    "expected alphabetic or numeric character": f'{_IN_QUOTES}: "*"',
    "but found another document": "a second document begins here. A file holds one: delete this "
    "line, or put what follows it into a file of its own",
    "expected <block end>": "this line does not fit the indentation above it",
    "expected ',' or ']'": "the list begun with [ is not closed before this line",
    "expected ',' or '}'": "the section begun with { is not closed before this line",
}


def read_yaml(path: Path) -> str:
    """Return the text of a YAML file.

    Raises:
        MissingError: there is no such file.
        ConfigError: it is too large, or not UTF-8; the message gives line and column.
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
        raise MissingError(f"There is no experiment file {path.absolute()}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(_not_utf8(path, error)) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error


def _not_utf8(path: Path, error: UnicodeDecodeError) -> str:
    """Return where a file stops being UTF-8, and how to convert it."""
    before, byte = error.object[: error.start], error.object[error.start]
    line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
    return (
        f"{path}, line {line}, column {column}: the byte {byte:#04x} is not UTF-8 text (in Latin-1 "
        f"it is {chr(byte)!r}). Save the file as UTF-8, or convert it: iconv -f LATIN1 -t UTF-8 "
        f"{path.name} > utf8.yaml"
    )


def parse_yaml(text: str, name: str) -> Any:
    r"""Return the values of a YAML text, which messages call `name`.

    Raises:
        ConfigError: it is not YAML 1.2, or holds more than plain values.

    >>> parse_yaml("sites: [a]\nmodel gpt2", "x.yaml")
    Traceback (most recent call last):
    probekit.errors.ConfigError: x.yaml, line 2: `model gpt2` has no colon after its key; write ...
    """
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
        line, words = _complaint(error, text)
        raise ConfigError(f"{name}, line {line}: {words}.") from error
    except ConfigError:  # a ValueError as well, but one whose message is complete
        raise
    except (YAMLError, ValueError, RecursionError) as error:
        problem = str(error).partition("\n")[0]
        raise ConfigError(f"{name} is not valid YAML: {problem}.") from error
    return content


def _complaint(error: MarkedYAMLError, text: str) -> tuple[int, str]:
    """Return the number of the wrong line, and what is wrong with it."""
    mark, problem = error.problem_mark or error.context_mark, error.problem
    line = _line_without_colon(error, text.splitlines())
    if line is not None:
        return line, _no_colon(text.splitlines()[line - 1])
    begins = (words for begin, words in _PARSER_WORDS.items() if problem.startswith(begin))
    return mark.line + 1, next(begins, problem)


def _line_without_colon(error: MarkedYAMLError, lines: Sequence[str]) -> int | None:
    """Return the number of the line whose key has no colon, None if that is not the mistake."""
    if error.problem.startswith("could not find expected ':'"):
        return int(error.context_mark.line) + 1
    if not error.problem.startswith(_AFTER_NO_COLON):
        return None
    # The parser joins a line without a colon with the next one, and stops at the colon there.
    mark = error.problem_mark
    above = [n for n in range(1, mark.line + 1) if _content(lines[n - 1])]
    is_first_colon = not _COLON.search(lines[mark.line][: mark.column])
    is_missing = above and is_first_colon and not _COLON.search(_content(lines[above[-1] - 1]))
    return above[-1] if is_missing else None


def _content(line: str) -> str:
    """Return a line without its indentation, dashes and comment."""
    return re.sub(r"^(- *)*|(^|\s)#.*", "", line.strip()).strip()


def _no_colon(line: str) -> str:
    """Return what is wrong with a line that has no colon, and how it could be written.

    >>> _no_colon("name tense  # why")
    '`name tense` has no colon after its key; write `name: tense`'
    """
    content = _content(line)
    key, separator, value = content.partition(":" if ":" in content else " ")
    fault = "has no space after its colon" if separator == ":" else "has no colon after its key"
    return f"`{content}` {fault}; write `{key.strip()}: {value.strip() or '...'}`"


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
            raise ConfigError(f"{name}, line {line}: {_no_alias(event, text)}.")
        tag = getattr(event, "ctag", None) if isinstance(event, NodeEvent) else None
        if tag is not None and str(tag) not in ("None", ""):
            raise ConfigError(f"{name}, line {line}: tags ({tag}) are not allowed.")


def _no_alias(event: AliasEvent, text: str) -> str:
    rest = text.splitlines()[event.start_mark.line][event.start_mark.column :]
    starred = _STARRED.match(rest)
    shown = starred[0] if starred else f"*{event.anchor}"
    return f'aliases (*{event.anchor}) are not allowed; {_IN_QUOTES}: "{shown}"'
