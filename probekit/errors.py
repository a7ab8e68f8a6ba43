"""Exceptions caused by user input, their exit codes, and suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ProbekitError(Exception):
    """Base class of all errors raised by probekit; its text is a complete message."""

    exit_code = 1

    def __str__(self) -> str:
        # KeyError would show the repr of its argument, OSError its errno.
        return str(self.args[0]) if self.args else ""


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


class StoreError(ProbekitError, OSError):
    """A failed read or write of stored files: full disk, damaged shard, read-only folder."""


class DamagedError(StoreError):
    """A stored file whose content differs from what was written."""


class StoreMismatchError(StoreError):
    """A store whose identity differs from the requested one."""


def nearest(name: str, allowed: Iterable[str], count: int = 3) -> str:
    """Return a sentence that lists the allowed names nearest to `name`, or all if none is near.

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
    near = [each for fold in dict.fromkeys(matches) for each in names if each.casefold() == fold]
    if near:
        return f"Nearest: {', '.join(near)}."
    shown = ", ".join(names[:20]) + (f", ... ({len(names)} in all)" if len(names) > 20 else "")
    return f"Allowed: {shown}."
