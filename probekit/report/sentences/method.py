"""How a run was measured, in sentences: size, choice of the site, intervals, p-values."""

from __future__ import annotations

from collections import Counter

from probekit.amounts import LEVEL, format_number, joined_names
from probekit.probes.kinds.registry import kind_of
from probekit.probes.score.metric_table import METRICS
from probekit.report.sentences.answer import folds_of, unit_of
from probekit.results.record import RunRecord
from probekit.results.table import metric_name
from probekit.results.verdict import Verdict

ENOUGH_GROUPS = 100  # from which an absent sort of group is rarer than 3 %
NESTED_LINE = (
    "Chosen: each outer fold predicts its test rows at the site{kind} that it chose by "
    "the validation scores of its own training rows. It is not the score of one site; to pick the "
    "highest point of the curve would be a selection on test rows."
)


def size_words(v: Verdict) -> str:
    """Return the number of test rows and groups of the reported score; "" without a test row.

    For runs that chose no site, these are the largest numbers of rows and groups of a site.
    """
    # A site that was chosen without a test row has no score, and then no size either.
    measured = v.unselected if v.score is None else (v.score,)
    if not measured or (v.is_chosen and v.score is None):
        return ""
    n_rows, n_groups = max(one.n for one in measured), max(one.n_groups for one in measured)
    unit = unit_of(one.probe for one in measured)
    return f"n = {n_rows:,} test {unit} in {n_groups:,} groups"


def identity_sentence(record: RunRecord) -> str:
    """Return whether given activations are the tensors of their names."""
    source = record.model.source
    if any(one.sentence for one in record.identities.values()):
        return (
            f"Some rows of {source} were computed again and compared with every tensor: "
            f"{record.identity}."
        )
    return (
        f"The activations of {source} are unverified: no row was computed again. "
        "`activations.verify` names the model that does it."
    )


def method(v: Verdict) -> list[str]:
    """Return the paragraphs on choice, intervals and tests, for the end of the page."""
    n = v.score.n_groups if v.score else ENOUGH_GROUPS
    # The share that is absent from n groups in 5 % of samples, and what it can take from a score.
    ratio = LEVEL ** (1 / n)
    vanishing = (
        " If a probe failed there entirely, a lead of less than "
        f"{100 * (1 / ratio - 1):.0f} % of a rival's score could vanish."
    )
    of_majority = (
        " The p-value of the majority class is one-sided: that of the association between the "
        "probe's predictions and the labels; whether the probe is better is decided by the "
        "interval of the difference (t over groups), and whether it is worse than chance by the "
        "interval of its score."
    )
    # Each paragraph, and whether it holds.
    paragraphs = {
        _choice(v): True,
        "Scores are those on held-out rows. Intervals are 95 % intervals over groups: they apply "
        "to these fitted probes on new groups of rows, not to retraining.": True,
        f"A sort of group whose share is below {100 * (1 - ratio):.0f} % is absent from {n} groups "
        "in at least 5 % of samples, which no interval or test can show."
        f"{vanishing * (METRICS[v.metric].is_hits and ratio > 0.5)}": n < ENOUGH_GROUPS,
        "Each source was tested by probes of the others. The score, its interval and its p-value "
        "are for new rows and groups of these sources. Whether a new source is like them is a "
        "question of the scores by source.": v.sources is not None,
        "The p-value of a probe is that of a one-sided test of association between predictions "
        f"and labels, by a t statistic over groups{f' ({v.null})' if v.null else ''}. The p-values "
        "of single sites are adjusted for the maximum over all sites and kinds of probe; that of "
        "a nested choice is not, because it did not use the test rows.": v.has_p,
        "Differences are paired, on the same test rows. Their two-sided p-values come from "
        "exchanging the signs of whole groups or, for a metric that depends on a label of few "
        "groups, from Welch's t by class. An interval excludes 0 exactly if its p < 0.05. Stars "
        "are adjusted for the comparisons of the first table, which were fixed before the test "
        f"rows were used.{of_majority * v.has_p} The difference from the control task is the "
        "selectivity.": bool(v.named),
        "Compression is the length of a code of the label frequencies divided by the description "
        "length of the training labels given the activations.": v.has_compression,
        "A probe shows what can be decoded at a site, not that the model uses it; to test that, "
        "erase, ablate or steer there and measure the effect on the model.": True,
    }
    return [text for text, holds in paragraphs.items() if holds]


def _choice(v: Verdict) -> str:
    """Return how the site and the penalty were selected, as sentences."""
    if v.best is None:
        return "No site was chosen: the results contain no cross-validated scores of the task."
    name = grid_name(v.best.probe)
    if v.is_nested:
        line = NESTED_LINE.format(kind="")  # the sentence before names what else was chosen
        return (
            f"{nested_sentence(v)} {line} {name} was selected in each outer fold by "
            "cross-validation on its own training rows. To pick the highest row of the table of "
            "sites would be a selection on test rows."
        )
    selected = f"{name} and the site were" if v.n_candidates > 1 else f"{name} was"
    return (
        f"{selected} selected by cross-validation on training rows. {v.best.name} has the best "
        f"cross-validated {metric_name(v.metric)}, {format_number(v.best.score)}."
    )


def pooled_ranking(v: Verdict) -> str:
    """Return the caveat that follows a ranking of sites by validation scores of all outer folds.

    It starts with a space, and is "" if the run is not nested.
    """
    text = (
        " The cross-validated scores of all outer folds were used, and every test row is a "
        "validation row of other folds: test scores at the best sites are therefore biased upwards."
    )
    return text * v.is_nested


def grid_name(probe: str) -> str:
    """Return the name of a probe's penalty parameter; "C" if it has none or is unknown.

    >>> grid_name("mlp:64"), grid_name("logistic")
    ('alpha', 'C')
    """
    kind = kind_of(probe)
    return "C" if kind is None or kind.grid is None else kind.grid[0]


def nested_sentence(v: Verdict) -> str:
    """Return the first sentence of the summary of a nested run: the choices of its folds."""
    what = joined_names(["site", *v.several])
    sites = folds_of(Counter(choice.name for choice in v.choices))
    return (
        f"Chosen sites: each of {len(v.choices)} outer folds chose its own {what} by "
        f"cross-validated {metric_name(v.metric)} on its own training rows ({sites})."
    )


def nested_line(v: Verdict) -> str:
    """Return the explanation of the horizontal line of the nested choice; "" if it is not drawn."""
    if not v.is_nested or v.score is None:
        return ""
    return NESTED_LINE.format(kind="".join(f", {name}" for name in v.several))
