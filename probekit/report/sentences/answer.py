"""Summary of a run in sentences: selected site, score, controls, baselines and significance."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from probekit.amounts import joined_names
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import BASELINES, HEADLINE, NESTED, TARGETS
from probekit.report.figures.layer_curve import series_names
from probekit.report.figures.levels import chance_name
from probekit.report.figures.style import LEVELS, format_number, format_p
from probekit.report.sentences.choice import nested_sentence
from probekit.report.sentences.words import unit_of
from probekit.results.differences import (
    NOT_SIGNIFICANT,
    SIGNIFICANT,
    SIGNIFICANTLY_WORSE,
    TOO_FEW_GROUPS,
    RivalDifferences,
)
from probekit.results.metrics import metric_name
from probekit.results.selection import (
    best_first,
    is_nested,
    main_metrics,
    ranked_rows,
    reported_row,
    site_with_head,
)
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

# Phrases for the comparisons of the selected probe, in the order of the sentence.
NAMES = {
    "control": TARGETS["control"].phrase,
    **{name: TARGETS[name].phrase for name in BASELINES if name != "majority"},
    "random_weights": TARGETS["random_weights"].phrase,
    "embedding": "the embedding",
    "majority": TARGETS["majority"].phrase,
    "concatenated": "concatenated sites",
}
RIVALS = (*BASELINES, "embedding", "random_weights")


def answer(table: pd.DataFrame, comparisons: RivalDifferences | None = None) -> str:
    """Return the summary of a run: selected site and probe, its score, and the comparisons.

    Args:
        table: Rows of results.csv.
        comparisons: Paired differences from the selected probe, from differences.csv.
    """
    chosen = reported_row(table)
    if chosen is None:
        reason = "No layer was chosen: the results contain no cross-validated scores of the task."
        return " ".join([reason, *_ranges(table)])
    compared = comparison_rows(chosen, table)
    task = compared.pop("task", None)
    if task is None:
        return f"Chosen by cross-validation: {_site(chosen, table)}, which has no test row."
    names = _names(chosen["metric"])
    others = [
        f"{phrase} {format_number(compared[name]['value'])}"
        for name, phrase in names.items()
        if name in compared and name != "embedding"
    ]
    sentences = [
        *_choice(chosen, table),
        format_number(task["value"], task["ci_low"], task["ci_high"]),
        f"on {task['n_test']:,.0f} held-out rows in {task['n_groups']:,.0f} groups.",
        f"For comparison: {'; '.join(others)}." if others else "No control or baseline was run.",
        _p_value(table, chosen),
        _significance(comparisons, names),
    ]
    return " ".join(filter(None, sentences))


def _choice(chosen: pd.Series, table: pd.DataFrame) -> list[str]:
    """Return how the site was chosen, and the name of the score."""
    metric = metric_name(chosen["metric"])
    if is_nested(table):
        return [nested_sentence(table), f"Test {metric} of these choices"]
    return [
        f"Chosen: {_site(chosen, table)}, with cross-validated {metric} "
        f"{format_number(chosen['value'])} on training rows{_next(table)}. Test {metric}"
    ]


def _names(metric: str) -> dict[str, str]:
    return NAMES | ({"majority": "the mean label"} if METRICS[metric].beats_the_mean else {})


def _p_value(table: pd.DataFrame, chosen: pd.Series) -> str:
    """Return the p-value of the selected probe, adjusted for the maximum over all sites.

    The p-value of a nested choice is not adjusted, because the choice did not use the test rows.
    """
    if is_nested(table):
        own = only(table, target=HEADLINE, metric="p_value")
        return _p_sentence(own["value"].iloc[0], _null(own)) if len(own) else ""
    tested = only(table, target="task", metric="p_best")  # concatenated sites are in the maximum
    own = same_features(placed(tested), chosen)
    if own.empty:
        return ""
    units = "pairs of site and kind" if differs(tested["probe"]) else "sites"
    how = f"{_null(own)}; maximum over {len(tested):,} {units}"
    return _p_sentence(own["value"].iloc[0], how)


def _null(own: pd.DataFrame) -> str:
    """Return the name of the null distribution; older releases did not write it."""
    return own["null"].iloc[0] or "predictions exchanged group by group"


def _p_sentence(value: float, how: str) -> str:
    text = format_p(value)
    p = f"p {text.replace('<', '< ')}" if text.startswith("<") else f"p = {text}"
    return f"Predictions and labels are tested for association: {p} (one-sided; {how})."


def _significance(comparisons: RivalDifferences | None, names: Mapping[str, str]) -> str:
    """Return which baselines the selected probe beats significantly, and which it does not."""
    named = [] if comparisons is None else [row for row in comparisons.named if row.key in RIVALS]
    by_verdict = {
        verdict: [names[row.key] for row in named if row.verdict == verdict]
        for verdict in (SIGNIFICANT, NOT_SIGNIFICANT, SIGNIFICANTLY_WORSE, TOO_FEW_GROUPS)
    }
    templates = {
        SIGNIFICANT: "significantly better than {}",
        NOT_SIGNIFICANT: "not significantly better than {}",
        SIGNIFICANTLY_WORSE: "significantly worse than {}",
        TOO_FEW_GROUPS: "not compared with {}, because there are too few groups",
    }
    parts = [
        templates[v].format(joined_names(rivals)) for v, rivals in by_verdict.items() if rivals
    ]
    return f"On the same test rows it is {'; '.join(parts)}." if parts else ""


def _ranges(table: pd.DataFrame) -> list[str]:
    """Return a sentence for each main metric with the range of test scores over all sites."""
    test = placed(only(table, split="test"))
    sentences = []
    for metric in main_metrics(table):
        rows = only(test, metric=metric)
        task = only(rows, target="task")
        if task.empty:
            continue
        others = [_range("a random network", only(rows, target="random_weights")["value"])]
        others += [_range(LEVELS[chance_name(task)].label, task["chance"].dropna())]
        compared = f" (for comparison: {'; '.join(filter(None, others))})" if any(others) else ""
        name = metric_name(metric)
        ordered = task.sort_values("value", kind="stable")
        low, high = ordered.iloc[0], ordered.iloc[-1]
        sentences.append(
            f"{name[0].upper()}{name[1:]} on {task['n_test'].max():,.0f} held-out "
            f"{unit_of(task)} ranges from "
            f"{format_number(low['value'])} at {low['site']} to "
            f"{format_number(high['value'], high['ci_low'], high['ci_high'])} at {high['site']}"
            f"{compared}; picking the highest would be a selection on test rows."
        )
    return sentences


def _range(name: str, values: pd.Series[float]) -> str:
    if values.empty:
        return ""
    low, high = format_number(values.min()), format_number(values.max())
    return f"{name} {low}" if low == high else f"{name} {low} to {high}"


def _next(table: pd.DataFrame) -> str:
    """Return the site with the second-best cross-validated score, or the tied sites, if any."""
    ranked = ranked_rows(table)
    if len(ranked) < 2:
        return ""
    second = ranked.assign(series=series_names(ranked)).iloc[1]
    site = " ".join(filter(None, [_depth(second, table), second["series"]]))
    n_equal = (ranked["value"] == ranked["value"].iloc[0]).sum() - 1
    if n_equal:
        more = f" and {n_equal - 1} more" if n_equal > 1 else ""
        return f" (tied with {site}{more}; the first is taken)"
    return f" (next: {site}, {format_number(second['value'])})"


def _site(row: pd.Series, table: pd.DataFrame) -> str:
    ranked = ranked_rows(table)
    position = f" at {row['position']}" if differs(placed(table)["position"]) else ""
    kind = f", {row['probe']} probe" if differs(ranked["probe"]) else ""
    return f"{_depth(row, table)} ({site_with_head(row['site'], row['head'])}{position}){kind}"


def _depth(row: pd.Series, table: pd.DataFrame) -> str:
    name = tick(row["depth"], n_blocks(placed(table)))
    return {"embed": "the embedding", "final norm": "the final norm"}.get(name, f"block {name}")


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
