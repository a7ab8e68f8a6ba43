"""Complete runs of the kinds for texts, trees and numbers, on small data."""

import numpy as np
import pandas as pd
import pytest

from probekit.errors import ConfigError, DataError
from probekit.pipeline.experiment.prepare import prepare
from probekit.pipeline.experiment.run import run
from probekit.pipeline.measure.probing import make_probers
from probekit.probes.saved_probe import SavedProbe
from probekit.results.table import only
from tests.pipeline.planted import NOUNS

FEW = (
    "model.random_weights=false",
    "capture.sites=['blocks.[03].hook_resid_post']",
    "probe={folds: 2, control_draws: 1, permutations: 99, C: [0.1], description: false}",
    "attention.texts=[]",
)
EVERY_TOKEN = "tokens.position={at: all}"


@pytest.fixture
def load(own):
    """A function that writes other rows and loads the experiment on them."""

    def load(rows, *overrides):
        pd.DataFrame(rows).to_csv(own.folder / "rows.csv", index=False)
        return own.load(*FEW, *overrides)

    return load


@pytest.fixture
def go(own):
    return lambda experiment: run(experiment, out=own.folder / "runs", cache_root=own.cache)


@pytest.fixture
def refused(own):
    """A function that runs an experiment, which is refused before anything is captured."""

    def refused(experiment, error, message):
        with pytest.raises(error, match=message):
            run(experiment, out=own.folder / "runs", cache_root=own.folder / "cache")
        assert not list(own.folder.rglob("*.safetensors"))

    return refused


@pytest.fixture
def go_again(go, monkeypatch):
    """A function that runs a finished experiment again, which fits nothing."""

    def go_again(experiment):
        monkeypatch.setattr("probekit.probes.prober.Prober.site", None)  # a call would fail
        return go(experiment).results.read_bytes()

    return go_again


def texts():
    return [
        {"text": f"{start} {colour} {noun} {verb}", "label": colour, "group": noun}
        for noun in NOUNS[:10]
        for start, verb in (("The", "was old"), ("My own", "is"))
        for colour in ("red", "black")
    ]


def numbers():
    """Return texts labelled by their number of words, with noise of standard deviation 0.1."""
    generator = np.random.default_rng(0)
    lengths = np.tile(np.arange(1, 9), 20)
    return [
        {"text": " ".join(generator.choice(NOUNS[:10], n)), "label": n + generator.normal() / 10}
        | {"group": f"g{row // 2}"}
        for row, n in enumerate(lengths)
    ]


def test_run_over_all_tokens_scores_each_text_once_and_is_saved(load, go, go_again):
    kinds = "probe.kinds=[{kind: attention_pooled}]"
    experiment = load(texts(), kinds, EVERY_TOKEN, "model.random_weights=1")
    result = go(experiment)
    table = result.table
    found = only(table, probe="attention_pooled", split="test")
    assert {"task", "random_weights"} <= set(found["target"])
    prober = make_probers(experiment, prepare(experiment))[0]
    assert set(found["n_test"]) == {len(prober.test_rows)} == {8}
    assert only(found, target="task", metric="accuracy")["value"].min() > 0.9
    assert "p_value" not in set(found["metric"])  # of the labels of two groups
    assert only(table, target="majority", metric="accuracy")["n_test"].item() == 8
    rows = pd.read_csv(result.folder / "test_rows.csv")
    assert len(rows) == 8
    found = {f["code"]: f["message"] for f in result.record["data"]["findings"]}
    assert found["few-exchanges"].startswith(
        "The labels of the 2 test groups can be exchanged in only 4 ways"
    )
    assert go_again(experiment) == result.results.read_bytes()


def test_text_probes_have_no_control(load, go):
    kinds = "probe.kinds=[{kind: attention_pooled}, {kind: nearest_mean}]"
    # Half of the texts with a noun are in the training set, so that its words are not new.
    rows = [row | {"group": row["text"].replace(row["label"], "")} for row in texts()]
    table = go(load(rows, kinds, EVERY_TOKEN, "split.test=0.5")).table
    assert set(only(table, target="control")["probe"]) == {"nearest_mean"}
    n_rows = only(table, split="test").groupby("probe")["n_test"].unique()
    assert n_rows["attention_pooled"].item() == 20 < n_rows["nearest_mean"].max()


