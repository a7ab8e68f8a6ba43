"""Rows of an experiment on texts: sites, examples, tokens, positions and splits, before the run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np

from probekit.activations.replies import Replies
from probekit.activations.requests import Requests, read_requests
from probekit.amounts import counted
from probekit.data.examples import Dataset, Example, Finding, RowExamples, Turns, rows_of
from probekit.data.labels import appearance, check_names, folded
from probekit.data.positions import REPLY, TURNS, IntArray, RowPlan
from probekit.data.text_files import read_text
from probekit.data.words import cue_pattern, dropped_ranges, without
from probekit.errors import CheckpointError, ConfigError, DataError, MissingError, UnknownNameError
from probekit.experiment.activations import AnyExperiment, RowsSection
from probekit.experiment.data import DataSection, read_examples, read_negatives
from probekit.experiment.schema import Experiment, LeakageSection, MonitorSection
from probekit.model.config import Bos, ModelConfig, SpecialTokens
from probekit.model.families.table import find_config
from probekit.model.passes.inputs import PaddingSide, TokenBatch
from probekit.model.sites.catalogue import check_storable
from probekit.model.sites.sites import SiteConcatenation, SiteSelection
from probekit.model.text.tokenizer import TokenizedText, Tokenizer, batch_of
from probekit.pipeline.experiment.replies import replied
from probekit.pipeline.experiment.rows import (
    Objects,
    Probed,
    Rows,
    hold_out,
    interleave,
    plan_positions,
    position_rows,
)
from probekit.probes.data import check_numbers
from probekit.probes.score.monitor import check_groups


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
        offsets = np.minimum(start + reply.offsets, end)
        return replace(
            prompt,
            ids=np.concatenate([prompt.ids, reply.ids]),
            offsets=np.concatenate([prompt.offsets, offsets]),
        )

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


@dataclass(frozen=True, eq=False, kw_only=True)
class TextRows(Rows):
    """Rows of an experiment on texts, with the tokens that they are captured from.

    Attributes:
        tokenizer: tokenizer of the model.
        tokens: tokens of each example.
        plan: the tokens that each captured row reads; the rows are those of all positions.
        config: sizes of the model.
        replies: replies that the network has generated, with their rows; None without them.
        requests: requests of a serving engine that serve the texts; None if the model reads them.
    """

    tokenizer: Tokenizer
    tokens: tuple[TokenizedText, ...]
    plan: RowPlan
    config: ModelConfig
    replies: Replies | None = None
    requests: Requests | None = None
    negatives: TextRows | None = None
    dropped: DroppedRows | None = None

    @property
    def texts(self) -> Objects:
        """The text of each row, shape (n_rows,)."""
        texts = np.array([example.text for example in self.dataset.examples], dtype=object)
        return cast(Objects, texts[self.example])

    @property
    def text_indices(self) -> IntArray:
        """Index of the text or sentence of each row, from 0, shape (n_rows,)."""

        def name_of(example: Example) -> str:
            """Return a name that all words of a sentence share; for a whole text, its id."""
            if example.span is None:
                return example.id
            # Each word of a sentence is an example of its own; their ids share the part before the
            # colon. Ids of other files may have no colon: the text then identifies the sentence.
            return f"{example.id.rpartition(':')[0]}\0{example.text}"

        names = np.array([name_of(example) for example in self.dataset.examples], dtype=str)
        _, index_of_example = np.unique(names, return_inverse=True)
        return index_of_example[self.example]

    def token_read(self, row: int, position: int) -> tuple[int, int] | None:
        """Return the characters of the only token that a row reads; None if it reads a mean."""
        number = row * len(self.positions) + position  # see `interleave`
        first, stop = self.plan.offsets[number : number + 2]
        if stop - first > 1:
            return None
        characters = self.tokens[self.example[row]].offsets[self.plan.positions[first]]
        return int(characters[0]), int(characters[1])

    @property
    def origin(self) -> str:
        """Where the rows of the probed network come from; see `Identity`."""
        if self.requests is not None:
            return f"requests {self.requests.digest}"
        return "" if self.replies is None else f"replies {self.replies.key}"

    @property
    def ids(self) -> list[IntArray]:
        """The token ids of each example."""
        return [tokens.ids for tokens in self.tokens]

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites to capture, without duplicates."""
        parts = (part for selection in self.selections for part in selection.parts)
        return tuple(dict.fromkeys(part.site for part in parts))


