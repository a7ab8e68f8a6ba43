"""The experiment file as a data model: every key, its type, its default, what it means.

`python -m probekit.experiment.schema FILE` writes the JSON schema that editors check files with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from probekit.errors import ProbekitError
from probekit.provenance import write_atomic

KeyPath = tuple[str | int, ...]

Strings = Annotated[tuple[str, ...], Field(strict=False)]  # a YAML list
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Positives = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(strict=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]

RESIDUAL_STREAM = (
    "blocks.0.hook_resid_pre",
    "blocks.*.hook_resid_post",
    "ln_final.hook_normalized",
)


class Section(BaseModel):
    """Base of all sections: immutable, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Place:
    """Says where a key was written; it is no part of what is asked, so any two are equal.

    Attributes:
        put: returns a text about a key behind the place of the key.
    """

    put: Callable[[KeyPath, str], str] = field(compare=False)


def _put_behind_key(keys: KeyPath, text: str) -> str:
    dotted = ".".join(map(str, keys))
    return text if dotted in text else f"{dotted}: {text}"


def _broken(problem: str, *keys: str) -> PydanticCustomError:
    """Return the error of a rule among several keys; `keys` lead to the one to be looked at."""
    return PydanticCustomError("rule", "{problem}", {"problem": problem, "keys": keys})


class Model(Section):
    """The network whose activations are read."""

    source: str = Field(
        min_length=1,
        examples=["mini"],
        description="`mini`, a name on the hub (`gpt2`, `org/name@revision`), or a folder: a "
        "folder if there is one of that path, found from the folder of the experiment file (with "
        "--set: from the current directory) or else from the current directory; else a name",
    )
    dtype: Literal["float32", "float16", "bfloat16", "float64"] = Field(
        "float32", description="numbers that the forward pass computes with"
    )
    random_weights: bool = Field(
        True, description="also probe the same architecture with untrained weights"
    )
    random_seed: Seed = Field(0, description="draws the untrained weights")


class Columns(Section):
    """Which columns of a CSV, TSV or JSONL file hold what."""

    text: str = Field("text", description="the text")
    label: str = Field(
        "label",
        description="what is to be read from the activations; for CoNLL-U one of UPOS, XPOS, "
        "DEPREL, HEAD, LEMMA, FORM or `FEATS:Name`",
    )
    group: str | None = Field(
        None,
        description="rows of one group never stand on both sides of a split; for CoNLL-U "
        "`sentence` (also for null) or `document`; else null makes every row a group of its own",
    )
    id: str | None = Field(None, description="a unique name of the row; null numbers the rows")
    start: str | None = Field(None, description="first character of the span that is probed")
    end: str | None = Field(None, description="one past the last character of the span")
    split: str | None = Field(None, description="column that says `train` or `test`")

    @model_validator(mode="after")
    def _span_is_whole(self) -> Columns:
        if (self.start is None) != (self.end is None):
            key = "end" if self.start is None else "start"
            raise _broken("`start` and `end` must be given together, or neither", key)
        return self


class Data(Section):
    """The labelled examples."""

    name: Name = Field(description="what the data set is called in results")
    format: Literal["csv", "tsv", "jsonl", "conllu"] = Field(description="of the files")
    root: str = Field(
        ".", description="folder of the files, found from the folder of the experiment file"
    )
    file: str | None = Field(None, description="one file, to be split by `split` or a column")
    train: str | None = Field(None, description="file of the training rows, together with `test`")
    test: str | None = Field(None, description="file of the test rows")
    card: str | None = Field(None, description="Markdown file that describes the data")
    columns: Columns = Columns()

    @model_validator(mode="after")
    def _treebanks_have_columns_of_their_own(self) -> Data:
        if self.format == "conllu":
            for key, info in type(self.columns).model_fields.items():
                is_given = getattr(self.columns, key) != info.default
                if is_given and key not in ("label", "group"):
                    raise _broken(
                        f"`columns.{key}` is for tables; CoNLL-U has its own columns, and only "
                        "`label` and `group` are chosen",
                        "columns",
                        key,
                    )
        return self

    @model_validator(mode="after")
    def _one_or_two_files(self) -> Data:
        two = self.train is not None and self.test is not None
        none_of_two = self.train is None and self.test is None
        if not ((self.file is not None and none_of_two) or (self.file is None and two)):
            raise _broken("give either `file`, or both `train` and `test`")
        if two and self.columns.split is not None:
            raise _broken(
                "`columns.split` goes with `file`; `train` and `test` split already",
                "columns",
                "split",
            )
        return self


