"""From which layer on a probe is above chance, and as good as the selected one, in a sentence."""

import re
from collections.abc import Iterator, Sequence

from probekit.amounts import LEVEL
from probekit.chosen.page import Shown, sentence
from probekit.probes.score.metric_table import METRICS
from probekit.report.elements.page import Paragraph
from probekit.report.sentences.answer import score_texts
from probekit.results.judging import reported_differences
from probekit.results.scores import answers_name
from probekit.results.table import DIFFERENCES, SERIES, metric_name, only, read_columns, row_tick
from probekit.results.verdict import NOT_SIGNIFICANT, SIGNIFICANTLY_WORSE

FEWEST_SITES = 4
NOT_BETTER = NOT_SIGNIFICANT, SIGNIFICANTLY_WORSE
ENDS = {"embed": "the embedding", "final norm": "the final norm"}
_ASKS = re.compile(r"\b(which|what) (block|layer|depth)|\bwhere\b|\bhow (deep|early|late)\b", re.I)


def rise(run: Shown, *, is_asked: bool) -> Iterator[Paragraph]:
    """Yield from which layer on all sites are above chance, and none is significantly worse.

    If `is_asked`, the sentence is that of runs whose question is in which layer, or from which one
    on; otherwise it is that of other runs, if it has two parts. There is none without p-values, for
    fewer than `FEWEST_SITES`, or if the last site is not above chance, or significantly worse than
    the selected probe.
    """
    v, is_wanted = run.verdict, is_asked == bool(_ASKS.search(run.record.question or ""))
    if not is_wanted or v.case not in ("yes", "not better") or "majority" in v.doubts:
        return
    best = run.scores.chosen
    assert best is not None  # there is a case
    line = {column: best[column] for column in SERIES if column != "seed"}
    rows = only(run.scores.of_all_folds.sited, target="task", metric="p_best", **line)
    sites = [row for _, row in rows.iterrows()]
    table = read_columns(run.folder / "differences.csv", DIFFERENCES)
    others = reported_differences(table, v).items()
    # The chosen probe itself, and those that it is not significantly better than.
    equal = {answers_name(best), *(name for name, other in others if other.verdict in NOT_BETTER)}
    facts = {"target": "task", "metric": v.metric, "split": "test", **line}
    scores = only(run.scores.of_all_folds.sited, **facts).set_index("site")["value"]
    above = _start([row["value"] < LEVEL for row in sites])
    alike = _start([answers_name(row) in equal for row in sites])
    is_single = rows["depth"].is_unique and len(sites) >= FEWEST_SITES
    if not is_single or len(sites) in (above, alike) or not (is_asked or alike > above):
        return
    ticks = [row_tick(sites[n], run.scores.blocks) for n in (above, alike)]
    places = [ENDS.get(tick, f"block {tick}" if tick.isdigit() else tick) for tick in ticks]
    values = [scores[sites[n]["site"]] for n in (above, alike)]
    there, unit = score_texts(values, METRICS[v.metric].in_percent)
    score = f"{metric_name(v.metric)} {there[0]}{unit}"
    text = f"Above chance from {places[0]} on ({score}, adjusted p < 0.05)"
    if alike > above:
        chosen = f"the chosen probe{'s' * v.is_nested}"
        text += f"; from {places[1]} on ({there[1]}{unit}) not significantly worse than {chosen}"
    yield sentence(f"{text}.")


def _start(holds: Sequence[bool]) -> int:
    """Return the position from which on all hold; the length if the last one does not.

    >>> _start([True, False, True, True]), _start([True, False])
    (2, 2)
    """
    return max((n + 1 for n, one in enumerate(holds) if not one), default=0)
