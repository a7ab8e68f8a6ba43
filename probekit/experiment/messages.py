"""What is wrong with a file of settings, in the file's words: pydantic's faults made readable."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from probekit.errors import nearest
from probekit.section import KeyPath

_LONGEST_VALUE = 80
_MOST_PLACES = 3  # of a key, that are offered
_LIMITS = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}

# Pydantic's type of fault -> what to say; the braces hold its limits and what `_Given` knows.
_WORDS = {
    "extra_forbidden": "unknown key {given.dotted!r}. {given.nearest_key} {given.elsewhere}",
    "missing": "the key {given.dotted!r} is missing; {given.description}. {given.allowed}",
    "rule": "{problem}.",
    "literal_error": "{given}. {given.nearest_value}",
    "url": "{given}, which is a URL. Data files are local: download the file (curl -LO URL) and "
    "give its path.",
    "with_details": "{given}. {given.nearest_value} {problem}.",
    "twice": "{given.dotted} is {given.item}, which stands in the list already. Give each once.",
    "model_type": "{given}. It must be a section of keys, such as {given.example}.",
    "tuple_type": "{given}. It must be a list, such as {given.example}.",
    "too_short": "{given}. It must list at least {min_length}.",
    "bool_type": "{given}. It must be true or false (YAML 1.2 reads yes and no as text).",
    "int_type": "{given}. It must be a whole number. {given.limits}",
    "float_type": "{given}. It must be a number. {given.limits}",
    "finite_number": "{given}. It must be a finite number.",
    "greater_than": "{given}. It must be greater than {gt:,.12g}.",
    "greater_than_equal": "{given}. It must be at least {ge:,.12g}.",
    "less_than": "{given}. It must be less than {lt:,.12g}.",
    "less_than_equal": "{given}. It must be at most {le:,.12g}.",
    "string_type": "{given}. It must be text (a number needs quotes to be text).",
    "string_too_short": "{given}. It must have at least {min_length} characters.",
    "string_too_long": "{given}. It must have at most {max_length} characters.",
    "string_pattern_mismatch": "{given}. It must have letters, digits, dot, _ and - only, and "
    "begin with a letter or digit; try {given.name!r}.",
}


def find_faults(error: ValidationError) -> list[ErrorDetails]:
    """Return the mistakes that are causes and not consequences, unknown keys first."""
    # A key that is not known may be one that is missing, misspelt: it comes first.
    faults = sorted(
        error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden"
    )
    # A list whose items failed is also called too short, and so on: the inner fault is the cause.
    consequences = {
        fault["loc"][:length] for fault in faults for length in range(len(fault["loc"]))
    }
    return [fault for fault in faults if fault["loc"] not in consequences]


def explain(fault: ErrorDetails, kind: type[BaseModel]) -> tuple[KeyPath, str]:
    """Return the keys that a mistake stands at and a sentence about it.

    Args:
        fault: as pydantic tells it.
        kind: what was to be read, such as `Experiment`.

    >>> from probekit.experiment.schema import Experiment
    >>> try:
    ...     Experiment(name="a", model={}, data={}, tokens={"bos": "no"})
    ... except ValidationError as error:
    ...     print(explain(find_faults(error)[-2], Experiment)[1])
    tokens.bos is 'no'. It must be true or false (YAML 1.2 reads yes and no as text).
    """
    context = fault.get("ctx", {})
    keys = (*fault["loc"], *context.get("keys", ()))
    given = _Given(keys, fault["input"], kind)
    words = _WORDS.get(fault["type"], "{given}. {message}.")
    text = words.format(**context, given=given, message=fault["msg"])
    return keys, f"{text.rstrip()} {given.way_out_of_null}".rstrip()


def example_of(kind: type[BaseModel]) -> str:
    """Return in YAML what a section, or a whole file, must have.

    >>> from probekit.experiment.tokens import Tokens
    >>> example_of(Tokens)
    '{bos: true, position: {at: last}}'
    """
    return f"{{{', '.join(_example_keys(kind))}}}"


def example_at(keys: KeyPath, kind: type[BaseModel]) -> str | None:
    """Return in YAML what could stand at these keys, None where there is no such key.

    >>> from probekit.experiment.schema import Experiment
    >>> example_at(("probe", "C"), Experiment), example_at(("prob", "C"), Experiment)
    ('[0.0001, 0.001]', None)
    """
    dotted = ".".join(map(str, keys))
    fields = {
        f"{above}{key}": f for above, s in _sections(kind) for key, f in s.model_fields.items()
    }
    field = fields.get(dotted)
    return None if field is None else _example(field)


@dataclass(frozen=True)
class _Given:
    """A value of the file that was refused, and what the schema knows of its key."""

    keys: KeyPath
    value: Any
    kind: type[BaseModel]

    def __str__(self) -> str:
        return f"{self.dotted} is {_shown(self.value)}"

    @property
    def dotted(self) -> str:
        return ".".join(map(str, self.keys))

    @property
    def field(self) -> FieldInfo:
        """The field of the key; for an item of a list, that of the list."""
        names = [key for key in self.keys if isinstance(key, str)]
        return _fields(self.kind, names[:-1])[names[-1]]

    @property
    def nearest_key(self) -> str:
        return nearest(str(self.keys[-1]), _fields(self.kind, self.keys[:-1]))

    @property
    def elsewhere(self) -> str:
        """The same key in other sections, as a question; "" if it is in none."""
        name = self.keys[-1]
        found = [
            f"{above}{name}"
            for above, section in _sections(self.kind)
            if name in section.model_fields
        ]
        return f"Did you mean {' or '.join(found[:_MOST_PLACES])}?" if found else ""

    @property
    def nearest_value(self) -> str:
        near = nearest(str(self.value), _choices(self.field.annotation))
        # Where none is near, that has them all already.
        return " ".join(dict.fromkeys((near, self.allowed)))

    @property
    def allowed(self) -> str:
        choices = _choices(self.field.annotation)
        return f"Allowed: {', '.join(sorted(choices))}." if choices else ""

    @property
    def limits(self) -> str:
        """The numbers that may stand at the key; "" for an item of a list, and for null."""
        if self.value is None or not isinstance(self.keys[-1], str):
            return ""
        told = [
            f"{words} {getattr(limit, name):,.12g}"
            for limit in self.field.metadata
            for name, words in _LIMITS.items()
            if hasattr(limit, name)
        ]
        return f"Allowed: {', '.join(told)}." if told else ""

    @property
    def item(self) -> str:
        """The item of a refused list that the keys lead to."""
        return _shown(self.value[self.keys[-1]])

    @property
    def description(self) -> str:
        return (
            self.field.description or f"a section with {', '.join(_fields(self.kind, self.keys))}"
        )

    @property
    def example(self) -> str:
        """What could stand there, in YAML."""
        if isinstance(self.keys[-1], int) and self.field.examples:
            return str(self.field.examples[0])  # of an item of the list
        return _example(self.field)

    @property
    def name(self) -> str:
        """The value as a name: what a name cannot have is replaced by _."""
        return re.sub(r"[^A-Za-z0-9._-]", "_", self.value).lstrip("._-") or f"my_{self.keys[-1]}"

    @property
    def way_out_of_null(self) -> str:
        is_key = self.value is None and isinstance(self.keys[-1], str)
        field = _fields(self.kind, self.keys[:-1]).get(str(self.keys[-1])) if is_key else None
        has_default = field is not None and not field.is_required()
        return "Leave the key out to have its default." if has_default else ""


def _choices(annotation: Any) -> tuple[str, ...]:
    """Return the literals of an annotation, or of the entries of a list; () if it has none."""
    arguments = get_args(annotation)
    if get_origin(annotation) is tuple:
        return _choices(arguments[0])
    return tuple(map(str, arguments)) if get_origin(annotation) is Literal else ()


def _sections(kind: type[BaseModel], above: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield a section and those in it, each with what stands before its keys."""
    yield above, kind
    for key, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _sections(field.annotation, f"{above}{key}.")


