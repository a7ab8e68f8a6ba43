"""Files in the folder of a pretraining run, as far as they are read without torch.

log.csv has one row of measurements per step. The header of state.safetensors names the run and the
step that the training state belongs to, with a digest of all bytes of the file and the digests of
the log and the tokens. They detect accidental changes, not a deliberate replacement with a new
digest. Each checkpoint is the folder of a complete model.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from probekit.errors import CheckpointError, ConfigError, DataError, MissingError
from probekit.files import regular, write_atomic
from probekit.provenance import canonical_json, digest
from probekit.training.recipe import Recipe, fixed_settings, learning_rate

LOG, RECIPE, STATE = "log.csv", "recipe.yaml", "state.safetensors"
CHECKPOINTS = "checkpoints"
_SEAL = "digest"  # key of the digest in the metadata of a state
_START_AGAIN = "Delete it to start from the beginning."
_STEP = re.compile(r"step-(\d+)")  # name of the folder of a checkpoint
_LINE = re.compile(rb"[^\n]*\n")


@dataclass(frozen=True)
class LogRow:
    """Measurements of one step; NaN if not measured at this step.

    Attributes:
        step: counted from 1.
        tokens: tokens read so far.
        learning_rate: learning rate of this step.
        loss: loss on the batch of this step, including repeated rows, in nats per token.
        gradient_norm: gradient norm before clipping.
        tokens_per_second: training speed, excluding measurements and checkpoints.
        held_out_loss: loss on held-out text in nats per token.
        held_out_per_character: loss on held-out text in nats per character.
        repeated_first: loss on random tokens, in nats per token.
        repeated_second: loss on the repetition of these tokens in the same sequence, in nats per
            token; induction lowers it.
    """

    step: int
    tokens: int
    learning_rate: float
    loss: float
    gradient_norm: float
    tokens_per_second: float
    held_out_loss: float = math.nan
    held_out_per_character: float = math.nan
    repeated_first: float = math.nan
    repeated_second: float = math.nan


# Columns of the log that are floats and may be NaN.
_MEASURED = [field.name for field in fields(LogRow) if field.name not in ("step", "tokens")]


def write_log(path: Path, rows: Iterable[LogRow]) -> str:
    """Write a log as CSV atomically and return the digest of the file.

    NaN is an empty cell. Writing rows that were read reproduces the file byte for byte.

    Raises:
        StoreError: the file cannot be written.
    """
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(field.name for field in fields(LogRow))
    for row in rows:
        measured = [float(getattr(row, name)) for name in _MEASURED]
        cells = ["" if math.isnan(value) else repr(value) for value in measured]
        writer.writerow([row.step, row.tokens, *cells])
    content = out.getvalue().encode()
    write_atomic(path, content)
    return digest([content])


def read_log(path: Path, progress: Progress | None = None) -> Sequence[LogRow]:
    """Return the rows of a log; with a progress those up to its step, verified by digest.

    A killed run may have logged steps after its last saved state; a progress drops these rows.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.csv"
    >>> _ = write_log(path, [LogRow(1, 4096, 0.003, 9.01, 0.5, 1000.0)])
    >>> read_log(path)[0].loss
    9.01

    Raises:
        MissingError: the file does not exist.
        DataError: the file is damaged or cannot be read.
        CheckpointError: the rows up to the step do not match the digest.
    """
    try:
        content = regular(path).read_bytes()
    except FileNotFoundError as error:
        raise MissingError(f"{path} does not exist. A pretraining run writes it.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    if progress is not None:
        # The header, and one line for each step.
        content = b"".join(_LINE.findall(content)[: progress.step + 1])
        if digest([content]) != progress.log:
            raise CheckpointError(
                f"{path} is damaged or belongs to another run: its first {progress.step:,} steps "
                f"do not match the digest in {STATE}. Restore the log from a copy, or delete "
                f"{STATE} to start from the beginning."
            )
    rows = []
    try:
        # An empty cell is NaN, and a missing one, of a row that was cut, is no number.
        for cells in csv.DictReader(StringIO(content.decode(), newline=""), restval="missing"):
            numbers: Any = {name: float(cells[name] or math.nan) for name in _MEASURED}
            rows.append(LogRow(step=int(cells["step"]), tokens=int(cells["tokens"]), **numbers))
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(f"{path} is not the log of a pretraining run: {error!r}.") from error
    return rows


@dataclass(frozen=True)
class Progress:
    """Run and step that a training state belongs to.

    Attributes:
        step: number of completed steps.
        recipe: the recipe as JSON.
        corpus: digest of the texts.
        tokens: digest of the tokens.
        log: digest of log.csv up to this step.
    """

    step: int
    recipe: str
    corpus: str
    tokens: str
    log: str

    @classmethod
    def of(cls, step: int, recipe: Recipe, corpus: str, tokens: str, log: str) -> Progress:
        """Return the progress of a run with a recipe."""
        return cls(step, canonical_json(recipe.model_dump(mode="json")), corpus, tokens, log)

    def check_recipe(self, recipe: Recipe, folder: Path) -> None:
        """Raise if a recipe would have changed the results of the completed steps.

        Args:
            recipe: recipe of the run to be resumed.
            folder: run folder, for messages.

        Raises:
            ConfigError: a setting that affects completed steps differs, or the run has already
                completed more steps.
            CheckpointError: the recipe of the state is from another release.
        """
        try:
            before = Recipe.model_validate_json(self.recipe)
        except ValueError as error:
            raise damaged_state(folder / STATE, "its recipe has other keys") from error
        old, new = fixed_settings(before), fixed_settings(recipe)
        changed = [f"{k} was {old[k]!r}, is {new[k]!r}" for k in new if old[k] != new[k]]
        if changed:
            raise ConfigError(
                f"{folder} contains a run of another recipe: {'; '.join(changed)}. Set another "
                "`name` or --out, or delete the folder."
            )
        if self.step > recipe.training.steps:
            raise ConfigError(
                f"{folder} has already completed {self.step:,} steps, more than training.steps, "
                f"{recipe.training.steps:,}."
            )
        for step in range(self.step):
            if learning_rate(step, before.training) != learning_rate(step, recipe.training):
                raise ConfigError(
                    f"{folder}: training.steps, decay and decay_steps would give the completed "
                    f"step {step + 1:,} another learning rate ({self.step:,} steps are completed). "
                    "Set them so that the decay begins later, or start a new run."
                )


def sealed(progress: Progress, arrays: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """Return the metadata of a state with these arrays, sorted by name: progress and digest."""
    metadata = {name: str(value) for name, value in asdict(progress).items()}
    return metadata | {_SEAL: _digest(metadata, arrays.items())}


def _digest(metadata: Mapping[str, str], arrays: Iterable[tuple[str, NDArray[Any]]]) -> str:
    """Return the digest of a state: of its metadata, and of name, type and bytes of its arrays."""
    header = canonical_json(dict(metadata)).encode()
    of_arrays = (
        (f"{name} {one.dtype} {one.shape}".encode(), one.tobytes()) for name, one in arrays
    )
    return digest(chain([header], chain.from_iterable(of_arrays)))


def is_pretraining(folder: Path) -> bool:
    """Return whether a folder is that of a pretraining run, finished or not."""
    return any((folder / name).is_file() for name in (RECIPE, LOG))


def read_progress(folder: Path, *, verify: bool = True) -> Progress | None:
    """Return the progress of the run in a folder; None if it has no state yet.

    Args:
        folder: the folder of the run.
        verify: whether to read the whole state and verify its digest, not only its header.

    Raises:
        CheckpointError: the state is damaged, from another release, or cannot be read.
    """
    path = folder / STATE
    if not path.is_file():
        return None
    try:
        with safe_open(path, "np") as file:
            metadata: dict[str, Any] = file.metadata()
            written = metadata.pop(_SEAL)
            arrays = ((name, file.get_tensor(name)) for name in sorted(file.keys()))
            if verify and _digest(metadata, arrays) != written:
                raise ValueError("its digest does not match")
            return Progress(step=int(metadata.pop("step")), **metadata)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise damaged_state(path, error) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error


def damaged_state(path: Path, why: object) -> CheckpointError:
    """Return the error for a state that cannot be used."""
    return CheckpointError(f"{path} is damaged or from another release ({why}). {_START_AGAIN}")


def checkpoint_folder(run: Path, step: int) -> Path:
    """Return the folder of the checkpoint after a step.

    >>> checkpoint_folder(Path("runs/mini"), 250).as_posix()
    'runs/mini/checkpoints/step-0000250'
    """
    return run / CHECKPOINTS / f"step-{step:07}"


def find_checkpoints(run: Path) -> dict[int, Path]:
    """Return the folders of the saved checkpoints of a run, by step.

    Links are followed even if they lead out of the folder. The user chose this run, and large
    checkpoints are often on another disk.

    Raises:
        MissingError: the run has no checkpoints.
    """
    checkpoints = {}
    for path in sorted((run / CHECKPOINTS).glob("step-*")):
        match = _STEP.fullmatch(path.name)
        if match and (path / "model.safetensors").is_file():
            checkpoints[int(match[1])] = path
    if not checkpoints:
        raise MissingError(
            f"{run} has no checkpoints. `probekit pretrain` saves them in checkpoints/step-NUMBER."
        )
    return checkpoints
