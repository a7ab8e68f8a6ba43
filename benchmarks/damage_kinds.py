"""A kind of file that is damaged, and the count of what its reader makes of it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probekit.errors import ProbekitError
from tests.damage import cut, flipped, swapped

WAYS = ("flipped", "cut", "swapped")


OUTCOMES = ("tried", "noticed", "harmless", "accepted")


class RefusedError(Exception):
    """A reader that returns nothing for a damaged file, to have it made again."""


@dataclass
class Kind:
    """A kind of file, and how it is read.

    Attributes:
        name: in the table.
        path: of the file that is damaged.
        read: returns all that is read, as a value to compare.
        others: files of the same kind.
    """

    name: str
    path: Path
    read: Callable[[], Any]
    others: tuple[Path, ...] = ()

    def damaged(self, way: str, tries: int) -> Iterator[bytes]:
        """Yield damaged copies of the content."""
        content = self.path.read_bytes()
        if way == "flipped":
            yield from flipped(content, tries)
        elif way == "cut":
            yield from cut(content, tries)
        else:
            others = [other.read_bytes() for other in self.others]
            different = [other for other in others if other != content][:tries]
            yield from different
            yield from swapped(content, tries - len(different))

    def count(self, way: str, tries: int, undamaged: Any) -> Counter[str]:
        """Return how often each outcome was seen."""
        content = self.path.read_bytes()
        seen: Counter[str] = Counter()
        for number, damaged in enumerate(self.damaged(way, tries)):
            self.path.write_bytes(damaged)
            outcome = self._outcome(content, undamaged)
            seen.update(["tried", outcome])
            if outcome == "accepted":
                print(f"ACCEPTED: {self.name}, {way}, try {number}", file=sys.stderr, flush=True)
            self.path.write_bytes(content)
        return seen

    def _outcome(self, content: bytes, undamaged: Any) -> str:
        try:
            found = self.read()
        except (ProbekitError, RefusedError):
            return "noticed"
        except Exception as error:  # noqa: BLE001  # a traceback is what is counted
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return "accepted"
        if found != undamaged:
            return "accepted"
        return "noticed" if self.path.read_bytes() == content else "harmless"
