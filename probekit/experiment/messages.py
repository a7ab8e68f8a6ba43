"""Readable error messages for invalid settings files, from pydantic's validation errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from probekit.errors import nearest
from probekit.section import KeyPath

_LONGEST_VALUE = 80
_MOST_SUGGESTIONS = 3  # sections suggested for an unknown key
_LIMITS = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}

# Pydantic's error type -> message; the braces hold its limits and attributes of `_Given`.
_MESSAGES = {
    "extra_forbidden": "unknown key {given.dotted!r}. {given.nearest_key} {given.elsewhere}",
    "missing": "the key {given.dotted!r} is missing; {given.description}. {given.allowed}",
    "rule": "{problem}.",
    "literal_error": "{given}. {given.nearest_value}",
    "url": "{given}, which is a URL. Data files are local: download the file (curl -LO URL) and "
    "give its path.",
    "with_details": "{given}. {given.nearest_value} {problem}.",
    "twice": "{given.dotted} is {given.item}, which is already in the list. Give each value once.",
    "model_type": "{given}. It must be a section of keys, such as {given.example}.",
    "tuple_type": "{given}. It must be a list, such as {given.example}.",
    "too_short": "{given}. It must list at least {min_length}.",
    "bool_type": "{given}. It must be true or false (YAML 1.2 reads yes and no as text).",
    "int_type": "{given}. It must be an integer. {given.limits}",
    "float_type": "{given}. It must be a number. {given.limits}",
    "finite_number": "{given}. It must be a finite number.",
    "greater_than": "{given}. It must be greater than {gt:,.12g}.",
    "greater_than_equal": "{given}. It must be at least {ge:,.12g}.",
    "less_than": "{given}. It must be less than {lt:,.12g}.",
    "less_than_equal": "{given}. It must be at most {le:,.12g}.",
    "string_type": "{given}. It must be text (a number needs quotes to be text).",
    "string_too_short": "{given}. It must have at least {min_length} characters.",
    "string_too_long": "{given}. It must have at most {max_length} characters.",
    "string_pattern_mismatch": "{given}. It must consist of letters, digits, dot, _ and -, and "
    "begin with a letter or digit; try {given.name!r}.",
}


def find_faults(error: ValidationError) -> list[ErrorDetails]:
    """Return the errors that are not consequences of other errors, unknown keys first."""
    # An unknown key may be the misspelling of a missing one, so it comes first.
    faults = sorted(
        error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden"
    )
    # A list with invalid items is also reported as too short: the inner error is the cause.
    consequences = {
        fault["loc"][:length] for fault in faults for length in range(len(fault["loc"]))
    }
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
    tokens.bos is 'no'. It must be true or false (YAML 1.2 reads yes and no as text).
    """
    context = fault.get("ctx", {})
    keys = (*fault["loc"], *context.get("keys", ()))
    given = _Given(keys, fault["input"], kind)
    template = _MESSAGES.get(fault["type"], "{given}. {message}.")
    text = template.format(**context, given=given, message=fault["msg"])
    return keys, f"{text.rstrip()} {given.null_advice}".rstrip()


def example_of(kind: type[BaseModel]) -> str:
    """Return an example of a section or file in YAML, with its required keys.

    >>> from probekit.experiment.tokens import TokensSection
    >>> example_of(TokensSection)
    '{bos: true, position: {at: last}}'
    """
    return f"{{{', '.join(_example_keys(kind))}}}"


def example_at(keys: KeyPath, kind: type[BaseModel]) -> str | None:
    """Return an example value in YAML for these keys; None if there is no such key.

    >>> from probekit.experiment.schema import Experiment
    >>> example_at(("probe", "C"), Experiment), example_at(("prob", "C"), Experiment)
    ('[0.0001, 0.001]', None)
    """
    dotted = ".".join(map(str, keys))
    fields = {f"{above}{key}": f for above, s in _sections(kind) for key, f in keys_of(s).items()}
    field = fields.get(dotted)
    return None if field is None else _example(field)


