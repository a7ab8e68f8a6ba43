"""Warnings of a run: one sentence for each reason to doubt the result at the selected site.

Sentences about the data are findings, made before the run by `probekit.data.checks.checks` and
`probekit.pipeline.measure.record`; this module makes those about the scores.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from probekit.amounts import LEVEL, joined_names, percent
from probekit.chosen.registry import doors
from probekit.data.positions import MASSIVE
from probekit.probes.targets import TARGETS
from probekit.report.sentences.answer import NOT_BETTER_THAN, rival_name
from probekit.results import verdict
from probekit.results.record import RunRecord

# What a warning does to the reported score, and its kinds, most serious first: codes of findings of
# the data checks, targets of rivals, and kinds of warnings about scores. To add a warning, add its
# kind at the place of its severity.
INVALIDATES, WEAKENS, NOTE = "invalidates", "weakens", "note"
_KINDS = {
    # The headline changes.
    INVALIDATES: "other-tensor missing-from-train crossing-groups majority nowhere-better",
    # The score may be wrong, or have another reason.
    WEAKENS: "wrong-answers duplicates-across no-groups similar-groups "
    "similar-sources missing-groups missing-sources contradictions similar-labels similar-texts "
    "misspelt-labels rounded-numbers other-digits spans-inside-words spans-of-units nul-characters "
    "lost truncated other-bos special-tokens massive unconverged label-from-reply "
    "source-at-chance achieved-fpr random_weights word_identity n_grams "
    "bag_of_words neighbouring_words length output embedding unasked control length-leads "
    "length-of-rule",
    # The score may be imprecise.
    NOTE: "few-exchanges few-groups few-groups-of-label few-positives heavy-tails "
    "missing-from-test rare-labels duplicates-in-train duplicates-in-test imbalance edge-of-grid "
    "edge-of-baseline constant-features left-out doses texts-left-out",
}
KINDS = {kind: weight for weight, kinds in _KINDS.items() for kind in kinds.split()}

# Kind of a rival -> what it implies if the selected probe is not better.
DOUBTS = {
    "majority": "the probe may have learnt nothing",
    "random_weights": "the result may not depend on what the network has learnt",
    "word_identity": "the probe may not use the context",
    "bag_of_words": "the result may not require the network",
    "n_grams": "the result may not require the network",
    "neighbouring_words": "the probe may use only the adjacent words",
    "length": "the probe may use only the length",
    "output": "the probe may read only how sure the network is of its next token",
    "embedding": "the layers may add nothing",
}
# Verdict on the difference from a rival -> how the probe compares with it.
RELATIONS = dict.fromkeys((verdict.NOT_SIGNIFICANT, verdict.NOT_BETTER), NOT_BETTER_THAN)
RELATIONS[verdict.SIGNIFICANTLY_WORSE] = "significantly worse than"


class Caveat(NamedTuple):
    """A warning of a run.

    Attributes:
        kind: one of `KINDS`, or a code of a newer release.
        message: its text.
        is_error: whether the data checks found an error.
        similar: texts of further warnings of this kind.
    """

    kind: str
    message: str
    is_error: bool = False
    similar: tuple[str, ...] = ()

    @property
    def weight(self) -> str:
        """What it does to the reported score, in a word."""
        return INVALIDATES if self.is_error else KINDS.get(self.kind, WEAKENS)

    def __str__(self) -> str:
        more = f" ({len(self.similar)} more like this on the page)" if self.similar else ""
        return f"{self.weight}: {self.message}{more}"


def caveats(v: verdict.Verdict, record: RunRecord, more: Iterable[Caveat] = ()) -> list[Caveat]:
    """Return the reasons to doubt the result and `more`, most serious first; see `merged`.

    A baseline gets a warning if the selected probe is not significantly better. If their difference
    was not named before the test, it gets one if its score reaches the interval of the probe's. The
    control task gets one if the interval of its score is above chance and that of selectivity is
    not above 0. Probes without a selected site, such as structural probes, are
    compared with random networks at every site.
    """
    return merged([*more, *_found(v, record)])


def merged(found: Iterable[Caveat]) -> list[Caveat]:
    """Return warnings in the order of their severity, as one warning for each kind."""
    of_kind: dict[str, dict[str, Caveat]] = {}
    for one in found:
        of_kind.setdefault(one.kind, {})[one.message] = one
    # Errors first. Kinds that this release does not contain, such as those of a newer one, are the
    # first that weaken.
    weights, kinds = [*_KINDS], ["", *KINDS]
    return sorted(
        (next(iter(ones.values()))._replace(similar=tuple(ones)[1:]) for ones in of_kind.values()),
        key=lambda one: (
            not one.is_error,
            weights.index(one.weight),
            kinds.index(one.kind if one.kind in KINDS else ""),
        ),
    )


def _found(v: verdict.Verdict, record: RunRecord) -> Iterator[Caveat]:
    """Yield the warnings about the scores and those that the data checks found, not ordered yet."""
    if v.score is not None:
        yield from _rivals(v)
    if v.learns_control:
        text = (
            "The control task is learnt, and selectivity is not above 0: at this position a probe "
            f"can memorise labels of individual {record.control_by}s."
        )
        # Word identity answers the doubt if the control task is by word and the probe is better.
        is_better = "word_identity" in v.rivals and "word_identity" not in v.doubts
        if is_better and record.control_by == "word":
            text += (
                " Memorised words do not explain the task score, because the probe is better than "
                "word identity."
            )
        yield Caveat("control", text)
    for _, of_analysis in doors("page", "doubts"):
        yield from of_analysis(v)
    # The note on imbalanced labels advises another metric than accuracy.
    shown = {"imbalance"} if "majority" in v.doubts and v.metric == "accuracy" else set()
    doubts = [one for one in record.data.findings if one.level != "info" or one.code in shown]
    if v.length_leads and all(doubt.code != "length" for doubt in doubts):
        text = (
            "Text length alone is better than a bag of words: length is associated with the label."
        )
        yield Caveat("length-leads", text)
    yield from (_edge(edge, v) for edge in v.edges)
    read = {(one.site, "raw"): one.read for one in record.norms}
    of_best = {} if v.best is None else read.get((v.best.site, v.best.view), {})
    if v.best is not None and (share := of_best.get(v.best.position, 0.0)):
        text = (
            f"{percent(share, 1)} of the sampled rows at {v.best.site} read a token with a massive "
            f"activation, whose norm exceeds {MASSIVE:g} times the median: scaling and probe may "
            "depend on such tokens. Leave them out of means with tokens.position.skip_massive, or "
            "compare the scores with those at another position."
        )
        yield Caveat("massive", text)
    if v.unconverged is not None:
        yield _unconverged(v.unconverged)
    for doubt in doubts:
        message = doubt.message
        # The table of comparisons has the score of the length, so the warning only points to it.
        if doubt.code == "length" and "length" in v.rivals:
            message = (
                "Length is associated with the label: compare the score with that of the length "
                "alone."
            )
        yield Caveat(doubt.code, message, doubt.level == "error")


def _rivals(v: verdict.Verdict) -> Iterator[Caveat]:
    """Yield a warning for each group of rivals that imply the same doubt for the same reason."""
    assert v.score is not None
    metric, doubts = v.score.metric, v.doubts
    # If the p of a test is not significant or NaN, nothing was decoded that other rivals explain.
    if "majority" in doubts and v.p is not None and not v.p < LEVEL:
        doubts = {"majority": doubts["majority"]}
    # The kinds of rivals by their relation to the probe and the doubt that they imply.
    kinds: dict[tuple[str, str], list[str]] = {}
    for kind, rival in doubts.items():
        untested = "not clearly better than"  # the interval decides
        relation = RELATIONS.get(rival.verdict, untested) if rival.is_named else untested
        doubt = DOUBTS.get(kind, "the probe may read nothing else")
        if rival.is_named and rival.verdict == verdict.NOT_BETTER:
            doubt = (
                "its predictions are associated with the labels, but the interval of the "
                "difference contains 0; more test groups would make it shorter"
            )
        elif rival.is_named and rival.is_opposite:
            doubt = "labels may be swapped, or depend on something else, in some groups"
        kinds.setdefault((relation, doubt), []).append(kind)
    for (relation, doubt), names in kinds.items():
        rivals = joined_names([rival_name(name, metric) for name in names])
        yield Caveat(names[0], f"The probe is {relation} {rivals}: {doubt}.")


def _edge(edge: verdict.GridEdge, v: verdict.Verdict) -> Caveat:
    """Return the warning that a penalty was chosen at the end of its grid."""
    value = f"is {edge.value:g}"
    if edge.baseline:
        text = (
            f"{edge.parameter} of the baseline {TARGETS[edge.baseline].title} {value}, the "
            f"{edge.end} value of its grid: with another value it might score higher."
        )
        return Caveat("edge-of-baseline", text)
    of_folds = f"in {edge.n_folds} of {len(v.choices)} outer folds"
    where = of_folds if v.is_nested else "at the chosen site"
    advice = "a wider grid (probe.C)" if edge.parameter == "C" else "another penalty"
    text = (
        f"{edge.parameter} {value} {where}, the {edge.end} value of the grid: {advice} may change "
        "the scores."
    )
    return Caveat("edge-of-grid", text)


def _unconverged(fits: verdict.UnconvergedFits) -> Caveat:
    """Return the warning on fits that did not converge, by kind of probe and by curve."""
    parts = [f"{probe} {n:,}" for probe, n in fits.probes.items()]
    curves = {"learning": "in the learning curve", "online": "in the description length"}
    parts += [f"{fits.splits[one]:,} {at}" for one, at in curves.items() if one in fits.splits]
    by = f" ({', '.join(parts)})" if parts else ""
    n_more = fits.n_sites - len(fits.sites)
    more = f" and {n_more} more" if n_more else ""
    text = (
        f"{fits.n:,} of {fits.n_fits:,} scores come from fits that did not converge{by}, at "
        f"{', '.join(fits.sites)}{more}: they may be inaccurate. Raise probe.max_iter or lower the "
        "largest probe.C."
    )
    return Caveat("unconverged", text)
