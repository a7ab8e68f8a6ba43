"""Rows of an experiment on texts: sites, examples, tokens, positions and splits, before the run."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from probekit.amounts import counted
from probekit.data.examples import Dataset, Example, Finding, RowExamples, Turns, rows_of
from probekit.data.positions import REPLY, TURNS, IntArray, RowPlan
from probekit.data.table import read_text
from probekit.errors import CheckpointError, ConfigError, DataError, MissingError, UnknownNameError
from probekit.experiment.activations import AnyExperiment, RowsSection
from probekit.experiment.data import DataSection, read_examples
from probekit.experiment.schema import RESIDUAL_STREAM, Experiment
from probekit.model.config import Bos, ModelConfig, SpecialTokens
from probekit.model.families.table import find_config
from probekit.model.passes.inputs import PaddingSide, TokenBatch
from probekit.model.proven.choice import ON_CPU, Proving
from probekit.model.sites.catalogue import check_storable
from probekit.model.sites.sites import SiteConcatenation, SiteSelection
from probekit.model.text.tokenizer import TokenizedText, Tokenizer, batch_of
from probekit.pipeline.setup.design import Probed, Tokens, interleave, plan_positions
from probekit.probes.data import check_numbers


@dataclass(frozen=True)
class TextEncoder:
    """A tokenizer with the settings of the section `tokens`.

    Attributes:
        tokenizer: tokenizer of the model.
        bos: whether beginning-of-text precedes a text; not used for a chat, whose template decides.
        chat: whether texts are written by the model's chat template.
        special_tokens: how special tokens that are written out in a text are read; see `encode`.

    >>> encoder = TextEncoder(Tokenizer.from_pretrained("mini"), bos=True)
    >>> encoder.encode("The keys").offsets.tolist()
    [[0, 0], [0, 3], [3, 8]]
    """

    tokenizer: Tokenizer
    bos: Bos
    chat: bool = False
    special_tokens: SpecialTokens = "text"

    def encode_example(self, example: Example) -> TokenizedText:
        """Return the tokens of the text of an example; those of a generated reply as they are.

        Errors are those of `encode`.
        """
        if not example.reply_ids:
            return self.encode(example.text, example.turns)
        *turns, (start, end, *_) = example.turns
        prompt = self.encode(example.text[: turns[-1].end], tuple(turns))
        reply = self.tokenizer.decode_tokens(example.reply_ids)
        # The last token may have characters of a stop string, which the text does not have.
        of_reply = np.minimum(start + reply.offsets, end)
        ids, offsets = [prompt.ids, reply.ids], [prompt.offsets, of_reply]
        return replace(prompt, ids=np.concatenate(ids), offsets=np.concatenate(offsets))

    def encode(self, text: str, turns: Turns = ()) -> TokenizedText:
        """Return the tokens of a text.

        Args:
            text: any text.
            turns: turns of a conversation, used only for a chat; empty means that all of it is the
                user's.

        Raises:
            MissingError: the model has no chat template.
            DataError: the text cannot be encoded.
            ConfigError: the vocabulary has no beginning-of-text token.
        """
        if self.chat:
            return self.tokenizer.encode_chat(text, turns)
        return self.tokenizer.encode(text, bos=self.bos, special_tokens=self.special_tokens)

    def batch(self, texts: Iterable[tuple[str, Turns]], side: PaddingSide) -> TokenBatch:
        """Return the tokens of texts with their turns, padded on a side."""
        return batch_of([self.encode(text, turns) for text, turns in texts], side)


def text_encoder(experiment: Experiment, tokenizer: Tokenizer) -> TextEncoder:
    """Return the encoder of the texts of an experiment, with what `tokens.bos: auto` means."""
    tokens = experiment.with_bos(tokenizer.has_bos).tokens
    return TextEncoder(tokenizer, tokens.bos, tokens.chat, experiment.data.special_tokens)


@dataclass(frozen=True, eq=False)
class ReadTexts:
    """Texts as a network reads them, and the tokens and sites that are captured of them.

    Attributes:
        dataset: the examples that have rows.
        tokenizer: tokenizer of the model.
        tokens: tokens of each example.
        plans: the tokens that each row reads, for each probed position.
        selections: probed sites in the order of the forward pass; concatenations last.
        config: sizes of the model.
        findings: findings about the texts.
    """

    dataset: Dataset
    tokenizer: Tokenizer
    tokens: Tokens
    plans: tuple[RowPlan, ...]
    selections: tuple[Probed, ...]
    config: ModelConfig
    findings: tuple[Finding, ...] = ()

    @property
    def example(self) -> IntArray:
        """Index of the example of each row, shape (n_rows,); the same at every position."""
        return self.plans[0].example

    @cached_property
    def plan(self) -> RowPlan:
        """The tokens that each captured row reads; the rows are those of all positions."""
        return interleave(self.plans)

    @property
    def groups(self) -> IntArray:
        """Index of the group of each row among the sorted groups, shape (n_rows,)."""
        return self.dataset.group_codes[self.example]

    @property
    def ids(self) -> list[IntArray]:
        """The token ids of each example."""
        return [tokens.ids for tokens in self.tokens]

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites to capture, without duplicates."""
        parts = (part for selection in self.selections for part in selection.parts)
        return tuple(dict.fromkeys(part.site for part in parts))


