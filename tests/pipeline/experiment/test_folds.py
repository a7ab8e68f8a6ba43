"""Whole runs under `split.folds` and other main metrics: scores, saved probes and sentences."""

import html
import re
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest

from probekit.cli.runs import show_results, show_warnings
from probekit.errors import ConfigError
from probekit.pipeline.compare.compare import FinishedRun, compare
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.experiment.validate import validate
from probekit.pipeline.measure.probing import make_probers
from probekit.pipeline.measure.record import data_facts, findings
from probekit.probes.exports.table import FORMATS
from probekit.probes.saved_probe import SavedProbe
from probekit.report.pages.parts import result_parts
from probekit.report.sentences.answer import p_words
from probekit.results.scores import Scores
from probekit.results.table import DIFFERENCES, load_table, only, read_columns
from tests.pipeline.planted import FAST
from tests.pipeline.texts import text_of

OVERRIDES = text_of("overrides_folds.txt").splitlines()


@pytest.fixture(scope="module")
def load(planted):
    """A function that loads the planted experiment, with labels that follow no rule."""
    rows = pd.read_csv(planted.folder / "mixed.csv")
    again = rows.assign(group=rows["group"] + " again")
    pd.concat([rows, again]).to_csv(planted.folder / "twice.csv", index=False)
    # Each noun is in two groups, so that test words are not new.
    repeated = rows.assign(group=np.arange(len(rows)) // 4)
    repeated.to_csv(planted.folder / "repeated.csv", index=False)
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


def test_every_fold_tests_its_own_rows_at_the_site_it_chose(nested, table, load):
    experiment = load()
    (prober,) = make_probers(experiment, prepare(experiment).design)
    confusion = pd.read_csv(nested.folder / "confusion.csv")
    right = confusion.loc[confusion["truth"] == confusion["guess"], "n"].sum()
    assert right / confusion["n"].sum() == pytest.approx(score(table, target="chosen"))
    assert confusion["n"].sum() == len(prober.test_rows) == 96
    chosen = [row["site"] for row in Scores.of(table).choices]
    assert len(set(chosen)) > 1
    validation = only(table, target="task", split="validation").dropna(subset="fold")
    for fold, site in enumerate(chosen):
        own = validation[validation["fold"] == fold]
        assert own.set_index("site").loc[site, "value"] == own["value"].max()


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
    assert final.facts.sites == (Scores.of(table).chosen["site"],)
    assert not final.facts.is_tested
    assert final.facts.metrics == {}
    (prober,) = make_probers(load(), prepare(load()).design)
    assert np.array_equal(prober.saved_rows.rows, np.arange(96))
    assert {"probes/final.json", "probes/final.safetensors"} <= set(nested.record["files"])


def test_the_page_names_commands_that_export_the_final_probe(nested, call):
    page = html.unescape((nested.folder / "report.html").read_text())
    commands = re.findall(r"probekit (export RUN/\S+ --to (\w+) --out \S+) +# ", page)
    assert [to for _, to in commands] == list(FORMATS)
    for words, to in commands:
        if not FORMATS[to].needs or find_spec(FORMATS[to].needs):
            ended = call(*words.replace("RUN", str(nested.folder)).split())
            assert ended.code == 0
            assert f"{to}{FORMATS[to].ending}" in ended.stdout


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
        assert curve.to_dict() == pytest.approx(own.to_dict(), rel=1e-6)


def test_the_nested_choice_at_an_offset_is_read(planted, go):
    rows = pd.read_csv(planted.folder / "mixed.csv")
    ends = rows["text"].str.len()
    verbs = rows.assign(start=ends - rows["text"].str.split().str[-1].str.len(), end=ends)
    verbs.to_csv(planted.folder / "verbs.csv", index=False)
    rows = ("data.file=verbs.csv", "data.columns={group: group, start: start, end: end}")
    where = ("tokens.position={at: span, offset: -1}", "capture.sites=[blocks.3.hook_resid_post]")
    run = go(*rows, *where, "model.random_weights=false", page=False).folder
    found = FinishedRun(run).predictions("chosen", "span-1")
    assert [predictor.target for predictor in found] == ["chosen"]


def test_page_and_terminal_have_the_nested_choice(nested, capsys):
    page = nested.report.read_text()
    assert "Chosen sites: each of" in page
    assert "those of the outer fold that did not train on the row" in page
    absent = ("chosen by<br>cross-validation", "The ring marks", "test rows were not used")
    assert not [text for text in absent if text in page]
    assert "the folds chose different sites (" in nested.answer
    show_results(nested)
    show_warnings(nested)
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
    validation = only(table, target="task", split="validation").dropna(subset="fold")
    for row in Scores.of(table).choices:
        assert row["value"] == validation[validation["fold"] == row["fold"]]["value"].max()
    assert pd.read_csv(several.folder / "features.csv")["k"].max() == 8
    assert "fitted on all rows," in several.report.read_text()


@pytest.mark.parametrize("metric", ["auroc", "brier", "auprc"])
def test_folds_choose_by_the_main_metric_and_controls_are_scored_by_it(go, metric):
    at_noun = ("data.file=repeated.csv", "tokens.position={at: index, index: 2}")
    few = ("model.random_weights=false", f"probe.metric={metric}")
    table = load_table(go(*few, *at_noun, page=False).results)
    assert Scores.of(table).metric == metric
    validated = only(table, split="validation", target="task")
    assert set(validated["metric"]) == {metric}
    of_fold = validated[validated["fold"] == 0]["value"]
    best = of_fold.min() if metric == "brier" else of_fold.max()
    assert Scores.of(table).choices[0]["value"] == best
    rows = only(table, split="test", target="chosen").set_index("metric")
    assert rows.loc[metric, "positive"] == "red"
    control = only(table, split="test", target="chosen_control", metric=metric).iloc[0]
    lead = (-1 if metric == "brier" else 1) * (rows.loc[metric, "value"] - control["value"])
    # Selectivity compares both on the rows whose words occur in the training rows.
    assert rows.loc["selectivity", "n_test"] == control["n_test"] <= rows.loc[metric, "n_test"]
    assert rows.loc["selectivity", "value"] == pytest.approx(lead, abs=0.1)
    assert ("p_value" in rows.index) == (metric != "brier")


def test_repeated_texts_are_reported_and_kept_in_one_group_on_request(load):
    design = prepare(load("data.file=twice.csv")).design
    found = {one.code: one.message for one in findings(design, make_probers(load(), design))}
    assert "in 3 of 3 outer folds" in found["duplicates-across"]
    experiment = load("data.file=twice.csv", "split.drop_repeated=true")
    design = prepare(experiment).design
    probers = make_probers(experiment, design)
    for split in design.splits:
        train, test = (set(design.texts[rows]) for rows in (split.train, split.test))
        assert test
        assert not train & test
    for rows in (np.sort(probers[0].test_rows), probers[0].saved_rows.rows):
        assert np.array_equal(rows, np.arange(96))
    assert "duplicates-across" not in {one.code for one in findings(design, probers)}
    facts = data_facts(design, probers, None, [])
    assert any(note.startswith("removed: 96 examples") for note in facts.notes)
    assert sum(facts.labels["all folds"].values()) == 96
    assert facts.groups == {"all folds": 12}


@pytest.mark.parametrize(
    ("metric", "title"), [("auroc", "AUROC"), ("brier", "Brier score"), ("null", "accuracy")]
)
def test_the_metric_governs_results_and_headline(planted, metric, title, capsys):
    name = "accuracy" if metric == "null" else metric
    result = planted.run(*FAST, f"probe.metric={metric}", page=False)
    table = load_table(result.results)
    assert set(table["main_metric"]) == {name}
    assert Scores.of(table).metric == name
    assert set(table["positive"]) == {result.record["positive"]} == {"red"}  # of two the second
    assert set(only(table, split="validation")["metric"]) == {name}
    chosen, ranked = Scores.of(table).chosen, only(table, split="validation", target="task")
    best = ranked["value"].min() if metric == "brier" else ranked["value"].max()
    assert chosen["value"] == best
    verdict = result.record["verdict"]
    assert (verdict["main_metrics"], verdict["metric"]) == ((name,), name)
    assert verdict["best"]["site"] == chosen["site"]
    assert set(read_columns(result.folder / "differences.csv", DIFFERENCES)["metric"]) == {name}
    assert (title if title != "accuracy" else " % ") in result.answer
    first = next(result_parts(Scores.of(table), result._record.verdict))
    assert first.is_open
    assert first.title.startswith(title[0].upper() + title[1:])
    show_results(result)
    shown = capsys.readouterr().out
    assert title in shown.splitlines()[0]
    assert "majority" in shown


def test_each_metric_has_a_run_of_its_own_and_runs_are_compared_by_their_main_metric(planted):
    auroc, brier, accuracy = folders = [
        planted.run(*FAST, f"probe.metric={metric}", page=False).folder
        for metric in ("auroc", "brier", "null")
    ]
    assert len(set(folders)) == 3
    with pytest.raises(ConfigError, match=r"main metric is auroc in .* and brier in"):
        compare(auroc, brier)
    assert compare(auroc, accuracy, metric="brier").metric == "brier"


def test_validate_proposes_a_metric_for_rare_labels_unless_one_is_set(own, snapshot):
    # In 10 of 12 groups all rows are black.
    is_rare = own.rows["group"].isin(["house", "door"])
    black = own.rows["text"].str.replace("red", "black")
    label = own.rows["label"].where(is_rare, "black")
    rows = own.rows.assign(text=own.rows["text"].where(is_rare, black), label=label)
    rows.drop_duplicates().to_csv(own.folder / "rows.csv", index=False)

    def proposed(*overrides):
        found = validate(own.load(*FAST, *overrides)).findings
        return [finding.message for finding in found if finding.code == "imbalance"]

    assert proposed() == snapshot
    assert not proposed("probe.metric=auprc")
