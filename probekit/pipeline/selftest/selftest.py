"""Self-test: checks of the whole engine on synthetic data whose correct results are known.

Each check is a function in the table `CHECKS`. It takes the tools under test as an argument, so
that the tests can pass broken tools and verify that the check fails. Checks of arrays are in
`probekit.probes.selftest`, those that need a model or a run are here.

    selftest   run all checks and return their verdicts
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from probekit.pipeline.selftest.run_checks import (
    PipelineTools,
    captured_positions,
    first_position,
    padded_batches,
    planted_layer,
)
from probekit.probes.selftest.checks import FULL, QUICK, CheckResult, SimulationSize
from probekit.probes.selftest.fold_checks import ranked_in_folds, scaled_in_folds
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
    texts_and_trees,
)
from probekit.probes.selftest.statistics_checks import (
    interval_coverage,
    metrics_agree,
    same_for_all,
    uniform_p_values,
)
from probekit.watcher import SILENT, Watcher

Check = Callable[[PipelineTools, SimulationSize], Iterator[CheckResult]]

TOOLS = PipelineTools()


def selftest(
    *, quick: bool = False, tools: PipelineTools = TOOLS, watcher: Watcher = SILENT
) -> list[CheckResult]:
    """Return the verdicts of all checks.

    Args:
        quick: run fewer simulations, so that only large errors are detected.
        tools: the functions under test.
        watcher: receives progress after each check.

    >>> [check for check in CHECKS if "noise" in check]
    ['pure_noise']
    """
    verdicts: list[CheckResult] = []
    for done, check in enumerate(CHECKS.values()):
        watcher.progress("selftest", done, len(CHECKS))
        verdicts += check(tools, QUICK if quick else FULL)
    watcher.progress("selftest", len(CHECKS), len(CHECKS))
    return verdicts


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        check.__name__: check
        for check in (
            padded_batches,
            captured_positions,
            planted_layer,
            first_position,
            planted_direction,
            planted_exclusive_or,
            pure_noise,
            ranked_in_folds,
            scaled_in_folds,
            labels_looked_up,
            signal_is_selective,
            imbalanced_labels,
            copied_groups_checks,
            description_length,
            texts_and_trees,
            uniform_p_values,
            interval_coverage,
            metrics_agree,
            same_for_all,
            bad_rows,
        )
    }
)
