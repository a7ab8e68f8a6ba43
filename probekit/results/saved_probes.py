"""Loading of saved probes; those of a finished run are verified by its digests."""

from __future__ import annotations

from pathlib import Path

from probekit.probes.saved.files import probe_files
from probekit.probes.saved.saved_probe import SavedProbe
from probekit.results.record import STARTED, open_record


def load_probe(path: Path) -> SavedProbe:
    """Load a saved probe, and verify its digests if it belongs to a finished run.

    Args:
        path: one of its two files, or their common path without the extension.

    Raises:
        MissingError: a file does not exist.
        DataError: a file is damaged, or a file of the probe or run.json was changed after the run.
    """
    probe = SavedProbe.load(path)
    run_dir = _run_of(path.absolute())
    if run_dir is not None:
        names = [file.absolute().relative_to(run_dir).as_posix() for file in probe_files(path)]
        open_record(run_dir, names)
    return probe


def _run_of(path: Path) -> Path | None:
    """Return the folder of the finished run that a probe belongs to; None if there is none."""
    folders = (parent.parent for parent in path.parents if parent.name == "probes")
    run_dir = next(folders, None)
    if run_dir is None or (run_dir / STARTED).exists() or not (run_dir / "run.json").exists():
        return None
    return run_dir
