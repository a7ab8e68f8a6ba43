"""The verdict of a run, derived once from results.csv and differences.csv when the run ends."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import pandas as pd

from probekit.amounts import FEWEST_UNITS, LEVEL, widening_of
from probekit.probes.kinds.registry import kind_of
from probekit.probes.score.intervals import mean_interval
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import BASELINE_GRIDS, BASELINES, HEADLINE, NESTED, NETWORKS, TARGETS
from probekit.results import table as run_tables
from probekit.results import verdict as verdicts
from probekit.results.scores import Scores, answers_name, best_first, named_rivals, site_with_head
from probekit.results.table import EMBED_DEPTH, SAME_FEATURES, differs, only, same_features
from probekit.results.verdict import NAN, Choice, GridEdge, HeadlineScore, Rival, Verdict

# Metrics at a threshold of training rows: the metric with the false positive rate on the test rows,
# and the rate that the threshold allows.
ACHIEVED = {"tpr_at_fpr_1": ("achieved_fpr_1", 0.01), "tpr_at_fpr_5": ("achieved_fpr_5", 0.05)}
MOST_SITES = 12  # names of sites with unconverged fits that are kept
CLOSE = 0.001  # largest difference of two scores that may be written with the same digits
INTERVAL = ["value", "ci_low", "ci_high"]
OF_LINE = ["probe", "position", "metric"]  # columns with equal values in one curve

# From a name in differences.csv to a target, which is "" for neighbouring sites and other kinds of
# probe, and the difference from it.
Named = Mapping[str, tuple[str, Rival]]


def judge(
    scores: Scores,
    differences: pd.DataFrame,
    grid: Sequence[float] = (),
    rows_of: Callable[[str], pd.DataFrame | None] = lambda _: None,
) -> Verdict:
    """Return the verdict of a run.

    Args:
        scores: the scores of the run.
        differences: rows of differences.csv.
        grid: penalties among which cross-validation chose, `probe.C`; with fewer than two, no
            choice of C counts as an end of the grid.
        rows_of: returns the rows of another file of the run, None if it has none.
    """
    sources, rules = rows_of("sources.csv"), rows_of("aggregation.csv")
    table, best, ranked = scores.rows, scores.chosen, scores.ranked
    reported = scores.reported
    compared = {} if reported is None else compared_rows(reported, scores)
    # The test row of the task itself has the reported score; the others are rows of rivals.
    task = compared.pop("task", None)
    score = None if reported is None or task is None else _score(task, scores, reported)
    if score is None:  # without a reported score nothing is compared with it
        compared = {}
    named, others = _differences(scores, differences, score)
    selectivity = None if task is None else _selectivity(table, task)
    columns = rows_of("unasked.csv")
    warned = [] if columns is None else [row for _, row in only(columns, is_warned=True).iterrows()]
    of_columns = {f"column {row['column']}": row for row in warned if row["metric"]}
    places = _Places(scores)
    curve: list[float] = []  # test scores of the task on the line of the chosen site
    if best is not None:
        line = {column: best[column] for column in run_tables.SERIES if column != "seed"}
        rows = only(scores.of_all_folds.sited, target="task", split="test", metric=best["metric"])
        curve = only(rows, **line)["value"].tolist()
    return Verdict(
        metric=scores.metric,
        main_metrics=scores.main_metrics,
        is_nested=scores.is_nested,
        score=score,
        best=None if best is None else places.choice(best),
        choices=tuple(map(places.choice, scores.choices)),
        curve=tuple(curve),
        n_candidates=len(ranked),
        varied=_differing(ranked, {"kind": "probe", "position": "position"}),
        close=tuple(places.close()),
        several=_differing(scores.sited, {"kind of probe": "probe", "position": "position"}),
        rivals={
            target: _rival(target, compared[target], named, others, selectivity)
            for target in verdicts.COMPARED
            if target in compared
        }
        | {name: _difference(row, name, is_named=True) for name, row in of_columns.items()},
        neighbours=tuple(rival for target, rival in named.values() if not target),
        named=tuple(named),
        n_networks=len(set(NETWORKS) & set(table["target"])),
        unselected=tuple(_unselected(scores, has_choice=reported is not None)),
        null=next((name for name in table["null"] if isinstance(name, str) and name), ""),
        has_p=bool(table["metric"].isin(["p_value", "p_best"]).any()),
        has_compression=bool(table["metric"].eq("compression").any()),
        edges=(*_edges_of_choices(scores.choices, grid), *_edges_of_baselines(compared, task)),
        unconverged=_unconverged(scores),
        false_positives=None if reported is None else _false_positives(scores, reported),
        length_leads=_length_leads(compared),
        learns_control=_learns(compared.get("control"), selectivity),
        sources=None if sources is None else _over_sources(sources),
        unasked=tuple(row["message"] for row in warned),
        length_of_rule=None if rules is None else _length_of_rule(rules),
    )


def _length_of_rule(rules: pd.DataFrame) -> Any:
    """Return the `Verdict.length_of_rule` of the rows of aggregation.csv."""
    row = rules[rules["is_selected"]].iloc[0]
    estimates = [
        tuple(row[name + end] for end in ("", "_low", "_high")) for name in run_tables.OF_RULES
    ]
    _, low, high = estimates[-1]
    return (row["rule"], *estimates) if low > 0 or high < 0 else None


def _over_sources(sources: pd.DataFrame) -> verdicts.SourceScores:
    """Return the means over the sources of sources.csv."""
    counted = only(sources, left_out="")
    others = sources.drop(index=counted.index)
    first, metric = sources.iloc[0], METRICS[sources["metric"].iloc[0]]
    n_rows, means = int(counted["n_test"].sum()), []
    for name in ("value", "within"):
        scores = counted[name].to_numpy()
        found = mean_interval(scores, n_rows, metric.range) if len(scores) else None
        means.append((NAN, NAN, NAN) if found is None else astuple(found))
    is_tested = counted["n_groups"] >= FEWEST_UNITS
    near = counted["lead_high" if metric.lower_is_better else "lead_low"]
    return verdicts.SourceScores(
        column=first["column"],
        metric=metric.name,
        n=len(counted),
        mean=means[0],
        within=means[1],
        n_above=int((is_tested & (metric.sign * near > 0)).sum()),
        worst=first["source"] if len(counted) else "",
        worst_value=first["value"] if len(counted) else NAN,
        worst_chance=first["chance"] if len(counted) else NAN,
        left_out=dict(zip(others["source"], others["left_out"], strict=True)),
        other_scores=dict(zip(others["source"], others["value"], strict=True)),
    )


def compared_rows(row: pd.Series, scores: Scores) -> dict[str, pd.Series]:
    """Return the test rows that a row is compared with, by target, for the same metric.

    The target `task` is the test row of `row` itself. The row of a nested choice is compared with
    other nested choices and with the baselines. The row of a site is compared with other targets
    at the same site, with the baselines, and with:

        embedding       the task at the embedding of the same line, unless `row` is there
        concatenated    the best row of concatenated sites
        random_weights  the mean score of these networks, each at its own chosen sites; at the
                        site of `row` if they have chosen none
    """
    of_run = {"run": row["run"], "dataset": row["dataset"]}
    # Baselines do not depend on sites, but may depend on positions, which select the words.
    at_position = scores.rows["position"].isin(["", row["position"]])
    tested = scores.where(at_position, metric=row["metric"], split="test", **of_run)
    measured = tested.rows
    if TARGETS[row["target"]].choice_of:
        parts = [only(measured, site="", position=row["position"])]
    else:
        rows = tested.sited
        joined = only(tested.concatenated, target="task", probe=row["probe"])
        # There is no comparison with the embedding if `row` itself is there.
        embedding = rows[(rows["depth"] == EMBED_DEPTH) & (row["depth"] != EMBED_DEPTH)]
        embedding = only(embedding, target="task", line=row["line"], probe=row["probe"])
        parts = [
            same_features(rows, row),
            measured[(measured["site"] == "") & measured["target"].isin(BASELINES)],
            embedding.assign(target="embedding"),
            best_first(joined, row["metric"]).head(1).assign(target="concatenated"),
            only(measured, target=NESTED["random_weights"]),
        ]
    # A nested choice has the name of the target that is scored at the chosen sites.
    target_of_choice = {choice: target for target, choice in NESTED.items()}
    # A later row replaces an earlier one of its target: the random networks at their own chosen
    # sites replace those at the site of `row`.
    found = (other for _, other in pd.concat(parts).iterrows())
    return {target_of_choice.get(str(one["target"]), one["target"]): one for one in found}


def _score(task: pd.Series, scores: Scores, reported: pd.Series) -> HeadlineScore:
    """Return the reported score; `task` is its test row, `reported` the row of the choice."""
    p = "p_value" if reported["target"] == HEADLINE else "p_best"
    p_values = _of_reported(scores, reported, p)["value"]
    sites = Counter(site_with_head(row["site"], row["head"]) for row in scores.choices)
    return HeadlineScore(
        site=sites.most_common(1)[0][0],
        p=None if p_values.empty else float(p_values.iloc[0]),
        n=int(task["n_test"]),
        n_groups=int(task["n_groups"]),
        sites=dict(sites.most_common()),
        **{name: task[name] for name in ("metric", "position", "probe", "view")},
        **{name: float(task[name]) for name in (*INTERVAL, "chance")},
    )


def _of_reported(scores: Scores, reported: pd.Series, metric: str) -> pd.DataFrame:
    """Return the test rows of a metric for the reported score."""
    if reported["target"] == HEADLINE:
        return only(scores.rows, metric=metric, split="test", target=HEADLINE)
    rows = same_features(scores.sited, reported)
    return only(rows, metric=metric, split="test", target="task")


def _differences(
    scores: Scores, differences: pd.DataFrame, score: HeadlineScore | None
) -> tuple[Named, dict[str, Rival]]:
    """Return the differences from rivals named in advance, and those from all other probes."""
    best = scores.chosen
    if best is None:
        return {}, {}
    rows = _differences_of(differences, HEADLINE if scores.is_nested else answers_name(best))
    named = {
        name: (target, _difference(rows[name], title, is_named=bool(target)))
        for name, (target, title) in named_rivals(scores, best).items()
        if name in rows
    }
    # Rivals with the numbers of the majority class guess the same label for all rows. In a run with
    # p-values of association, their p-value in differences.csv is that of the reported score, and
    # it is not adjusted.
    if "majority" in named:
        _, majority = named["majority"]
        facts: dict[str, Any] = {"is_constant": True}
        if scores.rows["metric"].isin(run_tables.P_VALUES).any():
            is_below = score is not None and score.is_below_chance
            # With too few groups, p is NaN, and `is_opposite` is False.
            facts |= {"is_association": True, "is_opposite": is_below and majority.p >= LEVEL}
            facts["p_adjusted"] = NAN
        numbers = ["value_b", "ci_low", "ci_high", "p", "p_adjusted"]
        for name, (target, rival) in named.items():
            if rows[name][numbers].equals(rows["majority"][numbers]):
                named[name] = target, rival.model_copy(update=facts)
    return named, {name: _difference(row, name) for name, row in rows.items() if name not in named}


def reported_differences(differences: pd.DataFrame, verdict: Verdict) -> dict[str, Rival]:
    """Return the differences of the reported score, by the name of the other in differences.csv.

    Their p-values are adjusted for the comparisons named in advance, or for all others.
    """
    if verdict.best is None:
        return {}
    best = verdict.best
    reported = HEADLINE if verdict.is_nested else f"{best.name} {best.position} {best.probe} task"
    rows = _differences_of(differences, reported)
    return {name: _difference(row, name) for name, row in rows.items()}


def _differences_of(differences: pd.DataFrame, reported: str) -> dict[str, pd.Series]:
    """Return the rows with a difference of the reported probe, by the name of the other probe."""
    rows = only(differences, a=reported).dropna(subset="difference")
    return {str(row["b"]): row for _, row in rows.iterrows()}


def _difference(row: pd.Series, name: str, *, is_named: bool = False) -> Rival:
    """Return a row of differences.csv as a rival with this display name."""
    numbers = ("ci_low", "ci_high", "p", "p_adjusted", "adjusted_low", "adjusted_high")
    return Rival(
        name=name,
        metric=row["metric"],
        value=row["value_b"],
        difference=row["difference"],
        is_named=is_named,
        **{number: row[number] for number in numbers},
    )


def _rival(
    target: str,
    row: pd.Series,
    named: Named,
    others: Mapping[str, Rival],
    selectivity: pd.Series | None,
) -> Rival:
    """Return the score of a compared row, with the difference from it if there is one.

    The difference from the control task is the selectivity, unless the control task was named in
    advance.
    """
    for target_of_named, rival in named.values():
        # The score is compared, because several rows may be at the embedding.
        if target_of_named == target and np.isclose(rival.value, row["value"]):
            return rival
    rival = Rival(name=target, metric=row["metric"], value=row["value"])
    if target == "control" and selectivity is not None:
        changes = {"difference": selectivity["value"], "n": int(row["n_test"])}
        changes |= {"ci_low": selectivity["ci_low"], "ci_high": selectivity["ci_high"]}
        return rival.model_copy(update=changes)
    # Other probes of the task are at the embedding, or read concatenated sites.
    return others.get(answers_name(row), rival) if row["site"] else rival


def _selectivity(table: pd.DataFrame, task: pd.Series) -> pd.Series | None:
    """Return the row with the selectivity of the probe of a test row; None if not measured."""
    place = {name: task[name] for name in ("run", "target", "site", "position", "probe")}
    rows = only(table, metric="selectivity", split="test", **place)
    # -1 replaces the NaN of sites without a head, because NaN does not equal NaN.
    rows = rows[rows["head"].fillna(-1) == (-1 if pd.isna(task["head"]) else task["head"])]
    return next((row for _, row in rows.iterrows()), None)


class _Places:
    """The chosen sites in words, in which only what differs among sites is named."""

    def __init__(self, scores: Scores) -> None:
        self._ranked, self._blocks = scores.ranked, scores.blocks
        self._has_lines = differs(scores.ranked["line"])
        self._has_kinds = differs(scores.ranked["probe"])
        self._has_positions = differs(scores.sited["position"])

    def choice(self, row: pd.Series) -> Choice:
        """Return the choice of a validation row."""
        layer, head = (None if pd.isna(row[name]) else int(row[name]) for name in ("layer", "head"))
        return Choice(
            layer=layer,
            head=head,
            C=float(row["C"]),
            score=float(row["value"]),
            place=self._words(row),
            **{name: row[name] for name in ("site", "position", "probe", "view")},
        )

    def _words(self, row: pd.Series) -> str:
        """Return a site in words, with its kind of probe if kinds differ.

        The block alone is the residual stream if no other component is ranked. Given activations
        have the name of their site.
        """
        depth = run_tables.row_tick(row, self._blocks)
        ends = {"embed": "the embedding", "final norm": "the final norm"}
        name = ends.get(depth, f"block {depth}")
        if not pd.isna(row.get("order")):
            name = str(row["site"])
        elif row["line"] != "residual stream":
            name = f"{row['line']} of {name}"
        elif self._has_lines and depth.isdigit():
            name = f"the residual stream after {name}"
        return f"{name} with the {row['probe']} probe" if self._has_kinds else name

    def close(self) -> Iterator[tuple[float, str]]:
        """Yield score and place of the best candidates, whose scores may be written alike."""
        best = self._ranked["value"].head(1).sum()  # 0 without candidates
        for _, row in self._ranked[abs(self._ranked["value"] - best) <= CLOSE].iterrows():
            position = f" (position {row['position']})" if self._has_positions else ""
            yield float(row["value"]), self._words(row) + position


def _differing(rows: pd.DataFrame, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names (keys) of the columns (values) that contain several values."""
    return tuple(name for name, column in names.items() if differs(rows[column]))


