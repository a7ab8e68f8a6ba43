"""Data model of the section `data`: files, data sets of the hub, and rows in memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from probekit.data.readers import FORMATS, FormatName
from probekit.section import Name, Section, rule_error

if TYPE_CHECKING:
    from probekit.data.examples import Dataset

URL = re.compile("[a-z][a-z0-9+.-]*://")
_COMMIT = re.compile("[0-9a-f]{40}")


def _number_as_text(given: Any) -> Any:
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else given


def _or_integer(*others: str) -> JsonDict:
    return {"anyOf": [{"type": kind} for kind in ("string", "integer", *others)]}


# Columns of words have numbers instead of names.
ColumnName = Annotated[str, BeforeValidator(_number_as_text), WithJsonSchema(_or_integer())]
OptionalColumn = Annotated[
    str | None, BeforeValidator(_number_as_text), WithJsonSchema(_or_integer("null"))
]


class ColumnsSection(Section):
    """Names of the columns of the data."""

    text: ColumnName = Field(
        "text",
        description="column with the text; for the format `columns` the number of the column of "
        "words, from 1",
    )
    label: ColumnName = Field(
        "label",
        description="column with the label to predict from the activations; for CoNLL-U one of "
        "UPOS, XPOS, DEPREL, HEAD, LEMMA, FORM or `FEATS:Name`; for the format `columns` the "
        "number of the column, from 1",
    )
    group: OptionalColumn = Field(
        None,
        description="column with the group of a row; a group is never split between train and "
        "test; for CoNLL-U and for the format `columns`: `sentence` (the default) or `document`; "
        "otherwise null makes every row its own group",
    )
    id: OptionalColumn = Field(
        None, description="column with a unique name of the row; null numbers the rows"
    )
    start: OptionalColumn = Field(
        None, description="column with the index of the first character of the probed span"
    )
    end: OptionalColumn = Field(
        None, description="column with the index after the last character of the span"
    )
    split: OptionalColumn = Field(None, description="column with `train` or `test`")
    reply: OptionalColumn = Field(
        None,
        description="column with the assistant's turn after the text, for `tokens.chat: true`",
    )

    @model_validator(mode="after")
    def _span_is_whole(self) -> ColumnsSection:
        if (self.start is None) != (self.end is None):
            key = "end" if self.start is None else "start"
            raise rule_error("`start` and `end` must be given together, or neither", key)
        return self


class HubSection(Section):
    """A data set of the Hugging Face hub, or a folder that its library reads."""

    name: str = Field(
        min_length=1,
        examples=["stanfordnlp/sst2"],
        description="name on the hub, or a folder: one written by `save_to_disk`, or one with "
        "Parquet, CSV or JSON files; a relative path is resolved like that of `model.source`",
    )
    revision: str | None = Field(
        None, description="hash of a commit of a data set on the hub; null for a folder"
    )
    config: str | None = Field(None, description="name of the configuration, if there are several")
    split: str | None = Field(None, description="name of the split; null for the only one")
    train: str | None = Field(
        None, description="instead of `split`: name of the split of the training rows"
    )
    test: str | None = Field(
        None, description="name of the split of the test rows, together with `train`"
    )

    @field_validator("name")
    @classmethod
    def _is_no_url(cls, name: str) -> str:
        if URL.match(name):
            raise rule_error(f"give the name of the data set, such as org/name, not a URL ({name})")
        return name

    @model_validator(mode="after")
    def _revision_is_a_commit(self) -> HubSection:
        is_folder = Path(self.name).is_absolute()
        if is_folder and self.revision is not None:
            raise rule_error("a folder has no revision; remove `revision`", "revision")
        if not is_folder and not (self.revision and _COMMIT.fullmatch(self.revision)):
            given = "is missing" if self.revision is None else f"is {self.revision!r}"
            raise rule_error(
                f"`revision` {given}. It must be the hash of a commit, with 40 characters: a "
                "branch changes, and the run could not be repeated. The hash is shown by `git "
                f"ls-remote https://huggingface.co/datasets/{self.name} HEAD`. (If "
                f"{self.name} is a folder, it does not exist at this path)",
                *(() if self.revision is None else ("revision",)),
            )
        return self

    @model_validator(mode="after")
    def _one_or_two_splits(self) -> HubSection:
        if (self.train is None) != (self.test is None) or (self.train and self.split):
            raise rule_error("give either `split`, or both `train` and `test`")
        if self.train is not None and self.train == self.test:
            raise rule_error(f"`train` and `test` are the same split, {self.train}", "test")
        return self


class MemorySection(Section):
    """Rows that were passed in Python; written by the run, to recognise the same rows again."""

    kind: str = Field(description="type of the table")
    n_rows: int = Field(ge=0, description="number of rows")
    digest: str = Field(description="digest of the rows in the columns that were read")
    is_split: bool = Field(
        False, description="whether training and test rows were passed as two tables"
    )


def _has_no_format_of_its_own(schema: dict[str, Any]) -> None:
    """Make `format` optional, unless there are files."""
    schema["required"].remove("format")
    files = ["file", "train", "test"]
    schema["dependentRequired"] = {file: ["format"] for file in files}


class DataSection(Section):
    """The labelled examples."""

    model_config = ConfigDict(json_schema_extra=_has_no_format_of_its_own)

    name: Name = Field(description="name of the data set in results")
    format: FormatName = Field(
        description="format of the files; `columns` has a word in each line; not needed with the "
        "section `hub`, nor for rows passed in Python (`memory`)",
    )
    root: str = Field(
        ".", description="folder of the data files, relative to the folder of the experiment file"
    )
    file: str | None = Field(
        None, description="single file, split by the `split` section or by a column"
    )
    train: str | None = Field(None, description="file of the training rows, together with `test`")
    test: str | None = Field(None, description="file of the test rows")
    hub: HubSection | None = Field(None, description="data set of the hub, instead of files")
    memory: MemorySection | None = Field(
        None, description="written by a run whose rows were passed in Python"
    )
    card: str | None = Field(None, description="Markdown file with a description of the data")
    columns: ColumnsSection = ColumnsSection()
    pairs: OptionalColumn = Field(
        None,
        description="column with the counterfactual of each text, for `interventions`: a text with "
        "as many tokens but another label, otherwise alike",
    )
    positive: str | None = Field(
        None,
        description="label that the metrics of one class refer to, such as AUPRC; null means the "
        "rarer of two labels in the training rows, and no label if there are more",
        examples=["spam"],
    )

    _examples: Dataset | None = PrivateAttr(None)

    @property
    def in_memory(self) -> Dataset | None:
        """The examples that were passed in Python; None if there are none."""
        return self._examples

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

    def hold(self, examples: Dataset) -> None:
        """Keep examples that were passed in Python; they are not part of the saved settings."""
        self._examples = examples

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

    @field_validator("root", "file", "train", "test", "card")
    @classmethod
    def _files_are_local(cls, path: str | None) -> str | None:
        if path is not None and URL.match(path):
            raise PydanticCustomError("url", "files are read from this machine")
        return path

    @model_validator(mode="after")
    def _columns_apply_to_the_format(self) -> DataSection:
        allowed = FORMATS[self.format].keys
        for key, info in type(self.columns).model_fields.items():
            is_given = getattr(self.columns, key) != info.default
            if is_given and key not in allowed:
                named = "CoNLL-U" if self.format == "conllu" else f"the format {self.format}"
                keys = [f"`{one}`" for one in allowed]
                raise rule_error(
                    f"`columns.{key}` is for tables; for {named} only {', '.join(keys[:-1])} and "
                    f"{keys[-1]} can be set",
                    "columns",
                    key,
                )
        return self

    @model_validator(mode="after")
    def _pairs_are_rows_of_tables(self) -> DataSection:
        if self.pairs is not None and self.has_words:
            raise rule_error(
                f"`pairs` names a column of a table, and the format {self.format} has none", "pairs"
            )
        return self

    @model_validator(mode="after")
    def _one_source(self) -> DataSection:
        files = [key for key in ("file", "train", "test") if getattr(self, key) is not None]
        if FORMATS[self.format].is_file:
            if files not in (["file"], ["train", "test"]):
                raise rule_error("give either `file`, or both `train` and `test`")
        elif files:
            # The name of a file is no mistake, so the format must be one.
            raise rule_error(
                f"`{files[0]}` names a file, but the format is {self.format}; set `format` to that "
                f"of the file, or remove `{files[0]}`",
                files[0],
            )
        for key, section in (("hub", self.hub), ("memory", self.memory)):
            if section is not None and self.format != key:
                raise rule_error(
                    f"the section `{key}` excludes the format {self.format}; remove one of them",
                    key,
                )
        if self.format == "hub" and self.hub is None:
            raise rule_error("`format: hub` requires the section `hub`, such as {name: ORG/NAME}")
        return self

    @model_validator(mode="after")
    def _is_split_once(self) -> DataSection:
        if self.columns.split is not None and self.has_two_tables:
            raise rule_error(
                "`columns.split` requires a single table; `train` and `test` are split already",
                "columns",
                "split",
            )
        return self
