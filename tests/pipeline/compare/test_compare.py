"""Comparison of two runs: planted differences are significant, others are not."""

import json
import shutil
from functools import partial

import numpy as np
import pandas as pd
import pytest

from probekit.errors import ConfigError, DataError
from probekit.pipeline.compare import compare as module
from probekit.pipeline.compare.compare import FinishedRun, compare
from probekit.pipeline.look.exports import write_page_or_rows
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.report.pages.compare_page import comparison_page
from probekit.results.record import pack_record
from tests.pipeline.finished import FILES, SITES, guesses, made_rows, write_record, write_run
from tests.pipeline.texts import text_of

ROWS = made_rows()


def guess_at(share, seed, rows=ROWS):
    return {site: guesses(rows, share, seed + n) for n, site in enumerate(SITES)}


@pytest.fixture
def make(tmp_path):
    """A function that writes a run with a share of correct predictions, from a seed."""

    def make(name, share, seed, rows=ROWS, **others):
        return write_run(tmp_path / name, rows, guess_at(share, seed, rows), **others)

    return make


def of_site(comparison):
    return comparison.rows[comparison.rows["what"] != "baseline"].set_index("site_a")


def test_planted_difference_is_significant_only_at_its_site(tmp_path):
    a = write_run(tmp_path / "a", ROWS, guess_at(0.6, 1) | {SITES[1]: guesses(ROWS, 0.85, 5)})
    b = write_run(tmp_path / "b", ROWS, guess_at(0.6, 1))
    found = compare(a, b)
    rows = of_site(found)
    assert found.pairing == "paired"
    assert rows["holds"].to_dict() == {SITES[0]: False, SITES[1]: True}
    assert rows.loc[SITES[0], ["difference", "p"]].tolist() == [0, 1]
    assert 0.1 < rows.loc[SITES[1], "ci_low"] < rows.loc[SITES[1], "difference"] < 0.4
    assert (found.rows["p_adjusted"] >= found.rows["p"]).all()
    assert found.rows["holds"].equals(found.rows["p_adjusted"] < 0.05)
    assert found.n_significant == 1
    back = of_site(compare(b, a))
    assert np.allclose(back["difference"], -rows["difference"])
    assert np.allclose(back["p"], rows["p"])


def test_rows_are_paired_in_any_order(make, tmp_path):
    a, b = make("a", 0.8, 1), make("b", 0.7, 9)
    order = np.random.default_rng(0).permutation(len(ROWS))
    shuffled = {site: guess[order] for site, guess in guess_at(0.7, 9).items()}
    c = write_run(tmp_path / "c", ROWS.iloc[order].reset_index(drop=True), shuffled)
    pd.testing.assert_frame_equal(compare(a, b).rows, compare(a, c).rows)
    assert compare(a, c).pairing == "paired"


def test_pairing_reveals_a_small_difference(tmp_path):
    """Predictions that differ in a few rows: a small difference is significant if paired."""
    better = guess_at(0.6, 1)
    truth = (ROWS["truth"] == "yes").to_numpy(dtype=np.int64)
    worse = {site: guess.copy() for site, guess in better.items()}
    for guess in worse.values():
        guess[::12] = 1 - truth[::12]
    a, b = write_run(tmp_path / "a", ROWS, better), write_run(tmp_path / "b", ROWS, worse)
    c = write_run(tmp_path / "c", ROWS.assign(id="x" + ROWS["id"]), worse)
    paired, unpaired = of_site(compare(a, b)), of_site(compare(a, c))
    assert np.allclose(paired["difference"], unpaired["difference"])
    assert paired["holds"].all()
    assert not unpaired["holds"].any()


def test_different_rows_are_compared_without_pairs(make):
    found = compare(make("a", 0.9, 1), make("b", 0.6, 1, made_rows(n_groups=40, prefix="h")))
    assert found.pairing == "unpaired"
    assert f"differ (240 in “{found.a}”, 160 in “{found.b}”)" in found.notes[0]
    assert set(zip(found.rows["n_a"], found.rows["n_groups_b"], strict=True)) == {(240, 40)}
    assert of_site(found)["holds"].all()
    numbered = ("data.columns.id=null",)
    c, d = (make(name, 0.8, 1, overrides=numbered) for name in "cd")
    assert compare(c, d).pairing == "paired"
    write_record(d, dataset="other")
    found = compare(c, d)
    assert found.pairing == "unpaired"
    assert "have no ids" in found.notes[0]


def test_differing_settings_are_listed(make):
    kinds, place = "probe.kinds=[{kind: mass_mean}]", "tokens.position.at=mean"
    overrides = ("probe.seed=3", kinds, place, "name=other")
    found = compare(make("a", 0.8, 1), make("b", 0.8, 1, probe="mass_mean", overrides=overrides))
    assert found.settings == {
        "probe.seed": ("0", "3"),
        "probe.kinds": ("[{kind: logistic}]", "[{kind: mass_mean}]"),
        "tokens.position.at": ("last", "mean"),
    }
    assert of_site(found)["probe_b"].tolist() == ["mass_mean"] * 2


def test_folders_of_the_machine_are_not_on_the_page(make, tmp_path):
    folders = [tmp_path / "models" / name for name in ("small", "large")]
    overrides = [
        (f"model.source={folder}", f"data.root={folder}", f"data.file={folder}/rows.csv")
        for folder in folders
    ]
    a, b = (make(name, 0.8, 1, overrides=own) for name, own in zip("ab", overrides, strict=True))
    page = comparison_page(compare(a, b)).html()
    assert "…/small" in page
    assert str(tmp_path) not in page


