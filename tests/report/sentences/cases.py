"""Results for which answer and warnings are compared with the stored wording.

Each case changes the synthetic run of tests/report/conftest.py: the values of a target, the rows of
differences.csv, or the question.
"""

import math
from dataclasses import dataclass, field

import pandas as pd

from probekit.results.table import only
from tests.report.conftest import CHOSEN, difference, make_heads, make_sweep, make_table, row

YES_NO = "Can number be decoded at the last word?"
WHICH = "From which layer can number be decoded?"
RANDOM = "blocks.2.hook_resid_post last logistic random_weights"
EMBEDDING = "blocks.0.hook_resid_pre last logistic task"
BEST = {0: "blocks.2.hook_resid_post", 1: "blocks.2.hook_resid_post", 2: "blocks.1.hook_resid_post"}
NUMBERS = ["value", "ci_low", "ci_high"]


def with_values(table, numbers, **where):
    """The table with other test scores of the main metric; `numbers` is a value or an interval."""
    is_interval = isinstance(numbers, tuple)
    table, rows = table.copy(), table["split"].eq("test") & table["metric"].eq("accuracy")
    for column, cell in where.items():
        rows &= table[column] == cell
    table.loc[rows, NUMBERS if is_interval else "value"] = list(numbers) if is_interval else numbers
    return table


def with_p(table, p):
    """The table with this p-value of association at each site."""
    tested = only(table, target="task", split="test", metric="accuracy")
    return pd.concat([table, tested.assign(metric="p_best", value=p)], ignore_index=True)


def with_metric(table, metric, old="accuracy"):
    """The table with another main metric."""
    return table.replace({"metric": {old: metric}}).assign(main_metric=metric)


def with_row(table, target, value, **others):
    """The table with a further baseline."""
    return pd.concat([table, pd.DataFrame([row("", target, value, **others)])], ignore_index=True)


def with_folds(table):
    """The rows of the same run as a nested cross-validation of three folds."""
    validation = only(table, target="task", split="validation")
    parts = [table.assign(fold=math.nan)]
    for fold, site in BEST.items():
        own = validation.assign(fold=float(fold))
        own.loc[own["site"] == site, "value"] = 0.99
        parts.append(own)
    first = only(table, target="task", split="test", metric="accuracy").iloc[[0]]
    place = {"site": "", "layer": None, "component": "", "head": None, "view": "", "fold": None}
    values = {"chosen": 0.9, "chosen_control": 0.6, "chosen_random_weights": 0.7}
    for target, value in (values | {"chosen_embedding": 0.72}).items():
        numbers = {"value": value, "ci_low": value - 0.02, "ci_high": value + 0.02}
        parts.append(first.assign(target=target, probe="chosen", **place, **numbers))
    p = first.assign(target="chosen", probe="chosen", metric="p_value", value=0.01, **place)
    return pd.concat([*parts, p], ignore_index=True)


def with_choices(*sites):
    """The nested table in which each fold chose the site with this beginning."""
    table = with_folds(make_table())
    for fold, site in enumerate(sites):
        own = table["fold"].eq(fold)
        table.loc[own & table["site"].eq(BEST[fold]), "value"] = 0.1
        table.loc[own & table["site"].str.startswith(site), "value"] = 0.995
    return table


def with_scores(*values):
    """The table with these cross-validated scores, by site."""
    table = make_table()
    table.loc[table["split"] == "validation", "value"] = list(values)
    return table


def with_kinds(**less):
    """The table with further kinds of probe, whose scores are lower."""
    table = make_table()
    others = [
        table[table["site"] != ""].assign(probe=kind, value=lambda t, d=drop: t["value"] - d)
        for kind, drop in less.items()
    ]
    return pd.concat([table, *others], ignore_index=True)


