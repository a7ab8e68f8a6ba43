"""The sentence about the verdicts on a direction: each undecided one has its reason."""

import pytest

from probekit.interventions.verdicts import CausalVerdict, why_undecided

NAN = float("nan")


def verdict(answer="undecided", p=0.01, *, low=0.5, high=1.5, reason=""):
    return CausalVerdict(1.0, low, high, p, 2.0, False, "logits", 1e-6, reason, "steers", answer, p)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (verdict(reason="too few groups for a test"), "too few groups for a test"),
        (verdict(low=NAN), "there is no interval"),
        (verdict(low=-1.5, high=-0.5), "the interval is below 0"),
        (
            verdict(low=-0.5),
            "the interval contains 0 and exceeds 5 % of the effect of the whole vector",
        ),
        (verdict(p=NAN), "there is no p-value"),
        (verdict(p=0.075), "the p-value, adjusted for the questions, is not below 0.05"),
        (verdict(), "the effect is within rounding errors"),
        (verdict("yes"), ""),
        (verdict("no", low=-0.01, high=0.01), ""),
    ],
)
def test_every_undecided_verdict_has_a_reason(given, reason):
    assert why_undecided(given) == reason
