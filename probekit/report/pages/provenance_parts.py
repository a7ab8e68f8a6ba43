"""Provenance of a run as its page shows it: without folders of the machine that ran it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from probekit.results.record import RunRecord
from probekit.results.settings import flat

_WITH_PATHS = ("model.", "data.")  # settings that may be paths


@dataclass(frozen=True)
class MachinePaths:
    """Absolute paths of the machine that ran an experiment.

    Attributes:
        paths: the paths, longest first.
    """

    paths: tuple[str, ...]

    @classmethod
    def of(cls, config: Mapping[str, Any], record: RunRecord) -> MachinePaths:
        """Return the absolute paths among the settings of a run and the name of its model."""
        settings = [text for name, text in flat(config).items() if name.startswith(_WITH_PATHS)]
        found = {text for text in (*settings, record.model.source) if _last_part(text)}
        return cls(tuple(sorted(found, key=lambda path: (-len(path), path))))

    def hide(self, text: str) -> str:
        """Return a text in which only the last part of each of the paths is left.

        >>> MachinePaths(("/mnt/ann/data",)).hide("root: /mnt/ann/data")
        'root: …/data'
        """
        for path in self.paths:
            # YAML may break a long path at a space.
            words = r"\s+".join(map(re.escape, path.split(" ")))
            shown = f"…/{_last_part(path)}".replace("\\", r"\\")
            text = re.sub(rf"(?<![\w/.]){words}(?![\w-])", shown, text)
        return text

    def hide_in(self, record: RunRecord) -> RunRecord:
        """Return the record of a run with the paths shortened in the texts that the page shows."""
        findings = [
            one.model_copy(update={"message": self.hide(one.message)})
            for one in record.data.findings
        ]
        notes = [self.hide(note) for note in record.data.notes]
        data = record.data.model_copy(update={"findings": findings, "notes": notes})
        model = record.model.model_copy(update={"source": self.hide(record.model.source)})
        return record.model_copy(update={"data": data, "model": model})


def _last_part(text: str) -> str:
    """Return the last part of an absolute path; "" for other texts."""
    local = text.removeprefix("file://")
    path = PureWindowsPath(local) if re.match(r"[A-Za-z]:[\\/]", local) else PurePosixPath(local)
    return path.name if path.is_absolute() else ""


def date_words(created: str) -> str:
    """Return the day of a time in ISO format; other texts are returned unchanged.

    >>> date_words("2026-11-23T01:33:06+00:00"), date_words("yesterday")
    ('23 Nov 2026', 'yesterday')
    """
    try:
        day = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{day.day} {day:%b %Y}"


def facts(record: RunRecord) -> dict[str, dict[str, Any]]:
    """Return the names and values of the provenance section, by heading."""
    return {
        "Run": {"run": record.run, "key": record.key, "created": record.created},
        "Model": record.model.model_dump(),
        "Versions": record.versions,
        "Digests": record.digests,
        "Seeds": record.seeds,
        "Seconds": {step: f"{seconds:,.2f}" for step, seconds in record.seconds.items()},
    }
