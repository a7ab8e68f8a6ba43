"""Significance is decided by p-values, adjusted among the rivals named in advance."""

import numpy as np
import pandas as pd
import pytest

from probekit.errors import DataError
from probekit.report.sentences.answer import answer
from probekit.report.sentences.warnings import warnings
from probekit.results.differences import (
    NOT_BETTER,
    NOT_SIGNIFICANT,
    SIGNIFICANT,
    SIGNIFICANTLY_WORSE,
    TOO_FEW_GROUPS,
    RivalDifference,
    load_differences,
    rival_differences,
)
from probekit.results.record import RunRecord

CHOSEN = "blocks.2.hook_resid_post last logistic task"
RANDOM = "blocks.2.hook_resid_post last logistic random_weights"
EMBEDDING = "blocks.0.hook_resid_pre last logistic task"
FAR = "ln_final.hook_normalized last logistic task"


def difference(other, value=0.2, reach=0.05, p=0.002, p_adjusted=None, score=0.5):
    return {
        "a": CHOSEN,
        "b": other,
        "metric": "accuracy",
        "value_a": score + value,
        "value_b": score,
        "difference": value,
        "ci_low": value - reach,
        "ci_high": value + reach,
        "p": p,
        "p_adjusted": p if p_adjusted is None else p_adjusted,
        "adjusted_low": value - 1.5 * reach,
        "adjusted_high": value + 1.5 * reach,
        "n_test": 1039,
        "n_groups": 15,
    }


@pytest.fixture
def differences():
    """Differences of the synthetic run: significant, not significant, or in too few groups."""
    return pd.DataFrame(
        [
            difference("majority", p_adjusted=0.008),
            difference("word_identity", 0.02, score=0.71, p=0.4),
            difference(RANDOM, 0.205, score=0.736, p_adjusted=0.008),
            difference(EMBEDDING, 0.06, p=0.03, p_adjusted=0.06, score=0.712),
            difference(FAR, 0.02, p=0.3, p_adjusted=0.9),
        ]
    )


@pytest.fixture
def clean(record):
    record["data"]["findings"] = []
    return RunRecord.model_validate(record)


def test_rivals_are_named_and_their_adjusted_p_decides(table, differences):
    found = rival_differences(table, differences)
    by_name = {one.name: (one.key, one.decisive_p, one.verdict) for one in found.named}
    assert by_name == {
        "majority": ("majority", 0.008, SIGNIFICANT),
        "word identity": ("word_identity", 0.4, NOT_SIGNIFICANT),
        "random weights, same site": ("random_weights", 0.008, SIGNIFICANT),
        "the embedding": ("embedding", 0.06, NOT_SIGNIFICANT),
    }


def test_an_association_without_interval_or_difference_is_no_significant_difference():
    facts = {"metric": "auroc", "is_association": True}
    unknown = RivalDifference("majority", "majority", 0.5, 0.5, np.nan, np.nan, 0.001, **facts)
    assert unknown.verdict == TOO_FEW_GROUPS
    assert not unknown.is_doubtful
    tied = RivalDifference("majority", "majority", 0.5, 0.0, -0.05, 0.05, 0.001, **facts)
    assert tied.verdict == NOT_BETTER


def test_a_rival_that_is_significantly_better_is_named_so(table, differences):
    differences.loc[0, ["difference", "p_adjusted"]] = [-0.2, 0.001]
    found = rival_differences(table, differences)
    assert found.named[0].verdict == SIGNIFICANTLY_WORSE
    # Without a test of association, p is that of the difference.
    assert answer(table, found).startswith("Worse than the majority class: ")


