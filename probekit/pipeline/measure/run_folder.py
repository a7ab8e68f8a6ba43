"""The folder of a run: the digest of each file is noted when it is written, and checked at the end.

.started    exists from the start of a run to its end
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from probekit.drafts import sweep_drafts
from probekit.errors import StoreError
from probekit.provenance import digest, write_atomic
from probekit.results.record import STARTED, changed_files


class RunFolder:
    """The folder of a run that is under way.

    Args:
        path: `<out>/<name>/<key>`; made if it is not there.
        created: when the run was started.

    Raises:
        StoreError: The folder cannot be written.
    """

    def __init__(self, path: Path, created: str) -> None:
        write_atomic(path / STARTED, created)
        sweep_drafts(path.rglob(".*"))
        self.path = path
        self._digests: dict[str, str] = {}

    def write(self, name: str, content: bytes | str) -> None:
        """Write a file of the run.

        Raises:
            StoreError: The file cannot be written, or the folder was deleted during the run.
        """
        data = content.encode() if isinstance(content, str) else content
        write_atomic(self.path / name, data)
        self.note({name: digest([data])})

    def note(self, digests: Mapping[str, str]) -> None:
        """Note files that were written to the folder, as digests by the name within it.

        Raises:
            StoreError: The folder was deleted during the run.
        """
        self._digests |= digests
        first = next(iter(self._digests), None)
        # Nothing removes a file during a run, so that one file stands for all before the end.
        if first is not None and not (self.path / first).exists():
            raise self._lost([first])

    def digests(self) -> dict[str, str]:
        """Return the digest of each file of the run, by its name within the folder.

        Raises:
            StoreError: A file was deleted or changed since it was written.
        """
        lost = [name for name, _ in changed_files(self.path, self._digests)]
        if lost:
            raise self._lost(lost)
        return dict(sorted(self._digests.items()))

    def finish(self) -> None:
        """Remove the mark of a run that is under way."""
        (self.path / STARTED).unlink(missing_ok=True)

    def _lost(self, names: list[str]) -> StoreError:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return StoreError(
            f"{self.path}: {names[0]}{more} was deleted or changed during the run, by hand or by "
            "another run of the same experiment. The run is not finished. Run the same command "
            "again: captured activations are reused."
        )
