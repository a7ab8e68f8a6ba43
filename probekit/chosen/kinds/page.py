"""Kinds of probe at the selected site on a page."""

import math
from collections.abc import Iterator, Mapping

from probekit.amounts import format_difference, joined_names
from probekit.chosen.page import Shown, sentence
from probekit.report.elements.page import FigurePart, Paragraph
from probekit.report.pages.further_figures import at_site, scores_part
from probekit.report.sentences.answer import size_words
from probekit.results.judging import INTERVAL
from probekit.results.verdict import NOT_SIGNIFICANT, SIGNIFICANT, SIGNIFICANTLY_WORSE, Rival

# Verdict on the selected kind -> its relation to the others.
RELATIONS = {
    NOT_SIGNIFICANT: "does not differ significantly from",
    SIGNIFICANT: "is better than",
    SIGNIFICANTLY_WORSE: "is worse than",
}


def remarks(run: Shown) -> Iterator[Paragraph]:
    """Yield which kinds are as good as the selected one at its site, if there are others."""
    if (rivals := others(run)) and (best := run.verdict.best):
        place = best.place.removesuffix(f" with the {best.probe} probe")
        yield from map(sentence, compared(best.probe, rivals, place))


def compared(own: str, rivals: Mapping[str, Rival], place: str) -> Iterator[str]:
    """Yield a sentence for each relation of the selected kind to the others, ties first.

    The last one names those that have too few groups for a test.

    >>> near = Rival(name="", metric="accuracy", value=0.9, difference=0.01, p=0.7)
    >>> limits = {"adjusted_low": 0.1, "adjusted_high": 0.3}
    >>> far = {"difference": 0.2, "ci_low": 0.15, "ci_high": 0.25, "p_adjusted": 0.01, **limits}
    >>> kinds = {"svm": near, "mlp:8": near.model_copy(update=far)}
    >>> print(*compared("lda", kinds, "block 5"))
    At block 5, lda does not differ significantly from svm (+0.010), adjusted for all comparisons. \
It is better than mlp:8 (+0.200 [0.100, 0.300]), adjusted.
    """
    subject, adjusted = f"At {place}, {own}", "adjusted for all comparisons"
    for verdict, relation in RELATIONS.items():
        named = [
            f"{kind} ({format_difference(*_adjusted(one))})"
            for kind, one in rivals.items()
            if one.verdict == verdict
        ]
        if named:
            yield f"{subject} {relation} {joined_names(named)}, {adjusted}."
            subject, adjusted = "It", "adjusted"
    if untested := [kind for kind, one in rivals.items() if one.verdict not in RELATIONS]:
        yield f"Too few groups to test {joined_names(untested)}."


def screen(run: Shown) -> Iterator[FigurePart]:
    """Yield the scores of all kinds at the selected site, if there are others."""
    v, best, rivals = run.verdict, run.verdict.best, others(run)
    if best is not None and rivals:
        scores = at_site(run.scores, v.metric, best)
        yield scores_part(
            v.metric,
            "by kind of probe",
            {kind: scores[kind][INTERVAL].tolist() for kind in (best.probe, *rivals)},
            {kind: _adjusted(one) for kind, one in rivals.items()},
            f"{size_words(v)}, at {best.name}, which cross-validation selected for the "
            f"{best.probe} probe; another kind may be better elsewhere. Intervals of differences "
            "that have a test are adjusted for all comparisons.",
            scores[best.probe]["chance"],
            f"{best.probe} minus the other",
        )


def _adjusted(rival: Rival) -> list[float]:
    """Return the difference from a rival, with its adjusted limits if it has a test."""
    has_test = not math.isnan(rival.adjusted_low)
    limits = ("adjusted_low", "adjusted_high") if has_test else ("ci_low", "ci_high")
    return [rival.difference, *(getattr(rival, name) for name in limits)]


def others(run: Shown) -> dict[str, Rival]:
    """Return the other kinds that the selected probe is compared with at its site."""
    kinds = {f"{kind}, same site": kind for kind in run.scores.rows["probe"].unique()}
    return {kinds[one.name]: one for one in run.verdict.neighbours if one.name in kinds}