def trees(value=0.4):
    """Scores of two structural probes, which choose no site, and of random networks."""
    table = make_table()
    rows = table[table["split"].eq("test") & table["target"].isin(["task", "random_weights"])]
    rows = rows[rows["metric"] == "accuracy"]
    rows = rows.assign(value=value, ci_low=value - 0.02, ci_high=value + 0.02, C=math.nan)
    rows = rows.assign(main_metric="uuas root_accuracy")
    distance = rows.assign(probe="structural_distance:64", metric="uuas")
    depth = rows.assign(probe="structural_depth:64", metric="root_accuracy")
    return pd.concat([distance, depth], ignore_index=True)


def better_trees(value, **where):
    """`trees` with another score of the task where the columns hold these values."""
    table = trees()
    rows = table["target"].eq("task")
    for column, cell in where.items():
        rows &= table[column] == cell
    table.loc[rows, NUMBERS] = [value, value - 0.02, value + 0.02]
    return table


def control(low, selectivity):
    """The table in which the control task is learnt, with lower limits of both intervals."""
    table = with_values(make_table(), (0.95, low, 0.97), target="control")
    table.loc[table["metric"] == "selectivity", "ci_low"] = selectivity
    return table


def stopped(table, rows):
    """The table in which the fits of some rows did not converge."""
    return table.assign(converged=(~rows).astype("boolean").where(table["site"] != ""))


def false_positives(rate):
    """The table of a metric at a threshold, with the false positive rate on the test rows."""
    table = with_metric(make_table(), "tpr_at_fpr_5")
    own = only(table, target="task", split="test", metric="tpr_at_fpr_5")
    rows = own.assign(metric="achieved_fpr_5", value=rate, ci_low=0.05, ci_high=0.12)
    return pd.concat([table, rows], ignore_index=True)


def majority(value=0.2, reach=0.05, p=0.001, **others):
    return difference("majority", value, reach, p, **others)


def word_identity(value, p, **others):
    return difference("word_identity", value, p=p, score=0.71, **others)


@dataclass
class Case:
    """Results, and the question of the run."""

    table: pd.DataFrame = field(default_factory=make_table)
    differences: tuple = ()
    question: str | None = YES_NO
    findings: tuple = ()
    control_by: str = "word"
    grid: tuple = (0.001, 0.01, 0.1)


def case(*differences, p=None, table=None, question=YES_NO, **values):
    """A case with differences, p-values of association, and test scores of targets."""
    table = make_table() if table is None else table
    for target, numbers in values.items():
        table = with_values(table, numbers, target=target)
    return Case(table if p is None else with_p(table, p), differences, question)


# Two bins of a reliability diagram.
PLACE = {"probe": "logistic", "site": BEST[0], "head": None, "position": "last", "n_rows": 20}
BINS = pd.DataFrame(
    [
        PLACE
        | {"low": low, "high": low + 0.1, "confidence": low + 0.05}
        | {"accuracy": low, "ci_low": low - 0.1, "ci_high": low + 0.1}
        for low in (0.5, 0.9)
    ]
)
TEST = make_table()[make_table()["split"] == "test"]
NESTED = with_folds(make_table())
BOTH_WORDS = with_row(with_row(make_table(), "bag_of_words", 0.6), "length", 0.65, ci_low=0.63)
LENGTH = {"level": "warning", "code": "length", "message": "Length is associated."}
AT = make_table()["site"].eq("blocks.1.hook_resid_post") & make_table()["target"].eq("task")
WRITTEN_ALIKE = with_scores(0.7, 0.7, 0.7, 0.9002, 0.9, 0.7)
AT_BEST = make_table()[make_table()["site"].isin(["", BEST[0]])]
STOPPED = make_table()[make_table()["site"] == BEST[2]].assign(converged=False)
AT_20_SITES = [STOPPED.assign(site=f"blocks.{n}.hook_resid_post") for n in range(20)]
WITH_SVM = with_kinds(svm=0.03)
SEVERAL = ("warning few-groups", "warning duplicates-across", "error rare-labels", "info lost")
FINDINGS = tuple(
    {"level": text.split()[0], "code": text.split()[1], "message": f"{text}."}
    for text in (*SEVERAL, "warning of-a-newer-release")
)