def _unselected(scores: Scores, *, has_choice: bool) -> Iterator[verdicts.UnselectedScores]:
    """Yield the scores of each probe that is compared with random networks at every site.

    These are probes without validation scores, such as structural probes; for others, the selected
    site is compared. Without a choice, the scores of all probes are yielded, compared or not; a
    probe without any defined score is left out.
    """
    rows = only(scores.sited, split="test")
    rows = rows[rows["metric"].isin(scores.main_metrics)]
    task = only(rows, target="task")
    selected = only(scores.rows, target="task", split="validation")["probe"]
    pairs = task[~task["probe"].isin(selected)].merge(
        only(rows, target="random_weights"), on=[*SAME_FEATURES, "metric"], suffixes=("", "_random")
    )
    # Scores that are undefined for these test rows, or have no interval because there are too few
    # groups, cannot be compared.
    pairs = pairs.dropna(subset=[f"{name}{of}" for name in INTERVAL for of in ("", "_random")])
    # The pairs of each line; a key is a tuple of the cells in `OF_LINE`.
    compared = dict(list(pairs.groupby(OF_LINE, sort=False)))
    for key, rows_of_line in task.dropna(subset="value").groupby(OF_LINE, sort=False):
        if key in compared or not has_choice:
            yield verdicts.UnselectedScores(
                **dict(zip(OF_LINE, key, strict=True)),
                chance=rows_of_line["chance"].iloc[0],
                low=rows_of_line["value"].min(),
                high=rows_of_line["value"].max(),
                n_sites=rows_of_line["site"].nunique(),
                n=int(rows_of_line["n_test"].max()),
                n_groups=int(rows_of_line["n_groups"].max()),
                **(_against_random(compared[key]) if key in compared else {}),
            )