@dataclass(frozen=True, eq=False, kw_only=True)
class DroppedRows(TextRows):
    """Rows of test texts without their cues, then without other words, draw by draw.

    Attributes:
        changed: indices of these texts among the test rows, shape (n_changed,); the rows are those
            of all of them without cues, then of all of them in each draw.
        left_out: indices of the test rows that are not compared, shape (n_left_out,); see
            `dropped_ranges`.
    """

    changed: IntArray
    left_out: IntArray


def network_config(experiment: Experiment) -> ModelConfig:
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
        return find_config(model.name)


Generate = Callable[[Tokenizer, Sequence[IntArray], Sequence[str]], Replies]


def prepare(experiment: Experiment, generate: Generate | None = None) -> TextRows:
    """Return the rows of an experiment, without running the model, unless it generates replies.

    Args:
        experiment: the experiment.
        generate: returns the replies to the ids of prompts, with their rows at some sites; None
            for an error if the experiment needs replies.

    Raises:
        MissingError: a data file, the model's config or its vocabulary does not exist, or there are
            no requests.
        CheckpointError: the vocabulary has more tokens than the model.
        ConfigError: a site or a column does not exist, a text of the section `attention` has no
            token or too many, or replies are needed and not given.
        DataError: the data cannot be read, tokenized, aligned or split, or a text has no request.
    """
    config = network_config(experiment)
    with experiment.at("model", "source"):
        tokenizer = Tokenizer.from_pretrained(experiment.model.source)
        # A special token for images may have an id above the model's; a text has it by name only.
        if (largest := tokenizer.ordinary_ids[-1]) >= config.d_vocab:
            raise CheckpointError(
                f"The vocabulary of {experiment.model.source} has ids up to {largest}, but the "
                f"model has {config.d_vocab} tokens: vocabulary and weights do not match."
            )
    selections = find_features(experiment, config)
    dataset = _read(experiment)
    encoder, replies, lines = text_encoder(experiment, tokenizer), None, ""
    of_replies: tuple[Finding, ...] = ()
    if experiment.capture.generate is not None:
        dataset, replies, lines, of_replies = _with_replies(
            experiment, dataset, encoder, config, selections, generate
        )
    check_examples(experiment, dataset)
    n_read = len(dataset)
    requests = None
    if experiment.capture.requests is not None:
        with experiment.at("capture", "requests"):
            requests = read_requests(Path(experiment.capture.requests.folder), config.d_model)
    dataset, tokens, plans, findings = _plan(experiment, dataset, encoder, config.n_ctx, requests)
    findings = [*of_replies, *findings, *_doubts(experiment, tokenizer)]
    for number, text in enumerate(experiment.attention.texts):
        n_tokens = len(encoder.encode(text).ids)
        if not 0 < n_tokens <= config.n_ctx:
            with experiment.at("attention", "texts", number):
                raise ConfigError(
                    f"{text[:60]!r} has {n_tokens} tokens; allowed: 1 to {config.n_ctx}."
                )
    positions = tuple(
        position_rows(position, plan, dataset, tokens, tokenizer)
        for position, plan in zip(experiment.tokens.positions, plans, strict=True)
    )
    example_of_row = plans[0].example  # all offsets of a sweep have the same examples
    types = positions[0].types
    dataset, examples, splits, within = hold_out(experiment, dataset, example_of_row, types)
    rows = TextRows(
        dataset=dataset,
        n_read=n_read,
        example=example_of_row,
        examples=examples,
        splits=splits,
        within=within,
        selections=selections,
        positions=positions,
        findings=(*findings, *check_names("source", dataset, experiment.split.leave_out)),
        axis_sizes=config.axis_sizes,
        tokenizer=tokenizer,
        tokens=tokens,
        plan=interleave(plans),
        config=config,
        replies=replies,
        lines=lines,
    )
    if requests is not None:
        requests = requests.choose(rows.ids, rows.plan)
        found = Finding("info", "requests", requests.described)
        rows = replace(rows, requests=requests, findings=(*rows.findings, found))
    if experiment.monitor is not None:
        with experiment.at("monitor"):
            negatives = _negatives(experiment, experiment.monitor, rows, encoder)
        rows = replace(rows, negatives=negatives, findings=(*rows.findings, *negatives.findings))
    if experiment.leakage is not None:
        with experiment.at("leakage", "drop"):
            dropped = _dropped(experiment, experiment.leakage, rows, encoder)
        rows = replace(rows, dropped=dropped, findings=(*rows.findings, *dropped.findings))
    return rows


