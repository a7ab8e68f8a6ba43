"""Columns that an experiment does not use: how they are read and tested, and runs that warn."""

import json
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata

import probekit
from probekit.chosen.unasked import columns as reading
from probekit.chosen.unasked import statistics
from probekit.chosen.unasked.columns import further_columns
from probekit.chosen.unasked.measure import further_findings, identity
from probekit.errors import DataError
from probekit.experiment.schema import Experiment
from probekit.pipeline.engines.table import prepare
from probekit.results.table import PAGE_TABLES
from tests.pipeline.planted import QUICK

SETTINGS = {"description": False, "control_draws": 0, "C": [0.01, 0.1], "folds": 3}


def test_p_is_the_share_of_signs_with_as_large_a_sum():
    rng = np.random.default_rng(0)
    groups, y = np.arange(40) // 5, rng.integers(3, size=40)
    number, kind = rng.normal(size=40), rng.choice(["a", "b", "c"], size=40)
    number[3] = np.nan
    features = {
        "number": [np.where(np.isnan(number), 0, rankdata(number, nan_policy="omit") - 20)],
        "kind": [kind == name for name in "abc"],
    }
    features["number"] += [features["number"][0] ** 2, np.isnan(number)]
    found = statistics.p_of_columns(
        {"number": number, "kind": kind}, statistics.label_columns(y), groups
    )
    for p, of_column in zip(found, features.values(), strict=True):
        sums = np.zeros((8, 9))
        for row, (feature, code) in product(range(40), product(range(3), range(3))):
            centred = of_column[feature] - np.mean(of_column[feature])
            product_of_both = centred[row] * ((y[row] == code) - np.mean(y == code))
            sums[groups[row], 3 * feature + code] += product_of_both
        signs = 1 - 2 * ((np.arange(256)[:, None] >> np.arange(8)) & 1)
        statistic = (np.square(signs @ sums) / np.square(sums).sum(axis=0)).sum(axis=1)
        assert p == np.mean(statistic >= statistic[0] - 1e-9)
    assert np.isnan(statistics.p_of_columns({"n": number}, np.eye(3)[y], groups // 2)).all()


def test_names_row_numbers_constants_and_texts_are_passed_over():
    groups = np.arange(60) // 3
    rng = np.random.default_rng(0)
    names = [
        [f"{n:x}" for n in rng.integers(1 << 40, size=60)],
        [str(7 + n) for n in range(60)],
        [str(n) for n in rng.permutation(60)],
        [str(n // 3) for n in range(60)],  # of groups
        ["1"] * 60,
        ["same"] * 60,
        [""] * 60,
        ["nan"] * 59 + ["-inf"],
        [f"the text of row {n}" for n in range(60)],
    ]
    assert [statistics.column_in(one, groups) is None for one in names] == [True] * len(names)
    number = statistics.column_in(["", *map(str, rng.normal(size=59))], groups)
    assert np.flatnonzero(np.isnan(number)).tolist() == [0]
    infinite = statistics.column_in(["inf", "nan", *["1", "2"] * 29], groups)
    assert np.flatnonzero(np.isnan(infinite)).tolist() == [0, 1]
    kinds = statistics.column_in(["a", "b", *["c"] * 29, *["d"] * 29], groups)
    assert np.unique(kinds, return_counts=True)[1].tolist() == [29, 29, 2]  # a and b are joined
    many = [f"v{n % 30}" for n in range(600)]
    many = statistics.column_in(many, np.arange(600) // 2)
    assert len(np.unique(many)) == 21  # those of the most groups, and the others together
    assert statistics.column_in(["", "x"] * 30, groups)[:2].tolist() == ["", "x"]


def test_unrelated_columns_are_rarely_warned_of_and_related_ones_nearly_always():
    warned, found = 0, 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        groups, y = np.arange(240) // 6, rng.integers(2, size=240)
        unrelated = {n: rng.normal(size=40)[groups] for n in range(4)}
        unrelated[4] = rng.integers(3, size=40)[groups].astype(str)
        related = {"number": np.abs(rng.normal(size=240)) + y}
        for columns in (unrelated, related):
            p = statistics.p_of_columns(columns, statistics.label_columns(y), groups)
            is_low = statistics.adjusted_p(p) < 0.05
            warned += is_low.any() and columns is unrelated
            found += is_low.all() and columns is related
    assert warned <= 5  # at 5 % each, more in 1.4 % of simulations
    assert found == 40
    assert statistics.auroc_alone(related["number"], y, groups) > 0.75
    numbers = related["number"] ** 3
    assert statistics.auroc_alone(related["number"], numbers, groups) > 0.95


def sourced(n_groups=60, seed=0):
    """Rows whose label follows their source, with columns of other kinds."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_groups), 5)
    source = rng.choice(["news", "forum"], size=len(groups))
    label = rng.random(len(groups)) < np.where(source == "news", 0.85, 0.15)
    frame = pd.DataFrame({"text": [f"The {one} of row {n}" for n, one in enumerate(source)]})
    frame["label"], frame["group"] = np.where(label, "yes", "no"), groups
    return frame.assign(
        source=source, options=rng.integers(2, 6, size=len(groups)), row=np.arange(len(groups))
    )


def columns_of(data=None, **section):
    """The columns that an experiment on these data does not use."""
    experiment = Experiment.from_dict({
        "name": "one", "model": {"source": "mini"}, "tokens": {"position": {"at": "last"}},
        "data": {"name": "rows", **section}, "split": {"folds": 3},
    })  # fmt: skip
    experiment = experiment if data is None else experiment.with_data(data)
    return further_columns(experiment, prepare(experiment).design)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "pandas", "polars", "list"])
def test_every_table_gives_the_same_columns(kind, tmp_path):
    frame, path = sourced().sample(frac=1, random_state=0).reset_index(drop=True), tmp_path / "rows"
    frame["nested"] = [[1, 2]] * len(frame)
    data = {"columns": {"group": "group"}}
    needed = {"polars": "polars", "parquet": "pyarrow"}
    package = pytest.importorskip(needed[kind]) if kind in needed else None
    if kind in ("pandas", "polars", "list"):
        rows = {"pandas": frame, "list": frame.to_dict("records")}
        rows |= {"polars": package.from_pandas(frame)} if kind == "polars" else {}
        found = columns_of(rows[kind], **data)
    else:
        if kind == "csv":
            frame.drop(columns="nested").to_csv(path, index=False)
        elif kind == "jsonl":
            frame.to_json(path, orient="records", lines=True)
        else:
            frame.to_parquet(path)
        found = columns_of(**data, format=kind, file=str(path))
    assert list(found.columns) == ["source", "options"]
    assert found.columns["source"].tolist() == frame["source"].tolist()
    assert found.columns["options"].tolist() == frame["options"].tolist()


def test_two_tables_and_declared_columns(tmp_path):
    frame = sourced()
    tables = {"train": frame[:200].reset_index(drop=True), "test": frame[200:]}
    experiment = Experiment.from_dict({
        "name": "one", "model": {"source": "mini"}, "tokens": {"position": {"at": "last"}},
        "data": {"name": "rows", "columns": {"group": "group"}},
    }).with_data(tables)  # fmt: skip
    source = prepare(experiment)
    found = further_columns(experiment, source.design)
    assert found.columns["source"].tolist() == frame["source"].tolist()
    (finding,) = further_findings(source)
    assert "column `source` alone predicts the label: AUROC 0." in finding.message
    declared = experiment.model_copy(update={"confounds": ("source",)})
    assert list(further_columns(declared, source.design).columns) == ["options"]
    assert identity(source) == found.digest


def test_of_large_tables_whole_groups_and_the_first_columns_are_read(monkeypatch):
    frame = sourced()
    monkeypatch.setattr(reading, "MOST_CELLS", 200)
    monkeypatch.setattr(reading, "MOST_COLUMNS", 2)
    found = columns_of(frame, columns={"group": "group"})
    assert (list(found.columns), found.n_present) == (["source", "options"], 3)
    assert len(found.examples) == 100  # 200 cells of 2 columns
    assert (np.bincount(found.groups) == 5).all()
    assert found.columns["source"].tolist() == frame["source"][found.examples].tolist()


def test_a_run_warns_of_a_column_in_the_first_clause(own):
    rng = np.random.default_rng(0)
    own.rows["tone"] = np.where(rng.random(len(own.rows)) < 0.02, "x", own.rows["label"])
    own.rows["order"] = np.arange(len(own.rows))
    own.rows.to_csv(own.folder / "rows.csv", index=False)
    source = prepare(own.load(*QUICK))
    digest, before = source.design.dataset.digest, identity(source)
    result = own.run(*QUICK, "probe.description=false", "split.folds=3")
    table = result.unasked
    assert set(PAGE_TABLES["unasked.csv"]) <= set(table)
    assert table["column"].tolist() == ["tone"]
    assert table["auroc"].item() > 0.95
    assert ", but not significantly better than the column tone" in result.answer
    texts = " ".join(result.warnings)
    assert "not significantly better than the column tone: the probe may read nothing" in texts
    assert "column `tone` alone predicts the label: AUROC " in texts
    page = result.report.read_text()
    assert "Columns of the data" in page
    assert "column tone" in page
    # The other columns are no part of the data, but of what the results depend on.
    own.rows.assign(tone="same").to_csv(own.folder / "rows.csv", index=False)
    changed = prepare(own.load(*QUICK))
    assert (
        changed.design.dataset.digest
        == digest
        == json.loads((result.folder / "run.json").read_text())["digests"]["dataset"]
    )
    assert identity(changed) != before


def test_activations_of_a_file_and_of_a_call_have_columns_too(tmp_path):
    frame = sourced()
    X = np.random.default_rng(0).normal(size=(len(frame), 8))
    X[:, 0] += 2 * (frame["label"] == "yes")
    options = {"groups": frame["group"], "split": {"folds": 3}, "probe": SETTINGS}
    options |= {"out": tmp_path, "progress": False, "page": False}
    further = frame[["source", "options", "row"]]
    result = probekit.probe({"a": X}, frame["label"], columns=further, **options)
    table = pd.read_csv(result.folder / "unasked.csv").set_index("column")
    assert table["is_warned"].to_dict() == {"source": True, "options": False}
    assert table["metric"]["source"] == result.best.metric
    assert table["value_a"]["source"] == pytest.approx(result.best.value, abs=1e-12)
    probe, column = result.best.value, table["value_b"]["source"]
    assert table["difference"]["source"] == pytest.approx(probe - column, abs=1e-12)
    declared = {"confounds": frame[["source"]], "columns": further}
    result = probekit.probe({"a": X}, frame["label"], **declared, **options)
    assert pd.read_csv(result.folder / "unasked.csv")["column"].tolist() == ["options"]
    assert not any("`source`" in one for one in result.warnings)
    with pytest.raises(DataError, match="columns has 3 entries, but labels has 300"):
        probekit.probe({"a": X}, frame["label"], columns=further[:3], **options)
    np.save(tmp_path / "a.npy", X)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    data = {"name": "d", "format": "csv", "file": str(tmp_path / "rows.csv")}
    given = {"name": "g", "activations": {"folder": str(tmp_path)}, "probe": SETTINGS}
    given |= {"data": data | {"columns": {"group": "group"}}, "split": {"folds": 3}}
    report = probekit.validate(given)
    assert [one.code for one in report.findings if one.level == "warning"] == [
        "left-out",
        "unasked",
    ]
