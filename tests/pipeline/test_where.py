"""Complete runs over heads, views, positions and kinds of probe give consistent scores."""

import numpy as np
import pandas as pd
import pytest

from probekit.activations.store import ActivationStore
from probekit.errors import ConfigError
from probekit.pipeline.compare.compare import compare
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.experiment.run import run
from probekit.pipeline.look.apply import apply_probe, caution, choose_per
from probekit.pipeline.measure.probing import make_probers
from probekit.probes.prober import Prober
from probekit.probes.saved_probe import SavedProbe
from probekit.results.scores import Scores, site_with_head
from probekit.results.table import load_table, only
from tests.pipeline.planted import NOUNS
from tests.pipeline.texts import text_of

SITE = "capture.sites=[blocks.2.hook_resid_post]"
COLUMNS = "data.columns={group: group, start: start, end: end}"
FEW = ("probe={folds: 2, control_draws: 1, C: [0.1]}", "attention.texts=[]")
KIND = text_of("overrides_kinds.txt").splitlines()
EVERY_TOKEN = "tokens.position={at: all}"
SENTENCE = text_of("sentence.conllu")
TREES = text_of("overrides_trees.txt").splitlines()


@pytest.fixture
def experiment(own, tmp_path):
    rows = [
        {"text": f"{start} {colour} {noun} {verb} {end}", "label": colour, "group": noun}
        | {"start": len(f"{start} {colour} "), "end": len(f"{start} {colour} {noun}")}
        for noun in NOUNS[:10]
        for start, verb, end in (("The", "was", "old"), ("My", "is", "new"))
        for colour in ("red", "black")
    ]
    bare = {"text": "house", "label": "red", "group": "house", "start": 0, "end": 5}
    rows.insert(1, bare)  # it has no neighbouring token
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    common = ("model.random_weights=false", COLUMNS, "tokens.position.at=word", SITE, *FEW)
    return lambda *overrides: own.load(*common, *overrides)


@pytest.fixture
def load(own):
    """A function that writes other rows and loads the experiment on them."""

    def load(rows, *overrides):
        pd.DataFrame(rows).to_csv(own.folder / "rows.csv", index=False)
        sentences = [SENTENCE.format(n=n, noun=NOUNS[n % 10]) for n in range(20)]
        (own.folder / "trees.conllu").write_text("\n".join(sentences) + "\n")
        return own.load(*KIND, *overrides)

    return load


@pytest.fixture
def go(tmp_path):
    where = {"out": tmp_path / "runs", "cache_root": tmp_path / "cache"}
    return lambda experiment, page=False: run(experiment, page=page, **where)


def numbers(table, **where):
    """Return the scores of some rows, without columns that depend on other rows.

    P-values are omitted, because they depend on the number of sites.
    """
    table = table[~table["metric"].isin(["p_value", "p_holm", "p_best"])]
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table)
    measured = ["target", "split", "metric", "value", "ci_low", "ci_high", "C", "n_test"]
    return table[measured].reset_index(drop=True)


def test_head_has_the_same_numbers_alone_and_among_all_heads(experiment, go):
    every = go(experiment("capture.sites=['blocks.[12].attn.hook_z[head=*]']"), page=True)
    assert every.table["head"].nunique() == 4
    assert "Accuracy by layer and head" in every.report.read_text()
    one = go(experiment("capture.sites=['blocks.2.attn.hook_z[head=3]']"))
    alone = one.table
    assert set(only(alone, target="task")["component"]) == {"attn.z"}
    store = ActivationStore.open(one.record["caches"]["task"])  # of the whole site
    assert store.read("blocks.2.attn.hook_z").shape == (41, 4, 64)
    among = numbers(every.table, site="blocks.2.attn.hook_z", head=3)
    pd.testing.assert_frame_equal(among, numbers(alone, head=3))


def test_folds_choose_among_the_positions_of_a_sweep(experiment, go):
    result = go(experiment("tokens.sweep=[-1, 0]", "split.folds=2"), page=True)
    table = load_table(result.results)
    chosen = {row["position"] for row in Scores.of(table).choices}
    assert chosen == {"word:last-1"}  # the word with the colour
    headline = Scores.of(table).headline
    assert (headline["position"], headline["value"]) == ("", 1.0)
    assert result.record["verdict"]["best"]["position"] == "word:last-1"
    # Baselines are compared at the position that each fold chose.
    words = table[(table["target"] == "word_identity") & (table["metric"] == "accuracy")]
    by_position = words.set_index("position")["value"]
    assert by_position[""] == by_position["word:last-1"] > by_position["word:last"]
    differences = pd.read_csv(result.folder / "differences.csv").set_index("b")
    assert differences.loc["word_identity", "value_b"] == by_position[""]
    assert (result.folder / "probes" / "final.json").exists()
    assert "Chosen sites: each of" in result.report.read_text()


