"""predictions.csv: scores recomputed from it are those of results.csv, whatever was probed."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn import metrics

from probekit.chosen.predictions.page import MOST_STEPS
from probekit.errors import MissingError
from probekit.experiment.loader import load_experiment
from probekit.pipeline.compare.compare import FinishedRun
from probekit.pipeline.experiment.probe import probe
from probekit.pipeline.experiment.run import run
from probekit.report.elements.texts import class_label
from probekit.report.notebooks.run_result import open_run
from probekit.results.table import only
from tests.pipeline.planted import FAST, MIXED, NOUNS, QUICK_SITES

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "results.md"
SITES = (f"capture.sites={list(QUICK_SITES)}", "attention.texts=[]", MIXED, *FAST[1:])
SWEEP = "tokens.sweep=[-1, 0]"
RNG = np.random.default_rng(0)
N = 240
CLASSES = RNG.integers(3, size=N)
LAYERS = {
    layer: RNG.normal(size=(N, 5)) + 0.4 * np.eye(5)[CLASSES] for layer in ("layer_0", "layer_1")
}
QUICK = {"folds": 2, "C": [0.1], "description": False, "permutations": 0}
SENTENCE = """# sent_id = s{n}
# text = the {word} is
1	the	the	DET	_	_	2	dep	_	_
2	{word}	{word}	{tag}	_	_	3	dep	_	_
3	is	is	VERB	_	_	0	root	_	_

