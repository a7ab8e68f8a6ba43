"""Monitors: thresholds of the chosen probe on other negatives, which the saved probe carries."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from probekit.chosen.monitor.measure import MONITOR, fixed_threshold
from probekit.errors import ConfigError
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.experiment.validate import validate
from probekit.pipeline.look.apply import apply_probe, check_saved_probe
from probekit.probes.saved_probe import SavedProbe
from probekit.report.pages.run_page import run_figures
from probekit.results.scores import Scores
from probekit.results.table import PAGE_TABLES
from tests.pipeline.planted import NOUNS, QUICK

RATES = (0.05, 0.1)
_VERBS = "sank rose fell shone grew lasted stayed broke burned changed vanished became"
OTHER_VERBS = _VERBS.split()


def monitor(colour, **others):
    """Overrides of a monitor of red texts, or of black ones, with negatives of the other colour."""
    settings = {"negatives": f"{colour}.csv", "fpr": list(RATES)} | others
    positive = {"red": "black", "black": "red"}[colour]
    return (*QUICK, "probe.description=false", f"data.positive={positive}", f"monitor={settings}")


def negatives(colour):
    """Two rows in each of 72 groups. No text is among the data."""
    texts = [f"The {colour} {noun} {verb}" for noun, verb in product(NOUNS, OTHER_VERBS)]
    return pd.DataFrame({"text": texts, "group": np.arange(len(texts)) // 2})


@pytest.fixture(scope="module", params=["black", "red", "black texts", "red texts"])
def monitored(request, planted):
    """Runs with a probe of rows, or an aggregated probe, which scores whole texts."""
    colour, *of_texts = request.param.split()
    negatives(colour).to_csv(planted.folder / f"{colour}.csv", index=False)
    rules = ("probe.aggregate=[mean, max]", "tokens.position={at: all}") * len(of_texts)
    return planted.run(*monitor(colour), *rules), colour


def test_thresholds_are_those_of_the_chosen_probe_on_the_negatives(monitored, planted):
    result, colour = monitored
    table, chosen = pd.read_csv(result.folder / "monitor.csv"), Scores.of(result.table).chosen
    assert set(table) == set(PAGE_TABLES["monitor.csv"])
    check_saved_probe(result.folder / MONITOR)
    probe = SavedProbe.load(result.folder / MONITOR)
    assert probe.facts.sites == (chosen["site"],)
    sign = 1 if probe.facts.positive == probe.classes[1] else -1
    assert probe.facts.positive != colour
    rows = negatives(colour)
    scores = np.array([one.answer.score for one in apply_probe(probe, rows["text"].tolist())])
    test_rows = planted.rows.iloc[prepare(planted.load(*QUICK)).design.splits[0].test]
    for fpr, row in zip(RATES, table.to_dict("records"), strict=True):
        threshold, bound = fixed_threshold(sign * scores, rows["group"], fpr)
        assert [row["threshold"], row["fpr_bound"]] == pytest.approx([threshold, bound], abs=1e-5)
        assert (row["fpr"], row["n_negatives"], row["n_groups"]) == (fpr, 144, 72)
        found = apply_probe(probe, rows["text"].tolist(), threshold=fpr)
        shown = found.table
        assert (shown["alarm"] == (shown["alarm_score"] > shown["threshold"])).all()
        assert shown["alarm_score"].to_numpy() == pytest.approx(sign * scores, abs=1e-4)
        assert "alarm_score" in repr(found)
        n_alarms = sum(one.answer.alarm for one in found)
        assert abs(n_alarms - row["false_positives"]) <= 1  # the row at the threshold may flip
        tested = apply_probe(probe, test_rows["text"].tolist(), threshold=fpr)
        raised = pd.Series([one.answer.alarm for one in tested], index=test_rows.index)
        is_positive = test_rows["label"] == probe.facts.positive
        assert raised[is_positive].mean() == pytest.approx(row["tpr"])
        assert raised[~is_positive].mean() == pytest.approx(row["test_fpr"])
        assert row["tpr_low"] <= row["tpr"] <= row["tpr_high"]
    assert table["tpr"].max() > 0.5
    own = result.negatives
    assert [(own["score"] > at).sum() for at in table["threshold"]] == [*table["false_positives"]]
    if "guess" in result.predictions:  # the page has the points of the thresholds on the curve
        curve, histogram = (
            result.figure(name) for name in ("ROC and precision-recall", "Scores by label")
        )
        marked = [one for one in curve.data if "markers" in one.mode]
        points = [(*one.x, *one.y) for one in marked]
        for row in table.to_dict("records"):
            assert any(at == pytest.approx((row["test_fpr"], row["tpr"])) for at in points)
        assert {line.x0 for line in histogram.layout.shapes} == {0, *table["threshold"]}
        assert any("negatives" in one.name for one in histogram.data)
        titles = [part.title for part in run_figures(result.folder)]
        assert titles.index("Scores by label") == 0  # on the first screen
        assert titles.count("Scores by label") == 1
    saved = [one.model_dump() for one in probe.facts.thresholds]
    assert pd.DataFrame(saved).equals(table[list(saved[0])])

    assert result.monitor["fpr"].tolist() == list(RATES)
    page = result.report.read_text()
    assert "Thresholds of the monitor" in page
    assert "of 144 in 72 groups" in page
    assert planted.run(*QUICK).monitor is None


def test_a_rate_without_a_threshold_is_refused_before_the_model_is_loaded(monitored, probe):
    saved = SavedProbe.load(monitored[0].folder / MONITOR)
    with pytest.raises(ConfigError, match=r"rate of 0\.01\. It has 0\.05, 0\.1\."):
        apply_probe(saved, "The red house", model="none", threshold=0.01)
    with pytest.raises(ConfigError, match="section `monitor`"):
        apply_probe(probe, "The red house", threshold=0.05)


def negatives_of(own):
    """The negatives that a run reads."""
    return prepare(own.load(*monitor("black"))).further["negatives"].dataset


def test_negatives_that_are_among_the_data_are_left_out_and_groups_that_look_alike_reported(own):
    alike = negatives("black").astype({"group": str})
    alike.loc[[0, 1], "group"] = ["n0", "N0 "]
    rows = pd.concat([alike, own.rows[own.rows["label"] == "black"]])
    rows.to_csv(own.folder / "black.csv", index=False)
    found = {one.code: one.message for one in validate(own.load(*monitor("black"))).findings}
    left_out = "48 of 192 negatives are not used: 48 because their text or group is among the data"
    assert left_out in found["negatives"]
    assert "'N0 '" in found["similar-groups"]
    assert negatives_of(own).column("text").tolist() == negatives("black")["text"].tolist()


def test_a_negative_may_be_a_word_that_means_no_value(own):
    word = pd.DataFrame({"text": ["NaN"], "group": [1000]})
    pd.concat([negatives("black"), word]).to_csv(own.folder / "black.csv", index=False)
    assert negatives_of(own).column("text").tolist()[-1] == "NaN"


def in_accents(texts):
    """Texts with their last letter in another encoding: full width."""
    return texts.str[:-1] + texts.str[-1].map(lambda one: chr(ord(one) + 0xFEE0))


@pytest.mark.parametrize(
    "changed", [lambda one: one + " ", lambda one: one.str.upper(), in_accents]
)
def test_negatives_that_look_like_earlier_ones_or_like_data_are_left_out(own, changed):
    known = own.rows[own.rows["label"] == "black"].assign(group=lambda one: "new" + one["group"])
    for repeated in (negatives("black"), known):
        copied = repeated.assign(text=changed(repeated["text"]))
        pd.concat([negatives("black"), copied]).to_csv(own.folder / "black.csv", index=False)
        assert negatives_of(own).column("text").tolist() == negatives("black")["text"].tolist()


def test_too_few_groups_and_no_class_to_detect_are_refused_before_the_run(own):
    negatives("black").to_csv(own.folder / "black.csv", index=False)
    report = validate(own.load(*monitor("black", fpr=[0.01])))
    assert not report.ok
    assert "needs at least 299 groups of negatives" in report.findings[0].message
    own.rows.assign(group=1).to_csv(own.folder / "black.csv", index=False)
    assert "are among the data" in validate(own.load(*monitor("black"))).findings[0].message
    labels = own.rows["label"].where(own.rows.index % 3 > 0, "other")
    own.rows.assign(label=labels).to_csv(own.folder / "rows.csv", index=False)
    with pytest.raises(ConfigError, match=r"data\.positive"):
        prepare(own.load(*monitor("black"), "data.positive=null"))
