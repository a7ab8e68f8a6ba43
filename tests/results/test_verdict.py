"""The verdict of a run follows from its tables: choice, scores, differences, and their tests."""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest

from probekit.results.judging import judge, reported_differences
from probekit.results.scores import Scores
from probekit.results.table import DIFFERENCES, make_table
from probekit.results.verdict import NOT_BETTER, Rival
from tests.report import conftest
from tests.report.conftest import difference, judged
from tests.report.sentences.cases import (
    BEST,
    EMBEDDING,
    NESTED,
    RANDOM,
    trees,
    with_folds,
    with_p,
    with_values,
)
from tests.stored import line

FAR = "ln_final.hook_normalized last logistic task"
MASS_MEAN = "blocks.2.hook_resid_post last mass_mean task"
BLOCK_1 = "blocks.1.hook_resid_post last logistic task"
BLOCK_1_OF_MASS_MEAN = BLOCK_1.replace("logistic", "mass_mean")
ROWS = (
    difference("majority", p_adjusted=0.008),
    difference("word_identity", 0.02, score=0.71, p=0.4),
    difference(RANDOM, 0.205, score=0.736, p_adjusted=0.008),
    difference(EMBEDDING, 0.06, p=0.03, p_adjusted=0.06, score=0.712),
    difference(FAR, 0.02, p=0.3, p_adjusted=0.9),
)
TABLE = conftest.make_table()
OPPOSITE = difference("majority", -0.3, 0.2, 1.0)
OPPOSED = (OPPOSITE, *ROWS[1:])
UNTESTED = difference(RANDOM, score=0.736, p=math.nan)
LOWER = difference("majority", -0.2, a=EMBEDDING) | {"metric": "brier"}
UNASSOCIATED = with_p(TABLE, 1.0)
OF_OTHER_SCORE = with_values(TABLE, 0.93, target="random_weights")
LOW = with_values(TABLE, (0.2, 0.05, 0.4), target="task")
TASK = TABLE[TABLE["target"] == "task"]
OTHER_KIND = TASK.assign(probe="mass_mean")
OTHER_KIND.loc[OTHER_KIND["split"] == "validation", "value"] -= 0.5
WITH_KIND = pd.concat([TABLE, OTHER_KIND], ignore_index=True)
WORSE_KIND = pd.concat([TABLE, TASK.assign(probe="mass_mean", value=0.1)], ignore_index=True)
BRIER = TABLE.replace({"metric": {"accuracy": "brier"}}).assign(main_metric="brier")
EQUAL = with_values(TABLE, 0.99, target="random_weights")
UNCERTAIN = trees().assign(ci_low=math.nan, ci_high=math.nan)
UNDEFINED = trees().assign(value=lambda t: t["value"].mask(t["metric"].eq("uuas")))
ASSOCIATED = [
    (difference("majority", value, reach, 0.0005),)
    for value, reach in ((-0.008, 0.028), (0.002, 0.027), (0.2, 0.1), (-0.2, 0.1))
]
OF_FOLDS = {"majority": 0.5, "chosen_random_weights": 0.7, BLOCK_1: 0.5}


def networks(value):
    """Scores of one kind at six sites; one of them has this value.

    The limit is 1.346 times the half-width of the difference, 0.0283.
    """
    table = with_values(trees().assign(metric="accuracy", main_metric="accuracy"), 0.4)
    table = table[table["probe"] == "structural_distance:64"]
    return with_values(table, (value, value - 0.02, value + 0.02), target="task", site=BEST[0])


# A table, and rows of differences.csv.
VERDICTS = {
    "the reported score is that of the chosen site on test rows": (with_p(TABLE, 0.004), ()),
    "the score of outer folds is that of their choices": (NESTED, ()),
    "rivals are named and their adjusted p decides": (TABLE, ROWS),
    "differences of another choice are left alone": (TABLE, [row | {"a": FAR} for row in ROWS]),
    "the difference to a rival of another score does not apply": (OF_OTHER_SCORE, ROWS),
    "neighbours and other kinds at the site are named": (
        WITH_KIND,
        [difference(name) for name in (BLOCK_1, MASS_MEAN, BLOCK_1_OF_MASS_MEAN)],
    ),
    "differences of the nested choice are named": (
        NESTED,
        [difference(name, score=score, a="chosen") for name, score in OF_FOLDS.items()],
    ),
    "no association was tested": (TABLE, OPPOSED),
    "the p-value of the majority class is that of an association": (UNASSOCIATED, OPPOSED),
    "so is that of a baseline that scores the same": (
        with_values(UNASSOCIATED, 0.5, target="word_identity"),
        (OPPOSITE, OPPOSITE | {"b": "word_identity"}),
    ),
    "the interval of the score shows that the probe is worse": (with_p(LOW, 1.0), (OPPOSITE,)),
    "without an association it does not": (LOW, (OPPOSITE,)),
    **{
        f"associated, with a difference of {rows[0]['difference']}": (with_p(TABLE, 0.0005), rows)
        for rows in ASSOCIATED
    },
    "without a p-value there are too few groups": (TABLE, [UNTESTED]),
    "lower scores lead if they are better": (BRIER, [LOWER]),
    "differences from random networks are adjusted: below the limit": (networks(0.437), ()),
    "differences from random networks are adjusted: above the limit": (networks(0.439), ()),
    "scores without intervals are not compared with random networks": (UNCERTAIN, ()),
    "undefined scores are not compared": (UNDEFINED, ()),
    "a probe with a selected site is compared there only": (EQUAL, ()),
    "a probe without a selected site is compared at all": (EQUAL[EQUAL["split"] == "test"], ()),
    "kinds that differ are named": (with_folds(WORSE_KIND), ()),
    "positions that differ are named": (conftest.make_sweep(), ()),
    "heads": (conftest.make_heads(), ()),
}


