"""The measurements of each step of a pretraining run, in memory and as log.csv."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from io import StringIO
from pathlib import Path
from typing import Any

from probekit.errors import CheckpointError, DataError, MissingError
from probekit.provenance import digest, write_atomic


@dataclass(frozen=True)
class LogRow:
    """One step; what was not measured after it is NaN.

    Attributes:
        step: counted from 1.
        tokens: read so far.
        learning_rate: of this step.
        loss: on its batch, repeated rows included, nats per token.
        gradient_norm: before clipping.
        tokens_per_second: of the step alone, without measurements and checkpoints.
        held_out_loss: nats per token.
        held_out_per_character: the same in nats per character.
        repeated_first: nats per token in the first half of even draws repeated once.
        repeated_second: in the second half; what induction learns shows here.
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


_LINE = re.compile(rb"[^\n]*\n")
_MEASURED = [field.name for field in fields(LogRow) if field.name not in ("step", "tokens")]


def write_log(path: Path, rows: Iterable[LogRow]) -> str:
    """Write the rows as CSV, whole or not at all, and return the digest of the file.

    NaN is an empty cell. Rows that were read are written as the same bytes.

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


def read_log(path: Path) -> Sequence[LogRow]:
    """Return the rows of a log.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.csv"
    >>> _ = write_log(path, [LogRow(1, 4096, 0.003, 9.01, 0.5, 1000.0)])
    >>> read_log(path)[0].loss
    9.01

    Raises:
        MissingError: there is no such file.
        DataError: it is damaged.
    """
    return _parse(path, _read(path))


def read_verified_log(path: Path, steps: int, written: str) -> Sequence[LogRow]:
    """Return the rows of a log up to the step of a training state, which has their digest.

    A killed run may have logged more steps than its state has; these are left out.

    Args:
        path: of the log.
        steps: done in the training state.
        written: digest of the log up to there.

    Raises:
        MissingError: there is no such file.
        CheckpointError: the rows up to there are not those that were written.
    """
    lines = _LINE.findall(_read(path))[: steps + 1]
    content = b"".join(lines)
    if digest([content]) != written:
        raise CheckpointError(
            f"{path} is damaged or of another run: its first {steps:,} steps are not those that "
            "the state beside it was written with. Restore it from a copy, or delete "
            "state.safetensors to begin from the start."
        )
    return _parse(path, content)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise MissingError(f"{path} is not there. A pretraining run writes it.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _parse(path: Path, content: bytes) -> Sequence[LogRow]:
    try:
        with StringIO(content.decode(), newline="") as file:
            return [_row(entries) for entries in csv.DictReader(file)]
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(f"{path} is not the log of a pretraining run: {error!r}.") from error


def _row(entries: dict[str, str]) -> LogRow:
    numbers: Any = {name: float(entries[name] or math.nan) for name in _MEASURED}
    return LogRow(step=int(entries["step"]), tokens=int(entries["tokens"]), **numbers)