def test_the_p_value_of_the_majority_class_is_that_of_an_association_if_one_was_tested(
    table, differences
):
    assert not rival_differences(table, differences).named[0].is_association
    numbers = ["difference", "ci_low", "ci_high", "p", "p_adjusted"]
    differences.loc[0, numbers] = [-0.3, -0.5, -0.1, 1.0, 1.0]
    (tested, *_) = [row for _, row in table[table["target"].eq("task")].iterrows()]
    p_row = tested.to_frame().T.assign(metric="p_best", value=1.0)
    found = rival_differences(pd.concat([table, p_row], ignore_index=True), differences)
    assert [one.is_association for one in found.named] == [True, False, False, False]
    assert found.named[0].verdict == NOT_SIGNIFICANT
    # So is that of a baseline that scores the same.
    same = differences.copy()
    same.loc[1, ["value_b", *numbers]] = same.loc[0, ["value_b", *numbers]]
    found = rival_differences(pd.concat([table, p_row], ignore_index=True), same)
    assert [one.is_association for one in found.named] == [True, True, False, False]
    # The test is one-sided: the interval of the score shows that the probe is worse.
    own = table["target"].eq("task") & table["split"].eq("test") & table["metric"].eq("accuracy")
    table.loc[own, ["value", "ci_low", "ci_high"]] = 0.2, 0.05, 0.4
    found = rival_differences(pd.concat([table, p_row], ignore_index=True), differences)
    assert found.named[0].verdict == SIGNIFICANTLY_WORSE
    assert rival_differences(table, differences).named[0].verdict == NOT_SIGNIFICANT


def test_without_a_p_value_there_are_too_few_groups_for_a_verdict(table, differences):
    differences.loc[differences["b"] == RANDOM, ["p", "p_adjusted"]] = float("nan")
    found = rival_differences(table, differences)
    assert [one.verdict for one in found.named if one.key == "random_weights"] == [TOO_FEW_GROUPS]
    assert "random weights" not in answer(table, found)  # its interval is above 0


def test_all_others_keep_the_p_of_the_run(table, differences):
    (far,) = rival_differences(table, differences).others
    assert (far.name, far.p, far.p_adjusted, far.key) == (FAR, 0.3, 0.9, "")


def test_neighbours_and_other_kinds_at_the_site_are_named(table):
    other = table[table["target"] == "task"].assign(probe="mass_mean")
    other.loc[other["split"] == "validation", "value"] -= 0.5
    both = pd.concat([table, other], ignore_index=True)
    rows = [
        difference("blocks.1.hook_resid_post last logistic task"),
        difference("blocks.2.hook_resid_post last mass_mean task"),
        difference("blocks.1.hook_resid_post last mass_mean task"),
    ]
    found = rival_differences(both, pd.DataFrame(rows))
    assert [one.name for one in found.named] == ["neighbour: block 1", "mass_mean, same site"]
    assert [one.name for one in found.others] == [rows[2]["b"]]


def test_differences_of_another_choice_are_left_alone(table, differences):
    found = rival_differences(table, differences.assign(a=FAR))
    assert (found.named, found.others) == ((), ())
    assert rival_differences(table, None).named == ()


def test_the_answer_names_rivals_that_are_not_significantly_worse(table, differences):
    text = answer(table, rival_differences(table, differences))
    assert "but not significantly better than the embedding and word identity: 94 %" in text
    assert "but" not in answer(table)


def test_the_paired_test_decides_who_is_a_rival(table, clean, differences):
    found = warnings(table, clean, rival_differences(table, differences))
    assert [warning.partition(":")[0] for warning in found] == [
        "The probe is not significantly better than word identity",
        # Significant before adjustment only.
        "The probe is not significantly better than the embedding",
    ]
    reaches = table["target"].eq("random_weights") & table["metric"].eq("accuracy")
    table.loc[reaches, "value"] = 0.93
    # The difference to a random network of another score does not apply here.
    assert len(warnings(table, clean, rival_differences(table, differences))) == 3


def test_a_run_from_before_has_none(tmp_path):
    assert load_differences(tmp_path / "differences.csv") is None


def test_a_file_that_lacks_a_column_is_refused(tmp_path, differences):
    path = tmp_path / "differences.csv"
    differences.drop(columns="p_adjusted").to_csv(path, index=False)
    with pytest.raises(DataError, match=r"differences\.csv, line 1: no column 'p_adjusted'"):
        load_differences(path)
    differences.astype({"p": object}).assign(p="x").to_csv(path, index=False)
    with pytest.raises(DataError, match=r"line 2, column 'p': 'x' cannot be read"):
        load_differences(path)


def test_written_differences_are_read_back(tmp_path, differences):
    path = tmp_path / "differences.csv"
    differences.to_csv(path, index=False)
    pd.testing.assert_frame_equal(
        load_differences(path), differences.astype({"n_test": float, "n_groups": float})
    )