def as_text(v, differences):
    """A verdict as text: a line for the case, each choice, the score and each rival."""
    content = v.model_dump()
    facts = ("metric", "main_metrics", "is_nested", "n_candidates", "varied", "several", "named")
    lines = [
        f"case: {v.case}  {line({name: content.get(name, getattr(v, name)) for name in facts})}"
    ]
    lines += [line({"choice": {"name": one.name} | one.model_dump()}) for one in v.choices]
    lines.append(line({"score": content["score"] or "none"}))
    rivals = {**v.rivals, **{one.name: one for one in v.neighbours}}
    if differences:
        others = reported_differences(make_table(differences, DIFFERENCES), v)
        rivals |= {f"other {name}": one for name, one in others.items() if name not in v.named}
    for name, one in rivals.items():
        flags = " ".join(flag for flag, value in one.model_dump().items() if value is True)
        numbers = {key: value for key, value in one.model_dump().items() if type(value) is float}
        lines.append(f"{name}: {one.verdict}  {line(numbers)}  {flags}".rstrip())
    lines.append(f"doubts: {', '.join(v.doubts)}".rstrip())
    return "\n".join([*lines, *(line({"unselected": one.model_dump()}) for one in v.unselected)])


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts_are_those_that_are_stored(snapshot, name):
    table, differences = VERDICTS[name]
    assert as_text(judged(table, differences), differences) == snapshot


def test_selection_by_one_split_and_by_outer_folds():
    assert [row["site"] for row in Scores.of(NESTED).choices] == list(BEST.values())
    assert Scores.of(NESTED).headline["value"] == 0.9
    # Rows of folds do not enter the choice over all folds.
    assert Scores.of(NESTED).chosen["value"] == Scores.of(TABLE).chosen["value"]
    assert judged(NESTED).best.score == judged(NESTED[NESTED["fold"].isna()]).best.score
    single = Scores.of(TABLE)
    assert (single.headline, single.is_nested) == (None, False)
    assert [row["site"] for row in single.choices] == [single.chosen["site"]]
    lost = NESTED[NESTED["fold"] != 1].copy()
    lost.loc[lost["target"] == "control", "fold"] = 1.0
    assert Scores.of(lost).choices == []


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
        (one,) = judged(facts.assign(**numbers)).unselected
        n_better += one.n_better > 0
    assert 0 <= n_better / n_runs <= 0.05


def test_an_association_without_interval_or_difference_is_no_significant_difference():
    constant = {
        "name": "majority",
        "value": 0.5,
        "metric": "auroc",
        "is_constant": True,
        "p": 0.001,
    }
    associated = partial(Rival, **constant, is_association=True)
    unknown = associated(difference=0.5)
    assert unknown.verdict == "no interval"
    assert associated(difference=0.5, p=math.nan).verdict == "too few groups"
    assert not unknown.is_doubtful
    assert associated(difference=0.0, ci_low=-0.05, ci_high=0.05).verdict == NOT_BETTER


def test_sources_are_above_chance_if_their_lead_is_and_they_have_six_groups():
    ends = [  # interval of the score, of the lead over chance, groups
        (0.55, 0.9, -0.01, 0.4, 9),  # the majority class varies, too
        (0.45, 0.9, 0.01, 0.4, 9),
        (0.55, 0.9, 0.05, 0.4, 5),
    ]
    columns = ["ci_low", "ci_high", "lead_low", "lead_high", "n_groups"]
    sources = pd.DataFrame(ends, columns=columns).assign(
        source=list("abc"), column="of", value=0.7, chance=0.5, within=0.8, n_test=40, left_out=""
    )

    def n_above(metric):
        """The number of sources above chance, by this metric."""
        rows = {"sources.csv": sources.assign(metric=metric)}
        table = Scores.of(conftest.make_table())
        return judge(table, make_table([], DIFFERENCES), rows_of=rows.get).sources.n_above

    assert n_above("accuracy") == 1
    sources["lead_high"] = [-0.1, 0.1, -0.1]
    assert n_above("brier") == 1
