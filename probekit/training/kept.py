"""Where the checkpoints of a run lie: each is a folder that is a model by itself."""

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
    """Return the folders of the checkpoints that a run has kept, by step.

    Links are followed, also out of the folder of the run: it is a model that the user named, and
    large checkpoints are often on another disk.

    Raises:
        MissingError: there are none.
    """
    found = {
        int(match[1]): path
        for path in sorted((run / FOLDER).glob("step-*"))
        if (match := _STEP.fullmatch(path.name)) and (path / "model.safetensors").is_file()
    }
    if not found:
        raise MissingError(
            f"{run} has no checkpoints; they are made by `probekit pretrain` and lie in "
            f"{FOLDER}/step-NUMBER."
        )
    return found
