"""Warnings of probes without a selected site: random networks score as well at every site."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pandas as pd

from probekit.amounts import LEVEL
from probekit.probes.score.metric_table import METRICS
from probekit.report.figures.style import format_number
from probekit.results.metrics import metric_name
from probekit.results.selection import main_metrics, site_with_head
from probekit.results.table import SAME_FEATURES, only, placed

NOWHERE_BETTER = (
    "The {metric} of the {probe} probe{position} is {nowhere} significantly better than that of "
    "networks with random weights (largest difference at {site}: {task}, random {rival}): the "
    "result may not depend on what the network has learnt. Interpret the difference, not the "
    "score; more test rows make its interval narrower."
)
_LINE = ["run", "dataset", "probe", "position", "metric"]


def nowhere_better(table: pd.DataFrame) -> list[str]:
    """Return a sentence for each probe that is at no site significantly better than random weights.

    See `_is_better` for the test.
    """
    lines = _compared_lines(table)
    has_positions = len({line["position"].iloc[0] for line in lines}) > 1
    return [_sentence(line, has_positions) for line in lines if not _is_better(line).any()]


def n_better_sites(table: pd.DataFrame) -> dict[tuple[str, str, str], int]:
    """Return the number of sites that are significantly better than random weights.

    The keys are probe, position and metric, as in `nowhere_better`.
    """
    return {
        tuple(line[["probe", "position", "metric"]].iloc[0]): int(_is_better(line).sum())
        for line in _compared_lines(table)
    }


def _compared_lines(table: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the scores at all sites, next to those of random networks, for each probe.

    Only probes without validation scores are compared, such as structural probes: for others, the
    selected site is compared.
    """
    selected = only(table, target="task", split="validation")["probe"]
    rows = placed(only(table, split="test"))
    rows = rows[rows["metric"].isin(main_metrics(table)) & ~rows["probe"].isin(selected)]
    task, random = only(rows, target="task"), only(rows, target="random_weights")
    pairs = task.merge(random, on=[*SAME_FEATURES, "metric"], suffixes=("", "_random"))
    # Undefined for some test rows, or without an interval because there are too few groups.
    limits = [f"{end}{of}" for end in ("ci_low", "ci_high") for of in ("", "_random")]
    pairs = pairs.dropna(subset=["value", "value_random", *limits])
    return [line for _, line in pairs.groupby(_LINE, sort=False)]


def _is_better(pairs: pd.DataFrame) -> pd.Series[bool]:
    """Return whether each site is significantly better than random weights.

    The limit of a difference combines the intervals of both scores as if they were independent,
    which is conservative, and is adjusted for the number of sites (Bonferroni).

    Source: Zou and Donner (2008), Construction of confidence limits about effect measures.
    """
    normal, tail = NormalDist(), LEVEL / 2
    wider = normal.inv_cdf(1 - tail / len(pairs)) / normal.inv_cdf(1 - tail)
    return _lead(pairs) > wider * _half_width(pairs)


def _lead(pairs: pd.DataFrame) -> pd.Series[float]:
    """Return the difference of task and random network, positive where the task is better."""
    sign = METRICS[pairs["metric"].iloc[0]].sign
    return sign * (pairs["value"] - pairs["value_random"])


def _half_width(pairs: pd.DataFrame) -> pd.Series[float]:
    """Return the distance from the lead to its lower 95 % limit."""
    is_lower_better = METRICS[pairs["metric"].iloc[0]].lower_is_better
    worst, best = ("ci_high", "ci_low") if is_lower_better else ("ci_low", "ci_high")
    own = pairs["value"] - pairs[worst]
    return pd.Series(np.hypot(own, pairs["value_random"] - pairs[f"{best}_random"]))


def _sentence(pairs: pd.DataFrame, has_positions: bool) -> str:
    best = pairs.iloc[int(np.argmax(_lead(pairs)))]
    of_random = best[["value_random", "ci_low_random", "ci_high_random"]]
    return NOWHERE_BETTER.format(
        metric=metric_name(best["metric"]),
        probe=best["probe"],
        position=f" at {best['position']}" if has_positions else "",
        nowhere=f"at none of {len(pairs):,} sites" if len(pairs) > 1 else "not",
        site=site_with_head(best["site"], best["head"]),
        task=format_number(*best[["value", "ci_low", "ci_high"]]),
        rival=format_number(*of_random),
    )
