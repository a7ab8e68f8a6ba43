"""A kept probe on new texts: tokens as at its training, the model up to its site, a score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from probekit.activations.capture import stream_rows
from probekit.activations.identity import digest_weights
from probekit.data.positions import PositionRule, RowPlan, plan_rows
from probekit.errors import ConfigError, DataError, MissingError
from probekit.model.gpt2 import GPT2
from probekit.model.network import Network
from probekit.model.sites import SiteSelection, select
from probekit.model.text.tokenizer import TokenizedText, Tokenizer
from probekit.model.weights.sources import find_config
from probekit.pipeline.capture.devices import check_device
from probekit.pipeline.experiment.features import normalized, part_of, part_width
from probekit.probes.saved.saved_probe import SavedProbe
from probekit.results.text_readings import Per, RowPrediction, TextReading
from probekit.watcher import SILENT, Watcher

TooLong = Literal["error", "truncate", "skip"]
Floats = NDArray[np.float64]

# Positions that any text has; a word or span is marked in the data, which new texts lack.
OF_ANY_TEXT = ("last", "first", "mean", "index")


def choose_per(probe: SavedProbe, per: Per | None) -> Per:
    """Return whether answers are wanted a text or a token; None leaves it to the probe.

    Raises:
        ConfigError: the probe has no answer for a whole text.
    """
    has_place = probe.facts.at in OF_ANY_TEXT
    if per == "text" and not has_place:
        raise ConfigError(
            f"This probe was trained at: {probe.facts.at}, which a new text does not mark: it has "
            "no answer for a whole text. Use --per token."
        )
    return per or ("text" if has_place else "token")


def caution(probe: SavedProbe, per: Per) -> list[str]:
    """Return what should be known before such answers are quoted, in sentences."""
    if per == "text" or probe.facts.at == "all":
        return []
    at = probe.facts.at
    rows = "" if at in OF_ANY_TEXT else ", which a new text does not mark: each row is one token"
    return [
        f"The probe was trained at: {at}{rows}. At other tokens it was never tested; and what can "
        "be decoded need not be used."
    ]


@dataclass(frozen=True)
class ProbedModel:
    """The model that a probe reads, and where it reads it."""

    model: Network
    tokenizer: Tokenizer
    selections: tuple[SiteSelection, ...]


def apply_probe(
    probe: SavedProbe,
    texts: Sequence[str],
    *,
    model: str | None = None,
    device: str = "cpu",
    allow_other_model: bool = False,
    too_long: TooLong = "error",
    watcher: Watcher = SILENT,
) -> list[TextReading]:
    """Return what a probe reads of each text: at every token, and at the position of its training.

    Texts are run through the model as far as the probe's site, in batches of like length; neither
    the batch nor the order changes a score beyond the last bits.

    Args:
        probe: a kept probe.
        texts: what is read, each of one token or more.
        model: another source of the model than the one written in the probe.
        device: where the model computes.
        allow_other_model: go on, and tell, where weights or vocabulary are not those of the probe.
        too_long: what to do with texts longer than the context; what is lost is told.
        watcher: hears how far the work has come, and of what a user should know.

    Raises:
        MissingError: the model is not there.
        ConfigError: it is another model than the probe's, or of another width.
        DataError: there is no text, one has no token, or one is too long.
    """
    if not texts:
        raise DataError("There is no text to apply the probe to. Give one or more.")
    check_device(device)
    network = load_network(probe, model or probe.facts.model, device, allow_other_model, watcher)
    return predict_texts(probe, network, texts, too_long=too_long, watcher=watcher)


def predict_texts(
    probe: SavedProbe,
    network: ProbedModel,
    texts: Sequence[str],
    *,
    too_long: TooLong = "error",
    watcher: Watcher = SILENT,
) -> list[TextReading]:
    """Return what `apply_probe` does, by a model that is there already.

    Raises:
        DataError: a text has no token, or one is too long.
    """
    context = network.model.config.n_positions
    encoded = _encode(network.tokenizer, texts, bos=probe.facts.bos)
    kept = _within(encoded, context, too_long, watcher)
    tokens = [TokenizedText(encoded[n].ids[:context], encoded[n].offsets[:context]) for n in kept]
    plan, n_token_rows = _plan(probe, tokens, [texts[n] for n in kept])
    scores = _scores(probe, network, tokens, plan, watcher)
    answers = _answers(probe, scores)
    of_text = dict(zip(plan.example[n_token_rows:].tolist(), answers[n_token_rows:], strict=True))
    bounds = np.searchsorted(plan.example[:n_token_rows], np.arange(len(kept) + 1))
    return [
        _reading(
            network.tokenizer,
            texts[n],
            encoded[n],
            tuple(answers[start:end]),
            of_text.get(place),
            n_bos=int(probe.facts.bos),
        )
        for place, (n, start, end) in enumerate(zip(kept, bounds, bounds[1:], strict=False))
    ]


def load_network(
    probe: SavedProbe, source: str, device: str, allow_other: bool, watcher: Watcher
) -> ProbedModel:
    """Return the model of a probe, from `source`.

    Raises:
        MissingError: it is not there.
        ConfigError: it is another model, and `allow_other` does not let it pass.
    """
    facts = probe.facts
    try:
        config, tokenizer = find_config(source), Tokenizer.from_pretrained(source)
    except MissingError as error:
        raise MissingError(
            f"{error} The probe was fitted on {facts.model!r}; say with --model where that is now."
        ) from error
    selections = tuple(
        chosen
        for site in facts.sites
        for chosen in select([site], config.n_layer, config.axis_sizes)
    )
    # Before the weights are read: most other models differ in their sizes already.
    probe.check_fits(width=sum(part_width(part, config) for part in selections))
    model = GPT2.from_pretrained(source, getattr(torch, facts.compute), device)
    try:
        probe.check_fits(
            weights=digest_weights(model),
            n_heads=config.n_head,
            layer_norm_epsilon=config.layer_norm_epsilon,
            tokenizer=tokenizer.digest,
        )
    except ConfigError as error:
        if not allow_other:
            raise ConfigError(
                f"{error} To see what it says of another model nevertheless: --allow-other-model."
            ) from error
        watcher.tell(f"warning: {source} is not the model that the probe was fitted on: {error}")
    return ProbedModel(model, tokenizer, selections)


def _encode(tokenizer: Tokenizer, texts: Sequence[str], *, bos: bool) -> list[TokenizedText]:
    encoded = [tokenizer.encode(text, bos=bos) for text in texts]
    empty = [n for n, tokens in enumerate(encoded, start=1) if len(tokens.ids) == int(bos)]
    if empty:
        raise DataError(
            f"{len(empty)} of {len(texts)} texts are empty, first text {empty[0]}: there is no "
            "token to read. Leave them out."
        )
    return encoded


def _within(
    encoded: Sequence[TokenizedText], context: int, too_long: TooLong, watcher: Watcher
) -> list[int]:
    """Return the numbers of the texts that are read; what the context cannot hold is told."""
    long = [n for n, tokens in enumerate(encoded) if len(tokens.ids) > context]
    if not long:
        return list(range(len(encoded)))
    told = (
        f"{len(long)} of {len(encoded)} texts are longer than the context of {context} tokens, "
        f"first text {long[0] + 1} with {len(encoded[long[0]].ids)}"
    )
    if too_long == "error":
        raise DataError(f"{told}. Go on without what does not fit: --too-long truncate or skip.")
    done = "left out" if too_long == "skip" else "cut there"
    watcher.tell(f"warning: {told}; they were {done}")
    kept = [n for n in range(len(encoded)) if too_long == "truncate" or n not in set(long)]
    if not kept:
        raise DataError(f"{told}: no text is left.")
    return kept


def _plan(
    probe: SavedProbe, tokens: Sequence[TokenizedText], texts: Sequence[str]
) -> tuple[RowPlan, int]:
    """Return a row for every token, then one for each text where the probe has an answer for it.

    The number beside is how many rows are of tokens. Both are rows of one plan, so that the model
    runs once.
    """
    facts = probe.facts
    offsets, spans = [part.offsets for part in tokens], [None] * len(texts)

    def rows(rule: PositionRule) -> RowPlan:
        return plan_rows(offsets, spans, texts, rule, bos=facts.bos)[0]

    each = rows(PositionRule("all"))
    if facts.at not in OF_ANY_TEXT:
        return each, len(each.example)
    known = ("at", "index", "skip_first")
    chosen: dict[str, Any] = {
        name: facts.position[name] for name in known if name in facts.position
    }
    whole = rows(PositionRule(**chosen))
    both = RowPlan(
        example=np.concatenate([each.example, whole.example]),
        positions=np.concatenate([each.positions, whole.positions]),
        offsets=np.concatenate([each.offsets, whole.offsets[1:] + each.offsets[-1]]),
    )
    return both, len(each.example)


def _scores(
    probe: SavedProbe,
    network: ProbedModel,
    tokens: Sequence[TokenizedText],
    plan: RowPlan,
    watcher: Watcher,
) -> Floats:
    """Return the scores of all rows, shape (n_rows,) or (n_rows, n_classes)."""
    sites = tuple(dict.fromkeys(selection.site for selection in network.selections))
    n_rows, done = len(plan.example), 0

    def count(n_new: int) -> None:
        nonlocal done
        done += n_new
        watcher.progress("apply", done, n_rows)

    n_classes = len(probe.classes)
    scores = np.empty((n_rows, n_classes) if n_classes > 2 else n_rows)
    for rows, values in stream_rows(
        network.model,
        [part.ids for part in tokens],
        plan,
        sites,
        dtype=probe.facts.dtype,
        on_batch=count,
    ):
        parts = [part_of(values[chosen.site], chosen) for chosen in network.selections]
        if probe.facts.view == "normalized":
            eps = network.model.config.layer_norm_epsilon
            parts = [normalized(part, eps) for part in parts]
        scores[rows] = probe.scores(np.concatenate(parts, axis=1))
    return scores


def _answers(probe: SavedProbe, scores: Floats) -> list[RowPrediction]:
    if not probe.classes:
        return [RowPrediction(None, score) for score in scores.tolist()]
    labels = probe.decide(scores).tolist()
    if scores.ndim == 1:
        return [RowPrediction(*pair) for pair in zip(labels, scores.tolist(), strict=True)]
    return [
        RowPrediction(label, max(row), tuple(row))
        for label, row in zip(labels, scores.tolist(), strict=True)
    ]


def _reading(
    tokenizer: Tokenizer,
    text: str,
    tokens: TokenizedText,
    answers: tuple[RowPrediction, ...],
    answer: RowPrediction | None,
    n_bos: int,
) -> TextReading:
    end = n_bos + len(answers)
    return TextReading(
        text=text,
        tokens=tuple(tokenizer.strings(tokens.ids[n_bos:end])),
        spans=tuple((start, stop) for start, stop in tokens.offsets[n_bos:end].tolist()),
        answers=answers,
        answer=answer,
        n_cut=len(tokens.ids) - end,
    )
