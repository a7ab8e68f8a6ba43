"""Transfer of probes between data sets: scores, shared rows, and cosines between directions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from probekit.activations.capture import fill
from probekit.activations.local import default_root
from probekit.activations.records import Location
from probekit.data.labels import appearance, folded
from probekit.errors import ConfigError, DataError
from probekit.experiment.document import dump_settings
from probekit.experiment.loader import make_text_experiment
from probekit.experiment.schema import Experiment
from probekit.files import csv_text, sweep_drafts, write_atomic
from probekit.lazy_rows import Features, LazyRows
from probekit.model.network import Network
from probekit.pipeline.capture.captures import capture_further
from probekit.pipeline.capture.jobs import begin_work
from probekit.pipeline.experiment.prepare import prepare
from probekit.pipeline.experiment.rows import Probed
from probekit.pipeline.experiment.source import TASK, ModelSource, checks_of_files, target_network
from probekit.pipeline.measure.probers import make_probers
from probekit.probes.arrays import Floats
from probekit.probes.data import ProbeData, names_of
from probekit.probes.prober import Prober
from probekit.probes.score.exchange import permuted_labels
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import ClassPredictions, class_scores
from probekit.probes.score.monitor import monitor_rows
from probekit.probes.score.scored import Predictor, Scored, SiteResult, differences_of, measure
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
POOLED = "all sets"  # name of the training rows of all sets together


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
class _Side:
    """Training rows of one set or of several, and the sets that their probes are tested on.

    Attributes:
        name: the name of the set, or of the pooled sets.
        members: indices of the sets with the training rows.
        tested: indices of the sets with the test rows, ascending.
        prober: fits and scores probes on the rows of all sets, one after the other.
    """

    name: str
    members: tuple[int, ...]
    tested: tuple[int, ...]
    prober: Prober


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

    Probes of all data sets together, and of all but the tested one, are scored, too.

    The probes are those of ordinary runs: same folds, same regularisation strength, and the same
    scores on their own test rows; but metrics of one label refer to the positive label of the first
    data set. Activations are read from and written to the same caches.

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
    sides = _sides(sets)
    leaks = {}  # a set has no entry with itself
    for side in sides:
        for number in side.tested:
            others = [sets[one] for one in side.members if one != number]
            if others:
                leaks[side.name, sets[number].name] = _shared_rows(others, sets[number])
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
        joined = np.concatenate([x[:] for x in X])
        results = [side.prober.site(joined) for side in sides]
        for spec in first.prober.settings.specs:
            place = {
                "model": first.experiment.model.name,
                "site": selection.text,
                "position": first.experiment.tokens.position.text,
                "view": first.experiment.capture.view,
                "probe": spec.text,
            }
            measured = [one for own in results[: len(sets)] for one in own.of_kind(spec.text)]
            # Validation scores are of the main metric only.
            values = [m.value for m in measured if m.split == "validation" and m.target == "task"]
            # NaN if the metric is undefined for all sets.
            mean = float(np.mean(values)) if values else math.nan
            sign = METRICS[first.prober.main_metric].sign  # -1 if lower values are better
            validation[place["site"], place["probe"]] = sign * mean
            for row in _scores(sets, sides, results, spec):
                scores.append(place | row | leaks.get((row["train"], row["test"]), {}))
            monitors += [place | row for row in _monitors(sets, X, results, spec, selection)]
            directions = list(_directions(sets, X, results, spec, null_draws))
            cosines += [place | row for row in _cosines(directions, spread)]
    watcher.progress("transfer", len(selections), len(selections))
    result = Transfer(
        names=tuple(one.name for one in sets),
        pooled=tuple(side.name for side in sides[len(sets) :]),
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
            if n and train in n_tested
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
        if rows.negatives is not None:
            negatives = capture_further(
                source, rows.negatives, rows.selections, cache_root=root, watcher=watcher
            )
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
        if len(experiment.tokens.positions) > 1:
            with experiment.at("tokens"):
                raise ConfigError(
                    f"A transfer requires a single position, but there are "
                    f"{len(experiment.tokens.positions)}. Use `--set tokens.sweep=[]`, and give "
                    "one `share`."
                )
        if experiment.split.folds is not None:
            key = "folds" if experiment.split.leave_out is None else "leave_out"
            with experiment.at("split", key):
                raise ConfigError(
                    "A transfer trains one probe per data set, but nested cross-validation trains "
                    f"several. Use `--set split.{key}=null`."
                )
    # All experiments have the same section `probe`, except for keys in `_MAY_DIFFER`.
    settings = first.probe
    for spec in settings.specs:
        if spec.task not in ("classification", "regression"):
            raise ConfigError(
                f"The kind {spec.text} reads whole texts or trees; a transfer supports only kinds "
                "that read rows. Choose others with --kind, such as logistic."
            )


def _sides(sets: Sequence[TransferSet]) -> list[_Side]:
    """Return the training sides: each set, all together and, of several, all but each one."""
    parts = [one.prober.data for one in sets]
    starts = np.cumsum([0, *(len(data.y) for data in parts)])
    of_rows: dict[str, Any] = {
        name: np.concatenate([getattr(data, name) for data in parts]) for name in ("y", "types")
    }
    # Groups are indices, so that no two sets share one: each keeps its own folds and intervals.
    of_rows["groups"] = np.concatenate(
        [start + data.groups for start, data in zip(starts, parts, strict=False)]
    )
    if parts[0].typical is not None:
        of_rows["typical"] = np.concatenate([data.typical for data in parts])
    every = tuple(range(len(sets)))
    plans: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        one.name: ((number,), every) for number, one in enumerate(sets)
    }
    plans[POOLED] = every, every
    for number, one in enumerate(sets if len(sets) > 2 else ()):
        plans[f"{POOLED} but {one.name}"] = every[:number] + every[number + 1 :], (number,)
    settings = sets[0].prober.settings.changed(control_draws=0, baselines=())
    sides = []
    for name, (members, tested) in plans.items():
        data = ProbeData(
            **of_rows,
            train=np.concatenate([starts[one] + parts[one].train for one in members]),
            test=np.concatenate([starts[one] + parts[one].test for one in tested]),
            positive=sets[0].prober.positive,
        )
        sides.append(_Side(name, members, tested, Prober(data, settings)))
    return sides


def _shared_rows(trains: Sequence[TransferSet], test: TransferSet) -> dict[str, int | None]:
    """Return the number of test rows of one set that also occur in the training rows of others.

    `known_texts` have a text that looks the same, `known_groups` such a group; the latter is None
    if group names of two sets are not comparable.
    """
    data, tested = test.prober.data, test.prober.test_rows
    texts, names, is_comparable = set[str](), set[str](), True
    for one in trains:
        known = one.prober.data
        texts |= set(map(appearance, one.source.rows.texts[known.train]))
        names |= set(map(folded, names_of(known.groups[known.train], known.group_names)))
        a, b = one.experiment.data, test.experiment.data
        sources = ("root", "file", "train", "test", "hub", "memory")
        is_same = all(getattr(a, key) == getattr(b, key) for key in sources)
        # Groups of two sources are comparable if both are columns. Data of words have sentence
        # numbers as groups, which mean nothing in another source.
        are_columns = all(of.columns.group is not None and not of.has_words for of in (a, b))
        is_comparable &= is_same or are_columns
    groups = names_of(data.groups[tested], data.group_names)
    return {
        "known_texts": sum(appearance(text) in texts for text in test.source.rows.texts[tested]),
        "known_groups": sum(folded(name) in names for name in groups) if is_comparable else None,
    }


def _directions(
    sets: Sequence[TransferSet],
    X: Sequence[LazyRows],
    results: Sequence[SiteResult],
    spec: ProbeSpec,
    null_draws: int,
) -> Iterator[tuple[str, Floats, Sequence[Floats]]]:
    """Yield each set's name, its probe's direction, and directions on permuted labels.

    There are none for a kind of probe without a direction.
    """
    for one, x, result in zip(sets, X, results, strict=False):
        data, settings = one.prober.data, one.prober.settings
        own_direction, penalty = direction(result.fits[spec.text]), result.penalties[spec.text]
        if own_direction is None:
            return
        null_settings = settings.changed(
            kinds=(spec,),
            C=settings.C if penalty is None else (penalty,),  # as chosen on the true labels
            # Minimal settings of a Prober, because only the fit is used.
            control_draws=0,
            folds=2,
        )
        null: list[Floats] = []
        names, codes = np.unique(data.y[data.train], return_inverse=True)
        for permuted in permuted_labels(codes, data.groups[data.train], null_draws, settings.seed):
            labels = data.y.copy()
            labels[data.train] = names[permuted]
            null_prober = Prober(replace(data, y=labels), null_settings)
            drawn = direction(null_prober.site(x).fits[spec.text])
            assert drawn is not None
            null.append(drawn)
        yield one.name, own_direction, null


def _scores(
    sets: Sequence[TransferSet],
    sides: Sequence[_Side],
    results: Sequence[SiteResult],
    spec: ProbeSpec,
) -> Iterator[dict[str, Any]]:
    """Yield a row of `Transfer.scores` for each test set, training side and metric.

    A metric that is undefined for the test set has no row, except the main one.
    """

    def on_set(number: int, side: _Side, result: SiteResult) -> Scored:
        """Return the predictions of a side's probe on the test rows of a set."""
        predictions, tested = result.predictions[Predictor(spec.text, "task")], sets[number].prober
        chance, facts = side.prober.chance(predictions, 0), result.of_kind(spec.text)[0].facts
        start = sum(len(sets[one].prober.test_rows) for one in side.tested if one < number)
        groups = side.prober.data.groups[side.prober.test_rows]
        scored = Scored((predictions,), (chance,), groups, facts)
        return scored.take(np.arange(start, start + len(tested.test_rows)))

    for number, test in enumerate(sets):
        resamples, main = test.prober.resamples_of(spec.text), test.prober.main_metric
        own = on_set(number, sides[number], results[number]).predictions
        for side, result in zip(sides, results, strict=True):
            if number not in side.tested:
                continue
            scored, names = on_set(number, side, result), {"train": side.name, "test": test.name}
            measured = {one.metric: one for one in measure(scored, resamples)}
            for metric, one in measured.items():
                (found,) = differences_of(metric, [(scored.predictions, own)], resamples)
                limits = {"difference_low": found.ci_low, "difference_high": found.ci_high}
                yield asdict(one) | names | {"difference": found.value} | limits
            if main not in measured:
                yield names | {"metric": main}