def test_sweep_offsets_equal_runs_without_a_sweep(experiment, go, tmp_path):
    swept = go(experiment("tokens.sweep=[-1, 0, 2]"), page=True)
    assert "Accuracy by layer and position" in swept.report.read_text()
    assert swept.table["position"].unique().tolist() == ["word:last-1", "word:last", "word:last+2"]
    assert len(list((tmp_path / "cache").iterdir())) == 1
    rows = pd.read_csv(tmp_path / "rows.csv")
    rows[rows["text"] != "house"].to_csv(tmp_path / "rows.csv", index=False)
    for offset, text in {0: "word:last", -1: "word:last-1", 2: "word:last+2"}.items():
        alone = go(experiment(f"tokens.position={{at: word, offset: {offset}}}")).table
        pd.testing.assert_frame_equal(numbers(swept.table, position=text), numbers(alone))
    # The token before the span is the word itself, so that a lookup suffices.
    lookup = only(swept.table, target="word_identity", metric="accuracy").set_index("position")
    assert lookup["value"][["word:last-1", "word:last"]].tolist() == [1, 0.5]


def test_sweep_excludes_and_reports_examples_without_an_offset(
    experiment, tmp_path, snapshot, refused
):
    prepared = prepare(experiment("tokens.sweep=[0, 2]"))
    assert [len(at.types) for at in prepared.design.positions] == [40, 40]
    assert len(prepared.texts.plan.example) == 80
    assert prepared.design.dataset.notes == snapshot
    assert len(prepare(experiment()).design.labels) == 41
    rows = ["text,label,group,start,end", "The key,a,1,4,7", "key was,b,2,0,3"]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    refused(lambda: prepare(experiment("tokens.sweep=[-1, 1]")))  # none is complete


def test_sweep_rows_are_at_their_offsets(experiment):
    prepared = prepare(experiment("tokens.sweep=[1, -1]", "tokens.bos=true"))
    for number, step in enumerate((1, -1)):
        at, plan = prepared.design.positions[number], prepared.texts.plan
        for row, word in zip(range(number, 80, 2), at.types, strict=True):
            text = prepared.design.dataset.examples[plan.example[row]].text.split()
            assert plan.positions[plan.offsets[row]] == 3 + step
            assert word.strip() == text[2 + step]
        assert at.typical.all()


def test_invalid_offset_is_named(experiment, tmp_path, monkeypatch, refused):
    rows = tmp_path / "rows.csv"
    rows.write_text(rows.read_text().replace("was old", "was new"))
    swept = experiment("tokens.sweep=[0, 2]")

    def refuse(data, settings, within=()):
        if len(set(data[0].types)) == 1:  # all last words are "old" or "new"
            raise ConfigError("one word")
        return Prober(data, settings, within)

    monkeypatch.setattr("probekit.pipeline.measure.probing.Prober", refuse)
    refused(lambda: make_probers(swept, prepare(swept).design))


def test_view_is_recorded_and_shares_the_cache(experiment, go, tmp_path, monkeypatch):
    raw = go(experiment()).table
    monkeypatch.setattr(ActivationStore, "writing", None)  # a capture would call it
    seen = go(experiment("capture.view=normalized"), page=True)
    assert set(raw["view"]) - {""} == {"raw"}
    assert set(seen.table["view"]) - {""} == {"normalized"}
    assert "divided by its own standard deviation" in seen.report.read_text()
    assert not numbers(raw, target="task").equals(numbers(seen.table, target="task"))


def test_concatenated_sites_are_never_selected(experiment, go):
    sites = "capture.sites=[blocks.0.hook_resid_pre]"  # does not encode the previous word
    result = go(experiment(sites, "capture.concatenate=[['blocks.*.hook_resid_post']]"), page=True)
    joined = " + ".join(f"blocks.{layer}.hook_resid_post" for layer in range(6))
    found = numbers(result.table, split="validation", target="task")["value"]
    assert found[1] > found[0]
    assert set(result.table["site"]) == {"", "blocks.0.hook_resid_pre", joined}
    assert result.table.loc[result.table["site"] == joined, "layer"].isna().all()
    assert result.record["verdict"]["best"]["site"] == "blocks.0.hook_resid_pre"
    assert "Concatenated: one probe on the features of several sites" in result.report.read_text()
    assert max(len(path.name) for path in (result.folder / "sites").rglob("*")) < 120


