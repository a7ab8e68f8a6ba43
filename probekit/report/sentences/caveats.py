"""Warnings of a run: one sentence for each reason to doubt the result at the selected site.

Sentences about the data are findings, made before the run by `probekit.data.checks.checks` and
`probekit.pipeline.measure.record`; this module makes those about the scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from probekit.amounts import LEVEL, fixed, format_number, joined_names, percent
from probekit.data.positions import MASSIVE
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import TARGETS
from probekit.report.sentences.answer import rival_name
from probekit.results.judging import ACHIEVED
from probekit.results.record import RunRecord
from probekit.results.table import metric_name
from probekit.results.verdict import (
    NOT_BETTER,
    NOT_SIGNIFICANT,
    SIGNIFICANTLY_WORSE,
    GridEdge,
    UnconvergedFits,
    UnselectedScores,
    Verdict,
)

# Kinds of warnings, most serious first: codes of findings of the data checks, targets of rivals,
# and kinds of warnings about scores. To add a warning, add its kind at the place of its severity.
# The score itself may be wrong.
_WRONG = (
    "other-tensor missing-from-train crossing-groups duplicates-across no-groups similar-groups "
    "similar-sources missing-groups missing-sources contradictions similar-labels similar-texts "
    "misspelt-labels rounded-numbers other-digits spans-inside-words spans-of-units nul-characters "
    "lost truncated other-bos special-tokens massive unconverged"
)
# The score may be right, but have another reason.
_OTHERWISE = (
    "source-at-chance achieved-fpr majority random_weights nowhere-better word_identity n_grams "
    "bag_of_words neighbouring_words length embedding control length-leads length-of-rule"
)
# The score may be imprecise.
_IMPRECISE = (
    "few-exchanges few-groups few-groups-of-label few-positives heavy-tails missing-from-test "
    "rare-labels duplicates-in-train duplicates-in-test imbalance edge-of-grid edge-of-baseline "
    "constant-features left-out"
)
KINDS = (*_WRONG.split(), *_OTHERWISE.split(), *_IMPRECISE.split())
_RANK = {kind: rank for rank, kind in enumerate(KINDS)}

# Kind of a rival -> what it implies if the selected probe is not better.
DOUBTS = {
    "majority": "the probe may have learnt nothing",
    "random_weights": "the result may not depend on what the network has learnt",
    "word_identity": "the probe may not use the context",
    "bag_of_words": "the result may not require the network",
    "n_grams": "the result may not require the network",
    "neighbouring_words": "the probe may use only the adjacent words",
    "length": "the probe may use only the length",
    "embedding": "the layers may add nothing",
}
# Verdict on the difference from a rival -> how the probe compares with it.
RELATIONS = {
    SIGNIFICANTLY_WORSE: "significantly worse than",
    NOT_SIGNIFICANT: "not significantly better than",
    NOT_BETTER: "not significantly better than",
}
UNTESTED = "not clearly better than"  # the interval decides
NOT_MORE_OFTEN_CORRECT = (
    "its predictions are associated with the labels, but the interval of the difference contains "
    "0; more test groups would make it shorter"
)
SWAPPED = "labels may be swapped, or depend on something else, in some groups"
RIVAL = "The probe is {relation} {rivals}: {doubt}."
CONTROL = (
    "The control task is learnt, and selectivity is not above 0: at this position a probe can "
    "memorise labels of individual {by}s."
)
WORDS_DO_NOT_HELP = (
    " Memorised words do not explain the task score, because the probe is better than word "
    "identity."
)
LENGTH_LEADS = (
    "Text length alone is better than a bag of words: length is associated with the label."
)
LENGTH_IS_COMPARED = (
    "Length is associated with the label: compare the score with that of the length alone."
)
LENGTH_OF_RULE = (
    "The score of a text by the rule {0} is correlated with its length (within labels "
    "{3}). The cross-validated AUROC is {1}, at equal length {2}: choose thresholds on texts as "
    "long as those that are monitored."
)
NOWHERE_BETTER = (
    "The {metric} of the {probe} probe{position} is {nowhere} significantly better than that of "
    "networks with random weights (largest difference at {site}: {task}, random {rival}): the "
    "result may not depend on what the network has learnt. Interpret the difference, not the "
    "score; more test rows make its interval narrower."
)
SOURCE_AT_CHANCE = (
    "The score is at or below chance for the {column} {worst}: the probe may read what the others "
    "have in common, instead of the label."
)
FALSE_POSITIVES = (
    "The false positive rate on the test rows is {rate}, above the {allowed:g} % that the "
    "threshold allows on training rows: a threshold for {allowed:g} % on the test rows would "
    "detect fewer positive rows."
)
EDGE = "{name} is {value:g} {where}, the {end} value of the grid: {advice} may change the scores."
EDGE_OF_BASELINE = (
    "{name} of the baseline {title} is {value:g}, the {end} value of its grid: with another value "
    "it might score higher."
)
UNCONVERGED = (
    "{n:,} of {n_fits:,} scores come from fits that did not converge{by}, at {sites}: they may be "
    "inaccurate. Raise probe.max_iter or lower the largest probe.C."
)
MASSIVE_ROWS = (
    "{} of the sampled rows at {} read a token with a massive activation, whose norm exceeds {:g} "
    "times the median: scaling and probe may depend on such tokens. Leave them out of means with "
    "tokens.position.skip_massive, or compare the scores with those at another position."
)
CURVES = {"learning": "in the learning curve", "online": "in the description length"}


class Caveat(NamedTuple):
    """A warning of a run: its kind, one of `KINDS`, its text, and whether it is an error."""

    kind: str
    message: str
    is_error: bool = False


def caveats(v: Verdict, record: RunRecord) -> list[str]:
    """Return a sentence for each reason to doubt the result, most serious first.

    A baseline gets a warning if the selected probe is not significantly better. If their difference
    was not named before the test, it gets one if its score reaches the interval of the probe's. The
    control task gets one if the interval of its score is above chance and that of selectivity is
    not above 0. Probes without a selected site, such as structural probes, are
    compared with random networks at every site.
    """
    return most_serious_first(_found(v, record))


def most_serious_first(found: Iterable[Caveat]) -> list[str]:
    """Return the texts of warnings in the order of `KINDS`, errors first, without repetitions.

    Kinds that this release does not contain, such as those of a newer one, follow the errors.

    >>> most_serious_first([Caveat("few-groups", "12 groups."), Caveat("lost", "9 rows lost.")])
    ['9 rows lost.', '12 groups.']
    """
    ordered = sorted(found, key=lambda caveat: (not caveat.is_error, _RANK.get(caveat.kind, -1)))
    return list(dict.fromkeys(caveat.message for caveat in ordered))


def _found(v: Verdict, record: RunRecord) -> Iterator[Caveat]:
    """Yield the warnings about the scores and those that the data checks found, not ordered yet."""
    if v.score is not None:
        yield from _rivals(v)
    if v.learns_control:
        # Word identity answers the doubt if the control task is by word and the probe is better.
        is_better = "word_identity" in v.rivals and "word_identity" not in v.doubts
        answer = WORDS_DO_NOT_HELP if is_better and record.control_by == "word" else ""
        yield Caveat("control", CONTROL.format(by=record.control_by) + answer)
    compared = [scores for scores in v.unselected if scores.n_compared]
    has_positions = len({scores.position for scores in compared}) > 1
    for scores in compared:
        if not scores.n_better:
            yield Caveat("nowhere-better", _nowhere_better(scores, has_positions=has_positions))
    if v.sources is not None and v.score is not None:
        sign = METRICS[v.sources.metric].sign
        if sign * v.sources.worst_value <= sign * v.sources.worst_chance:
            text = SOURCE_AT_CHANCE.format(column=v.sources.column, worst=v.sources.worst)
            yield Caveat("source-at-chance", text)
    if v.false_positives is not None and v.score is not None:
        value, low, high = (fixed(100 * number, 1) for number in v.false_positives)
        # An undefined interval is written as "nan".
        interval = "" if low == "nan" else f" [{low}, {high}]"
        _, allowed = ACHIEVED[v.score.metric]
        text = FALSE_POSITIVES.format(rate=f"{value} %{interval}", allowed=100 * allowed)
        yield Caveat("achieved-fpr", text)
    # The note on imbalanced labels advises another metric than accuracy.
    shown = {"imbalance"} if "majority" in v.doubts and v.metric == "accuracy" else set()
    doubts = [one for one in record.data.findings if one.level != "info" or one.code in shown]
    if v.length_leads and all(doubt.code != "length" for doubt in doubts):
        yield Caveat("length-leads", LENGTH_LEADS)
    if v.length_of_rule is not None:
        rule, *estimates = v.length_of_rule
        numbers = (format_number(*one) for one in estimates)
        yield Caveat("length-of-rule", LENGTH_OF_RULE.format(rule, *numbers))
    yield from (_edge(edge, v) for edge in v.edges)
    read = {(one.site, "raw"): one.read for one in record.norms}
    of_best = {} if v.best is None else read.get((v.best.site, v.best.view), {})
    if v.best is not None and (share := of_best.get(v.best.position, 0.0)):
        text = MASSIVE_ROWS.format(percent(share, 1), v.best.site, MASSIVE)
        yield Caveat("massive", text)
    if v.unconverged is not None:
        yield Caveat("unconverged", _unconverged(v.unconverged))
    for doubt in doubts:
        # The table of comparisons has the score of the length, so the warning only points to it.
        is_compared = doubt.code == "length" and "length" in v.rivals
        message = LENGTH_IS_COMPARED if is_compared else doubt.message
        yield Caveat(doubt.code, message, doubt.level == "error")


def _rivals(v: Verdict) -> Iterator[Caveat]:
    """Yield a warning for each group of rivals that imply the same doubt for the same reason."""
    assert v.score is not None
    metric, doubts = v.score.metric, v.doubts
    # If the p of a test is not significant or NaN, nothing was decoded that other rivals explain.
    if "majority" in doubts and v.p is not None and not v.p < LEVEL:
        doubts = {"majority": doubts["majority"]}
    # The kinds of rivals by their relation to the probe and the doubt that they imply.
    kinds: dict[tuple[str, str], list[str]] = {}
    for kind, rival in doubts.items():
        relation, doubt = UNTESTED, DOUBTS[kind]
        if rival.is_named:
            relation = RELATIONS.get(rival.verdict, UNTESTED)
            if rival.verdict == NOT_BETTER:
                doubt = NOT_MORE_OFTEN_CORRECT
            elif rival.is_opposite:
                doubt = SWAPPED
        kinds.setdefault((relation, doubt), []).append(kind)
    for (relation, doubt), names in kinds.items():
        rivals = joined_names([rival_name(name, metric) for name in names])
        yield Caveat(names[0], RIVAL.format(relation=relation, rivals=rivals, doubt=doubt))


def _nowhere_better(scores: UnselectedScores, *, has_positions: bool) -> str:
    """Return the warning that no site is better than networks with random weights."""
    n = scores.n_compared
    return NOWHERE_BETTER.format(
        metric=metric_name(scores.metric),
        probe=scores.probe,
        position=f" at {scores.position}" if has_positions else "",
        nowhere=f"at none of {n:,} sites" if n > 1 else "not",
        site=scores.closest,
        task=format_number(*scores.task),
        rival=format_number(*scores.random),
    )


def _edge(edge: GridEdge, v: Verdict) -> Caveat:
    """Return the warning that a penalty was chosen at the end of its grid."""
    facts = {"name": edge.parameter, "value": edge.value, "end": edge.end}
    if edge.baseline:
        title = TARGETS[edge.baseline].title
        return Caveat("edge-of-baseline", EDGE_OF_BASELINE.format(title=title, **facts))
    of_folds = f"in {edge.n_folds} of {len(v.choices)} outer folds"
    where = of_folds if v.is_nested else "at the chosen site"
    advice = "a wider grid (probe.C)" if edge.parameter == "C" else "another penalty"
    return Caveat("edge-of-grid", EDGE.format(where=where, advice=advice, **facts))


def _unconverged(fits: UnconvergedFits) -> str:
    """Return the warning on fits that did not converge, by kind of probe and by curve."""
    parts = [f"{probe} {n:,}" for probe, n in fits.probes.items()]
    parts += [
        f"{fits.splits[split]:,} {at}" for split, at in CURVES.items() if split in fits.splits
    ]
    n_more = fits.n_sites - len(fits.sites)
    sites = ", ".join(fits.sites) + (f" and {n_more} more" if n_more else "")
    by = f" ({', '.join(parts)})" if parts else ""
    return UNCONVERGED.format(n=fits.n, n_fits=fits.n_fits, by=by, sites=sites)