def _fields(kind: type[BaseModel], keys: Sequence[str | int]) -> dict[str, FieldInfo]:
    """Return the fields of the section that stands at these keys."""
    section = kind
    for key in keys:
        if isinstance(key, int):  # an item of a list, whose sections are all of one kind
            continue
        inner: Any = section.model_fields[key].annotation
        inner = get_args(inner)[0] if get_origin(inner) is tuple else inner
        assert isinstance(inner, type), f"{key} is no section"
        assert issubclass(inner, BaseModel), f"{key} is no section"
        section = inner
    return section.model_fields


def _example(field: FieldInfo) -> str:
    """Return a value that the field would take, as it is written in YAML."""
    kind: Any = field.annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return example_of(kind)
    if isinstance(field.default, tuple):
        items = field.default[:2] or field.examples or ("...",)
        return f"[{', '.join(map(_written, items))}]"
    if kind is bool:
        return "true"
    choices = field.examples or get_args(kind) or ("...",)
    has_default = not field.is_required() and field.default is not None
    return str(field.default if has_default else choices[0])


def _written(item: Any) -> str:
    """Return an item of a list as it is written in YAML."""
    if not isinstance(item, BaseModel):
        return str(item)
    given = item.model_dump(exclude_none=True).items()
    return f"{{{', '.join(f'{key}: {value}' for key, value in given)}}}"


def _example_keys(section: type[BaseModel]) -> Iterator[str]:
    """Yield the keys that a section must have, or else its first one."""
    fields = section.model_fields
    required = [key for key, field in fields.items() if field.is_required()]
    for key in required or list(fields)[:1]:
        yield f"{key}: {_example(fields[key])}"


def _shown(value: Any) -> str:
    if value is None:
        return "null (empty)"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value) if isinstance(value, str | int | float | list | dict) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]} ..."
