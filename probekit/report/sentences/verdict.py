"""One-line answer of a run, such as "Yes" or "No evidence", with its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from probekit.amounts import LEVEL, joined_names
from probekit.probes.score.intervals import FEWEST_UNITS
from probekit.probes.score.metric_table import METRICS, SHARE
from probekit.probes.targets import BASELINES, HEADLINE, TARGETS
from probekit.report.figures.levels import chance_name
from probekit.report.figures.style import LEVELS, format_p, without_negative_zero
from probekit.results.differences import (
    SIGNIFICANTLY_WORSE,
    RivalDifference,
    RivalDifferences,
)
from probekit.results.metrics import metric_name
from probekit.results.selection import is_nested, reported_row
from probekit.results.table import only, placed, same_features

YES = "Yes"
NOT_BETTER = "Decodable"
NO_EVIDENCE = "No evidence"
TOO_FEW = "Too few groups to tell"
NOT_TESTED = "Not tested"
NO_SCORE = "No answer: no site was selected and tested, so there is no score to report."

# A probe that does not beat these shows nothing that is specific to the trained network.
NAMES = {
    **{name: TARGETS[name].phrase for name in BASELINES},
    "embedding": "the embedding",
    "random_weights": TARGETS["random_weights"].phrase,
}


@dataclass(frozen=True)
class RunVerdict:
    """The parts of the one-line answer of a run.

    Attributes:
        outcome: `YES`, `NOT_BETTER`, `NO_EVIDENCE`, `TOO_FEW` or `NOT_TESTED`.
        score: the reported score with its 95 % interval.
        chance: the reference level with its value; "" if there is none.
        p: the p-value with its name; "" if there is none.
        relation: for `NOT_BETTER`, the words before the rivals.
        rivals: names and scores of baselines and networks that the probe does not beat.
    """

    outcome: str
    score: str
    chance: str
    p: str
    relation: str = ""
    rivals: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The answer in one line.

        >>> RunVerdict(YES, "94 % [90, 97]", "chance 50 %", "p < 0.001").text
        'Yes: 94 % [90, 97], chance 50 %, p < 0.001'
        >>> words = (("the words alone", "95 %"),)
        >>> RunVerdict(NOT_BETTER, "94 % [90, 97]", "", "p < 0.001", "worse than", words).text
        'Decodable, but worse than the words alone (95 %): 94 % [90, 97], p < 0.001'
        """
        named = joined_names([f"{name} ({score})" for name, score in self.rivals])
        opening = f"{self.outcome}, but {self.relation} {named}" if named else self.outcome
        return f"{opening}: {', '.join(filter(None, (self.score, self.chance, self.p)))}"


def verdict(table: pd.DataFrame, comparisons: RivalDifferences | None = None) -> str:
    """Return the answer of a run in one line.

    Args:
        table: Rows of results.csv.
        comparisons: Paired differences from the selected probe, from differences.csv.
    """
    one = run_verdict(table, comparisons)
    return NO_SCORE if one is None else one.text


def run_verdict(
    table: pd.DataFrame, comparisons: RivalDifferences | None = None
) -> RunVerdict | None:
    """Return the parts of the one-line answer; None if no site was selected and tested.

    The outcome is `YES` if the p-value is below 0.05, adjusted for the selection of the site, and
    the probe is significantly better than every baseline, the embedding and networks with random
    weights; otherwise it is `NOT_BETTER`. It is `TOO_FEW` if there are too few groups to test.
    """
    task = _tested_row(table)
    if task is None:
        return None
    p = selection_p(table, task)
    rivals = [] if comparisons is None else [one for one in comparisons.named if one.key in NAMES]
    metric = str(task["metric"])
    doubtful = [one for one in rivals if one.is_doubtful] if p < LEVEL else []
    worse = [one for one in doubtful if one.verdict == SIGNIFICANTLY_WORSE]
    return RunVerdict(
        outcome=_outcome(p, doubtful, rivals, task),
        score=_score(task),
        chance=_chance(task),
        p=p_text(p),
        relation="worse than" if worse else "not significantly better than",
        rivals=tuple(
            (NAMES[one.key], score_text(one.other, metric)) for one in worse or _compared(doubtful)
        ),
    )


