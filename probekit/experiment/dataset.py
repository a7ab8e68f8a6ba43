"""Examples of an experiment: those of its files, of the hub, or of rows in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from probekit.data.examples import Dataset, Example
from probekit.data.frames import tables_in
from probekit.data.hub import HubData
from probekit.data.readers import FORMATS, read_dataset
from probekit.data.table import TableColumns
from probekit.data.words import ConlluColumns, WordColumns
from probekit.errors import ConfigError

if TYPE_CHECKING:
    from probekit.experiment.data import ColumnsSection, DataSection


def read_examples(data: DataSection, values: Sequence[str] = ()) -> Dataset:
    """Return the examples of one table, or of the training and test tables together.

    Args:
        data: section of the experiment.
        values: columns whose cells the examples keep as `values`, as far as they exist.

    Raises:
        ConfigError: a column does not exist, or the rows were in the memory of another process.
        MissingError: a file does not exist.
        DataError: the contents are invalid.
    """
    if data.in_memory is not None:
        return data.in_memory
    if data.format == "memory":
        raise ConfigError(_no_rows(data))
    return _read(data, _sources(data), values)


def read_tables(
    data: DataSection, tables: Any, values: Sequence[str] = ()
) -> tuple[Dataset, dict[str, Any]]:
    """Return the examples of rows in memory, and the contents of the section `data.memory`.

    Args:
        data: gives the columns.
        tables: the rows; see `Experiment.with_data`.
        values: columns whose cells the examples keep, as far as they exist.

    Raises:
        ConfigError: the type of the rows is not supported, or a column does not exist.
        DataError: the rows are invalid.
    """
    found = tables_in(tables)
    examples = _read(data, {table.side: table for table in found}, values)
    facts = {
        "kind": found[0].kind,
        "n_rows": len(examples),
        "digest": examples.digest,
        "is_split": len(found) > 1,
    }
    return examples, facts


def _sources(data: DataSection) -> Mapping[str, Any]:
    """Return the source of the examples of each side; the side is "" if there is only one."""
    if data.hub is not None:
        hub = data.hub
        splits = {"": hub.split} if hub.test is None else {"train": hub.train, "test": hub.test}
        return {
            side: HubData(hub.name, split, hub.revision, hub.config)
            for side, split in splits.items()
        }
    files = {"": data.file, "train": data.train, "test": data.test}
    paths = {side: Path(data.root) / file for side, file in files.items() if file is not None}
    if len({path.resolve() for path in paths.values()}) < len(paths):
        raise ConfigError(f"data.train and data.test are the same file, {data.train}.")
    return paths


def _read(data: DataSection, sources: Mapping[str, Any], values: Sequence[str]) -> Dataset:
    """Return the examples of all sources; those of a side are assigned to it."""
    columns = _columns(data, values)
    parts = {
        side: read_dataset(source, format=data.format, columns=columns, name=data.name)
        for side, source in sources.items()
    }
    examples: list[Example] = []
    notes: list[str] = []
    for side, part in parts.items():
        if not side:
            return part
        # Row numbers given by the reader repeat in the second table.
        own_group = data.columns.group is None and not data.has_words
        examples += [
            replace(
                example,
                id=f"{side} {example.id}",
                group=f"{side} {example.group}" if own_group else example.group,
                split=side,
            )
            for example in part.examples
        ]
        notes += [f"{side}: {note}" for note in part.notes]
    return replace(part, examples=tuple(examples), notes=tuple(notes))


def _columns(
    data: DataSection, values: Sequence[str]
) -> TableColumns | ConlluColumns | WordColumns:
    named: ColumnsSection = data.columns
    group = cast(Any, named.group or "sentence")
    if data.format == "conllu":
        return ConlluColumns(named.label, group)
    if data.format == "columns":
        is_default = named.text == type(named).model_fields["text"].default
        return WordColumns(named.label, "1" if is_default else named.text, group)
    assert not FORMATS[data.format].has_words
    span = None if named.start is None or named.end is None else (named.start, named.end)
    return TableColumns(
        named.text,
        named.label,
        named.group,
        named.id,
        span,
        named.split,
        data.pairs,
        tuple(values),
        named.reply,
    )


def _no_rows(data: DataSection) -> str:
    """Return the message for data in memory that are not there."""
    if data.memory is None:
        return (
            "the section names no file, so that rows must be passed in Python: "
            "probekit.run(EXPERIMENT, data=ROWS). For a file, set `format` and `file`."
        )
    facts = data.memory
    return (
        f"the rows of this run were passed in Python ({facts.kind}, {facts.n_rows:,} rows, digest "
        f"{facts.digest[:12]}) and are not stored with it. Pass the same rows again: "
        "probekit.run(EXPERIMENT, data=ROWS). To run on a file, remove `format` and `memory`, and "
        "set `format` and `file`."
    )
