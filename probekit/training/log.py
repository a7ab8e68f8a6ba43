"""Log of a pretraining run: one row of measurements per step, stored as log.csv."""

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
from probekit.files import write_atomic
from probekit.provenance import digest


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


_LINE = re.compile(rb"[^\n]*\n")
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


def read_log(path: Path) -> Sequence[LogRow]:
    """Return the rows of a log.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.csv"
    >>> _ = write_log(path, [LogRow(1, 4096, 0.003, 9.01, 0.5, 1000.0)])
    >>> read_log(path)[0].loss
    9.01

    Raises:
        MissingError: the file does not exist.
        DataError: the file is damaged.
    """
    return _parse(path, _read(path))


def read_verified_log(path: Path, steps: int, written: str) -> Sequence[LogRow]:
    """Return the rows of a log up to the step of a training state, verified by digest.

    A killed run may have logged steps after its last saved state; these rows are dropped.

    Args:
        path: the log file.
        steps: number of completed steps in the training state.
        written: digest of the log up to that step.

    Raises:
        MissingError: the file does not exist.
        CheckpointError: the rows up to that step do not match the digest.
    """
    lines = _LINE.findall(_read(path))[: steps + 1]
    content = b"".join(lines)
    if digest([content]) != written:
        raise CheckpointError(
            f"{path} is damaged or belongs to another run: its first {steps:,} steps do not match "
            "the digest in state.safetensors. Restore the log from a copy, or delete "
            "state.safetensors to start from the beginning."
        )
    return _parse(path, content)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise MissingError(f"{path} does not exist. A pretraining run writes it.") from error
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