def _monitors(
    sets: Sequence[TransferSet],
    X: Sequence[LazyRows],
    results: Sequence[SiteResult],
    spec: ProbeSpec,
    site: Probed,
) -> Iterator[dict[str, Any]]:
    """Yield a row of `Transfer.monitors` for each training set with a monitor, test set and rate.

    X are the rows of all sets at the site.
    """
    for train, result in zip(sets, results, strict=False):
        prober, negatives, fit = train.prober, train.negatives, result.fits[spec.text]
        if negatives is None:
            continue
        monitor, positive = negatives.experiment.monitor, sets[0].prober.positive
        assert monitor is not None
        assert positive is not None  # of two labels it is the rarer one
        code = list(prober.data.classes).index(positive)

        def detected(
            X: Features, prober: Prober = prober, fit: FittedLayers = fit, code: int = code
        ) -> Floats:
            """Return the scores (n_samples,) for the positive class of the first set."""
            scores = fit.outputs(X.astype(np.float64), len(prober.data.classes))
            unknown = np.zeros(len(scores), dtype=np.int64)
            return class_scores(ClassPredictions.of_scores(unknown, scores, spec.logits), code)

        of_negatives = [detected(block) for _, block in negatives.block(site).blocks()]
        for test, x in zip(sets, X, strict=True):
            tested = test.prober
            rows = monitor_rows(
                monitor.fpr,
                np.concatenate(of_negatives),
                negatives.rows.groups,
                detected(x[tested.test_rows]),
                tested.data.y[tested.test_rows] == positive,
                tested.resamples_of(spec.text),
            )
            yield from ({"train": train.name, "test": test.name} | row for row in rows)


def _cosines(
    directions: Sequence[tuple[str, Floats, Sequence[Floats]]], spread: Floats
) -> Iterator[dict[str, Any]]:
    """Yield a row of `Transfer.cosines` for each space and ordered pair of sets.

    A set is also paired with itself.
    """
    spaces = (("raw", None), ("standardised", spread))
    for (space, scale), a, b in product(spaces, directions, directions):
        (name, of_a, null_of_a), (other, of_b, null_of_b) = a, b
        value = cosine(of_a, of_b, scale)
        # Directions on permuted labels of one set, each with the direction of the other set.
        null = [cosine(drawn, of_b, scale) for drawn in null_of_a]
        if a is not b:
            null += [cosine(of_a, drawn, scale) for drawn in null_of_b]
        row: dict[str, Any] = {"train": name, "test": other, "space": space}
        row |= {"cosine": value, "n_null": len(null)}
        if null:
            row["null_low"], row["null_high"] = np.nanquantile(null, [0.025, 0.975])
            if a is not b:  # the cosine of a probe with itself is 1: there is nothing to test
                row["p"] = (1 + int((np.abs(null) >= abs(value)).sum())) / (1 + len(null))
        yield row