def network_config(experiment: Experiment, at: Proving = ON_CPU) -> ModelConfig:
    """Return the config of the network of an experiment.

    Raises:
        ConfigError: the network was passed in Python to another process.
        MissingError: the model does not exist.
    """
    model = experiment.model
    if model.in_memory is not None:
        return cast(ModelConfig, model.in_memory.config)
    if model.memory is not None:
        with experiment.at("model", "memory"):
            raise ConfigError(
                f"the network of this run was passed in Python ({model.name}) and is not stored "
                "with it. Pass it: probekit.run(EXPERIMENT, model=NETWORK). To run on the weights "
                f"of {model.source}, remove `memory`."
            )
    with experiment.at("model", "source"):
        return find_config(model.name, model.dtype, at)


@dataclass(frozen=True, eq=False)
class TextReader:
    """Reads examples as the network of an experiment does.

    Attributes:
        experiment: the settings.
        config: sizes of the model.
        encoder: tokenizer of the model, with its settings.
        selections: probed sites.
    """

    experiment: Experiment
    config: ModelConfig
    encoder: TextEncoder
    selections: tuple[Probed, ...]

    @classmethod
    def of(cls, experiment: Experiment, at: Proving = ON_CPU) -> Self:
        """Return the reader of an experiment, whose network is proven on a device if need be.

        Raises:
            MissingError: the model's config or its vocabulary does not exist.
            CheckpointError: the vocabulary has more tokens than the model.
            ConfigError: a site does not exist.
        """
        config = network_config(experiment, at)
        with experiment.at("model", "source"):
            tokenizer = Tokenizer.from_pretrained(experiment.model.source)
            # A special token for images may have an id above the model's; a text has it by name
            # only.
            if (largest := tokenizer.ordinary_ids[-1]) >= config.d_vocab:
                raise CheckpointError(
                    f"The vocabulary of {experiment.model.source} has ids up to {largest}, but the "
                    f"model has {config.d_vocab} tokens: vocabulary and weights do not match."
                )
        encoder = text_encoder(experiment, tokenizer)
        return cls(experiment, config, encoder, find_features(experiment, config))

    def served(self, dataset: Dataset, tokens: Tokens, _plan: RowPlan) -> tuple[Dataset, Tokens]:
        """Return the examples whose activations can be had, and their tokens."""
        return dataset, tokens

    def read(self, dataset: Dataset) -> ReadTexts:
        """Return the examples that have all positions, as the model reads them.

        There is a warning if texts were truncated. Examples without activations are left out.

        Raises:
            DataError: no example is left, a text cannot be encoded or is too long, or has no
                request.
            MissingError: the model has no chat template.
            CheckpointError: the chat template is damaged.
        """
        experiment, context = self.experiment, self.config.n_ctx
        dataset, tokens, plans = plan_positions(experiment, *self.tokenize(dataset, context))
        served = self.served(dataset, tokens, interleave(plans))
        if len(served[0]) < len(dataset):
            dataset, tokens, plans = plan_positions(experiment, *served)
        # The texts as the model reads them, so that the baselines read no more.
        examples_read = list(dataset.examples)
        # Not texts whose tokens leave out a space or accent at their end.
        cut = [number for number, of_text in enumerate(tokens) if of_text.is_cut]
        for number in cut:
            text = examples_read[number].text[: int(tokens[number].offsets[-1, 1])]
            examples_read[number] = replace(examples_read[number], text=text)
        dataset = replace(dataset, examples=tuple(examples_read))
        findings = [*experiment.tokens.findings(dataset), *_special_tokens(dataset, self.encoder)]
        if n := len(cut):
            rows = rows_of([examples_read[number] for number in cut])
            message = (
                f"{n:,} of {counted(len(dataset), 'example')} {'was' if n == 1 else 'were'} "
                f"truncated to the context of {context:,} tokens ({rows}): network and baselines "
                "read only the beginning of the text. Shorten the texts, or set tokens.too_long to "
                "`skip`."
            )
            findings.append(Finding("warning", "truncated", message))
        how = self.encoder.tokenizer, tokens, plans, self.selections, self.config
        return ReadTexts(dataset, *how, tuple(findings))

    def tokenize(self, dataset: Dataset, context: int) -> tuple[Dataset, Tokens]:
        """Return the examples that the rule for long texts keeps, and their first `context` tokens.

        Raises:
            DataError: a text cannot be encoded, or is too long and the rule is `error`.
            MissingError: the model has no chat template.
            CheckpointError: the chat template is damaged.
        """
        experiment = self.experiment
        encoded: dict[Any, TokenizedText] = {}  # each text is encoded once
        keys = [(one.text, one.turns, one.reply_ids) for one in dataset.examples]
        for key, example in zip(keys, dataset.examples, strict=True):
            if key not in encoded:
                try:
                    tokens = self.encoder.encode_example(example)
                except DataError as error:  # concerns this row; the errors below concern all rows
                    raise DataError(f"{example.where}: {error}") from error
                except (MissingError, CheckpointError):
                    with experiment.at("tokens", "chat"):
                        raise
                encoded[key] = tokens
        of_each = [encoded[key] for key in keys]
        long = [index for index, tokens in enumerate(of_each) if len(tokens.ids) > context]
        policy, settings = experiment.tokens.too_long, experiment.capture.generate
        n_new = None if settings is None else settings.max_new_tokens
        reserved = "" if n_new is None else f" without the {n_new:,} of a reply"
        if long and policy == "error":
            is_cut = not experiment.tokens.chat and settings is None
            other = "`truncate` or `skip`" if is_cut else "`skip`"
            raise DataError(
                f"{dataset.examples[long[0]].where}: the text has {len(of_each[long[0]].ids):,} "
                f"tokens, but the context has {context:,}{reserved} "
                f"({counted(len(long), 'text')} too long). Shorten it, or set tokens.too_long to "
                f"{other}."
            )
        if long and policy == "skip":
            note = f"skipped: {counted(len(long), 'example')} longer than the context"
            fitting = [index for index, tokens in enumerate(of_each) if len(tokens.ids) <= context]
            if not fitting:
                raise DataError(f"{note}, so no text is left. Shorten the texts.")
            dataset = replace(dataset.select(fitting), notes=(*dataset.notes, note))
            of_each = [of_each[index] for index in fitting]
        # `read` cuts the texts themselves later, because spans refer to the whole text.
        return dataset, tuple(tokens.first(context) for tokens in of_each)


