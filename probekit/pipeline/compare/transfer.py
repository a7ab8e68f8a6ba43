"""Transfer of probes between data sets: scores, shared rows, and cosines between directions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from probekit.activations.capture import fill
from probekit.activations.local import default_root
from probekit.activations.records import Location
from probekit.errors import ConfigError, DataError
from probekit.experiment.document import dump_settings
from probekit.experiment.loader import make_text_experiment
from probekit.experiment.schema import Experiment
from probekit.files import csv_text, sweep_drafts, write_atomic
from probekit.lazy_rows import Features, LazyRows
from probekit.model.network import Network
from probekit.pipeline.capture.captures import capture_negatives
from probekit.pipeline.capture.jobs import begin_work
from probekit.pipeline.experiment.prepare import prepare
from probekit.pipeline.experiment.rows import Probed
from probekit.pipeline.experiment.source import TASK, ModelSource, checks_of_files, target_network
from probekit.pipeline.measure.probers import make_probers
from probekit.probes.arrays import Floats
from probekit.probes.data import names_of
from probekit.probes.fitters import outputs_of
from probekit.probes.prober import Prober
from probekit.probes.score.contributions import difference_of_parts
from probekit.probes.score.differences import paired_differences
from probekit.probes.score.exchange import permuted_labels
from probekit.probes.score.intervals import score_interval
from probekit.probes.score.metric_table import METRICS, Family, metric_functions
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions, class_scores
from probekit.probes.score.monitor import monitor_rows
from probekit.probes.score.scored import (
    Measurement,
    Predictions,
    majority_guess,
    metrics_of,
    parts_of,
)
from probekit.probes.settings import ProbeSpec
from probekit.probes.solve.layers import FittedLayers, cosine, direction, pooled_spread
from probekit.products import check_device
from probekit.provenance import pretty_json, versions
from probekit.report.pages.transfer_page import transfer_page
from probekit.results.comparison import COSINES, SCORES, Transfer
from probekit.results.finished_run import flat
from probekit.terminal import SILENT, Watcher

NULL_DRAWS = 10  # label permutations for the null distribution of cosines
# Settings that do not affect the transfer, or whose effect is compared instead of their spelling.
_MAY_DIFFER = (
    "model.random_weights",
    "model.random_seed",
    "capture.sites",
    "capture.concatenate",
    "probe.baselines",
    "probe.description",
    "probe.learning_steps",
    "probe.permutations",
)

# What a test row shares with training rows of another set, by column of the scores.
_SHARED = {"known_texts": "repeat a text", "known_groups": "are in a group"}
_OF_FIT = ("n_train", "C", "converged", "seed")  # columns of the scores
# What predictions for another data set contain besides the predicted classes; see `Metric.needs`.
TRANSFERRED = frozenset({"scores"})


@dataclass(frozen=True, eq=False)
class TransferSet:
    """A data set for training and testing.

    Attributes:
        name: name of its experiment.
        experiment: settings for reading, splitting and probing.
        source: its rows and their activations.
        prober: fits and scores probes on the rows.
        negatives: the negatives of its monitor and their activations; None without a monitor.
    """

    name: str
    experiment: Experiment
    source: ModelSource
    prober: Prober
    negatives: ModelSource | None = None


@dataclass(frozen=True, eq=False)
class _Fitted:
    """One kind of probe fitted on a set at a site.

    Attributes:
        data: the set.
        spec: the kind of probe.
        measurements: its scores on the rows of the set; first those of the task on the test rows.
        fit: the fit on the training rows.
        direction: its direction; None if it has none.
        null: directions of the same kind of probe on permuted labels; empty without a direction.
    """

    data: TransferSet
    spec: ProbeSpec
    measurements: Sequence[Measurement]
    fit: FittedLayers
    direction: Floats | None
    null: Sequence[Floats]


def transfer(
    experiments: Sequence[Experiment | Mapping[str, Any] | str | Path],
    *,
    out: Path | str,
    null_draws: int = NULL_DRAWS,
    cache_root: Location | None = None,
    device: str = "cpu",
    watcher: Watcher = SILENT,
) -> Transfer:
    """Return the scores of each data set's probes on the test rows of every data set.

    The probes are those of ordinary runs: same folds, same regularisation strength, and the same
    scores on their own test rows. Activations are read from and written to the same caches.

    Args:
        experiments: at least two experiments or paths of files that differ only in their data.
        out: output folder for transfer.csv, cosines.csv, transfer.json and transfer.html.
        null_draws: label permutations per set for the null distribution of cosines.
        cache_root: folder of the activation caches; None for the user's default.
        device: compute device of the model.
        watcher: receives progress.

    Raises:
        ConfigError: The experiments differ in more than their data, or cannot be transferred.
        DataError: The data sets have different labels, or cannot be read.
        StoreError: A file cannot be written.
    """
    loaded = [make_text_experiment(experiment) for experiment in experiments]
    sets = make_sets(loaded, cache_root=cache_root, device=device, watcher=watcher)
    leaks = {}  # a set has no entry with itself
    for train, test in product(sets, sets):
        if train is not test:
            leaks[train.name, test.name] = _shared_rows(train, test)
    n_tested = {one.name: len(one.prober.test_rows) for one in sets}
    first, selections = sets[0], sets[0].source.rows.selections
    scores: list[dict[str, Any]] = []
    cosines: list[dict[str, Any]] = []
    monitors: list[dict[str, Any]] = []
    validation: dict[tuple[str, str], float] = {}
    for done, selection in enumerate(selections):
        watcher.progress("transfer", done, len(selections))
        X = [one.source.block(selection) for one in sets]
        # Training rows that scale the features: those that are not typical do not, if others are.
        scaling = []
        for one, x in zip(sets, X, strict=True):
            data, rows = one.prober.data, one.prober.data.train
            if data.typical is not None and data.typical[rows].any():
                rows = rows[data.typical[rows]]
            scaling.append(x[rows])
        spread = pooled_spread(scaling)
        for fits in _fit(sets, X, null_draws):
            place = {
                "model": first.experiment.model.name,
                "site": selection.text,
                "position": first.experiment.tokens.position.text,
                "view": first.experiment.capture.view,
                "probe": fits[0].spec.text,
            }
            measured = [one for fit in fits for one in fit.measurements]
            # Validation scores are of the main metric only.
            values = [m.value for m in measured if m.split == "validation" and m.target == "task"]
            # NaN if the metric is undefined for all sets.
            mean = float(np.mean(values)) if values else math.nan
            sign = METRICS[first.prober.main_metric].sign  # -1 if lower values are better
            validation[place["site"], place["probe"]] = sign * mean
            for row in _scores(fits, X):
                scores.append(place | row | leaks.get((row["train"], row["test"]), {}))
            monitors += [place | row for row in _monitors(fits, X, selection)]
            cosines += [place | row for row in _cosines(fits, spread)]
    watcher.progress("transfer", len(selections), len(selections))
    result = Transfer(
        names=tuple(one.name for one in sets),
        model=first.experiment.model.name,
        scores=pd.DataFrame(scores, columns=list(SCORES)),
        cosines=pd.DataFrame(cosines, columns=list(COSINES)),
        metric=first.prober.main_metric,
        chosen=max(validation, key=lambda key: np.nan_to_num(validation[key], nan=-np.inf)),
        notes=tuple(
            f"Test rows of {test} that {_SHARED[what]} of the training rows of {train}: {n:,} of "
            f"{n_tested[test]:,}. On these rows, {train} to {test} does not test transfer."
            for (train, test), counts in leaks.items()
            for what, n in counts.items()
            if n
        ),
        monitors=pd.DataFrame(monitors),
    )
    folder = Path(out)
    sweep_drafts(folder.glob(".*"))
    write_atomic(folder / "transfer.csv", csv_text(result.scores))
    write_atomic(folder / "cosines.csv", csv_text(result.cosines))
    if monitors:
        write_atomic(folder / "monitor.csv", csv_text(result.monitors))
    record = {
        "experiments": {one.name: dump_settings(one.experiment) for one in sets},
        "digests": {one.name: one.source.rows.dataset.digest for one in sets},
        "weights": first.source.captured[TASK].store.identity.weights,
        "compared_with": checks_of_files(first.experiment),
        "notes": list(result.notes),
        "versions": versions(),
    }
    write_atomic(folder / "transfer.json", pretty_json(record))
    write_atomic(folder / "transfer.html", transfer_page(result))
    return result


def make_sets(
    experiments: Sequence[Experiment], *, cache_root: Location | None, device: str, watcher: Watcher
) -> list[TransferSet]:
    """Return the data sets of experiments with their activations, captured if not cached.

    Raises:
        ConfigError: There are fewer than two experiments, two have the same name, they differ in
            model, tokens, sites or probes, or one cannot be transferred; see `_check_alike`.
        DataError: Their labels differ, or the data cannot be read.
    """
    _check_alike(experiments)
    check_device(device)
    # A transfer does not use these measurements.
    unused = {"description": False, "learning_steps": 0}
    plain = [
        one.on_device(device).model_copy(update={"probe": one.probe.model_copy(update=unused)})
        for one in experiments
    ]
    prepared = [prepare(experiment) for experiment in plain]
    sites = [{selection.text for selection in rows.selections} for rows in prepared]
    for experiment, own in zip(plain, sites, strict=True):
        if own != sites[0]:
            raise ConfigError(
                f"{plain[0].name} and {experiment.name} probe different sites: only one has "
                f"{', '.join(sorted(own ^ sites[0])[:5])}. Set the sites of all experiments with "
                "--site."
            )
    # Each has a single position.
    probers = [make_probers(e, rows, device)[0] for e, rows in zip(plain, prepared, strict=True)]
    labels = [set(map(str, prober.data.classes)) for prober in probers]
    if not probers[0].settings.reads_numbers and any(own != labels[0] for own in labels):
        lists = "\n  ".join(
            f"{one.name}: {', '.join(map(repr, sorted(own)[:20]))}"
            for one, own in zip(plain, labels, strict=True)
        )
        raise DataError(
            "A probe can only predict the labels it was trained on, but the labels differ:\n  "
            f"{lists}\nRename the labels in the data, or remove a data set."
        )
    model = target_network(plain[0], device, TASK)
    root = default_root() if cache_root is None else cache_root

    def models(target: str) -> Network:
        assert target == TASK
        return model

    sets = []
    for one, rows, prober in zip(plain, prepared, probers, strict=True):
        work = begin_work(one, rows, model, TASK, root)
        captured = {TASK: fill(work, root, step=f"capture {one.name}", watcher=watcher)}
        source, negatives = ModelSource(experiment=one, rows=rows, models=models), None
        if one.monitor is not None:
            negatives = capture_negatives(source, rows.selections, cache_root=root, watcher=watcher)
        source = replace(source, captured=captured)
        sets.append(TransferSet(one.name, one, source, prober, negatives))
    return sets


def _check_alike(experiments: Sequence[Experiment]) -> None:
    """Raise ConfigError if experiments differ in more than their data, or cannot be transferred."""
    names = [experiment.name for experiment in experiments]
    if len(names) < 2:
        raise ConfigError(
            f"A transfer needs at least two experiments, but {len(names)} was given: it trains on "
            "one and tests on the others."
        )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(
            f"Two experiments have the name {repeated[0]!r}. Give each file its own `name`, which "
            "identifies it in the tables."
        )
    first, *others = experiments
    sections = {"model", "tokens", "capture", "probe"}
    values = flat(first.model_dump(mode="json", include=sections))
    for other in others:
        other_values = flat(other.model_dump(mode="json", include=sections))
        differing = [
            f"{key}: {values[key]} in {first.name}, {other_values[key]} in {other.name}"
            for key in values
            if key not in _MAY_DIFFER and values[key] != other_values[key]
        ]
        if differing:
            raise ConfigError(
                "A transfer requires experiments that differ only in their data, but these differ "
                "in:\n  "
                + "\n  ".join(differing)
                + "\nGive them the same values, for instance with --set for all files."
            )
    for experiment in experiments:
        if experiment.tokens.sweep:
            with experiment.at("tokens", "sweep"):
                raise ConfigError(
                    f"A transfer requires a single position, but the sweep has "
                    f"{len(experiment.tokens.sweep)} offsets. Use `--set tokens.sweep=[]` and set "
                    "the position."
                )
        if experiment.split.folds is not None:
            with experiment.at("split", "folds"):
                raise ConfigError(
                    "A transfer trains one probe per data set, but nested cross-validation trains "
                    "several. Use `--set split.folds=null`."
                )
    # All experiments have the same section `probe`, except for keys in `_MAY_DIFFER`.
    settings = first.probe.settings()
    for spec in settings.kinds:
        if spec.task not in ("classification", "regression"):
            raise ConfigError(
                f"The kind {spec.text} reads whole texts or trees; a transfer supports only kinds "
                "that read rows. Choose others with --kind, such as logistic."
            )
    family: Family = "number" if settings.reads_numbers else "class"
    metric = METRICS[settings.main_metric]
    if not metric.fits(family, TRANSFERRED):
        fitted = "thresholds" if metric.needs == "alarms" else metric.needs
        allowed = [name for name in metric_functions(family, TRANSFERRED) if METRICS[name].selects]
        with first.at("probe", "metric"):
            raise ConfigError(
                f"A transfer has no {metric.title}: its {fitted} are fitted on one data set and do "
                "not apply to another. Use `--set probe.metric=null`, or one of these metrics: "
                f"{', '.join(allowed)}. The section `monitor` adds the TPR on every data set, at "
                "thresholds from negatives that belong to none."
            )


def _shared_rows(train: TransferSet, test: TransferSet) -> dict[str, int | None]:
    """Return the number of test rows of one set that also occur in the training rows of another.

    `known_texts` have an identical text, `known_groups` the same group; the latter is None if group
    names of the two sets are not comparable.
    """
    known_texts = set(train.source.rows.texts[train.prober.data.train])
    tested = test.prober.test_rows
    texts = sum(text in known_texts for text in test.source.rows.texts[tested])
    a, b = train.experiment.data, test.experiment.data
    sources = ("root", "file", "train", "test", "hub", "memory")
    is_same = all(getattr(a, key) == getattr(b, key) for key in sources)
    groups = None
    # Groups of two sources are comparable if both are columns. Data of words have sentence numbers
    # as groups, which mean nothing in another source.
    if is_same or all(data.columns.group is not None and not data.has_words for data in (a, b)):
        known, own = train.prober.data, test.prober.data
        known_groups = set(names_of(known.groups[known.train], known.group_names))
        groups = sum(name in known_groups for name in names_of(own.groups[tested], own.group_names))
    return {"known_texts": texts, "known_groups": groups}


def _fit(
    sets: Sequence[TransferSet], X: Sequence[LazyRows], null_draws: int
) -> Iterator[tuple[_Fitted, ...]]:
    """Yield, for each kind of probe, its fits on all sets."""
    results = [one.prober.site(x) for one, x in zip(sets, X, strict=True)]
    for spec in sets[0].prober.settings.kinds:
        fits = []
        for one, x, result in zip(sets, X, results, strict=True):
            fit, measurements = result.fits[spec.text], result.of_kind(spec.text)
            data, settings = one.prober.data, one.prober.settings
            own_direction, penalty = direction(fit), measurements[0].C  # that of the task
            null_settings = replace(
                settings,
                kinds=(spec,),
                C=settings.C if penalty is None else (penalty,),  # as chosen on the true labels
                # Minimal settings of a Prober, because only the fit is used.
                control_draws=0,
                folds=2,
            )
            null: list[Floats] = []
            draws = 0 if own_direction is None else null_draws
            names, codes = np.unique(data.y[data.train], return_inverse=True)
            for permuted in permuted_labels(codes, data.groups[data.train], draws, settings.seed):
                labels = data.y.copy()
                labels[data.train] = names[permuted]
                null_prober = Prober(replace(data, y=labels), null_settings)
                drawn = direction(null_prober.site(x).fits[spec.text])
                assert drawn is not None
                null.append(drawn)
            fits.append(_Fitted(one, spec, measurements, fit, own_direction, null))
        yield tuple(fits)


def _scores(fits: Sequence[_Fitted], X: Sequence[LazyRows]) -> Iterator[dict[str, Any]]:
    """Yield a row of `Transfer.scores` for each training set, test set and metric."""
    for test, x in zip(fits, X, strict=True):
        prober = test.data.prober
        X_test = x[prober.test_rows].astype(np.float64)
        # The predictions of the probe trained on this set itself, to which all are compared.
        own = _predict(test.spec, test.fit, X_test, prober)
        resamples = prober.resamples_of(test.spec.text)
        for train in fits:
            predictions = _predict(train.spec, train.fit, X_test, prober)
            facts, uninformed = train.measurements[0], _uninformed(train.data.prober, predictions)
            for metric, function in metrics_of(uninformed).items():
                values = function(predictions, resamples)
                parts, own_parts = parts_of(metric, [predictions]), parts_of(metric, [own])
                interval = score_interval(values, resamples, METRICS[metric].range, parts)
                pair = (values, function(own, resamples))
                part_differences = [difference_of_parts(parts, own_parts)]
                (difference,) = paired_differences([pair], resamples, part_differences)
                limited = difference.within(METRICS[metric].range)
                # The rank correlation of a constant guess is undefined and counts as 0.
                chance = np.nan_to_num(function(uninformed, resamples.undrawn)[0])
                yield {
                    "train": train.data.name,
                    "test": test.data.name,
                    "metric": metric,
                    "value": interval.value,
                    "ci_low": interval.low,
                    "ci_high": interval.high,
                    "chance": float(chance),
                    "difference": difference.value,
                    "difference_low": limited.ci_low,
                    "difference_high": limited.ci_high,
                    "n_test": len(resamples.group_of_row),
                    "n_groups": resamples.n_groups,
                    **{name: getattr(facts, name) for name in _OF_FIT},
                }


def _monitors(
    fits: Sequence[_Fitted], X: Sequence[LazyRows], site: Probed
) -> Iterator[dict[str, Any]]:
    """Yield a row of `Transfer.monitors` for each training set with a monitor, test set and rate.

    X are the rows of all sets at the site.
    """
    for train in fits:
        prober, negatives = train.data.prober, train.data.negatives
        if negatives is None:
            continue
        monitor = negatives.experiment.monitor
        assert monitor is not None
        of_negatives = [_detected(train, block) for _, block in negatives.block(site).blocks()]
        for test, x in zip(fits, X, strict=True):
            tested = test.data.prober
            rows = monitor_rows(
                monitor.fpr,
                np.concatenate(of_negatives),
                negatives.rows.groups,
                _detected(train, x[tested.test_rows]),
                tested.data.y[tested.test_rows] == prober.positive,
                tested.resamples_of(test.spec.text),
            )
            yield from ({"train": train.data.name, "test": test.data.name} | row for row in rows)


def _detected(train: _Fitted, X: Features) -> Floats:
    """Return the scores (n_samples,) of a fit for the positive class of its own data set."""
    data = train.data.prober.data
    scores = train.fit.class_scores(X.astype(np.float64), len(data.classes))
    unknown = np.zeros(len(scores), dtype=np.int64)
    predictions = ClassPredictions.of_scores(unknown, scores, train.spec.logits)
    code = data.positive_code
    assert code is not None  # of two labels it is the rarer one
    return class_scores(predictions, code)


def _predict(spec: ProbeSpec, fit: FittedLayers, X: Floats, prober: Prober) -> Predictions:
    """Return the predictions of a fit on a prober's test rows, whose features are X."""
    if prober.settings.reads_numbers:
        return NumberPredictions(prober.truth_of(spec.text), outputs_of(fit, X, None))
    n_classes = len(prober.data.classes)
    scores = fit.class_scores(X, n_classes)
    predictions = ClassPredictions.of_scores(prober.truth_of(spec.text), scores, spec.logits)
    return replace(predictions, positive=prober.data.positive_code)


