"""Exceptions caused by user input, their exit codes, suggestions, and checks of arguments."""

import difflib
import errno
import os
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

_LONGEST_LINE = 2000  # characters; only a line that quotes a value is longer


class ProbekitError(Exception):
    """Base class of all errors raised by probekit; its text is a complete message."""

    exit_code = 1

    def __str__(self) -> str:
        # KeyError would show the repr of its argument, OSError its errno.
        lines = str(self.args[0]).split("\n") if self.args else []
        return "\n".join(map(_without_middle, lines))


def _without_middle(line: str) -> str:
    """Return a line without its middle if it is long, as one that quotes a file's content.

    >>> len(_without_middle("x" * 1_000_000))
    605
    """
    return line if len(line) <= _LONGEST_LINE else f"{line[:300]} ... {line[-300:]}"


class ConfigError(ProbekitError, ValueError):
    """An invalid experiment file, option or argument."""

    exit_code = 2


class UnknownNameError(ConfigError, KeyError):
    """An unknown name of a site, metric, column, ...; the message suggests the nearest ones."""


class DataError(ProbekitError, ValueError):
    """Invalid content of a data file; the message gives file and line where available."""

    exit_code = 2


class TooFewGroupsError(DataError):
    """The rows have fewer groups than the requested number of folds."""


class MissingError(ProbekitError, FileNotFoundError):
    """A missing model, vocabulary or data file."""

    exit_code = 3


class CheckpointError(ProbekitError, ValueError):
    """A model folder or training state that exists but has invalid content."""

    exit_code = 3


class OutOfMemoryError(ProbekitError, MemoryError):
    """Too little memory for a tensor; the message states how much it needs."""


class DeviceLostError(ProbekitError, RuntimeError):
    """A device that failed during a computation; the message states how to resume."""


class StoreError(ProbekitError, OSError):
    """A failed read or write of stored files: full disk, damaged shard, read-only folder."""


class DamagedError(StoreError):
    """A stored file whose content differs from what was written."""


class StoreMismatchError(StoreError):
    """A store whose identity differs from the requested one."""


def nearest(name: str, allowed: Iterable[str], count: int = 3) -> str:
    """Return a sentence that lists the allowed names nearest to `name`; if none is near, up to 20.

    >>> nearest("hook_resid_prr", ["hook_resid_pre", "hook_resid_post", "hook_z"])
    'Nearest: hook_resid_pre, hook_resid_post.'
    >>> nearest("LABEL", ["label", "text"])  # case does not count
    'Nearest: label.'
    >>> nearest("nonsense", ["last", "first"])
    'Allowed: first, last.'
    """
    names = sorted(set(allowed))
    folded = [each.casefold() for each in names]
    matches = difflib.get_close_matches(name.casefold(), folded, n=count, cutoff=0.6)
    # Names that differ only in case have the same folded form, which then matches twice.
    near = [each for match in dict.fromkeys(matches) for each in names if each.casefold() == match]
    # A space at an end, or a character that is not printed, shows only in quotes.
    quoted = [n if n == n.strip() and n.isprintable() else repr(n) for n in near or names]
    if near:
        return f"Nearest: {', '.join(quoted)}."
    shown = ", ".join(quoted[:20]) + (f", ... ({len(names)} in all)" if len(names) > 20 else "")
    return f"Allowed: {shown}."


def path_of(name: str, value: Any, remedy: str = "") -> Path:
    """Return a path that was given as a string or path.

    Args:
        name: name of the argument, for the message.
        value: the given value.
        remedy: sentence at the end of the message.

    Raises:
        ConfigError: the value is neither a string nor a path, or no path of this system: it
            contains NUL or a lone surrogate, or is too long.

    >>> path_of("out", "runs").name
    'runs'
    >>> path_of("out", 3)
    Traceback (most recent call last):
        ...
    probekit.errors.ConfigError: out is 3, of type int. Allowed: a string or a pathlib.Path.
    """
    if isinstance(value, str | os.PathLike):
        try:  # what no record can hold, or no disk
            os.fspath(value).encode()
            Path(value).stat()
        except (OSError, ValueError) as error:
            if getattr(error, "errno", errno.ENAMETOOLONG) == errno.ENAMETOOLONG:
                given = f"{name} is {str(value)[:80]!r}, which is not a valid path"
                raise ConfigError(f"{given} ({error.args[-1]}). {remedy}".rstrip()) from error
        return Path(value)
    kind = type(value).__name__
    shown = f"{value!r}, of type {kind}" if isinstance(value, int | float) else f"of type {kind}"
    raise ConfigError(f"{name} is {shown}. Allowed: a string or a pathlib.Path. {remedy}".rstrip())


def check_ordered(name: str, values: Any) -> None:
    """Raise ConfigError if values have no order, are one text, or cannot be iterated."""
    if isinstance(values, Mapping | Set | str | bytes) or not hasattr(values, "__iter__"):
        raise ConfigError(
            f"{name} is of type {type(values).__name__}. Give a list or an array with one value "
            f"for each row, in the order of the rows; of a dict, such as list({name}.values())."
        )


def check_has(name: str, value: Any, attribute: str, remedy: str) -> None:
    """Check that an object has an attribute that its users need.

    Args:
        name: name of the argument, for the message.
        value: the given value.
        attribute: name of the attribute or method.
        remedy: sentence at the end of the message.

    Raises:
        ConfigError: the attribute is missing.

    >>> check_has("model", "mini", "config", "Load it: GPT2.from_pretrained('mini').")
    Traceback (most recent call last):
        ...
    probekit.errors.ConfigError: model is of type str. Load it: GPT2.from_pretrained('mini').
    """
    if not hasattr(value, attribute):
        raise ConfigError(f"{name} is of type {type(value).__name__}. {remedy}")