def test_scores_of_saved_predictions_are_those_of_the_tables(experiment, go):
    """Those of two runs over heads and positions, of other seeds."""
    sites = "capture.sites=['blocks.0.hook_resid_post', 'blocks.0.attn.hook_z[head=1,2]']"
    places = ("tokens.position={at: span}", "tokens.sweep=[0, 1]", "probe.permutations=0")
    pair = [go(experiment(sites, *places, f"probe.seed={seed}")) for seed in (0, 1)]
    rows = only(compare(*(result.folder for result in pair)).rows, target="task")
    assert len(only(rows, what="site")) + len(only(rows, what="chosen")) >= 6
    for side, result in zip("ab", pair, strict=True):
        table = only(result.table, target="task", split="test", metric="accuracy")
        sites = map(site_with_head, table["site"], table["head"])
        values = dict(zip(zip(sites, table["position"], strict=True), table["value"], strict=True))
        for _, row in rows.iterrows():
            assert row[f"value_{side}"] == values[row[f"site_{side}"], row[f"position_{side}"]]
    assert {"span", "span+1"} == set(rows["position_a"])
    # Predictions are stored with the scores that other metrics need.
    other = compare(*(result.folder for result in pair), metric="auroc")
    table = only(pair[0].table, target="task", split="test", metric="auroc")
    site = only(other.rows, target="task").iloc[-1]
    assert np.isclose(table["value"], site["value_a"], atol=1e-6).any()
    assert any("without auroc" in note for note in other.notes)


def texts():
    return [
        {"text": f"{start} {colour} {noun} {verb}", "label": colour, "group": noun}
        for noun in NOUNS[:10]
        for start, verb in (("The", "was old"), ("My own", "is"))
        for colour in ("red", "black")
    ]


def counts_of_words():
    """Return texts labelled by their number of words, with noise of standard deviation 0.1."""
    generator = np.random.default_rng(0)
    lengths = np.tile(np.arange(1, 9), 20)
    return [
        {"text": " ".join(generator.choice(NOUNS[:10], n)), "label": n + generator.normal() / 10}
        | {"group": f"g{row // 2}"}
        for row, n in enumerate(lengths)
    ]


def test_text_probes_have_no_control(load, go):
    kinds = "probe.kinds=[{kind: attention_pooled}, {kind: nearest_mean}]"
    # Half of the texts with a noun are in the training set, so that its words are not new.
    rows = [row | {"group": row["text"].replace(row["label"], "")} for row in texts()]
    table = go(load(rows, kinds, EVERY_TOKEN, "split.test=0.5")).table
    assert set(only(table, target="control")["probe"]) == {"nearest_mean"}
    n_rows = only(table, split="test").groupby("probe")["n_test"].unique()
    assert n_rows["attention_pooled"].item() == 20 < n_rows["nearest_mean"].max()


def alarming_texts():
    """Return texts; half of them have one of two words somewhere."""
    generator = np.random.default_rng(0)
    rows = []
    for row in range(80):
        words = generator.choice(NOUNS[:8], generator.integers(6, 14)).tolist()
        label, pair = (("safe", ("garden", "music")), ("harm", ("bomb", "poison")))[row % 2]
        words[generator.integers(len(words))] = pair[generator.integers(2)]
        rows.append({"text": " ".join(words), "label": label, "group": f"g{row}"})
    return rows