def read_rows(experiment: Experiment) -> Dataset:
    """Return the examples of an experiment; an error states the key that is at fault.

    Raises:
        MissingError: a data file does not exist.
        ConfigError: a column does not exist.
        DataError: the data cannot be read, or a conversation ends with another turn than the
            position, or the generation, needs.
    """
    data, at = experiment.data, experiment.tokens.position.at
    try:
        dataset = read_examples(data, experiment.value_columns)
    except (ConfigError, MissingError) as error:  # a DataError names the row already
        key = "columns" if isinstance(error, ConfigError) else "file"
        if data.format == "memory":  # without the key `memory`, the whole section is at fault
            key = "memory" if data.memory else ""
        elif data.hub is not None:
            key = "hub"
        if isinstance(error, UnknownNameError):  # a column that does not exist, of any source
            key = "columns"
        with experiment.at("data", *([key] if key else [])):
            raise
    generates = experiment.capture.generate is not None
    if data.columns.messages is not None and (generates or at in (*TURNS, *REPLY)):
        needed = "user" if generates or at == "user_last" else "assistant"
        for example in dataset.examples:
            if example.turns[-1].role != needed:
                reason = "`capture.generate`" if generates else f"`at: {at}`"
                raise DataError(
                    f"{example.where}: {reason} needs conversations that end with the turn of the "
                    f"{needed}. Remove the last message, or the row."
                )
    return experiment.tokens.asked_of(dataset)


