"""Which differences between two runs hold: their answers on the test rows, resampled together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probekit.amounts import LEVEL
from probekit.errors import ConfigError, DataError, UnknownNameError, nearest
from probekit.experiment.loader import load_experiment
from probekit.experiment.schema import Experiment
from probekit.pipeline.compare.alignment import align, n_shared, names_rows_alike
from probekit.pipeline.compare.matching import PairedPredictions, match, settings_that_differ
from probekit.pipeline.look.exports import write_page_or_rows
from probekit.probes.score.differences import (
    DRAWS_A_COMPARISON,
    Difference,
    adjusted,
    enough_draws,
    paired_difference,
    unpaired_difference,
)
from probekit.probes.score.measurement import Predictions, metrics_of
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.score.regression import NumberPredictions
from probekit.report.pages.compare_page import comparison_page
from probekit.results.comparison import COLUMNS, RunComparison
from probekit.results.finished_run import FinishedRun
from probekit.results.record import OLD_RECORD

Key = TypeVar("Key")
FEW_GROUPS = 20  # below which a percentile bootstrap is too narrow


@dataclass(frozen=True, eq=False)
class RowsOfBoth:
    """The test rows of two runs.

    Attributes:
        groups_a: the group of each row of a, (n_a,).
        groups_b: the group of each row of b, (n_b,).
        places: for each row of a the number of the same row of b, (n_a,); None if they differ.
    """

    groups_a: NDArray[np.str_]
    groups_b: NDArray[np.str_]
    places: NDArray[np.int64] | None

    @property
    def n_groups(self) -> int:
        """The number of groups of both."""
        return len(np.unique(self.groups_a)) + len(np.unique(self.groups_b))

    @classmethod
    def of(cls, a: FinishedRun[Experiment], b: FinishedRun[Experiment]) -> RowsOfBoth:
        """Return the test rows of two finished runs."""
        groups = [run.test_rows["group"].to_numpy(dtype=str) for run in (a, b)]
        places = align(a.test_rows, b.test_rows) if names_rows_alike(a, b) else None
        return cls(groups[0], groups[1], places)


def compare(run_a: Path | str, run_b: Path | str, *, metric: str | None = None) -> RunComparison:
    """Return the differences of two runs: chosen probes, baselines, and site by site.

    On the same test rows the bootstrap is paired, else the rows are resampled apart. Seed and draws
    are those of the first run; more are drawn where Holm's adjustment asks for more.

    Args:
        run_a: the folder of a finished run.
        run_b: that of another, of the same labels.
        metric: on the test rows; None for accuracy, or R2 where the labels are numbers.

    Raises:
        MissingError: A folder holds no finished run.
        DataError: A file was changed, the labels differ, or there are no answers to compare.
        ConfigError: Both are the same folder, or the runs have no site in common.
        UnknownNameError: No answers have this metric.
    """
    if Path(run_a).resolve() == Path(run_b).resolve():
        raise ConfigError(f"{run_a} and {run_b} are the same folder. Give two runs.")
    a, b = (FinishedRun.open(run, load_experiment) for run in (run_a, run_b))
    _check_labels(a, b)
    pairs = match(a, b)
    metric = metric or ("r2" if a.reads_numbers else "accuracy")
    usable = _with_metric(pairs, metric)
    rows, settings = RowsOfBoth.of(a, b), a.experiment.probe
    draws = enough_draws(len(usable), settings.bootstrap, rows.n_groups)
    said = {number: (pair.said_a, pair.said_b) for number, pair in enumerate(usable)}
    found = differences(said, rows, metric, draws=draws, seed=settings.seed)
    common = {"metric": metric, "pairing": _pairing(rows), "draws": draws, "seed": settings.seed}
    table = [_table_row(pair, found[number], rows) | common for number, pair in enumerate(usable)]
    return RunComparison(
        a=a.name,
        b=b.name,
        metric=metric,
        pairing=_pairing(rows),
        rows=pd.DataFrame(table, columns=list(COLUMNS)),
        settings=settings_that_differ(a, b),
        notes=(
            _say_rows(a, b, rows),
            *_say_groups(rows),
            *_say_draws(len(usable), draws, settings.bootstrap),
            *_say_left_out(pairs, usable, metric),
            *_say_baselines(a, b),
            *(f"{run.name}: {OLD_RECORD}" for run in (a, b) if not run.record.is_sealed),
        ),
    )


def differences(
    said: Mapping[Key, tuple[Predictions, Predictions]],
    rows: RowsOfBoth,
    metric: str,
    *,
    draws: int,
    seed: int,
) -> dict[Key, Difference]:
    """Return for each pair of answers a less b, with p-values adjusted for all pairs.

    Answers of b stand in the order of b's own rows.

    >>> truth, groups = np.tile([0, 1], 50), np.arange(100).astype(str)
    >>> good, bad = ClassPredictions(truth, truth, 2), ClassPredictions(truth, 0 * truth, 2)
    >>> rows = RowsOfBoth(groups, groups, np.arange(100))
    >>> pairs = {"x": (good, bad), "y": (bad, bad)}
    >>> found = differences(pairs, rows, "accuracy", draws=999, seed=0)
    >>> [(one.value, one.p, one.holm_p) for one in found.values()]
    [(0.5, 0.002, 0.004), (0.0, 1.0, 1.0)]
    """
    resamples = Resamples.draw(rows.groups_a, draws, seed)
    if rows.places is None:
        other = Resamples.draw(rows.groups_b, draws, seed)
        found = {
            key: unpaired_difference(metrics_of(a)[metric], a, resamples, b, other, seed)
            for key, (a, b) in said.items()
        }
    else:
        found = {
            key: paired_difference(metrics_of(a)[metric], a, reordered(b, rows.places), resamples)
            for key, (a, b) in said.items()
        }
    names = {str(number): key for number, key in enumerate(found)}
    told = adjusted(dict(zip(names, found.values(), strict=True)))
    return {names[name]: one for name, one in told.items()}


def reordered(said: Predictions, places: NDArray[np.int64]) -> Predictions:
    """Return answers with row `places[n]` as row n.

    >>> predictions = NumberPredictions(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    >>> reordered(predictions, np.array([1, 0])).guess
    array([4., 3.])
    """
    assert isinstance(said, ClassPredictions | NumberPredictions)
    if isinstance(said, NumberPredictions):
        return NumberPredictions(said.truth[places], said.guess[places])
    scores = None if said.scores is None else said.scores[places]
    return replace(said, truth=said.truth[places], guess=said.guess[places], scores=scores)


def write_comparison(path: Path, comparison: RunComparison) -> Path:
    """Write the rows or the page of a comparison, and return the path.

    Raises:
        ConfigError: The ending says no format.
        StoreError: The file cannot be written.
    """
    return write_page_or_rows(path, partial(comparison_page, comparison), comparison.rows)


def _check_labels(a: FinishedRun[Experiment], b: FinishedRun[Experiment]) -> None:
    if a.reads_numbers != b.reads_numbers:
        numbers, labels = (a, b) if a.reads_numbers else (b, a)
        raise DataError(
            f"{numbers.name} reads numbers and {labels.name} labels: they have no metric in common."
            " Compare two runs of one kind."
        )
    only = [sorted(set(x.classes) - set(y.classes)) for x, y in ((a, b), (b, a))]
    if any(only):
        told = "; ".join(
            f"only {run.name} has {', '.join(map(repr, labels[:10]))}"
            for run, labels in zip((a, b), only, strict=True)
            if labels
        )
        raise DataError(
            f"The runs tell apart other labels: {told}. A score means another thing with each "
            "set of labels; give them the same names, or compare other runs."
        )


def _with_metric(pairs: Sequence[PairedPredictions], metric: str) -> list[PairedPredictions]:
    """Return the pairs whose answers both have the metric."""
    if not pairs:
        raise DataError(
            "The runs kept no answers that can be compared row by row: their probes read whole "
            "texts or trees. Compare the intervals in results.csv."
        )
    offered = [set(metrics_of(p.said_a)) & set(metrics_of(p.said_b)) for p in pairs]
    usable = [pair for pair, names in zip(pairs, offered, strict=True) if metric in names]
    if not usable:
        allowed = set(chain.from_iterable(offered))
        raise UnknownNameError(
            f"No answers of these runs have the metric {metric!r}. {nearest(metric, allowed)}"
        )
    return usable


def _pairing(rows: RowsOfBoth) -> Any:
    return "unpaired" if rows.places is None else "paired"


def _table_row(pair: PairedPredictions, found: Difference, rows: RowsOfBoth) -> dict[str, Any]:
    return {
        **pair.columns,
        "value_a": found.a,
        "value_b": found.b,
        "difference": found.value,
        "ci_low": found.ci_low,
        "ci_high": found.ci_high,
        "p": found.p,
        "p_holm": found.holm_p,
        "holds": bool(found.holm_p < LEVEL),
        "n_a": len(rows.groups_a),
        "n_b": len(rows.groups_b),
        "n_groups_a": len(np.unique(rows.groups_a)),
        "n_groups_b": len(np.unique(rows.groups_b)),
    }


def _say_rows(a: FinishedRun[Experiment], b: FinishedRun[Experiment], rows: RowsOfBoth) -> str:
    n_a, n_b = len(rows.groups_a), len(rows.groups_b)
    if rows.places is not None:
        return (
            f"Both runs were tested on the same {n_a:,} rows ({len(np.unique(rows.groups_a)):,} "
            "groups): the bootstrap is paired."
        )
    told = (
        f"The test rows are not the same ({n_a:,} of a, {n_b:,} of b): the rows of each run are "
        "resampled apart (unpaired)."
    )
    if not names_rows_alike(a, b):
        return f"{told} The data differ and their rows are numbered, not named (`data.columns.id`)."
    shared = n_shared(a.test_rows, b.test_rows)
    return f"{told} {shared:,} examples stand in both; with many of them intervals are too wide."


def _say_groups(rows: RowsOfBoth) -> list[str]:
    fewest = min(len(np.unique(groups)) for groups in (rows.groups_a, rows.groups_b))
    if fewest >= FEW_GROUPS:
        return []
    return [f"{fewest} groups are few for a bootstrap: intervals and p-values flatter somewhat."]


def _say_draws(n_comparisons: int, draws: int, asked: int) -> list[str]:
    if draws < DRAWS_A_COMPARISON * n_comparisons / 2:
        return [
            f"{draws:,} draws are too few for {n_comparisons:,} comparisons: hardly any can hold. "
            "Compare runs of fewer sites or groups."
        ]
    if draws > asked:
        return [
            f"{draws:,} draws in place of the {asked:,} of probe.bootstrap: with few, hardly any "
            f"of {n_comparisons:,} comparisons could hold after Holm's adjustment."
        ]
    return []


def _say_left_out(
    pairs: Sequence[PairedPredictions], usable: Sequence[PairedPredictions], metric: str
) -> list[str]:
    n_lost = len(pairs) - len(usable)
    return [f"{n_lost} comparisons are left out: no scores for {metric}."] if n_lost else []


def _say_baselines(a: FinishedRun[Experiment], b: FinishedRun[Experiment]) -> list[str]:
    told = []
    for own, other in ((a, b), (b, a)):
        missing = set(other.experiment.probe.baselines) - set(own.experiment.probe.baselines)
        if missing:
            told.append(
                f"{own.name} has no baseline {', '.join(sorted(missing))}: not compared. Run it "
                "with the same `probe.baselines`."
            )
    return told
