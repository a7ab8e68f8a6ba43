"""Options, parameter types, late imports and the watcher that several commands share.

A command checks its arguments before it imports torch, and `--help` imports neither torch nor
pandas. So the files of this folder import modules of other packages under `TYPE_CHECKING`, where
type checkers read them, and `later` imports each when a command uses it.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from glob import escape, glob
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from probekit.memory import importing
from probekit.pipeline.look.exports import check_ending
from probekit.terminal import Watcher, escape_streams

if TYPE_CHECKING:
    from probekit import progress
    from probekit.experiment import locations

Function = TypeVar("Function", bound=Callable[..., Any])
Texts = tuple[str, ...]  # values of an option that can be repeated
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


_IMPORT = re.compile(r"^    from (probekit[.\w]*) import (\([^)]*\)|.+)$", re.MULTILINE)
_NAME = re.compile(r"(\w+)(?: as (\w+))?")


class Later:
    """A module that is imported when one of its names is used.

    >>> Later("probekit.amounts").counted(2, "row")
    '2 rows'
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # doctest, which inspects all objects, imports nothing
            raise AttributeError(name)
        with importing():
            return getattr(import_module(self._module), name)


def later(file: str) -> dict[str, Later]:
    """Return the modules that a file imports under `TYPE_CHECKING`, by the name that it gives them.

    >>> sorted(later(__file__.replace("options", "texts")))[:3]
    ['Bos', 'accelerators', 'application']
    """
    return {
        alias or module: Later(f"{package}.{module}")
        for package, names in _IMPORT.findall(Path(file).read_text("utf-8"))
        for module, alias in _NAME.findall(names)
    }


globals().update(later(__file__))


def place_of(value: str) -> Path | str:
    """Return a folder as a Path, and a URL, whose slashes a Path would collapse, as text.

    Slashes at the end of a URL are removed.
    """
    return value.rstrip("/") if "://" in value else Path(value)


def completions(
    incomplete: str, names: Iterable[str], endings: tuple[str, ...] = ()
) -> list[CompletionItem[str]]:
    """Return the completions of a name, or of the path of a folder or file.

    Args:
        incomplete: text typed so far.
        names: all names.
        endings: extensions of the files; without any, only folders are paths.
    """
    paths = sorted(glob(f"{escape(incomplete)}*"))  # noqa: PTH207  # as they are typed
    found = [name for name in names if name.startswith(incomplete)]
    found += [path for path in paths if Path(path).suffix in endings]
    if not found:  # the shell completes paths itself, so that a single folder is not the end
        return [CompletionItem(incomplete, type="dir")]
    found += [f"{path}/" for path in paths if Path(path).is_dir()]
    return list(map(CompletionItem, found))


def complete_experiment(ctx: Any, param: Any, incomplete: str) -> list[CompletionItem[str]]:
    """Return bundled experiments, YAML files and folders."""
    del ctx, param
    return completions(incomplete, locations.bundled_files(), locations.ENDINGS)


class OutFolder(click.Path):
    """An output folder, which need not exist yet."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        """Return the path; fail if it cannot be a folder."""
        path = Path(value)
        _refuse_file(self, path, param, ctx)
        return path


class CacheRoot(OutFolder):
    """A folder of caches, which need not exist yet, or the URL of an object store."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a Path or a URL; fail if the path cannot be a folder."""
        place = place_of(str(value))
        return super().convert(place, param, ctx) if isinstance(place, Path) else place


class OutputFile(click.Path):
    """An output file with one of the extensions `endings`; its folder need not exist yet.

    A note on these extensions is part of the message about others.
    """

    def __init__(self, *endings: str, note: str = "") -> None:
        super().__init__()
        self.endings, self.note = endings, note

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        """Return the path; fail if it is a folder or its parent cannot be a folder.

        Raises:
            ConfigError: The extension is not one of the allowed ones, or the folder is read-only.
        """
        path = Path(value)
        if path.is_dir():
            self.fail(f"{path} is a folder. Give the path of a file.", param, ctx)
        _refuse_file(self, path.parent, param, ctx)
        check_ending(path, self.endings, self.note)
        return path


def _refuse_file(kind: click.ParamType[Any], folder: Path, param: Any, ctx: Any) -> None:
    """Fail if a path or one of its parents exists and is not a folder."""
    try:
        existing = next((path for path in (folder, *folder.parents) if path.exists()), None)
    except OSError as error:  # for example a name that is too long, or missing permissions
        kind.fail(f"{folder} cannot be used: {error.strerror}.", param, ctx)
    if existing is not None and not existing.is_dir():
        kind.fail(f"{existing} is a file, not a folder. Give a new or existing folder.", param, ctx)


def together(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Return one decorator that applies several."""
    # Python applies the lowest decorator first.
    return lambda function: reduce(lambda inner, option: option(inner), reversed(options), function)


json_option = click.option("--json", "as_json", is_flag=True, help="Output as JSON.")
cache_option = click.option(
    "--cache", "cache_root", type=CacheRoot(), metavar="PLACE", help="Folder or URL of the caches."
)
device_option = click.option("--device", default="cpu", help="Compute device, e.g. cuda.")
out_option = click.option("--out", type=OutFolder(), required=True, help="Output folder.")


def set_option(where: str = "") -> Decorator:
    """Return the option of overrides; `where` ends its help: the files they apply to."""
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="a.b=c",
        help=f"Override of a key{where}; repeatable.",
    )


def runs_option(written: str) -> Decorator:
    """Return the option of the results folder; `written` ends its help: what is written there."""
    return click.option(
        "--out", type=OutFolder(), default="runs", help=f"Results folder; {written}."
    )


experiment_file: dict[str, Any] = {
    "type": click.Path(path_type=Path),
    "shell_complete": complete_experiment,
}
file_options = together(click.argument("file", **experiment_file), set_option())
devices_option = click.option(
    "--device", default="cpu", help="Compute device, e.g. cuda; several as cuda:0,cuda:1."
)
capture_options = together(file_options, cache_option, devices_option)


@contextmanager
def watching() -> Iterator[Watcher]:
    """Yield a watcher that shows bars on a terminal and prints lines elsewhere."""
    with progress.shown_progress() as watcher:
        escape_streams()  # progress bars replace both streams
        yield watcher