@pytest.mark.parametrize("folds", ["null", "2"])
def test_the_rule_of_an_aggregated_probe_is_chosen_saved_and_applied(load, go, folds):
    rules = "probe.aggregate=[mean, max, {rolling: 3}]"
    others = ("data.positive=harm", f"split.folds={folds}")
    experiment = load(alarming_texts(), rules, EVERY_TOKEN, *others)
    assert [kind.kind for kind in experiment.probe.kinds] == ["aggregated"]
    result = go(experiment, page=True)
    rows = pd.read_csv(result.folder / "aggregation.csv")
    chosen = rows.loc[rows["value"].idxmax(), "rule"]
    assert rows["is_selected"].tolist() == (rows["rule"] == chosen).tolist()
    assert rows["rule"].tolist() == ["mean", "max", "rolling:3"]
    apart = rows.set_index("rule")["auroc"]
    apart = (apart[chosen] - apart).mask(apart.index == chosen)
    assert rows["difference"].tolist() == pytest.approx(apart.tolist(), abs=2e-6, nan_ok=True)
    assert rows["p"].notna().tolist() == (~rows["is_selected"]).tolist()
    flagged = pd.read_csv(result.folder / "flagged.csv").groupby("label")["share"]
    assert all(shares.is_monotonic_increasing for _, shares in flagged)
    assert flagged.max()["harm"] > flagged.min()["harm"]
    page = result.report.read_text()
    assert "Rules that score a text" in page
    assert "AUROC by rule, cross-validated" in page
    assert "Score by token, and texts predicted as harm so far" in page
    row = Scores.of(result.table).chosen
    probe = SavedProbe.load(next(result.folder.glob(f"probes/**/{row['site']}/aggregated.json")))
    assert probe.facts.aggregation.rule == chosen
    assert probe.facts.aggregation.weight < [[0.0]]  # of harm and safe, harm is the positive label
    assert np.array_equal(probe.directions, -probe.layers[0].weight)  # towards safe, the second
    readings = apply_probe(probe, [one["text"] for one in alarming_texts()])
    assert all(one.answer == one.answers[-1] for one in readings)
    assert choose_per(probe, None) == "text"
    assert "up to it" in caution(probe, "token")[-1]
    tested = pd.read_csv(result.folder / "predictions.csv", keep_default_na=False)
    if folds == "null":
        right = [one.answer.label for one in readings]
        known = [right[int(group[1:])] for group in tested["group"]]
        accuracy = only(result.table, target="task", split="test", metric="accuracy")
        value = only(accuracy, site=row["site"])["value"].item()
        assert np.mean(tested["truth"] == known) == pytest.approx(value)
        scores = [-np.array([one.score for one in reading.answers]) for reading in readings]
        rows = [scores[int(group[1:])] for group in tested["group"]]
        is_harm, curve = tested["truth"] == "harm", pd.read_csv(result.folder / "flagged.csv")
        for label, side in (("harm", is_harm), ("safe", ~is_harm)):
            one = only(curve, label=label, tokens=5)
            so_far = [row[:5] for row, is_inside in zip(rows, side, strict=True) if is_inside]
            median = np.median([row[-1] for row in so_far])
            assert one["score"].item() == pytest.approx(median, abs=1e-3)
            assert one["share"].item() == pytest.approx(np.mean([max(row) > 0 for row in so_far]))


RUNS = {
    "texts": (texts, ("probe.kinds=[{kind: attention_pooled}]", EVERY_TOKEN), [0, 3], 0.9),
    "numbers": (counts_of_words, ("probe.kinds=[{kind: ridge_regression}]",), [3], 0.5),
    "trees": (texts, TREES, [3], 0.9),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_each_kind_has_its_own_metrics_and_is_not_fitted_again(
    load, go, monkeypatch, snapshot, name
):
    rows, overrides, layers, bound = RUNS[name]
    experiment = load(rows(), "model.random_weights=1", *overrides)
    result = go(experiment, page=True)
    task = only(result.table, target="task", split="test")
    main = only(task, metric=result.record["verdict"]["metric"]).set_index("layer")["value"]
    assert main[layers].min() > bound
    labels = result.record["data"]["labels"]
    assert {
        "rows of targets": {
            target: sorted(set(rows)) for target, rows in result.table.groupby("target")["n_test"]
        },
        "metrics of the task": sorted(set(task["metric"])),
        "test rows": len(pd.read_csv(result.folder / "predictions.csv")),
        "labels": {side: sum(counts.values()) for side, counts in labels.items()},
        "findings": [one["code"] for one in result.record["data"]["findings"]],
    } == snapshot
    assert result.report.is_file()
    content = result.results.read_bytes()
    monkeypatch.setattr("probekit.probes.prober.Prober.site", None)  # a call would fail
    assert go(experiment).results.read_bytes() == content


@pytest.mark.parametrize("overrides", text_of("invalid_kinds.txt").splitlines())
def test_mistakes_are_refused_before_the_capture(load, own, refused, overrides):
    experiment = load(texts(), *overrides.split(" & "))
    refused(run, experiment, out=own.folder / "runs", cache_root=own.folder / "cache")
    assert not list(own.folder.rglob("*.safetensors"))
    if "128" in overrides:
        prepare(load(texts(), *overrides.replace("128", "64").split(" & ")))


def test_ranked_features_are_those_of_the_k_sparse_probes(load, go):
    sparse = 'probe.kinds=[{"kind": "logistic"}, {"kind": "k_sparse", "k": [2, 8]}]'
    found = go(load(texts(), sparse, 'capture.sites=["blocks.[03].mlp.hook_post"]'), page=True)
    features = pd.read_csv(found.folder / "features.csv")
    assert features["k"].tolist() == [2] * 2 + [8] * 6
    assert features["share"].is_monotonic_decreasing
    numbers = features["feature"].str.extract(r"\[neuron=(\d+)\]")[0].astype(int)
    for k in (2, 8):
        kept = SavedProbe.load(found.folder / "probes" / features["site"].iloc[0] / f"k_sparse-{k}")
        assert set(np.flatnonzero(kept.layers[0][0].any(axis=0))) == set(numbers[:k])
    assert f"[neuron={numbers[0]}]" in found.report.read_text().replace("<wbr>", "")
    assert "features.csv" in found.record["files"]
