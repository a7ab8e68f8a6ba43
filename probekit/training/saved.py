"""Locations of the checkpoints of a run; each is the folder of a complete model."""

from __future__ import annotations

import re
from pathlib import Path

from probekit.errors import MissingError

FOLDER = "checkpoints"
_STEP = re.compile(r"step-(\d+)")


def checkpoint_folder(run: Path, step: int) -> Path:
    """Return the folder of the checkpoint after a step.

    >>> checkpoint_folder(Path("runs/mini"), 250).as_posix()
    'runs/mini/checkpoints/step-0000250'
    """
    return run / FOLDER / f"step-{step:07}"


def find_checkpoints(run: Path) -> dict[int, Path]:
    """Return the folders of the saved checkpoints of a run, by step.

    Links are followed even if they lead out of the folder. The user chose this run, and large
    checkpoints are often on another disk.

    Raises:
        MissingError: the run has no checkpoints.
    """
    checkpoints = {
        int(match[1]): path
        for path in sorted((run / FOLDER).glob("step-*"))
        if (match := _STEP.fullmatch(path.name)) and (path / "model.safetensors").is_file()
    }
    if not checkpoints:
        raise MissingError(
            f"{run} has no checkpoints. `probekit pretrain` saves them in {FOLDER}/step-NUMBER."
        )
    return checkpoints