def _against_random(pairs: pd.DataFrame) -> dict[str, Any]:
    """Return the number of sites significantly better than random weights, and the largest lead.

    The limit of a difference combines the intervals of both scores as if they were independent,
    which is conservative, and is adjusted for the number of sites (Bonferroni).

    Source: Zou and Donner (2008), Construction of confidence limits about effect measures.
    """
    metric = METRICS[pairs["metric"].iloc[0]]
    worst, best = ("ci_high", "ci_low") if metric.lower_is_better else ("ci_low", "ci_high")
    lead = metric.sign * (pairs["value"] - pairs["value_random"])
    # Distance of a lead from its lower limit:
    # sqrt((score - its worst limit)^2 + (random score - its best limit)^2).
    half = np.hypot(pairs["value"] - pairs[worst], pairs["value_random"] - pairs[f"{best}_random"])
    largest = pairs.iloc[int(np.argmax(lead))]
    return {
        "n_compared": len(pairs),
        "n_better": int((lead > widening_of(len(pairs)) * half).sum()),
        "closest": site_with_head(largest["site"], largest["head"]),
        "task": tuple(largest[INTERVAL]),
        "random": tuple(largest[[f"{name}_random" for name in INTERVAL]]),
    }


def _edges_of_choices(picks: Sequence[pd.Series], grid: Sequence[float]) -> list[GridEdge]:
    """Return the selected penalties at an end of their grid, with the number of folds of each."""
    counts: Counter[tuple[str, float, str]] = Counter()
    for row in picks:
        kind = kind_of(row["probe"])
        parameter, values = "C", grid
        # Kinds with another penalty than C have their own grid.
        if kind is not None and kind.grid is not None and kind.grid[0] != "C":
            parameter, values = kind.grid
        counts.update((parameter, row["C"], end) for end in _ends(row["C"], values))
    return [
        GridEdge(parameter=parameter, value=value, end=end, n_folds=n)
        for (parameter, value, end), n in counts.items()
    ]


