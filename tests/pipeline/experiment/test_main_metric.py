"""The main metric of an experiment file ends in results.csv, in run.json and in the headline."""

import pytest

from probekit.cli.show.results import show_results
from probekit.errors import ConfigError
from probekit.pipeline.compare.compare import compare
from probekit.pipeline.experiment.validate import validate
from probekit.report.pages.parts import result_parts
from probekit.results.selection import chosen_row, main_metric
from probekit.results.table import DIFFERENCES, load_table, only, read_columns
from tests.pipeline.planted import FAST


@pytest.fixture
def runs(planted):
    """A function that runs the planted experiment with a main metric."""
    return lambda metric: planted.run(*FAST, f"probe.metric={metric}", page=False)


@pytest.mark.parametrize(
    ("metric", "title"), [("auroc", "AUROC"), ("brier", "Brier score"), ("null", "accuracy")]
)
def test_the_metric_governs_results_and_headline(runs, metric, title, capsys):
    name = "accuracy" if metric == "null" else metric
    result = runs(metric)
    table = load_table(result.results)
    assert set(table["main_metric"]) == {name}
    assert main_metric(table) == name
    assert set(table["positive"]) == {"red"}  # of two equally frequent labels the second
    assert set(only(table, split="validation")["metric"]) == {name}
    chosen, ranked = chosen_row(table), only(table, split="validation", target="task")
    best = ranked["value"].min() if metric == "brier" else ranked["value"].max()
    assert chosen["value"] == best
    record = result.record
    assert record["verdict"]["main_metrics"] == (name,)
    assert record["positive"] == "red"
    assert record["verdict"]["best"]["site"] == chosen["site"]
    assert record["verdict"]["metric"] == name
    assert set(read_columns(result.folder / "differences.csv", DIFFERENCES)["metric"]) == {name}
    assert (title if title != "accuracy" else " % ") in result.answer
    first = result_parts(table, result._record.verdict)[0]
    assert first.is_open
    assert first.title.startswith(title[0].upper() + title[1:])
    show_results(result)
    shown = capsys.readouterr().out
    assert title in shown.splitlines()[0]
    assert "majority" in shown


def test_each_metric_has_a_run_of_its_own(runs):
    assert len({runs(metric).folder for metric in ("auroc", "brier", "null")}) == 3


def test_runs_are_compared_by_their_main_metric(runs):
    with pytest.raises(ConfigError, match=r"main metric is auroc in .* and brier in"):
        compare(runs("auroc").folder, runs("brier").folder)
    assert compare(runs("auroc").folder, runs("null").folder, metric="brier").metric == "brier"


def test_validate_proposes_a_metric_for_rare_labels_unless_one_is_set(own):
    # In 10 of 12 groups all rows are black.
    is_rare = own.rows["group"].isin(["house", "door"])
    black = own.rows["text"].str.replace("red", "black")
    rows = own.rows.assign(
        text=own.rows["text"].where(is_rare, black), label=own.rows["label"].where(is_rare, "black")
    )
    rows.drop_duplicates().to_csv(own.folder / "rows.csv", index=False)

    def proposed(*overrides):
        found = validate(own.load(*FAST, *overrides)).findings
        return [finding.message for finding in found if finding.code == "imbalance"]

    (sentence,) = proposed()
    assert "set `probe.metric` to balanced_accuracy or, to detect 'red', auprc." in sentence
    assert not proposed("probe.metric=auprc")
