"""Transfer of probes between data sets: scores, shared rows, and cosines between directions."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probekit.accelerators import check_device
from probekit.activations.capture import fill
from probekit.activations.local import default_root
from probekit.activations.records import Location
from probekit.chosen.registry import asked, doors
from probekit.data.labels import appearance, folded
from probekit.errors import ConfigError, DataError
from probekit.experiment.document import dump_settings
from probekit.experiment.loader import make_text_experiment
from probekit.experiment.schema import Experiment
from probekit.files import csv_text, sweep_drafts, write_atomic
from probekit.lazy_rows import Codes, Features, Floats, LazyRows, Place
from probekit.pipeline.capture.captures import capture_further
from probekit.pipeline.engines.engine import TASK, Activations
from probekit.pipeline.engines.network import CapturedRows, NetworkEngine, checks_of_files
from probekit.pipeline.engines.table import How, prepare
from probekit.pipeline.measure.probing import make_probers
from probekit.probes.data import ProbeData, names_of
from probekit.probes.prober import Prober
from probekit.probes.score.exchange import permuted_labels
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import Resamples
from probekit.probes.score.scored import (
    Predictor,
    Scored,
    SiteResult,
    differences_of,
    lead_over,
    measure,
)
from probekit.probes.settings import ProbeSpec
from probekit.probes.solve.layers import cosine, direction, pooled_spread
from probekit.provenance import pretty_json, versions
from probekit.report.pages.transfer_page import transfer_page
from probekit.results.comparison import COSINES, SCORES, Transfer, differing, flat
from probekit.terminal import SILENT, Watcher

NULL_DRAWS = 10  # label permutations for the null distribution of cosines
# Settings that do not affect the transfer, or whose effect is compared instead of their spelling.
_MAY_DIFFER = (
    "model.random_weights",
    "model.random_seed",
    "capture.sites",
    "capture.concatenate",
    *(f"probe.{key}" for key in ("baselines", "description", "learning_steps", "permutations")),
)

# What a test row shares with training rows of another set, by column of the scores.
_SHARED = {"known_texts": "repeat a text", "known_groups": "are in a group"}
POOLED = "all sets"  # name of the training rows of all sets together


class TransferSet(NamedTuple):
    """A data set for training and testing.

    Attributes:
        source: its rows and their activations.
        prober: fits and scores probes on the rows.
        further: the activations of further texts, by the name of the texts.
    """

    source: NetworkEngine
    prober: Prober
    further: Mapping[str, Activations]

    @property
    def name(self) -> str:
        """The name of its experiment."""
        return self.source.experiment.name


class _Side(NamedTuple):
    """Training rows of one set or of several, and the sets that their probes are tested on.

    Attributes:
        name: the name of the set, or of the pooled sets.
        members: indices of the sets with the training rows.
        tested: of each set with test rows, by its index, the places of these among all test rows.
        prober: fits and scores probes on the rows of all sets, one after the other.
    """

    name: str
    members: Sequence[int]
    tested: Mapping[int, Codes]
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
    new = dict[tuple[str, str], NDArray[np.bool_]]()  # the test rows that test transfer
    for side in sides:
        for number in side.tested:
            others = [sets[one] for one in side.members if one != number]
            if others:
                pair = side.name, sets[number].name
                shared = _shared_rows(others, sets[number])
                known = [mask for mask in shared.values() if mask is not None]
                new[pair] = ~np.any(known, axis=0)
                leaks[pair] = {
                    what: None if mask is None else np.count_nonzero(mask)
                    for what, mask in shared.items()
                }
    n_tested = {one.name: len(one.prober.test_rows) for one in sets}
    first, settings = sets[0], sets[0].source.experiment
    selections, main_metric = first.source.selections, first.prober.main_metric
    scores: list[dict[str, Any]] = []
    cosines: list[dict[str, Any]] = []
    tables = defaultdict[str, list[dict[str, Any]]](list)
    validation: dict[tuple[str, str], float] = {}
    for done, selection in enumerate(selections):
        watcher.progress("transfer", done, len(selections))
        X = [one.source.activations.block(selection) for one in sets]
        spread = pooled_spread([x.select(_scaling(one)) for one, x in zip(sets, X, strict=True)])
        every_row = joined_rows(X).loaded()
        results = [side.prober.site(every_row) for side in sides]
        for spec in first.prober.settings.specs:
            place = {"model": settings.model.name, "site": selection.text}
            place |= {"position": settings.tokens.position.text, "view": settings.capture.view}
            place |= {"probe": spec.text}
            measured = [one for own in results[: len(sets)] for one in own.of_kind(spec.text)]
            # Validation scores are of the main metric only.
            values = [m.value for m in measured if m.split == "validation" and m.target == "task"]
            # NaN if the metric is undefined for all sets.
            mean = float(np.mean(values)) if values else math.nan
            validation[selection.text, spec.text] = METRICS[main_metric].sign * mean
            for row in _scores(sets, sides, results, spec, new):
                scores.append(place | row | leaks.get((row["train"], row["test"]), {}))
            for analysis, transferred in doors("measure", "transferred"):
                for row in transferred(sets, X, results, spec, selection):
                    tables[analysis.file].append(place | row)
            found = _cosines(sets, X, results, spec, null_draws, spread)
            cosines += [place | row for row in found]
    watcher.progress("transfer", len(selections), len(selections))
    result = Transfer(
        names=tuple(one.name for one in sets),
        pooled=tuple(side.name for side in sides[len(sets) :]),
        model=settings.model.name,
        scores=pd.DataFrame(scores, columns=list(SCORES)),
        cosines=pd.DataFrame(cosines, columns=list(COSINES)),
        metric=main_metric,
        chosen=max(validation, key=lambda key: np.nan_to_num(validation[key], nan=-np.inf)),
        notes=tuple(
            f"{np.count_nonzero(~new[train, test]):,} of {n_tested[test]:,} test rows of {test} "
            f"are left out of the score of {train} on {test}: they "
            f"{' or '.join(f'{_SHARED[what]} ({n:,})' for what, n in counts.items() if n)} of its "
            "training rows."
            for (train, test), counts in leaks.items()
            if any(counts.values())
        ),
        tables={file: pd.DataFrame(rows) for file, rows in tables.items()},
    )
    record = {
        "experiments": {one.name: dump_settings(one.source.experiment) for one in sets},
        "digests": {one.name: one.source.design.dataset.digest for one in sets},
        "weights": first.source.activations.stores[TASK].identity.weights,
        "compared_with": checks_of_files(settings),
        "notes": list(result.notes),
        "versions": versions(),
    }
    folder = Path(out)
    sweep_drafts(folder.glob(".*"))
    files = {"transfer.csv": result.scores, "cosines.csv": result.cosines, **result.tables}
    for name, table in files.items():
        write_atomic(folder / name, csv_text(table))
    write_atomic(folder / "transfer.json", pretty_json(record))
    write_atomic(folder / "transfer.html", transfer_page(result).html())
    return result


def _scaling(one: TransferSet) -> Codes:
    """Return the training rows that scale features: the typical ones, if there are any."""
    data = one.prober.data
    typical = data.train if data.typical is None else data.train[data.typical[data.train]]
    return typical if len(typical) else data.train


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
    prepared = [prepare(experiment, How(device)) for experiment in plain]
    sites = [{selection.text for selection in one.selections} for one in prepared]
    for experiment, own in zip(plain, sites, strict=True):
        if own != sites[0]:
            raise ConfigError(
                f"{plain[0].name} and {experiment.name} probe different sites: only one has "
                f"{', '.join(sorted(own ^ sites[0])[:5])}. Set the sites of all experiments with "
                "--site."
            )
    # Each has a single position.
    probers = [make_probers(one.experiment, one.design, device)[0] for one in prepared]
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
    models = prepared[0].models  # one network for all
    root = default_root() if cache_root is None else cache_root
    sets = []
    for one, prober in zip(prepared, probers, strict=True):
        source, further = replace(one, models=models), {}
        step = f"capture {one.experiment.name}"
        store = fill(source.work(TASK, root), root, step=step, watcher=watcher).store
        for analysis, _ in asked(one.experiment):
            if analysis.door("measure", "transferred") is not None:
                further[analysis.texts] = capture_further(
                    source, analysis.texts, source.selections, cache_root=root, watcher=watcher
                )
        source = replace(source, activations=CapturedRows(one.experiment, {TASK: store}))
        sets.append(TransferSet(source, prober, further))
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
    values = [flat(one.model_dump(mode="json", include=sections)) for one in experiments]
    for other, own in zip(others, values[1:], strict=True):
        lines = [
            f"{key}: {a} in {first.name}, {b} in {other.name}"
            for key, (a, b) in differing([values[0], own]).items()
            if key not in _MAY_DIFFER
        ]
        if lines:
            raise ConfigError(
                "A transfer requires experiments that differ only in their data, but these differ "
                "in:\n  "
                + "\n  ".join(lines)
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

    def of_rows(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(data, name) for data in parts])

    every = ProbeData(
        y=of_rows("y"),
        # Groups are indices, so that no two sets share one: each keeps its folds and intervals.
        groups=np.concatenate([at + own.groups for at, own in zip(starts, parts, strict=False)]),
        types=of_rows("types"),
        train=parts[0].train,
        test=parts[0].test,
        typical=None if parts[0].typical is None else of_rows("typical"),
        positive=sets[0].prober.positive,
    )
    settings = sets[0].prober.settings.changed(control_draws=0, baselines=())
    numbers = range(len(sets))
    plans: dict[str, tuple[Sequence[int], Sequence[int]]] = {
        sets[number].name: ((number,), numbers) for number in numbers
    }
    plans[POOLED] = numbers, numbers
    for number in numbers if len(sets) > 2 else ():
        others = [one for one in numbers if one != number]
        plans[f"{POOLED} but {sets[number].name}"] = others, (number,)
    sides = []
    for name, (members, tested) in plans.items():
        train = np.concatenate([starts[one] + parts[one].train for one in members])
        test = np.concatenate([starts[one] + parts[one].test for one in tested])
        prober = Prober(replace(every, train=train, test=test), settings)
        ends = np.cumsum([len(sets[one].prober.test_rows) for one in tested])
        places = dict(zip(tested, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
        sides.append(_Side(name, members, places, prober))
    return sides


def _shared_rows(
    trains: Sequence[TransferSet], test: TransferSet
) -> dict[str, NDArray[np.bool_] | None]:
    """Return a mask of the test rows of one set that also occur in the training rows of others.

    `known_texts` have a text that looks the same, `known_groups` such a group; the latter is None
    if group names of two sets are not comparable.
    """
    data, tested = test.prober.data, test.prober.test_rows
    texts, names, is_comparable = set[str](), set[str](), True
    for one in trains:
        known = one.prober.data
        texts |= set(map(appearance, one.source.design.texts[known.train]))
        names |= set(map(folded, names_of(known.groups[known.train], known.group_names)))
        a, b = one.source.experiment.data, test.source.experiment.data
        sources = ("root", "file", "train", "test", "hub", "memory")
        is_same = all(getattr(a, key) == getattr(b, key) for key in sources)
        # Groups of two sources are comparable if both are columns. Data of words have sentence
        # numbers as groups, which mean nothing in another source.
        are_columns = all(of.columns.group is not None and not of.has_words for of in (a, b))
        is_comparable &= is_same or are_columns
    groups = names_of(data.groups[tested], data.group_names)
    tested_texts = test.source.design.texts[tested]
    return {
        "known_texts": np.array([appearance(text) in texts for text in tested_texts]),
        "known_groups": np.array([folded(name) in names for name in groups])
        if is_comparable
        else None,
    }


def _cosines(
    sets: Sequence[TransferSet],
    X: Sequence[LazyRows],
    results: Sequence[SiteResult],
    spec: ProbeSpec,
    null_draws: int,
    spread: Floats,
) -> Iterator[dict[str, Any]]:
    """Yield a row of `Transfer.cosines` for each space and ordered pair of sets.

    A set is also paired with itself. There are no rows for a kind of probe without a direction.
    """
    # Each set's name, its probe's direction, and directions on permuted labels.
    directions = list[tuple[str, Floats, Sequence[Floats]]]()
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
        of_permuted: list[Floats] = []
        names, codes = np.unique(data.y[data.train], return_inverse=True)
        for permuted in permuted_labels(codes, data.groups[data.train], null_draws, settings.seed):
            labels = data.y.copy()
            labels[data.train] = names[permuted]
            null_prober = Prober(replace(data, y=labels), null_settings)
            drawn = direction(null_prober.site(x).fits[spec.text])
            assert drawn is not None
            of_permuted.append(drawn)
        directions.append((one.name, own_direction, of_permuted))
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


def _scores(
    sets: Sequence[TransferSet],
    sides: Sequence[_Side],
    results: Sequence[SiteResult],
    spec: ProbeSpec,
    new: Mapping[tuple[str, str], NDArray[np.bool_]],
) -> Iterator[dict[str, Any]]:
    """Yield a row of `Transfer.scores` for each test set, training side and metric.

    `new` are the test rows that are scored, by the names of side and set; without, all are.
    A metric that is undefined for the test set has no row, except the main one.
    """

    def on_set(number: int, side: _Side, result: SiteResult) -> Scored:
        """Return the predictions of a side's probe on the test rows of a set."""
        predictions = result.predictions[Predictor(spec.text, "task")]
        chance, facts = (
            side.prober.splits[0].chance(predictions),
            result.of_kind(spec.text)[0].facts,
        )
        groups = side.prober.data.groups[side.prober.test_rows]
        return Scored((predictions,), (chance,), groups, facts).take(side.tested[number])

    for number, test in enumerate(sets):
        main, whole = test.prober.main_metric, on_set(number, sides[number], results[number])
        for side, result in zip(sides, results, strict=True):
            if number not in side.tested:
                continue
            names = {"train": side.name, "test": test.name}
            scored, own = on_set(number, side, result), whole
            rows = new.get((side.name, test.name), np.ones(len(own.groups), bool))
            if not rows.all():
                scored, own = scored.take(rows), own.take(rows)
            resamples = Resamples.leave_one_out(own.groups)
            measured = {one.metric: one for one in measure(scored, resamples)} if rows.any() else {}
            for metric, one in measured.items():
                pair = scored.predictions, own.predictions
                (found,) = differences_of(metric, [pair], resamples)
                limits = {"difference_low": found.ci_low, "difference_high": found.ci_high}
                lead = lead_over(metric, scored.predictions, scored.chance, resamples)
                limits |= {"lead_low": lead.low, "lead_high": lead.high}
                yield asdict(one) | names | {"difference": found.value} | limits
            if main not in measured:
                yield names | {"metric": main}


def joined_rows(parts: Sequence[LazyRows]) -> LazyRows:
    """Return the rows of several sources with equal features, one after the other.

    >>> parts = [LazyRows.of(np.array([[1.0], [2.0]])), LazyRows.of(np.array([[3.0]]))]
    >>> joined_rows(parts)[np.array([2, 0])].tolist()
    [[3.0], [1.0]]
    """
    ends, first = np.cumsum(list(map(len, parts))), parts[0]

    def read(place: Place) -> Features:
        """Return some rows, each read from its source."""
        numbers = np.arange(*place.indices(ends[-1])) if isinstance(place, slice) else place
        rows = np.empty((len(numbers), first.shape[1]), first.dtype)
        of_part = np.searchsorted(ends, numbers, side="right")
        for index in np.unique(of_part):
            is_own, part = of_part == index, parts[index]
            start = ends[index] - len(part)
            rows[is_own] = part.select(numbers[is_own] - start)[:]
        return rows

    return LazyRows(read, (int(ends[-1]), first.shape[1]), first.dtype)
