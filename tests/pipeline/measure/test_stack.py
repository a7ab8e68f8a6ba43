"""Stacks of all sites, scored on held-out rows, and cascades, chosen on training rows."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from probekit.chosen.selected_probe import SelectedProbe
from probekit.chosen.stack.measure import SHARES, last_stages, log_odds, site_scores, word_scores
from probekit.chosen.stack.measure import tables as stack_tables
from probekit.errors import ConfigError
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.results.scores import Scores
from probekit.results.table import PAGE_TABLES, RESULTS, make_table, only
from tests.pipeline.planted import QUICK

N, N_TRAIN = 900, 600
SETTINGS = ProbeSettings(
    C=(0.01, 1.0), folds=3, control_draws=0, baselines=(), description=False, metric="auroc"
)


@pytest.fixture(scope="module")
def data():
    """Rows; in half of them a word shows the label. "a" is positive, with code 0."""
    generator = np.random.default_rng(0)
    is_positive = generator.random(N) < 0.4
    words = generator.choice([f"w{number}" for number in range(30)], size=(N, 4))
    is_worded = generator.random(N) < 0.5
    words[is_worded, 0] = np.where(is_positive, "good", "bad")[is_worded]
    texts = np.array([" ".join(of_row) for of_row in words], dtype=object)
    y, row = np.where(is_positive, "a", "b"), np.arange(N).astype(str)
    train, test = np.arange(N_TRAIN), np.arange(N_TRAIN, N)
    return ProbeData(y, row, row, train, test, texts=texts, positive="a")


@pytest.fixture(scope="module")
def sites(data):
    generator = np.random.default_rng(1)
    signal = 1.5 * (data.y == "a")[:, None]
    return {
        f"blocks.{block}.hook_resid_post": signal + generator.normal(size=(N, 3))
        for block in range(3)
    }


def measured(data, sites, settings=SETTINGS):
    """The rows of results.csv, stack.csv and cascade.csv."""
    prober = Prober(data, settings)
    place = {"head": None, "position": "last", "main_metric": prober.main_metric}
    results = [replace(prober.site(X), place=place | {"site": site}) for site, X in sites.items()]
    source = SimpleNamespace(
        design=SimpleNamespace(positions=[SimpleNamespace(text="last")]),
        selections=[SimpleNamespace(text=site) for site in sites],
        axis_sizes={"n_layers": 4},
        activations=SimpleNamespace(block=lambda site, _: sites[site.text]),
    )
    table = make_table([row for result in results for row in result.rows], RESULTS)
    scores = Scores.of(table)
    chosen = SelectedProbe(scores, results, source, [prober], None)
    found = stack_tables("stack", chosen)
    return table, *(pd.DataFrame(found.get(name, [])) for name in ("stack.csv", "cascade.csv"))


def test_scores_of_training_rows_are_held_out():
    generator = np.random.default_rng(0)
    y, row = np.tile(["no", "yes"], 60), np.arange(120).astype(str)
    data = ProbeData(y, row, row, train=np.arange(80), test=np.arange(80, 120))
    prober = Prober(data, ProbeSettings(control_draws=0, baselines=()))
    noise = generator.normal(size=(120, 100))
    scores = site_scores(prober, ProbeSpec(kind="logistic"), noise, 1.0)[:, 0]
    assert roc_auc_score(y[:80] == "yes", scores[:80]) < 0.75  # fitted rows would be separated
    assert roc_auc_score(y[:80] == "yes", noise[:80] @ _direction(prober.saved_rows, noise)) == 1


def _direction(fitted, X):
    (fit,) = fitted.fitter(ProbeSettings().specs[0]).refit(
        X[fitted.rows], [(fitted.column, 1.0)], [np.ones(len(fitted.rows), dtype=bool)]
    )
    return fit[0].layers[0].weight[0]


@pytest.mark.parametrize("kind", ["ridge_regression", "mass_mean", "logistic"])
def test_stack_of_numbers_of_kinds_without_penalty_and_with_a_rare_label(kind):
    generator, reads_numbers = np.random.default_rng(0), kind == "ridge_regression"
    X = generator.normal(size=(120, 4))
    y = X[:, 0].astype(str) if reads_numbers else np.where(X[:, 0] > 0, "yes", "no")
    if kind == "logistic":
        y[[0, 1]] = "rare"  # in one training group, so that a fold has not learnt it
    groups = (np.arange(120) // 2).astype(str)
    data = ProbeData(y, groups, groups, train=np.arange(80), test=np.arange(80, 120))
    settings = ProbeSettings(kinds=(ProbeSpec(kind=kind),), control_draws=0, baselines=())
    table, stack, _ = measured(data, {"blocks.0.hook_resid_post": X}, settings)
    (row,) = (one for _, one in stack.iterrows() if one["metric"] == table["main_metric"].iloc[0])
    assert row["value"] == pytest.approx(row["single"], abs=0.1)
    assert stack["metric"][stack["p"].notna()].tolist() == [row["metric"]]


def test_stack_is_compared_with_the_selected_probe(planted):
    result = planted.run(*QUICK, "probe.layers=stack")
    stack, chosen = result.stack, Scores.of(result.table).chosen
    assert set(PAGE_TABLES["stack.csv"]) <= set(stack)
    tested = only(result.table, target="task", split="test", site=chosen["site"])
    metrics = tested.set_index("metric")["value"]
    row = stack.set_index("metric").loc[chosen["metric"]]
    assert row["single"] == pytest.approx(metrics[chosen["metric"]], rel=1e-12)
    assert row["difference"] == pytest.approx(row["value"] - row["single"])
    assert row["n_sites"] == (result.table["site"].unique() != "").sum()
    assert "Stack of all sites" in result.report.read_text()


def test_a_stack_needs_one_test_set_and_probes_of_rows(planted):
    with pytest.raises(ConfigError, match="single test set"):
        planted.load("probe.layers=stack", "split.folds=3")


@pytest.fixture(scope="module")
def tables(data, sites):
    return measured(data, sites)


def test_stages_alone_have_the_rates_of_the_run(tables):
    table, stack, cascade = tables
    assert set(cascade) == set(PAGE_TABLES["cascade.csv"])
    assert set(cascade["fpr"]) == {0.05}  # 1 % needs more negatives
    rows, of_stack = cascade.set_index("setting"), stack.set_index("metric")["value"]
    (site,) = [name for name in rows.index if name.startswith("blocks") and name.endswith(" only")]
    of_site = only(table, site=site.removesuffix(" only"), split="test").set_index("metric")
    for name, metric in {"tpr": "tpr_at_fpr_5", "test_fpr": "achieved_fpr_5"}.items():
        assert rows.loc[site, name] == pytest.approx(of_site["value"][metric])
        assert rows.loc[site, f"{name}_low"] == pytest.approx(of_site["ci_low"][metric])
        assert rows.loc["all sites only", name] == pytest.approx(of_stack[metric])
    assert rows.loc[site, "cost"] == (int(site.split(".")[1]) + 1) / 4
    assert (rows.loc["words only", "cost"], rows.loc["all sites only", "cost"]) == (0, 3 / 4)


def test_a_cascade_has_a_higher_rate_than_cheaper_stages(tables):
    *_, rows = tables
    rates, costs = rows["tpr"].to_numpy(), rows["cost"].to_numpy()
    mixed = ~rows["setting"].str.endswith(" only")
    alone = rows.set_index("setting")["tpr"]
    assert mixed.sum() > 2
    assert alone["words only"] + 0.1 < rates[mixed & (costs < 0.5)].max()
    assert rows["test_fpr"].mean() < 0.07
    passed = rows["passed_1"] - rows["passed_2"], rows["passed_2"]
    single = rows.set_index("setting").filter(regex="^blocks.* only$", axis=0)["cost"].item()
    assert costs == pytest.approx(passed[0] * single + passed[1] * 3 / 4)


def test_labels_of_test_rows_do_not_change_the_settings(data, sites, tables):
    y = data.y.copy()
    y[N_TRAIN:] = np.random.default_rng(0).permutation(y[N_TRAIN:])
    *_, permuted = measured(replace(data, y=y), sites)
    columns = ["fpr", "setting", "passed_1", "passed_2", "cost"]
    assert permuted[columns].equals(tables[-1][columns])
    assert not permuted["tpr"].equals(tables[-1]["tpr"])


def test_each_stage_reads_more_rows_if_more_are_passed_on():
    distances, train = np.random.default_rng(0).random((3, 500)), np.arange(0, 500, 2)
    before = np.zeros(500, dtype=int)
    for share in SHARES:
        reached = last_stages(distances, train, (share, 0))
        assert (reached >= before).all()
        assert np.mean(reached[train]) == pytest.approx(share, abs=1 / len(train))
        further = last_stages(distances, train, (share, share))
        assert (further >= reached).all()
        before = reached
    assert (further == 2).all()


def test_scores_of_words_are_held_out(data):
    generator = np.random.default_rng(0)
    random = np.array([f"v{n} w{n % 40}" for n in generator.permutation(N)], dtype=object)
    y, train = data.y == "b", data.train  # the second class
    scores = word_scores(Prober(replace(data, texts=random), SETTINGS))
    assert 0.3 < roc_auc_score(y[train], scores[train]) < 0.65
    scores = word_scores(Prober(data, SETTINGS))
    assert roc_auc_score(y[train], scores[train]) > 0.7
    assert roc_auc_score(y[data.test], scores[data.test]) > 0.7


def test_no_cascade_without_texts_or_with_few_negatives_or_three_classes(data, sites):
    _, stack, cascade = measured(replace(data, texts=None), sites)
    assert len(stack)
    assert cascade.empty
    assert word_scores(Prober(replace(data, train=data.train[:300]), SETTINGS)) is None
    three = replace(data, y=np.where(np.arange(N) % 3 == 0, "c", data.y))
    assert word_scores(Prober(three, SETTINGS)) is None


def test_log_odds_keep_the_order_of_the_rows():
    generator = np.random.default_rng(0)
    is_positive = np.arange(200) % 2 == 0
    scores = generator.normal(size=200) + is_positive
    for one in (scores, -scores):
        assert (np.argsort(log_odds(one, is_positive, np.arange(100))) == np.argsort(one)).all()
    share = 1 / (1 + np.exp(-log_odds(1e6 * scores, is_positive, np.arange(200))))
    assert share.mean() == pytest.approx(0.5, abs=0.01)