def _doubts(experiment: Experiment, tokenizer: Tokenizer) -> Iterator[Finding]:
    """Yield a warning if the choice of beginning-of-text differs from the tokenizer's own."""
    settings = experiment.tokens
    if not settings.chat and (doubt := tokenizer.doubt_of_bos(settings.bos)):
        yield Finding("warning", "other-bos", doubt)


def _read(experiment: Experiment) -> Dataset:
    """Return the examples of an experiment; an error states the key that is at fault.

    Raises:
        MissingError: a data file does not exist.
        ConfigError: a column does not exist.
        DataError: the data cannot be read, or a conversation ends with another turn than needed.
    """
    data = experiment.data
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
    if data.columns.messages is not None:
        _check_last_turns(experiment, dataset)
    return dataset


def _check_last_turns(experiment: Experiment, conversations: Dataset) -> None:
    """Check that conversations end with the turn that the position, or the generation, needs.

    Raises:
        DataError: one of them does not; the message names its row.
    """
    at, generates = experiment.tokens.position.at, experiment.capture.generate is not None
    needed = "user" if generates or at == "user_last" else "assistant"
    if not generates and at not in (*TURNS, *REPLY):
        return
    for example in conversations.examples:
        if example.turns[-1].role != needed:
            reason = "`capture.generate`" if generates else f"`at: {at}`"
            raise DataError(
                f"{example.where}: {reason} needs conversations that end with the turn of the "
                f"{needed}. Remove the last message, or the row."
            )


def _with_replies(
    experiment: Experiment,
    prompts: Dataset,
    encoder: TextEncoder,
    config: ModelConfig,
    selections: Sequence[Probed],
    generate: Generate | None,
) -> tuple[Dataset, Replies, str, tuple[Finding, ...]]:
    """Return the examples of all replies, the replies, their lines of JSON, and findings on them.

    Raises:
        ConfigError: `generate` is missing, or the new tokens fill the context.
        DataError: the column of the rule is missing, a prompt cannot be encoded or is too long, or
            the replies cannot be probed.
    """
    settings = experiment.capture.generate
    with experiment.at("capture", "generate"):
        if generate is None or settings is None:
            raise ConfigError(
                "this command does not generate replies. Use `probekit run`, without workers."
            )
        if settings.max_new_tokens >= config.n_ctx:
            raise ConfigError(
                f"max_new_tokens is {settings.max_new_tokens:,}, and the context has "
                f"{config.n_ctx:,} tokens, prompt included. Set fewer."
            )
    rule = experiment.data.label_of_reply
    column = None if rule is None else rule.equals
    lacking = [one for one in prompts.examples if column and column not in dict(one.values)]
    if lacking:  # before a generation that may take hours
        with experiment.at("data", "label_of_reply", "equals"):
            raise DataError(f"no column {column!r} ({rows_of(lacking)}). Name one of the data.")
    room = config.n_ctx - settings.max_new_tokens
    prompts, tokens = _tokenize(experiment, prompts, encoder, room)
    ids = [of_prompt.ids for of_prompt in tokens]
    empty = [
        one for one, of_prompt in zip(prompts.examples, ids, strict=True) if not len(of_prompt)
    ]
    if empty:
        raise DataError(f"{empty[0].where}: the prompt has no token. Set tokens.bos to true.")
    sites = dict.fromkeys(part.site for selection in selections for part in selection.parts)
    replies = generate(encoder.tokenizer, ids, list(sites))
    dataset, lines, findings = replied(experiment, prompts, [replies.to(one) for one in ids])
    return dataset, replies, lines, findings


