"""Comparison of two runs: differences between their predictions, by groups of test rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probekit.amounts import FEWEST_UNITS, LEVEL, counted
from probekit.chosen.registry import TEST_ROWS
from probekit.data.checks import FEW_GROUPS
from probekit.data.readers import FORMATS
from probekit.errors import ConfigError, DataError, UnknownNameError, nearest
from probekit.experiment.loader import load_any_experiment
from probekit.files import inside, read_csv
from probekit.pipeline.measure.significance import difference_columns
from probekit.probes.score.differences import Difference
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import WIDER_OVER_FOLDS, ClassPredictions, Resamples, take
from probekit.probes.score.scored import (
    Predictions,
    Predictor,
    differences_of,
    metrics_of,
    parts_of,
)
from probekit.probes.score.unpaired import Side, unpaired_differences
from probekit.probes.targets import HEADLINE, NESTED_PROBE
from probekit.results.comparison import (
    COLUMNS,
    Pairing,
    RunComparison,
    differing,
    run_facts,
    run_titles,
    settings_of,
)
from probekit.results.record import check_finished, load_config, open_record, reading_run_file
from probekit.results.scores import Scores, site_with_head
from probekit.results.site_results import NESTED_SITE, SavedSiteResults, site_stem
from probekit.results.table import only
from probekit.results.verdict import Choice

# Predictions of two runs that are compared, with the columns that identify the pair.
Pair: TypeAlias = tuple[dict[str, Any], Predictions, Predictions]
# If each run has only one value in one of these columns, probes are paired although it differs.
_MAY_DIFFER = ("position", "view", "probe")


class FinishedRun:
    """A finished run whose files have not changed since it was written.

    Attributes:
        folder: the folder of the run.
        record: the contents of run.json.
        verdict: the verdict of the run.
        experiment: the contents of config.yaml.
        table: the rows of results.csv.
        test_rows: `id`, `group` and true label `truth` of each test row, as text.
        reads_numbers: whether the labels are numbers.
        classes: the sorted training labels; empty if the labels are numbers.
        places: the addresses of the task probes.
        selectivity: selectivity of each probe that has one, by address.
        chosen: the address of the selected probe or nested choice; None if there is none.
        resamples: jackknife resamples of the test rows.

    Raises:
        MissingError: The folder does not exist or contains no finished run.
        DataError: A file cannot be read, or was changed after the run.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        check_finished(self.folder)
        self.record = open_record(self.folder)
        self.verdict = self.record.verdict
        path = self.folder / TEST_ROWS
        with reading_run_file(path):
            columns = ["id", "group", "truth"]
            self.test_rows = read_csv(path, dtype=str, keep_default_na=False, usecols=columns)
        self.experiment = load_any_experiment(inside(self.folder / "config.yaml"))
        self.scores = Scores.load(self.folder / "results.csv")
        self.reads_numbers = self.experiment.reads_numbers
        self.classes = () if self.reads_numbers else tuple(self.record.data.training_labels)
        task = self.scores.where(target="task", split="test")
        rows = pd.concat([task.sited, task.concatenated])
        headline = only(self.scores.rows, target=HEADLINE, split="test")

        def place(row: pd.Series) -> ProbeAddress:
            # The row of a nested choice has no site.
            site = site_with_head(row["site"] or NESTED_SITE, row["head"])
            return ProbeAddress(site, row["position"], row["view"], row["probe"])

        self.places = tuple(dict.fromkeys(place(row) for _, row in rows.iterrows()))
        measured = only(pd.concat([rows, headline]), metric="selectivity")
        self.selectivity = {place(row): float(row["value"]) for _, row in measured.iterrows()}
        is_nested, self.chosen = self.verdict.is_nested, None
        chosen = self.verdict.score if is_nested else self.verdict.best
        if chosen is not None:
            site = chosen.name if isinstance(chosen, Choice) else NESTED_SITE
            self.chosen = ProbeAddress(site, chosen.position, chosen.view, chosen.probe)
        groups = self.test_rows["group"].to_numpy(dtype=str)
        widening = WIDER_OVER_FOLDS if is_nested else 1.0
        self.resamples = Resamples.leave_one_out(groups, widening=widening)

    @cached_property
    def truth(self) -> NDArray[np.generic]:
        """The true label of each test row, as a class code or a number; shape (n_test,)."""
        labels = self.test_rows["truth"].to_numpy(dtype=str)
        if self.reads_numbers:
            return labels.astype(np.float64)
        # The classes are sorted and contain every label, so this is the index of each label.
        return np.searchsorted(np.array(self.classes), labels)

    def predictions(self, site: str, position: str) -> Mapping[Predictor, Predictions]:
        """Return the predictions on the test rows at a site and position, by probe and target.

        Predictions for whole texts or trees are left out.

        Args:
            site: the name of the site, followed by a head or neuron, if any; or `baselines`.
            position: the name of the position in results.csv.

        Raises:
            DataError: The predictions are missing or were changed after the run.
            StoreError: The operating system denies access to their files.
        """
        # The nested choice has one file, whatever position its folds chose; for a sweep its
        # position is "", which is not among `offsets`.
        stem = site_stem(site, 0 if site == NESTED_SITE else self.experiment.offsets[position])
        origin = {"run": self.record.key, "position": position, "site": site}
        saved = SavedSiteResults(self.folder, lambda _: self.truth, len(self.classes))
        if (result := saved.read(stem, origin)) is None:
            raise DataError(
                f"{self.folder / stem}.json and .safetensors are missing or were changed after the "
                f"run, so the predictions at {site} are lost. Run the experiment again with the "
                "same --out."
            )
        # Predictions for trees are not saved. Those for whole texts have one guess for each text,
        # but `truth` has a label for each test row.
        return {
            predictor: predictions
            for predictor, predictions in result.predictions.items()
            if not isinstance(predictions, ClassPredictions)
            or len(predictions.guess) == len(predictions.truth)
        }

    def of_probe(self, place: ProbeAddress) -> Predictions | None:
        """Return the predictions of a probe; None if they were not stored row by row."""
        target = HEADLINE if place.probe == NESTED_PROBE else "task"
        return self.predictions(place.site, place.position).get(Predictor(place.probe, target))