def test_regression_has_its_own_metrics(load, go, go_again):
    kinds = "probe.kinds=[{kind: ridge_regression}]"
    experiment = load(numbers(), kinds, "model.random_weights=1")
    result = go(experiment)
    assert "random_weights" in set(result.table["target"])
    task = only(result.table, target="task", split="test")
    assert set(task["metric"]) == {"r2", "spearman", "selectivity", "p_value", "p_holm", "p_best"}
    assert only(task, metric="r2")["value"].max() > 0.5
    codes = {finding["code"] for finding in result.record["data"]["findings"]}
    assert not codes & {"rare-labels", "missing-from-train", "imbalance", "train-counts"}
    ranges = result.record["data"]["labels"]
    counts = {side: sum(of_side.values()) for side, of_side in ranges.items()}
    assert counts == {"train": 120, "test": 40}
    assert result.record["verdict"]["best"]["site"]
    assert result.report.is_file()
    assert go_again(experiment) == result.results.read_bytes()


def test_text_labels_for_regression_are_refused_before_the_capture(load, refused):
    message = r"csv:\d+: the label 'red' is not a number .*40 such labels"
    refused(load(texts(), "probe.kinds=[{kind: ridge_regression}]"), DataError, message)


def test_labels_of_mixed_types_are_refused_with_the_line(load):
    experiment = load(texts(), "probe.kinds=[{kind: ridge_regression}, {kind: logistic}]")
    with pytest.raises(ConfigError, match=r"logistic needs classes and ridge_regression needs num"):
        make_probers(experiment, prepare(experiment))


SENTENCE = """\
# sent_id = s{n}
# text = The old {noun} was near
1	The	the	DET	_	_	3	det	_	_
2	old	old	ADJ	_	_	3	amod	_	_
3	{noun}	{noun}	NOUN	_	_	5	nsubj	_	_
4	was	be	AUX	_	_	5	cop	_	_
5	near	near	ADV	_	_	0	root	_	_
"""


@pytest.fixture
def trees(own):
    sentences = [SENTENCE.format(n=n, noun=NOUNS[n % 10]) for n in range(20)]
    (own.folder / "trees.conllu").write_text("\n".join(sentences) + "\n")
    data = f"name: trees, format: conllu, root: {own.folder}, file: trees.conllu"
    kinds = "[{kind: structural_distance, rank: 8}, {kind: structural_depth, rank: 8}]"
    return own.load(
        *FEW,
        "model.random_weights=1",
        f"data={{{data}, columns: {{label: HEAD}}}}",
        "tokens.position.at=word",
        f"probe.kinds={kinds}",
    )


def test_dependency_trees_are_probed_and_saved(trees, go, go_again):
    result = go(trees)
    assert "random_weights" in set(result.table["target"])
    task = only(result.table, target="task", split="test")
    assert set(task["metric"]) == {"uuas", "root_accuracy", "spearman"}
    assert only(task, layer=3, metric="uuas")["value"].item() > 0.9
    assert set(task["n_test"]) == {5}  # sentences, not words
    assert go_again(trees) == result.results.read_bytes()


def test_incomplete_tree_is_refused_before_the_capture(trees, refused):
    position = trees.tokens.position.model_copy(update={"offset": 1})
    tokens = trees.tokens.model_copy(update={"position": position})
    refused(trees.model_copy(update={"tokens": tokens}), DataError, "do not form a tree")


def test_too_large_k_is_refused_before_the_capture(load):
    kinds = "probe.kinds=[{kind: k_sparse, k: [1, 128]}]"
    head = "capture.sites=[blocks.0.hook_resid_pre, 'blocks.0.attn.hook_z[head=1]']"
    with pytest.raises(
        ConfigError, match=r"k_sparse:128 selects more features than .* has \(64\)\. Set k to 64"
    ):
        prepare(load(texts(), kinds, head))
    prepare(load(texts(), kinds.replace("128", "64"), head))


def test_ranked_features_are_those_of_the_k_sparse_probes(load, go):
    sparse = 'probe.kinds=[{"kind": "logistic"}, {"kind": "k_sparse", "k": [2, 8]}]'
    sites = 'capture.sites=["blocks.[03].mlp.hook_post"]'
    found = go(load(texts(), sparse, sites))
    features = pd.read_csv(found.folder / "features.csv")
    assert features["k"].tolist() == [2] * 2 + [8] * 6
    assert features["share"].is_monotonic_decreasing
    numbers = features["feature"].str.extract(r"\[neuron=(\d+)\]")[0].astype(int)
    for k in (2, 8):
        kept = SavedProbe.load(found.folder / "probes" / features["site"].iloc[0] / f"k_sparse-{k}")
        assert set(np.flatnonzero(kept.layers[0][0].any(axis=0))) == set(numbers[:k])
    page = found.report.read_text()
    assert f"[neuron={numbers[0]}]" in page.replace("<wbr>", "")
    assert "features.csv" in found.record["files"]