def _special_tokens(dataset: Dataset, encoder: TextEncoder) -> list[Finding]:
    """Return a warning if special tokens are written out in texts, and read as characters.

    In a chat they are refused, see `Tokenizer.encode_chat`.
    """
    pattern = re.compile("|".join(map(re.escape, encoder.tokenizer.special)) or "(?!)")
    having = [example for example in dataset.examples if pattern.search(example.text)]
    if encoder.chat or encoder.special_tokens == "tokens" or not having:
        return []
    message = (
        f"{len(having):,} of {counted(len(dataset), 'text')} contain special tokens of the model, "
        f"such as {pattern.findall(having[0].text)[0]} ({rows_of(having)}), which are read as "
        "plain characters. To read them as tokens, as transformers does, set data.special_tokens "
        "to `tokens`."
    )
    return [Finding("warning", "special-tokens", message)]


def find_features(
    experiment: Experiment, config: ModelConfig
) -> tuple[SiteSelection | SiteConcatenation, ...]:
    """Return the selections that an experiment probes: sites in forward order, then concatenations.

    Raises:
        UnknownNameError: a pattern matches no site.
        ConfigError: a site cannot be stored row by row, does not support the requested view, or has
            fewer features than a k-sparse probe selects; or a concatenation has a single site.
    """
    settings = experiment.capture
    with experiment.at("capture", "sites"):
        # Of the default sites, a network may lack some.
        having = config.sites if settings.sites == RESIDUAL_STREAM else settings.sites
        single = config.sites.select([one for one in settings.sites if "*" in one or one in having])
        check_storable(selection.site for selection in single)
    joined: dict[SiteConcatenation, None] = {}  # a set that keeps the order
    for number, patterns in enumerate(settings.concatenate):
        with experiment.at("capture", "concatenate", number):
            parts = config.sites.select(patterns)
            check_storable(part.site for part in parts)
            if len(parts) < 2:
                raise ConfigError(
                    f"a concatenation needs at least two sites, but lists only {parts[0].text}. "
                    "Add a site, or use a glob such as blocks.*.hook_resid_post."
                )
            joined[SiteConcatenation(parts)] = None
    selections: tuple[SiteSelection | SiteConcatenation, ...] = (*single, *joined)
    if settings.view == "normalized":
        for site in dict.fromkeys(part.site for one in selections for part in one.parts):
            axes = config.sites.describe(site).axes
            if axes[-1] != "d_model":
                allowed = [row.name for row in config.sites.rows if row.axes[-1] == "d_model"]
                with experiment.at("capture", "view"):
                    raise ConfigError(
                        "`view: normalized` requires sites whose last axis is d_model, but "
                        f"{site} has the axes {' '.join(axes)}. Allowed: {', '.join(allowed)}. Set "
                        "`view: raw` for other sites."
                    )
    check_sparse(experiment, {one.text: width_of(one, config) for one in selections})
    return selections


