"""Table of the data formats: reader, columns, and what their examples are.

This module imports no numerical libraries, so that experiment files can be checked quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Literal

FormatName = Literal["csv", "tsv", "jsonl", "parquet", "conllu", "columns", "hub", "memory"]

_TABLE = ("text", "label", "group", "id", "start", "end", "split", "reply")


@dataclass(frozen=True)
class DataFormat:
    """One data format.

    Attributes:
        name: name in YAML files.
        reader: module and function that reads it, imported when it is used. It returns a `Table`,
            or for a format of words the whole `Dataset`.
        columns: module and class of the columns that it is read with.
        keys: keys of the section `columns` that apply to it.
        has_words: whether each example is a word of a sentence, with its span in the text.
        is_file: whether the data are files, named by `file`, or `train` and `test`.
        has_names: whether each example has an id of its own even without a column of ids.
    """

    name: str
    reader: str
    columns: str = "probekit.data.tables.columns:TableColumns"
    keys: tuple[str, ...] = _TABLE
    has_words: bool = False
    is_file: bool = True
    has_names: bool = False

    @property
    def read(self) -> Callable[..., Any]:
        """The function that reads the format."""
        function: Callable[..., Any] = resolve_name(self.reader)
        return function

    @property
    def columns_class(self) -> Callable[..., Any]:
        """The class of its columns; called without arguments, it returns the default columns."""
        columns: Callable[..., Any] = resolve_name(self.columns)
        return columns


FORMATS: Mapping[str, DataFormat] = MappingProxyType(
    {
        row.name: row
        for row in (
            DataFormat("csv", "probekit.data.tables.delimited:csv_table"),
            DataFormat("tsv", "probekit.data.tables.delimited:tsv_table"),
            DataFormat("jsonl", "probekit.data.tables.json_lines:json_table"),
            DataFormat("parquet", "probekit.data.tables.parquet:parquet_table"),
            DataFormat(
                "conllu",
                "probekit.data.treebank:read_treebank",
                columns="probekit.data.treebank:ConlluColumns",
                keys=("label", "group"),
                has_words=True,
                has_names=True,
            ),
            DataFormat(
                "columns",
                "probekit.data.word_columns:read_word_columns",
                columns="probekit.data.word_columns:WordColumns",
                keys=("text", "label", "group"),
                has_words=True,
            ),
            DataFormat("hub", "probekit.data.tables.hub:hub_table", is_file=False),
            DataFormat("memory", "probekit.data.tables.memory:memory_table", is_file=False),
        )
    }
)
