"""One plain sentence for people about the verdicts on a direction."""

from __future__ import annotations

import numpy as np

from probekit.amounts import LEVEL
from probekit.interventions.causes.cause_data import CauseResult
from probekit.interventions.causes.verdicts import NEGLIGIBLE, CausalVerdict, Evidence

_USED = {
    ("yes", "yes", "yes"): "The label can be decoded here, and the direction changes the answers.",
    ("yes", "no", "no"): "The label can be decoded here, but the network does not use this "
    "direction: decodable is not used.",
    ("yes", "yes", "no"): "The label can be decoded here and the direction steers the network, but "
    "the network does not need it: the information is also elsewhere.",
    ("yes", "no", "yes"): "The label can be decoded here and the network needs the direction, but "
    "moving along it has no effect.",
    ("no", "no", "no"): "The label cannot be decoded along this direction, and the network does "
    "not use it.",
}


def summary(result: CauseResult) -> str:
    """Return the verdicts as a sentence, followed by their numbers.

    >>> from probekit.interventions.causes.verdicts import verdicts
    >>> strong = Evidence(0.42, 0.4, 0.44, 0.001, 0.5, False, "AUROC - 0.5")
    >>> none = Evidence(0.01, -0.02, 0.04, 0.6, 2.0, False, "logits per standard deviation")
    >>> print(verdict_numbers(verdicts({"detects": strong, "steers": none})))
    detects: yes (0.42 [0.40, 0.44] AUROC - 0.5, p = 0.002); steers: no (0.01 [-0.02, 0.04] logits
    per standard deviation, p = 0.6)
    """
    answers = tuple(one.answer for one in result.verdicts)
    undecided = [one for one in result.verdicts if one.answer == "undecided"]
    if answers in _USED:
        first = _USED[answers]
    elif undecided:
        first = "The data do not decide whether this direction " + " and ".join(
            one.question for one in undecided
        )
        first += _because(undecided) + "."
    else:
        first = "The verdicts do not agree: " + ", ".join(
            f"{one.question} {one.answer}" for one in result.verdicts
        )
        first += "."
    return " ".join([first, *_cautions(result), f"Verdicts: {verdict_numbers(result.verdicts)}."])


def verdict_numbers(verdicts: tuple[CausalVerdict, ...]) -> str:
    """Return each verdict with effect, interval and adjusted p-value."""
    return "; ".join(
        f"{one.question}: {one.answer} ({_interval(one.evidence)}{_p(one.p_holm)})"
        for one in verdicts
    )


def _interval(evidence: Evidence) -> str:
    if np.isnan(evidence.effect):
        return evidence.reason
    value, low, high = (f"{x:.2f}" for x in (evidence.effect, evidence.low, evidence.high))
    return f"{value} [{low}, {high}] {evidence.unit}"


def _p(p: float) -> str:
    return "" if np.isnan(p) else f", p = {p:.2g}"


def _because(undecided: list[CausalVerdict]) -> str:
    return f", because {'; '.join(dict.fromkeys(map(why_undecided, undecided)))}"


def why_undecided(verdict: CausalVerdict) -> str:
    """Return why a verdict is undecided or lacks a test; "" for a verdict of yes or no.

    >>> from probekit.interventions.causes.verdicts import verdicts
    >>> wide = Evidence(0.2, -0.2, 0.6, 0.6, 2.0, False, "logits")
    >>> why_undecided(verdicts({"steers": wide})[0])
    'the interval contains 0 and exceeds 5 % of the effect of the whole vector'
    """
    evidence = verdict.evidence
    if evidence.reason or verdict.answer != "undecided":
        return evidence.reason
    share = f"{100 * NEGLIGIBLE:.0f} %"
    cases = (
        (np.isnan([evidence.low, evidence.high]).any(), "there is no interval"),
        (evidence.high < 0, "the interval is below 0"),
        (
            evidence.low <= 0,
            f"the interval contains 0 and exceeds {share} of the effect of the whole vector",
        ),
        (np.isnan(verdict.p_holm), "there is no p-value"),
        (
            verdict.p_holm >= LEVEL,
            f"the p-value, adjusted for the questions, is not below {LEVEL}",
        ),
        (True, "the effect is within rounding errors"),
    )
    return next(reason for holds, reason in cases if holds)


def _cautions(result: CauseResult) -> list[str]:
    found = []
    steers = result.evidence("steers")
    if result.verdict("steers").answer == "yes" and steers.effect < 0:
        found.append("It moves the answers away from the class that it detects.")
    if any(one.answer == "yes" and one.evidence.exceeds_whole for one in result.verdicts):
        found.append(
            "It moves the answers more than its whole vector does, which indicates an artefact."
        )
    if result.kernel_share > 0.5:
        found.append(
            f"{100 * result.kernel_share:.0f} % of the direction is in the kernel of the output "
            "matrix and cannot reach the residual stream."
        )
    return found
