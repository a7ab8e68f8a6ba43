"""Warnings of runs that select no site, such as those of structural probes."""

from collections.abc import Iterator

from probekit.amounts import format_number
from probekit.report.sentences.caveats import Caveat
from probekit.results.table import metric_name
from probekit.results.verdict import Verdict


def doubts(v: Verdict) -> Iterator[Caveat]:
    """Yield the warnings that no site is better than networks with random weights."""
    compared = [scores for scores in v.unselected if scores.n_compared]
    has_positions = len({scores.position for scores in compared}) > 1
    for scores in compared:
        if not scores.n_better:
            n, position = scores.n_compared, f" at {scores.position}" if has_positions else ""
            nowhere = f"at none of {n:,} sites" if n > 1 else "not"
            yield Caveat(
                "nowhere-better",
                f"The {metric_name(scores.metric)} of the {scores.probe} probe{position} is "
                f"{nowhere} significantly better than that of networks with random weights "
                f"(largest difference at {scores.closest}: {format_number(*scores.task)}, random "
                f"{format_number(*scores.random)}): the result may not depend on what the network "
                "has learnt. Interpret the difference, not the score; more test rows make its "
                "interval narrower.",
            )
