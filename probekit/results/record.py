"""The parts of a run's run.json that the report shows, checked when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError

from probekit.errors import DataError, MissingError, ProbekitError
from probekit.provenance import digest


class RecordPart(BaseModel):
    """An object of run.json; keys that the report does not show are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ModelFacts(RecordPart):
    """The network whose activations were probed."""

    source: str
    n_layers: int
    n_heads: int
    d_model: int
    d_vocab: int
    n_ctx: int
    parameters: int


class ExampleRecord(RecordPart):
    """One row of the data; `span` holds the character offsets of the probed words."""

    text: str
    span: tuple[int, int] | None
    label: str
    split: str


class FindingRecord(RecordPart):
    """Something that the checks of the data found."""

    level: str
    code: str
    message: str


class DataFacts(RecordPart):
    """What was probed for: counts, examples, what the checks found, and a card in Markdown."""

    name: str
    n_examples: int
    n_rows: int
    labels: dict[str, dict[str, int]]
    groups: dict[str, int]
    examples: list[ExampleRecord] = []
    notes: list[str] = []
    findings: list[FindingRecord] = []
    card: str | None = None


class Best(RecordPart):
    """The site that the run chose, or a head of it."""

    site: str
    layer: int | None
    head: int | None = None
    chosen_by: str


class AttentionText(RecordPart):
    """A prompt whose attention patterns lie beside run.json."""

    text: str
    tokens: list[str]


class Norms(RecordPart):
    """Mean norms of the residual stream at one site."""

    site: str
    layer: int | None
    first_position_norm: float = Field(ge=0)
    other_norm: float = Field(ge=0)


ControlBy = Literal["word", "group"]


class RunRecord(RecordPart):
    """All that the report takes from run.json."""

    run: str
    key: str
    question: str | None
    created: str
    model: ModelFacts
    data: DataFacts
    best: Best | None = None
    warnings: list[str] = []
    attention: list[AttentionText] = []
    norms: list[Norms] = []
    versions: dict[str, str] = {}
    digests: dict[str, str] = {}
    seeds: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    C_grid: list[float] = []
    control_by: ControlBy = "word"
    files: dict[str, str] = {}


@contextmanager
def reading_run_file(path: Path) -> Iterator[None]:
    """Say in words which file of a run is not there or cannot be read.

    Raises:
        MissingError: The file is not there.
        DataError: It cannot be read.
    """
    try:
        yield
    except ProbekitError:  # says it already
        raise
    except FileNotFoundError as error:
        raise MissingError(
            f"{path} is not there. A finished run writes it: `probekit run`."
        ) from error
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(
            f"{path} cannot be read: {str(error).strip()}. Run the experiment again to rewrite it."
        ) from error


def changed_files(run_dir: Path, record: RunRecord) -> list[str]:
    """Return the names of the files whose contents are not those that the run wrote."""

    def contents(path: Path) -> bytes:
        with reading_run_file(path):
            return path.read_bytes()

    return [
        name
        for name, written in record.files.items()
        if digest([contents(run_dir / name)]) != written
    ]


def load_record(path: Path) -> RunRecord:
    """Return the checked contents of a run.json.

    Raises:
        MissingError: There is no such file.
        DataError: It is not JSON, or a key is missing or holds another type.
    """
    with reading_run_file(path):
        content = path.read_bytes()
    try:
        return RunRecord.model_validate_json(content)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc'])) or 'the file'}: {problem['msg']}"
            for problem in error.errors(include_url=False)
        ]
        raise DataError(
            f"{path} is not the record of a run. {'; '.join(problems)}. "
            "Run the experiment again to rewrite it."
        ) from error
