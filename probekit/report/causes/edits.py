"""Sets of patches and ablations, directions with their verdicts, and the words for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from probekit.amounts import LEVEL
from probekit.report.figures.style import fixed, format_number, format_p, plotly_text
from probekit.report.figures.views import position_words
from probekit.report.texts import line_label
from probekit.results.causes import TABLES, CausesRecord, CauseTables
from probekit.results.table import n_blocks, placed, row_tick

SMALL_EFFECT = 0.1
RECOVERY, EFFECT = "recovery", "effect"
QUESTIONS = ("detects", "steers", "silences")
USES = ("steers", "silences")
_TEXTS = ("measure", "unit", "reason", "summary", "site", "erased")  # columns of any text
NOUNS = {
    ("patch", "counterfactual"): "patches",
    ("ablate", "mean"): "mean ablation",
    ("ablate", "zero"): "zero ablation",
    ("ablate", "resample"): "resampling ablation",
}
METHODS = {"probe": "probe", "mean_difference": "mean difference", "leace": "LEACE"}


@dataclass(frozen=True, eq=False)
class EditSet:
    """Effects of one kind of edit on one measure, at one choice of tokens.

    Attributes:
        do: `patch` or `ablate`.
        replacement: what replaces the activations.
        measure: name of the measure.
        unit: its unit.
        at: edited tokens: `probed`, `all` or `each`.
        shown: the quantity of the figures: `recovery`, or `effect` where recovery is undefined.
        rows: placed rows, with the shown quantity as `value`, `ci_low` and `ci_high`.
        n_edits: number of edits for which `p_best` is adjusted.
    """

    do: str
    replacement: str
    measure: str
    unit: str
    at: str
    shown: str
    rows: pd.DataFrame
    n_edits: int

    @property
    def title(self) -> str:
        """The shown quantity, such as `recovery` or `change of KL divergence`."""
        return RECOVERY if self.shown == RECOVERY else f"change of {measure_title(self.measure)}"

    @property
    def axis(self) -> str:
        """Title of the vertical axis."""
        return RECOVERY if self.shown == RECOVERY else f"{self.title} ({self.unit})"

    @property
    def of_heads(self) -> pd.DataFrame:
        """The rows of single attention heads."""
        return self.rows[self.rows["head"].notna()]


def edit_sets(effects: pd.DataFrame) -> Iterator[EditSet]:
    """Yield the sets of effects.csv in the order of the file, without undefined effects."""
    keys = ["do", "replacement", "measure"]
    defined = effects[np.isfinite(effects["effect"])]
    for (do, replacement, measure), own in defined.groupby(keys, sort=False):
        shown = RECOVERY if np.isfinite(own[RECOVERY]).any() else EFFECT
        ends = {"ci_low": f"{shown}_low", "ci_high": f"{shown}_high"}
        values = {"value": own[shown], **{name: own[column] for name, column in ends.items()}}
        rows = placed(own.assign(**values)).replace([math.inf, -math.inf], math.nan)
        rows = rows.dropna(subset="value").drop_duplicates(["line", "depth", "at", "position"])
        for at, some in rows.groupby("at", sort=False):
            unit = str(some["unit"].iloc[0])
            yield EditSet(do, replacement, measure, unit, str(at), shown, some, len(own))


def measure_title(measure: str) -> str:
    """Return the name of a measure in words.

    >>> measure_title("kl"), measure_title("accuracy")
    ('KL divergence', 'accuracy')
    """
    return {"kl": "KL divergence"}.get(measure, measure.replace("_", " "))


def where(tables: CauseTables, at: str) -> str:
    """Return the edited tokens in words; `at` is `probed`, `all` or `each`."""
    position = tables.record.position
    words = position_words(position)
    if at != "probed":
        return {"all": "at all tokens", "each": "at each token"}[at]
    if words == position:
        return f"at {words}"
    return words if words[0].isdigit() else f"at the {words}"


def place_in_words(row: pd.Series[Any], blocks: int) -> str:
    """Return the site of a placed row in words.

    Args:
        row: a row with the columns that `placed` adds.
        blocks: number of blocks.

    >>> rows = pd.DataFrame({"site": ["blocks.1.hook_resid_post", "blocks.2.attn.hook_z[head=5]"]})
    >>> [place_in_words(row, 3) for _, row in placed(rows.assign(head=[math.nan, 5])).iterrows()]
    ['residual stream after block 1', 'head 5 of block 2']
    """
    if row["line"] == "residual stream":
        tick = row_tick(row, blocks)
        named = {"embed": "embedding"}.get(tick, tick)
        return f"residual stream after block {tick}" if tick.isdigit() else named
    if not pd.isna(row["head"]) and row["part"] == "attn.z":
        return f"head {row['head']:.0f} of block {row['depth']}"
    return f"{row['line']} of block {row['depth']}"


def panel_title(row: pd.Series[Any], blocks: int) -> str:
    """Return the site of a placed row in few words, for the title of a panel.

    >>> rows = pd.DataFrame({"site": ["blocks.1.hook_resid_post", "blocks.2.attn.hook_z[head=5]"]})
    >>> [panel_title(row, 3) for _, row in placed(rows.assign(head=[math.nan, 5])).iterrows()]
    ['block 1', 'L2H5']
    """
    if row["line"] == "residual stream":
        return place_in_words(row, blocks).removeprefix("residual stream after ")
    if not pd.isna(row["head"]) and row["part"] == "attn.z":
        return f"L{row['depth']}H{row['head']:.0f}"
    return f"{row['line']}, block {row['depth']}"


def edit_hover(one: EditSet, row: pd.Series[Any], token: str = "") -> str:
    """Return the hover text of an edit: site, token, effects, p-values and number of texts."""
    where = f" at {plotly_text(token)}" if token else ""
    lines = [f"<b>{plotly_text(row['site'])}</b>{where}"]
    if one.shown == RECOVERY:
        lines.append(f"recovery: {format_number(row['value'], row['ci_low'], row['ci_high'])}")
    effect = format_number(row["effect"], row["effect_low"], row["effect_high"])
    lines.append(f"change: {effect} {plotly_text(one.unit)}")
    if not math.isnan(row["p"]):
        best = "" if math.isnan(row["p_best"]) else f", best of {one.n_edits}: "
        lines.append(f"p: {format_p(row['p'])}{best}{format_p(row['p_best']) if best else ''}")
    return "<br>".join([*lines, n_in_words(row)])


def n_in_words(facts: pd.Series[Any] | CausesRecord) -> str:
    """Return the number of texts and groups.

    >>> n_in_words(pd.Series({"n": 1080.0, "groups": 15.0}))
    'n = 1,080 texts in 15 groups'
    """
    n, groups = (
        (facts.n, facts.groups) if isinstance(facts, CausesRecord) else facts[["n", "groups"]]
    )
    return f"n = {n:,.0f} texts in {groups:,.0f} groups"


def value_in_words(row: pd.Series[Any]) -> str:
    """Return the shown quantity with its interval.

    >>> value_in_words(pd.Series({"value": 0.5, "ci_low": 0.4, "ci_high": 0.6}))
    '0.50 [0.40, 0.60]'
    """
    return interval_in_words(row["value"], row["ci_low"], row["ci_high"])


def interval_in_words(value: float, low: float, high: float) -> str:
    """Return a number with its interval, if there is one, in two decimals or three if it is small.

    >>> interval_in_words(-0.25, -0.31, -0.2), interval_in_words(0.066, math.nan, math.nan)
    ('−0.25 [−0.31, −0.20]', '0.066')
    """
    places = 3 if 0 < abs(value) < SMALL_EFFECT else 2
    interval = "" if math.isnan(low) else f" [{fixed(low, places)}, {fixed(high, places)}]"
    return f"{fixed(value, places)}{interval}"


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

        def effect(name: str) -> float:
            return abs(float(self.found[name]["effect"])) if name in self.found else np.nan

        shares = [effect(name) for name in ("silences", "swap")]
        known = [share for share in shares if not np.isnan(share)]
        if known or np.isnan(effect("steers")):
            return max(known, default=0.0)
        whole = abs(float(self.found["steers"]["whole"]))
        return effect("steers") / whole if whole > 0 else 0.0


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
    for name in TABLES:
        names += getattr(tables, name)["site"].tolist()
    return n_blocks(pd.DataFrame({"site": pd.Series(names, dtype=str)}))


def legible(tables: CauseTables) -> CauseTables:
    """Return the tables with legible texts: a direction mark in one would reverse its sentence."""
    record = tables.record
    changes: dict[str, Any] = {
        name: line_label(getattr(record, name)) for name in ("name", "position", "dataset")
    }
    changes |= {
        name: tuple(map(line_label, getattr(record, name)))
        for name in ("classes", "measures", "warnings")
    }
    changes |= {
        "question": record.question and line_label(record.question),
        "answers": {line_label(name): line_label(word) for name, word in record.answers.items()},
        "left_out": tuple(
            one.model_copy(update={"reason": line_label(one.reason)}) for one in record.left_out
        ),
    }
    shown = {
        name: table.assign(**{one: table[one].map(line_label) for one in _TEXTS if one in table})
        for name in TABLES
        for table in [getattr(tables, name)]
    }
    return replace(tables, record=record.model_copy(update=changes), **shown)


def first_measure(tables: CauseTables) -> str:
    """Return the measure of the open figures: the first one that has rows; "" without rows."""
    measured = tables.effects["measure"].unique().tolist()
    return next((name for name in (*tables.record.measures, *measured) if name in measured), "")