"""
TAGS = RNG.choice(["NOUN", "PROPN", "DET"], 36)
TREEBANK = [SENTENCE.format(n=n, word=NOUNS[n % 12], tag=tag) for n, tag in enumerate(TAGS)]
TOKENS = """
name: tags
model: {source: mini, random_weights: 2}
data: {name: tags, format: conllu, file: tags.conllu, columns: {label: UPOS}}
tokens: {bos: true, position: {at: word}}
capture: {sites: [hook_embed, blocks.1.hook_resid_post]}
probe: {C: [0.01], folds: 2, description: false, permutations: 0}
"""


def given(labels, **options):
    """A function that probes arrays with these labels."""
    options = {"groups": np.arange(N) // 3, "probe": QUICK, "workers": 1, "page": False} | options
    return lambda _, folder: probe(LAYERS, labels, out=folder, progress=False, **options)


def on_texts(*overrides):
    """A function that runs the planted experiment."""
    return lambda planted, _: planted.run(*SITES, *overrides, page=False)


def on_tokens(*overrides):
    """A function that probes the words of a treebank."""

    def start(_, folder):
        (folder / "tags.conllu").write_text("".join(TREEBANK))
        (folder / "tags.yaml").write_text(TOKENS)
        experiment = load_experiment(folder / "tags.yaml", overrides)
        return run(experiment, out=folder, cache_root=folder / "cache", page=False)

    return start


NUMBERS = QUICK | {"kinds": [{"kind": "ridge_regression"}]}
RUNS = {
    "one split": on_texts("model.random_weights=2"),
    "folds": on_texts("split.folds=3", "model.random_weights=1"),
    "two kinds": on_texts(FAST[0], "probe.kinds=[{kind: mass_mean}, {kind: logistic}]"),
    "sources": on_texts(FAST[0], "split={leave_out: verb, folds: 2}", "data.file=verbs.csv"),
    "words": on_tokens(),
    "words at two positions": on_tokens(SWEEP),
    "folds that choose positions": on_tokens(SWEEP, "split.folds=3"),
    "three classes": given(CLASSES, split={"folds": 3}),
    "numbers": given(CLASSES + RNG.normal(size=N)[::-1], probe=NUMBERS),
    "numbers in folds": given(np.float64(CLASSES), probe=NUMBERS, split={"folds": 2}),
    "texts": given(CLASSES > 0, texts=[f"Is it {'so' * one}?" for one in CLASSES]),
}


@pytest.fixture(scope="module", params=RUNS)
def result(request, planted, tmp_path_factory):
    rows = planted.rows
    rows.assign(verb=rows["text"].str.split().str[-1], group=rows.index).to_csv(
        planted.folder / "verbs.csv", index=False
    )
    return RUNS[request.param](planted, tmp_path_factory.mktemp("made"))


def auroc(rows):
    """Return the AUROC, averaged over the labels; NaN if the rows have a single label."""
    labels = [name.removeprefix("score_") for name in rows if name.startswith("score_")]
    sides = {label: rows["truth"] == label for label in labels}
    known = [label for label in labels if sides[label].nunique() == 2]
    own = [metrics.roc_auc_score(sides[label], rows[f"score_{label}"]) for label in known]
    return np.mean(own) if own else np.nan


def test_the_page_has_the_figures_of_the_predictions(result):
    rows, names = result.predictions, result.figures
    labels = [name.removeprefix("score_") for name in rows if name.startswith("score_")]
    if not labels:
        figure = result.figure("Predicted and true values")
        drawn = [one for one in figure.data if one.mode == "markers"]
        assert list(zip(drawn[0].x, drawn[0].y, strict=True)) == list(
            zip(rows["truth"], rows["guess"], strict=True)
        )
        assert np.allclose(np.add(drawn[1].x, drawn[1].y), rows["truth"])
        return
    assert {"ROC and precision-recall", "Scores by label"} <= {*names}
    figure = result.figure("ROC and precision-recall")
    curves = [one for one in figure.data if one.mode == "lines" and one.name]
    assert len(curves) == 2 * (1 if len(labels) == 2 else len(labels))
    decided = [one for one in figure.data if one.marker.symbol == "circle" and one.xaxis == "x"]
    for curve, point in zip(curves[::2], decided, strict=True):
        label = next(one for one in labels if class_label(one) == curve.name)
        is_label, is_guess = rows["truth"] == label, rows["guess"] == label
        ahead = rows[f"score_{label}"] - rows.drop(columns=f"score_{label}").filter(
            regex="^score_"
        ).max(axis=1)
        fpr, tpr, _ = metrics.roc_curve(is_label, ahead, drop_intermediate=False)
        drawn, points = list(zip(curve.x, curve.y, strict=True)), np.stack([fpr, tpr], axis=1)
        apart = np.abs(np.array(drawn)[:, None] - points).max(axis=2).min(axis=1)
        assert apart.max() < 1e-4  # of many points some are drawn
        assert (len(drawn), drawn[0], drawn[-1]) == (min(len(fpr), MOST_STEPS), (0, 0), (1, 1))
        at = is_guess[~is_label].mean(), is_guess[is_label].mean()
        assert (*point.x, *point.y) == pytest.approx(at, abs=1e-9)


OF_RANKS = {"auroc": auroc, "spearman": lambda rows: spearmanr(rows["truth"], rows["guess"])[0]}


def over_folds(metric, rows):
    """Return a metric of ranks, averaged over the folds where it is defined, by their rows."""
    folds = [of_fold for _, of_fold in rows.groupby(rows["fold"].fillna(0))]
    values = np.array([OF_RANKS[metric](one) for one in folds])
    known = ~np.isnan(values)
    return np.average(values[known], weights=np.array(list(map(len, folds)))[known])


def brier(rows, _):
    """Return the Brier score, which rounded scores would change."""
    scores = rows.filter(regex="^score_")
    truth = np.array([name.removeprefix("score_") for name in scores]) == rows[["truth"]].to_numpy()
    return ((np.exp(scores.to_numpy()) - truth) ** 2).sum(axis=1).mean()


RECOMPUTED = {
    "brier": brier,
    "accuracy": lambda rows, column: metrics.accuracy_score(rows["truth"], rows[column]),
    "balanced_accuracy": lambda rows, column: metrics.balanced_accuracy_score(
        rows["truth"], rows[column]
    ),
    "macro_f1": lambda rows, column: metrics.f1_score(
        rows["truth"], rows[column], average="macro", labels=sorted(set(rows["truth"]))
    ),
    "r2": lambda rows, column: metrics.r2_score(rows["truth"], rows[column]),
}


def test_scores_of_the_file_are_those_of_the_results(result):
    rows, verdict = result.predictions, result._record.verdict
    table = only(result.table, split="test")
    own = only(table, target="chosen") if verdict.is_nested else only(table, target="task")
    if not verdict.is_nested:
        best = verdict.best
        own = only(own, site=best.site, position=best.position, probe=best.probe)
    known = own[own["metric"].isin([*RECOMPUTED, *OF_RANKS])]
    assert len(known) >= 2
    for metric, value in zip(known["metric"], known["value"], strict=True):
        of_ranks = metric in OF_RANKS
        found = over_folds(metric, rows) if of_ranks else RECOMPUTED[metric](rows, "guess")
        assert found == pytest.approx(value, abs=1e-12), metric
    guessed = [name for name in rows if name.startswith("guess_")]
    assert "guess_majority" in guessed
    metric = verdict.metric
    for name in guessed:
        target = name.removeprefix("guess_")
        if target.startswith("random_weights"):
            continue
        found = only(table, target=target, metric=metric)
        found = found[found["position"].isin(("", rows["position"].iloc[0]))]
        # In a sweep of positions, the combined choice is last.
        expected = found["value"].iloc[-1]
        assert RECOMPUTED[metric](rows, name) == pytest.approx(expected, abs=1e-12)
    networks = [name for name in guessed if name.startswith("guess_random_weights_")]
    if networks:
        mean = np.mean([RECOMPUTED[metric](rows, name) for name in networks])
        found = only(table, target="chosen_random_weights", metric=metric)
        assert mean == pytest.approx(found["value"].item(), abs=1e-12)


def test_every_column_is_documented_and_the_file_has_a_digest(result):
    assert "predictions.csv" in result.record["files"]
    section = DOCS.read_text().partition("## predictions.csv")[2].partition("\n## ")[0]
    documented = re.findall(r"^`(\w+)`", section, re.MULTILINE)
    kinds = [re.sub(r"(?<=^score_).+|(?<=^guess_).+", "", name) for name in result.predictions]
    kinds = [{"score_": "score_LABEL", "guess_": "guess_TARGET"}.get(one, one) for one in kinds]
    assert set(kinds) <= set(documented)
    assert kinds == sorted(kinds, key=documented.index)


def test_rows_name_their_line_word_and_choice(planted, tmp_path):
    for row in RUNS["folds"](planted, None).predictions.to_dict("records"):
        lines = (planted.folder / "mixed.csv").read_text().splitlines()
        assert lines[row["line"] - 1] == f"{row['text']},{row['truth']},{row['group']}"
        assert row["word"] == row["text"].split()[-1]
    rows = RUNS["folds that choose positions"](planted, tmp_path).predictions
    lines = (tmp_path / "tags.conllu").read_text().splitlines()
    for row in rows.to_dict("records"):
        sentence = lines[row["line"] - 1 : row["line"] + 4]
        assert sentence[1] == f"# text = {row['text']}"
        number = int(row["id"].rpartition(":")[2])
        assert sentence[1 + number].split("\t")[3] == row["truth"]
        words = ["<|endoftext|>", *row["text"].split()]
        assert row["word"].strip() == words[number - row["position"].endswith("-1")]
    choices = rows.groupby("fold")[["site", "position", "probe"]].nunique()
    assert choices.to_numpy().tolist() == [[1, 1, 1]] * 3


def test_a_run_that_selects_no_probe_has_its_test_rows(planted, own):
    pooled = "probe.kinds=[{kind: attention_pooled}]"
    made = own.run(*SITES, FAST[0], "tokens.position.at=all", pooled, page=False)
    assert list(made.predictions) == ["id", "line", "text", "group", "truth"]
    assert (
        FinishedRun(made.folder).test_rows["truth"].tolist() == made.predictions["truth"].tolist()
    )


def test_a_run_of_an_earlier_version_has_none(planted, own):
    folder = own.take(RUNS["folds"](planted, None).folder)
    (folder / "predictions.csv").unlink()
    with pytest.raises(MissingError, match="of an earlier version"):
        _ = open_run(folder).predictions
