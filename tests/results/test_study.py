"""Counts of cells over a rival, and paired comparisons of settings over data sets."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import scipy

from probekit.amounts import LEVEL
from probekit.errors import DataError, MissingError
from probekit.provenance import seal, unseal
from probekit.results.record import FORMAT, check_finished
from probekit.results.study import (
    ABOVE_CHANCE,
    BETTER,
    STUDY_RECORD,
    WORSE,
    StudyResult,
    compared_cells,
    compared_settings,
)
from probekit.results.verdict import RIVALS
from tests.results.made_studies import SETTING, failing, made_cells, made_rivals, write_study


def compared(p, leads, metric="accuracy", cells=None):
    """Return how cells with these p-values and differences from the bag of words compare."""
    cells = made_cells(len(p)) if cells is None else cells
    words = {"difference": leads, "ci_low": leads - 0.01, "ci_high": leads + 0.01, "p": p}
    rivals = made_rivals(cells, bag_of_words={**words, "is_constant": False})
    return compared_cells(cells.assign(metric=metric), rivals, "bag_of_words")


def test_results_are_those_of_holm_and_of_benjamini_and_yekutieli():
    p = np.array([0.0001, 0.0007, 0.001, 0.0014, 0.0018, 0.007, 0.0071, 0.3, 0.6, 1.0])
    leads = np.array([0.1, 0.1, -0.1, 0.1, 0.1, 0.1, 0.1, 0.1, -0.1, 0.0])
    found = compared(p, leads)
    # By hand: Holm stops at the sixth of ten p-values, which is 0.007 > 0.05 / 5 is False.
    stepped = [value <= LEVEL / (len(p) - rank) for rank, value in enumerate(p)]
    n_holm = stepped.index(False)
    by = scipy.stats.false_discovery_control(p, method="by") < LEVEL
    named = np.array([BETTER, BETTER, WORSE, *[BETTER] * 5, WORSE, ""])
    assert (n_holm, by.sum()) == (7, 7)
    assert found["holm"].tolist() == [*named[:7], "", "", ""]
    assert found["fdr"].tolist() == np.where(by, named, "").tolist()


def test_a_false_discovery_rate_allows_more_results_than_holm():
    found = compared(np.repeat([0.0015, 0.9], [30, 30]), np.full(60, 0.1))
    assert (found["holm"] == BETTER).sum() == 0
    assert (found["fdr"] == BETTER).sum() == 30


def test_lower_scores_are_better_where_the_metric_says_so():
    found = compared(np.full(4, 1e-6), np.array([-0.1, -0.1, 0.1, 0.1]), "brier")
    assert found["holm"].tolist() == [BETTER] * 2 + [WORSE] * 2


def test_a_rival_that_predicts_the_same_for_all_rows_is_not_counted_as_a_difference(tmp_path):
    cells = made_cells(8)
    study = write_study(tmp_path, cells)
    for tables in ((cells, made_rivals(cells)), (study.table, study.rivals)):
        found = compared_cells(*tables, "bag_of_words")
        assert found["is_constant"].tolist() == [False, True, False, False] * 2
        assert found["holm"].tolist() == [BETTER, ABOVE_CHANCE, "", ""] * 2
        assert set(compared_cells(*tables, "majority")["holm"]) == {ABOVE_CHANCE}
    # An association with an interval that contains 0 is not above chance.
    wide = made_rivals(cells, bag_of_words={"ci_low": -0.1})
    assert (compared_cells(cells, wide, "bag_of_words")["holm"] == ABOVE_CHANCE).sum() == 0


def test_cells_without_a_test_are_in_no_family():
    failed = failing(made_cells(6), 2, "no data")
    found = compared(np.array([0.009] * 5), np.full(5, 0.1), cells=failed)
    assert found["cell"].tolist() == [f"task_{n:03}-mini" for n in (0, 1, 3, 4, 5)]
    assert found["holm"].tolist() == [BETTER] * 5  # 5 x 0.009 < 0.05
    assert set(compared(np.full(6, np.nan), np.full(6, 0.1))["holm"]) == {""}


def with_scores(by_setting):
    """Return the cells of a study with these scores of each data set, by setting."""
    n = len(next(iter(by_setting.values())))
    cells = made_cells(n, settings=tuple(by_setting))
    return cells.assign(score=np.stack(list(by_setting.values()), axis=1).ravel())


def test_settings_are_compared_over_data_sets_by_the_signed_rank_test():
    a, b, c = np.random.default_rng(0).random((3, 12))
    found = compared_settings(with_scores({"a": a, "b": b + 0.8, "c": c}), ["data", SETTING])
    assert found[["a", "b", "n"]].to_numpy().tolist() == [
        [*pair, 12] for pair in ("ab", "ac", "bc")
    ]
    for p, one, other in zip(found["p"], (a, a, b + 0.8), (b + 0.8, c, c), strict=True):
        assert p == pytest.approx(scipy.stats.wilcoxon(one, other, method="exact").pvalue)
    adjusted = np.sort(found["p"]) * [3, 2, 1]
    assert np.sort(found["p_holm"]) == pytest.approx(np.maximum.accumulate(adjusted))
    assert found["ci_high"].lt(0).tolist() == [True, False, False]


def test_a_data_set_counts_once_and_only_with_both_settings():
    scores = np.linspace(0.5, 0.9, 8)
    cells = with_scores({"a": scores, "b": scores - 0.1})
    folds = [cells.assign(**{"split.folds": n, "score": cells["score"] + n / 100}) for n in (2, 3)]
    cells = pd.concat(folds, ignore_index=True)
    keys = ["data", SETTING, "split.folds"]
    found = compared_settings(failing(cells, 0, "no data"), keys).set_index("key")
    assert found.loc[SETTING, "n"] == 8  # the failed cell's data set has another number of folds
    assert found.loc[SETTING, "difference"] == pytest.approx(0.1)
    assert found.loc["split.folds", "difference"] == pytest.approx(-0.01)
    both = failing(failing(cells, 0, "no data"), 16, "no data")
    assert compared_settings(both, keys).set_index("key").loc[SETTING, "n"] == 7


def test_too_few_data_sets_have_a_median_and_no_p():
    cells = with_scores({"a": np.full(5, 0.8), "b": np.full(5, 0.7)})
    (row,) = compared_settings(cells, ["data", SETTING]).to_dict("records")
    assert row["difference"] == pytest.approx(0.1)
    assert np.isnan([row[name] for name in ("ci_low", "ci_high", "p", "p_holm")]).all()
    other = cells.assign(metric=np.where(cells.index < 4, "r2", "accuracy"))
    assert compared_settings(other, ["data", SETTING])["n"].tolist() == [3]
    assert compared_settings(made_cells(4), ["data"]).empty


def test_all_settings_of_two_keys_are_one_family():
    cells = with_scores({"a": np.linspace(0.5, 0.9, 8), "b": np.linspace(0.6, 0.95, 8)})
    rows = [cells.assign(**{"probe.C": C}) for C in ("[1]", "[2]", "[3]")]
    found = compared_settings(pd.concat(rows, ignore_index=True), ["data", SETTING, "probe.C"])
    pairs = [("a", "b"), *product(["[1]"], ["[2]", "[3]"]), ("[2]", "[3]")]
    assert list(zip(found["a"], found["b"], strict=True)) == pairs
    assert found.loc[0, "p_holm"] == pytest.approx(4 * found.loc[0, "p"])


def test_cells_without_baselines_are_compared_with_the_embedding(tmp_path):
    none = dict.fromkeys(("difference", "p"), np.nan)
    others = dict.fromkeys(set(RIVALS) - {"embedding"}, none)
    cells = made_cells(2)
    study = write_study(tmp_path, cells, made_rivals(cells, **others))
    assert "to embedding +" in repr(study)


@pytest.mark.parametrize("keys", [["nope"], ["data", "score"], ["data", "cell"]])
def test_varied_keys_that_the_table_lacks_are_damage(tmp_path, keys):
    write_study(tmp_path, made_cells(8))
    record = unseal((tmp_path / STUDY_RECORD).read_bytes(), "", FORMAT)
    (tmp_path / STUDY_RECORD).write_bytes(seal(record | {"keys": keys}, FORMAT))
    with pytest.raises(DataError, match=f"study.json has the varied key '{keys[-1]}'"):
        _ = StudyResult(tmp_path).table


def test_a_study_is_not_reported_as_a_run(tmp_path):
    write_study(tmp_path, made_cells(8))
    with pytest.raises(MissingError, match=r"It is that of a study: open its report\.html"):
        check_finished(tmp_path)
