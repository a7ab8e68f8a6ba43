"""What a probe adds to confounds: its statistics against references, and runs that show it."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import probekit
from probekit.chosen.left import statistics
from probekit.chosen.left.section import check_rows
from probekit.chosen.left.statistics import ALPHAS, Known
from probekit.cli.runs import show_results
from probekit.errors import ConfigError, DataError, UnknownNameError
from probekit.pipeline.engines.table import prepare
from probekit.probes.data import group_folds
from probekit.probes.score.contributions import RowScores
from probekit.probes.score.metrics import Resamples
from probekit.results.table import PAGE_TABLES
from tests.pipeline.planted import QUICK

SETTINGS = {"description": False, "control_draws": 0, "C": [0.01, 0.1], "folds": 3}


def data(extra, n_groups=60, seed=0, kind="classes"):
    """Activations that contain z, its square and u; labels by the square and by extra * u."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_groups), 5)
    z, u, noise = rng.normal(size=(3, len(groups)))
    score = 2 * (z**2 - 1) + extra * u
    y = score + noise if kind == "numbers" else (rng.logistic(size=len(z)) < score).astype(int)
    X = rng.normal(size=(len(z), 8))
    X[:, :3] += np.stack([2 * z, z**2, 2 * u], axis=1)
    return X, y, {"z": z}, groups


def left(extra, seed=0, kind="classes", n_groups=60):
    """The addition of a probe on a third of the rows, and p."""
    X, y, columns, groups = data(extra, n_groups, seed, kind)
    fold = group_folds(np.zeros(len(y)), groups, 3, seed)
    train, test = np.flatnonzero(fold), np.flatnonzero(fold == 0)
    inner = group_folds(np.zeros(len(train)), groups[train], 3, seed)
    rows = train, inner, test
    terms = Known(columns, {}).terms(train)
    if kind == "numbers":
        found = statistics.of_numbers(X, y, terms, *rows)
    else:
        found = statistics.of_classes(X, y, terms, *rows, (1e-3, 1e-2, 0.1))
    return found, statistics.p_of_signs(found.association, Resamples.leave_one_out(groups[test]))


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_a_parabola_of_a_column_leaves_nothing_and_another_direction_is_left(kind):
    p = np.array([left(0.0, seed, kind)[1] for seed in range(20)])
    assert np.sum(p < 0.05) <= 3  # 5 % of 20 draws exceed it in 2 % of simulations
    assert np.sum(p < 0.5) > 3
    assert left(2.0, kind=kind)[1] < 0.01


def test_terms_of_columns():
    numbers = {
        "few": np.tile([1.0, 2.0, 4.0], 40),
        "many": np.random.default_rng(0).normal(size=120),
    }
    known = Known(
        numbers | {"constant": np.ones(120)}, {"source": np.tile(["a", "b", "b", "c"], 30)}
    )
    train = np.arange(60)
    terms = known.terms(train)
    first, second = (statistics.normal_scores(one, one[train]) for one in numbers.values())
    for one in (
        first,
        second,
        first**2,
        second**2,
        first * second,
        *np.eye(3)[np.arange(120) % 3].T,
    ):
        assert np.isclose(terms.T, one).all(axis=1).any()
    assert np.isclose(terms.T, np.tile([0, 1.0, 1, 0], 30)).all(axis=1).any()
    assert known.description == "few, many, constant, source (3 values)"
    # A spline of a column without the other reproduces a cubic of its normal scores.
    cubic = Known({"many": numbers["many"]}, {}).terms(train)
    cubic = np.column_stack([cubic, np.ones(120)])[train]
    rest = second[train] ** 2 - cubic @ np.linalg.lstsq(cubic, second[train] ** 2, rcond=None)[0]
    assert np.abs(rest).max() < 1e-10


def test_regressions_equal_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 80)) * 5 + 3, rng.normal(size=(40, 2))
    y[:, 0] += X[:40, 0]
    train, test, fold = np.arange(40), np.arange(40, 60), np.arange(40) % 4
    models = [make_pipeline(StandardScaler(), Ridge(alpha)) for alpha in ALPHAS]
    held_out = [cross_val_predict(one, X[:40], y, cv=PredefinedSplit(fold)) for one in models]
    best = np.argmin([np.square(one - y).mean() for one in held_out])
    found, alpha = statistics.ridge(X, y, train, fold, test)
    assert alpha == ALPHAS[best]
    assert np.abs(found[:40] - held_out[best]).max() < 1e-10
    assert np.abs(found[40:] - models[best].fit(X[:40], y).predict(X[40:])).max() < 1e-10
    noise = statistics.ridge(X, rng.normal(size=(40, 1)), train, fold, test)[0]
    assert np.ptp(noise[40:]) < 0.3  # nearly switched off


