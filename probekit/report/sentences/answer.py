"""The result in words: which site was chosen, its score, and that of all its company."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import TARGETS
from probekit.report.figures.layer_curve import series_names
from probekit.report.figures.levels import chance_name
from probekit.report.figures.style import LEVELS, format_number, format_p
from probekit.report.sentences.words import unit_of
from probekit.results.differences import BY_ITSELF, DOES_NOT_HOLD, HOLDS, RivalDifferences
from probekit.results.metrics import MAIN_METRICS, metric_name
from probekit.results.selection import chosen_row, ranked_rows, selection
from probekit.results.table import (
    EMBED_DEPTH,
    concatenated,
    differs,
    n_blocks,
    only,
    placed,
    same_features,
    tick,
)

# What the chosen probe is compared with, in the order of the sentence.
NAMES = {
    **{name: TARGETS[name].phrase for name in ("control", "word_identity", "bag_of_words")},
    **{name: TARGETS[name].phrase for name in ("length", "random_weights")},
    "embedding": "the embedding",
    "majority": TARGETS["majority"].phrase,
    "concatenated": "several sites side by side",
}
RIVALS = ("word_identity", "bag_of_words", "length", "embedding", "random_weights", "majority")


def answer(table: pd.DataFrame, comparisons: RivalDifferences | None = None) -> str:
    """Return the result in words: the chosen site and kind, its score, and that of its company."""
    chosen = chosen_row(table)
    if chosen is None:
        told = "No layer was chosen: the results hold no cross-validation of the task."
        return " ".join([told, *_ranges(table)])
    company = company_of(chosen, table)
    task = company.pop("task", None)
    place = _place(chosen, table)
    if task is None:
        return f"Chosen by cross-validation: {place}, which has no test row."
    metric = metric_name(chosen["metric"])
    names = _names(chosen["metric"])
    beside = [
        f"{words} {format_number(company[name]['value'])}"
        for name, words in names.items()
        if name in company and name != "embedding"
    ]
    sentences = [
        f"Chosen: {place}, by cross-validated {metric} on training rows "
        f"{format_number(chosen['value'])}{_next(table)}: {metric}",
        format_number(task["value"], task["ci_low"], task["ci_high"]),
        f"on {task['n_test']:,.0f} held-out rows of {task['n_groups']:,.0f} groups.",
        f"Beside it: {'; '.join(beside)}." if beside else "It was measured without company.",
        _luck(table, chosen),
        _holding(comparisons, names),
    ]
    return " ".join(filter(None, sentences))


def _names(metric: str) -> dict[str, str]:
    return NAMES | ({"majority": "the mean label"} if METRICS[metric].beats_the_mean else {})


def _luck(table: pd.DataFrame, chosen: pd.Series) -> str:
    """Return how often luck alone reaches the score of the chosen probe at any site."""
    judged = only(table, target="task", metric="p_best")  # joined sites were competitors, too
    own = same_features(placed(judged), chosen)
    if own.empty:
        return ""
    tried = "pairs of site and kind" if differs(judged["probe"]) else "sites"
    told = format_p(own["value"].iloc[0])
    p = f"p {told.replace('<', '< ')}" if told.startswith("<") else f"p = {told}"
    return (
        f"{p} that any of the {len(judged):,} {tried} reaches this by luck "
        "(answers exchanged with the best constant guess, group by group; maximum over "
        "sites)."
    )


def _holding(comparisons: RivalDifferences | None, names: Mapping[str, str]) -> str:
    """Return over which rivals the lead of the chosen probe holds, and over which it does not."""
    named = [] if comparisons is None else [one for one in comparisons.named if one.key in RIVALS]
    by_verdict = {
        verdict: [names[one.key] for one in named if one.verdict == verdict]
        for verdict in (HOLDS, BY_ITSELF, DOES_NOT_HOLD)
    }
    said = {
        HOLDS: "holds over {}",
        BY_ITSELF: "holds over {} by itself but not after the adjustment for all comparisons",
        DOES_NOT_HOLD: "does not hold over {}",
    }
    parts = [said[v].format(_listed(rivals)) for v, rivals in by_verdict.items() if rivals]
    return f"On the same test rows its lead {'; it '.join(parts)}." if parts else ""


def _listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them.

    >>> _listed(["a", "b", "c"]), _listed(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _ranges(table: pd.DataFrame) -> list[str]:
    """Return for each main metric from where to where the test scores go, with their company."""
    test = placed(only(table, split="test"))
    sentences = []
    for metric in MAIN_METRICS:
        rows = only(test, metric=metric)
        task = only(rows, target="task")
        if task.empty:
            continue
        known = [_range("a random network", only(rows, target="random_weights")["value"])]
        known += [_range(LEVELS[chance_name(task)].label, task["chance"].dropna())]
        beside = f" (beside it: {'; '.join(filter(None, known))})" if any(known) else ""
        name = metric_name(metric)
        ordered = task.sort_values("value", kind="stable")
        low, high = ordered.iloc[0], ordered.iloc[-1]
        sentences.append(
            f"{name[0].upper()}{name[1:]} on {task['n_test'].max():,.0f} held-out "
            f"{unit_of(task)} goes from "
            f"{format_number(low['value'])} at {low['site']} to "
            f"{format_number(high['value'], high['ci_low'], high['ci_high'])} at {high['site']}"
            f"{beside}; to pick the highest is a choice on test rows."
        )
    return sentences


def _range(name: str, values: pd.Series[float]) -> str:
    if values.empty:
        return ""
    low, high = format_number(values.min()), format_number(values.max())
    return f"{name} {low}" if low == high else f"{name} {low} to {high}"


def _next(table: pd.DataFrame) -> str:
    """Return the site that came second, by its depth and the series it belongs to, if any did.

    Of a tie it says so.
    """
    ranked = ranked_rows(table)
    if len(ranked) < 2:
        return ""
    second = ranked.assign(series=series_names(ranked)).iloc[1]
    place = " ".join(filter(None, [_depth(second, table), second["series"]]))
    n_equal = (ranked["value"] == ranked["value"].iloc[0]).sum() - 1
    if n_equal:
        more = f" and {n_equal - 1} more have" if n_equal > 1 else " has"
        return f" ({place}{more} the same; of equals the first is taken)"
    return f" (next: {place}, {format_number(second['value'])})"


def _place(row: pd.Series, table: pd.DataFrame) -> str:
    ranked = ranked_rows(table)
    position = f" at {row['position']}" if differs(placed(table)["position"]) else ""
    kind = f", {row['probe']} probe" if differs(ranked["probe"]) else ""
    return f"{_depth(row, table)} ({selection(row['site'], row['head'])}{position}){kind}"


def _depth(row: pd.Series, table: pd.DataFrame) -> str:
    name = tick(row["depth"], n_blocks(placed(table)))
    return {"embed": "the embedding", "final norm": "the final norm"}.get(name, f"block {name}")


def company_of(row: pd.Series, table: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the test rows of its metric that belong beside a placed row, by target.

    "embedding" is the task's row at the embedding on the same line, unless `row` stands there;
    "concatenated" is the best of several sites side by side.
    """
    of_run = {"run": row["run"], "dataset": row["dataset"]}
    measured = only(table, metric=row["metric"], split="test", **of_run)
    # The baselines know nothing of sites; they may know of positions, since those choose the words.
    measured = measured[measured["position"].isin(["", row["position"]])]
    rows = placed(measured)
    joined = only(concatenated(measured), target="task", probe=row["probe"])
    start = rows[(rows["depth"] == EMBED_DEPTH) & (row["depth"] != EMBED_DEPTH)]
    company = [
        same_features(rows, row),
        measured[measured["site"] == ""],
        only(start, target="task", line=row["line"], probe=row["probe"]).assign(target="embedding"),
        joined.nlargest(1, "value").assign(target="concatenated"),
    ]
    return {str(member["target"]): member for _, member in pd.concat(company).iterrows()}