def test_p_values_are_adjusted_for_all_comparisons(tmp_path):
    a, b = (
        {f"blocks.{n}.hook_resid_post": guesses(ROWS, share / 100, share + n) for n in range(12)}
        for share in (70, 62)
    )
    rows = compare(write_run(tmp_path / "a", ROWS, a), write_run(tmp_path / "b", ROWS, b)).rows
    assert ((rows["p"] < 0.05) & (rows["p_adjusted"] >= 0.05)).any()


@pytest.mark.parametrize("paired", [True, False])
def test_a_difference_in_calibration_error_has_no_test(paired):
    groups, rng = np.arange(200) // 4, np.random.default_rng(0)
    truth, logits = rng.integers(2, size=200), rng.normal(size=(2, 200))
    both = [
        ClassPredictions(
            truth, (one > 0).astype(int), 2, -np.logaddexp(0, np.stack([one, -one], 1)), True
        )
        for one in logits
    ]
    resamples = Resamples.leave_one_out(groups)
    indices = np.arange(200) if paired else None
    (found,) = module.differences([({}, *both)], (resamples, resamples), indices, "ece")
    assert found.value == found.a - found.b != 0
    assert np.isnan([found.ci_low, found.ci_high, found.p, found.p_adjusted]).all()
    counts = {"metric": "ece", "pairing": "paired", "n_a": 200, "n_b": 200}
    counts |= {"n_groups_a": 50, "n_groups_b": 50}
    notes = [*module._notes_on_rows((), (), counts, [found])]
    assert not [note for note in notes if "too few groups" in note]


@pytest.mark.parametrize("n_groups", [5, 6, 19, 20])
@pytest.mark.parametrize("paired", [True, False])
def test_few_groups_are_noted_and_too_few_have_no_verdict(make, n_groups, paired, snapshot):
    rows = made_rows(n_groups=n_groups, rows_of_group=30)
    others = rows if paired else made_rows(n_groups=30, prefix="h")
    found = compare(make("a", 0.95, 1, rows), make("b", 0.4, 9, others))
    assert [one for one in found.notes if "groups are" in one] == snapshot
    sites = of_site(found)
    assert sites[["ci_low", "ci_high"]].notna().all(axis=None)
    assert sites["p_adjusted"].isna().tolist() == [n_groups < 6] * len(sites)
    assert sites["holds"].any() == (n_groups >= 6)


@pytest.mark.parametrize(
    "labels",
    [("-1", "1"), ("'=a", "=cmd|' /C calc'!A0"), ('<script>alert("1")</script>, \r\n"x"', "no")],
    ids=["minus", "formula", "script"],
)
def test_labels_of_any_characters_are_read_back(tmp_path, labels):
    rows = ROWS.replace({"truth": dict(zip(("no", "yes"), labels, strict=True))})
    rows = rows.assign(group="\t" + rows["group"] + ",'")
    guess = guess_at(0.8, 1)
    a, b = (write_run(tmp_path / name, rows, guess, labels=labels) for name in "ab")
    opened = FinishedRun(a).test_rows
    assert opened["truth"].tolist() == rows["truth"].tolist()
    assert opened["group"].tolist() == rows["group"].tolist()
    found = compare(a, b)
    assert (of_site(found)["value_a"] > 0.6).all()
    assert (of_site(found)["difference"] == 0).all()
    assert "alert(" not in comparison_page(found).html()


def test_baselines_missing_from_one_run_are_reported(make):
    a, b = make("a", 0.8, 1), make("b", 0.8, 1, overrides=("probe.baselines=[]",))
    found = compare(a, b)
    assert "baseline" not in set(found.rows["what"])
    assert any(note.startswith(f"{found.b} has no baseline majority") for note in found.notes)


def test_output_is_a_table_or_a_page(make, tmp_path):
    found = compare(make("a", 0.9, 1), make("b", 0.6, 9))
    page = partial(comparison_page, found)
    written = [
        *write_page_or_rows(tmp_path / "found.csv", page, found.rows),
        *write_page_or_rows(tmp_path / "found.html", page),
        *write_page_or_rows(tmp_path / "found.pdf", page, paper={"width": 3.25}),
    ]
    assert sorted(written) == sorted(tmp_path.glob("found*"))
    table = pd.read_csv(written[0])
    assert table["what"].tolist() == ["chosen", "baseline", "site", "site"]
    assert table["site_b"][0] != table["site_a"][0]
    page = written[1].read_text()
    assert "<bdi>Is “run 1” better than “run 2”?</bdi>" in page
    assert found.verdict in page
    with pytest.raises(ConfigError, match=r"Allowed: \.csv"):
        write_page_or_rows(tmp_path / "found.txt", page, found.rows)


@pytest.mark.parametrize("call", text_of("invalid_comparisons.txt").splitlines())
def test_runs_that_cannot_be_compared_are_refused(make, call, refused):
    refused(eval, call, globals() | {"make": make, "a": make("a", 0.8, 1)})


def test_changed_predictions_are_refused(make):
    a, b = make("a", 0.8, 1), make("b", 0.6, 1)
    for path in (a / "sites").glob("blocks.1*"):
        shutil.copy(path, b / "sites" / path.name)
    record = json.loads((b / "run.json").read_text())
    content = {name: record[name] for name in record if name not in ("format", "seal")}
    content["files"] = {name: record["files"][name] for name in FILES}
    (b / "run.json").write_bytes(pack_record(content))  # with digests of some of its files
    with pytest.raises(DataError, match=r"predictions at blocks\.1\.hook_resid_post are lost"):
        compare(a, b)
