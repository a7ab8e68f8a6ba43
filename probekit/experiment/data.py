"""The section `data`: files, data sets of the hub, and rows in memory; and its examples."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from probekit.data.examples import Dataset, Example
from probekit.data.frames import HubSection, tables_in
from probekit.data.readers import FORMATS, FormatName, read_dataset
from probekit.data.table import Columns, OptionalColumn
from probekit.errors import ConfigError
from probekit.experiment.replies import ReplyLabelSection
from probekit.section import URL, HoldingSection, Name, Section, rule_error


def local_file(path: str | None, info: ValidationInfo) -> str | None:
    """Return a path unchanged; raises a validation error for a URL."""
    if path is not None and URL.match(path):
        raise rule_error(f"`{info.field_name}` is a URL ({path}); download the file, give its path")
    return path


# Keys that the data of texts and of given activations share.
DataName = Annotated[Name, Field(description="name of the data set in results")]
Root = Annotated[
    str,
    Field(description="folder of the data files, relative to the folder of the experiment file"),
]
Card = Annotated[str | None, Field(description="Markdown file with a description of the data")]
Positive = Annotated[
    str | None,
    Field(
        description="label that the metrics of one class refer to, such as AUPRC; null means the "
        "rarer of two labels in the training rows, and no label if there are more",
        examples=["spam"],
    ),
]


class MemorySection(Section):
    """Rows that were passed in Python; written by the run, to recognise the same rows again.

    Attributes:
        kind: type of the table
        n_rows: number of rows
        digest: digest of the rows in the columns that were read
        is_split: whether training and test rows were passed as two tables
    """

    kind: str
    n_rows: int = Field(ge=0)
    digest: str
    is_split: bool = False


def _has_no_format_of_its_own(schema: dict[str, Any]) -> None:
    """Make `format` optional, unless there are files."""
    schema["required"].remove("format")
    schema["dependentRequired"] = {file: ["format"] for file in ("file", "train", "test")}


class DataSection(HoldingSection):
    """The labelled examples.

    Attributes:
        format: format of the files; `columns` has a word in each line; not needed with the section
            `hub`, nor for rows passed in Python
        file: single file, split by the `split` section or by a column
        train: file of the training rows, together with `test`
        test: file of the test rows
        hub: data set of the hub, instead of files
        memory: written by a run whose rows were passed in Python
        columns: names of the columns with the text, the label, the group and others
        delimiter: character between the cells of `csv` and `tsv`; null takes the comma, semicolon
            or tab that the first line of `csv` has most of
        special_tokens: how special tokens that are written out in a text, such as <|im_start|>, are
            read: as plain characters, or as the tokens
        pairs: column with the counterfactual of each text, for `interventions`: a text with as many
            tokens but another label, otherwise alike
        label_of_reply: for `capture.generate`: label of each reply, instead of a column of the data
    """

    model_config = ConfigDict(json_schema_extra=_has_no_format_of_its_own)

    name: DataName
    format: FormatName
    root: Root = "."
    file: str | None = None
    train: str | None = None
    test: str | None = None
    hub: HubSection | None = None
    memory: MemorySection | None = None
    card: Card = None
    columns: Columns = Columns()
    delimiter: Annotated[str, Field(max_length=1, pattern=r"[^\r\n\"]")] | None = None
    special_tokens: Literal["text", "tokens"] = "text"
    pairs: OptionalColumn = None
    positive: Positive = None
    label_of_reply: ReplyLabelSection | None = None

    @property
    def has_words(self) -> bool:
        """Whether each example is a word with a span."""
        return FORMATS[self.format].has_words

    @property
    def has_two_tables(self) -> bool:
        """Whether training and test rows are two tables."""
        of_hub = self.hub is not None and self.hub.test is not None
        return self.test is not None or of_hub or (self.memory is not None and self.memory.is_split)

    @property
    def is_split(self) -> bool:
        """Whether the data assign rows to train and test."""
        return self.has_two_tables or self.columns.split is not None

    @model_validator(mode="before")
    @classmethod
    def _format_of_other_sources(cls, given: Any) -> Any:
        """Fill in a format that follows from the other keys."""
        if not isinstance(given, Mapping) or "format" in given:
            return given
        if given.get("hub") is not None:
            return {**given, "format": "hub"}
        has_files = any(given.get(key) is not None for key in ("file", "train", "test"))
        return given if has_files else {**given, "format": "memory"}

    _files_are_local = field_validator("root", "file", "train", "test", "card")(local_file)

    @model_validator(mode="after")
    def _columns_and_sources_fit_the_format(self) -> DataSection:
        allowed, columns = FORMATS[self.format].keys, self.columns
        for key, info in type(columns).model_fields.items():
            is_given = getattr(columns, key) != info.default
            if is_given and key not in allowed:
                own = f"the format {self.format} has {', '.join(allowed)}"
                raise rule_error(f"`columns.{key}` is for tables; {own}", "columns", key)
        files = [key for key in ("file", "train", "test") if getattr(self, key) is not None]
        is_file = FORMATS[self.format].is_file
        other = {"hub": self.hub, "memory": self.memory}
        excluded = [key for key, section in other.items() if section and self.format != key]
        if is_file and files not in (["file"], ["train", "test"]):
            raise rule_error("give either `file`, or both `train` and `test`")
        # A file is named on purpose, so the format is the mistake.
        if not is_file and files:
            raise rule_error(
                f"the format is {self.format}, which has no files; set that of the file", files[0]
            )
        if excluded:
            raise rule_error(
                f"the section {' and '.join(excluded)} excludes the format {self.format}",
                excluded[0],
            )
        if self.format == "hub" and self.hub is None:
            raise rule_error("`format: hub` requires the section `hub`, such as {name: ORG/NAME}")
        if self.delimiter is not None and self.format not in ("csv", "tsv"):
            raise rule_error(f"the format {self.format} has no delimiter", "delimiter")
        if self.pairs is not None and self.has_words:
            raise rule_error(
                f"`pairs` names a column of a table, and the format {self.format} has none", "pairs"
            )
        if self.columns.split is not None and self.has_two_tables:
            raise rule_error(
                "`columns.split` requires a single table; `train` and `test` are split already",
                "columns.split",
            )
        return self


def read_examples(data: DataSection, values: Sequence[str] = ()) -> Dataset:
    """Return the examples of one table, or of the training and test tables together.

    Args:
        data: section of the experiment.
        values: columns whose cells the examples of a table keep as `values`; those that a row
            lacks are left out. Words keep none. Examples in memory are returned as `read_tables`
            made them.

    Raises:
        ConfigError: a column does not exist, `train` and `test` are the same file, or the rows
            were in the memory of another process or not passed at all.
        MissingError: a file does not exist.
        DataError: the contents are invalid.
    """
    if data.in_memory is not None:
        return cast(Dataset, data.in_memory)
    if data.format == "memory":
        facts, missing = data.memory, "the section names no file"
        if facts is not None:
            rows = f"({facts.kind}, {facts.n_rows:,} rows, digest {facts.digest[:12]})"
            missing = (
                f"the rows of this run were passed in Python {rows} and are not stored with it"
            )
        raise ConfigError(
            f"{missing}. Pass the rows: probekit.run(EXPERIMENT, data=ROWS). To run on a file, "
            "remove `memory`, and set `format` and `file`."
        )
    sources: dict[str, Any]  # by side; "" for a single table
    if data.hub is not None:
        hub = data.hub
        splits = {"": hub.split} if hub.test is None else {"train": hub.train, "test": hub.test}
        sources = {side: hub.model_copy(update={"split": one}) for side, one in splits.items()}
    else:
        files = {"": data.file, "train": data.train, "test": data.test}
        sources = {side: Path(data.root) / file for side, file in files.items() if file is not None}
        if len({os.path.realpath(path) for path in sources.values()}) < len(sources):
            raise ConfigError(f"data.train and data.test are the same file, {data.train}.")
    return read_sources(data, sources, values)


def read_tables(
    data: DataSection, tables: Any, values: Sequence[str] = ()
) -> tuple[Dataset, dict[str, Any]]:
    """Return the examples of rows in memory, and the contents of the section `data.memory`.

    Args:
        data: gives the columns.
        tables: the rows; see `Experiment.with_data`.
        values: see `read_examples`.

    Raises:
        ConfigError: the type of the rows is not supported, or a column does not exist.
        DataError: the rows are invalid.
    """
    found = tables_in(tables)
    examples = read_sources(data, {table.side: table for table in found}, values)
    facts = {"kind": found[0].kind, "n_rows": len(examples), "digest": examples.digest}
    return examples, facts | {"is_split": len(found) > 1}


def read_sources(data: DataSection, sources: Mapping[str, Any], values: Sequence[str]) -> Dataset:
    """Return the examples of all sources, each assigned to the side of its source, if it has one.

    Args:
        data: the section `data`.
        sources: the tables by side, "train" and "test"; a single table has the side "".
        values: see `read_examples`.
    """
    columns = data.columns
    if data.label_of_reply is not None:  # a rule on replies sets the labels
        columns = columns.model_copy(update={"label": ""})
    options: dict[str, Any] = {} if data.delimiter is None else {"delimiter": data.delimiter}
    read = partial(read_dataset, columns=columns, values=values, pairs=data.pairs)
    examples: list[Example] = []
    notes, tables = list[str](), list[Any]()
    for side, source in sources.items():
        part = read(source, format=data.format, name=data.name, **options)
        if not side:  # there is one table, which has no side
            return part
        # Row numbers given by the reader repeat in the second table.
        own_group = columns.group is None and not data.has_words
        for example in part.examples:
            group = f"{side} {example.group}" if own_group else example.group
            examples.append(replace(example, id=f"{side} {example.id}", group=group, split=side))
        notes += [f"{side}: {note}" for note in part.notes]
        tables += part.tables
    # Everything else is the same in both parts.
    return replace(part, examples=tuple(examples), notes=tuple(notes), tables=tuple(tables))