def _uninformed(prober: Prober, predictions: Predictions) -> Predictions:
    """Return predictions of the majority class, or mean, of the training labels for every row.

    Their scores are constant and not probabilities, and there are no alarms, because no metric of
    a transfer uses them.
    """
    labels = prober.data.y[prober.data.train]
    if isinstance(predictions, NumberPredictions):
        mean = labels.astype(np.float64).mean()
        return NumberPredictions(predictions.truth, np.full(len(predictions.truth), mean))
    assert isinstance(predictions, ClassPredictions)
    codes = np.searchsorted(prober.data.classes, labels)  # the classes are sorted
    guess = majority_guess(codes, len(predictions.truth))
    scores = np.zeros((len(guess), predictions.n_classes))
    uninformed = ClassPredictions(
        predictions.truth, guess, predictions.n_classes, scores, positive=predictions.positive
    )
    assert uninformed.offers == TRANSFERRED
    return uninformed


def _cosines(fits: Sequence[_Fitted], spread: Floats) -> Iterator[dict[str, Any]]:
    """Yield a row of `Transfer.cosines` for each space and ordered pair of sets.

    A set is also paired with itself. There are no rows for a kind of probe without a direction.
    """
    spaces = (("raw", None), ("standardised", spread))
    for (name, scale), a, b in product(spaces, fits, fits):
        # A kind of probe has a direction on all sets or on none.
        if a.direction is None or b.direction is None:
            return
        value = cosine(a.direction, b.direction, scale)
        # Directions on permuted labels of one set, each with the direction of the other set.
        null = [cosine(drawn, b.direction, scale) for drawn in a.null]
        if a is not b:
            null += [cosine(a.direction, drawn, scale) for drawn in b.null]
        row: dict[str, Any] = {"train": a.data.name, "test": b.data.name, "space": name}
        row |= {"cosine": value, "n_null": len(null)}
        if null:
            row["null_low"], row["null_high"] = np.nanquantile(null, [0.025, 0.975])
            if a is not b:  # the cosine of a probe with itself is 1: there is nothing to test
                row["p"] = (1 + int((np.abs(null) >= abs(value)).sum())) / (1 + len(null))
        yield row
