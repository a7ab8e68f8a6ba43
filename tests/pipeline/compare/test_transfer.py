"""Transfer between data sets: the diagonal equals the run, and leaks are reported."""

import json
import weakref
from itertools import product

import numpy as np
import pandas as pd
import pytest

from probekit import lazy_rows
from probekit.errors import ConfigError
from probekit.experiment.loader import load_experiment
from probekit.pipeline.compare.transfer import transfer
from probekit.pipeline.engines import network
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.experiment.run import run
from probekit.probes.score.metric_table import METRICS
from probekit.probes.solve import design
from probekit.report.pages.transfer_page import cosine_map, score_map
from probekit.results.comparison import matrix
from probekit.results.table import P_VALUES, only
from tests.pipeline.texts import text_of

DEAD = f".transfer.csv.{'0' * 16}"  # the draft of a killed transfer
YAML = text_of("transfer.yaml")


LOGISTIC = "probe.kinds=[{kind: logistic}]"
FIRST = "capture.sites=[blocks.1.hook_resid_post]"


def write_set(folder, name, rows, yaml=YAML):
    rows.to_csv(folder / f"{name}.csv", index=False)
    (folder / f"{name}.yaml").write_text(yaml.replace("NAME", name))
    return folder / f"{name}.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, repository):
    """The bundled data, split by attractor: in `other` the last noun has the opposite number."""
    folder = tmp_path_factory.mktemp("transfer")
    rows = pd.read_csv(repository / "data" / "subject_number.csv")
    for name in ("same", "other"):
        write_set(folder, name, rows[rows["attractor"] == name].iloc[::9])
    return folder


@pytest.fixture
def go(folder):
    def go(*names, overrides=(), out="out", **options):
        loaded = [load_experiment(folder / f"{name}.yaml", overrides) for name in names]
        return transfer(loaded, out=folder / out, cache_root=folder / "cache", **options)

    return go


@pytest.fixture(scope="module")
def found(folder):
    paths = [folder / f"{name}.yaml" for name in ("same", "other")]
    (folder / "first").mkdir()
    (folder / "first" / DEAD).touch()
    return transfer(paths, out=folder / "first", null_draws=4, cache_root=folder / "cache")


def test_diagonal_equals_the_run(found, folder):
    for name in found.names:
        own = run(folder / f"{name}.yaml", out=folder, cache_root=folder / "cache", page=False)
        table = only(own.table, target="task", split="test")
        home = only(found.scores, train=name, test=name)
        for _, row in home.iterrows():
            there = only(table, site=row["site"], probe=row["probe"], metric=row["metric"])
            same = ["value", "ci_low", "ci_high", "n_train", "n_test", "n_groups", "seed"]
            own_values, values = there[same].iloc[0].tolist(), row[same].tolist()
            if METRICS[row["metric"]].needs == "probabilities":
                # Fits depend on the other rows of a site within the tolerance of the solver.
                assert own_values == pytest.approx(values, rel=1e-4, abs=1e-6)
            else:
                assert own_values == values
        assert only(home, metric="accuracy")["chance"].eq(0.5).all()
        assert home["difference"].eq(0).all()
        assert set(home["metric"]) == set(table["metric"]) - {"selectivity", *P_VALUES}


def test_probe_of_the_last_noun_fails_on_subjects_of_the_other_number(found):
    rows = only(found.scores, metric="accuracy", probe="logistic")
    for site in rows["site"].unique():
        scores = matrix(only(rows, site=site), found.names, "value").to_numpy()
        assert (np.diag(scores) > 0.85).all()
        assert scores[0, 1] < 0.15
        assert scores[1, 0] < 0.15
    away = rows[(rows["train"] != rows["test"]) & rows["train"].isin(found.names)]
    assert (away["difference_high"] < -0.5).all()
    cosines = found.cosines[found.cosines["train"] != found.cosines["test"]]
    assert (cosines["cosine"] < -0.5).all()
    assert (cosines["cosine"] < cosines["null_low"]).all()
    assert cosines["p"].eq(1 / 9).all()
    assert found.cosines.loc[found.cosines["train"] == found.cosines["test"], "p"].isna().all()
    assert set(cosines["space"]) == {"raw", "standardised"}


def test_cosines_are_symmetric_and_only_of_linear_probes(found):
    cosines = found.cosines
    assert set(cosines["probe"]) == {"logistic"}
    for space in ("raw", "standardised"):
        rows = only(cosines, space=space, site="blocks.1.hook_resid_post")
        table = matrix(rows, found.names, "cosine").to_numpy()
        assert np.allclose(np.diag(table), 1)
        assert np.allclose(table, table.T)
    assert cosines["null_low"].between(-0.5, cosines["null_high"], inclusive="neither").all()
    assert (cosines["null_high"] < 0.5).all()