def check_sparse(experiment: AnyExperiment, widths: Mapping[str, int]) -> None:
    """Raise ConfigError if a k-sparse probe selects more features than a site has.

    Args:
        experiment: gives the kinds of probe.
        widths: number of features of each site.
    """
    narrowest, width = min(widths.items(), key=lambda item: item[1])
    for number, kind in enumerate(experiment.probe.kinds):
        # A kind without `k` counts as 0, which is never too large.
        wide = [spec for spec in kind.each if spec.options.get("k", 0) > width]
        if wide:
            with experiment.at("probe", "kinds", number):
                raise ConfigError(
                    f"{wide[0].text} selects more features than {narrowest} has ({width}). "
                    f"Set k to {width} or less, or remove that site."
                )


def width_of(selection: Probed, config: ModelConfig) -> int:
    """Return the number of features of a selection."""
    return sum(n_features(part.text, config) for part in selection.parts)


def n_features(name: str, config: ModelConfig) -> int:
    """Return the number of features of a site, or of one head or neuron of it, by its full name."""
    return math.prod(row_shape(name, config))


def row_shape(name: str, config: ModelConfig) -> tuple[int, ...]:
    """Return the shape of one row of a site, or of one head or neuron of it, by its full name.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> row_shape("blocks.3.attn.hook_z", GPT2Config())
    (12, 64)
    >>> row_shape("blocks.3.attn.hook_z[head=2]", GPT2Config())
    (64,)
    """
    axes = [axis for axis in config.sites.axes_of(name) if axis not in ("batch", "pos")]
    return tuple(config.axis_sizes[axis] for axis in axes)


def check_examples(experiment: AnyExperiment, dataset: Dataset) -> None:
    """Check that groups, where the file has them, can be split, and that numbers are numbers.

    Raises:
        DataError: all rows, or without folds all of a side that the file assigns, are in one group;
            or a label is not a number, which the kinds of probe need.
    """
    is_given = isinstance(dataset.examples, RowExamples) and dataset.has_groups
    if is_given or experiment.data.columns.group is not None:
        # Rows that need several groups; for the message, their name and what one group prevents.
        all_rows, side_of_row = np.arange(len(dataset)), dataset.column("split")
        parts = [(all_rows, f"all {len(dataset):,} rows", "cannot be split into train and test")]
        # Folds ignore the sides of the file; other values are reported when the data are split.
        for side in ("train", "test") if experiment.split.folds is None else ():
            of_side = np.flatnonzero(side_of_row == side)
            parts.append((of_side, f"all rows of {side}", "is too few for folds and intervals"))
        for rows, name, reason in parts:
            if len(rows) and np.ptp(dataset.group_codes[rows]) == 0:
                examples = dataset.select(rows).examples
                with experiment.at("data", "columns", "group"):
                    raise DataError(
                        f"{name} are in one group, {examples[0].group!r} ({rows_of(examples)}), "
                        f"which {reason}. Give several groups, or leave out data.columns.group, in "
                        "Python `groups`, if rows are independent."
                    )
    if experiment.reads_numbers:
        with experiment.at("probe", "kinds"):
            check_numbers(dataset.labels, [example.where for example in dataset.examples])


def read_card(data: DataSection | RowsSection) -> str | None:
    """Return the description of the data in Markdown; None if the experiment names no file.

    Raises:
        MissingError: the file does not exist or cannot be read.
        DataError: the file is empty or not UTF-8.
    """
    return None if data.card is None else read_text(Path(data.root) / data.card)
