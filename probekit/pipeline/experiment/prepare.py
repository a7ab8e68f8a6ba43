"""Rows of an experiment: reads, tokenizes and splits the examples and resolves positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from probekit.amounts import counted
from probekit.data.examples import Dataset, Example, Turns
from probekit.data.findings import Finding, rows_of
from probekit.data.positions import IntArray, RowPlan
from probekit.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    MissingError,
    UnknownNameError,
)
from probekit.experiment.activations import RowsSection
from probekit.experiment.data import DataSection, read_examples
from probekit.experiment.model import TokensSection
from probekit.experiment.schema import Experiment
from probekit.model.config import ModelConfig
from probekit.model.families.table import find_config
from probekit.model.text.tokenizer import TokenizedText, Tokenizer
from probekit.pipeline.experiment.encoding import TextEncoder
from probekit.pipeline.experiment.features import find_features
from probekit.pipeline.experiment.holdout import hold_out
from probekit.pipeline.experiment.prepared import PreparedRows
from probekit.pipeline.experiment.rows import (
    interleave,
    plan_positions,
    position_rows,
)
from probekit.probes.data import check_numbers

_Said = tuple[str, Turns]  # a text and its turns


@dataclass(frozen=True)
class Prepared(PreparedRows):
    """Examples, tokens, rows and splits of an experiment on texts, before the model runs.

    Attributes:
        tokenizer: tokenizer of the model.
        tokens: tokens of each example.
        plan: the tokens that each captured row reads; the rows are those of all positions.
        config: sizes of the model.
        truncated: the examples whose text was truncated to what the model reads.
    """

    tokenizer: Tokenizer
    tokens: tuple[TokenizedText, ...]
    plan: RowPlan
    config: ModelConfig
    truncated: tuple[Example, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """A warning if texts were truncated."""
        if not self.truncated:
            return ()
        n = len(self.truncated)
        message = (
            f"{n:,} of {counted(len(self.dataset), 'example')} {'was' if n == 1 else 'were'} "
            f"truncated to the context of {self.config.n_ctx:,} tokens "
            f"({rows_of(self.truncated)}): network and baselines read only the beginning of the "
            "text. Shorten the texts, or set tokens.too_long to `skip`."
        )
        return (Finding("warning", "truncated", message),)

    @property
    def axis_sizes(self) -> Mapping[str, int]:
        """Sizes of the axes of the model's sites."""
        return self.config.axis_sizes

    @property
    def texts(self) -> npt.NDArray[np.object_]:
        """The text of each row, shape (n_rows,)."""
        texts = np.array([example.text for example in self.dataset.examples], dtype=object)
        by_row: npt.NDArray[np.object_] = texts[self.example]
        return by_row

    @property
    def text_indices(self) -> IntArray:
        """Index of the text or sentence of each row, from 0, shape (n_rows,).

        Each word of a sentence is an example of its own; their ids share the part before the colon.
        """
        names = [
            e.id if e.span is None else f"{e.id.rpartition(':')[0]}\0{e.text}"
            for e in self.dataset.examples
        ]
        _, number = np.unique(np.array(names, dtype=str), return_inverse=True)
        by_row: IntArray = number[self.example]
        return by_row

    @property
    def ids(self) -> list[IntArray]:
        """The token ids of each example."""
        return [tokens.ids for tokens in self.tokens]

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites to capture, without duplicates."""
        parts = (part for selection in self.selections for part in selection.parts)
        return tuple(dict.fromkeys(part.site for part in parts))


def prepare(experiment: Experiment) -> Prepared:
    """Return the rows of an experiment, without running the model.

    Raises:
        MissingError: a data file, the model's config or its vocabulary does not exist.
        ConfigError: a site or a column does not exist.
        DataError: the data cannot be read, tokenized, aligned or split.
    """
    config, tokenizer = _find_model(experiment)
    selections = find_features(experiment, config)
    dataset = _read(experiment)
    n_read = len(dataset)
    encoder = text_encoder(experiment, tokenizer)
    dataset, tokens = _tokenize(dataset, encoder, experiment, config.n_ctx)
    _check_attention_texts(experiment, encoder, config.n_ctx)
    dataset, tokens, plans = plan_positions(dataset, tokens, experiment)
    dataset, truncated = _as_read(dataset, tokens)
    positions = position_rows(experiment, dataset, tokenizer, tokens, plans)
    # All offsets of a sweep have the same examples.
    plan, words = plans[0], positions[0].types
    held_out = hold_out(dataset, plan, words, experiment)
    dataset = held_out.dataset
    return Prepared(
        dataset=dataset,
        n_read=n_read,
        examples=held_out.examples,
        tokenizer=tokenizer,
        tokens=tokens,
        plan=interleave(plans),
        config=config,
        truncated=truncated,
        selections=selections,
        positions=positions,
        example=plan.example,
        labels=dataset.labels[plan.example].astype(str),
        groups=dataset.groups[plan.example].astype(str),
        splits=held_out.rows,
    )


def _find_model(experiment: Experiment) -> tuple[ModelConfig, Tokenizer]:
    with experiment.at("model", "source"):
        config = find_config(experiment.model.source)
        tokenizer = Tokenizer.from_pretrained(experiment.model.source)
        if tokenizer.n_ids > config.d_vocab:
            raise CheckpointError(
                f"The vocabulary of {experiment.model.source} has ids up to "
                f"{tokenizer.n_ids - 1}, but the model has {config.d_vocab} tokens: vocabulary "
                "and weights do not match."
            )
    return config, tokenizer


def _read(experiment: Experiment) -> Dataset:
    dataset = _read_data(experiment)
    if experiment.data.columns.group is not None:
        with experiment.at("data", "columns", "group"):
            require_groups(dataset, has_folds=experiment.split.folds is not None)
    # An invalid mix of kinds raises an error later that names them.
    if all(kind.specs[0].reads == "numbers" for kind in experiment.probe.kinds):
        with experiment.at("probe", "kinds"):
            check_numbers(dataset.labels, [example.where for example in dataset.examples])
    return dataset


def require_groups(dataset: Dataset, *, has_folds: bool) -> None:
    """Raise DataError if all rows, or all of a side that the file assigns, are in one group."""
    n_rows = f"all {len(dataset):,} rows"
    sides = {(n_rows, "cannot be split into train and test"): list(dataset.examples)}
    for example in () if has_folds else dataset.examples:
        if example.split in ("train", "test"):  # the split reports other values
            reason = "is too few for folds and intervals"
            sides.setdefault((f"all rows of {example.split}", reason), []).append(example)
    for (rows, reason), examples in sides.items():
        if len({example.group for example in examples}) == 1:
            raise DataError(
                f"{rows} are in one group, {examples[0].group!r} ({rows_of(examples)}), which "
                f"{reason}. Name a column with several groups, or remove data.columns.group if "
                "rows are independent."
            )


def _read_data(experiment: Experiment) -> Dataset:
    try:
        return read_examples(experiment.data, experiment.answer_columns)
    except (ConfigError, MissingError) as error:  # a DataError names the row already
        with experiment.at("data", *_key_of(error, experiment.data)):
            raise


def _key_of(error: Exception, data: DataSection) -> tuple[str, ...]:
    """Return the key of the section `data` whose value caused an error."""
    if isinstance(error, UnknownNameError):
        return ("columns",)
    if data.format == "memory":
        return ("memory",) if data.memory else ()
    if data.hub is not None:
        return ("hub",)
    return ("columns",) if isinstance(error, ConfigError) else ("file",)


def text_encoder(experiment: Experiment, tokenizer: Tokenizer) -> TextEncoder:
    """Return the encoder of the texts of an experiment."""
    return TextEncoder(tokenizer, experiment.tokens.bos, experiment.tokens.chat)


def _check_attention_texts(experiment: Experiment, encoder: TextEncoder, context: int) -> None:
    """Raise ConfigError if a text for the attention figure is empty or exceeds the context."""
    for number, text in enumerate(experiment.attention.texts):
        n_tokens = len(encoder.encode(text).ids)
        if not 0 < n_tokens <= context:
            with experiment.at("attention", "texts", number):
                raise ConfigError(f"{text[:60]!r} has {n_tokens} tokens; allowed: 1 to {context}.")


def read_card(data: DataSection | RowsSection) -> str | None:
    """Return the description of the data in Markdown; None if the experiment names no file.

    Raises:
        MissingError: the file does not exist.
        ConfigError: the file cannot be read as text.
    """
    if data.card is None:
        return None
    path = Path(data.root) / data.card
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise MissingError(f"data.card: file {path.absolute()} does not exist.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"data.card: {path} cannot be read as text: {error}.") from error


def _tokenize(
    dataset: Dataset, encoder: TextEncoder, experiment: Experiment, context: int
) -> tuple[Dataset, tuple[TokenizedText, ...]]:
    """Return the examples that fit the context and their tokens; encode each text once."""
    encoded: dict[_Said, TokenizedText] = {}
    for example in dataset.examples:
        if _said(example) not in encoded:
            with _location(experiment, example):
                encoded[_said(example)] = encoder.encode(example.text, example.turns)
    long = {said for said, tokens in encoded.items() if len(tokens.ids) > context}
    if long:
        dataset = _apply_policy(dataset, encoded, long, experiment.tokens, context)
    cut = {said: tokens.first(context) for said, tokens in encoded.items()}
    return dataset, tuple(cut[_said(example)] for example in dataset.examples)


def _said(example: Example) -> _Said:
    return example.text, example.turns


@contextmanager
def _location(experiment: Experiment, example: Example) -> Iterator[None]:
    """Put the key before errors about the template, and the row before those about its text."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{example.where}: {error}") from error
    except (MissingError, CheckpointError):
        with experiment.at("tokens", "chat"):
            raise


