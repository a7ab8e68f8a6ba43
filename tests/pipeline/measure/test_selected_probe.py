"""Files of the selected probe: projections, cosines, the worst errors, and metadata."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from probekit.chosen.directions import measure as directions
from probekit.chosen.errors import measure as errors
from probekit.model.families.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.state_dict import digest_weights
from probekit.pipeline.compare.compare import FinishedRun
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Predictor
from probekit.provenance import pretty_json
from probekit.report.figures.layer_curve import layer_curve
from probekit.results.scores import site_with_head
from probekit.results.table import load_table, only
from tests.pipeline.planted import FAST, MIXED, QUICK, QUICK_SITES
from tests.pipeline.scale import Heard


# All rows are one word; there is a word for each label; there are the same words under each label.
@pytest.mark.parametrize(("index", "methods"), [(0, set()), (1, {"PCA"}), (2, {"PCA"})])
def test_projections_are_omitted_if_labels_cannot_be_separated(planted, index, methods):
    place = f"tokens.position={{at: index, index: {index}}}"
    folder = planted.run(place, "capture.sites=[hook_embed]", *FAST, page=False).folder
    path = folder / "scatter.csv"
    assert methods == (set(pd.read_csv(path)["method"]) if path.exists() else set())


def test_cosines_of_sites_have_a_null_distribution_of_permuted_labels(planted):
    sites, heard = "capture.sites=[blocks.2.hook_resid_post, blocks.3.hook_resid_post]", Heard()
    folder = planted.run(sites, *FAST, "data.columns.group=null", watcher=heard, page=False).folder
    assert heard.steps[-2:] == [("probes of permuted labels", n, 2) for n in (1, 2)]
    cosines = pd.read_csv(folder / "cosines.csv")
    once = directions.NULL_DRAWS
    assert cosines["n_null"].tolist() == [once, 2 * once, 2 * once, once]
    assert cosines["null_high"].between(0.02, 0.98).all()
    assert cosines["null_high"][1] == cosines["null_high"][2]
    # A direction has a certainty where the probe is better than chance.
    tested = only(load_table(folder / "results.csv"), metric="p_holm", target="task")
    p = tested.set_index("site")["value"]
    own = cosines[cosines["site_a"] == cosines["site_b"]].set_index("site_a")
    assert np.allclose(own["cosine"], 1)
    assert (cosines["cosine"].abs() < 1.001).all()
    assert own["half_cosine"].notna().all()
    assert own["certainty"].notna().to_dict() == {site: p[site] < 0.05 for site in own.index}
    assert 0 < own["certainty"].notna().sum() <= len(own)


@pytest.fixture(
    scope="module", params=["split.folds=null", "split.folds=3"], ids=["single", "nested"]
)
def finished(request, planted):
    """A run on random labels, so that every probe has errors."""
    sites = "capture.sites=[blocks.0.hook_resid_post, 'blocks.2.attn.hook_z[head=1]']"
    kinds = "probe.kinds=[{kind: logistic}, {kind: mass_mean}]"
    return planted.run(MIXED, request.param, sites, kinds, *FAST, page=False).folder


def test_errors_of_separate_groups_are_stored_with_their_tokens(finished):
    examples = json.loads((finished / "wrong.json").read_text())["examples"]
    assert examples
    is_nested = load_table(finished / "results.csv")["target"].eq("chosen").any()
    for example in examples:
        assert example["text"][slice(*example["probed"])].strip() == example["text"].split()[-1]
        # Several probes made the errors of a nested run; none predicts at all tokens.
        assert bool(example["tokens"]) is not is_nested
        if is_nested:
            continue
        shown = [example["text"][slice(*token["span"])].strip() for token in example["tokens"]]
        assert shown == [token["token"].strip() for token in example["tokens"]]
        assert " ".join(filter(None, shown)).startswith("The ")
        assert example["guess"] != example["label"]
    ahead = [example["ahead"] for example in examples]
    assert ahead == sorted(ahead, reverse=True)
    assert len({example["group"] for example in examples}) == len(examples)


def test_projections_show_held_out_rows_only(finished):
    points = pd.read_csv(finished / "scatter.csv")
    held_out = only(load_table(finished / "results.csv"), split="test")["n_test"].max()
    # Under folds those of the first of three.
    n_shown = points["method"].eq("PCA").sum()
    assert n_shown == held_out if held_out < 96 else 0 < n_shown < held_out / 2
    axes = points.groupby("method")[["axis_x", "axis_y"]].first()
    assert list(axes.loc["LDA"]) == ["discriminant 1", "component 1 of PCA"]
    assert axes.loc["PCA", "axis_x"].startswith("component 1 (")


def test_errors_are_those_of_the_stored_predictions(finished):
    stored = FinishedRun(finished)
    confusion, verdict = pd.read_csv(finished / "confusion.csv"), stored.record.verdict
    right = confusion.loc[confusion["truth"] == confusion["guess"], "n"].sum()
    assert right / confusion["n"].sum() == pytest.approx(verdict.score.value)
    wrong = json.loads((finished / "wrong.json").read_text())
    assert len(wrong["probes"]) == 4
    curve = layer_curve(stored.scores, "accuracy")
    points = {name for trace in curve.data for name in trace.customdata or ()}
    assert points == {one["name"] for one in wrong["probes"]}
    groups = stored.test_rows["group"].to_numpy(dtype=str)
    for one in wrong["probes"]:
        site = site_with_head(one["site"], one["head"])
        own = stored.predictions(site, one["position"])[Predictor(one["probe"], "task")]
        is_wrong = own.guess != own.truth
        assert (one["n_wrong"], one["n_rows"]) == (is_wrong.sum(), len(own.guess))
        rows = np.arange(len(own.guess))
        margin = own.scores[rows, own.guess] - own.scores[rows, own.truth]
        best = pd.Series(margin[is_wrong]).groupby(groups[is_wrong]).max()
        best = best.sort_values(ascending=False).head(errors.MOST_OF_A_PROBE)
        assert [error["ahead"] for error in one["errors"]] == pytest.approx(list(best), abs=1e-3)
        for error in one["errors"]:
            row = wrong["rows"][error["row"]]
            assert row["label"] != error["guess"]
            assert row["text"][slice(*error["probed"])].strip() == row["text"].split()[-1]
            labels = np.array(stored.classes)[own.truth[(groups == row["group"]) & is_wrong]]
            assert row["label"] in labels
            assert row["text"].startswith("The ")
            line = int(row["where"].removeprefix("line "))
            assert (finished.parents[2] / "mixed.csv").read_text().split("\n")[line - 1] == (
                f"{row['text']},{row['label']},{row['group']}"
            )


@pytest.mark.parametrize(("at", "ends"), [(0, ("word", "…")), (500, "……"), (996, ("…", "word"))])
def test_long_texts_are_cut_around_the_span(at, ends):
    for text, span, (start, end) in (
        (f"{'x' * at}word{'x' * (996 - at)}", (at, at + 4), ends),
        ("x" * 1000, None, "…x"),
    ):
        cut, moved, _ = errors.excerpt(text, span)
        assert errors.MOST_CHARACTERS < len(cut) <= errors.MOST_CHARACTERS + 2
        assert cut.startswith(start)
        assert cut.endswith(end)
        assert span is None or cut[slice(*moved)] == "word"


def test_a_label_that_a_probe_was_not_fitted_on_has_no_margin_and_comes_first():
    scores = np.array([[0.0, 3.0, -np.inf], [0.0, 1.0, -np.inf], [0.5, 2.0, -np.inf]])
    truth, guess = np.array([0, 2, 0]), np.array([1, 1, 1])
    data = SimpleNamespace(groups=np.array(["a", "b", "c"]))
    chosen = SimpleNamespace(prober=SimpleNamespace(test_rows=np.arange(3), data=data))
    worst = errors.worst_errors(chosen, ClassPredictions(truth, guess, 3, scores), 3)
    assert list(worst.items()) == [(1, None), (0, 3.0), (2, 1.5)]
    assert "null" in pretty_json(worst)


def test_metadata_describes_the_run(planted, probe, snapshot):
    facts, result = probe.facts, planted.run(*QUICK)
    stored = {"sites", "position", "bos", "model", "compute", "dtype", "view"}
    stored |= {"n_heads", "layer_norm_epsilon", "hyperparameters"}
    assert facts.model_dump(include=stored) == snapshot
    assert facts.cache == Path(result.record["caches"]["task"]).name
    assert facts.weights == digest_weights(GPT2.from_pretrained("mini"))
    assert facts.tokenizer == Tokenizer.from_pretrained("mini").digest
    assert facts.versions["torch"]


def test_metrics_are_of_the_task_on_test_rows(planted, probe):
    table = planted.run(*QUICK).table
    rows = only(table, site=QUICK_SITES[1], target="task", split="test").set_index("metric")
    tested = rows[~rows.index.str.startswith("p_")]
    assert probe.facts.metrics.keys() == set(tested.index) >= {"accuracy", "auroc"}
    for name, score in probe.facts.metrics.items():
        row = tested.loc[name]
        assert (score.value, score.chance) == (row["value"], row["chance"])
        assert (score.ci_low, score.ci_high) == (row["ci_low"], row["ci_high"])
        assert (score.n, score.n_groups) == (row["n_test"], row["n_groups"])