@dataclass(frozen=True)
class _Given:
    """An invalid value of the file, with the schema of its key."""

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
        """The field of the key; for an item of a list, the field of the list."""
        names = [key for key in self.keys if isinstance(key, str)]
        return _fields(self.kind, names[:-1])[names[-1]]

    @property
    def nearest_key(self) -> str:
        return nearest(str(self.keys[-1]), _fields(self.kind, self.keys[:-1]))

    @property
    def elsewhere(self) -> str:
        """A question that suggests the same key in other sections; "" if no section has it."""
        name = self.keys[-1]
        suggestions = [
            f"{above}{name}" for above, section in _sections(self.kind) if name in keys_of(section)
        ]
        shown = " or ".join(suggestions[:_MOST_SUGGESTIONS])
        return f"Did you mean {shown}?" if suggestions else ""

    @property
    def nearest_value(self) -> str:
        near = nearest(str(self.value), _choices(self.field.annotation))
        # If no value is similar, `near` lists all allowed ones already.
        return " ".join(dict.fromkeys((near, self.allowed)))

    @property
    def allowed(self) -> str:
        choices = _choices(self.field.annotation)
        return f"Allowed: {', '.join(sorted(choices))}." if choices else ""

    @property
    def limits(self) -> str:
        """The allowed numbers; "" for an item of a list and for null."""
        if self.value is None or not isinstance(self.keys[-1], str):
            return ""
        limits = [
            f"{words} {getattr(limit, name):,.12g}"
            for limit in self.field.metadata
            for name, words in _LIMITS.items()
            if hasattr(limit, name)
        ]
        return f"Allowed: {', '.join(limits)}." if limits else ""

    @property
    def item(self) -> str:
        """The invalid item of a list."""
        return _shown(self.value[self.keys[-1]])

    @property
    def description(self) -> str:
        return (
            self.field.description or f"a section with {', '.join(_fields(self.kind, self.keys))}"
        )

    @property
    def example(self) -> str:
        """An example value in YAML."""
        if isinstance(self.keys[-1], int) and self.field.examples:
            return str(self.field.examples[0])  # examples of a list are examples of its items
        return _example(self.field)

    @property
    def name(self) -> str:
        """The value as a valid name, with invalid characters replaced by _."""
        return re.sub(r"[^A-Za-z0-9._-]", "_", self.value).lstrip("._-") or f"my_{self.keys[-1]}"

    @property
    def null_advice(self) -> str:
        is_key = self.value is None and isinstance(self.keys[-1], str)
        field = _fields(self.kind, self.keys[:-1]).get(str(self.keys[-1])) if is_key else None
        has_default = field is not None and not field.is_required()
        return "Remove the key to use its default." if has_default else ""


def _choices(annotation: Any) -> tuple[str, ...]:
    """Return the values that a Literal, or a list of it, allows; () for other annotations."""
    arguments = get_args(annotation)
    if get_origin(annotation) in (tuple, Annotated) or type(None) in arguments:
        return _choices(arguments[0])
    return tuple(map(str, arguments)) if get_origin(annotation) is Literal else ()


def _sections(kind: type[BaseModel], above: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield a section and its subsections, each preceded by the prefix of its keys."""
    yield above, kind
    for key, field in keys_of(kind).items():
        section = _section_of(field)
        if section is not None:
            yield from _sections(section, f"{above}{key}.")


def _section_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the data model of a section, which may be optional; None for other fields."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if get_origin(field.annotation) is not tuple and _is_section(kind):
            section: type[BaseModel] = kind
            return section
    return None


def keys_of(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a section by their keys in the file."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _fields(kind: type[BaseModel], keys: Sequence[str | int]) -> dict[str, FieldInfo]:
    """Return the fields, by key, of the section at these keys."""
    section = kind
    for key in keys:
        if isinstance(key, int):  # all items of a list have the same data model
            continue
        field = keys_of(section)[key]
        is_list = get_origin(field.annotation) is tuple
        inner: Any = get_args(field.annotation)[0] if is_list else _section_of(field)
        assert _is_section(inner), f"{key} is not a section"
        section = inner
    return keys_of(section)


def _example(field: FieldInfo) -> str:
    """Return an example value of a field, as written in YAML."""
    kind: Any = field.annotation
    section = _section_of(field)
    if section is not None:
        return example_of(section)
    if isinstance(field.default, tuple):
        items = field.default[:2] or field.examples or ("...",)
        return f"[{', '.join(map(_written, items))}]"
    if kind is bool:
        return "true"
    choices = field.examples or _choices(kind) or get_args(kind) or ("...",)
    has_default = not field.is_required() and field.default is not None
    return str(field.default if has_default else choices[0])


def _written(item: Any) -> str:
    """Return an item of a list, as written in YAML."""
    if not isinstance(item, BaseModel):
        return str(item)
    given = item.model_dump(exclude_none=True).items()
    return f"{{{', '.join(f'{key}: {value}' for key, value in given)}}}"


def _example_keys(section: type[BaseModel]) -> Iterator[str]:
    """Yield the required keys of a section with example values; its first key if it has none."""
    fields = keys_of(section)
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