def test_log_odds_of_the_columns_equal_those_of_scikit_learn():
    found, _ = left(1.0)
    _, y, columns, groups = data(1.0)
    fold = group_folds(np.zeros(len(y)), groups, 3, 0)
    train, test = np.flatnonzero(fold), np.flatnonzero(fold == 0)
    terms = StandardScaler().fit(Known(columns, {}).terms(train)[train])
    inside, outside = (
        terms.transform(Known(columns, {}).terms(train)[one]) for one in (train, test)
    )
    options = {"tol": 1e-10, "max_iter": 10_000}
    of_C = [
        LogisticRegression(C=C, **options).fit(inside, y[train]).predict_proba(outside)
        for C in statistics.GRID_OF_KNOWN
    ]
    assert min(np.abs(np.exp(found.known) - one).max() for one in of_C) < 1e-4


def test_p_of_signs_and_partial_correlation_equal_their_definitions():
    rng = np.random.default_rng(0)
    values, groups = rng.normal(size=24) + 0.3, np.arange(24) // 3
    sums = values.reshape(8, 3).sum(axis=1)
    signs = 1 - 2 * ((np.arange(256)[:, None] >> np.arange(8)) & 1)
    expected = np.mean(signs @ sums >= sums.sum() - 1e-12)
    p = statistics.p_of_signs(values, Resamples.leave_one_out(groups))
    assert p == expected
    wider = statistics.p_of_signs(values, Resamples.leave_one_out(groups, widening=2**0.5))
    assert wider > p
    assert np.isnan(statistics.p_of_signs(values, Resamples.leave_one_out(groups // 2)))
    a, b, z = rng.normal(size=(3, 50))
    (r, of_a, of_b) = (stats.spearmanr(*pair)[0] for pair in ((a, b), (a, z), (b, z)))
    partial = (r - of_a * of_b) / np.sqrt((1 - of_a**2) * (1 - of_b**2))
    assert statistics.partial_rank_correlation(a, b, [z]) == pytest.approx(partial, abs=1e-12)
    values = np.array([3.0, 1.0, 1.0, 8.0])
    ranks = stats.norm.ppf((stats.rankdata(values) - 0.5) / 4)
    assert np.abs(statistics.normal_scores(values, values) - ranks).max() < 1e-12


def test_the_partial_rank_correlation_equals_that_of_statsmodels():
    models = pytest.importorskip("statsmodels.api")
    a, b, *others = np.random.default_rng(0).normal(size=(5, 80))
    b = b + a + others[0] ** 3
    ranks = [stats.rankdata(one) for one in (a, b, *others)]
    fit = models.OLS(ranks[1], models.add_constant(np.column_stack([ranks[0], *ranks[2:]]))).fit()
    expected = fit.tvalues[1] / np.sqrt(fit.tvalues[1] ** 2 + fit.df_resid)
    assert abs(statistics.partial_rank_correlation(a, b, others) - expected) < 1e-10


@pytest.mark.parametrize("split", [None, {"folds": 3}])
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_a_call_of_probe_shows_what_the_probe_adds(tmp_path, kind, split):
    X, y, columns, groups = data(2.0, kind=kind)
    settings = SETTINGS
    if kind == "numbers":
        settings = {"kinds": [{"kind": "ridge_regression"}], "description": False, "folds": 3}
    options = {"groups": groups, "probe": settings, "split": split, "out": tmp_path}
    options |= {"confounds": pd.DataFrame(columns), "progress": False}
    result = probekit.probe({"layer_0": X}, y, **options)
    assert set(result.left) == set(PAGE_TABLES["left.csv"])
    row = result.left.iloc[0]
    assert (row["confounds"], row["n_test"]) == ("z", 300 if split else 75)
    assert row["p"] < 0.05
    assert row["joint_score"] > row["known_score"] > 0.5
    for name in ("known_score", "joint_score"):
        assert row[f"{name}_low"] < row[name] < row[f"{name}_high"] <= 1
    assert (kind == "numbers") == np.isnan(row["gain"]) != np.isnan(row["partial"])
    page = result.report.read_text()
    assert "Beyond z, activations predict the label" in page
    assert "of the confounds, alone and with activations" in page
    # The column u explains the rest.
    u = {"u": X[:, 2]}
    options |= {"confounds": columns | u, "page": False}
    less = probekit.probe({"layer_0": X}, y, **options).left.iloc[0]
    assert less["known_score"] > row["known_score"]
    assert less["p"] > row["p"]


def test_a_run_reads_the_length_and_columns_of_the_data(own, capsys):
    own.rows["n"] = own.rows["text"].str.len() % 3
    own.rows["verb"] = own.rows["text"].str.split().str[-1]
    own.rows.to_csv(own.folder / "rows.csv", index=False)
    result = own.run(*QUICK, "probe.description=false", "confounds=[length, n, verb]")
    row = result.left.iloc[0]
    assert row["confounds"] == "length, n and verb"
    assert row["known"] == "length in characters, length in words, n, verb (4 values)"
    assert row["joint_score"] > row["known_score"] > 0.7  # of the colour
    assert "Beyond length, n and verb" in result.report.read_text()
    show_results(result)  # as `probekit run` prints them
    out = capsys.readouterr().out
    assert re.search(r"\nBeyond length, n and verb\n *AUROC of the columns", out)
    options = "probe.description=false", "probe.baselines=[output]", "confounds=[n, output]"
    row = own.run(*QUICK, *options).left
    assert row["confounds"].iloc[0] == "n and the network's own confidence"
    assert "next log probability" in row["known"].iloc[0]


def test_matched_weights_make_the_strata_uninformative():
    rng = np.random.default_rng(0)
    source, other = rng.integers(3, size=(2, 500))
    y = (rng.random(500) < np.array([0.2, 0.5, 0.9])[source]).astype(int)
    strata = Known({}, {"source": source, "other": other}).strata
    weights = statistics.matched_weights(y, strata)
    assert roc_auc_score(y, source) > 0.7
    for one in (source, other, source + 3 * other):
        assert roc_auc_score(y, one, sample_weight=weights) == pytest.approx(0.5, abs=1e-12)
    assert np.bincount(3 * source + other, weights=weights).min() > 1  # rows are kept


def test_a_probe_that_reads_only_a_category_has_a_matched_auroc_near_half(tmp_path):
    rng = np.random.default_rng(0)
    source, groups = np.tile(["a", "b"], 150), np.arange(300) // 5
    y = (rng.random(300) < np.where(source == "a", 0.85, 0.15)).astype(int)
    X = rng.normal(size=(300, 8)) + 3 * (source == "a")[:, None]
    options = {"groups": groups, "probe": SETTINGS, "split": {"folds": 3}, "progress": False}
    options["confounds"] = {"source": source}
    result = probekit.probe({"layer_0": X}, y, out=tmp_path, **options)
    row = result.left.iloc[0]
    assert row["known_score"] > 0.7
    assert abs(row["matched_score"] - 0.5) < 0.12
    assert row["p"] > 0.05
    assert row["n_effective"] < row["n_matched"] == row["n_test"] == 300
    assert abs(row["within"] - 0.5) < 0.12
    assert row["p_within"] > 0.05
    page = result.report.read_text()
    assert "300 of 300 rows have a weight" in page
    assert (
        f"Within each value of source, the AUROC of the selected probe is {row['within']:.2f}"
        in page
    )


def test_p_within_strata_equals_its_definition():
    rng = np.random.default_rng(0)
    groups, strata = np.arange(60) // 6, rng.integers(2, size=60)
    y = np.where(groups < 5, groups % 2, rng.integers(2, size=60))  # some groups have one label
    scores = rng.normal(size=60) + y + strata
    pair = np.stack([0 * scores, scores], axis=1)
    found = statistics.p_within(RowScores(pair, np.eye(2)[y]), groups, strata)
    sums = np.zeros(10)
    one_label = [
        np.ptp(y[(groups == g) & (strata == s)]) == 0 for g, s in zip(groups, strata, strict=True)
    ]
    for row in range(60):
        unit = (groups == groups[row]) & (strata == strata[row])
        if one_label[row]:
            unit = np.array(one_label) & (strata == strata[row])
        centred = scores[row] - scores[unit].mean(), y[row] - y[unit].mean()
        sums[groups[row]] += centred[0] * centred[1]
    t = stats.ttest_1samp(sums, 0, alternative="greater")
    # The sums have mean 0 without an association, so that their squares are not centred.
    size = sums.sum() / np.sqrt(np.square(sums).sum())
    assert found == pytest.approx(stats.t.sf(size, 9), abs=1e-12)
    assert t.pvalue < found < 0.05
    wider = statistics.p_within(RowScores(pair, np.eye(2)[y]), groups, strata, 2**0.5)
    assert wider == pytest.approx(stats.t.sf(size / 2**0.5, 9), abs=1e-12)
    assert np.isnan(statistics.p_within(RowScores(pair, np.eye(2)[strata]), groups, strata))


def test_p_within_strata_rejects_rarely_where_a_stratum_explains_the_label():
    p = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        groups, own = np.arange(240) // 6, rng.integers(3, size=40)[np.arange(240) // 6]
        strata = np.where(rng.random(240) < 0.3, own, rng.integers(3, size=240))
        y = (rng.random(40)[groups] < np.array([0.2, 0.5, 0.8])[own]).astype(int)
        scores = 1.5 * strata + rng.normal(size=40)[groups] + rng.normal(size=240)
        scores = np.stack([0 * scores, rankdata(scores)], axis=1)
        p.append(statistics.p_within(RowScores(scores, np.eye(2)[y]), groups, strata))
    assert 0 < np.sum(np.array(p) < 0.05) <= 10  # more in 1 % of simulations at 5 %


@pytest.mark.parametrize(
    ("confounds", "error", "message"),
    [
        ({"a": ["x"] * 9 + [""]}, DataError, "row 9: `a` is empty"),
        ({"a": [f"v{n}" for n in range(10)]}, DataError, "10 values in 10 groups"),
        ({"a": ["x", "y"] * 5}, DataError, "Every group has one `a` and one label, and no `a` has"),
        ({"a": [1, 2] * 5}, DataError, "Every group has one `a` and one label, and no `a` has"),
        ({"a": [0.5] * 9 + [np.inf]}, DataError, "row 9: `a` is inf. Fill in a finite"),
        ({"1": [0] * 10, 1: [0] * 10}, ConfigError, "two columns of one name"),
        (pd.DataFrame(np.eye(10)[:, :2], columns=["a", "a"]), ConfigError, "two columns of one"),
        ([[1] * 10], ConfigError, "confounds is of type list"),
        ({"output": [1] * 9}, DataError, "has 9 entries"),
        ({"length": [1, 2]}, DataError, "has 2 entries, but labels has 10"),
        ({"a": [1] * 10, "label": [1] * 10}, ConfigError, "`label` is the column of the label"),
    ],
)
def test_confounds_that_cannot_be_used_are_refused(confounds, error, message, tmp_path):
    X, y = np.random.default_rng(0).normal(size=(10, 3)), np.tile([0, 1], 5)
    with pytest.raises(error, match=message):
        probekit.probe({"a": X}, y, confounds=confounds, out=tmp_path, progress=False)


def test_numbers_of_the_output_need_passes_of_the_network(own):
    experiment = own.load(*QUICK, "probe.baselines=[output]")
    dataset = prepare(experiment).design.dataset
    check_rows(["output"], experiment, dataset, has_texts=True)
    capture = experiment.capture.model_copy(update={"requests": Path("files")})
    served = experiment.model_copy(update={"capture": capture})
    with pytest.raises(ConfigError, match="`output` needs passes of the network"):
        check_rows(["output"], served, dataset, has_texts=True)


def test_unknown_columns_and_sources_are_refused(own):
    with pytest.raises(UnknownNameError, match=r"confounds: No column 'lenght'\. Nearest: length"):
        own.run(*QUICK, "confounds=[lenght]")
    with pytest.raises(ConfigError, match=r"`output` needs `output` in `probe\.baselines`"):
        own.run(*QUICK, "confounds=[output]")
    with pytest.raises(ConfigError, match="`group` is left out whole"):
        own.load("confounds=[group]", "split.leave_out=group", "data.columns.group=null")
