"""A saved probe on new texts: its predictions at their tokens, and text steered by its direction.

apply_probe    tokenize as in training, run the model, score
apply_probes   the same for several probes, such as those of all layers of a run, in one pass
layer_probes   the probes of all layers of a run
steered_texts  generation with multiples of the probe's direction added at its site: x + k s u
calibrated_doses  the dose at which the loss on plain texts has risen by a factor

u is the unit direction of the probe on raw activations, s the standard deviation of u'x over the
rows that the probe was fitted on, and k the dose. The prompt and each generated token are steered.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import cross_entropy

from probekit import errors
from probekit.accelerators import check_device
from probekit.activations.forward import make_batches, run_batches
from probekit.activations.records import FloatArray, batch_tokens
from probekit.data.positions import IntArray, PositionRule, RowPlan, plan_rows, position_text
from probekit.experiment.activations import GIVEN_POSITION
from probekit.experiment.ask import AskSection
from probekit.interventions import edits
from probekit.interventions.edits import compose
from probekit.lazy_rows import Floats
from probekit.model.config import Bos
from probekit.model.families.table import find_config, load_model
from probekit.model.generation import Continuation, Decoding, continue_texts
from probekit.model.network import Network
from probekit.model.passes.inputs import NOT_COUNTED, next_tokens
from probekit.model.proven.choice import Proving
from probekit.model.sites.catalogue import check_storable
from probekit.model.sites.sites import Sites, SiteSelection
from probekit.model.text.tokenizer import TokenizedText, Tokenizer
from probekit.model.weights.state_dict import digest_weights
from probekit.pipeline.setup.design import normalized, part_of
from probekit.pipeline.setup.texts import TextEncoder, n_features
from probekit.probes.probe_files import probe_files
from probekit.probes.saved_probe import SavedProbe
from probekit.results import record
from probekit.results.network import Per, RowPrediction, TextReading, TextReadings
from probekit.results.scores import Scores, site_with_head
from probekit.results.table import by_depth, only
from probekit.terminal import SILENT, Watcher

TooLong = Literal["error", "truncate", "skip"]
MOST_DOSE = 1024.0
HALVINGS = 6  # of the interval of the dose, on a logarithmic scale
TEXTS_AT_ONCE = 8  # in a pass that measures the loss

# Positions that exist in any text; words and spans are marked only in the data set.
OF_ANY_TEXT = ("last", "first", "mean", "index", "user_last")


def check_saved_probe(path: Path) -> None:
    """Verify the digests of a saved probe that is in the folder of a run; others have none there.

    Args:
        path: common stem of the two files of the probe, or one of the files.

    Raises:
        MissingError: a file does not exist, or the run is not finished.
        DataError: a file of the probe or run.json was changed after the run.
    """
    # Probes of a run are in its folder `probes`; other probes have no run.
    run_dir = next((one.parent for one in path.absolute().parents if one.name == "probes"), None)
    if run_dir is not None and record.is_run(run_dir):
        record.check_finished(run_dir)
        names = [file.absolute().relative_to(run_dir).as_posix() for file in probe_files(path)]
        record.open_record(run_dir, names)


def choose_per(probe: SavedProbe, per: Per | None) -> Per:
    """Return whether to predict per text or per token.

    None means per text if the position that the probe reads exists in any text, else per token.

    Raises:
        ConfigError: the probe cannot predict per text.
    """
    has_place = probe.facts.at in OF_ANY_TEXT or probe.facts.aggregation is not None
    if per == "text" and not has_place:
        place = "every token" if probe.facts.at == "all" else "not marked in new texts"
        raise errors.ConfigError(
            f"This probe was trained at: {probe.facts.at}, which is {place}, so it cannot predict "
            "per text. Use --per token."
        )
    return per or ("text" if has_place else "token")


def caution(probe: SavedProbe, per: Per) -> list[str]:
    """Return warnings: the probe is untested, or is applied to tokens unlike its training rows."""
    at = probe.facts.at
    sentences = [probe.facts.untested] if probe.facts.untested else []
    if per == "token" and probe.facts.aggregation is not None:
        sentences.append(
            "The score at a token is that of the text up to it, but whole texts tested the probe."
        )
    if per == "token" and at != "all":
        is_marked = at in OF_ANY_TEXT
        rows = "" if is_marked else ", which is not marked in new texts: each row is one token"
        sentences.append(
            f"The probe was trained at: {at}{rows}. It was not tested at other tokens, and "
            "information that can be decoded is not necessarily used by the model."
        )
    return sentences


@dataclass(frozen=True)
class ProbedModel:
    """The model of a probe, and the sites that the probe reads."""

    model: Network
    tokenizer: Tokenizer
    selections: tuple[SiteSelection, ...]


def apply_probe(
    probe: SavedProbe,
    texts: str | Sequence[str],
    *,
    model: str | Network | None = None,
    device: str = "cpu",
    allow_other_model: bool = False,
    too_long: TooLong = "error",
    threshold: float | None = None,
    watcher: Watcher = SILENT,
) -> TextReadings:
    """Return a probe's predictions for each text: at every token and at its training position.

    The result is a list whose `table` is a data frame.

    There is no prediction at the position if only the data set marks it, such as a word, or if the
    text has no such position. The model runs only up to the probe's site, in batches of texts of
    similar length; batch and order change scores at most in the last bits. A probe of a question
    (`tokens.ask`) reads it after each text, and the texts of the readings contain it.

    Args:
        probe: a saved probe.
        texts: one or several input texts, each of at least one token.
        model: source of the model, if it differs from the one in the probe's file; or the network
            itself, which stays on its device.
        device: compute device of the model.
        allow_other_model: warn instead of raising if weights or vocabulary are not the probe's.
        too_long: handling of texts longer than the context: an error, or a warning with their
            number; `skip` returns nothing for them, and is an error if no text is left.
        threshold: false positive rate of a threshold in the probe's file, for alarms; None for
            predictions without alarms.
        watcher: receives progress and warnings.

    Raises:
        MissingError: the model does not exist.
        ConfigError: the model is not the probe's, or has another width; or the probe has no
            threshold of this rate.
        DataError: there is no text, one has no token, or one is too long.
    """
    errors.check_has("probe", probe, "facts", "Load it: SavedProbe.load(path).")
    given: dict[str, Any] = {"model": model, "device": device, "too_long": too_long}
    given |= {"allow_other_model": allow_other_model, "threshold": threshold, "watcher": watcher}
    return apply_probes([probe], texts, **given)[0]


def apply_probes(
    probes: Sequence[SavedProbe],
    texts: str | Sequence[str],
    *,
    model: str | Network | None = None,
    device: str = "cpu",
    allow_other_model: bool = False,
    too_long: TooLong = "error",
    threshold: float | None = None,
    watcher: Watcher = SILENT,
) -> list[TextReadings]:
    """Return the predictions of each probe for texts, which their model reads once.

    Args:
        probes: saved probes that differ in their sites only.
        texts: see `apply_probe`, as the other arguments and errors.
        model: source of the model, or the network.
        device: compute device.
        allow_other_model: whether another model only warns.
        too_long: handling of texts longer than the context.
        threshold: false positive rate of a threshold.
        watcher: receives progress and warnings.
    """
    probe, *_ = probes
    texts = [texts] if isinstance(texts, str) else texts
    errors.check_ordered("texts", texts)
    asked = AskSection.of_probe(probe.facts.position).asked
    texts = [asked(one) if isinstance(one, str) and one.strip() else one for one in texts]
    if not texts:
        raise errors.DataError("There is no text to apply the probe to. Give one or more.")
    check_device(device)
    if threshold is not None:
        probe.alarms(np.empty(0), threshold)  # raises before the model is loaded
    network = load_network(probe, model, device, allow_other_model, watcher)
    how: dict[str, Any] = {"too_long": too_long, "threshold": threshold, "watcher": watcher}
    return [
        TextReadings(found, probe.classes, choose_per(probe, None))
        for found in predict_texts(probes, network.model, network.tokenizer, texts, **how)
    ]


def layer_probes(run: Path) -> tuple[SavedProbe, list[SavedProbe]]:
    """Return the selected probe of a run, and those of its kind, line and position at all layers.

    Args:
        run: folder of the run.

    Raises:
        MissingError: it is not the folder of a finished run.
        ConfigError: it is a probe, or the run saved no or only one such probe.
        DataError: a file of the run is damaged.
    """
    if probe_files(run)[0].exists():
        folders = (one.parent for one in run.parents if one.name == "probes")
        raise errors.ConfigError(
            f"{run} is a single probe, and --layers compares those of a run: give the folder of "
            f"its run{''.join(f', {folder}' for folder in folders)}."
        )
    record.check_finished(run)
    written = record.open_record(run, ["results.csv"]).files
    scores, probes, own = Scores.load(run / "results.csv"), list[SavedProbe](), None
    chosen = scores.chosen
    if chosen is not None:
        # A position with an offset has a folder of its own.
        is_kind = re.compile(rf"probes/.*/{chosen['probe'].replace(':', '-')}\.(json|safetensors)")
        names = sorted(filter(is_kind.fullmatch, written))
        record.open_record(run, names)
        files = [run / name for name in names if name.endswith(".json")]
        at, read = chosen["position"], map(SavedProbe.load, files)
        saved = {one.facts.site: one for one in read if position_text(one.facts.position) == at}
        same = {name: chosen[name] for name in ("line", "position", "probe", "view")}
        rows = by_depth(only(scores.ranked, **same))
        sites = list(map(site_with_head, rows["site"], rows["head"]))
        probes = [saved[site] for site in sites if site in saved]
        own = saved.get(site_with_head(chosen["site"], chosen["head"]))
    if own is None or len(probes) < 2:
        which = "probe" if chosen is None else f"{chosen['probe']} probe ({chosen['line']})"
        raise errors.ConfigError(
            f"{run} has {len(probes) or 'no'} saved {which}, and --layers compares the selected "
            "one with those of other layers. Capture several layers (capture.sites), with a kind "
            "of probe that is saved, such as logistic."
        )
    return own, probes


def predict_texts(
    probes: Sequence[SavedProbe],
    model: Network,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    too_long: TooLong = "error",
    threshold: float | None = None,
    watcher: Watcher = SILENT,
) -> list[list[TextReading]]:
    """Return the same as `apply_probes`, with a model that is already loaded and at least one text.

    Raises:
        DataError: a text has no token, or one is too long, or all are skipped.
    """
    facts, config = probes[0].facts, model.config
    selections = [_selections(probe, config.sites) for probe in probes]
    encoder = TextEncoder(tokenizer, facts.bos, facts.chat, facts.special_tokens)
    encoded = [encoder.encode(text) for text in texts]
    indices = _readable(encoded, config.n_ctx, too_long, watcher)
    tokens = [encoded[index].first(config.n_ctx) for index in indices]
    texts_read, bos = [texts[index] for index in indices], tokens[0].has_bos
    offsets, turns = [part.offsets for part in tokens], [(0, len(text)) for text in texts_read]
    # One plan, so that the model runs once: the rows of all tokens, then, if the probe predicts
    # whole texts, one row of each text at its position.
    plan, _ = plan_rows(offsets, turns, texts_read, PositionRule(at="all"), bos=bos)
    n_token_rows, done = len(plan.example), 0
    places: dict[int, int] = {}  # of the token of a row of a text, if each has one
    if facts.at in OF_ANY_TEXT:
        # All settings of a position except `pieces`, which only words have.
        known = facts.position.keys() & ("at", "index", "skip_first", "skip_massive", "offset")
        rule: dict[str, Any] = {name: facts.position[name] for name in known}
        # Texts without the position have no row.
        whole, _ = plan_rows(offsets, turns, texts_read, PositionRule(**rule), bos=bos)
        if len(whole.positions) == len(whole.example):
            places = dict(zip(whole.example.tolist(), whole.positions.tolist(), strict=True))
        plan = replace(
            whole,
            example=np.concatenate([plan.example, whole.example]),
            positions=np.concatenate([plan.positions, whole.positions]),
            offsets=np.concatenate([plan.offsets, whole.offsets[1:] + plan.offsets[-1]]),
        )
    sites = tuple(dict.fromkeys(one.site for own in selections for one in own))
    scored = [np.empty((len(plan.example), len(probe.layers[-1].bias))) for probe in probes]
    for rows, values in stream_rows(
        model, [part.ids for part in tokens], plan, sites, dtype=facts.dtype
    ):
        done += len(rows)
        watcher.progress("apply", done, len(plan.example))
        for outputs, probe, own in zip(scored, probes, selections, strict=True):
            parts = [part_of(values[one.site], one) for one in own]
            if facts.view == "normalized":
                eps, is_centred = config.norm_epsilon, config.norm_is_centred
                parts = [normalized(part, eps, is_centred=is_centred) for part in parts]
            outputs[rows] = probe.outputs(np.concatenate(parts, axis=1))
    # The first token row of each text, then the number of token rows; the rows of a text are next
    # to each other, in the order of the texts.
    starts = np.searchsorted(plan.example[:n_token_rows], np.arange(len(indices) + 1))
    of_whole = plan.example[n_token_rows:].tolist()

    def readings(probe: SavedProbe, outputs: Floats) -> list[TextReading]:
        """Return the predictions of a probe from its outputs for all rows."""
        if facts.aggregation is not None:  # the score of each text up to each token
            tokens_of = np.split(outputs, starts[1:-1])
            outputs = np.concatenate([facts.aggregation.running(one) for one in tokens_of])
        answers = _answers(probe, outputs, threshold)
        of_text = dict(zip(of_whole, answers[n_token_rows:], strict=True))
        if facts.aggregation is not None:
            of_text = {number: answers[end - 1] for number, end in enumerate(starts[1:])}
        found = []
        for number, index in enumerate(indices):
            text_tokens, of_tokens = encoded[index], answers[starts[number] : starts[number + 1]]
            # The tokens with a row: beginning-of-text has none, nor have tokens beyond the context.
            first = int(text_tokens.has_bos)
            shown = slice(first, first + len(of_tokens))
            found.append(
                TextReading(
                    text=texts[index],
                    tokens=tuple(tokenizer.strings(text_tokens.ids[shown])),
                    spans=tuple((start, end) for start, end in text_tokens.offsets[shown].tolist()),
                    answers=tuple(of_tokens),
                    answer=of_text.get(number),
                    n_cut=len(text_tokens.ids) - shown.stop,
                    place=places[number] - first if number in places else None,
                )
            )
        return found

    return [readings(probe, outputs) for outputs, probe in zip(scored, probes, strict=True)]


def _readable(
    encoded: Sequence[TokenizedText], n_ctx: int, too_long: TooLong, watcher: Watcher
) -> list[int]:
    """Return the indices of the texts to read; raise DataError for empty and too long ones."""
    covered = [(tokens.offsets[:, 0] < tokens.offsets[:, 1]).any() for tokens in encoded]
    empty = [number for number, has_text in enumerate(covered, start=1) if not has_text]
    if empty:
        raise errors.DataError(
            f"{len(empty)} of {len(encoded)} texts are empty, the first is text {empty[0]}. Remove "
            "them."
        )
    long = [index for index, tokens in enumerate(encoded) if len(tokens.ids) > n_ctx]
    skipped = set(long if too_long == "skip" else ())
    indices = [index for index in range(len(encoded)) if index not in skipped]
    if long:
        problem = (
            f"{len(long)} of {len(encoded)} texts are longer than the context of {n_ctx} "
            f"tokens, first text {long[0] + 1} with {len(encoded[long[0]].ids)}"
        )
        if too_long == "error":
            raise errors.DataError(f"{problem}. Use --too-long truncate or --too-long skip.")
        treated = "skipped" if too_long == "skip" else "truncated"
        watcher.tell(f"warning: {problem}; they were {treated}")
        if not indices:
            raise errors.DataError(f"{problem}: no text is left.")
    return indices


def _answers(probe: SavedProbe, outputs: Floats, threshold: float | None) -> list[RowPrediction]:
    """Return the prediction of each row from its scores (n_rows, n_scores)."""
    scores = outputs[:, 0] if outputs.shape[1] == 1 else outputs
    labels = probe.decide(scores).tolist() if probe.classes else [None] * len(scores)
    alarms: list[bool | None] = [None] * len(scores)
    compared: list[tuple[float, float] | None] = [None] * len(scores)
    if threshold is not None:
        alarms = probe.alarms(scores, threshold).tolist()
        (limit,) = (one.threshold for one in probe.facts.thresholds if one.fpr == threshold)
        detected = probe.for_class(str(probe.facts.positive), scores).tolist()
        compared = [(score, limit) for score in detected]
    # With more than two classes, a score is a list of theirs.
    return [
        RowPrediction(label, max(score), tuple(score), alarm, both)
        if isinstance(score, list)
        else RowPrediction(label, score, alarm=alarm, compared=both)
        for label, score, alarm, both in zip(labels, scores.tolist(), alarms, compared, strict=True)
    ]


def load_network(
    probe: SavedProbe, given: str | Network | None, device: str, allow_other: bool, watcher: Watcher
) -> ProbedModel:
    """Return the model of a probe: `given`, or loaded from that source; None for the probe's own.

    Raises:
        MissingError: the model does not exist.
        ConfigError: the probe was fitted on given activations, or on a network that was passed in
            Python, and `given` is None; the model has another width; or it is not the probe's
            model, and `allow_other` is False.
    """
    facts = probe.facts
    if facts.at == GIVEN_POSITION:
        raise errors.ConfigError(
            f"This probe was fitted on given activations of {facts.site}, so the model that reads "
            "texts is unknown. Apply it to new activations: "
            "SavedProbe.load(path).predict(activations)."
        )
    if given is None and facts.tokenizer_source is not None:
        raise errors.ConfigError(
            f"This probe was fitted on a network that was passed in Python ({facts.model}) and is "
            "not stored with it. Pass the network: apply_probe(probe, texts, model=NETWORK). Or "
            "save network and tokenizer with `save_pretrained` and give the folder with --model."
        )
    own = given if isinstance(given, Network) else None
    is_named = given is not None and own is None
    source = str(given) if is_named else facts.tokenizer_source or facts.model
    try:
        config = find_config(source, facts.compute, Proving(device)) if own is None else own.config
        tokenizer = Tokenizer.from_pretrained(source)
    except errors.MissingError as error:
        raise errors.MissingError(
            f"{error} The probe was fitted on {facts.model!r}; give its current location with "
            "--model."
        ) from error
    check_storable(site.partition("[")[0] for site in facts.sites)
    selections = _selections(probe, config.sites)
    # Before the weights are read, because most other models differ in their sizes.
    probe.check_fits(width=sum(n_features(part.text, config) for part in selections))
    model = own or load_model(source, getattr(torch, facts.compute), device)
    check = partial(probe.check_fits, weights=digest_weights(model), n_heads=config.n_heads)
    try:
        check(layer_norm_epsilon=config.norm_epsilon, tokenizer=tokenizer.digest)
    except errors.ConfigError as error:
        if not allow_other:
            raise errors.ConfigError(
                f"{error} To apply it to this model nevertheless, use --allow-other-model."
            ) from error
        watcher.tell(f"warning: {source} is not the model that the probe was fitted on: {error}")
    return ProbedModel(model, tokenizer, selections)


def _selections(probe: SavedProbe, sites: Sites) -> tuple[SiteSelection, ...]:
    """Return the sites of a probe in its order, in which it reads their features."""
    return tuple(one for site in probe.facts.sites for one in sites.select([site]))


def steered_texts(
    network: ProbedModel,
    prompts: Sequence[str],
    decoding: Decoding,
    vector: Floats,
    by: float,
    *,
    bos: Bos = "auto",
    chat: bool = False,
    stop: Sequence[str] = (),
    site: str | None = None,
) -> list[list[Continuation]]:
    """Return continuations of prompts with `by` times a vector added at every token.

    Args:
        network: the model of the probe; see `load_network`.
        prompts: texts to continue.
        decoding: decoding parameters.
        vector: result of `steering_vector`.
        by: dose, in standard deviations of the projection; 0 gives the texts without steering.
        bos: whether to put the beginning-of-text token before each prompt.
        chat: whether each prompt is the user's turn of a chat; see `continue_texts`.
        stop: strings that end a continuation, in addition to the tokenizer's ends of text.
        site: name of the steered site; None means that of the probe.

    Raises:
        UnknownNameError: there is no such site.
        DataError: the site has another width than the vector.
    """
    model, tokenizer = network.model, network.tokenizer
    stop = (*stop, *tokenizer.ends_of_text)
    edit = edits.add(torch.from_numpy(by * vector))
    # This raises for an unknown site, and therefore precedes the case of a dose of 0.
    tap = compose(model, [(site or network.selections[0], edit)])
    edited, sites = (tap, tap.sites) if by else (None, None)
    return continue_texts(
        model, tokenizer, prompts, decoding, bos=bos, chat=chat, stop=stop, tap=edited, sites=sites
    )


def calibrated_doses(
    network: ProbedModel,
    vector: Floats,
    texts: Sequence[str],
    factor: float,
    *,
    bos: Bos = "auto",
    site: str | None = None,
) -> tuple[float, pd.DataFrame]:
    """Return the dose at which the loss has risen by a factor, and the loss at all tried doses.

    The table has the columns `dose`, `loss` and `factor`. Doses are doubled from 1, or halved,
    until the factor lies between two of them; their interval is then halved on a logarithmic
    scale. The dose is its lower end, within 2 %.

    Args:
        network: the network of the probe; see `load_network`.
        vector: result of `steering_vector`.
        texts: plain texts, of two tokens and more.
        factor: of the loss, above 1.
        bos: whether beginning-of-text precedes each text.
        site: name of the steered site; None means that of the probe.

    Raises:
        ConfigError: the factor is not above 1.
        DataError: no text has two tokens, or no dose up to `MOST_DOSE` reaches the factor.
    """
    if not (math.isfinite(factor) and factor > 1):
        raise errors.ConfigError(
            f"The factor of the loss is {factor:g}. Give a number above 1, such as 1.1."
        )
    model, place = network.model, site or network.selections[0]
    batches = [
        network.tokenizer.batch(texts[first : first + TEXTS_AT_ONCE], bos=bos, side="right").to(
            model.device
        )
        for first in range(0, len(texts), TEXTS_AT_ONCE)
    ]

    @cache
    def loss(dose: float) -> float:
        """Return the mean loss at a dose."""
        total, n_tokens = 0.0, 0
        for batch in batches:
            targets = next_tokens(batch.ids, batch.mask)
            edit = edits.add(torch.from_numpy(dose * vector))
            with torch.no_grad():
                logits = edits.run_edited(model, batch, [(place, edit)])
            for text in zip(logits, targets, strict=True):  # one by one, which saves memory
                scores, wanted = text[0].float(), text[1]
                each = cross_entropy(scores, wanted, ignore_index=NOT_COUNTED, reduction="none")
                total += float(each.cpu().double().sum())
            n_tokens += int((targets != NOT_COUNTED).sum())
        losses[dose] = total / max(1, n_tokens)
        return losses[dose]

    losses: dict[float, float] = {}
    if not loss(0.0) > 0:
        raise errors.DataError(
            "There is no loss: no text has two tokens, or the network gives NaN. Give longer texts."
        )
    most = factor * loss(0.0)
    high = 1.0
    while loss(high) <= most:
        high *= 2
        if high > MOST_DOSE:
            raise errors.DataError(
                f"At {MOST_DOSE:g} standard deviations the loss is "
                f"{loss(MOST_DOSE) / loss(0.0):.3g} times that without steering, less than "
                f"{factor:g}. Give a smaller factor."
            )
    low = high / 2
    while not loss(low) <= most:  # also NaN, of a network that overflows
        low, high = low / 2, low
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if loss(middle) <= most else (low, middle)
    rows = pd.DataFrame(sorted(losses.items()), columns=["dose", "loss"])
    return low, rows.assign(factor=rows["loss"] / losses[0.0])


def stream_rows(
    model: Network,
    tokens: Sequence[IntArray],
    plan: RowPlan,
    sites: Sequence[str],
    *,
    dtype: str = "float32",
) -> Iterator[tuple[IntArray, dict[str, FloatArray]]]:
    """Yield the rows of one batch after another: row indices, and values of these rows by site.

    The values equal those that a capture would store, but nothing is written. Rows of one example
    need not be adjacent in the plan.

    Raises:
        ConfigError: a site has no pos axis.
    """
    check_storable(sites)
    for batch in make_batches(tokens, plan, batch_tokens(model.device.type)):
        values: dict[str, FloatArray] = {}
        for part in run_batches(model, [batch], plan, sites, dtype):
            values |= part.arrays()
        yield batch.rows, values
