"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from probekit.pipeline.look.endings import check_ending

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class _InWords(click.ParamType[Any]):
    """A range of numbers that says in words what it refuses."""

    what: str

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the number that is meant."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r}. It must be {self.what}{_in_words(self)}.", param, ctx)


class WholeNumber(_InWords, click.IntRange):
    """Whole numbers in a range; what is none is refused in words."""

    what = "a whole number"


class NumberInRange(_InWords, click.FloatRange):
    """Numbers in a range; what is none is refused in words."""

    what = "a number"


class Days(NumberInRange):
    """Numbers of days in a range."""

    what = "a number of days, such as 30 or 0.5"


def _in_words(numbers: Any) -> str:
    """Return the ends of a range as they stand in a sentence.

    >>> _in_words(WholeNumber(1, 9)), _in_words(NumberInRange(0, min_open=True))
    (', at least 1, at most 9', ', more than 0')
    """
    low = "more than" if numbers.min_open else "at least"
    told = [f", {low} {numbers.min:,}"] if numbers.min is not None else []
    return "".join([*told, *([f", at most {numbers.max:,}"] if numbers.max is not None else [])])


class PlaceType(click.ParamType[Any]):
    """A folder, or the URL of an object store."""

    name = "folder or url"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a Path, or a URL as it was written, whose slashes a Path would not keep."""
        del param, ctx
        return value.rstrip("/") if "://" in str(value) else Path(value)


class CacheRoot(PlaceType):
    """A folder of caches, which need not be there yet, or the URL of an object store."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a Path or a URL; fail for a path that cannot be a folder."""
        place = super().convert(value, param, ctx)
        if isinstance(place, Path):
            _refuse_file(self, place, param, ctx)
        return place


class OutFolder(click.ParamType[Path]):
    """A folder to write into, which need not be there yet."""

    name = "path"

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        """Return the Path; fail for one that cannot be a folder."""
        path = Path(value)
        _refuse_file(self, path, param, ctx)
        return path


class OutputFile(click.ParamType[Path]):
    """A file to write, whose ending names one of the allowed formats; its folder may be new."""

    name = "path"

    def __init__(self, *endings: str) -> None:
        self.endings = endings

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        """Return the path; fail for a folder, and for one that cannot be in a folder.

        Raises:
            ConfigError: The ending names no format.
        """
        path = Path(value)
        if path.is_dir():
            self.fail(f"{path} is a folder. Give the path of a file.", param, ctx)
        _refuse_file(self, path.parent, param, ctx)
        if self.endings:
            check_ending(path, self.endings)
        return path


class ModelName(click.ParamType[Any]):
    """`mini`, a folder or a name on the hub; a name that no model can have is refused at once."""

    name = "text"

    def __init__(self, *, or_file: bool = False) -> None:
        self.or_file = or_file

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """Return the name.

        Raises:
            MissingError: There is no such folder, or no model of that name.
            ConfigError: The name is empty, or that of a file.
        """
        from probekit.model.weights.sources import check_model

        del param, ctx
        if not (self.or_file and Path(value).is_file()):
            check_model(value)
        return str(value)


def _refuse_file(kind: click.ParamType[Any], folder: Path, param: Any, ctx: Any) -> None:
    """Fail if a path, or one above it, is there and is no folder."""
    try:
        found = next((path for path in (folder, *folder.parents) if path.exists()), None)
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        kind.fail(f"{folder} cannot be used: {error.strerror}.", param, ctx)
    if found is not None and not found.is_dir():
        kind.fail(f"{found} is a file, not a folder. Give a folder, new or not.", param, ctx)


def together(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Return one decorator that applies several."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _texts_options(*, required: bool) -> Decorator:
    """Return what adds the options that say what is read, and gives a function the texts."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @together(
            click.option("--text", "texts", multiple=True, help="What is read; repeatable."),
            click.option("--file", type=click.Path(path_type=Path), help="A file of texts."),
            click.option(
                "--format", help="Of the file: txt (a text a line; default), csv, tsv, jsonl."
            ),
            click.option("--column", help="Column of a table with the texts.  [default: text]"),
        )
        @wraps(function)
        def with_texts(
            texts: tuple[str, ...],
            file: Path | None,
            format: str | None,
            column: str | None,
            **others: Any,
        ) -> Any:
            from probekit.data.texts import read_texts

            if file is None and (format or column):
                raise click.UsageError("--format and --column say how --file is read; give it too.")
            if required and not texts and file is None:
                raise click.UsageError("Give what is to be read: --text or --file.")
            read = () if file is None else read_texts(file, format, column)
            return function(texts=(*texts, *read), **others)

        return with_texts

    return decorate


texts_options = _texts_options(required=True)
optional_texts_options = _texts_options(required=False)
cache_option = click.option(
    "--cache", "cache_root", type=CacheRoot(), help="Folder of the caches, or its URL."
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


def with_choices(
    overrides: Sequence[str], sites: Sequence[str], kinds: Sequence[str]
) -> tuple[str, ...]:
    """Return the overrides with those that choose sites and kinds of probe.

    Raises:
        UnknownNameError: There is no such kind.

    >>> with_choices([], ["blocks.*.hook_resid_post"], [])
    ('capture.sites=["blocks.*.hook_resid_post"]', 'capture.concatenate=[]')
    """
    from probekit.probes.kinds.registry import find_kind

    chosen = list(overrides)
    if sites:
        chosen += [f"capture.sites={json.dumps(list(sites))}", "capture.concatenate=[]"]
    for kind in kinds:
        find_kind(kind)
    if kinds:
        chosen.append(f"probe.kinds={json.dumps([{'kind': kind} for kind in kinds])}")
    return tuple(chosen)
