"""Complete runs on small data: the planted signal is found, and finished work is reused."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

from probekit import workers
from probekit.activations.store import ActivationStore
from probekit.analysis.heads import HEAD_SCORES, head_scores
from probekit.errors import ConfigError, DataError, MissingError
from probekit.experiment.loader import load_experiment
from probekit.model.families.gpt2 import GPT2
from probekit.pipeline.experiment import source
from probekit.pipeline.experiment.prepare import prepare
from probekit.pipeline.experiment.source import residual_norms
from probekit.probes.targets import NETWORKS
from probekit.results.selection import chosen_row
from probekit.results.table import RESULTS, only, placed, same_features
from tests.pipeline.planted import rows_of_sites


class Counting:
    """A watcher that records its messages and progress."""

    def __init__(self):
        self.steps = []

    def progress(self, step, done, total):
        self.steps.append((step, done, total))

    def tell(self, message):
        self.steps.append(message)


def value(table, target, site, metric="accuracy", split="test"):
    rows = table[
        (table["target"] == target) & (table["metric"] == metric) & (table["split"] == split)
    ]
    return rows[rows["site"] == site]["value"].item() if site else rows["value"].item()


def test_run_finds_the_planted_signal_and_writes_all_files(experiment, go):
    result = go(experiment())
    table = pd.read_csv(result.results)
    assert list(table.columns) == [column.name for column in RESULTS]
    assert set(table["target"]) == {
        "task",
        "random_weights",
        *NETWORKS[:3],
        "chosen_random_weights",
        "majority",
        "word_identity",
        "bag_of_words",
        "n_grams",
        "length",
    }
    kept = load_file(result.folder / "attention.safetensors")
    expected = head_scores(torch.from_numpy(kept["0"]), torch.arange(len(kept["0"][0, 0])))
    for name in HEAD_SCORES:  # the text repeats no token
        np.testing.assert_allclose(kept[f"0.{name}"], expected[name], rtol=1e-5)
    assert kept["0.first_token"].std() > 0
    # The embedding of the last word does not encode the colour; the residual after block 3 does.
    assert value(table, "task", "blocks.0.hook_resid_pre") < 0.7
    assert value(table, "task", "blocks.3.hook_resid_post") > 0.9
    assert value(table, "majority", None) == 0.5
    assert value(table, "word_identity", None) == 0.5
    record = json.loads((result.folder / "run.json").read_text())
    chosen = table[(table["split"] == "validation") & (table["target"] == "task")]
    assert record["verdict"]["best"]["site"] == chosen.loc[chosen["value"].idxmax(), "site"]
    assert record["data"]["labels"]["test"] == {"black": 12, "red": 12}
    files = ("config.json", "merges.txt", "model.safetensors", "vocab.json")
    assert record["model"]["compared_with"] == dict.fromkeys(files, "digests.json")
    assert set(record["digests"]) == {
        "dataset",
        "tokenizer",
        "config",
        "weights (task)",
        *(f"weights ({network})" for network in NETWORKS[:3]),
        "activations (task)",
        *(f"activations ({network})" for network in NETWORKS[:3]),
    }
    assert "Is the second word readable" in result.report.read_text()
    again = load_experiment(result.folder / "config.yaml")
    assert again == experiment()


def test_parallel_probing_gives_the_same_numbers(experiment, go, monkeypatch):
    monkeypatch.setattr(workers, "START_UP", -1.0)
    monkeypatch.setattr(workers, "cpu_count", lambda: 2)
    found = []
    for n_workers in (1, 2):
        watcher = Counting()
        folder = go(experiment(), workers=n_workers, watcher=watcher).folder
        done = [step[1] for step in watcher.steps if step[0] == "probe"]
        assert done == sorted(done)  # although sites start in any order
        paths = [folder / "results.csv", *folder.rglob("sites/*"), *folder.rglob("probes/*.json")]
        found.append({str(path): path.read_bytes() for path in paths})
        shutil.rmtree(folder)
    assert len(found[0]) > 5
    assert found[0] == found[1]


def best(values):
    """Return the chosen one of two sites with these (validation, test) accuracies."""
    return chosen_row(rows_of_sites(values))["site"]


def test_run_and_report_break_ties_identically(experiment, go):
    chosen = best({"blocks.3.hook_resid_post": (1.0, 1.0), "blocks.0.hook_attn_out": (1.0, 1.0)})
    assert chosen == "blocks.0.hook_attn_out"
    sites = "capture.sites=[blocks.3.hook_resid_post, blocks.0.hook_attn_out]"
    found = go(experiment(sites))
    order = [site for site in found.table["site"].unique() if site]
    assert order == ["blocks.0.hook_attn_out", "blocks.3.hook_resid_post"]
    assert found.best.site == chosen_row(found.table)["site"]


def test_many_examples_without_a_row_cause_a_warning(experiment, go, tmp_path):
    whole = experiment()
    rows = tmp_path / "rows.csv"
    rows.write_text(rows.read_text().replace(" was,", " was there,"))
    assert {len(tokens.ids) for tokens in prepare(whole).tokens} == {4, 5}

    def codes(index):
        position = f"tokens.position={{at: index, index: {index}}}"
        planted = experiment(position, "probe.control_draws=0")
        found = go(planted, page=False).record["data"]["findings"]
        return {finding["code"]: finding["level"] for finding in found}

    assert "lost" not in codes(3)
    assert codes(4)["lost"] == "warning"


def test_half_precision_run_completes(experiment, go):
    for dtype in ("bfloat16", "float16"):
        result = go(experiment(f"model.dtype={dtype}", "model.random_weights=false"))
        assert result.report.is_file()
        assert result.record["verdict"]["best"]["site"] != "blocks.0.hook_resid_pre"


def test_site_selection_does_not_use_test_rows():
    assert best({"blocks.0.x": (0.9, 0.1), "blocks.1.x": (0.8, 1.0)}) == "blocks.0.x"
    assert best({"blocks.0.x": (0.8, 1.0), "blocks.1.x": (0.9, 0.1)}) == "blocks.1.x"


def test_neurons_have_separate_results(experiment, go):
    names = [f"blocks.2.mlp.hook_post[neuron={n}]" for n in (3, 700)]
    result = go(experiment(f"capture.sites={names}"))
    task = result.table[(result.table["target"] == "task") & (result.table["split"] == "test")]
    assert set(task["site"]) == set(names)
    assert result.record["verdict"]["best"]["site"] in names


def test_single_head_is_probed(experiment, go):
    result = go(experiment("capture.sites=['blocks.2.attn.hook_z[head=3]']", "attention.texts=[]"))
    task = result.table[result.table["target"] == "task"]
    assert set(task["head"]) == {3}
    assert set(task["component"]) == {"attn.z"}
    store = next(iter((result.folder.parents[2] / "cache").iterdir()))
    values = ActivationStore.open(store).read("blocks.2.attn.hook_z")
    assert values.shape == (96, 4, 64)


def test_random_weights_control_can_be_disabled(experiment, go):
    result = go(experiment("model.random_weights=false"), page=False)
    targets = set(result.table["target"])
    assert not targets & {"random_weights", "chosen_random_weights", *NETWORKS}
    assert result.report is None
    assert not (result.folder / "report.html").exists()


@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ("data.file=none.csv", MissingError, r"none\.csv"),
        ("data.card=none.md", MissingError, r"data\.card"),
        ("data.columns.label=lable", ConfigError, "lable"),
        ("model.source=gpt-2", MissingError, "Nearest: gpt2"),
        ("capture.sites=[blocks.9.hook_resid_pre]", ConfigError, "6 blocks, 0 to 5"),
        ("capture.sites=['blocks.0.attn.hook_pattern']", ConfigError, "query_pos"),
        ("attention.texts=['']", ConfigError, "attention.texts: '' has 0 tokens"),
        (
            "tokens.position={at: index, index: 40}",
            DataError,
            r"^--set tokens\.position: .*no token 40 \(it has: 0 to \d+, or -\d+ to -1 from",
        ),
        ("probe.folds=40", DataError, r"^--set probe\.folds: 40 folds of"),
        (
            "split.folds=90",
            DataError,
            r"^--set split\.folds: 90 folds of .* in \d+ groups\. Set `f",
        ),
        ("data.columns.label=group", DataError, "group"),
    ],
)
def test_invalid_experiments_are_refused_before_anything_is_written(
    experiment, go, tmp_path, override, error, message
):
    with pytest.raises(error, match=message):
        go(experiment(override))
    assert not (tmp_path / "runs").exists()
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(("policy", "rows"), [("truncate", 97), ("skip", 96)])
def test_long_texts_follow_the_policy_and_are_counted(experiment, go, tmp_path, policy, rows):
    with (tmp_path / "rows.csv").open("a") as file:
        file.write(f"{'The red house was ' * 80},red,long\n")
    with pytest.raises(
        DataError, match=r"rows\.csv:\d+: the text has .*, but the context has 256 .1 text too"
    ):
        go(experiment())
    result = go(experiment(f"tokens.too_long={policy}"))
    assert result.record["data"]["n_rows"] == rows
    data = result.record["data"]
    assert any("longer than the context" in note for note in data["notes"]) == (policy == "skip")
    (*cut,) = (one["message"] for one in data["findings"] if one["code"] == "truncated")
    if policy == "truncate":
        assert cut[0].startswith("1 of 97 examples was truncated to the context of 256 tokens (")
        prepared = prepare(experiment(f"tokens.too_long={policy}"))
        # Baselines and the checks of repeated texts read what the model read.
        assert prepared.texts[-1] == prepared.tokenizer.decode(prepared.ids[-1])
        assert len(prepared.ids[-1]) == 256
        assert prepared.texts[0] == "The red house was"
    else:
        assert not cut


def test_norms_are_reported_per_site(experiment, go, monkeypatch):
    monkeypatch.setattr(source, "SAMPLE", 1000)
    norms = go(experiment()).record["norms"]
    assert [entry["layer"] for entry in norms] == [0, 0, 3]
    prepared, model = prepare(experiment()), GPT2.from_pretrained("mini")
    sums, rest = np.zeros(2), 0.0
    distinct = sorted({tuple(tokens.ids) for tokens in prepared.tokens})
    for ids in distinct:
        _, cache = model.run_with_cache(torch.tensor([ids]), [("resid_post", 3)], logits=False)
        each = cache["resid_post", 3][0].norm(dim=-1)
        sums += (each[0].item(), 1)
        rest += np.array([each[1:].sum().item(), len(each) - 1])
    found = residual_norms(model, prepared)[2]
    assert found.first_position_norm == pytest.approx(sums[0] / sums[1], rel=1e-4)
    assert found.other_norm == pytest.approx(rest[0] / rest[1], rel=1e-4)


def test_confusions_directions_and_errors_belong_to_the_selected_probe(experiment, go):
    result = go(experiment())
    test = only(placed(result.table), target="task", split="test", metric="accuracy")
    (score,) = same_features(test, chosen_row(result.table))["value"]
    confusion = pd.read_csv(result.folder / "confusion.csv")
    right = confusion.loc[confusion["truth"] == confusion["guess"], "n"].sum()
    assert right / confusion["n"].sum() == pytest.approx(score)

    path = result.folder / "cosines.csv"
    if path.exists():
        cosines = pd.read_csv(path)
        own = cosines["site_a"] == cosines["site_b"]
        assert np.allclose(cosines.loc[own, "cosine"], 1.0)
        assert (cosines.loc[~own, "cosine"].abs() <= 1).all()

    path = result.folder / "wrong.json"
    examples = json.loads(path.read_text())["examples"] if path.exists() else []
    assert bool(examples) == (right < confusion["n"].sum())
    if examples:
        ahead = [example["ahead"] for example in examples]
        assert ahead == sorted(ahead, reverse=True)
        assert all(example["guess"] != example["label"] for example in examples)
        assert len({example["group"] for example in examples}) == len(examples)
    assert {"confusion.csv", "scatter.csv"} <= set(result.record["files"])


def test_tokens_of_errors_are_stored_unchanged(experiment, go, tmp_path):
    # Random labels, so that there are errors.
    rows = pd.read_csv(tmp_path / "rows.csv")
    rows["label"] = np.random.default_rng(0).permutation(rows["label"])
    rows.to_csv(tmp_path / "rows.csv", index=False)
    result = go(experiment(), page=False)
    for example in json.loads((result.folder / "wrong.json").read_text())["examples"]:
        shown = [example["text"][slice(*token["span"])].strip() for token in example["tokens"]]
        assert shown == [token["token"].strip() for token in example["tokens"]]
        assert " ".join(filter(None, shown)).startswith("The ")


def test_projections_show_held_out_rows_only(experiment, go):
    result = go(experiment("split.folds=3"), page=False)
    points = pd.read_csv(result.folder / "scatter.csv")
    # Those of the first of three folds.
    assert 0 < points["method"].eq("PCA").sum() < result.table["n_test"].max() / 2
    axes = points.groupby("method")[["axis_x", "axis_y"]].first()
    assert list(axes.loc["LDA"]) == ["discriminant 1", "component 1 of PCA"]
    assert axes.loc["PCA", "axis_x"].startswith("component 1 (")
