"""The folder of a run and its record, run.json: reading, validation, digests of result files.

run.json contains a digest of itself and of all result files of the run. The digests detect
accidental changes, not deliberate changes of a file and its digest.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from safetensors import SafetensorError

from probekit.activations.records import ROWS, SPEC
from probekit.chosen.registry import TABLES
from probekit.data.examples import Finding
from probekit.errors import DamagedError, DataError, MissingError, ProbekitError, StoreError
from probekit.files import inside, regular, why_unreadable
from probekit.model.sites.catalogue import DIFFERS
from probekit.probes.targets import NO_CONTROL_TASK
from probekit.provenance import digest, seal, unseal
from probekit.results.verdict import Verdict

FINAL = "probes/final"  # the probe that a nested cross-validation fits on all rows
STARTED = ".started"  # exists in the folder of a run while it is not finished
CELLS = "cells"  # in the folder of a study, with the runs of its cells
FORMAT = 1  # number of the format of run.json
# Files that pages read if they exist. Predictions and probes are in the folders sites and probes.
RESULT_FILES = (
    "config.yaml",
    "results.csv",
    "differences.csv",
    "reliability.csv",
    "test_rows.csv",
    "training.csv",
    "attention.safetensors",
    *TABLES,
    "causes/causes.json",
    *(f"causes/{name}.csv" for name in ("effects", "verdicts", "doses", "downstream")),
)
ALL_FOLDS = "all folds"  # name of the counts of a nested cross-validation
NO_CONTROL = "no-control"  # code of the finding that explains why there is no control task
MOST_CLASSES = 40  # with more, confusion matrix and scatter plots would be unreadable
MOST_NAMED = 5  # damaged files listed in a message
MOST_RUNS = 10  # runs listed in a message


class RecordPart(BaseModel):
    """Base class of the objects in run.json; unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


Record = TypeVar("Record", bound=BaseModel)


class ModelFacts(RecordPart):
    """The network whose activations were probed.

    Each file of the network was compared with a digest; `compared_with` names the digest's source.
    The sizes are None if the activations were given, so that the network is unknown. If its forward
    pass was in half precision, or that of a serving engine, `relative_errors` has the median error
    of some rows at each probed site, compared with a pass in float32. `computed_by` is None if a
    family of the package computes the network.
    """

    source: str
    n_layers: int | None = None
    n_heads: int | None = None
    d_model: int | None = None
    d_vocab: int | None = None
    n_ctx: int | None = None
    parameters: int | None = None
    compared_with: dict[str, str] = {}
    relative_errors: dict[str, float] | None = None
    computed_by: str | None = None


class ExampleRecord(RecordPart):
    """One row of the data; `span` holds the character offsets of the probed words."""

    text: str
    span: tuple[int, int] | None
    label: str
    split: str


class DataFacts(RecordPart):
    """The data of a run: counts, examples, findings of the checks, and a card in Markdown.

    `labels` and `groups` have the keys "train" and "test", or `ALL_FOLDS`. `repeated` is the share
    of test examples whose text and span also occur in their training rows; None without texts.
    """

    name: str
    n_examples: int
    n_rows: int
    labels: dict[str, dict[str, int]]
    groups: dict[str, int]
    repeated: float | None = None
    examples: list[ExampleRecord] = []
    notes: list[str] = []
    findings: list[Finding] = []
    card: str | None = None

    @property
    def training_labels(self) -> list[str]:
        """The labels of the training rows, of all folds together, sorted."""
        return sorted(self.labels["train" if "train" in self.labels else ALL_FOLDS])


class TensorIdentity(RecordPart):
    """Whether given activations are the tensor of their name.

    The label is `verified as SITE`, `differs` or `unverified`; `sentence` explains it.
    """

    label: str
    sentence: str = ""


class AttentionText(RecordPart):
    """A prompt whose attention patterns are stored in the run's folder, by layer."""

    text: str
    tokens: list[str]
    layers: list[int] = []


class Norms(RecordPart):
    """Median norms of the residual stream at one site, and its massive activations.

    A token is massive if its norm exceeds `MASSIVE` times `other_norm`, the median after position
    0. `massive` has the most frequent ones of `n_texts` sampled texts: token ("" for any one at
    position 0), number of texts, lowest and highest position. `read` has the share of the rows of
    each probed position that read a massive token.
    """

    site: str
    layer: int | None
    first_position_norm: float = Field(ge=0)
    other_norm: float = Field(ge=0)
    n_texts: int = 0
    massive: list[tuple[str, int, int, int]] = []
    read: dict[str, float] = {}