def _negatives(
    experiment: Experiment, monitor: MonitorSection, rows: TextRows, encoder: TextEncoder
) -> TextRows:
    """Return the rows of the monitor's negatives, without texts and groups that are in the data.

    Of texts that look the same the first one is used. The findings are about the negatives alone.

    Raises:
        MissingError: the file does not exist.
        ConfigError: a column does not exist, or no class is detected.
        DataError: the file cannot be read, tokenized or aligned, or has too few groups for a rate.
    """
    if experiment.data.positive is None and len(set(rows.dataset.labels)) != 2:
        raise ConfigError("a monitor detects one of two classes; name it in `data.positive`.")
    dataset = read_negatives(experiment.data, monitor.negatives, monitor.format)
    n_read, how = len(dataset), (encoder, rows.config.n_ctx, rows.requests)
    dataset, tokens, plans, findings = _plan(experiment, dataset, *how)
    # A text that looks like an earlier one is not new, nor is a known group.
    known = {appearance(example.text) for example in rows.dataset.examples}
    has_groups = experiment.data.columns.group is not None
    known_groups, new = set(map(folded, rows.dataset.groups)) if has_groups else set(), []
    for index, one in enumerate(dataset.examples):
        text = appearance(one.text)
        if text not in known and folded(one.group) not in known_groups:
            new.append(index)
            known.add(text)
    if not new:
        raise DataError(f"all texts or groups of {monitor.negatives} are among the data.")
    n_known = len(dataset) - len(new)
    if n_known:
        dataset, tokens, plans, findings = _plan(experiment, dataset.select(new), *how)
    if len(dataset) < n_read:
        message = (
            f"{n_read - len(dataset):,} of {counted(n_read, 'negative')} are not used: {n_known:,} "
            "because their text or group is among the data, or their text occurs before."
        )
        findings.append(Finding("info", "negatives", " ".join([message, *dataset.notes])))
    findings.extend(check_names("group", dataset))
    for fpr in monitor.fpr:
        check_groups(dataset.group_codes[plans[0].example], fpr)
    return _further(rows, dataset, tokens, plans, findings)


def _dropped(
    experiment: Experiment, leakage: LeakageSection, rows: TextRows, encoder: TextEncoder
) -> DroppedRows:
    """Return the rows of the test texts with cues; the finding has their number.

    Raises:
        MissingError: the file of cues does not exist.
        DataError: it has no words, or none of them is in a test text that can be compared.
    """
    of_spans = leakage.drop == "spans"
    pattern = None if of_spans else cue_pattern(Path(experiment.data.root) / leakage.drop)
    at, random = experiment.tokens.position.at, np.random.default_rng(experiment.probe.seed)
    test = rows.splits[0].test
    with_cues, texts = list[int](), dict[int, list[Example]]()  # all variants of each text
    for index, row in enumerate(test):
        number = rows.example[row]
        example = rows.dataset.examples[number]
        span = example.span if at in ("span", "word") else None
        if pattern is None:
            cues = [] if example.span is None else [example.span]
        else:
            cues = [match.span() for match in pattern.finditer(example.text)]
        if not cues:
            continue
        with_cues.append(index)
        characters = rows.tokens[number].offsets[_tokens_read(rows, row)]
        ends = [*characters.flatten().tolist(), *(span or ())]
        read = None if at == "mean" else (min(ends), max(ends))
        variants = list[Example]()
        for ranges in dropped_ranges(example.text, cues, read, leakage.draws, random):
            text, moved = without(example.text, ranges, span)
            variants.append(replace(example, text=text, span=moved))
        if variants:
            texts[index] = variants

    def planned() -> TextRows:
        """Return the rows of all texts without cues, then of all texts in each draw."""
        examples = tuple(chain.from_iterable(zip(*texts.values(), strict=True)))
        dataset, tokens, plans, _ = _plan(
            experiment, replace(rows.dataset, examples=examples), encoder, rows.config.n_ctx
        )
        assert len(plans[0].example) == len(examples), "a shorter text has a row, too"
        return _further(rows, dataset, tokens, plans, ())

    further, n_texts = planned() if texts else rows, len(texts)
    for place, index in enumerate([*texts] if at != "mean" else []):
        of_variants = range(place, n_texts * (1 + leakage.draws), n_texts)
        read_ids = [_ids_read(further, one) for one in of_variants]
        if any(ids != _ids_read(rows, test[index]) for ids in read_ids):
            del texts[index]
    left_out = [index for index in with_cues if index not in texts]
    message = (
        f"{len(texts):,} of {counted(len(test), 'test text')} have cues that can be dropped; "
        f"{len(left_out):,} more are not compared, because a cue is at the probed token, the token "
        "would change, or there are too few other words."
    )
    if not texts:
        raise DataError(f"{message} Give other cues, or probe another position.")
    further = further if len(texts) == n_texts else planned()
    return DroppedRows(
        **vars(replace(further, findings=(Finding("info", "leakage", message),))),
        changed=np.array([*texts], dtype=np.int64),
        left_out=np.array(left_out, dtype=np.int64),
    )


