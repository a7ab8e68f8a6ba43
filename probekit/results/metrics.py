"""Groups and titles of metrics, derived from `probekit.probes.score.metric_table`."""

from __future__ import annotations

from probekit.probes.score.metric_table import METRICS

# Without `probe.metric`, sites are selected by the first of these that was measured.
MAIN_METRICS = tuple(name for name, metric in METRICS.items() if metric.is_main)
P_VALUES = tuple(name for name, metric in METRICS.items() if metric.kind == "p_value")


def metric_name(metric: str) -> str:
    """Return the title of a metric, for sentences.

    >>> metric_name("auroc"), metric_name("brier")
    ('AUROC', 'Brier score')
    """
    return METRICS[metric].title