def _edges_of_baselines(
    compared: Mapping[str, pd.Series], task: pd.Series | None
) -> Iterator[GridEdge]:
    """Yield the baselines whose selected penalty is at an end of its grid.

    Baselines are left out if their score is the best possible one or undefined, or if the penalty
    is the strongest one and they are no better than the majority class (without it, than chance).
    """
    if task is None:
        return
    metric = METRICS[task["metric"]]
    parameter, values = BASELINE_GRIDS["number" if metric.beats_the_mean else "class"]
    strongest = "smallest" if parameter == "C" else "largest"  # C is an inverse strength
    # The best possible score, signed so that larger values are better.
    lowest, highest = metric.range
    best = -lowest if metric.lower_is_better else highest
    majority = compared["majority"]["value"] if "majority" in compared else task["chance"]
    for target, row in compared.items():
        if target in TARGETS and TARGETS[target].is_tuned and metric.sign * row["value"] < best:
            for end in _ends(row["C"], values):
                if end != strongest or metric.sign * (row["value"] - majority) > 0:
                    yield GridEdge(parameter=parameter, value=row["C"], end=end, baseline=target)


def _ends(value: float, grid: Sequence[float]) -> list[str]:
    """Return ["smallest"] or ["largest"] if the value is at that end of a grid, else [].

    The only value of a grid is at no end.
    """
    if len(grid) < 2:
        return []
    ends = {"smallest": min(grid), "largest": max(grid)}
    return [end for end, limit in ends.items() if math.isclose(value, limit)]


