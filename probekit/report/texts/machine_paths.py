"""Names of models and files on pages, without folders of the machine that wrote the page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from probekit.results.record import RunRecord


def model_title(source: str) -> str:
    """Return the name of a model; of a path outside the working folder only the last part.

    >>> model_title("org/name@main"), model_title("/data/models/mine/"), model_title("runs/mine")
    ('org/name@main', 'mine', 'runs/mine')
    """
    return _last_part(source) or source


@dataclass(frozen=True)
class MachinePaths:
    """Absolute paths of the machine that ran an experiment.

    Attributes:
        paths: the paths, longest first.
    """

    paths: tuple[str, ...]

    @classmethod
    def of(cls, *settings: Any) -> MachinePaths:
        """Return the absolute paths among texts and the leaves of nested mappings and lists."""
        found = {text for text in _texts(settings) if _last_part(text) and text[:2] != ".."}
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


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in nested mappings and lists."""
    if isinstance(value, str):
        yield value
        return
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else value
    for one in inner if isinstance(value, dict | list | tuple) else ():
        yield from _texts(one)


def _last_part(text: str) -> str:
    """Return the last part of a path outside the working folder; "" for other texts."""
    local = text.removeprefix("file://")
    path = PureWindowsPath(local) if re.match(r"[A-Za-z]:[\\/]", local) else PurePosixPath(local)
    is_outside = path.is_absolute() or local.startswith(("~", ".."))
    return path.name if is_outside else ""
