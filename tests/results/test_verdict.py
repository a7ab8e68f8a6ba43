"""The verdict of a run follows from its tables: choice, scores, differences, and their tests."""

import math

import numpy as np
import pandas as pd
import pytest

from probekit.errors import DataError
from probekit.results.judging import other_rivals
from probekit.results.selection import (
    chosen_row,
    fold_choices,
    headline_row,
    is_nested,
)
from probekit.results.table import DIFFERENCES, read_columns
from probekit.results.verdict import (
    NOT_BETTER,
    NOT_SIGNIFICANT,
    SIGNIFICANT,
    SIGNIFICANTLY_WORSE,
    TOO_FEW_GROUPS,
    Rival,
)
from tests.report.conftest import SITES, difference, judged
from tests.report.sentences.cases import (
    BEST,
    CASES,
    EMBEDDING,
    NESTED,
    RANDOM,
    trees,
    with_folds,
    with_p,
    with_values,
)

FAR = "ln_final.hook_normalized last logistic task"
ROWS = (
    difference("majority", p_adjusted=0.008),
    difference("word_identity", 0.02, score=0.71, p=0.4),
    difference(RANDOM, 0.205, score=0.736, p_adjusted=0.008),
    difference(EMBEDDING, 0.06, p=0.03, p_adjusted=0.06, score=0.712),
    difference(FAR, 0.02, p=0.3, p_adjusted=0.9),
)


CASE_OF = {
    "better": "yes",
    "no evidence": "no evidence",
    "too few groups": "too few groups",
    "rivals are not worse": "not better",
    "not tested": "untested",
    "worse than the majority": "worse",
    "worse than chance": "worse",
    "perhaps below chance": "no evidence",
    "associated below chance": "not better",
    "associated, but not more often correct": "not better",
    "tested against the majority only": "yes",
    "two folds agree": "yes",
    "folds and random weights": "not better",
}


@pytest.mark.parametrize(("name", "expected"), CASE_OF.items())
def test_each_result_is_one_case(name, expected):
    assert judged(CASES[name].table, CASES[name].differences).case == expected


def test_the_reported_score_is_that_of_the_chosen_site_on_test_rows(table):
    v = judged(with_p(table, 0.004))
    assert (v.score.site, v.score.value, v.score.p, v.score.n) == (SITES[3], 0.941, 0.004, 1039)
    assert (v.metric, v.main_metrics, v.is_nested) == ("accuracy", ("accuracy",), False)
    assert v.choices == (v.best,)
    assert (v.best.name, v.best.layer, v.best.C) == (SITES[3], 2, 0.01)
    assert v.best.score == pytest.approx(0.931)
    assert (v.n_candidates, v.varied, v.several) == (6, (), ())


def test_the_score_of_outer_folds_is_that_of_their_choices():
    v = judged(NESTED)
    assert [choice.name for choice in v.choices] == list(BEST.values())
    assert (v.score.value, v.score.p, v.score.probe) == (0.9, 0.01, "chosen")
    assert v.score.sites == {BEST[0]: 2, BEST[2]: 1}
    values = {target: rival.value for target, rival in v.rivals.items()}
    assert values == {
        "majority": 0.5,
        "word_identity": 0.71,
        "random_weights": 0.7,
        "embedding": 0.72,
        "control": 0.6,
    }
    assert v.best.score == judged(NESTED[NESTED["fold"].isna()]).best.score


def test_selection_by_one_split_and_by_outer_folds(table):
    assert [row["site"] for row in fold_choices(NESTED)] == list(BEST.values())
    assert headline_row(NESTED)["value"] == 0.9
    # Rows of folds do not enter the choice over all folds.
    assert chosen_row(NESTED)["value"] == chosen_row(table)["value"]
    assert (fold_choices(table), headline_row(table), is_nested(table)) == ([], None, False)
    lost = NESTED[NESTED["fold"] != 1].copy()
    lost.loc[lost["target"] == "control", "fold"] = 1.0
    assert fold_choices(lost) == []


def test_kinds_and_positions_are_named_if_they_differ(table, sweep, heads):
    other = table[table["target"] == "task"].assign(probe="mass_mean", value=0.1)
    v = judged(with_folds(pd.concat([table, other], ignore_index=True)))
    assert v.several == ("kind of probe",)
    assert judged(sweep).varied == judged(sweep).several == ("position",)
    assert judged(heads).best.name == "blocks.3.attn.hook_z[head=2]"