def test_files_and_figures_are_written(found, folder):
    record = json.loads((folder / "first" / "transfer.json").read_text())
    assert record["compared_with"]["model.safetensors"] == "digests.json"
    assert not (folder / "first" / DEAD).exists()
    scores = pd.read_csv(folder / "first" / "transfer.csv")
    assert len(only(scores, metric="accuracy")) == 2 * 2 * 2 * 3
    assert len(pd.read_csv(folder / "first" / "cosines.csv")) == 2 * 2 * 4
    assert "same" in (folder / "first" / "transfer.html").read_text()
    maps = found.maps(*found.chosen)
    heat = score_map(maps["score"], found.names, "accuracy").data[0]
    assert heat.zmin == pytest.approx(min(0.5, *heat.z[0]))
    drawn = cosine_map(maps["raw"], found.names).data[0]
    assert (drawn.zmin, drawn.zmax) == (-1, 1)
    assert "with permuted labels" in drawn.hovertext[0][1]


def test_rows_in_both_data_sets_are_reported(folder, go):
    rows = pd.read_csv(folder / "same.csv")
    write_set(folder, "again", rows.assign(group=rows["group"] + " again")[::-1])
    overrides = ["split.seed=1", FIRST, "probe.kinds=[{kind: mass_mean}]"]
    found = go("same", "again", out="again", null_draws=0, overrides=overrides)
    away = found.scores[found.scores["train"] != found.scores["test"]]
    assert away["known_groups"].eq(0).all()
    trained, tested = (
        prepare(load_experiment(folder / f"{name}.yaml", ["split.seed=1"])).design
        for name in ("same", "again")
    )
    known = set(trained.texts[trained.splits[0].train])
    expected = sum(text in known for text in tested.texts[tested.splits[0].test])
    assert expected > 0
    assert only(away, train="same", test="again")["known_texts"].eq(expected).all()
    n_tested = len(tested.splits[0].test)
    left_out = (
        f"{expected} of {n_tested} test rows of again are left out of the score of same on again"
    )
    assert f"{left_out}: they repeat a text ({expected}) of its training rows." in found.notes
    n_new = n_tested - expected
    assert only(away, train="same", test="again", metric="accuracy")["n_test"].eq(n_new).all()


def test_regression_and_several_labels_are_transferred(folder, go):
    generator = np.random.default_rng(0)
    for name, sign in (("up", 1), ("down", -1)):
        sizes = ["tiny", "small", "large", "huge"]
        words = generator.choice(sizes, size=120)
        rows = {
            "text": [f"{name.title()} the {word} house" for word in words],
            "label": [str(sign * (1 + sizes.index(word))) for word in words],
            "group": generator.permutation(120) // 4,
            "word": words,
        }
        write_set(folder, name, pd.DataFrame(rows))
    overrides = [FIRST, "probe.control_draws=0"]
    of_words = [*overrides, "data.columns.label=word", LOGISTIC]
    words = go("up", "down", overrides=of_words, out="words", null_draws=2)
    assert (only(words.scores, metric="accuracy")["value"] > 0.6).all()
    assert (words.cosines["cosine"] > 0.3).all()
    overrides.append("probe.kinds=[{kind: ridge_regression}]")
    found = go("up", "down", overrides=overrides, out="numbers", null_draws=2)
    assert found.metric == "r2"
    scores = matrix(only(found.scores, metric="r2"), found.names, "value").to_numpy()
    assert (np.diag(scores) > 0.8).all()
    assert scores[0, 1] < -0.5  # the numbers are reversed
    assert (found.cosines[found.cosines["train"] != found.cosines["test"]]["cosine"] < 0).all()


def test_what_cannot_be_transferred_is_refused(folder, go, refused):
    rows = pd.read_csv(folder / "same.csv")
    more = YAML.replace("bos: false", "bos: true").replace("ds: 2", "ds: 3")
    write_set(folder, "bos", rows, more)
    write_set(folder, "sites", rows, YAML.replace("blocks.[13]", "blocks.[12]"))
    write_set(folder, "labels", rows.replace({"label": {"plural": "many"}}))
    refused(go, "same")
    for other in ("same", "bos", "sites", "labels"):
        refused(go, "same", other)
    refused(go, "same", "other", overrides=["split.folds=2"])
    shares = ["tokens.position={share: [0, 1]}", "tokens.chat=true", "data.columns.reply=text"]
    with pytest.raises(ConfigError, match="requires a single position, but there are 2"):
        go("same", "other", overrides=shares)