CASES = {
    # Verdicts.
    "better": case(majority(), p=0.0001),
    "better, which layer": case(majority(), p=0.0001, question=WHICH),
    "no evidence": case(majority(p=0.21), p=0.21),
    "no evidence, and words are better": case(majority(p=0.21), p=0.21, word_identity=0.97),
    "too few groups": case(majority(p=math.nan), question=WHICH),
    "rivals are not worse": case(
        majority(p=0.01), word_identity(0.2, 0.4), difference(RANDOM, p=0.3, score=0.736), p=0.01
    ),
    "a rival is better": case(
        majority(p=0.01),
        word_identity(-0.1, 0.01),
        difference(RANDOM, p=0.3, score=0.736),
        p=0.01,
        question=WHICH,
    ),
    "not tested": case(),
    "tested against the majority only": case(majority()),
    "not better than the majority": case(majority(p=0.4)),
    "worse than the majority": case(majority(-0.2, p=0.001)),
    "worse than chance": case(
        majority(-0.33, 0.19, 1.0), p=1.0, question=WHICH, task=(0.175, 0.036, 0.438)
    ),
    "perhaps below chance": case(p=0.9, task=(0.4, 0.3, 0.51)),
    "associated below chance": case(p=0.01, question=None, task=(0.4, 0.3, 0.49)),
    "a lower score is worse": case(
        {**majority(0.78, 0.35, 0.004), "metric": "brier"},
        table=with_metric(with_values(make_table(), (1.28, 0.9, 1.61), target="task"), "brier"),
    ),
    "associated, but not more often correct": case(majority(-0.008, 0.028, 0.0005), p=0.0005),
    "associated, in few groups": case(majority(0.1, 0.12, 0.0005), p=0.0005),
    "associated, imbalanced labels": Case(
        with_p(make_table(), 0.0005),
        (majority(-0.008, 0.028, 0.0005),),
        findings=({"level": "info", "code": "imbalance", "message": "Imbalanced."},),
    ),
    "associated and opposite": case(majority(-0.2, 0.1, 0.0005), p=0.0005),
    "the majority and a better rival": case(
        majority(0.01, 0.11, 0.0005), word_identity(-0.1, 0.01), p=0.0005
    ),
    "the adjusted interval contains 0": case(
        majority(), difference(EMBEDDING, 0.06, p=0.03, p_adjusted=0.06, score=0.712), p=0.0001
    ),
    # Without paired differences the interval decides.
    "words reach the interval": case(p=0.001, word_identity=0.93),
    "random weights reach the interval": case(p=0.001, random_weights=0.921),
    "a baseline is exact": case(p=0.001, word_identity=1.0, n_grams=0.95),
    "random weights do not": case(p=0.001, random_weights=0.92),
    "the embedding reaches the interval": Case(
        with_values(make_table(), 0.921, target="task", site="blocks.0.hook_resid_pre")
    ),
    "many rivals": case(p=0.001, random_weights=0.95, word_identity=0.95, majority=0.96),
    "no better than the majority": case(task=(0.55, 0.45, 0.65)),
    # Names of sites and ties.
    "final norm": Case(with_scores(0.7, 0.7, 0.7, 0.7, 0.7, 1)),
    "heads": Case(make_heads()),
    "positions": Case(make_sweep(), question=None),
    "kinds": Case(with_kinds(mass_mean=0.1, svm=0.03)),
    "one site": Case(AT_BEST),
    "all equal": Case(with_scores(*[0.9] * 6)),
    "two written alike": Case(WRITTEN_ALIKE),
    "two written alike, which layer": case(p=0.001, table=WRITTEN_ALIKE, question=WHICH),
    "two not written alike": Case(with_scores(0.7, 0.7, 0.7, 0.9012, 0.9, 0.7)),
    # Numbers.
    "close to chance": case(task=(0.504, 0.437, 0.572)),
    "close to 1": case(task=(0.998, 0.98, 1.0)),
    "exactly 1": case(task=(1.0, 0.98, 1.0)),
    "lower is better": Case(with_metric(make_table(), "brier")),
    "numbers": Case(
        with_metric(make_table(), "r2").replace({"probe": {"logistic": "ridge_regression"}})
    ),
    "undefined": case(task=math.nan),
    # Without a chosen site.
    "no cross-validated scores": Case(TEST),
    "no random networks": Case(TEST[TEST["target"] == "task"]),
    "baselines alone": Case(make_table()[make_table()["site"] == ""]),
    "trees": Case(better_trees(0.9)),
    "trees like random networks": Case(trees()),
    "one kind of trees is better": Case(better_trees(0.439, site=BEST[0], metric="uuas")),
    "one kind of trees at one site": Case(
        better_trees(0.42, metric="uuas")[lambda t: t["site"] == BEST[0]]
    ),
    "trees at two positions": Case(
        pd.concat([trees(), better_trees(0.9).assign(position="word:first")], ignore_index=True)
    ),
    # Outer folds.
    "two folds agree": Case(NESTED, question=None),
    "two folds agree, yes": Case(NESTED),
    "all folds agree": Case(with_choices(*[BEST[0]] * 3), question=None),
    "all folds agree, yes": Case(with_choices(*[BEST[0]] * 3)),
    "no folds agree": Case(with_choices(BEST[0], "ln_final", BEST[2]), question=None),
    "folds and random weights": case(table=NESTED, question=None, chosen_random_weights=0.95),
    "a penalty at the end in one fold": Case(
        NESTED.assign(C=NESTED["C"].mask(NESTED["fold"].eq(2) & NESTED["site"].eq(BEST[2]), 0.1))
    ),
    # Other warnings.
    "the end of the grid": Case(make_table().assign(C=0.1)),
    "alpha at its end": Case(make_table().replace({"probe": {"logistic": "ridge"}}).assign(C=1e4)),
    "a baseline at its end": Case(with_row(make_table(), "n_grams", 0.6, C=10.0)),
    "a baseline at its strongest penalty": Case(with_row(make_table(), "n_grams", 0.6, C=1e-4)),
    "a baseline that is the majority": Case(with_row(make_table(), "n_grams", 0.5, C=1e-4)),
    "a baseline that is always right": Case(with_row(make_table(), "n_grams", 1.0, C=1e-4)),
    "unconverged": Case(stopped(make_table(), AT)),
    "unconverged at many sites": Case(pd.concat(AT_20_SITES, ignore_index=True)),
    "unconverged kinds": Case(stopped(WITH_SVM, WITH_SVM["probe"].eq("svm"))),
    "control learnt": Case(control(0.9, -0.01)),
    "control learnt by group": Case(control(0.9, -0.01), control_by="group"),
    "control learnt, words reach": case(table=control(0.9, -0.01), word_identity=0.95),
    "control learnt, but selective": Case(control(0.9, 0.01)),
    "control at chance": Case(control(0.4, -0.2)),
    "control of unknown limits": Case(control(math.nan, math.nan)),
    "length leads": Case(BOTH_WORDS),
    "length within the interval": Case(
        with_row(with_row(make_table(), "bag_of_words", 0.64), "length", 0.65, ci_low=0.63)
    ),
    "length in the checks, too": Case(BOTH_WORDS, findings=(LENGTH,)),
    "too many false positives": Case(false_positives(0.0823)),
    "few false positives": Case(false_positives(0.04)),
    "findings": Case(findings=FINDINGS),
}
assert CHOSEN.startswith(BEST[0])
