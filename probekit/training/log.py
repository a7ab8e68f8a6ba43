"""What a pretraining run tells of each step, in memory and as log.csv."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from io import StringIO
from pathlib import Path
from typing import Any

from probekit.errors import DataError, MissingError
from probekit.provenance import write_atomic


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


def write_log(path: Path, rows: Iterable[LogRow]) -> None:
    """Write the rows as CSV, whole or not at all; NaN is an empty cell.

    Raises:
        StoreError: the file cannot be written.
    """
    out = StringIO()
    names = [field.name for field in fields(LogRow)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        values = (getattr(row, name) for name in names)
        writer.writerow(["" if math.isnan(value) else repr(value) for value in values])
    write_atomic(path, out.getvalue())


def read_log(path: Path) -> Sequence[LogRow]:
    """Return the rows of a log.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.csv"
    >>> write_log(path, [LogRow(1, 4096, 0.003, 9.01, 0.5, 1000.0)])
    >>> read_log(path)[0].loss
    9.01

    Raises:
        MissingError: there is no such file.
        DataError: it is damaged.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [_row(entries) for entries in csv.DictReader(file)]
    except FileNotFoundError as error:
        raise MissingError(f"{path} is not there. A pretraining run writes it.") from error
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not the log of a pretraining run: {error!r}.") from error


def _row(entries: dict[str, str]) -> LogRow:
    measured = [field.name for field in fields(LogRow) if field.name not in ("step", "tokens")]
    numbers: Any = {name: float(entries[name] or math.nan) for name in measured}
    return LogRow(step=int(entries["step"]), tokens=int(entries["tokens"]), **numbers)
