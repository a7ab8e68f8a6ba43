"""Directions of a run with their verdicts, and panels of their curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from probekit.amounts import LEVEL
from probekit.report.causes.edits import panel_title, place_in_words, tokens_in_words
from probekit.report.causes.panels import Panel
from probekit.results.causes import CauseTables
from probekit.results.table import n_blocks, placed

QUESTIONS = ("detects", "steers", "silences")
USES = ("steers", "silences")


@dataclass(frozen=True, eq=False)
class Direction:
    """A direction at a site with its verdicts.

    Attributes:
        place: the site in words.
        row: a placed row of verdicts.csv with the facts that all of its questions share.
        found: row of each question, such as `detects`, and of `swap`.
    """

    place: str
    row: pd.Series[Any]
    found: Mapping[str, pd.Series[Any]]

    def answer(self, question: str) -> str:
        """Return the verdict on a question; "" without one."""
        return str(self.found[question]["answer"]) if question in self.found else ""

    def is_certain(self, question: str) -> bool:
        """Return whether the verdict is yes, also as the best of all sites."""
        if self.answer(question) != "yes":
            return False
        p = float(self.found[question]["p_best"])
        return bool(np.isnan(p) or p <= LEVEL)

    @property
    def is_used(self) -> bool:
        """Whether the direction steers or silences."""
        return any(map(self.is_certain, USES))

    @property
    def size(self) -> float:
        """Largest share of the network's answer that depends on the direction.

        It is the share of the difference between the labels that erasure removes, or of the
        counterfactual's effect that a swap recovers. Without either, it is the effect of steering
        relative to that of the whole vector.
        """
        shares = [self._effect(name) for name in ("silences", "swap")]
        known = [share for share in shares if not np.isnan(share)]
        return max(known) if known else self._relative_steering()

    def _effect(self, name: str) -> float:
        return abs(float(self.found[name]["effect"])) if name in self.found else np.nan

    def _relative_steering(self) -> float:
        if np.isnan(self._effect("steers")):
            return 0.0
        whole = abs(float(self.found["steers"]["whole"]))
        return self._effect("steers") / whole if whole > 0 else 0.0


def directions_in(tables: CauseTables) -> list[Direction]:
    """Return the directions of verdicts.csv in the order of the forward pass."""
    if tables.verdicts.empty:
        return []
    rows, blocks = placed(tables.verdicts), blocks_of(tables)
    return [
        Direction(
            place_in_words(own.iloc[0], blocks),
            own.iloc[0],
            {str(row["question"]): row for _, row in own.iterrows()},
        )
        for _, own in rows.groupby(["site", "at", "along"], sort=False)
    ]


def blocks_of(tables: CauseTables) -> int:
    """Return the number of blocks, taken from the deepest block in any table."""
    names = [*tables.record.sites]
    for table in (tables.effects, tables.verdicts, tables.doses, tables.downstream):
        names += table["site"].tolist()
    return n_blocks(pd.DataFrame({"site": pd.Series(names, dtype=str)}))


def dose_panels(tables: CauseTables) -> Iterator[tuple[tuple[str, str], list[Panel]]]:
    """Yield the panels of each method and choice of tokens, one per site with a finite effect."""
    defined = tables.doses[np.isfinite(tables.doses["effect"]) & np.isfinite(tables.doses["by"])]
    blocks = blocks_of(tables)
    for (along, at), own in placed(defined).groupby(["along", "at"], sort=False):
        panels = [
            Panel(panel_title(rows.iloc[0], blocks), rows)
            for _, rows in own.groupby("site", sort=False)
        ]
        yield (str(along), str(at)), panels


def refit_panels(tables: CauseTables) -> Iterator[tuple[tuple[str, str], list[Panel]]]:
    """Yield the panels of each method and choice of tokens, one per erased site and kind."""
    rows = placed(tables.downstream.assign(head=np.nan))
    blocks = blocks_of(tables)
    for (along, at), own in rows.groupby(["along", "at"], sort=False):
        panels = []
        erased = placed(own[["erased"]].assign(site=own["erased"], head=np.nan).drop_duplicates())
        for _, place in erased.iterrows():
            of_site = own[own["erased"] == place["site"]]
            lines = list(of_site.groupby("line", sort=False))
            for line, points in lines:
                kind = f", probes at {line}" if len(lines) > 1 else ""
                title = f"erased at {panel_title(place, blocks)}{kind}"
                panels.append(Panel(title, points.drop_duplicates("depth")))
        yield (str(along), str(at)), panels


def where(tables: CauseTables, at: str) -> str:
    """Return the edited tokens in words."""
    return tokens_in_words(at, tables.record.position)
