"""Numbers of a network's output: those that an experiment captures, and those that are given."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from probekit.activations.outputs import OutputNumbers
from probekit.activations.store import ActivationStore
from probekit.data.examples import Finding
from probekit.data.frames import plain_cells
from probekit.data.readers import FORMATS
from probekit.data.table import shown
from probekit.errors import ConfigError, DataError, UnknownNameError, nearest
from probekit.experiment.ask import SWAPPED
from probekit.experiment.schema import Experiment
from probekit.lazy_rows import Floats
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.setup.design import ExperimentDesign
from probekit.pipeline.setup.texts import ReadTexts

LARGEST = 1e100  # of a given number; its square is finite
_NO_NUMBER = f"not a number below {LARGEST:.0e}."


def output_numbers(experiment: Experiment, texts: ReadTexts) -> OutputNumbers | None:
    """Return the numbers of the output for the rows of texts; None without that baseline.

    Those of requests are not computed, because the network would read all texts again.

    Raises:
        DataError: an answer is empty, or both answers of a row begin with the same token.
    """
    asked = experiment.tokens.answers
    columns = experiment.data.columns.answers if asked is None else asked
    key = ("data", "columns", "answers") if asked is None else ("tokens", "answers")
    if "output" not in experiment.probe.baselines or experiment.capture.requests is not None:
        return None
    if columns is None:
        return OutputNumbers()
    first, pairs = cache(partial(first_token, texts.tokenizer)), []
    for example in texts.dataset.examples:
        cells = {} if asked else dict(example.values)
        # A column, or the answer itself; swapped if the question has them swapped.
        one, other = (cells.get(name, name) for name in columns)
        if dict(example.values).get(SWAPPED) == "yes" and asked:
            one, other = other, one
        begins_line = experiment.tokens.chat or example.text[-1:].isspace()
        with experiment.at(*key):
            if not (one.strip() and other.strip()):
                raise DataError(f"{example.where}: an answer is empty. Fill it in.")
            if sum(name in cells for name in columns) == 1:
                lacking = next(name for name in columns if name not in cells)
                raise DataError(
                    f"{example.where}: of `answers`, {lacking!r} is no column, but the other one "
                    "is. Give two columns, or two answers."
                )
            pairs.append([first(one, begins_line), first(other, begins_line)])
            if pairs[-1][0] == pairs[-1][1]:
                token = texts.tokenizer.strings(pairs[-1][:1])[0]
                raise DataError(
                    f"{example.where}: the answers {one!r} and {other!r} both begin with the token "
                    f"{token!r}, whose logit is compared. Give answers with different first tokens."
                )
    return OutputNumbers(np.array(pairs, dtype=np.int64)[texts.plan.example])


def noting_left_out(
    design: ExperimentDesign, store: ActivationStore, numbers: OutputNumbers | None
) -> ExperimentDesign:
    """Return the design, with a warning if the numbers are not in the capture.

    See `with_output` for the reasons.
    """
    if numbers is None or not store.missing(numbers.column):
        return design
    text = (
        "The baseline `output`, the network's own confidence, is left out: it is not proven that "
        "the logits of this network follow from the last residual stream, or its finished cache "
        "lacks the numbers and cannot be written."
    )
    return replace(design, findings=(*design.findings, Finding("warning", "left-out", text)))


def digests_of_output(store: ActivationStore, numbers: OutputNumbers | None) -> dict[str, str]:
    """Return the digest of the numbers in a store, with its name; empty without them."""
    if numbers is None or store.missing(numbers.column):
        return {}
    return {"output (task)": store.digest_of([numbers.column])}


def first_token(tokenizer: Tokenizer, answer: str, begins_line: bool) -> int:
    """Return the first token of an answer to a text, with a space before a word.

    Args:
        tokenizer: the tokenizer.
        answer: the answer.
        begins_line: whether it needs no space, as after white space or at the beginning of a turn.

    >>> tokenizer = Tokenizer.from_pretrained("mini")
    >>> tokenizer.strings([first_token(tokenizer, "yes", begins) for begins in (False, True)])
    [' yes', 'yes']
    """
    # Tokenizers may put a space before the first word of a text, so that it follows another one.
    before = "\n" if begins_line else "x"
    gap = " " if answer[0].isalnum() and not begins_line else ""
    n_before = len(tokenizer.encode(before, bos=False).ids)
    return int(tokenizer.encode(f"{before}{gap}{answer}", bos=False).ids[n_before])


def output_of_file(path: Path, format: str, names: Sequence[str]) -> dict[str, Floats] | None:
    """Return columns of a table of rows as numbers, each (n_rows,); None without names.

    Raises:
        UnknownNameError: a column does not exist.
        DataError: a cell is no number, or too large.
    """
    found: dict[str, list[float]] = {name: [] for name in names}
    for row in FORMATS[format].read(path, names).rows if names else ():
        for name, column in found.items():
            if name not in row.cells:
                raise UnknownNameError(f"No column {name!r}. {nearest(name, row.cells)}")
            try:
                number = float(row.cells[name])
            except (TypeError, ValueError):
                number = math.nan
            if not abs(number) < LARGEST:
                where = f"{row.source}: column {name!r}"
                raise DataError(f"{where} is {shown(row.cells[name])}, {_NO_NUMBER}")
            column.append(number)
    return {name: np.array(column) for name, column in found.items()} or None


def output_columns(outputs: Any, n_rows: int) -> dict[str, Floats] | None:
    """Return the columns of `outputs` as numbers, each (n_rows,); None without them.

    >>> output_columns({"entropy": [1, 2.5]}, 2)
    {'entropy': array([1. , 2.5])}

    Raises:
        ConfigError: these are no named columns.
        DataError: a column has another length, or an entry is no number, or too large.
    """
    if outputs is None:
        return None
    names = list(getattr(outputs, "columns", outputs if isinstance(outputs, Mapping) else ()))
    if not names:
        raise ConfigError("outputs must be a data frame or a mapping from names to columns.")
    found: dict[str, Floats] = {}
    for name in names:
        cells = plain_cells(f"outputs[{name!r}]", outputs[name])
        check_length(f"outputs[{name!r}]", cells, n_rows)
        for row, cell in enumerate(cells):
            if not isinstance(cell, Real) or not abs(float(cell)) < LARGEST:
                raise DataError(f"outputs[{name!r}][{row}] is {cell!r}, {_NO_NUMBER}")
        if str(name) in found:
            raise DataError(f"outputs has two columns {str(name)!r}. Rename one.")
        found[str(name)] = np.array(cells, dtype=np.float64)
    return found


def check_length(name: str, entries: Any, n_rows: int) -> None:
    """Raise DataError unless there is one entry for each row."""
    if len(entries) != n_rows:
        text = f"{name} has {len(entries):,} entries, but labels has {n_rows:,}. Give one for each "
        raise DataError(f"{text}row.")
