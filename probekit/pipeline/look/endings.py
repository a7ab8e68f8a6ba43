"""Formats of output files by file extension."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from probekit.errors import ConfigError

ANSWER_FILES = (".html", ".csv", ".jsonl")
PAGE_OR_ROWS = (".csv", ".html")


def check_ending(path: Path, allowed: Sequence[str]) -> None:
    """Check the extension of an output file before any work.

    Raises:
        ConfigError: the extension is not one of the allowed ones.
    """
    if path.suffix not in allowed:
        raise ConfigError(
            f"--out {path}: the file extension sets the format. Allowed: {', '.join(allowed)}."
        )
