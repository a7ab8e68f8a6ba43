"""Loading of saved probes, verified against the record of their run."""

from __future__ import annotations

from pathlib import Path

from probekit.probes.saved_probe import SavedProbe, probe_files
from probekit.results.record import STARTED, check_finished, open_record

FINAL = "probes/final"  # the probe that a nested cross-validation fits on all rows


def load_probe(path: Path) -> SavedProbe:
    """Return a saved probe. If it is in the folder of a run, verify its digests.

    Args:
        path: common stem of the two files of the probe, or one of the files.

    Raises:
        MissingError: a file does not exist, or the run is not finished.
        DataError: a file is damaged, or a file of the probe or run.json was changed after the run.
    """
    probe = SavedProbe.load(path)
    run_dir = _run_of(path.absolute())
    if run_dir is not None:
        names = [file.absolute().relative_to(run_dir).as_posix() for file in probe_files(path)]
        open_record(run_dir, names)
    return probe


def _run_of(path: Path) -> Path | None:
    """Return the folder of the run that contains a probe; None if there is none.

    Raises:
        MissingError: The run is not finished.
    """
    folders = (parent.parent for parent in path.parents if parent.name == "probes")
    run_dir = next(folders, None)
    if run_dir is None or not any((run_dir / name).exists() for name in (STARTED, "run.json")):
        return None
    check_finished(run_dir)
    return run_dir