def _unconverged(scores: Scores) -> verdicts.UnconvergedFits | None:
    """Return the counts of fits that did not converge; None if all did."""
    fits = scores.rows[scores.rows["metric"].isin([*scores.main_metrics, "compression"])]
    # Scores without a site combine fits that have rows of their own.
    fits = fits[fits["converged"].notna() & (fits["site"] != "")]
    stopped = fits[~fits["converged"].astype(bool)]
    if stopped.empty:
        return None
    kinds = stopped["probe"].value_counts().items() if differs(fits["probe"]) else ()
    sites = list(stopped["site"].unique())
    return verdicts.UnconvergedFits(
        n=len(stopped),
        n_fits=len(fits),
        probes={str(probe): int(n) for probe, n in kinds},
        splits={str(split): int(n) for split, n in stopped["split"].value_counts().items()},
        sites=tuple(sites[:MOST_SITES]),
        n_sites=len(sites),
    )


def _false_positives(scores: Scores, reported: pd.Series) -> tuple[float, ...] | None:
    """Return the false positive rate on the test rows with its interval.

    None if it is not above the rate that the threshold allows, or the metric has no threshold.
    """
    # A metric without a threshold gets the name "", which no row has.
    metric, allowed = ACHIEVED.get(reported["metric"], ("", 1.0))
    rows = _of_reported(scores, reported, metric)
    above = rows[rows["value"] > allowed]
    return None if above.empty else tuple(above.iloc[0][INTERVAL])


def _length_leads(compared: Mapping[str, pd.Series]) -> bool:
    """Return whether the length alone scores significantly better than the bag of words."""
    if not {"length", "bag_of_words"} <= set(compared):
        return False
    length, words = compared["length"], compared["bag_of_words"]
    # A difference within the interval may be due to chance.
    if METRICS[length["metric"]].lower_is_better:
        return bool(words["value"] > length["ci_high"])
    return bool(words["value"] < length["ci_low"])


def _learns(control: pd.Series | None, selectivity: pd.Series | None) -> bool:
    """Return whether the control task is significantly above chance, without clear selectivity.

    Selectivity is clear if its whole interval is above 0. False if one of them was not measured.
    """
    if control is None or selectivity is None:
        return False
    sign = METRICS[control["metric"]].sign
    worst = control["ci_low" if sign > 0 else "ci_high"]
    # Comparisons with unknown limits (NaN) are False.
    return bool(sign * (worst - control["chance"]) > 0 and selectivity["ci_low"] <= 0)
