"""The answer of a run in one sentence, and the scores that it is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pandas as pd

from probekit.amounts import LEVEL, counted, joined_names
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import BASELINES, HEADLINE, NESTED, TARGETS
from probekit.report.figures.style import fixed, format_number
from probekit.report.sentences.choice import chosen_in_folds
from probekit.report.sentences.question import is_yes_no
from probekit.report.sentences.random_networks import n_better_sites
from probekit.report.sentences.score_words import p_words, range_words, score_words
from probekit.results.differences import (
    SIGNIFICANTLY_WORSE,
    RivalDifference,
    RivalDifferences,
    is_below_chance,
)
from probekit.results.metrics import metric_name
from probekit.results.selection import (
    best_first,
    choices,
    is_nested,
    main_metrics,
    ranked_rows,
    reported_row,
)
from probekit.results.table import (
    EMBED_DEPTH,
    concatenated,
    differs,
    n_blocks,
    only,
    placed,
    row_tick,
    same_features,
)

YES = "Yes"
NOT_BETTER = "Decodable"
NO_EVIDENCE = "No evidence"
TOO_FEW = "Too few groups to tell"
WORSE = "Worse than {}"
UNTESTED = "Not tested against chance"
NOT_BETTER_THAN = "not significantly better than"
UNDEFINED = "the {} is undefined on the test rows."

# Rivals that can explain away the result: the selected probe must be better than each of them.
RIVALS = (*BASELINES, "random_weights", "embedding")
MOST_RIVALS = 2  # named in the sentence
MOST_TIED = 2  # sites named in the sentence


def answer(
    table: pd.DataFrame, comparisons: RivalDifferences | None = None, question: str | None = None
) -> str:
    """Return the answer of a run as one sentence: verdict, score, chance level, p and site.

    The sentence begins with "Yes" only if the question allows no other reading; see `is_yes_no`.

    Args:
        table: Rows of results.csv.
        comparisons: Paired differences from the selected probe, from differences.csv.
        question: Question of the experiment.
    """
    chosen = reported_row(table)
    if chosen is None:
        return _ranges(table)
    compared = comparison_rows(chosen, table)
    if "task" not in compared:
        return f"No test score: {site_in_words(chosen, table)} was chosen, but it has no test row."
    found = comparisons or RivalDifferences()
    verdict = _verdict(table, compared, found)
    if np.isnan(compared["task"]["value"]):
        return f"No answer: {UNDEFINED.format(metric_name(compared['task']['metric']))}"
    score, chance = score_words(compared["task"])
    facts = [score, chance, _p_in_words(table, found, compared["task"])]
    but = _but(compared, found) if verdict == NOT_BETTER else ""
    if verdict == NO_EVIDENCE:
        facts.append(_better_words(compared))
    if verdict in (YES, NOT_BETTER) and not is_yes_no(question):
        place = _best_place(table)
        if place:
            return f"Best at {place}{but}: {_listed(facts)}."
        verdict = NOT_BETTER  # "Yes" could be misread
    if is_nested(table):
        return f"{verdict}{but}: {_listed(facts)}; {chosen_in_folds(_places(table))}."
    facts[0] += f" at {site_in_words(chosen, table)}"
    facts.append(_of_candidates(table, "best of {} in cross-validation"))
    return f"{verdict}{but}: {_listed(facts)}."


def _listed(facts: list[str]) -> str:
    return ", ".join(filter(None, facts))


def _verdict(
    table: pd.DataFrame, compared: Mapping[str, pd.Series], comparisons: RivalDifferences
) -> str:
    p = selected_p(table, comparisons)
    if p is not None and np.isnan(p):
        return TOO_FEW
    is_associated = association_p(table) is not None and p is not None and p < LEVEL
    if not is_associated:
        worse = _worse_than(compared["task"], comparisons)
        if worse:
            return WORSE.format(worse)
    if p is None:
        return UNTESTED
    if p >= LEVEL:
        return NO_EVIDENCE
    return NOT_BETTER if doubtful_rivals(compared, comparisons) else YES


def _worse_than(task: pd.Series, comparisons: RivalDifferences) -> str:
    """Return the level that the selected probe is significantly worse than; "" if it is not.

    That is chance if the whole interval of the score is on the wrong side of it. Otherwise it may
    be the majority class, if the paired difference from it was tested.
    """
    if is_below_chance(task):
        return "the mean label" if METRICS[task["metric"]].beats_the_mean else "chance"
    is_worse = any(
        one.key == "majority" and one.verdict == SIGNIFICANTLY_WORSE for one in comparisons.named
    )
    return rival_name("majority", task["metric"]) if is_worse else ""


def _p_in_words(table: pd.DataFrame, comparisons: RivalDifferences, task: pd.Series) -> str:
    """Return the p-value of the reported score; names its test unless it is that of association."""
    p = selected_p(table, comparisons)
    if p is None or np.isnan(p):
        return ""
    if association_p(table) is None:
        metric = next(one.metric for one in comparisons.named if one.key == "majority")
        return f"{p_words(p)} for the difference from {rival_name('majority', metric)}"
    # Next to a score below chance, a large p would be misread.
    return f"{'one-sided ' * is_below_chance(task)}{p_words(p)}"


def selected_p(table: pd.DataFrame, comparisons: RivalDifferences) -> float | None:
    """Return the p-value of the reported score; NaN with too few groups, None without a test.

    Runs without exchanges of labels have the p-value of the difference from the majority class.
    """
    majority = next((one.p for one in comparisons.named if one.key == "majority"), None)
    p = association_p(table)
    return majority if p is None else p


def association_p(table: pd.DataFrame) -> float | None:
    """Return the p-value of association of the reported score; None if it was not tested.

    It is adjusted for the maximum over all sites, except for a nested choice, which did not use the
    test rows.
    """
    chosen = reported_row(table)
    if chosen is None:
        return None
    if is_nested(table):
        tested = only(table, target=HEADLINE, metric="p_value")["value"]
    else:
        own = same_features(placed(only(table, target="task")), chosen)
        tested = pd.concat([only(own, metric=name)["value"] for name in ("p_best", "p_holm")])
    return next(map(float, tested), None)


def doubtful_rivals(
    compared: Mapping[str, pd.Series], comparisons: RivalDifferences
) -> dict[str, RivalDifference | None]:
    """Return the rivals that the selected probe is not clearly better than, with the difference.

    With a paired difference, that is decided by its p-value. Without one, by whether the rival
    reaches the interval of the selected probe.

    Args:
        compared: The rows of `comparison_rows`.
        comparisons: Paired differences from the selected probe.
    """
    found = {
        name: comparisons.find(name, compared[name]["value"]) for name in RIVALS if name in compared
    }
    return {
        name: paired
        for name, paired in found.items()
        if (reaches(compared[name], compared["task"]) if paired is None else paired.is_doubtful)
    }


def reaches(row: pd.Series, other: pd.Series) -> bool:
    """Return whether the score of `row` is in the interval of the score of `other`, or better.

    An unknown interval may contain any score.
    """
    if METRICS[row["metric"]].lower_is_better:
        return not row["value"] > other["ci_high"]
    return not row["value"] < other["ci_low"]


def rival_name(target: str, metric: str) -> str:
    """Return the name of a rival in sentences.

    >>> rival_name("majority", "accuracy"), rival_name("majority", "r2")
    ('the majority class', 'the mean label')
    """
    if target == "majority" and METRICS[metric].beats_the_mean:
        return "the mean label"
    return TARGETS[target].phrase if target in TARGETS else f"the {target}"


def _but(compared: Mapping[str, pd.Series], comparisons: RivalDifferences) -> str:
    """Return the rivals that the selected probe is not better than, after a comma.

    The majority class is the first, because a probe that is not better has learnt nothing that its
    score shows. The best of the others follow; if there are any that are better than the probe,
    only those.
    """
    metric = compared["task"]["metric"]
    doubtful = doubtful_rivals(compared, comparisons)
    worse = [
        name
        for name, paired in doubtful.items()
        if paired is not None and paired.verdict == SIGNIFICANTLY_WORSE
    ]
    parts = []
    if worse and "majority" in doubtful and "majority" not in worse:
        parts = [f"{NOT_BETTER_THAN} {rival_name('majority', metric)}"]
    best = sorted(
        worse or doubtful,
        key=lambda name: (name == "majority", compared[name]["value"] * METRICS[metric].sign),
    )[::-1]
    names = [rival_name(name, metric) for name in best]
    if len(names) == 1:
        names = [f"{names[0]}{_adjusted_interval(doubtful[best[0]])}"]
    if len(names) > MOST_RIVALS:
        names = [names[0], f"{len(names) - 1} others"]
    parts.append(f"{'worse than' if worse else NOT_BETTER_THAN} {joined_names(names)}")
    return f", but {' and '.join(parts)}"


def _better_words(compared: Mapping[str, pd.Series]) -> str:
    """Return the best score of words alone; "" if none is better than the probe."""
    task = compared["task"]
    metric = METRICS[task["metric"]]
    better = [
        compared[name]
        for name in BASELINES
        if name in compared and name != "majority"
        if metric.sign * (compared[name]["value"] - task["value"]) > 0
    ]
    if not better:
        return ""
    best = max(better, key=lambda row: metric.sign * row["value"])
    score = f"{100 * best['value']:.0f} %" if metric.in_percent else fixed(best["value"], 2)
    return f"while {rival_name(best['target'], task['metric'])} scores {score}"


def _adjusted_interval(one: RivalDifference | None) -> str:
    """Return a difference with the interval that agrees with its verdict, in brackets."""
    if one is None or np.isnan(one.adjusted_low):
        return ""
    limits = one.difference, one.adjusted_low, one.adjusted_high
    sign = "+" if one.difference > 0 else ""
    return f" ({sign}{format_number(*limits)})"


def site_in_words(row: pd.Series, table: pd.DataFrame, *notes: str) -> str:
    """Return the block of a site in words, with component, position and probe if they differ.

    Args:
        row: A placed row.
        table: Rows of results.csv.
        notes: Other facts in the brackets behind the name.
    """
    sited, ranked = placed(table), ranked_rows(table)
    depth = row_tick(row, n_blocks(sited))
    name = {"embed": "the embedding", "final norm": "the final norm"}.get(depth, f"block {depth}")
    if not pd.isna(row.get("order")):
        name = str(row["site"])
    elif row["line"] != "residual stream":
        name = f"{row['line']} of {name}"
    elif differs(ranked["line"]) and depth.isdigit():
        name = f"the residual stream after {name}"
    if differs(ranked["probe"]):
        name += f" with the {row['probe']} probe"
    position = [f"position {row['position']}"] * differs(sited["position"])
    details = ", ".join(filter(None, [*position, *notes]))
    return f"{name} ({details})" if details else name


def _best_place(table: pd.DataFrame) -> str:
    """Return the chosen site among its candidates, or the site that most outer folds chose.

    The result is "" if no site was chosen in more than half of the folds.
    """
    if not is_nested(table):
        return site_in_words(choices(table)[0], table, _of_candidates(table, "of {}"))
    places = _places(table)
    (place, n), *_ = places.most_common()
    if 2 * n <= places.total():
        return ""
    of_folds = "all" if n == places.total() else f"{n} of"
    return f"{place} in {of_folds} {places.total()} folds"


def _places(table: pd.DataFrame) -> Counter[str]:
    """Return the number of outer folds that chose each site, in words."""
    return Counter(site_in_words(row, table) for row in choices(table))


def _of_candidates(table: pd.DataFrame, template: str) -> str:
    """Return the template with the number of compared sites, and ties; "" for a single site."""
    ranked = ranked_rows(table)
    names = {"kind": "probe", "position": "position"}
    varied = [name for name, column in names.items() if differs(ranked[column])]
    unit = f"combinations of {joined_names(['site', *varied])}" if varied else "sites"
    if len(ranked) < 2:
        return ""
    return template.format(f"{len(ranked):,} {unit}") + _ties(ranked, table)


def _ties(ranked: pd.DataFrame, table: pd.DataFrame) -> str:
    """Return the sites whose cross-validated score is written like the best one, or their number.

    Args:
        ranked: The rows of `ranked_rows`.
        table: Rows of results.csv.
    """
    written = ranked["value"].map(format_number)
    tied = ranked[written == written.iloc[0]].iloc[1:]
    if len(tied) > MOST_TIED:
        return f", tied with {len(tied)} others"
    names = [site_in_words(row, table) for _, row in tied.iterrows()]
    return f", tied with {joined_names(names)}" if names else ""


def _ranges(table: pd.DataFrame) -> str:
    """Return the range of the test scores over all sites, for runs that chose no site."""
    rows = placed(only(table, target="task", split="test"))
    rows = rows[rows["metric"].isin(main_metrics(table))].dropna(subset=["value"])
    if rows.empty:
        return "No answer: no site has a test score."
    better = n_better_sites(table)
    lead = "" if any(better.values()) else "No evidence beyond random weights: "
    if not better:
        lead = "No site was chosen: "
    parts = []
    for _, own in rows.groupby(["probe", "position", "metric"], sort=False):
        first = own.iloc[0]
        key = (str(first["probe"]), str(first["position"]), str(first["metric"]))
        words, chance = range_words(own)
        is_known = key in better and any(better.values())
        known = [f"significantly better than random weights at {better[key]}"] if is_known else []
        sites = f"over {counted(own['site'].nunique(), 'site')}"
        parts.append(_listed([f"{words} {sites}", chance, *known]))
    text = f"{lead}{'; '.join(parts)}."
    return text[0].upper() + text[1:]


def comparison_rows(row: pd.Series, table: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the test rows that a row is compared with, by target, for the same metric.

    The row of a nested choice is compared with other nested choices and with the baselines. A
    placed row is compared with other targets at the same site, with the baselines, and with:

        embedding       the task at the embedding of the same line, unless `row` is there
        concatenated    the best row of concatenated sites
        random_weights  the mean score of these networks, each at its own chosen sites
    """
    of_run = {"run": row["run"], "dataset": row["dataset"]}
    measured = only(table, metric=row["metric"], split="test", **of_run)
    # Baselines do not depend on sites, but may depend on positions, which select the words.
    measured = measured[measured["position"].isin(["", row["position"]])]
    if TARGETS[row["target"]].choice_of:
        return _by_target(only(measured, site="", position=row["position"]))
    rows = placed(measured)
    joined = only(concatenated(measured), target="task", probe=row["probe"])
    embedding = rows[(rows["depth"] == EMBED_DEPTH) & (row["depth"] != EMBED_DEPTH)]
    compared = [
        same_features(rows, row),
        measured[(measured["site"] == "") & measured["target"].isin(BASELINES)],
        only(embedding, target="task", line=row["line"], probe=row["probe"]).assign(
            target="embedding"
        ),
        best_first(joined, row["metric"]).head(1).assign(target="concatenated"),
        only(measured, target=NESTED["random_weights"]),
    ]
    return _by_target(pd.concat(compared))


def _by_target(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the rows by target; a nested choice has the target that it was made for."""
    plain = {name: target for target, name in NESTED.items()}
    return {plain.get(str(row["target"]), row["target"]): row for _, row in rows.iterrows()}