def _compared(doubtful: list[RivalDifference]) -> list[RivalDifference]:
    """Return the rivals whose difference was tested."""
    return [one for one in doubtful if not np.isnan(one.p)]


def _outcome(
    p: float, doubtful: list[RivalDifference], rivals: list[RivalDifference], task: pd.Series
) -> str:
    if np.isnan(p):
        others_were_tested = any(not np.isnan(one.p) for one in rivals)
        few = task["n_groups"] < FEWEST_UNITS or others_were_tested
        return TOO_FEW if few else NOT_TESTED
    if p >= LEVEL:
        return NO_EVIDENCE
    if _compared(doubtful):
        return NOT_BETTER
    return TOO_FEW if doubtful else YES


def _tested_row(table: pd.DataFrame) -> pd.Series | None:
    """Return the row with the test score that the run reports."""
    row = reported_row(table)
    if row is None or is_nested(table):
        return row
    test = placed(only(table, target="task", split="test", metric=row["metric"]))
    return next((own for _, own in same_features(test, row).iterrows()), None)


def selection_p(table: pd.DataFrame, row: pd.Series) -> float:
    """Return the p-value of a reported test score, adjusted for the selection of the site.

    For a single split it compares with the maximum over all sites and kinds. A nested choice needs
    no adjustment, because it did not use the test rows. NaN if there is no p-value.
    """
    if is_nested(table):
        own = only(table, target=HEADLINE, metric="p_value")
    else:
        own = same_features(placed(only(table, target="task", metric="p_best")), row)
    return float(own["value"].iloc[0]) if len(own) else math.nan


def p_text(p: float) -> str:
    """Return a p-value with its name; "" for NaN.

    >>> p_text(0.0002), p_text(0.31), p_text(math.nan)
    ('p < 0.001', 'p = 0.31', '')
    """
    if math.isnan(p):
        return ""
    text = format_p(p)
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text}"


def _score(task: pd.Series) -> str:
    text = score_text(task["value"], task["metric"], task["ci_low"], task["ci_high"])
    metric = METRICS[task["metric"]]
    return text if metric.name == "accuracy" else f"{metric_name(metric.name)} {text}"


def _chance(task: pd.Series) -> str:
    if np.isnan(task["chance"]):
        return ""
    name = LEVELS[chance_name(task.to_frame().T)].label
    return f"{name} {score_text(task['chance'], task['metric'])}"


def score_text(value: float, metric: str, low: float = math.nan, high: float = math.nan) -> str:
    """Return a score as text, with its interval unless `low` is NaN; shares of rows in percent.

    >>> score_text(0.9306, "accuracy", 0.9051, 0.956), score_text(0.9962, "accuracy")
    ('93 % [91, 96]', '99.6 %')
    >>> score_text(0.9306, "auroc", 0.9051, 0.956), score_text(-0.02, "r2")
    ('0.93 [0.91, 0.96]', '−0.02')
    """
    fact = METRICS[metric]
    shown = [one for one in (value, low, high) if not math.isnan(one)]
    is_share = fact.range == SHARE and not fact.is_rank
    first, *ends = _percentages(shown) if is_share else [f"{one:.2f}" for one in shown]
    unit = " %" if is_share else ""
    text = f"{first}{unit} [{', '.join(ends)}]" if ends else f"{first}{unit}"
    return without_negative_zero(text).replace("-", "−")


def _percentages(shares: list[float]) -> list[str]:
    """Return shares in percent: integers, unless one would be rounded to 0 or 100."""
    is_extreme = any(0 < one < 0.005 or 0.995 <= one < 1 for one in shares)
    return [f"{100 * one:.{int(is_extreme)}f}" for one in shares]