def test_pooled_rows_train_one_probe_and_thresholds_are_transferred(folder, go):
    rows = pd.read_csv(folder / "same.csv")
    for name in ("second", "third"):
        write_set(folder, name, rows.assign(text=f"In the {name} house, " + rows["text"]))
    overrides = [FIRST, "probe.kinds=[{kind: mass_mean}]", "probe.metric=auroc"]
    found = go("same", "second", "third", out="pooled", null_draws=0, overrides=overrides)
    assert found.pooled == ("all sets", *(f"all sets but {name}" for name in found.names))
    scores = only(found.scores, metric="auroc").set_index(["train", "test"])
    n_train = scores["n_train"].groupby(level=0).first()
    assert n_train["all sets"] == n_train[list(found.names)].sum()
    assert n_train["all sets but third"] == n_train[["same", "second"]].sum()
    assert scores.loc["all sets but third"].index.tolist() == ["third"]
    assert (scores.loc["all sets", "value"] > 0.7).all()
    assert set(found.verdicts["train"]) == set(found.names)
    heat = score_map(scores.reset_index(), found.names, "auroc", found.pooled).data[0]
    assert (np.isnan(np.array(heat.z, float)[-1]).sum(), np.array(heat.z).shape) == (2, (7, 3))
    again = np.concatenate([rows] * 8)
    for name, n in (("big", 0), ("large", 1)):
        many = pd.DataFrame(again, columns=rows.columns)
        many["text"] = [f"Note {number + n}: {text}" for number, text in enumerate(many["text"])]
        write_set(folder, name, many.assign(group=np.arange(len(many))))
    overrides[-1] = "probe.metric=tpr_at_fpr_5"
    scores = go("big", "large", out="rates", null_draws=0, overrides=overrides).scores
    for metric in ("tpr_at_fpr_5", "achieved_fpr_5"):
        assert only(scores, train="big", test="large", metric=metric)["value"].notna().all()


def test_thresholds_of_a_monitor_are_those_of_the_run_and_are_tested_on_every_set(go, folder):
    nouns = ("wizard", "captain", "candle", "basket", "pencil", "mirror", "blanket", "ladder")
    rows = pd.DataFrame({"text": [f"The {a} near the {b}" for a, b in product(nouns, nouns)]})
    rows.assign(group=rows.index).to_csv(folder / "negatives.csv", index=False)
    monitor = "monitor={negatives: negatives.csv, fpr: [0.05, 0.2]}"
    changes = (LOGISTIC, FIRST, "data.positive=plural", monitor)
    found = go("same", "other", overrides=changes, out="monitored", null_draws=0)
    table = pd.read_csv(folder / "monitored" / "monitor.csv")
    assert len(table) == len(found.monitors) == 2 * 2 * 2
    assert "Thresholds of the monitor" in (folder / "monitored" / "transfer.html").read_text()
    for name in found.names:
        experiment = load_experiment(folder / f"{name}.yaml", changes)
        own = run(experiment, out=folder, cache_root=folder / "cache", page=False).monitor
        home = only(table, train=name, test=name).reset_index(drop=True)
        pd.testing.assert_frame_equal(home[list(own)], own, check_dtype=False)
        away = table[(table["train"] == name) & (table["test"] != name)]
        same = ["fpr", "threshold", "fpr_bound", "false_positives"]
        assert away[same].to_numpy().tolist() == home[same].to_numpy().tolist()
    # The probe of the last noun misses plural subjects before a singular noun.
    shares = only(found.monitors, train="same", fpr=0.2).set_index("test")["tpr"]
    assert shares["same"] > 0.5 > shares["other"]


def test_the_rows_held_at_once_do_not_grow_with_the_data_sets(folder, go, monkeypatch):
    """Also those that scale features or are tested are read in blocks, with the same scores."""
    rows, held, peaks = pd.read_csv(folder / "same.csv"), {}, []
    for name, step in {"few": 2, "more": 2, "many": 1, "most": 1}.items():
        texts = f"In the {name} house, " + rows["text"]
        write_set(folder, name, rows.assign(text=texts, group=rows.index // 2)[: len(rows) // step])
    changes = [FIRST, "probe.kinds=[{kind: mass_mean}]", "probe.control_draws=0"]
    options = {"null_draws": 0, "overrides": changes}
    loaded = go("many", "most", out="loaded", **options).scores

    def read(rows, place):
        block = getitem(rows, place)
        held[id(block)] = len(block)
        weakref.finalize(block, held.pop, id(block))
        peaks[-1] = max(peaks[-1], sum(held.values()))
        return block

    getitem = lazy_rows.LazyRows.__getitem__
    monkeypatch.setattr(lazy_rows.LazyRows, "__getitem__", read)
    monkeypatch.setattr(lazy_rows, "BLOCK_ROWS", 16)
    for module in (lazy_rows, network):
        monkeypatch.setattr(module, "LOADED_BYTES", 0)
    monkeypatch.setattr(design, "MAPPED_BYTES", 0)
    for names in (("few", "more"), ("many", "most")):
        peaks.append(0)
        found = go(*names, out="blocks", **options).scores
    assert peaks[0] == peaks[1] <= 4 * 16
    pd.testing.assert_frame_equal(found, loaded, rtol=1e-9)
