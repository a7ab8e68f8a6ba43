"""Matching the test rows and predictions of two runs, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probekit.data.readers import FORMATS
from probekit.errors import ConfigError, nearest
from probekit.experiment.activations import AnyExperiment, RowsSection
from probekit.experiment.data import DataSection
from probekit.probes.score.scored import Predictions, Predictor
from probekit.probes.targets import HEADLINE, NESTED_PROBE
from probekit.results.finished_run import FinishedRun, differing, run_facts
from probekit.results.selection import site_with_head
from probekit.results.site_results import NESTED_SITE
from probekit.results.table import concatenated, only, placed
from probekit.results.verdict import Choice, Verdict

_ROW = ["example", "group", "label"]
# If each run has only one value in one of these columns, probes are paired although it differs.
_MAY_DIFFER = ("position", "view", "probe")


def align(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> NDArray[np.int64] | None:
    """Return the index in b of each test row of a; None if the rows differ.

    Rows are equal if example, group and label are equal. Several equal rows (the tokens of one
    text) are matched in order.

    >>> rows = pd.DataFrame({"example": ["s1", "s1", "s2"], "group": "g", "label": ["x", "x", "y"]})
    >>> align(rows, rows[::-1].reset_index(drop=True)).tolist()
    [1, 2, 0]
    >>> align(rows, rows[:2]) is None
    True
    """
    if len(rows_a) != len(rows_b):
        return None
    places = _keys(rows_b).get_indexer(_keys(rows_a)).astype(np.int64)
    return None if (places < 0).any() else places


def _keys(rows: pd.DataFrame) -> pd.MultiIndex:
    occurrence = rows.groupby(_ROW, sort=False).cumcount()
    return pd.MultiIndex.from_frame(rows[_ROW].assign(occurrence=occurrence))


def shares_ids(a: FinishedRun[AnyExperiment], b: FinishedRun[AnyExperiment]) -> bool:
    """Return whether an example id refers to the same text in both runs.

    Ids that are row numbers do so only within the same data set.
    """
    same_data = a.record.digests.get("dataset") == b.record.digests.get("dataset")
    return same_data or all(_has_ids(run.experiment.data) for run in (a, b))


def _has_ids(data: DataSection | RowsSection) -> bool:
    has_names = data.format is not None and FORMATS[data.format].has_names
    return has_names or data.columns.id is not None


def n_shared(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> int:
    """Return the number of examples in the test rows of both runs.

    >>> n_shared(pd.DataFrame({"example": ["s1", "s2"]}), pd.DataFrame({"example": ["s2"]}))
    1
    """
    return len(set(rows_a["example"]) & set(rows_b["example"]))


class ProbeAddress(NamedTuple):
    """Site, position, view and kind of a probe, as named in results.csv.

    A nested choice has the site and the kind "chosen".
    """

    site: str
    position: str
    view: str
    probe: str

    @property
    def predictor(self) -> Predictor:
        """The key of the probe's predictions on the test rows: kind of probe and target."""
        return Predictor(self.probe, HEADLINE if self.probe == NESTED_PROBE else "task")


@dataclass(frozen=True, eq=False)
class PairedPredictions:
    """Predictions of the two runs that are compared, and the columns that identify the pair."""

    columns: Mapping[str, Any]
    predictions_a: Predictions
    predictions_b: Predictions


@dataclass(frozen=True, eq=False)
class _Side:
    """One of the two runs, with the addresses of its task probes and of its selected probe."""

    run: FinishedRun[AnyExperiment]
    places: tuple[ProbeAddress, ...]
    chosen: ProbeAddress | None
    selectivity: Mapping[ProbeAddress, float]

    @classmethod
    def of(cls, run: FinishedRun[AnyExperiment]) -> _Side:
        task = only(run.table, target="task", split="test")
        rows = pd.concat([placed(task), concatenated(task)])
        headline = only(run.table, target=HEADLINE, split="test")
        return cls(
            run=run,
            places=tuple(dict.fromkeys(_place(row) for _, row in rows.iterrows())),
            chosen=_chosen(run.verdict),
            selectivity={
                _place(row): float(row["value"])
                for _, row in only(pd.concat([rows, headline]), metric="selectivity").iterrows()
            },
        )

    @property
    def positions(self) -> list[str]:
        return list(self.run.experiment.offsets)

    def predictions(self, place: ProbeAddress) -> Predictions | None:
        by_predictor = self.run.predictions(place.site, place.position)
        return by_predictor.get(place.predictor)