ControlBy = Literal["word", "group"]


class Control(NamedTuple):
    """The control task of a run.

    Attributes:
        by: the unit that gets one random label, such as a word.
        why_none: the reason if a control task was requested but there is none; else "".
    """

    by: ControlBy = "word"
    why_none: str = ""

    @property
    def short_reason(self) -> str:
        """The first clause of `why_none`, without "No control task: ".

        >>> Control(why_none="No control task: test words are new. Few are known.").short_reason
        'test words are new'
        """
        return re.split("[.;]", self.why_none.removeprefix(NO_CONTROL_TASK))[0]


BY_WORD = Control()


class RunRecord(RecordPart):
    """The contents of run.json, in the order of the file.

    `files` has the digest of each result file, by name within the folder. `inputs` is the digest of
    all input files and settings, by which the finished run is recognised; None if it has to be
    found by its key. `identities` has each site of given activations, or of a serving engine.
    """

    run: str
    key: str
    created: str
    inputs: str | None = None
    question: str | None
    model: ModelFacts
    data: DataFacts
    verdict: Verdict
    attention: list[AttentionText] = []
    versions: dict[str, str] = {}
    digests: dict[str, str] = {}
    C_grid: list[float] = []
    control_by: ControlBy = "word"
    positive: str | None = None
    seeds: dict[str, Any] = {}
    caches: dict[str, str] = {}
    identities: dict[str, TensorIdentity] = {}
    norms: list[Norms] = []
    seconds: dict[str, float] = {}
    files: dict[str, str] = {}

    @property
    def control(self) -> Control:
        """The control task."""
        reasons = [one.message for one in self.data.findings if one.code == NO_CONTROL]
        return Control(self.control_by, " ".join(reasons))

    @property
    def identity(self) -> str:
        """The labels of given activations in words; that of a single site in full, else counts."""
        labels = [one.label for one in self.identities.values()]
        if len(labels) < 2:
            return "".join(labels)
        counts = Counter(label.partition(" as ")[0] for label in labels)
        return ", ".join(f"{n:,} {label}" for label, n in sorted(counts.items()))

    @property
    def other_tensors(self) -> list[str]:
        """The sites of given activations that are another tensor than that of their name."""
        return [site for site, one in self.identities.items() if one.label == DIFFERS]


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, finished or in progress."""
    return any((folder / name).exists() for name in (STARTED, "run.json"))


def runs_in_progress(root: Path) -> list[Path]:
    """Return the folders of the runs below a folder, or the folder itself, that have not finished.

    Those of checkpoints are in the folder of their run, and those of cells in that of their study,
    which is one of the folders.
    """
    found = []
    for folder, names, files in os.walk(root):
        if STARTED in files:
            found.append(Path(folder))
        if STARTED in files or "run.json" in files:
            names[:] = [name for name in names if name in ("checkpoints", CELLS)]
        elif SPEC in files and ROWS in files:  # a cache, whose sites may have millions of files
            names.clear()
    return found


def has_causes_alone(folder: Path) -> bool:
    """Return whether a folder is that of finished interventions without probes."""
    return not is_run(folder) and (folder / "causes/causes.json").exists()


def check_finished(folder: Path) -> None:
    """Raise MissingError if a folder is not that of a finished run.

    Raises:
        MissingError: The folder does not exist or contains no finished run.
    """
    if not folder.is_dir():
        problem = "is a file, not the folder of a run" if folder.exists() else "does not exist"
        raise MissingError(
            f"{folder} {problem}. Give the folder of a run: the one that contains the report whose "
            "path `probekit run` prints."
        )
    if (folder / STARTED).exists():
        raise MissingError(
            f"{folder} contains an unfinished run. Run the experiment again with the same --out to "
            "resume it."
        )
    if not (folder / "run.json").exists():
        # The folder may be OUT/NAME, or OUT.
        records = (*folder.glob("*/run.json"), *folder.glob("*/*/run.json"))
        runs = sorted(str(path.parent.relative_to(folder)) for path in records)[:MOST_RUNS]
        remedy = "`probekit run` writes runs to OUT/NAME/KEY; `probekit intervene` runs no probes."
        if (folder / "study.json").exists():
            remedy = "It is that of a study: open its report.html, or use `probekit view`."
        if runs:
            remedy = f"It contains runs; give one of them: {', '.join(runs)}."
        raise MissingError(f"{folder} is not the folder of a run: it has no run.json. {remedy}")


@contextmanager
def reading_run_file(path: Path) -> Iterator[None]:
    """Convert exceptions from reading a file of a run to MissingError or DataError.

    Raises:
        MissingError: The file does not exist.
        DataError: The file cannot be read.
    """
    try:
        yield
    except ProbekitError:  # already has a message for the user
        raise
    except FileNotFoundError as error:
        raise MissingError(
            f"{path} does not exist. `probekit run` writes it: run the experiment again with the "
            "same --out."
        ) from error
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(
            f"{path} cannot be read: {why_unreadable(error)}. Run the experiment again to rewrite "
            "it."
        ) from error


def load_config(path: Path) -> dict[str, Any]:
    """Return the contents of a run's config.yaml.

    Raises:
        MissingError: The file does not exist.
        DataError: The file cannot be read.
    """
    with reading_run_file(path):
        text = regular(inside(path)).read_text("utf-8")
    try:
        config = YAML(typ="safe").load(text)
    except YAMLError as error:
        raise DataError(f"{path} is not valid YAML: {error}. Run the experiment again.") from error
    if not isinstance(config, dict):
        raise DataError(f"{path} contains no settings. Run the experiment again to rewrite it.")
    return config


def pack_record(content: dict[str, Any]) -> bytes:
    """Return the bytes of run.json, including a digest of its contents."""
    return seal(content, FORMAT)


def open_record(run_dir: Path, names: Collection[str] | None = None) -> RunRecord:
    """Return the record of a run, after checking the digests of its result files.

    Args:
        run_dir: the folder of the run.
        names: the result files to check, by their names within the folder; None for all.

    Raises:
        MissingError: There is no run.json.
        DataError: run.json cannot be read, or a file was changed, deleted or added after the run.
    """
    record = load_record(run_dir / "run.json")
    digests = record.files
    if names is not None:
        digests = {name: written for name, written in digests.items() if name in names}
    damages = list(changed_files(run_dir, digests))
    for name in RESULT_FILES if names is None else names:
        if name not in record.files and (run_dir / name).exists():
            damages.append((name, "was added after the run"))
    if damages:
        listed = _first_of([f"{name} {change}" for name, change in damages])
        raise DataError(
            f"{run_dir} is damaged: {listed}. Run the experiment again with the same --out to "
            "rewrite the files."
        )
    return record


def _first_of(damages: Sequence[str]) -> str:
    """Return the first damages as one text, with the number of the others."""
    n_more = len(damages) - MOST_NAMED
    more = [f"and {n_more} more"] if n_more > 0 else []
    return "; ".join([*damages[:MOST_NAMED], *more])


def changed_files(run_dir: Path, digests: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the damage of each file that differs, is missing or outside the folder.

    Args:
        run_dir: the folder of the run.
        digests: the recorded digest of each file, by its name within the folder.

    Raises:
        DataError: a file cannot be read.
    """
    for name, written in digests.items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            yield name, "is outside the folder"
            continue
        try:
            with reading_run_file(run_dir / name):
                content = inside(run_dir / name, run_dir).read_bytes()
        except MissingError:
            yield name, "was deleted after the run"
            continue
        if digest([content]) != written:
            yield name, "changed after the run"