class Position(Section):
    """Which tokens of an example are read."""

    at: Literal["last", "first", "mean", "all", "index", "span", "word"] = Field(
        description="last or first token; mean over all; all, one row each; one by index; "
        "mean over the span; the word that the span marks"
    )
    pieces: Literal["first", "last", "mean", "all"] = Field(
        "last", description="which tokens of the word, for `at: word`"
    )
    index: int | None = Field(
        None,
        ge=-1_000_000,
        le=1_000_000,
        description="which token, for `at: index`; negative from end",
    )
    skip_first: bool = Field(
        True,
        description="means, and the scaling of features, leave out position 0, whose norm is some "
        "30 times that of the others",
    )

    @property
    def text(self) -> str:
        """The position in one word, as it stands in results: `last`, `word:last`, `index:3`."""
        detail = {"index": self.index, "word": self.pieces}.get(self.at)
        name = self.at if detail is None else f"{self.at}:{detail}"
        return name if self.skip_first else f"{name}+first"

    @model_validator(mode="after")
    def _details_belong_to_at(self) -> Position:
        if (self.at == "index") != (self.index is not None):
            key = "at" if self.index is None else "index"
            raise _broken("`index` must be given for `at: index`, and only then", key)
        # The default may stand there without use: a file written back has every key.
        if self.at != "word" and self.pieces != type(self).model_fields["pieces"].default:
            raise _broken(
                f"`pieces: {self.pieces}` goes with `at: word`, not with `at: {self.at}`", "pieces"
            )
        return self


class Tokens(Section):
    """How text becomes tokens."""

    bos: bool = Field(description="whether <|endoftext|> is put before each text")
    too_long: Literal["error", "truncate", "skip"] = Field(
        "error", description="what to do with texts that exceed the context"
    )
    position: Position


class Split(Section):
    """How rows are held out; share and seed serve where the data do not say it themselves."""

    test: float = Field(0.25, gt=0, lt=1, description="share of the rows")
    seed: Seed = Field(0, description="draws the groups that are held out")
    drop_repeated: bool = Field(
        False, description="leave out test rows whose text and span stand in the training rows too"
    )
    word_disjoint: bool = Field(
        False,
        description="leave out rows until no probed word stands on both sides, whatever its case",
    )


class Capture(Section):
    """Which activations are kept."""

    sites: Strings = Field(
        RESIDUAL_STREAM,
        min_length=1,
        description="names or globs, with [head=3] or [neuron=17] behind them if wanted",
    )
    dtype: Literal["float32", "float16"] = Field("float32", description="numbers on disk")


class Probe(Section):
    """The classifiers and the statistics."""

    C: Positives = Field(
        (1e-4, 1e-3, 1e-2, 1e-1, 1.0),
        min_length=1,
        description="inverse regularisation strengths to choose from by inner cross-validation",
    )
    folds: int = Field(5, ge=2, le=100, description="of the inner cross-validation")
    control_draws: int = Field(
        3,
        ge=0,
        le=100,
        description="independent draws of the control labels; 0 leaves the control out",
    )
    bootstrap: int = Field(
        1000, ge=100, le=100_000, description="resamples of the test groups per interval"
    )
    max_iter: int = Field(
        2000, ge=1, le=1_000_000, description="iterations after which a fit is given up"
    )
    fit_rows: int | None = Field(
        None,
        ge=2,
        lt=2**63,
        description="upper bound on training rows per fit, drawn by whole groups",
    )
    seed: Seed = Field(0, description="of folds, control labels and resamples")


class Attention(Section):
    """Texts whose attention patterns the report shows."""

    texts: Strings = Field((), description="each drawn as a grid of layers and heads")


class Experiment(Section):
    """One experiment: a question, a model, labelled data, and what is read where.

    >>> from probekit.experiment.loader import load_experiment
    >>> load_experiment("experiments/quickstart.yaml").model.source
    'mini'
    """

    name: Name = Field(description="the folder of its runs is called so")
    question: str | None = Field(None, description="what the curve is to answer")
    model: Model
    data: Data
    tokens: Tokens
    split: Split = Split()
    capture: Capture = Capture()
    probe: Probe = Probe()
    attention: Attention = Attention()

    _place: Place = PrivateAttr(Place(_put_behind_key))

    def model_post_init(self, context: Any, /) -> None:
        """Keep where the keys were written, if the context of the validation is a `Place`."""
        if isinstance(context, Place):
            self._place = context

    @contextmanager
    def at(self, *keys: str | int) -> Iterator[None]:
        """Put the place of a key (file and line, or `--set`) before what is raised on its account.

        >>> from probekit.experiment.loader import load_experiment
        >>> experiment = load_experiment("experiments/quickstart.yaml")
        >>> with experiment.at("model", "source"):
        ...     raise ProbekitError("No such model.")
        Traceback (most recent call last):
        probekit.errors.ProbekitError: experiments/quickstart.yaml, line 6: No such model.
        """
        try:
            yield
        except ProbekitError as error:
            error.args = (self._place.put(keys, str(error)),)
            raise

    @model_validator(mode="after")
    def _spans_are_there_where_needed(self) -> Experiment:
        has_spans = self.data.format == "conllu" or self.data.columns.start is not None
        if self.tokens.position.at in ("span", "word") and not has_spans:
            raise _broken(
                f"tokens.position.at is {self.tokens.position.at!r}, but data.columns has no "
                "`start` and `end`",
                "tokens",
                "position",
                "at",
            )
        return self


def json_schema() -> str:
    """Return the JSON schema of an experiment file, as committed beside the experiments."""
    schema: dict[str, Any] = Experiment.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "probekit experiment"
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    write_atomic(Path(sys.argv[1]), json_schema())