def test_rivals_are_named_and_their_adjusted_p_decides(table):
    v = judged(table, ROWS)
    verdicts = {target: (one.decisive_p, one.verdict) for target, one in v.rivals.items()}
    assert verdicts | {"control": None} == {
        "majority": (0.008, SIGNIFICANT),
        "word_identity": (0.4, NOT_SIGNIFICANT),
        "random_weights": (0.008, SIGNIFICANT),
        "embedding": (0.06, NOT_SIGNIFICANT),
        "control": None,
    }
    assert list(v.doubts) == ["word_identity", "embedding"]
    assert v.named == ("majority", "word_identity", RANDOM, EMBEDDING)
    (far,) = other_rivals(pd.DataFrame(ROWS), v)
    assert (far.name, far.p, far.p_adjusted, far.is_named) == (FAR, 0.3, 0.9, False)


def test_differences_of_another_choice_are_left_alone(table):
    v = judged(table, [row | {"a": FAR} for row in ROWS])
    assert v.named == ()
    assert not any(one.is_named for one in v.rivals.values())


def test_the_difference_to_a_rival_of_another_score_does_not_apply(table):
    v = judged(with_values(table, 0.93, target="random_weights"), ROWS)
    assert not v.rivals["random_weights"].is_named
    assert "random_weights" in v.doubts


def test_neighbours_and_other_kinds_at_the_site_are_named(table):
    other = table[table["target"] == "task"].assign(probe="mass_mean")
    other.loc[other["split"] == "validation", "value"] -= 0.5
    names = [
        "blocks.1.hook_resid_post last logistic task",
        "blocks.2.hook_resid_post last mass_mean task",
        "blocks.1.hook_resid_post last mass_mean task",
    ]
    rows = [difference(name) for name in names]
    v = judged(pd.concat([table, other], ignore_index=True), rows)
    assert [one.name for one in v.neighbours] == ["neighbour: block 1", "mass_mean, same site"]
    assert [one.name for one in other_rivals(pd.DataFrame(rows), v)] == [names[2]]


def test_differences_of_the_nested_choice_are_named():
    far = "blocks.1.hook_resid_post last logistic task"
    scores = {"majority": 0.5, "chosen_random_weights": 0.7, far: 0.5}
    rows = [difference(name, score=score, a="chosen") for name, score in scores.items()]
    v = judged(NESTED, rows)
    named = [target for target, one in v.rivals.items() if one.is_named]
    assert named == ["majority", "random_weights"]
    assert [one.name for one in other_rivals(pd.DataFrame(rows), v)] == [far]


def test_the_p_value_of_the_majority_class_is_that_of_an_association_if_one_was_tested(table):
    opposite = difference("majority", -0.3, 0.2, 1.0)
    v = judged(table, [opposite, *ROWS[1:]])
    assert not any(one.is_association for one in v.rivals.values())
    v = judged(with_p(table, 1.0), [opposite, *ROWS[1:]])
    assert [target for target, one in v.rivals.items() if one.is_association] == ["majority"]
    assert v.rivals["majority"].verdict == NOT_SIGNIFICANT
    # So is that of a baseline that scores the same.
    same = opposite | {"b": "word_identity"}
    both = with_values(with_p(table, 1.0), 0.5, target="word_identity")
    v = judged(both, [opposite, same])
    associated = [target for target, one in v.rivals.items() if one.is_association]
    assert associated == ["majority", "word_identity"]
    # The test is one-sided: the interval of the score shows that the probe is worse.
    low = with_values(table, (0.2, 0.05, 0.4), target="task")
    assert judged(with_p(low, 1.0), [opposite]).rivals["majority"].verdict == SIGNIFICANTLY_WORSE
    assert judged(low, [opposite]).rivals["majority"].verdict == NOT_SIGNIFICANT


@pytest.mark.parametrize(
    ("value", "reach", "verdict"),
    [
        (-0.008, 0.028, NOT_BETTER),
        (0.002, 0.027, NOT_BETTER),
        (0.2, 0.1, SIGNIFICANT),
        (-0.2, 0.1, SIGNIFICANTLY_WORSE),
    ],
)
def test_an_association_alone_does_not_decide_about_the_majority_class(
    table, value, reach, verdict
):
    v = judged(with_p(table, 0.0005), [difference("majority", value, reach, 0.0005)])
    assert v.rivals["majority"].verdict == verdict


def test_without_a_p_value_there_are_too_few_groups_for_a_verdict(table):
    v = judged(table, [difference(RANDOM, score=0.736, p=math.nan)])
    assert v.rivals["random_weights"].verdict == TOO_FEW_GROUPS
    assert v.doubts == {}  # its interval is above 0


