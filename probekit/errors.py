"""Errors that a user can cause, each with its exit code, and the nearest-name helper."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ProbekitError(Exception):
    """Base of all errors that probekit raises on purpose; its text is a complete message."""

    exit_code = 1

    def __str__(self) -> str:
        # KeyError would show the repr of its argument, OSError its errno.
        return str(self.args[0]) if self.args else ""


class ConfigError(ProbekitError, ValueError):
    """An experiment file, option or argument is wrong."""

    exit_code = 2


class UnknownNameError(ConfigError, KeyError):
    """A name (site, metric, column, ...) does not exist; the text offers the nearest ones."""


class DataError(ProbekitError, ValueError):
    """The contents of a data file are wrong; the text gives file and line where there are any."""

    exit_code = 2


class TooFewGroupsError(DataError):
    """The rows have fewer groups than folds are wanted."""


class MissingError(ProbekitError, FileNotFoundError):
    """A model, vocabulary or data file is not where it should be."""

    exit_code = 3


class CheckpointError(ProbekitError, ValueError):
    """A model folder is there but its contents are not a GPT-2."""

    exit_code = 3


class StoreError(ProbekitError, OSError):
    """The activation store cannot be read or written: full disk, damaged shard, read-only."""


class DamagedError(StoreError):
    """A file of a store is not what was written."""


class StoreMismatchError(StoreError):
    """A store holds activations of another identity than the one asked for."""


def nearest(name: str, allowed: Iterable[str], count: int = 3) -> str:
    """Return a sentence that offers the allowed names nearest to `name`, or all when none is near.

    >>> nearest("hook_resid_prr", ["hook_resid_pre", "hook_resid_post", "hook_z"])
    'Nearest: hook_resid_pre, hook_resid_post.'
    >>> nearest("LABEL", ["label", "text"])  # case does not count
    'Nearest: label.'
    >>> nearest("nonsense", ["last", "first"])
    'Allowed: first, last.'
    """
    names = sorted(set(allowed))
    folded = [each.casefold() for each in names]
    alike = difflib.get_close_matches(name.casefold(), folded, n=count, cutoff=0.6)
    near = [each for fold in dict.fromkeys(alike) for each in names if each.casefold() == fold]
    if near:
        return f"Nearest: {', '.join(near)}."
    shown = ", ".join(names[:20]) + (f", ... ({len(names)} in all)" if len(names) > 20 else "")
    return f"Allowed: {shown}."