def _tokens_read(rows: TextRows, row: int) -> IntArray:
    """Return the numbers of the tokens that a row reads, at all positions together."""
    # The row of each position reads a range of tokens; see `interleave`.
    n = (len(rows.plan.offsets) - 1) // len(rows.example)
    first, stop = rows.plan.offsets[[row * n, (row + 1) * n]]
    return rows.plan.positions[first:stop]


def _ids_read(rows: TextRows, row: int) -> list[int]:
    """Return the ids of the tokens that a row reads."""
    ids = np.asarray(rows.tokens[rows.example[row]].ids)
    found: list[int] = ids[_tokens_read(rows, row)].tolist()
    return found


def _further(
    rows: TextRows,
    dataset: Dataset,
    tokens: tuple[TokenizedText, ...],
    plans: Sequence[RowPlan],
    findings: Sequence[Finding],
) -> TextRows:
    """Return rows of further examples at the same sites, without labels and splits."""
    ids, plan = [of_text.ids for of_text in tokens], interleave(plans)
    return replace(
        rows,
        dataset=dataset,
        n_read=len(dataset),
        example=plans[0].example,
        examples=(),
        splits=(),
        positions=(),
        findings=tuple(findings),
        tokens=tokens,
        plan=plan,
        requests=None if rows.requests is None else rows.requests.choose(ids, plan),
        negatives=None,
    )


def _plan(
    experiment: Experiment,
    dataset: Dataset,
    encoder: TextEncoder,
    context: int,
    requests: Requests | None = None,
) -> tuple[Dataset, tuple[TokenizedText, ...], tuple[RowPlan, ...], list[Finding]]:
    """Return the examples that have all positions, as the model reads them, and their tokens.

    Also a plan per position, and a warning if texts were truncated. Examples without a request are
    left out, if the experiment reads requests and skips them.

    Raises:
        DataError: no example is left, a text cannot be encoded or is too long, or has no request.
        MissingError: the model has no chat template.
        CheckpointError: the chat template is damaged.
    """
    dataset, tokens, plans = plan_positions(
        experiment, *_tokenize(experiment, dataset, encoder, context)
    )
    if requests is not None:
        served = _served(experiment, requests, dataset, tokens, interleave(plans))
        if len(served[0]) < len(dataset):
            dataset, tokens, plans = plan_positions(experiment, *served)
    # The texts as the model reads them, so that the baselines read no more.
    examples_read, truncated = [], []
    for example, of_text in zip(dataset.examples, tokens, strict=True):
        if of_text.is_cut:  # not where its tokens leave out a space or accent at its end
            truncated.append(example)
            text = example.text[: int(of_text.offsets[-1, 1])]
            examples_read.append(replace(example, text=text))
        else:
            examples_read.append(example)
    dataset = replace(dataset, examples=tuple(examples_read))
    findings = _special_tokens(dataset, encoder)
    if not truncated:
        return dataset, tokens, plans, findings
    n = len(truncated)
    message = (
        f"{n:,} of {counted(len(dataset), 'example')} {'was' if n == 1 else 'were'} truncated to "
        f"the context of {context:,} tokens ({rows_of(truncated)}): network and baselines read "
        "only the beginning of the text. Shorten the texts, or set tokens.too_long to `skip`."
    )
    return dataset, tokens, plans, [*findings, Finding("warning", "truncated", message)]


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


