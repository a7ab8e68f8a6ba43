"""Whole runs under `split.folds`: scores, saved probes, and the sentences about them."""

import numpy as np
import pandas as pd
import pytest

from probekit.cli.show.results import show_results
from probekit.pipeline.compare.compare import compare
from probekit.pipeline.experiment.prepare import prepare
from probekit.pipeline.experiment.record import data_facts, findings
from probekit.pipeline.measure.probing import make_probers
from probekit.probes.saved_probe import SavedProbe
from probekit.report.sentences.answer import p_words
from probekit.results.selection import chosen_row, fold_choices, main_metric
from probekit.results.table import load_table, only
from tests.pipeline.planted import MIXED, Planted

OVERRIDES = (
    MIXED,
    "model.random_weights=1",
    "split.folds=3",
    "capture.sites=['blocks.[135].hook_resid_post', hook_embed]",
    "probe.description=false",
    "probe.permutations=99",
    "attention.texts=[]",
)


@pytest.fixture(scope="module")
def load(planted):
    """A function that loads the planted experiment, with labels that follow no rule."""
    rows = pd.read_csv(planted.folder / "mixed.csv")
    again = rows.assign(group=rows["group"] + " again")
    pd.concat([rows, again]).to_csv(planted.folder / "twice.csv", index=False)
    # Each noun is in two groups, so that test words are not new.
    rows.assign(group=np.arange(len(rows)) // 4).to_csv(
        planted.folder / "repeated.csv", index=False
    )
    return lambda *others: planted.load(*OVERRIDES, *others)


@pytest.fixture(scope="module")
def go(planted, load):
    return lambda *others, **options: planted.run(*OVERRIDES, *others, **options)


@pytest.fixture(scope="module")
def nested(go):
    """A run whose outer folds chose different sites."""
    return go()


@pytest.fixture(scope="module")
def table(nested):
    return load_table(nested.results)


def score(table, **where):
    (value,) = only(table, split="test", metric="accuracy", **where)["value"]
    return value


def test_folds_that_disagree_have_no_best_site(nested, table):
    v = nested._record.verdict
    names = [choice.name for choice in v.choices]
    assert v.score.sites == {name: names.count(name) for name in names}
    assert len(v.score.sites) > 1
    assert sum(v.score.sites.values()) == len(v.choices) == 3
    assert v.best.site == nested.record["verdict"]["best"]["site"] == chosen_row(table)["site"]
    assert v.best.probe == "logistic"


def test_every_fold_tests_its_own_rows_at_the_site_it_chose(nested, table, load):
    experiment = load()
    prepared = prepare(experiment)
    (prober,) = make_probers(experiment, prepared)
    confusion = pd.read_csv(nested.folder / "confusion.csv")
    right = confusion.loc[confusion["truth"] == confusion["guess"], "n"].sum()
    assert right / confusion["n"].sum() == pytest.approx(score(table, target="chosen"))
    assert confusion["n"].sum() == len(prober.test_rows) == 96
    chosen = [row["site"] for row in fold_choices(table)]
    assert len(set(chosen)) > 1
    validation = only(table, target="task", split="validation").dropna(subset="fold")
    for fold, site in enumerate(chosen):
        own = validation[validation["fold"] == fold]
        assert own.set_index("site").loc[site, "value"] == own["value"].max()


def test_the_curve_has_no_ring_and_the_nested_choice_is_a_line(nested, table):
    page = nested.report.read_text()
    assert "fold choice" in page
    assert "chosen by<br>cross-validation" not in page
    assert "The ring marks" not in page
    assert "test rows were not used" not in page
    assert "the folds chose different sites (" in nested.answer
    assert "the final probe, which was fitted on all rows, these included," in page


def test_differences_and_p_values_are_those_of_the_nested_choice(nested, table):
    differences = pd.read_csv(nested.folder / "differences.csv")
    assert set(differences["a"]) == {"chosen"}
    assert {"majority", "word_identity", "chosen_random_weights"} <= set(differences["b"])
    assert differences["value_a"].unique() == pytest.approx([score(table, target="chosen")])
    own = only(table, target="chosen", metric="p_value")
    assert len(own) == 1
    assert f", {p_words(own['value'].iloc[0])}" in nested.answer


def test_the_final_probe_is_fitted_on_all_rows_and_untested(nested, table, load):
    final = SavedProbe.load(nested.folder / "probes" / "final")
    row = chosen_row(table)
    assert final.facts.sites == (row["site"],)
    assert not final.facts.is_tested
    assert final.facts.metrics == {}
    (prober,) = make_probers(load(), prepare(load()))
    assert np.array_equal(prober.saved_rows.rows, np.arange(96))
    assert {"probes/final.json", "probes/final.safetensors"} <= set(nested.record["files"])


