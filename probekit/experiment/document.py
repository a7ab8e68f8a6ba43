"""Reading a YAML file of settings; every error message names the line and the key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent

from probekit.errors import ConfigError, nearest
from probekit.files import regular
from probekit.section import NAME, KeyLocation, KeyPath, Section

Settings = TypeVar("Settings", bound=Section)

MAX_BYTES = 1_000_000  # of a file
MAX_DEPTH = 20  # of sections and lists in each other
MAX_FAULTS = 20  # reported at once

_ITEM = re.compile(r"\[|\.\d+(\.|$)")  # kinds[0], kinds.0
# NUL is invalid in paths; surrogates cannot be encoded in UTF-8.
_FORBIDDEN = re.compile("[\0\ud800-\udfff]")
_COLON = re.compile(r":(\s|$)")  # between a key and its value
_NO_CONTENT = re.compile(r"^(- *)*|(^|\s)#.*")  # dashes of a list, and comments
# Beginnings of messages of the parser that often follow a line without a colon.
_AFTER_NO_COLON = ("mapping values are", "expected '<document start>'", "expected <block end>")
_ADVICE = (
    "Indent with spaces, and put text with a special character, such as *, # or a colon, in quotes"
)
_LONGEST_VALUE = 80  # characters of a value that a message quotes
# Pydantic's terms of Python -> those of YAML.
_TERMS = {
    "Input should": "It must",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a valid boolean": "true or false",
    "a valid string": "text (a number needs quotes)",
    "a valid integer": "an integer",
    "a valid number": "a number",
    "Tuple ": "The list ",
    "valid tuple": "list: [..., ...]",
    "String ": "The text ",
    " after validation": "",
    f"should match pattern '{NAME}'": (
        "must have only letters, digits and ._-, and begin with a letter or digit"
    ),
    r"should match pattern '^[^,\s]+$'": "must not contain a comma or a space",
    r"should match pattern '[^\r\n\"]'": "must be a character, but no quote or line break",
}


class Document(KeyLocation):
    """A parsed file with overrides applied, and the keys that were overridden.

    Args:
        content: the contents, with line numbers.
        path: the file; None for settings in memory, whose location is the key alone.
        overridden: the keys that were overridden.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        path: Path | None = None,
        overridden: frozenset[KeyPath] = frozenset(),
    ) -> None:
        self.content, self.path, self.overridden = content, path, overridden

    @property
    def name(self) -> str:
        """The path that messages show; "FILE" for settings in memory."""
        return "FILE" if self.path is None else str(self.path)

    def put(self, keys: KeyPath, text: str) -> str:
        """Return the text of a message, prefixed with the line or override that set the value.

        For settings in memory it is prefixed with the key, unless the text contains the key.
        """
        override = ".".join(map(str, self._override_of(keys)))
        if self.path is None:
            return super().put(keys, text)
        if not override:
            # An override of a key within the section may be the cause, too.
            inside = [key for key in self.overridden if key[: len(keys)] == keys]
            below = sorted(".".join(map(str, key)) for key in inside)
            or_there = f" or --set {', '.join(below)}" if below else ""
            # The line of the innermost of the keys that the file has. A key that an override has
            # created is in the contents, but has no line.
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
            return f"{self.path}, line {line + 1}{or_there}: {text}"
        # Do not repeat a key that the text names.
        return f"--set: {text}" if override in text else f"--set {override}: {text}"

    def _override_of(self, keys: KeyPath) -> KeyPath:
        """Return the keys of the override that set the value; () if the file did."""
        prefixes = (keys[:length] for length in range(len(keys), 0, -1))
        return next((prefix for prefix in prefixes if prefix in self.overridden), ())

    def absolute(self, keys: KeyPath, text: str) -> Path:
        """Return the absolute path for the text at these keys.

        A relative path starts from the folder of the file. In an override, or in settings in
        memory, it starts from the current folder.

        Raises:
            ConfigError: the text is not a valid path.
        """
        in_file = self.path is not None and not self._override_of(keys)
        folder = self.path.resolve().parent if self.path and in_file else Path.cwd()
        try:
            path = (folder / Path(text).expanduser()).resolve()
            path.is_dir()  # raises for a path that is invalid on this file system
            str(path).encode()  # raises for a name that is not UTF-8, which no record can hold
        except (OSError, RuntimeError, ValueError) as error:
            dotted = ".".join(map(str, keys))
            message = f"{dotted} is {text[:_LONGEST_VALUE]!r}, which is not a valid path ({error})."
            raise ConfigError(self.put(keys, message)) from error
        return path

    def values(self) -> dict[str, Any]:
        """Return the contents as plain Python types.

        Raises:
            ConfigError: a text contains a character that is not allowed.
        """
        return {str(key): self._plain(value, (str(key),)) for key, value in self.content.items()}

    def _plain(self, node: Any, keys: KeyPath) -> Any:
        """Return a value of the file as plain Python types; `keys` locate it in messages."""
        if isinstance(node, Mapping):
            return {str(key): self._plain(one, (*keys, str(key))) for key, one in node.items()}
        if isinstance(node, list | tuple | range):
            return [self._plain(one, (*keys, number)) for number, one in enumerate(node)]
        if isinstance(node, set | frozenset):
            raise ConfigError(self.put(keys, f"{keys[-1]} is a set, without order. Give a list."))
        node = str(node) if isinstance(node, PurePath) else node
        if hasattr(node, "tolist"):  # NumPy
            return self._plain(node.tolist(), keys)
        if isinstance(node, str) and (forbidden := _FORBIDDEN.search(node)):
            text = f"the text contains {forbidden[0]!r}, which is not allowed. Remove it."
            raise ConfigError(self.put(keys, KeyLocation().put(keys, text)))
        # The parser's numbers and texts carry their format.
        for kind in (bool, int, float, str):  # bool first: it is an int
            if isinstance(node, kind):
                return kind(node)
        return node

    def settings(
        self, kind: type[Settings], resolve: Callable[[dict[str, Any], Document], None]
    ) -> Settings:
        """Return the contents as settings, with defaults filled in.

        Args:
            kind: data model of the file.
            resolve: makes the paths among the values absolute, in place.

        Raises:
            ConfigError: a value is invalid; the message lists every error with its location.
            MissingError: `resolve` does not find a checkpoint.
        """
        values = self.values()
        resolve(values, self)
        return validated(kind, values, self)


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