def _served(
    experiment: Experiment,
    requests: Requests,
    dataset: Dataset,
    tokens: tuple[TokenizedText, ...],
    plan: RowPlan,
) -> tuple[Dataset, tuple[TokenizedText, ...]]:
    """Return the examples that requests serve, with a note on the others, and their tokens.

    Raises:
        DataError: a text has no request, and the experiment does not skip it, or none has one.
    """
    settings = experiment.capture.requests
    assert settings is not None
    served = requests.choose([of_text.ids for of_text in tokens], plan).chosen
    unserved = [n for n, of_text in enumerate(tokens) if of_text.ids.tobytes() not in served]
    if not unserved:
        return dataset, tokens
    first = dataset.examples[unserved[0]]
    note = f"{len(unserved):,} of {counted(len(dataset), 'text')} have no hidden states"
    if settings.missing == "error" or len(unserved) == len(dataset):
        with experiment.at("capture", "requests"):
            raise DataError(
                f"{note} in {requests.folder}, the first is {first.text[:60]!r} ({first.where}). "
                f"{requests.why_unserved(tokens[unserved[0]].ids)}"
            )
    left = np.setdiff1d(np.arange(len(dataset)), unserved)
    kept = replace(dataset.select(left), notes=(*dataset.notes, f"skipped: {note}"))
    return kept, tuple(tokens[index] for index in left)


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
        single = config.sites.select(settings.sites)
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
        sites = dict.fromkeys(part.site for selection in selections for part in selection.parts)
        for site in sites:
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
    narrowest = min(widths, key=lambda site: widths[site])
    width = widths[narrowest]
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
    """Return the number of features of a site, or of one head or neuron of it, by its full name.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> n_features("blocks.3.attn.hook_z", GPT2Config())
    768
    >>> n_features("blocks.3.attn.hook_z[head=2]", GPT2Config())
    64
    """
    return math.prod(row_shape(name, config))


def row_shape(name: str, config: ModelConfig) -> tuple[int, ...]:
    """Return the shape of one row of a site, or of one head or neuron of it, by its full name.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> row_shape("blocks.3.attn.hook_z", GPT2Config())
    (12, 64)
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


def _tokenize(
    experiment: Experiment, dataset: Dataset, encoder: TextEncoder, context: int
) -> tuple[Dataset, tuple[TokenizedText, ...]]:
    """Return the examples that the rule for long texts keeps, and their first `context` tokens.

    Raises:
        DataError: a text cannot be encoded, or is too long and the rule is `error`.
        MissingError: the model has no chat template.
        CheckpointError: the chat template is damaged.
    """
    encoded: dict[Any, TokenizedText] = {}  # each text is encoded once
    keys = [(one.text, one.turns, one.reply_ids) for one in dataset.examples]
    for key, example in zip(keys, dataset.examples, strict=True):
        if key not in encoded:
            try:
                tokens = encoder.encode_example(example)
            except DataError as error:  # concerns this row; the errors below concern all rows
                raise DataError(f"{example.where}: {error}") from error
            except (MissingError, CheckpointError):
                with experiment.at("tokens", "chat"):
                    raise
            encoded[key] = tokens
    of_each = [encoded[key] for key in keys]
    long = [index for index, tokens in enumerate(of_each) if len(tokens.ids) > context]
    policy, settings = experiment.tokens.too_long, experiment.capture.generate
    reserved = ""
    if settings is not None:
        reserved = f" without the {settings.max_new_tokens:,} of a reply"
    if long and policy == "error":
        is_cut = not experiment.tokens.chat and settings is None
        other = "`truncate` or `skip`" if is_cut else "`skip`"
        raise DataError(
            f"{dataset.examples[long[0]].where}: the text has {len(of_each[long[0]].ids):,} "
            f"tokens, but the context has {context:,}{reserved} ({counted(len(long), 'text')} too "
            f"long). Shorten it, or set tokens.too_long to {other}."
        )
    if long and policy == "skip":
        note = f"skipped: {counted(len(long), 'example')} longer than the context"
        fitting = [index for index, tokens in enumerate(of_each) if len(tokens.ids) <= context]
        if not fitting:
            raise DataError(f"{note}, so no text is left. Shorten the texts.")
        dataset = replace(dataset.select(fitting), notes=(*dataset.notes, note))
        of_each = [of_each[index] for index in fitting]
    # `prepare` cuts the texts themselves later, because spans refer to the whole text.
    return dataset, tuple(tokens.first(context) for tokens in of_each)