def match(
    run_a: FinishedRun[AnyExperiment], run_b: FinishedRun[AnyExperiment]
) -> list[PairedPredictions]:
    """Return the pairs of selected probes (if their addresses differ), baselines and shared sites.

    Pairs without predictions by row are skipped.

    Raises:
        ConfigError: The runs have no site in common.
        DataError: A file of predictions is missing or damaged.
    """
    a, b = _Side.of(run_a), _Side.of(run_b)
    common = _common(a, b)
    if not common:
        _raise_nothing_in_common(a, b)
    sites = [pair for places in common for pair in _pair(a, b, *places)]
    chosen = []
    if a.chosen and b.chosen and (a.chosen, b.chosen) not in common:
        chosen = _pair(a, b, a.chosen, b.chosen)
    return [*chosen, *_baselines(a, b), *sites]


def _common(a: _Side, b: _Side) -> list[tuple[ProbeAddress, ProbeAddress]]:
    """Return pairs of addresses: a probe of run a, and the probe of run b to compare it with."""
    fixed = [
        name
        for name in _MAY_DIFFER
        if any(len({getattr(place, name) for place in side.places}) > 1 for side in (a, b))
    ]

    def key(place: ProbeAddress) -> tuple[str, ...]:
        return (place.site, *(getattr(place, name) for name in fixed))

    others = {key(place): place for place in b.places}
    return [(place, others[key(place)]) for place in a.places if key(place) in others]


def _place(row: pd.Series) -> ProbeAddress:
    site = site_with_head(row["site"] or NESTED_SITE, row["head"])
    return ProbeAddress(site, row["position"], row["view"], row["probe"])


def _chosen(v: Verdict) -> ProbeAddress | None:
    one = v.score if v.is_nested else v.best
    if one is None:
        return None
    site = one.name if isinstance(one, Choice) else NESTED_SITE
    return ProbeAddress(site, one.position, one.view, one.probe)


def _raise_nothing_in_common(a: _Side, b: _Side) -> None:
    own, others = ({place.site for place in side.places} for side in (a, b))
    if own & others:
        site = min(own & others)
        addresses = [
            ", ".join(sorted({" ".join(p[1:]) for p in side.places if p.site == site}))
            for side in (a, b)
        ]
        raise ConfigError(
            "The runs share sites, but no combination of position, view and kind of probe: at "
            f"{site} one has {addresses[0]}, the other {addresses[1]}."
        )
    site = a.places[0].site if a.places else "no site"
    raise ConfigError(
        f"The runs have no site in common: one has {site} and {max(len(own) - 1, 0)} more. "
        f"{nearest(site, others)} Run one of them again with the `capture.sites` of the other."
    )


def _pair(
    a: _Side, b: _Side, place_a: ProbeAddress, place_b: ProbeAddress
) -> list[PairedPredictions]:
    """Return the two probes' predictions as a list with one pair.

    The list is empty if the predictions of one of them were not stored row by row.
    """
    predictions_a, predictions_b = a.predictions(place_a), b.predictions(place_b)
    if predictions_a is None or predictions_b is None:
        return []
    both = place_a == a.chosen and place_b == b.chosen
    columns = {
        "what": "chosen" if both else "site",
        "target": "task",
        **{f"{name}_a": value for name, value in place_a._asdict().items()},
        **{f"{name}_b": value for name, value in place_b._asdict().items()},
        "selectivity_a": a.selectivity.get(place_a),
        "selectivity_b": b.selectivity.get(place_b),
    }
    return [PairedPredictions(columns, predictions_a, predictions_b)]


def _baselines(a: _Side, b: _Side) -> Iterator[PairedPredictions]:
    """Yield the pairs of baselines that both runs have, at positions that both have."""
    if not (a.run.experiment.probe.baselines and b.run.experiment.probe.baselines):
        return
    matched = [(position, position) for position in a.positions if position in b.positions]
    if len(a.positions) == len(b.positions) == 1:
        matched = [(a.positions[0], b.positions[0])]
    for own, other in matched:
        all_a, all_b = a.run.predictions("baselines", own), b.run.predictions("baselines", other)
        for predictor in all_a:
            if predictor in all_b:
                columns = {
                    "what": "baseline",
                    "position_a": own,
                    "position_b": other,
                    "target": predictor.target,
                }
                yield PairedPredictions(columns, all_a[predictor], all_b[predictor])


def settings_that_differ(
    a: FinishedRun[AnyExperiment], b: FinishedRun[AnyExperiment]
) -> dict[str, tuple[str, ...]]:
    """Return settings, digests and versions that differ between two runs, except for names."""
    return differing(
        [run_facts(run.experiment.model_dump(mode="json"), run.record) for run in (a, b)]
    )
