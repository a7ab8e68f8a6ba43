"""Does the engine tell the truth? Every part is asked for an answer that is known beforehand.

Each check is one small function in the table `CHECKS`. It takes the tools that are put to the test,
so that it can be handed a broken one: a check that no broken tool fails would prove nothing.

    selftest   the verdicts of all checks, one after the other
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from probekit.probes.selftest.checks import FULL, QUICK, Check, Tools, Verdict
from probekit.probes.selftest.probe_checks import (
    bad_rows,
    copied_groups_checks,
    description_length,
    imbalanced_labels,
    labels_looked_up,
    planted_direction,
    planted_exclusive_or,
    pure_noise,
    signal_is_selective,
    wholes,
)
from probekit.probes.selftest.statistics_checks import (
    interval_coverage,
    metrics_agree,
    same_for_all,
    uniform_p_values,
)
from probekit.watcher import SILENT, Watcher

TOOLS = Tools()


def selftest(
    *, quick: bool = False, tools: Tools = TOOLS, watcher: Watcher = SILENT
) -> list[Verdict]:
    """Return the verdicts of all checks.

    Args:
        quick: simulate less; what fails must be far from the truth then.
        tools: what is put to the test.
        watcher: hears of each check that is done.

    >>> [check for check in CHECKS if "noise" in check]
    ['pure_noise']
    """
    found: list[Verdict] = []
    for done, check in enumerate(CHECKS.values()):
        watcher.progress("selftest", done, len(CHECKS))
        found += check(tools, QUICK if quick else FULL)
    watcher.progress("selftest", len(CHECKS), len(CHECKS))
    return found


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        check.__name__: check
        for check in (
            planted_direction,
            planted_exclusive_or,
            pure_noise,
            labels_looked_up,
            signal_is_selective,
            imbalanced_labels,
            copied_groups_checks,
            description_length,
            wholes,
            uniform_p_values,
            interval_coverage,
            metrics_agree,
            same_for_all,
            bad_rows,
        )
    }
)
