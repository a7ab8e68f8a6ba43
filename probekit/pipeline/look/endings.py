"""Formats of output files, by the ending of their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from probekit.errors import ConfigError

ANSWER_FILES = (".html", ".csv", ".jsonl")
PAGE_OR_ROWS = (".csv", ".html")


def check_ending(path: Path, allowed: Sequence[str]) -> None:
    """Refuse, before any work, a file whose ending says none of the formats.

    Raises:
        ConfigError: as said.
    """
    if path.suffix not in allowed:
        raise ConfigError(
            f"--out {path}: the ending says what is written. Allowed: {', '.join(allowed)}."
        )
