"""The answer is one true sentence for every verdict and every form of question."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from probekit.report.sentences.answer import answer
from probekit.report.sentences.comparison_table import comparison_table
from probekit.report.sentences.question import is_yes_no
from probekit.report.sentences.warnings import warnings
from probekit.results.differences import RivalDifference, RivalDifferences
from probekit.results.record import Control, RunRecord
from probekit.results.table import only
from tests.report.conftest import SITES, row

YES_NO = "Can number be decoded at the last word?"
WHICH = "From which layer can number be decoded?"


def with_p(table, p, metric="p_best"):
    tested = only(table, target="task", split="test", metric="accuracy")
    return pd.concat([table, tested.assign(metric=metric, value=p)], ignore_index=True)


def rivals(**p_values):
    """Paired differences of 0.2, or of -0.1 for a negative p-value."""
    scores = {"majority": 0.5, "word_identity": 0.71, "random_weights": 0.736}
    return RivalDifferences(
        tuple(
            RivalDifference(key, key, scores[key], *lead, abs(p))
            for key, p in p_values.items()
            for lead in [(-0.1, -0.15, -0.05) if p < 0 else (0.2, 0.15, 0.25)]
        )
    )


@pytest.mark.parametrize(
    ("p", "found", "question", "expected"),
    [
        (
            0.0001,
            rivals(majority=0.001),
            YES_NO,
            "Yes: 94 % [92, 96] of held-out rows at block 2, chance 50 %, p < 0.001, best of 6 "
            "sites in cross-validation.",
        ),
        (
            0.0001,
            rivals(majority=0.001),
            WHICH,
            "Best at block 2 (of 6 sites): 94 % [92, 96] of held-out rows, chance 50 %, p < 0.001.",
        ),
        (
            0.21,
            rivals(majority=0.21),
            YES_NO,
            "No evidence: 94 % [92, 96] of held-out rows at block 2, chance 50 %, p = 0.21, best "
            "of 6 sites in cross-validation.",
        ),
        (
            math.nan,
            rivals(majority=math.nan),
            WHICH,
            "Too few groups to tell: 94 % [92, 96] of held-out rows at block 2, chance 50 %, best "
            "of 6 sites in cross-validation.",
        ),
        (
            0.01,
            rivals(majority=0.01, word_identity=0.4, random_weights=0.3),
            YES_NO,
            "Decodable, but not significantly better than random weights and word identity: 94 % "
            "[92, 96] of held-out rows at block 2, chance 50 %, p = 0.010, best of "
            "6 sites in cross-validation.",
        ),
        (
            0.01,
            rivals(majority=0.01, word_identity=-0.01, random_weights=0.3),
            WHICH,
            "Best at block 2 (of 6 sites), but worse than word identity: 94 % [92, 96] of "
            "held-out rows, chance 50 %, p = 0.010.",
        ),
    ],
    ids=["yes", "which", "no", "few", "not better", "worse"],
)
def test_each_verdict_has_a_sentence(table, p, found, question, expected):
    tested = table if math.isnan(p) else with_p(table, p)
    assert answer(tested, found, question) == expected


def test_an_older_run_without_p_values_is_not_called_tested(table):
    assert answer(table, question=YES_NO).startswith("Not tested against chance: 94 % [92, 96]")
    assert answer(with_p(table, 0.004, "p_holm"), question=YES_NO).startswith("Yes: 94 %")


def test_a_run_without_permutations_names_its_test_against_the_majority(table):
    text = answer(table, rivals(majority=0.001), YES_NO)
    assert text.startswith("Yes: 94 %")
    assert ", p = 0.001 for the difference from the majority class, best of" in text
    assert answer(table, rivals(majority=0.4), YES_NO).startswith("No evidence: 94 %")
    tested = answer(with_p(table, 0.001), rivals(majority=0.001), YES_NO)
    assert ", p = 0.001, best of" in tested


def scored(table, value, low, high):
    own = table["target"].eq("task") & table["split"].eq("test") & table["metric"].eq("accuracy")
    table = table.copy()
    table.loc[own, ["value", "ci_low", "ci_high"]] = value, low, high
    return table


def test_a_score_far_below_chance_is_called_worse(table):
    below = with_p(scored(table, 0.175, 0.036, 0.438), 1.0)
    (opposite,) = of_majority(
        -0.33, -0.51, -0.14, p=1.0, is_association=True, is_opposite=True
    ).named
    found = RivalDifferences((opposite,))
    text = answer(below, found, WHICH)
    assert text.startswith("Worse than chance: 18 % [4, 44] of held-out rows at block 2, chance 50")
    assert ", one-sided p = 1.00," in text
    majority = comparison_table(below, found)[0]
    assert (majority.p, majority.verdict) == ("1.00", "worse")
    # Not below chance with certainty, or associated although below chance.
    assert answer(with_p(scored(table, 0.4, 0.3, 0.51), 0.9), question=YES_NO).startswith("No evid")
    assert answer(with_p(scored(table, 0.4, 0.3, 0.49), 0.01)).startswith("Best at block 2")


def test_a_brier_score_above_chance_is_worse_and_its_p_is_named(table):
    brier = scored(table, 1.28, 0.90, 1.61).replace({"metric": {"accuracy": "brier"}})
    brier = brier.assign(main_metric="brier")
    found = RivalDifference("majority", "majority", 0.5, 0.78, 0.43, 1.13, 0.004, "brier")
    text = answer(brier, RivalDifferences((found,)), YES_NO)
    assert text.startswith("Worse than chance: Brier score 1.28 [0.90, 1.61] on held-out rows (lo")
    assert "p = 0.004 for the difference from the majority class" in text


def test_the_p_value_of_the_association_is_marked_as_one_sided(table):
    (one,) = of_majority(0.44, 0.4, 0.47, is_association=True).named
    (other,) = rivals(word_identity=0.01).named
    rows = comparison_table(table, RivalDifferences((one, other)))
    assert [row.p for row in rows[:2]] == ["<0.001*", "0.010*"]


def test_the_reason_for_no_control_task_is_in_the_table(table):
    without = table[~table["target"].eq("control") & ~table["metric"].eq("selectivity")]
    reason = Control(why_none="No control task: test words are new. A probe can learn few.")
    rows = {row.name: row for row in comparison_table(without, RivalDifferences(), reason)}
    assert list(rows)[-1] == "control task"
    assert (rows["control task"].score, rows["control task"].verdict) == (
        "none",
        "test words are new",
    )
    assert "control task" not in {row.name for row in comparison_table(without, RivalDifferences())}
    # A control task that was measured needs no reason.
    both = comparison_table(table, RivalDifferences(), reason)
    assert [row.score for row in both if row.name == "control task"] == ["0.55"]


def test_every_tested_row_has_a_verdict(table):
    neighbour = RivalDifference("", "neighbour: block 1", 0.94, 0.001, -0.02, 0.02, 0.88)
    better = RivalDifference("", "neighbour: block 3", 0.5, 0.4, 0.3, 0.5, 0.001)
    untested = RivalDifference("", "lda, same site", 0.5, 0.4, math.nan, math.nan, math.nan)
    rows = comparison_table(table, RivalDifferences((neighbour, better, untested)))
    verdicts = {row.name: row.verdict for row in rows}
    assert verdicts["neighbour: block 1"] == "not significant"
    assert verdicts["neighbour: block 3"] == verdicts["lda, same site"] == ""


def test_without_paired_differences_the_interval_decides_about_rivals(table):
    table.loc[table["target"].eq("word_identity"), "value"] = 0.93
    text = answer(with_p(table, 0.001), question=YES_NO)
    assert text.startswith("Decodable, but not significantly better than word identity: 94 %")


def test_many_rivals_are_counted(table):
    table.loc[table["target"].isin(["word_identity", "random_weights"]), "value"] = 0.95
    table.loc[table["target"].eq("majority"), "value"] = 0.96
    text = answer(with_p(table, 0.001), question=YES_NO)
    assert "better than the majority class and 2 others: " in text


def test_the_majority_class_is_named_first(table):
    table.loc[table["target"].isin(["word_identity", "random_weights"]), "value"] = 0.99
    table.loc[table["target"].eq("majority"), "value"] = 0.95
    text = answer(with_p(table, 0.001), question=YES_NO)
    assert "better than the majority class and 2 others: " in text
    found = rivals(majority=0.001, word_identity=-0.01)
    not_better = RivalDifference("majority", "majority", 0.95, 0.01, -0.1, 0.1, 0.001)
    found = RivalDifferences((not_better, *(replace(one, other=0.99) for one in found.named[1:])))
    text = answer(with_p(table, 0.001), found, YES_NO)
    assert text.startswith(
        "Decodable, but not significantly better than the majority class and worse than word id"
    )


def test_a_run_without_cross_validated_scores_has_a_range(table):
    assert answer(table[table["split"] == "test"]) == (
        "Accuracy 71 % to 94 % over 6 sites, chance 50 %, significantly better than random weights "
        "at 5."
    )
    task = table[(table["split"] == "test") & (table["target"] == "task")]
    assert answer(task) == ("No site was chosen: accuracy 71 % to 94 % over 6 sites, chance 50 %.")
    assert answer(table[table["site"] == ""]) == "No answer: no site has a test score."


def test_structural_probes_that_random_networks_equal_are_no_evidence(table):
    rows = table[(table["split"] == "test") & table["target"].isin(["task", "random_weights"])]
    rows = rows[rows["metric"] == "accuracy"].assign(
        metric="uuas", probe="structural_distance:64", value=0.4, ci_low=0.38, ci_high=0.42
    )
    assert answer(rows) == (
        "No evidence beyond random weights: UUAS 0.40 over 6 sites, linear chain 0.50."
    )


def test_the_site_is_named_in_words(table, heads, sweep):
    norm = table.copy()
    norm.loc[(norm["split"] == "validation") & norm["site"].str.startswith("ln_"), "value"] = 1
    assert "of held-out rows at the final norm, chance" in answer(norm)
    assert "at attn.z head 2 of block 3, chance 50 %, best of 4 sites" in answer(heads)
    assert "at block 2 (position word:last), chance" in answer(sweep)
    one = table[table["site"].isin(["", "blocks.2.hook_resid_post"])]
    assert answer(one).endswith("at block 2, chance 50 %.")


def test_ties_are_counted(table):
    table.loc[table["split"] == "validation", "value"] = 0.9
    assert answer(table).endswith(
        "at the embedding, chance 50 %, best of 6 sites in cross-validation, tied with 5 others."
    )


def test_ties_as_written_are_named(table):
    """Two scores that the page writes alike are a tie, even if they differ in the fourth place."""
    validated = table["split"] == "validation"
    table.loc[validated, "value"] = [0.7, 0.7, 0.7, 0.9002, 0.9, 0.7]
    text = answer(table)
    assert text.endswith("best of 6 sites in cross-validation, tied with block 3."), text
    assert "at block 2 (of 6 sites, tied with block 3)" in answer(
        with_p(table, 0.001), question="Which layer?"
    )
    table.loc[validated, "value"] = [0.7, 0.7, 0.7, 0.9012, 0.9, 0.7]
    assert "tied" not in answer(table)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0.504, 0.437, 0.572), "50.4 % [43.7, 57.2] of held-out rows at block 2, chance 50.0 %"),
        ((0.998, 0.98, 1.0), "99.8 % [98.0, 100.0] of held-out rows"),
        ((1.0, 0.98, 1.0), "100 % [98, 100] of held-out rows"),
    ],
)
def test_rounding_never_hides_a_difference(table, numbers, text):
    scores = table["target"].eq("task") & table["split"].eq("test") & table["metric"].eq("accuracy")
    table.loc[scores, ["value", "ci_low", "ci_high"]] = numbers
    assert text in answer(table)


def test_a_metric_where_lower_is_better_states_it(table):
    brier = table.replace({"metric": {"accuracy": "brier"}}).assign(main_metric="brier")
    # The lowest cross-validated score is selected.
    assert "Brier score 0.71 [0.69, 0.73] on held-out rows (lower is better) at the emb" in answer(
        brier
    )


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (YES_NO, True),
        (WHICH, False),
        ("Does the network encode whether it is singular or plural, past another noun?", True),
        ("In the last layer, can it be decoded?", False),
        ("In which layer, if any, does a token encode the previous word?", False),
        ("Can it be decoded in a sentence in which negation reverses the words?", True),
        ("Is number absent from the embedding?", False),
        ("Is number decodable from the embedding?", False),
        ("Is number erased?", False),
        ("Is number independent of gender?", False),
        ("Is it impossible to decode number?", False),
        ("Is number confined to block 3?", False),
        ("Do all layers encode number?", False),
        ("Does the network use the number of the subject?", False),
        ("Isn't it decodable?", False),
        ("Is it decoded at the noun or at the verb?", False),
        ("Is block 3 better than block 5?", False),
        ("Can it be decoded before block 3?", False),
        ("How early can it be decoded?", False),
        ("Kann man es dekodieren?", False),
        ("Subject number", False),
        ("", False),
        (None, False),
    ],
)
def test_only_plain_questions_are_answered_with_yes(question, expected):
    assert is_yes_no(question) == expected


def test_the_table_has_every_comparison_with_its_difference(table):
    found = rivals(majority=0.001, word_identity=-0.01)
    networks = [
        row(SITES[3], f"random_weights_{n}", 0.7, split="validation", ci_low=None, ci_high=None)
        for n in range(3)
    ]
    rows = comparison_table(pd.concat([table, pd.DataFrame(networks)]), found)
    cells = [(r.name, r.score, r.difference, r.interval, r.p, r.verdict) for r in rows]
    assert cells == [
        ("majority class", "0.50", "+0.20", "[0.15, 0.25]", "0.001*", ""),
        ("word identity", "0.71", "−0.10", "[−0.15, −0.05]", "0.010*", "worse"),
        ("random weights, own best sites (mean of 3)", "0.74", "–", "", "–", ""),
        ("embedding", "0.71", "–", "", "–", ""),
        ("control task", "0.55", "+0.39", "[0.37, 0.41]", "–", ""),
    ]


def test_small_differences_keep_a_third_decimal(table):
    close = RivalDifference("majority", "majority", 0.5, 0.004, 0.001, 0.007, 0.01)
    rows = comparison_table(table, RivalDifferences((close,)))
    assert (rows[0].score, rows[0].difference, rows[0].interval) == (
        "0.500",
        "+0.004",
        "[0.001, 0.007]",
    )


def of_majority(difference, low, high, p=0.0005, **others):
    numbers = 0.5, difference, low, high, p
    return RivalDifferences((RivalDifference("majority", "majority", *numbers, **others),))


def test_an_association_alone_does_not_decide_about_the_majority_class(table):
    tested = with_p(table, 0.0005)
    for difference, low, high in ((-0.008, -0.036, 0.019), (0.002, -0.025, 0.028)):
        (one,) = of_majority(difference, low, high).named
        assert one.verdict == "not better"
        shown, *_ = comparison_table(table, of_majority(difference, low, high))
        assert (shown.p, shown.verdict) == ("<0.001", "not better")  # without a star
        text = answer(tested, of_majority(difference, low, high), YES_NO)
        assert text.startswith(
            "Decodable, but not significantly better than the majority class: 94 %"
        )
    assert of_majority(0.2, 0.1, 0.3).named[0].verdict == "significant"
    assert of_majority(-0.2, -0.3, -0.1).named[0].verdict == "significantly worse"


def test_a_score_below_the_majority_class_without_a_test_of_association_is_worse(table):
    text = answer(table, of_majority(-0.2, -0.3, -0.1), YES_NO)
    assert text.startswith("Worse than the majority class: ")


def test_an_undefined_score_is_named(table):
    own = table["target"].eq("task") & table["split"].eq("test") & table["metric"].eq("accuracy")
    table.loc[own, "value"] = math.nan
    assert answer(table) == "No answer: the accuracy is undefined on the test rows."


@pytest.mark.parametrize(
    ("metric", "advice"),
    [
        ("accuracy", "; probe.metric may be set to balanced_accuracy or auroc."),
        ("balanced_accuracy", "; probe.metric may be set to auroc."),
        ("auroc", "."),
    ],
)
def test_the_advice_does_not_name_the_metric_itself(table, record, metric, advice):
    rows = table[table["metric"].isin(["accuracy"])].assign(metric=metric, main_metric=metric)
    found = of_majority(0.002, -0.025, 0.028)
    found_warnings = warnings(with_p(rows, 0.0005), RunRecord.model_validate(record), found)
    (one,) = (
        text for text in found_warnings if "the interval of the difference contains 0" in text
    )
    assert one.endswith("the interval of the difference contains 0" + advice)
