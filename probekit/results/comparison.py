"""What a comparison of two runs found, as the terminal, the CSV and the page show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from probekit.amounts import LEVEL

COLUMNS = (
    "what",
    "target",
    "site_a",
    "site_b",
    "position_a",
    "position_b",
    "view_a",
    "view_b",
    "probe_a",
    "probe_b",
    "metric",
    "value_a",
    "value_b",
    "difference",
    "ci_low",
    "ci_high",
    "p",
    "p_holm",
    "holds",
    "pairing",
    "n_a",
    "n_b",
    "n_groups_a",
    "n_groups_b",
    "selectivity_a",
    "selectivity_b",
    "draws",
    "seed",
)

Pairing = Literal["paired", "unpaired"]


@dataclass(frozen=True, eq=False)
class RunComparison:
    """The differences of two runs, a less b.

    Attributes:
        a: the name of the first run.
        b: that of the second.
        metric: that is compared.
        pairing: whether both were tested on the same rows.
        rows: a row a comparison, of the columns `COLUMNS`: the chosen probes of the two runs,
            baselines, then the sites of both from shallow to deep.
        settings: what differs between the runs, by name, with the values in a and b.
        notes: what should be known of the comparison, in sentences.
    """

    a: str
    b: str
    metric: str
    pairing: Pairing
    rows: pd.DataFrame
    settings: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]

    @property
    def n_held(self) -> int:
        """How many differences hold together at the level `LEVEL`."""
        return int(self.rows["holds"].sum())

    @property
    def verdict(self) -> str:
        """The sentence that says how much holds."""
        return (
            f"{self.n_held} of {len(self.rows)} differences hold: p below {LEVEL:g}, adjusted by "
            f"Holm for all {len(self.rows)}."
        )


def place_name(row: pd.Series, side: Literal["a", "b"]) -> str:
    """Return site, position, view and probe of one side of a row in one text.

    >>> place_name(pd.Series({"what": "baseline", "target": "word_identity"}), "a")
    'word identity'
    """
    if row["what"] == "baseline":
        return str(row["target"]).replace("_", " ")
    parts = [row[f"site_{side}"], row[f"position_{side}"], row[f"probe_{side}"]]
    return " ".join(parts + [v for v in (row[f"view_{side}"],) if v != "raw"])


def both_places(row: pd.Series) -> str:
    """Return what a row compares: one place, or those of a and of b where they differ."""
    a, b = place_name(row, "a"), place_name(row, "b")
    return a if a == b else f"{a} | {b}"
