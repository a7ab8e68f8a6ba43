"""Which answers of two runs belong together, and in what the runs differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from probekit.errors import ConfigError, nearest
from probekit.experiment.schema import Experiment
from probekit.probes.score.measurement import Predictions
from probekit.results.finished_run import FinishedRun
from probekit.results.predictions import Predictor
from probekit.results.selection import chosen_row, selection
from probekit.results.settings import differing, run_facts
from probekit.results.table import concatenated, only, placed

# Where a run has one value of these, it is matched to the one of the other run, though it differ:
# that is what is compared.
_MAY_DIFFER = ("position", "view", "probe")


class ProbeAddress(NamedTuple):
    """Where a probe read, and of which kind it is; as results.csv names them."""

    site: str
    position: str
    view: str
    probe: str


@dataclass(frozen=True, eq=False)
class PairedPredictions:
    """Answers of two runs that are compared, and the columns that name them."""

    columns: Mapping[str, Any]
    said_a: Predictions
    said_b: Predictions


@dataclass(frozen=True, eq=False)
class _Side:
    """One of the two runs: where it probed the task, and where it chose to."""

    run: FinishedRun[Experiment]
    places: tuple[ProbeAddress, ...]
    chosen: ProbeAddress | None
    selectivity: Mapping[ProbeAddress, float]

    @classmethod
    def of(cls, run: FinishedRun[Experiment]) -> _Side:
        task = only(run.table, target="task", split="test")
        rows = pd.concat([placed(task), concatenated(task)])
        chosen = chosen_row(run.table)
        return cls(
            run=run,
            places=tuple(dict.fromkeys(_place(row) for _, row in rows.iterrows())),
            chosen=None if chosen is None else _place(chosen),
            selectivity={
                _place(row): float(row["value"])
                for _, row in only(rows, metric="selectivity").iterrows()
            },
        )

    @property
    def positions(self) -> list[str]:
        return [at.text for at in self.run.experiment.tokens.positions]

    def said(self, place: ProbeAddress) -> Predictions | None:
        answers = self.run.said(place.site, place.position)
        return answers.get(Predictor(place.probe, "task"))


def match(
    run_a: FinishedRun[Experiment], run_b: FinishedRun[Experiment]
) -> list[PairedPredictions]:
    """Return the chosen probes if they differ in place, then baselines, then the sites of both.

    Pairs without answers row by row are not among them.

    Raises:
        ConfigError: The runs have no site in common.
        DataError: Answers are lost.
    """
    a, b = _Side.of(run_a), _Side.of(run_b)
    common = _common(a, b)
    if not common:
        _refuse(a, b)
    sites = [pair for places in common for pair in _pair(a, b, *places)]
    chosen = []
    if a.chosen and b.chosen and (a.chosen, b.chosen) not in common:
        chosen = _pair(a, b, a.chosen, b.chosen)
    return [*chosen, *_baselines(a, b), *sites]


def _common(a: _Side, b: _Side) -> list[tuple[ProbeAddress, ProbeAddress]]:
    """Return the places of a, each with that of b which it is compared to."""
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
    site = selection(row["site"], row["head"])
    return ProbeAddress(site, row["position"], row["view"], row["probe"])


def _refuse(a: _Side, b: _Side) -> None:
    own, others = ({place.site for place in side.places} for side in (a, b))
    if own & others:
        site = min(own & others)
        there = [
            ", ".join(sorted({" ".join(p[1:]) for p in side.places if p.site == site}))
            for side in (a, b)
        ]
        raise ConfigError(
            "The runs share sites, but no position, view and kind of probe: at "
            f"{site} one has {there[0]}, the other {there[1]}."
        )
    site = a.places[0].site if a.places else "no site"
    raise ConfigError(
        f"The runs have no site in common: one has {site} and {max(len(own) - 1, 0)} more. "
        f"{nearest(site, others)} Run one of them again with the `capture.sites` of the other."
    )


def _pair(
    a: _Side, b: _Side, place_a: ProbeAddress, place_b: ProbeAddress
) -> list[PairedPredictions]:
    """Return the pair of two places; none if either kept no answers row by row."""
    said_a, said_b = a.said(place_a), b.said(place_b)
    if said_a is None or said_b is None:
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
    return [PairedPredictions(columns, said_a, said_b)]


def _baselines(a: _Side, b: _Side) -> Iterator[PairedPredictions]:
    """Yield the baselines of both, at the positions of both."""
    if not (a.run.experiment.probe.baselines and b.run.experiment.probe.baselines):
        return
    matched = [(position, position) for position in a.positions if position in b.positions]
    if len(a.positions) == len(b.positions) == 1:
        matched = [(a.positions[0], b.positions[0])]
    for own, other in matched:
        said_a, said_b = a.run.said("baselines", own), b.run.said("baselines", other)
        for who in said_a:
            if who in said_b:
                columns = {"position_a": own, "position_b": other, "target": who.target}
                yield PairedPredictions({"what": "baseline", **columns}, said_a[who], said_b[who])


def settings_that_differ(
    a: FinishedRun[Experiment], b: FinishedRun[Experiment]
) -> dict[str, tuple[str, ...]]:
    """Return settings, digests and versions in which two runs differ; names do not count."""
    return differing(
        [run_facts(run.experiment.model_dump(mode="json"), run.record) for run in (a, b)]
    )