def test_lower_scores_lead_if_they_are_better(table):
    brier = table.replace({"metric": {"accuracy": "brier"}}).assign(main_metric="brier")
    rows = [difference("majority", -0.2, a=EMBEDDING) | {"metric": "brier"}]
    assert judged(brier, rows).rivals["majority"].verdict == SIGNIFICANT
    assert judged(brier).best.name == SITES[0]


def test_the_difference_from_the_control_task_is_the_selectivity(table):
    control = judged(table).rivals["control"]
    assert (control.value, control.difference, control.ci_low) == (0.547, 0.394, 0.374)
    assert math.isnan(control.p)


@pytest.mark.parametrize(("value", "n_better"), [(0.437, 0), (0.439, 1)])
def test_differences_from_random_networks_are_adjusted_for_the_sites(value, n_better):
    # The limit is 1.346 times the half-width of the difference, 0.0283, for six sites.
    table = with_values(trees().assign(metric="accuracy", main_metric="accuracy"), 0.4)
    table = table[table["probe"] == "structural_distance:64"]
    better = with_values(table, (value, value - 0.02, value + 0.02), target="task", site=BEST[0])
    (line,) = judged(better).unselected
    assert (line.n_compared, line.n_better, line.closest) == (6, n_better, BEST[0])


def test_scores_without_intervals_are_not_compared_with_random_networks():
    table = trees()
    table[["ci_low", "ci_high"]] = math.nan
    assert [line.n_compared for line in judged(table).unselected] == [0, 0]
    undefined = trees()
    undefined.loc[undefined["metric"] == "uuas", "value"] = math.nan
    assert [line.metric for line in judged(undefined).unselected] == ["root_accuracy"]


def test_a_probe_with_a_selected_site_is_compared_there_only(table):
    equal = with_values(table, 0.99, target="random_weights")
    assert judged(equal).unselected == ()
    (line,) = judged(equal[equal["split"] == "test"]).unselected
    assert (line.n_better, line.low, line.high, line.n) == (0, 0.712, 0.941, 1039)


def test_equal_networks_are_rarely_called_better():
    """Simulation: 13 sites, 40 sentences of shared difficulty, both networks equally good.

    The promise is at most 2.5 % of runs without the warning, when scores are independent.
    """
    generator = np.random.default_rng(0)
    n, n_sites, n_runs = 40, 13, 150
    scores = generator.normal(size=(n_runs, 2, n, n_sites)) * 0.5
    scores += generator.normal(size=(n_runs, 2, n, 1))
    mean, half = scores.mean(axis=2), 2.02 / math.sqrt(n) * scores.std(axis=2, ddof=1)
    target, site = (axis.ravel() for axis in np.indices((2, n_sites)))
    facts = trees().iloc[[0] * 2 * n_sites].reset_index(drop=True)
    facts["target"] = np.array(["task", "random_weights"])[target]
    facts["site"] = [f"blocks.{number}.hook_resid_post" for number in site]
    n_better = 0
    for run in range(n_runs):
        values, width = mean[run].ravel(), half[run].ravel()
        numbers = {"value": values, "ci_low": values - width, "ci_high": values + width}
        (line,) = judged(facts.assign(**numbers)).unselected
        n_better += line.n_better > 0
    assert 0 <= n_better / n_runs <= 0.05


def test_a_file_of_differences_that_lacks_a_column_is_refused(tmp_path):
    path, differences = tmp_path / "differences.csv", pd.DataFrame(ROWS)
    differences.drop(columns="p_adjusted").to_csv(path, index=False)
    with pytest.raises(DataError, match=r"differences\.csv, line 1: no column 'p_adjusted'"):
        read_columns(path, DIFFERENCES)
    differences.astype({"p": object}).assign(p="x").to_csv(path, index=False)
    with pytest.raises(DataError, match=r"line 2, column 'p': 'x' cannot be read"):
        read_columns(path, DIFFERENCES)
    differences.to_csv(path, index=False)
    assert judged(CASES["better"].table, read_columns(path, DIFFERENCES).to_dict("records")).named


def test_an_association_without_interval_or_difference_is_no_significant_difference():
    of_constant = {"metric": "auroc", "is_association": True, "is_constant": True, "p": 0.001}
    unknown = Rival(name="majority", value=0.5, difference=0.5, **of_constant)
    assert unknown.verdict == TOO_FEW_GROUPS
    assert not unknown.is_doubtful
    tied = Rival(
        name="majority", value=0.5, difference=0.0, ci_low=-0.05, ci_high=0.05, **of_constant
    )
    assert tied.verdict == NOT_BETTER
