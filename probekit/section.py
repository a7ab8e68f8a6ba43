"""Base classes for the contents of YAML files: experiments and pretraining recipes."""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from numbers import Real
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, PrivateAttr
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from probekit.errors import ProbekitError

Item = TypeVar("Item")
Several = TypeVar("Several", bound=Sequence[Any])
KeyPath = tuple[str | int, ...]
URL = re.compile("[a-z][a-z0-9+.-]*://")
Seed = Annotated[int, Field(ge=0, lt=2**32)]
NAME = "^[A-Za-z0-9][A-Za-z0-9._-]*$"
Name = Annotated[str, Field(pattern=NAME, max_length=80)]
# Names of devices on Windows, which cannot be names of files there, whatever their extension.
DEVICES = re.compile(r"(con|prn|aux|nul|(com|lpt)[0-9])(\..*)?", re.IGNORECASE)

# The part of a docstring that describes the attributes.
_ATTRIBUTES = re.compile(r"^Attributes:\n(?P<keys>(?: {4}.*(?:\n|$)|\n(?= {4}))+)\n?", re.MULTILINE)


def _refuse_device(name: str) -> str:
    """Return the name of a folder unchanged; raise if Windows does not allow it."""
    if DEVICES.fullmatch(name):
        raise rule_error(f"name is {name!r}, which Windows reserves; try 'my_{name}'")
    if name.endswith("."):
        raise rule_error(f"name is {name!r}, and Windows removes a dot at the end")
    return name


FolderName = Annotated[Name, AfterValidator(_refuse_device)]


class Section(BaseModel):
    """Base class for sections of a file: immutable, no unknown keys, no type conversion.

    The part `Attributes` of the docstring describes the keys, also in error messages and in the
    JSON schema.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        found = _ATTRIBUTES.search(inspect.cleandoc(cls.__doc__ or ""))
        parts = re.split(r"^    (\w+): ", found["keys"] if found else "", flags=re.MULTILINE)
        for key, text in zip(parts[1::2], parts[2::2], strict=True):
            assert key in cls.model_fields, f"{cls.__name__} describes {key}, which is no key"
            cls.model_fields[key].description = " ".join(text.split())

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        found = handler(core_schema)
        schema: dict[str, Any] = handler.resolve_ref_schema(found)
        schema["description"] = _ATTRIBUTES.sub("", inspect.getdoc(cls) or "").rstrip()
        for name, field in cls.model_fields.items():
            if field.description is not None:
                schema["properties"][field.alias or name]["description"] = field.description
        return found


class HoldingSection(Section):
    """A section that may hold an object passed in Python, which is neither saved nor pickled."""

    _held: Any = PrivateAttr(None)

    def __getstate__(self) -> dict[Any, Any]:
        return super().__getstate__() | {"__pydantic_private__": {"_held": None}}

    @property
    def in_memory(self) -> Any:
        """The object that was passed in Python; None if there is none."""
        return self._held

    def hold(self, held: Any) -> None:
        """Keep an object that was passed in Python; it is not part of the saved settings."""
        self._held = held


class KeyLocation:
    """Location of each key for error messages: the key itself, or file and line in a subclass."""

    def put(self, keys: KeyPath, text: str) -> str:
        """Return a message with the dotted key before it, unless the message contains the key."""
        dotted = ".".join(map(str, keys))
        return text if dotted in text else f"{dotted}: {text}"

    @contextmanager
    def at(self, *keys: str | int) -> Iterator[None]:
        """Put the location of a key before the message of a ProbekitError raised in the block."""
        try:
            yield
        except ProbekitError as error:
            error.args = (self.put(keys, str(error)),)
            raise

    def __eq__(self, other: object) -> bool:
        """Return True for all locations, so that they do not affect a comparison of settings."""
        return isinstance(other, KeyLocation)

    __hash__ = None  # type: ignore[assignment]


class SettingsFile(Section):
    """Base class of a whole settings file; keeps the location of each key."""

    _location: KeyLocation = PrivateAttr(default_factory=KeyLocation)

    def model_post_init(self, context: Any, /) -> None:
        """Store the key locations if the validation context is a `KeyLocation`."""
        if isinstance(context, KeyLocation):
            self._location = context

    @property
    def location(self) -> KeyLocation:
        """The location of each key."""
        return self._location

    def at(self, *keys: str | int) -> AbstractContextManager[None]:
        """Put the location of a key before the message of errors raised in the block.

        The location is file and line, or `--set`; without a file, it is the key itself.

        >>> with SettingsFile().at("model", "source"):
        ...     raise ProbekitError("No such model.")
        Traceback (most recent call last):
        probekit.errors.ProbekitError: model.source: No such model.
        """
        return self._location.at(*keys)


def require_any(*keys: str) -> Callable[[dict[str, Any]], None]:
    """Return the change of a JSON schema that requires one of some keys, and no other."""

    def change(schema: dict[str, Any]) -> None:
        del schema["required"]
        schema["anyOf"] = [{"required": [key]} for key in keys]

    return change


def rule_error(problem: str, *keys: str | int) -> PydanticCustomError:
    """Return the error for a broken rule that involves several keys.

    Args:
        problem: the message.
        keys: path of the one key whose location the message gives, below the validated section;
            names may be dotted. Without keys, or with "", it is the section itself.
    """
    path: list[str | int] = []
    for key in keys:
        path += [key] if isinstance(key, int) else [part for part in key.split(".") if part]
    return PydanticCustomError("rule", "{problem}", {"problem": problem, "keys": tuple(path)})


def unique_items(items: Several) -> Several:
    """Return a sequence unchanged; raises a validation error if an item occurs twice.

    >>> unique_items((1.0, 0.1))
    (1.0, 0.1)
    """
    for number, item in enumerate(items):
        if item in items[:number]:
            raise rule_error(f"{item!r} is in the list twice", number)
    return items


Items = Annotated[tuple[Item, ...], Field(strict=False)]  # a YAML list
Unique = Annotated[Items[Item], AfterValidator(unique_items)]  # with each item once
Distinct = Annotated[
    tuple[Item, ...], Field(strict=False, min_length=1), AfterValidator(unique_items)
]  # with at least one item, and each once


def one_or_several(given: Any) -> Any:
    """Return a number as a tuple; other values unchanged."""
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    return (given,) if is_number else given


def json_schema(section: type[Section], title: str) -> str:
    """Return the JSON schema of a file, as text; editors use it to check experiments and recipes.

    Args:
        section: class of the whole file.
        title: title of the schema.
    """
    schema: dict[str, Any] = section.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = title
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