def _apply_policy(
    dataset: Dataset,
    encoded: Mapping[_Said, TokenizedText],
    long: Set[_Said],
    tokens: TokensSection,
    context: int,
) -> Dataset:
    """Apply the policy for texts longer than the context; add a note to the data."""
    too_long, policy = [e for e in dataset.examples if _said(e) in long], tokens.too_long
    if policy == "error":
        first = too_long[0]
        other = "`skip`" if tokens.chat else "`truncate` or `skip`"
        raise DataError(
            f"{first.where}: the text has {len(encoded[_said(first)].ids):,} tokens, but the "
            f"context has {context:,} ({counted(len(too_long), 'text')} too long). Shorten it, or "
            f"set tokens.too_long to {other}."
        )
    if policy == "truncate":  # by `_as_read`, because spans refer to the whole text
        return dataset
    note = f"skipped: {counted(len(too_long), 'example')} longer than the context"
    keep = [n for n, e in enumerate(dataset.examples) if _said(e) not in long]
    return replace(dataset.select(keep), notes=(*dataset.notes, note))


def _as_read(
    dataset: Dataset, tokens: Sequence[TokenizedText]
) -> tuple[Dataset, tuple[Example, ...]]:
    """Return the data with the texts that the model reads, and the examples that were truncated.

    Baselines then read the same text as the model.
    """
    ends = [int(t.offsets[-1, 1]) if len(t.offsets) else 0 for t in tokens]
    pairs = list(zip(dataset.examples, ends, strict=True))
    read = tuple(e if end >= len(e.text) else replace(e, text=e.text[:end]) for e, end in pairs)
    truncated = tuple(e for e, end in pairs if end < len(e.text))
    return replace(dataset, examples=read), truncated
