"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])


class PlaceType(click.ParamType[Any]):
    """A folder, or the URL of an object store."""

    name = "folder or url"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a Path, or a URL as it was written, whose slashes a Path would not keep."""
        del param, ctx
        return value.rstrip("/") if "://" in str(value) else Path(value)


def together(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Return one decorator that applies several."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


cache_option = click.option(
    "--cache", "cache_root", type=PlaceType(), help="Folder of the caches, or its URL."
)
file_options = together(
    click.argument("file", type=click.Path(path_type=Path)),
    click.option(
        "--set", "overrides", multiple=True, metavar="a.b=c", help="Overrides a key; repeatable."
    ),
)
capture_options = together(
    file_options,
    cache_option,
    click.option("--device", default="cpu", help="Where the model computes, e.g. cuda."),
)
