"""Readable error messages for invalid settings files, from pydantic's validation errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from probekit.errors import nearest
from probekit.section import KeyLocation, KeyPath

_LONGEST_VALUE = 80
_MOST_SUGGESTIONS = 3  # sections suggested for an unknown key
# Pydantic's terms of Python -> those of YAML.
_TERMS = {
    "Input should": "It must",
    "a valid boolean": "true or false",
    "a valid string": "text (a number needs quotes)",
    "a valid integer": "an integer",
    "a valid number": "a number",
    "Tuple ": "The list ",
    "valid tuple": "list: [..., ...]",
    "String ": "The text ",
    " after validation": "",
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
    tokens.bos is 'no'. It must be true or false.
    """
    context = fault.get("ctx", {})
    keys = (*fault["loc"], *context.get("keys", ()))
    dotted, given = ".".join(map(str, keys)), f"{'.'.join(map(str, keys))} is "
    given += _shown(fault["input"])
    if fault["type"] == "rule":
        text = f"{context['problem']}."
        return keys, KeyLocation().put(keys, text) if keys else text
    if fault["type"] == "extra_forbidden":
        near = nearest(str(keys[-1]), _section_at(kind, keys[:-1]).model_fields)
        return keys, f"unknown key {dotted!r}. {near}{_elsewhere(str(keys[-1]), kind)}"
    field = _field_at(kind, keys)
    if fault["type"] == "missing":
        what = field.description or f"a section with {_keys_of(_section_at(kind, keys))}"
        return keys, f"the key {dotted!r} is missing; {what}. {_allowed(field)}".rstrip()
    if fault["type"] == "literal_error":
        near = nearest(str(fault["input"]), _choices(field.annotation))
        return keys, " ".join(dict.fromkeys((f"{given}.", near, _allowed(field))))
    if fault["type"] in ("model_type", "model_attributes_type"):
        return keys, f"{given}. It must be a section with {_keys_of(_section_at(kind, keys))}."
    text = fault["msg"]
    for python, yaml in _TERMS.items():
        text = text.replace(python, yaml)
    return keys, f"{given}. {text}."


def _shown(value: Any) -> str:
    """Return a value as written in YAML, shortened.

    >>> _shown(None), _shown(True), _shown("no")
    ('null (empty)', 'true', "'no'")
    """
    if value is None:
        return "null (empty)"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]} ..."


def _elsewhere(name: str, kind: type[BaseModel]) -> str:
    """Return a question that suggests the same key in other sections; "" if none has it."""
    found = [f"{above}{name}" for above, section in _sections(kind) if name in section.model_fields]
    return f" Did you mean {' or '.join(found[:_MOST_SUGGESTIONS])}?" if found else ""


def _sections(kind: type[BaseModel], above: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield a section and its subsections, each preceded by the prefix of its keys."""
    yield above, kind
    for key, field in kind.model_fields.items():
        section = _section_of(field.annotation)
        if section is not None and get_origin(field.annotation) is not tuple:
            yield from _sections(section, f"{above}{key}.")


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the data model of a section, which may be optional or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_of, get_args(annotation))), None)


def _section_at(kind: type[BaseModel], keys: KeyPath) -> type[BaseModel]:
    """Return the data model of the section at these keys."""
    for key in keys:
        if isinstance(key, str):  # all items of a list have the same data model
            kind = _section_of(_field_at(kind, (key,)).annotation) or kind
    return kind


def _field_at(kind: type[BaseModel], keys: KeyPath) -> FieldInfo:
    """Return the field of a key; for an item of a list, the field of the list."""
    *above, name = (key for key in keys if isinstance(key, str))
    fields = _section_at(kind, tuple(above)).model_fields
    return next(field for key, field in fields.items() if name in (field.alias, key))


def _keys_of(section: type[BaseModel]) -> str:
    fields = section.model_fields.items()
    return f"keys: {', '.join(field.alias or name for name, field in fields)}"


def _allowed(field: FieldInfo) -> str:
    choices = _choices(field.annotation)
    return f"Allowed: {', '.join(sorted(choices))}." if choices else ""


def _choices(annotation: Any) -> tuple[str, ...]:
    """Return the values that a Literal, or a list of it, allows; () for other annotations."""
    arguments = get_args(annotation)
    if get_origin(annotation) in (tuple, Annotated) or type(None) in arguments:
        return _choices(arguments[0])
    return tuple(map(str, arguments)) if get_origin(annotation) is Literal else ()
