"""What all sections of a YAML file have in common, be it an experiment or a recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
from pydantic_core import PydanticCustomError

from probekit.errors import ProbekitError

Items = TypeVar("Items", bound=Sequence[Any])
KeyPath = tuple[str | int, ...]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]


class Section(BaseModel):
    """Base of all sections: immutable, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class KeyLocation:
    """Says where a key was written; it is no part of what is asked, so any two are equal.

    Attributes:
        put: returns a text about a key behind the place of the key.
    """

    put: Callable[[KeyPath, str], str] = field(compare=False)

    @contextmanager
    def before(self, keys: KeyPath) -> Iterator[None]:
        """Put the place of a key before what is raised on its account."""
        try:
            yield
        except ProbekitError as error:
            error.args = (self.put(keys, str(error)),)
            raise


def _put_behind_key(keys: KeyPath, text: str) -> str:
    dotted = ".".join(map(str, keys))
    return text if dotted in text else f"{dotted}: {text}"


class SettingsFile(Section):
    """Base of what a whole file holds: it knows where each of its keys was written."""

    _place: KeyLocation = PrivateAttr(KeyLocation(_put_behind_key))

    def model_post_init(self, context: Any, /) -> None:
        """Keep where the keys were written, if the context of the validation is a `KeyLocation`."""
        if isinstance(context, KeyLocation):
            self._place = context

    @contextmanager
    def at(self, *keys: str | int) -> Iterator[None]:
        """Put the place of a key (file and line, or `--set`) before what is raised on its account.

        >>> with SettingsFile().at("model", "source"):
        ...     raise ProbekitError("No such model.")
        Traceback (most recent call last):
        probekit.errors.ProbekitError: model.source: No such model.
        """
        with self._place.before(keys):
            yield


def broken(problem: str, *keys: str) -> PydanticCustomError:
    """Return the error of a rule among several keys; `keys` lead to the one to be looked at."""
    return PydanticCustomError("rule", "{problem}", {"problem": problem, "keys": keys})


def each_once(items: Items) -> Items:
    """Return the items of a list, none of which may stand there twice.

    >>> each_once((1.0, 0.1))
    (1.0, 0.1)
    """
    for number, item in enumerate(items):
        if item in items[:number]:
            raise PydanticCustomError("twice", "{keys} stands there twice", {"keys": (number,)})
    return items
