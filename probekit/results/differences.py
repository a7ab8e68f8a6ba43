"""Paired differences between the selected probe and its rivals on the same test rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from probekit.amounts import LEVEL
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import BASELINES, HEADLINE, NESTED, TARGETS
from probekit.results.columns import DIFFERENCES
from probekit.results.metrics import P_VALUES
from probekit.results.selection import (
    chosen_row,
    headline_row,
    hidden_kinds,
    is_nested,
    site_with_head,
)
from probekit.results.table import (
    EMBED_DEPTH,
    n_blocks,
    only,
    placed,
    read_columns,
    same_features,
    tick,
)

SIGNIFICANT = "significant"
SIGNIFICANTLY_WORSE = "significantly worse"
NOT_SIGNIFICANT = "not significant"
NOT_BETTER = "not better"  # than the majority class, although the predictions are associated
TOO_FEW_GROUPS = "too few groups"


@dataclass(frozen=True)
class RivalDifference:
    """Difference of the selected probe minus another probe or baseline.

    Attributes:
        key: the rival: its target, such as "word_identity" or "random_weights", or "embedding". ""
            for neighbouring sites and other kinds of probe, which do not affect the verdict.
        name: the display name of the other probe or baseline.
        other: its score.
        difference: the score of the selected probe minus this score.
        ci_low: the lower limit of the 95 % confidence interval of the difference.
        ci_high: the upper limit.
        p: the p-value of the difference, which excludes 0 from its interval if it is below 0.05;
            NaN if there are too few groups for a verdict. For the majority class, and baselines
            that score the same, the p-value of the selected probe.
        metric: the metric of the scores.
        is_association: whether `p` is that of a one-sided test of association between predictions
            and labels, not of the difference; for the majority class and its equals.
        is_opposite: whether, without an association, the score is below chance; only for the
            majority class. See `is_below_chance`.
        p_adjusted: `p` adjusted for all comparisons together; None if it is not adjusted, as that
            of the majority class.
        adjusted_low: the lower limit of the interval that excludes 0 exactly if `p_adjusted` is
            below 0.05, which is not a simultaneous interval; NaN if there is none.
        adjusted_high: the upper limit of the adjusted interval.
    """

    key: str
    name: str
    other: float
    difference: float
    ci_low: float
    ci_high: float
    p: float
    metric: str = "accuracy"
    is_association: bool = False
    is_opposite: bool = False
    p_adjusted: float | None = None
    adjusted_low: float = float("nan")
    adjusted_high: float = float("nan")

    @property
    def decisive_p(self) -> float:
        """The p-value that decides whether the difference is significant."""
        return self.p if self.p_adjusted is None else self.p_adjusted

    @property
    def smallest_lead(self) -> float:
        """Smallest lead of the selected probe within the interval; negative if it may be behind.

        This is the lower limit, or the upper limit negated if lower scores are better.
        """
        return -self.ci_high if METRICS[self.metric].lower_is_better else self.ci_low

    @property
    def largest_lead(self) -> float:
        """Largest lead of the selected probe within the interval."""
        return -self.ci_low if METRICS[self.metric].lower_is_better else self.ci_high

    @property
    def verdict(self) -> str:
        """Whether the selected probe is better or worse, by the adjusted p-value.

        The p-value of the majority class tests an association of predictions and labels. With an
        association, the interval of the difference decides whether the probe is better or worse.
        Without one, the probe is worse if its score is below chance.
        """
        if np.isnan(self.p) or (self.is_association and np.isnan(self.ci_low)):
            return TOO_FEW_GROUPS
        if self.is_opposite:
            return SIGNIFICANTLY_WORSE
        if self.decisive_p >= LEVEL:
            return NOT_SIGNIFICANT
        is_better = METRICS[self.metric].sign * self.difference > 0
        is_constant = self.is_association or self.key == "majority"
        if is_constant and not (self.smallest_lead > 0 or self.largest_lead < 0):
            return NOT_BETTER
        if not self.difference:
            return NOT_SIGNIFICANT
        return SIGNIFICANT if is_better else SIGNIFICANTLY_WORSE

    @property
    def is_doubtful(self) -> bool:
        """Whether the difference does not show that the selected probe is better."""
        if np.isnan(self.p):
            return not self.smallest_lead > 0
        if self.is_association and np.isnan(self.ci_low):  # only the test of association is left
            return self.p >= LEVEL
        return self.verdict != SIGNIFICANT


@dataclass(frozen=True)
class RivalDifferences:
    """Differences of the selected probe from its rivals.

    Attributes:
        named: from rivals named in advance, with p-values adjusted for these comparisons.
        others: from all other probes, with p-values adjusted for all comparisons.
    """

    named: tuple[RivalDifference, ...] = ()
    others: tuple[RivalDifference, ...] = ()

    def find(self, key: str, value: float) -> RivalDifference | None:
        """Return the difference from the named rival with this key and score; None if none.

        The score is needed because several rivals may have the same key.
        """
        return next(
            (one for one in self.named if one.key == key and np.isclose(one.other, value)), None
        )


def load_differences(path: Path) -> pd.DataFrame | None:
    """Return the validated rows of differences.csv; None if the file does not exist.

    Raises:
        DataError: A column is missing, or a cell is not a number.
    """
    if not path.exists():
        return None
    return read_columns(path, DIFFERENCES)


def rival_differences(table: pd.DataFrame, differences: pd.DataFrame | None) -> RivalDifferences:
    """Return the differences between the selected probe of the table and all others.

    For a nested cross-validation, the nested choice takes the place of the selected probe.
    """
    chosen = chosen_row(table)
    if differences is None or chosen is None:
        return RivalDifferences()
    own = HEADLINE if is_nested(table) else answers_name(chosen)
    rivals = named_rivals(table, chosen)
    of_chosen = only(differences, a=own).dropna(subset="difference")
    rows = {str(row["b"]): row for _, row in of_chosen.iterrows()}
    named = {name: rival for name, rival in rivals.items() if name in rows}
    found = {name: _comparison(rows[name], *rival) for name, rival in named.items()}
    if "majority" in found and table["metric"].isin(P_VALUES).any():
        numbers = ["value_b", "ci_low", "ci_high", "p", "p_adjusted"]
        for name, one in found.items():
            if rows[name][numbers].equals(rows["majority"][numbers]):
                found[name] = _with_association(one, table, chosen)
    return RivalDifferences(
        tuple(found.values()),
        tuple(_comparison(row, "", name) for name, row in rows.items() if name not in named),
    )


def _with_association(
    one: RivalDifference, table: pd.DataFrame, chosen: pd.Series
) -> RivalDifference:
    """Return the difference from the majority class, whose p-value is that of an association."""
    score = headline_row(table) if is_nested(table) else _test_row(table, chosen)
    is_opposite = score is not None and one.p >= LEVEL and is_below_chance(score)
    return replace(one, is_association=True, is_opposite=is_opposite, p_adjusted=None)


def _test_row(table: pd.DataFrame, chosen: pd.Series) -> pd.Series | None:
    rows = placed(only(table, target="task", split="test", metric=chosen["metric"]))
    return next((row for _, row in same_features(rows, chosen).iterrows()), None)


def is_below_chance(row: pd.Series) -> bool:
    """Return whether the whole interval of a score is on the wrong side of the chance level.

    Without a signal this happens in at most 6 % of simulated runs, also with outer folds; for the
    interval of the paired difference from the majority class it would be 8 %.
    """
    sign = METRICS[row["metric"]].sign
    best = row["ci_high" if sign > 0 else "ci_low"]
    return bool(sign * (best - row["chance"]) < 0)


def _comparison(row: Mapping[str, Any] | pd.Series, key: str, name: str) -> RivalDifference:
    return RivalDifference(
        key=key,
        name=name,
        other=row["value_b"],
        difference=row["difference"],
        ci_low=row["ci_low"],
        ci_high=row["ci_high"],
        p=row["p"],
        metric=row["metric"],
        p_adjusted=row["p_adjusted"],
        adjusted_low=row["adjusted_low"],
        adjusted_high=row["adjusted_high"],
    )


def answers_name(row: Mapping[str, Any] | pd.Series[Any], target: str = "task") -> str:
    """Return the name of predictions in differences.csv: site, position, probe and target."""
    return f"{site_with_head(row['site'], row['head'])} {row['position']} {row['probe']} {target}"


def named_rivals(table: pd.DataFrame, chosen: pd.Series) -> dict[str, tuple[str, str]]:
    """Return the rivals of the selected probe: name in differences.csv -> key and display name.

    The rivals are determined by cross-validation only; test rows are not used.
    """
    if is_nested(table):
        return _named_of_folds()
    tasks = placed(only(table, target="task", split="validation"))
    tasks = only(tasks, position=chosen["position"], run=chosen["run"])
    line = only(tasks, line=chosen["line"], probe=chosen["probe"])
    at_site = only(tasks, line=chosen["line"], site=chosen["site"])
    named = {target: (target, TARGETS[target].title) for target in BASELINES}
    networks = NESTED["random_weights"]
    if (table["target"] == networks).any():
        named[networks] = ("random_weights", TARGETS[networks].title)
    else:  # older releases had one network with random weights, compared at the same site
        label = f"{TARGETS['random_weights'].title}, same site"
        named[answers_name(chosen, "random_weights")] = ("random_weights", label)
    for _, row in line.iterrows():
        steps = row["depth"] - chosen["depth"]
        if row["depth"] == EMBED_DEPTH and steps:
            named[answers_name(row)] = ("embedding", "the embedding")
        elif abs(steps) == 1:
            named[answers_name(row)] = ("", _neighbour(row, table))
    hidden = hidden_kinds(table)
    for _, row in at_site.iterrows():
        if row["probe"] != chosen["probe"] and row["probe"] not in hidden:
            named[answers_name(row)] = ("", f"{row['probe']}, same site")
    return named


def _named_of_folds() -> dict[str, tuple[str, str]]:
    """Return the rivals of a nested choice: name in differences.csv -> key and display name.

    The rivals are the baselines, and the nested choices of other targets.
    """
    baselines = {target: (target, TARGETS[target].title) for target in BASELINES}
    nested = {
        name: (target, TARGETS[name].title) for target, name in NESTED.items() if name != HEADLINE
    }
    return baselines | nested


def _neighbour(row: pd.Series, table: pd.DataFrame) -> str:
    if not pd.isna(row.get("order")):
        return f"neighbour: {row['site']}"
    name = tick(row["depth"], n_blocks(placed(table)))
    return f"neighbour: {'block ' if name.isdigit() else ''}{name}"