def shares_ids(a: FinishedRun, b: FinishedRun) -> bool:
    """Return whether an example id refers to the same text in both runs.

    Ids that are row numbers do so only within the same data set.
    """
    if a.record.digests.get("dataset") == b.record.digests.get("dataset"):
        return True
    return all(
        data.columns.id is not None or (data.format is not None and FORMATS[data.format].has_names)
        for data in (a.experiment.data, b.experiment.data)
    )


def align(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> NDArray[np.int64] | None:
    """Return the index in b of each test row of a; None if the rows differ.

    Rows are equal if id, group and true label are equal. Several equal rows (the tokens of one
    text) are matched in order.

    >>> rows = pd.DataFrame({"id": ["s1", "s1", "s2"], "group": "g", "truth": ["x", "x", "y"]})
    >>> align(rows, rows[::-1].reset_index(drop=True)).tolist()
    [1, 2, 0]
    >>> align(rows, rows[:2]) is None
    True
    """
    if len(rows_a) != len(rows_b):
        return None
    columns = ["id", "group", "truth"]

    def keys(rows: pd.DataFrame) -> pd.MultiIndex:
        # Equal rows are numbered, so that each has a key of its own.
        occurrence = rows.groupby(columns, sort=False).cumcount()
        return pd.MultiIndex.from_frame(rows[columns].assign(occurrence=occurrence))

    indices_in_b = keys(rows_b).get_indexer(keys(rows_a)).astype(np.int64)
    return None if (indices_in_b < 0).any() else indices_in_b


def compare(run_a: Path | str, run_b: Path | str, *, metric: str | None = None) -> RunComparison:
    """Return the differences between two runs: selected probes, baselines, and every shared site.

    Differences are paired by groups if the test rows are the same; otherwise they are tested by
    the intervals of both scores.

    Args:
        run_a: folder of a finished run.
        run_b: folder of another run with the same labels.
        metric: metric on the test rows; None for the main metric of the runs.

    Raises:
        MissingError: A folder contains no finished run.
        DataError: A file was changed, the labels differ, one run predicts numbers and the other
            classes, or there are no predictions to compare.
        ConfigError: Both folders are the same, the runs have no site in common, or different main
            metrics and `metric` is None.
        UnknownNameError: No predictions have this metric.
    """
    if Path(run_a).resolve() == Path(run_b).resolve():
        raise ConfigError(f"{run_a} and {run_b} are the same folder. Give two different runs.")
    a, b = runs = [FinishedRun(run) for run in (run_a, run_b)]
    settings = [settings_of(load_config(run.folder / "config.yaml")) for run in runs]
    titles = run_titles([(run.record, own) for run, own in zip(runs, settings, strict=True)])
    if a.reads_numbers != b.reads_numbers:
        of_numbers, of_classes = titles if a.reads_numbers else titles[::-1]
        raise DataError(
            f"{of_numbers} predicts numbers and {of_classes} classes: they have no metric in "
            "common. Compare two runs of the same type."
        )
    only_in = (sorted({*a.classes} - {*b.classes}), sorted({*b.classes} - {*a.classes}))
    if any(only_in):
        lists = "; ".join(
            f"only {title} has {', '.join(map(repr, own[:10]))}"
            for title, own in zip(titles, only_in, strict=True)
            if own
        )
        raise DataError(
            f"The runs have different labels: {lists}. Scores are comparable only with the same "
            "set of labels. Rename the labels, or compare other runs."
        )
    pairs = match(a, b)
    if not pairs:
        raise DataError(
            "The runs have no predictions that can be compared row by row: their probes read whole "
            "texts or trees. Compare the intervals in results.csv."
        )
    if metric is None and a.verdict.metric != b.verdict.metric:
        raise ConfigError(
            f"The main metric is {a.verdict.metric} in {titles[0]} and {b.verdict.metric} in "
            f"{titles[1]}. Choose one with --metric."
        )
    metric = metric or a.verdict.metric
    available = [set(metrics_of(of_a)) & set(metrics_of(of_b)) for _, of_a, of_b in pairs]
    usable = [pair for pair, names in zip(pairs, available, strict=True) if metric in names]
    if not usable:
        allowed = set(chain.from_iterable(available))
        raise UnknownNameError(
            f"No predictions of these runs have the metric {metric!r}. {nearest(metric, allowed)}"
        )
    indices_in_b = align(a.test_rows, b.test_rows) if shares_ids(a, b) else None
    results = differences(usable, (a.resamples, b.resamples), indices_in_b, metric)
    pairing: Pairing = "unpaired" if indices_in_b is None else "paired"
    common: dict[str, Any] = {"metric": metric, "pairing": pairing}
    common |= {"n_a": len(a.test_rows), "n_b": len(b.test_rows)}
    common |= {"n_groups_a": a.resamples.n_groups, "n_groups_b": b.resamples.n_groups}
    table = []
    for (columns, _, _), difference in zip(usable, results, strict=True):
        holds = {"holds": bool(difference.p_adjusted < LEVEL)}  # False without a p-value (NaN)
        table.append(columns | difference_columns(difference, metric) | holds | common)
    notes = list(_notes_on_rows(runs, titles, common, results))
    for run, title in zip(runs, titles, strict=True):
        if sites := run.record.other_tensors:
            listed = f"{sites[0]} and {len(sites) - 1:,} more" if sites[1:] else sites[0]
            notes.append(f"{title}: other tensors than those of their names at {listed}.")
    n_skipped = len(pairs) - len(usable)
    if n_skipped:
        notes.append(f"Not compared: {counted(n_skipped, 'score')} without {metric}.")
    baselines = [set(run.experiment.probe.baselines) for run in runs]
    for title, own, other in zip(titles, baselines, baselines[::-1], strict=True):
        if missing := ", ".join(sorted(other - own)):
            text = f"{title} has no baseline {missing}: not compared. Run it with the same "
            notes.append(f"{text}`probe.baselines`.")
    facts = [run_facts(run.experiment.model_dump(mode="json"), run.record) for run in runs]
    return RunComparison(
        a=titles[0],
        b=titles[1],
        experiment=a.record.run if a.record.run == b.record.run else "",
        metric=metric,
        pairing=pairing,
        rows=pd.DataFrame(table, columns=list(COLUMNS)),
        settings=differing(facts),
        notes=tuple(notes),
    )


class ProbeAddress(NamedTuple):
    """Site, position, view and kind of a probe, as named in results.csv.

    A nested choice has the site and the kind "chosen".
    """

    site: str
    position: str
    view: str
    probe: str


def match(a: FinishedRun, b: FinishedRun) -> list[Pair]:
    """Return the pair of selected probes, those of baselines, and those of shared sites.

    If the selected probes are a pair of a shared site, that pair is listed once, marked as chosen.
    Pairs without predictions by row are skipped.

    Raises:
        ConfigError: The runs have no site in common, or no probe at a common site.
        DataError: A file of predictions is missing or damaged.
    """
    # Columns that have several values in one of the runs must be equal in a pair, like the site.
    fixed = [
        name
        for name in _MAY_DIFFER
        if any(len({getattr(place, name) for place in side.places}) > 1 for side in (a, b))
    ]

    def key(place: ProbeAddress) -> tuple[str, ...]:
        return (place.site, *(getattr(place, name) for name in fixed))

    place_in_b = {key(place): place for place in b.places}
    # A probe of run a, and the probe of run b to compare it with.
    common = [(place, place_in_b[key(place)]) for place in a.places if key(place) in place_in_b]
    sites_a, sites_b = {place.site for place in a.places}, {place.site for place in b.places}
    if not common and sites_a & sites_b:
        site = min(sites_a & sites_b)

        def addresses(side: FinishedRun) -> str:
            at_site = [place for place in side.places if place.site == site]
            return ", ".join(sorted({f"{p.position} {p.view} {p.probe}" for p in at_site}))

        raise ConfigError(
            "The runs share sites, but no combination of position, view and kind of probe: at "
            f"{site} one has {addresses(a)}, the other {addresses(b)}."
        )
    if not common:
        site = a.places[0].site if a.places else "no site"
        raise ConfigError(
            f"The runs have no site in common: one has {site} and {max(len(sites_a) - 1, 0)} more. "
            f"{nearest(site, sites_b)} Run one of them again with the `capture.sites` of the other."
        )
    sites = [pair for place_a, place_b in common for pair in _pair(a, b, place_a, place_b)]
    chosen = []
    # If this pair is in `common`, it is already one of `sites`, where `_pair` marks it as chosen.
    if a.chosen and b.chosen and (a.chosen, b.chosen) not in common:
        chosen = _pair(a, b, a.chosen, b.chosen)
    # Baselines that both runs have, at positions that both have, or at the only one of each.
    baselines: list[Pair] = []
    # The names of the positions are the keys of `offsets`.
    positions_a, positions_b = list(a.experiment.offsets), list(b.experiment.offsets)
    matched = [(position, position) for position in positions_a if position in positions_b]
    if len(positions_a) == len(positions_b) == 1:
        matched = [(positions_a[0], positions_b[0])]
    if not (a.experiment.probe.baselines and b.experiment.probe.baselines):
        matched = []
    for position_a, position_b in matched:
        of_a = a.predictions("baselines", position_a)
        of_b = b.predictions("baselines", position_b)
        for predictor in [predictor for predictor in of_a if predictor in of_b]:
            columns = {"what": "baseline", "position_a": position_a, "position_b": position_b}
            columns["target"] = predictor.target
            baselines.append((columns, of_a[predictor], of_b[predictor]))
    return [*chosen, *baselines, *sites]


def _pair(
    a: FinishedRun, b: FinishedRun, place_a: ProbeAddress, place_b: ProbeAddress
) -> list[Pair]:
    """Return the two probes' predictions as a list with one pair.

    The list is empty if the predictions of one of them were not stored row by row.
    """
    predictions_a, predictions_b = a.of_probe(place_a), b.of_probe(place_b)
    if predictions_a is None or predictions_b is None:
        return []
    are_chosen = place_a == a.chosen and place_b == b.chosen
    columns: dict[str, Any] = {"what": "chosen" if are_chosen else "site", "target": "task"}
    for side, run, place in (("a", a, place_a), ("b", b, place_b)):
        columns |= {f"{name}_{side}": value for name, value in place._asdict().items()}
        columns[f"selectivity_{side}"] = run.selectivity.get(place)
    return [(columns, predictions_a, predictions_b)]


def differences(
    pairs: Sequence[Pair],
    resamples: tuple[Resamples, Resamples],
    indices_in_b: NDArray[np.int64] | None,
    metric: str,
) -> list[Difference]:
    """Return the difference in a metric, run a minus run b, for each pair of predictions.

    The p-values are adjusted for all pairs.

    Args:
        pairs: at least one pair of predictions, each in the order of the test rows of its run.
        resamples: jackknife resamples of the test rows of a and of b.
        indices_in_b: index in b of each test row of a; None if the rows differ.
        metric: the name of the metric.

    >>> truth, groups = np.tile([0, 1], 50), np.arange(100).astype(str)
    >>> good, bad = ClassPredictions(truth, truth, 2), ClassPredictions(truth, 0 * truth, 2)
    >>> pairs, resamples = [({}, good, bad), ({}, bad, bad)], Resamples.leave_one_out(groups)
    >>> results = differences(pairs, (resamples, resamples), np.arange(100), "accuracy")
    >>> [(round(one.value, 6), one.p < 0.001) for one in results]
    [(0.5, True), (0.0, False)]
    """
    resamples_a, resamples_b = resamples
    if indices_in_b is None:

        def side(predictions: Predictions, resamples: Resamples) -> Side:
            values = metrics_of(predictions)[metric](predictions, resamples)
            return Side(values, resamples, parts_of(metric, [predictions]))

        sides = [(side(of_a, resamples_a), side(of_b, resamples_b)) for _, of_a, of_b in pairs]
        return unpaired_differences(sides, METRICS[metric].range)
    on_same_rows = [([of_a], [take(of_b, indices_in_b)]) for _, of_a, of_b in pairs]
    widening = max(resamples_a.widening, resamples_b.widening)
    return differences_of(metric, on_same_rows, replace(resamples_a, widening=widening))


def _notes_on_rows(
    runs: Sequence[FinishedRun],
    titles: Sequence[str],
    counts: Mapping[str, Any],
    found: Sequence[Difference],
) -> Iterator[str]:
    """Yield how the test rows of the runs are compared, and whether their groups are too few."""
    n_a, n_b = counts["n_a"], counts["n_b"]
    if counts["pairing"] == "paired":
        yield (
            f"Both runs were tested on the same {n_a:,} rows ({counts['n_groups_a']:,} groups): "
            "differences are paired."
        )
    else:
        test_rows = f"{n_a:,} in “{titles[0]}”, {n_b:,} in “{titles[1]}”"
        unpaired = "differences are unpaired (from the intervals of both scores)."
        if shares_ids(*runs):
            shared = set(runs[0].test_rows["id"]) & set(runs[1].test_rows["id"])
            yield (
                f"The test rows differ ({test_rows}): {unpaired} {len(shared):,} examples are in "
                "both: intervals are too wide if many are."
            )
        else:
            yield (
                f"Test rows cannot be matched ({test_rows}), because the data differ and have no "
                f"ids (`data.columns.id`): {unpaired} Intervals are too wide if rows are the same."
            )
    fewest = min(counts["n_groups_a"], counts["n_groups_b"])
    needed = f"for p-values: at least {FEWEST_UNITS} are needed."
    if fewest < FEWEST_UNITS:
        yield f"{fewest} groups are too few {needed}"
    elif METRICS[counts["metric"]].is_tested and any(
        np.isnan(difference.p) and not np.isnan(difference.value) for difference in found
    ):
        yield f"A label is in too few groups {needed}"
    elif fewest < FEW_GROUPS:
        yield f"{fewest} groups are few: intervals are approximate below {FEW_GROUPS} groups."
