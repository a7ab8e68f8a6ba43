"""Kinds of probe at the selected site on a page."""

from collections.abc import Iterator, Mapping

from probekit.amounts import fixed, format_difference, joined_names
from probekit.chosen.page import Shown, sentence
from probekit.report.elements.page import FigurePart, Paragraph
from probekit.report.pages.further_figures import at_site, scores_part
from probekit.report.sentences.answer import p_words, size_words
from probekit.results.judging import INTERVAL
from probekit.results.verdict import NOT_SIGNIFICANT, SIGNIFICANT, SIGNIFICANTLY_WORSE, Rival

# Verdict on the selected kind -> what the other one is.
RELATIONS = {SIGNIFICANTLY_WORSE: "better", SIGNIFICANT: "worse"}


def answers(run: Shown) -> Iterator[Paragraph]:
    """Yield which kinds are as good as the selected one at its site, if there are others."""
    if (rivals := others(run)) and (best := run.verdict.best):
        place = best.place.removesuffix(f" with the {best.probe} probe")
        yield sentence(compared(best.probe, rivals, place))


def compared(own: str, rivals: Mapping[str, Rival], place: str) -> str:
    """Return which kinds do not differ from the selected one, and which are better or worse.

    >>> near = Rival(name="", metric="accuracy", value=0.9, difference=0.01, p=0.7)
    >>> limits = {"adjusted_low": 0.1, "adjusted_high": 0.3}
    >>> far = {"difference": 0.2, "ci_low": 0.15, "ci_high": 0.25, "p_adjusted": 0.01, **limits}
    >>> compared("lda", {"svm": near, "mlp:8": near.model_copy(update=far)}, "block 5")
    'At block 5, lda does not differ significantly from svm (difference +0.010, adjusted); \
mlp:8 is worse by 0.20 [0.10, 0.30], p = 0.010 (both adjusted).'
    """
    equal, parts = list[str](), list[str]()
    for kind, rival in rivals.items():
        ends = rival.difference, rival.adjusted_low, rival.adjusted_high
        if rival.verdict in RELATIONS:
            size, low, high = (fixed(abs(one), 2) for one in ends)
            by = f"{RELATIONS[rival.verdict]} by {size} [{min(low, high)}, {max(low, high)}]"
            parts.append(f"{kind} is {by}, {p_words(rival.decisive_p)} (both adjusted)")
        elif rival.verdict == NOT_SIGNIFICANT:
            equal.append(f"{kind} (difference {format_difference(*ends)}, adjusted)")
        else:
            parts.append(f"too few groups to test {kind}")
    alike = f"does not differ significantly from {joined_names(equal)}" if equal else "was selected"
    return f"{'; '.join([f'At {place}, {own} {alike}', *parts])}."


def screen(run: Shown) -> Iterator[FigurePart]:
    """Yield the scores of all kinds at the selected site, if there are others."""
    v, best, rivals = run.verdict, run.verdict.best, others(run)
    if best is not None and rivals:
        scores = at_site(run.scores, v.metric, best)
        yield scores_part(
            v.metric,
            "by kind of probe",
            {kind: scores[kind][INTERVAL].tolist() for kind in (best.probe, *rivals)},
            {kind: [one.difference, one.ci_low, one.ci_high] for kind, one in rivals.items()},
            f"{size_words(v)}, at {best.name}, which cross-validation selected for the "
            f"{best.probe} probe; another kind may be better elsewhere. Intervals are not adjusted "
            "for the number of kinds.",
            scores[best.probe]["chance"],
            f"{best.probe} minus the other",
        )


def others(run: Shown) -> dict[str, Rival]:
    """Return the other kinds that the selected probe is compared with at its site."""
    kinds = {f"{kind}, same site": kind for kind in run.scores.rows["probe"].unique()}
    return {kinds[one.name]: one for one in run.verdict.neighbours if one.name in kinds}
