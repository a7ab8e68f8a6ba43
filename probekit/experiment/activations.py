"""Data model of an experiment on given activations, which another library has computed.

`activations` replaces the sections `model`, `tokens` and `capture`.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, TypeAlias

from pydantic import Field, field_validator, model_validator

from probekit.chosen.left.section import Confounds
from probekit.data.readers import TableFormat
from probekit.errors import ConfigError
from probekit.experiment.data import Card, DataName, Positive, Root, local_file
from probekit.experiment.document import Document
from probekit.experiment.locations import resolve_data, resolve_experiment, resolve_path
from probekit.experiment.schema import Experiment, SplitSection, check_probe
from probekit.model.weights.sources import KNOWN_MODELS
from probekit.probes.settings import ProbeSettings
from probekit.section import FolderName, Items, Section, SettingsFile, Unique, rule_error

GIVEN_POSITION = "given"  # name of the position in results


class ActivationsSection(Section):
    """The activations: one array for each site, with one row for each row of the data.

    Attributes:
        folder: folder of .npy, .safetensors, .parquet or .zarr arrays of shape (n_rows,
            n_features), one for each site; relative to the folder of the experiment file
        source: name of the model that computed the activations, shown on the page
        sites: names or globs of the probed sites
        position: for arrays (n_rows, n_positions, n_features): index of the position
        verify: name or folder of the model that computed the activations: 32 rows are computed
            again, and the record and the page state which tensor each array is; needs
            `data.columns.text` or `ids`
        bos: whether the model read a beginning-of-text token before each text; required if `verify`
            reads `data.columns.text`
        outputs: columns of the data with numbers of the model's output at each row, such as the
            entropy of the next token, for the baseline `output`
    """

    folder: Annotated[str, Field(min_length=1)] | None = Field(None, examples=["activations"])
    source: str = Field("given activations", min_length=1, examples=["pythia-160m"])
    sites: Items[str] = Field(("*",), min_length=1)
    position: int | None = None
    verify: Annotated[str, Field(min_length=1)] | None = Field(None, examples=["gpt2"])
    bos: bool | None = None
    outputs: Unique[str] = Field((), examples=["[entropy, margin]"])


class RowColumns(Section):
    """Column names of the table of rows.

    Attributes:
        label: column with the label to predict
        group: column with the group of a row; a group is never split between train and test; null
            makes every row its own group
        id: column with a unique name of the row; compared with the column `id` of rows.csv in the
            folder of the activations, if there is one
        token: column with the word of a row, for the control task and the word identity
        split: column with `train` or `test`
        text: column with the text that the model read, for the baselines that read texts, the
            errors on the page, and `activations.verify`
        ids: column with the token ids that the model read, separated by spaces or as a JSON list,
            which `activations.verify` reads in place of the text
        position: column with the index of the token of a row, for `activations.verify`; by default
            the last token
    """

    label: str = "label"
    group: str | None = None
    id: str | None = None
    token: str | None = None
    split: str | None = None
    text: str | None = None
    ids: str | None = None
    position: str | None = None


class RowsSection(Section):
    """The rows of the activations, in the same order: labels, groups and tokens.

    Attributes:
        format: format of the file
        file: table with one line for each row of activations
    """

    name: DataName
    format: TableFormat | None = None
    root: Root = "."
    file: str | None = None
    card: Card = None
    columns: RowColumns = RowColumns()
    positive: Positive = None

    _files_are_local = field_validator("root", "file", "card")(local_file)

    @model_validator(mode="after")
    def _a_file_has_a_format(self) -> RowsSection:
        given, missing = ("format", "file") if self.file is None else ("file", "format")
        if (self.file is None) != (self.format is None):
            raise rule_error(f"`{given}` requires `{missing}`", given)
        return self


class ActivationExperiment(SettingsFile):
    """One experiment on given activations: labelled rows, and the settings of the probes.

    Attributes:
        name: name of the experiment and of the folder of its runs
        question: research question, shown in the report

    >>> experiment = ActivationExperiment(
    ...     name="mine", activations=ActivationsSection(folder="a"), data=RowsSection(name="mine")
    ... )
    >>> experiment.split.test, experiment.offsets
    (0.25, {'given': 0})
    """

    name: FolderName
    question: str | None = None
    activations: ActivationsSection
    data: RowsSection
    split: SplitSection = SplitSection()
    probe: ProbeSettings = ProbeSettings()
    confounds: Confounds = None

    @property
    def reads_numbers(self) -> bool:
        """Whether the labels are numbers."""
        return self.probe.reads_numbers

    @property
    def offsets(self) -> dict[str, int]:
        """The offset of each probed position, by its name in results; there is only one."""
        return {GIVEN_POSITION: 0}

    @property
    def interventions(self) -> tuple[()]:
        """There are none without a network."""
        return ()

    @model_validator(mode="after")
    def _sections_fit_together(self) -> ActivationExperiment:
        check_probe(self, is_split=self.data.columns.split is not None)
        texts = [one.kind for one in self.probe.kinds if not one.traits.scores_rows]
        if self.split.drop_repeated:
            raise rule_error(
                "`drop_repeated` drops rows with equal texts, but given rows may share a text",
                "split.drop_repeated",
            )
        columns, given = self.data.columns, self.activations
        needy = [name for name in ("ids", "position") if getattr(columns, name) is not None]
        if given.verify is None and needy:
            raise rule_error(f"`{needy[0]}` requires `activations.verify`", "data.columns")
        if given.outputs and "output" not in self.probe.baselines:
            raise rule_error("`outputs` requires the baseline `output`", "activations.outputs")
        if self.data.file is not None:
            reads_text = given.verify is not None and columns.ids is None
            if reads_text and columns.text is None:
                raise rule_error(
                    "`verify` requires the tokens of each row: `data.columns.text` or `ids`",
                    "activations.verify",
                )
            if reads_text != (given.bos is not None):
                raise rule_error(
                    "`bos` is required if `verify` reads `data.columns.text`, and only then: `ids` "
                    "show it",
                    "activations.bos",
                )
        if texts:
            raise rule_error(
                f"`kind: {', '.join(texts)}` reads the tokens of whole texts, not single rows",
                "probe.kinds",
            )
        return self


AnyExperiment: TypeAlias = Experiment | ActivationExperiment


def experiment_in(document: Document) -> AnyExperiment:
    """Return the experiment in a document; its keys determine its kind."""
    keys = set(map(str, document.content))
    # With a misspelt `activations`, the errors of that kind of file help more.
    is_misspelt = "model" not in keys and bool(get_close_matches("activations", keys))
    if "activations" in keys or is_misspelt:
        return document.settings(ActivationExperiment, resolve_activations)
    return document.settings(Experiment, resolve_experiment)


def resolve_activations(values: dict[str, Any], document: Document) -> None:
    """Make the paths of an experiment on given activations absolute.

    Raises:
        ConfigError: the file has sections that describe a model, or a path is invalid.
    """
    for key in ("model", "tokens", "capture", "attention"):
        if key in values:
            text = f"the sections `{key}` and `activations` exclude each other. Remove one of them."
            raise ConfigError(document.put((key,), text))
    resolve_data(values, document)
    resolve_path(values, ("activations", "folder"), document)
    resolve_path(values, ("activations", "verify"), document, names=KNOWN_MODELS)
