"""Data model of an experiment on given activations, which another library has computed.

`activations` replaces the sections `model`, `tokens` and `capture`.

`python -m probekit.experiment.activations FILE` writes the JSON schema that editors validate with.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from probekit.experiment.data import URL
from probekit.experiment.probe import ProbeSection
from probekit.experiment.schema import Experiment, SplitSection, Strings
from probekit.files import write_atomic
from probekit.section import FolderName, Name, Section, SettingsFile, json_schema, rule_error

GIVEN_POSITION = "given"  # name of the position in results


class ActivationsSection(Section):
    """The activations: one array for each site, with one row for each row of the data."""

    folder: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        examples=["activations"],
        description="folder of .npy, .safetensors, .parquet or .zarr arrays of shape (n_rows, "
        "n_features), one for each site; relative to the folder of the experiment file",
    )
    source: str = Field(
        "given activations",
        min_length=1,
        description="name of the model that computed the activations, shown on the page",
        examples=["pythia-160m"],
    )
    sites: Strings = Field(("*",), min_length=1, description="names or globs of the probed sites")
    position: int | None = Field(
        None,
        description="for arrays of shape (n_rows, n_positions, n_features): index of the position; "
        "negative values count from the end",
    )


class RowColumns(Section):
    """Column names of the table of rows."""

    label: str = Field("label", description="column with the label to predict")
    group: str | None = Field(
        None,
        description="column with the group of a row; a group is never split between train and "
        "test; null makes every row its own group",
    )
    id: str | None = Field(
        None,
        description="column with a unique name of the row; compared with the column `id` of "
        "rows.csv in the folder of the activations, if there is one",
    )
    token: str | None = Field(
        None,
        description="column with the word or token of a row, for the control task and the "
        "word-identity baseline",
    )
    split: str | None = Field(None, description="column with `train` or `test`")


class RowsSection(Section):
    """The rows of the activations, in the same order: labels, groups and tokens."""

    name: Name = Field(description="name of the data set in results")
    format: Literal["csv", "tsv", "jsonl", "parquet"] | None = Field(
        None, description="format of the file"
    )
    root: str = Field(
        ".", description="folder of the data files, relative to the folder of the experiment file"
    )
    file: str | None = Field(None, description="table with one line for each row of activations")
    card: str | None = Field(None, description="Markdown file with a description of the data")
    columns: RowColumns = RowColumns()
    positive: str | None = Field(
        None,
        description="label that the metrics of one class refer to, such as AUPRC; null means the "
        "rarer of two labels in the training rows, and no label if there are more",
        examples=["spam"],
    )

    @field_validator("root", "file", "card")
    @classmethod
    def _files_are_local(cls, path: str | None) -> str | None:
        if path is not None and URL.match(path):
            raise PydanticCustomError("url", "files are read from this machine")
        return path

    @model_validator(mode="after")
    def _a_file_has_a_format(self) -> RowsSection:
        if (self.file is None) != (self.format is None):
            given, missing = ("format", "file") if self.file is None else ("file", "format")
            raise rule_error(f"`{given}` requires `{missing}`", given)
        return self


class ActivationExperiment(SettingsFile):
    """One experiment on given activations: labelled rows, and the settings of the probes.

    >>> experiment = ActivationExperiment(
    ...     name="mine", activations=ActivationsSection(folder="a"), data=RowsSection(name="mine")
    ... )
    >>> experiment.split.test, experiment.offsets
    (0.25, {'given': 0})
    """

    name: FolderName = Field(description="name of the experiment and of the folder of its runs")
    question: str | None = Field(None, description="research question, shown in the report")
    activations: ActivationsSection
    data: RowsSection
    split: SplitSection = SplitSection()
    probe: ProbeSection = ProbeSection()

    @property
    def reads_numbers(self) -> bool:
        """Whether the labels are numbers."""
        return self.probe.settings().reads_numbers

    @property
    def offsets(self) -> dict[str, int]:
        """The offset of each probed position, by its name in results; there is only one."""
        return {GIVEN_POSITION: 0}

    @model_validator(mode="after")
    def _a_positive_label_has_classes(self) -> ActivationExperiment:
        if self.data.positive is not None and self.probe.reads != "classes":
            raise rule_error(
                "`positive` is a class, but the kinds of probe read labels as "
                f"{self.probe.reads}; remove it",
                "data",
                "positive",
            )
        return self

    @model_validator(mode="after")
    def _folds_split_the_rows(self) -> ActivationExperiment:
        if self.split.folds is not None and self.data.columns.split is not None:
            raise rule_error("`split.folds` requires data without a given split", "split", "folds")
        return self

    @model_validator(mode="after")
    def _nothing_reads_texts(self) -> ActivationExperiment:
        if self.split.drop_repeated:
            raise rule_error(
                "`drop_repeated` compares texts, which given activations do not have; remove "
                "repeated rows before, or put them in one group",
                "split",
                "drop_repeated",
            )
        for kind in self.probe.kinds:
            if kind.specs[0].task in ("text", "tree"):
                raise rule_error(
                    f"`kind: {kind.kind}` reads the tokens of whole texts; given activations are "
                    "single rows. Use another kind, such as logistic",
                    "probe",
                    "kinds",
                )
        return self


AnyExperiment: TypeAlias = Experiment | ActivationExperiment


def activation_schema() -> str:
    """Return the JSON schema of an experiment file on given activations."""
    return json_schema(ActivationExperiment, "probekit experiment on given activations")


if __name__ == "__main__":
    write_atomic(Path(sys.argv[1]), activation_schema())
