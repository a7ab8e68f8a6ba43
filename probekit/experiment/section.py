"""What all sections of an experiment file have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

KeyPath = tuple[str | int, ...]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Section(BaseModel):
    """Base of all sections: immutable, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def broken(problem: str, *keys: str) -> PydanticCustomError:
    """Return the error of a rule among several keys; `keys` lead to the one to be looked at."""
    return PydanticCustomError("rule", "{problem}", {"problem": problem, "keys": keys})