def test_a_second_run_fits_nothing(nested, planted, monkeypatch):
    content = {path.name: path.read_bytes() for path in nested.folder.glob("*.csv")}
    monkeypatch.setattr("probekit.probes.prober.Prober.site", None)  # would fail if it were called
    again = Planted.run(planted, *OVERRIDES, page=False)  # not the one that is kept
    assert {path.name: path.read_bytes() for path in again.folder.glob("*.csv")} == content
    assert again.record["files"] == nested.record["files"]


def test_the_chosen_probe_of_a_comparison_is_the_nested_choice(nested, table, go):
    single = go("split.folds=null", "model.random_weights=false", page=False)
    for metric in ("accuracy", "auroc"):
        rows = compare(nested.folder, single.folder, metric=metric).rows
        (chosen,) = rows[rows["what"] == "chosen"].to_dict("records")
        assert (chosen["site_a"], chosen["probe_a"]) == ("chosen", "chosen")
        (value,) = only(table, target="chosen", metric=metric)["value"]
        assert chosen["value_a"] == pytest.approx(value)
        curve = rows[rows["what"] == "site"].set_index("site_a")["value_a"]
        own = only(table, target="task", split="test", metric=metric).set_index("site")["value"]
        pd.testing.assert_series_equal(
            curve.sort_index(), own.sort_index(), check_names=False, rtol=1e-6
        )


def test_the_terminal_has_the_nested_choice(nested, capsys):
    show_results(nested)
    shown = capsys.readouterr().out
    assert "*: selected by cross-validation of at least one outer fold" in shown
    assert " % of held-out rows" in shown or "] of held-out rows" in shown
    assert "chosen" not in shown.split("compared with")[1]


def test_folds_choose_among_kinds_too(go):
    several = go(
        "probe.kinds=[{kind: nearest_mean}, {kind: k_sparse, k: [2, 8]}]",
        "capture.sites=[blocks.0.hook_resid_post, blocks.3.hook_resid_post]",
        "model.random_weights=false",
    )
    table = load_table(several.results)
    chosen = fold_choices(table)
    validation = only(table, target="task", split="validation").dropna(subset="fold")
    for row in chosen:
        own = validation[validation["fold"] == row["fold"]]
        assert row["value"] == own["value"].max()
    features = pd.read_csv(several.folder / "features.csv")
    assert features["k"].max() == 8
    kept = SavedProbe.load(several.folder / "probes" / features["site"].iloc[0] / "k_sparse-2")
    assert not kept.facts.is_tested
    assert set(np.flatnonzero(kept.layers[0][0].any(axis=0))) == set(
        features["feature"].str.removeprefix("dimension ").astype(int)[:2]
    )
    assert "fitted on all rows," in several.report.read_text()


@pytest.mark.parametrize("metric", ["auroc", "brier", "auprc"])
def test_folds_choose_by_the_main_metric_and_controls_are_scored_by_it(go, metric):
    at_noun = ("data.file=repeated.csv", "tokens.position={at: index, index: 2}")
    few = ("model.random_weights=false", f"probe.metric={metric}")
    table = load_table(go(*few, *at_noun, page=False).results)
    assert main_metric(table) == metric
    validated = only(table, split="validation", target="task")
    assert set(validated["metric"]) == {metric}
    of_fold = validated[validated["fold"] == 0]["value"]
    best = of_fold.min() if metric == "brier" else of_fold.max()
    assert fold_choices(table)[0]["value"] == best
    rows = only(table, split="test", target="chosen").set_index("metric")
    assert rows.loc[metric, "positive"] == "red"
    control = only(table, split="test", target="chosen_control", metric=metric).iloc[0]
    sign = -1 if metric == "brier" else 1
    lead = sign * (rows.loc[metric, "value"] - control["value"])
    # Selectivity compares both on the rows whose words occur in the training rows.
    assert rows.loc["selectivity", "n_test"] == control["n_test"] <= rows.loc[metric, "n_test"]
    assert rows.loc["selectivity", "value"] == pytest.approx(lead, abs=0.1)
    assert ("p_value" in rows.index) == (metric != "brier")


def test_repeated_texts_are_reported_and_kept_in_one_group_on_request(load):
    prepared = prepare(load("data.file=twice.csv"))
    found = {one.code: one.message for one in findings(prepared, make_probers(load(), prepared))}
    assert "in 3 of 3 outer folds" in found["duplicates-across"]
    experiment = load("data.file=twice.csv", "split.drop_repeated=true")
    prepared = prepare(experiment)
    probers = make_probers(experiment, prepared)
    for split in prepared.splits:
        train, test = (set(prepared.texts[rows]) for rows in (split.train, split.test))
        assert test
        assert not train & test
    assert np.array_equal(np.sort(probers[0].test_rows), np.arange(96))
    assert np.array_equal(probers[0].saved_rows.rows, np.arange(96))
    assert "duplicates-across" not in {one.code for one in findings(prepared, probers)}
    facts = data_facts(prepared, probers, None)
    assert any(note.startswith("removed: 96 examples") for note in facts.notes)
    assert sum(facts.labels["all folds"].values()) == 96
    assert facts.groups == {"all folds": 12}
