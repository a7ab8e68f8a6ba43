"""Groups of metrics, derived from the table of metrics in `probekit.probes.score.metric_table`.

The table is on the floor of the probes, which measure by it.
"""

from __future__ import annotations

from probekit.probes.score.metric_table import METRICS

# Sites are chosen, and controls subtracted, by the first of these that was measured.
MAIN_METRICS = tuple(name for name, metric in METRICS.items() if metric.is_main)
P_VALUES = tuple(name for name, metric in METRICS.items() if metric.kind == "p_value")


def metric_name(metric: str) -> str:
    """Return a metric as sentences name it.

    >>> metric_name("auroc"), metric_name("brier")
    ('AUROC', 'Brier score')
    """
    return METRICS[metric].title
