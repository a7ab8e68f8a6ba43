"""One saved probe on many networks: checkpoints of a training run, or fine-tunes of a model.

The rows are the test rows of the probe's run, or those of another table, and the same for all
networks: differences are paired. The probe and its threshold stay as they were saved. For
comparison, a probe is trained by the same recipe on the rows of the saved one, as each network
represents them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd

from probekit.activations.records import Location
from probekit.amounts import counted, joined_names
from probekit.chosen.registry import without_analyses
from probekit.chosen.selected_probe import rates_at
from probekit.data.labels import appearance
from probekit.data.positions import IntArray
from probekit.data.readers import FORMATS
from probekit.errors import ConfigError, DataError, path_of
from probekit.experiment.data import read_sources
from probekit.experiment.document import validated
from probekit.experiment.loader import load_any_experiment
from probekit.experiment.schema import AttentionSection, Experiment
from probekit.files import inside
from probekit.lazy_rows import Floats, LazyRows, Mask
from probekit.model.network import Network
from probekit.pipeline.capture.captures import capture_further, capture_models
from probekit.pipeline.engines.engine import TASK
from probekit.pipeline.engines.network import NetworkEngine
from probekit.pipeline.engines.table import How, prepare
from probekit.pipeline.look.apply import check_saved_probe
from probekit.pipeline.measure.probing import make_probers
from probekit.pipeline.setup.texts import ReadTexts
from probekit.probes.saved_probe import SavedProbe
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.score.scored import differences_of, with_interval
from probekit.probes.solve.layers import cosine
from probekit.results import record
from probekit.section import KeyLocation
from probekit.terminal import SILENT, Watcher

ON = "labelled rows"  # rows of another table, among the further texts of an engine
COLUMNS = (
    "network", "auroc", "auroc_low", "auroc_high", "difference", "difference_low",
    "difference_high", "p", "p_adjusted", "shift", "mean", "sd", "fpr", "fpr_low", "fpr_high",
    "tpr", "tpr_low", "tpr_high", "cosine", "retrained", "retrained_low",
    "retrained_high", "weights",
)  # fmt: skip
_UNUSED = {"control_draws": 0, "permutations": 0, "description": False, "learning_steps": 0}
MOST_TOKENS = 8  # of a text, and labels, in a message


class OverNetworks(NamedTuple):
    """A saved probe on several networks.

    Attributes:
        rows: a row for each network, with the columns `network`; `auroc` of the probe, `auroc_low`
            and `auroc_high`; its `difference` to that on the first network, with limits, `p` and
            `p_adjusted` for all networks; `mean` and `sd` of the scores, and `shift` of the mean
            in standard deviations on the first network; `fpr` and `tpr` at the threshold, with
            limits; `cosine` with the weights of a probe that is retrained on the network, and its
            AUROC, `retrained`, with limits; and the digest of the `weights`.
        positive: the label that scores and rates refer to.
        threshold: the threshold in words.
        notes: reasons to doubt the numbers.
        facts: names and values of the probe and its rows.
    """

    rows: pd.DataFrame
    positive: str
    threshold: str
    notes: tuple[str, ...]
    facts: dict[str, str]


@dataclass(frozen=True, eq=False)
class _Fixed:
    """A saved probe, the experiment of its run, and what its scores are compared with.

    Attributes:
        probe: the saved probe.
        experiment: the experiment, with the sites and the kind of the probe only.
        positive: the label that scores and rates refer to.
        threshold: the score that an alarm exceeds.
        words: the threshold in words.
        on: table of labelled rows; None for the test rows of the run.
    """

    probe: SavedProbe
    experiment: Experiment
    positive: str
    threshold: float
    words: str
    on: Path | None

    @classmethod
    def read(cls, path: Path, on: Path | None, data: Any, rate: float | None) -> _Fixed:
        """Return a probe in the folder of a run; see `apply_over` for arguments and errors."""
        probe = SavedProbe.load(path)
        folders = (one.parent for one in path.absolute().parents if one.name == "probes")
        run = next((one for one in folders if record.is_run(one)), None)
        if run is None:
            raise ConfigError(
                f"{path} is in no run, so that the rows and the recipe of the probe are unknown. "
                "Give a probe in the folder `probes` of a run."
            )
        check_saved_probe(path)
        facts, experiment = probe.facts, load_any_experiment(inside(run / "config.yaml"))
        if not isinstance(experiment, Experiment) or experiment.capture.generate is not None:
            raise ConfigError(
                "A probe of given activations or of generated replies has no texts that every "
                "network reads. Probe texts, or save the replies and read them as `messages`."
            )
        if len(probe.classes) != 2 or facts.aggregation is not None:
            raise ConfigError(
                f"This {facts.kind} probe has {len(probe.classes)} labels. Probes over networks "
                "tell two labels of single rows apart, without `probe.aggregate`."
            )
        if not facts.is_tested and on is None:
            raise ConfigError(
                "This probe was fitted on all rows of its run, so that none is left to test it. "
                "Give labelled rows that it has not seen, with the columns of the run: --on FILE."
            )
        positive, threshold, words = facts.positive or probe.classes[1], 0.0, "decision boundary"
        if facts.thresholds or rate is not None:
            rate = facts.thresholds[0].fpr if rate is None else rate
            probe.alarms(np.empty(0), rate)  # raises for a rate that it lacks
            threshold = next(one.threshold for one in facts.thresholds if one.fpr == rate)
            words = f"threshold of the monitor for a false positive rate of {rate:g}"
        return cls(probe, _plain(experiment, probe, data), positive, threshold, words, on)

    @property
    def facts(self) -> dict[str, str]:
        """Names and values of the probe and its rows."""
        own = self.probe.facts
        named = {"probe": own.kind, "site": own.site, "position": own.at, "fitted on": own.model}
        named["data"] = "test rows of the run" if self.on is None else str(self.on)
        return named | {"threshold": f"{self.words}, a score of {self.threshold:.4g}"}

    def site_of(self, engine: NetworkEngine) -> int:
        """Return the index of the site of the probe among those of an engine."""
        parts = [tuple(part.text for part in one.parts) for one in engine.selections]
        return parts.index(self.probe.facts.sites)

    @property
    def position(self) -> int:
        """Index of the position of the probe among those of its run."""
        own, rules = self.probe.facts.position, self.experiment.tokens.positions
        places: list[Any] = [((one.share or (None,))[0], one.offset) for one in rules]
        return places.index((own.get("share"), own.get("offset", 0)))

    def scores(self, X: LazyRows, probe: SavedProbe | None = None) -> Floats:
        """Return the scores (n_samples,) for the label, of the saved probe or of another one."""
        one = probe or self.probe
        parts = [one.for_class(self.positive, one.scores(block)) for _, block in X.blocks()]
        return np.concatenate(parts)


def apply_over(
    probe: Path | str,
    networks: Sequence[str | Path | Network],
    *,
    on: Path | str | None = None,
    data: Any = None,
    threshold: float | None = None,
    device: str = "cpu",
    cache_root: Location | None = None,
    watcher: Watcher = SILENT,
) -> OverNetworks:
    """Return the scores of a saved probe on several networks, without fitting it again.

    Args:
        probe: path of a probe of two labels in the folder of a finished run, `RUN/probes/...`.
        networks: sources, such as folders of checkpoints, or networks in memory, which are read
            with the tokenizer of the run. Shifts and differences refer to the first one.
        on: table of labelled rows with the columns of the run's data; None for the test rows of the
            run. After a nested cross-validation there are none: the probe was fitted on all rows.
        data: the rows of the run, if they were passed in Python.
        threshold: false positive rate of a threshold of the probe; None for its first one, or for
            the decision boundary of a probe without thresholds.
        device: compute device.
        cache_root: folder of the activation caches; None for the user's default.
        watcher: receives progress.

    Raises:
        ConfigError: the probe is in no run, or does not tell two labels of texts apart; or a
            network has other tokens or another width, or lacks the site.
        DataError: the rows cannot be read, or have one label.
    """
    path = path_of("probe", probe)
    fixed = _Fixed.read(path, None if on is None else path_of("on", on), data, threshold)
    if not networks or isinstance(networks, str | Path):
        raise ConfigError('networks must be a list of at least one network, such as ["mini"].')
    engines = list[NetworkEngine]()
    for network in networks:  # all are checked before the first one computes
        with _of_network(network):
            engines.append(_engine(fixed, network, device))
            _check_tokens(_texts(engines[-1]), _texts(engines[0]))
    texts, truth = _texts(engines[0]), _Truth.of(fixed, engines[0])
    how: dict[str, Any] = {"cache_root": cache_root, "watcher": watcher}
    rows, predictions = list[dict[str, Any]](), list[ClassPredictions]()
    for number, network in enumerate(networks):
        watcher.progress("networks", number, len(networks))
        with _of_network(network):
            # Removed, so that its memory is free before the next network computes.
            row, predicted = _measured(fixed, engines.pop(0), truth, device, how)
        rows.append(row)
        predictions.append(predicted)
    watcher.progress("networks", len(networks), len(networks))
    pairs = [([one], [predictions[0]]) for one in predictions[1:]]
    differences = differences_of("auroc", pairs, truth.resamples) if pairs else []
    for row, found in zip(rows[1:], differences, strict=True):
        row |= {"difference": found.value, "p": found.p, "p_adjusted": found.p_adjusted}
        row |= {"difference_low": found.ci_low, "difference_high": found.ci_high}
    for row in rows:
        row["shift"] = (row["mean"] - rows[0]["mean"]) / (rows[0]["sd"] or np.nan)
    return OverNetworks(
        rows=pd.DataFrame(rows, columns=[*COLUMNS]),
        positive=fixed.positive,
        threshold=fixed.words,
        notes=tuple(_notes(fixed, texts, rows[0]["weights"])),
        facts=fixed.facts | {"rows": f"{len(truth.rows):,} in {truth.resamples.n_groups:,} groups"},
    )


class _Truth(NamedTuple):
    """The tested rows.

    Attributes:
        rows: their numbers, shape (n_tested,).
        is_positive: whether each has the positive label, shape (n_tested,).
        resamples: resamples of their groups.
    """

    rows: IntArray
    is_positive: Mask
    resamples: Resamples

    @classmethod
    def of(cls, fixed: _Fixed, engine: NetworkEngine) -> _Truth:
        """Return the test rows of the run, or all rows of the table of labelled rows.

        Raises:
            DataError: they do not have the two labels of the probe.
        """
        texts = _texts(engine)[-1]
        rows = np.arange(len(texts.example))
        if fixed.on is None:
            rows = engine.design.splits[0].test
        labels = texts.dataset.labels[texts.example][rows].astype(str)
        if {*labels} != {*fixed.probe.classes}:
            found = joined_names(sorted(map(str, {*labels}))[:MOST_TOKENS])
            own = joined_names(fixed.probe.classes)
            raise DataError(f"The labels of the rows are {found}, and those of the probe {own}.")
        resamples = Resamples.leave_one_out(texts.groups[rows])
        return cls(rows, labels == fixed.positive, resamples)

    def predicted(self, scores: Floats) -> ClassPredictions:
        """Return the predictions of rows by their scores (n_tested,) for the positive label."""
        of_classes, codes = np.stack([-scores, scores], axis=1), self.is_positive.astype(np.int64)
        return ClassPredictions.of_scores(codes, of_classes, are_logits=False, positive=1)


def _of_network(network: str | Path | Network) -> AbstractContextManager[None]:
    """Put the name of a network before the message of errors raised in the block."""
    name = type(network).__name__ if isinstance(network, Network) else str(network)
    return KeyLocation().at(name)


def _plain(experiment: Experiment, probe: SavedProbe, data: Any) -> Experiment:
    """Return the experiment of a run with the sites and the kind of one of its probes only."""
    facts, settings = probe.facts, experiment.probe
    kinds = [one for one in settings.kinds if facts.kind in {spec.text for spec in one.each}]
    joined = (facts.sites,) if len(facts.sites) > 1 else ()
    sites = {"sites": facts.sites, "concatenate": joined, "requests": None}
    changes: dict[str, Any] = {"capture": experiment.capture.model_copy(update=sites)}
    changes["probe"] = settings.changed(kinds=tuple(kinds), baselines=(), **_UNUSED)
    changes |= {"attention": AttentionSection(), "interventions": (), "measure": ()}
    plain = without_analyses(experiment).model_copy(update=changes)
    # Messages are about a network, not about a line of the run's file.
    plain = validated(Experiment, plain.model_dump(), KeyLocation())
    return plain if data is None else plain.with_data(data)


def _engine(fixed: _Fixed, network: str | Path | Network, device: str) -> NetworkEngine:
    """Return the rows as a network reads them, after its site and width are checked."""
    changes: dict[str, Any] = dict.fromkeys(("path", "checkpoints", "memory"))
    changes["random_weights"] = 0
    changes |= {} if isinstance(network, Network) else {"source": str(network)}
    model = fixed.experiment.model.model_copy(update=changes)
    experiment = fixed.experiment.model_copy(update={"model": model})
    if isinstance(network, Network):
        experiment = experiment.with_model(network)
    engine = prepare(experiment, How(device))
    n_heads = engine.texts.config.n_heads
    fixed.probe.check_fits(width=engine.widths[fixed.site_of(engine)], n_heads=n_heads)
    if fixed.on is None:
        return engine
    data, ending = experiment.data, fixed.on.suffix.removeprefix(".")
    changes = {"columns": data.columns.model_copy(update={"split": None}), "pairs": None}
    changes |= {"format": ending if ending in FORMATS else data.format}
    dataset = read_sources(data.model_copy(update=changes), {"": fixed.on}, ())
    texts = engine.reader.read(experiment.tokens.asked_of(dataset))
    return replace(engine, further={ON: texts})


def _texts(engine: NetworkEngine) -> list[ReadTexts]:
    """Return the texts of the run, then those of the table of labelled rows if there is one."""
    return [engine.texts, *cast(dict[str, ReadTexts], engine.further).values()]


def _check_tokens(texts: Sequence[ReadTexts], first: Sequence[ReadTexts]) -> None:
    """Raise ConfigError unless a network reads the same tokens as the first one."""
    for own, of_first in zip(texts, first, strict=True):
        ids, others = ([one.id for one in read.dataset.examples] for read in (own, of_first))
        if ids != others:
            raise ConfigError(
                f"it reads {len(ids):,} texts and the first network {len(others):,}, such as for "
                "another context. Leave out long texts."
            )
        same = [np.array_equal(*pair) for pair in zip(own.ids, of_first.ids, strict=True)]
        if not all(same):
            number = same.index(False)
            here, there = (
                read.tokenizer.strings(read.ids[number][:MOST_TOKENS]) for read in (own, of_first)
            )
            raise ConfigError(
                f"its tokenizer reads {same.count(False):,} of {len(same):,} texts as other tokens "
                f"than that of the first network, such as {own.dataset.examples[number].where}: "
                f"{here}, there {there}. Give networks with the same vocabulary."
            )


def _measured(
    fixed: _Fixed, engine: NetworkEngine, truth: _Truth, device: str, how: dict[str, Any]
) -> tuple[dict[str, Any], ClassPredictions]:
    """Return the row of a network, without shift and difference, and the predictions there.

    `how` are the options of a capture.
    """
    engine, position = engine.ready(device).open(partial(capture_models, **how)), fixed.position
    site = engine.selections[fixed.site_of(engine)]
    X = engine.activations.block(site, position)
    if fixed.on is None:
        tested = X.select(truth.rows)
    else:
        tested = capture_further(engine, ON, (site,), **how).block(site, position)
    # The recipe: the same rows, folds and grid.
    prober = make_probers(engine.experiment, engine.design, device)[position]
    retrained = replace(fixed.probe, layers=prober.site(X).fits[fixed.probe.facts.kind].layers)
    scores, again = fixed.scores(tested), truth.predicted(fixed.scores(tested, retrained))
    predicted = truth.predicted(scores)
    auroc, auroc_again = (
        with_interval("auroc", [one], truth.resamples) for one in (predicted, again)
    )
    rates = rates_at(fixed.threshold, scores, truth.is_positive, truth.resamples)
    row = {
        "network": engine.experiment.model.name,
        **{"auroc": auroc.value, "auroc_low": auroc.low, "auroc_high": auroc.high},
        **{"mean": scores.mean(), "sd": scores.std()},
        **{name.removeprefix("test_"): value for name, value in rates.items()},
        **{"retrained": auroc_again.value, "retrained_low": auroc_again.low},
        "retrained_high": auroc_again.high,
        "weights": engine.activations.stores[TASK].identity.weights,
    }
    if len(retrained.layers) == 1:
        row["cosine"] = cosine(fixed.probe.directions[0], retrained.directions[0])
    return row, predicted


def _notes(fixed: _Fixed, texts: Sequence[ReadTexts], weights: str) -> Iterator[str]:
    """Yield reasons to doubt the numbers; `weights` is the digest of those of the first network."""
    if weights != fixed.probe.facts.weights:
        yield (
            "The first network is not the one that the probe was fitted on, so that shifts and "
            "differences are not from there. Give that network first."
        )
    own, *further = texts
    known = {appearance(one.text) for one in own.dataset.examples}
    for read in further:
        n = sum(appearance(one.text) in known for one in read.dataset.examples)
        if n:
            yield (
                f"{n:,} of {counted(len(read.dataset), 'labelled text')} are among the rows of the "
                "run: the probe may have been fitted on them."
            )