def load_record(path: Path) -> RunRecord:
    """Return the validated contents of run.json; see `read_record`."""
    return read_record(path, RunRecord)


def read_record(path: Path, kind: type[Record], *, is_sealed: bool = True) -> Record:
    """Return the validated contents of a record in JSON, such as run.json.

    Args:
        path: the file.
        kind: the data model of its contents.
        is_sealed: whether the record contains a format number and a digest of itself, which are
            then compared.

    Raises:
        MissingError: The file does not exist.
        DataError: The file is not JSON, or a key is missing or has the wrong type; if it is
            sealed, also: it was changed after the run, or has another format.
    """
    with reading_run_file(path):
        content = inside(path).read_bytes()
    try:
        record = kind.model_validate_json(content)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc'])) or 'the file'}: {problem['msg']}"
            for problem in error.errors(include_url=False)
        ]
        raise DataError(
            f"{path} is damaged, or not the record of such a run. {_first_of(problems)}. "
            "Run the same command again to rewrite it."
        ) from error
    if is_sealed:
        try:
            unseal(content, str(path), FORMAT)
        except StoreError as error:
            is_changed = isinstance(error, DamagedError)  # else it has another format
            run = "It changed after the run. Run" if is_changed else "Otherwise, run"
            raise DataError(f"{error} {run} the experiment again to rewrite it.") from error
    return record