def read_document(path: Path, overrides: Sequence[str] = ()) -> Document:
    """Return the contents of a YAML file (YAML 1.2: `no` and `4:8` stay strings).

    Args:
        path: the file.
        overrides: `section.key=value`; each replaces a value of the file, or of an earlier one.

    Raises:
        ConfigError: the file cannot be read, is too large, not UTF-8, not YAML or has no keys, or
            an override is invalid; the message names the line or the override, if it is due to one.
    """
    try:
        if regular(path).stat().st_size > MAX_BYTES:
            size = f"{path.stat().st_size:,} bytes; an experiment file has at most {MAX_BYTES:,}"
            raise ConfigError(f"{path} has {size}. Is it a data file?")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = f"{error.object[error.start]:#04x}"
        raise ConfigError(
            f"{path}, line {line}: the byte {byte} is not UTF-8 text. Save the file as UTF-8."
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    content = parse_yaml(text, str(path))
    if not isinstance(content, CommentedMap):
        raise ConfigError(f"{path}, line 1: the file has no keys. Write `key: value` lines.")
    given: list[KeyPath] = []  # keys that are overridden, and sections that are created for them
    for override in overrides:
        key, _, value = override.partition("=")
        # Descend to the section of the key within `content`, and set the value there.
        keys, section = tuple(key.split(".")), content
        if not value.strip() or "" in keys:
            raise ConfigError(f"--set {override}: write section.key=value, or section.key=null.")
        if item := _ITEM.search(key):
            whole = f"--set '{key[: item.start()]}=[...]'"
            raise ConfigError(f"--set {override}: a list can only be set as a whole: {whole}.")
        given.append(keys)
        for depth, part in enumerate(keys[:-1], start=1):
            if section.get(part) is None:
                section[part] = CommentedMap()
                given.append(keys[:depth])
            section = section[part]
            if not isinstance(section, CommentedMap):
                raise ConfigError(f"--set {override}: {part!r} is a value, not a section.")
        parsed = parse_yaml(f"value: {value}", f"--set {key}")
        if len(parsed) > 1:
            raise ConfigError(f"--set {key}: give one value on one line.")
        section[keys[-1]] = parsed["value"]
    return Document(content, path, frozenset(given))


class _PlainComposer(Composer):
    """Composer that rejects YAML that expands (aliases, deep nesting) or creates objects (tags)."""

    levels = 0  # number of the nodes that contain the next one

    def compose_document(self) -> Any:
        """Compose a document of YAML 1.2."""
        self._refuse(self.parser.peek_event().version, "a %YAML line is not allowed: remove it")
        return super().compose_document()

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node with plain contents."""
        event = self.parser.peek_event()
        is_alias = isinstance(event, AliasEvent)
        self._refuse(is_alias, f"aliases (*{event.anchor}) are not allowed")
        tag = None if is_alias else event.ctag
        self._refuse(tag is not None and str(tag) != "", f"tags ({tag}) are not allowed")
        self._refuse(self.levels > MAX_DEPTH, f"nested deeper than {MAX_DEPTH} levels")
        self.levels += 1
        node = super().compose_node(parent, index)
        self.levels -= 1
        return node

    def _refuse(self, is_found: Any, problem: str) -> None:
        if is_found:
            raise ComposerError(None, None, problem, self.parser.peek_event().start_mark)


def parse_yaml(text: str, name: str) -> Any:
    r"""Return the values of a YAML text; error messages call the text `name`.

    Raises:
        ConfigError: the text is not YAML 1.2, or contains aliases, tags or deep nesting.

    >>> parse_yaml("sites: [a]\nmodel gpt2", "x.yaml")
    Traceback (most recent call last):
    probekit.errors.ConfigError: x.yaml, line 2: `model gpt2` is not `key: value`. Indent with ...
    """
    yaml = YAML()
    yaml.Composer = _PlainComposer
    try:
        return yaml.load(text)
    except MarkedYAMLError as error:
        problem, mark = error.problem.partition("\n")[0], error.problem_mark or error.context_mark
        lines = [_NO_CONTENT.sub("", line.strip()).strip() for line in text.splitlines()]
        # The parser often fails after a line without a colon.
        may_lack_colon, line = True, mark.line
        if problem.startswith("could not find expected ':'"):
            line = error.context_mark.line
        elif problem.startswith(_AFTER_NO_COLON):
            # The nearest line before it that has content.
            line = next((number for number in range(line - 1, -1, -1) if lines[number]), line)
        else:
            may_lack_colon = False
        # If the line has a colon after all, the fault is where the parser reports it.
        if may_lack_colon and _COLON.search(lines[line]):
            line = mark.line
        elif may_lack_colon:
            problem = f"`{lines[line]}` is not `key: value`"
        raise ConfigError(f"{name}, line {line + 1}: {problem}. {_ADVICE}.") from error
    except (YAMLError, ValueError, RecursionError) as error:
        problem = str(error).partition("\n")[0]
        raise ConfigError(f"{name} is not valid YAML: {problem}.") from error


def find_faults(error: ValidationError) -> list[ErrorDetails]:
    """Return the errors that are not consequences of other errors, unknown keys first."""
    # An unknown key may be the misspelling of a missing one, so it comes first.
    errors = error.errors(include_url=False)
    faults = sorted(errors, key=lambda fault: fault["type"] != "extra_forbidden")
    # A list with invalid items is also reported as too short: the inner error is the cause.
    paths = [fault["loc"] for fault in faults]
    consequences = {path[:length] for path in paths for length in range(len(path))}
    return [fault for fault in faults if fault["loc"] not in consequences]


def explain(fault: ErrorDetails, kind: type[BaseModel]) -> tuple[KeyPath, str]:
    """Return the keys at which an error occurred and a sentence about it.

    Args:
        fault: an error of pydantic.
        kind: data model of the file, such as `Experiment`.

    >>> from probekit.experiment.schema import Experiment
    >>> try:
    ...     Experiment(name="a", model={}, data={}, tokens={"bos": "no"})
    ... except ValidationError as error:
    ...     print(explain(find_faults(error)[-2], Experiment)[1])
    tokens.bos is 'no'. Allowed: auto, false, true.
    """
    context = fault.get("ctx", {})
    # A rule belongs to a section, and its error names the key within it.
    keys = (*fault["loc"], *context.get("keys", ()))
    dotted = ".".join(map(str, keys))
    value = fault["input"]
    shown = "null (empty)" if value is None else repr(value)
    shown = str(value).lower() if isinstance(value, bool) else shown
    more = " ..." if len(shown) > _LONGEST_VALUE else ""
    given = f"{dotted} is {shown[:_LONGEST_VALUE]}{more}"
    if fault["type"] == "rule":
        text = f"{context['problem']}."
        return keys, (KeyLocation().put(keys, text) if keys else text)
    if fault["type"] == "extra_forbidden":
        near = nearest(str(keys[-1]), _keys_of(_section_at(kind, keys[:-1])))
        return keys, f"unknown key {dotted!r}. {near}"
    field, listed = _field_at(kind, keys), ", ".join(_keys_of(_section_at(kind, keys)))
    if fault["type"] == "missing":
        what = field.description or f"a section with keys: {listed}"
        return keys, f"the key {dotted!r} is missing; {what}. {_allowed(field)}".rstrip()
    if fault["type"] == "literal_error":
        near = nearest(str(fault["input"]), _choices(field.annotation))
        return keys, " ".join(dict.fromkeys((f"{given}.", near, _allowed(field))))
    if fault["type"] in ("model_type", "model_attributes_type"):
        (first, first_field), *_ = _section_at(kind, keys).model_fields.items()
        # The value of the first key alone, as in `position: last`.
        is_first = fault["input"] in _choices(first_field.annotation)
        example = f" Write {{{first}: {fault['input']}}}." if is_first else ""
        return keys, f"{given}. It must be a section with keys: {listed}.{example}"
    text = fault["msg"]
    for python, yaml in _TERMS.items():
        text = text.replace(python, yaml)
    return keys, f"{given}. {text}."


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the data model of a section, which may be optional or in a list; None for a value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_of, get_args(annotation))), None)


def _section_at(kind: type[BaseModel], keys: KeyPath) -> type[BaseModel]:
    """Return the data model of the section at these keys; of a value, that of its section."""
    for key in keys:
        if isinstance(key, str):  # all items of a list have the same data model
            kind = _section_of(_field_at(kind, (key,)).annotation) or kind
    return kind


def _field_at(kind: type[BaseModel], keys: KeyPath) -> FieldInfo:
    """Return the field of a key; for an item of a list, the field of the list."""
    *above, name = (key for key in keys if isinstance(key, str))
    fields = _section_at(kind, tuple(above)).model_fields
    return next(field for key, field in fields.items() if name in (field.alias, key))


def _keys_of(section: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in section.model_fields.items()]


def _allowed(field: FieldInfo) -> str:
    choices = _choices(field.annotation)
    return f"Allowed: {', '.join(sorted(choices))}." if choices else ""


def _choices(annotation: Any) -> tuple[str, ...]:
    """Return the values that a Literal allows, also in a list or with None; else ()."""
    arguments = get_args(annotation)
    if get_origin(annotation) in (tuple, Annotated) or type(None) in arguments:
        return _choices(arguments[0])
    values = arguments if get_origin(annotation) is Literal else ()
    return tuple(one if isinstance(one, str) else str(one).lower() for one in values)


def dump_settings(settings: Section) -> str:
    """Return the settings as YAML with every default written out."""
    out, yaml = StringIO(), YAML()
    yaml.default_flow_style = False
    yaml.dump(settings.model_dump(mode="json"), out)
    return out.getvalue()
