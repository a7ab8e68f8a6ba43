"""Complete runs on small data: the planted signal is found, and finished work is reused."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

from probekit import workers
from probekit.analysis.heads import HEAD_SCORES, head_scores
from probekit.errors import ConfigError, DataError, MissingError
from probekit.experiment.loader import load_experiment
from probekit.model.families.gpt2 import GPT2
from probekit.pipeline.experiment import source
from probekit.pipeline.experiment.prepare import prepare
from probekit.pipeline.experiment.record import findings
from probekit.pipeline.experiment.source import residual_norms
from probekit.pipeline.measure.probing import make_probers
from probekit.probes.targets import NETWORKS
from probekit.results.selection import chosen_row
from probekit.results.table import RESULTS, only, placed, same_features
from tests.pipeline.planted import FAST, Planted, rows_of_sites
from tests.pipeline.scale import Heard


def value(table, target, site, split="test"):
    rows = only(table, target=target, metric="accuracy", split=split)
    return rows[rows["site"] == site]["value"].item() if site else rows["value"].item()


def test_run_finds_the_planted_signal_and_writes_all_files(planted):
    result = planted.run()
    table = pd.read_csv(result.results)
    assert list(table.columns) == [column.name for column in RESULTS]
    baselines = ("majority", "word_identity", "bag_of_words", "n_grams", "length")
    networks = ("random_weights", *NETWORKS[:3], "chosen_random_weights")
    assert set(table["target"]) == {"task", *networks, *baselines}
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
    chosen = only(table, split="validation", target="task")
    assert record["verdict"]["best"]["site"] == chosen.loc[chosen["value"].idxmax(), "site"]
    assert record["data"]["labels"]["test"] == {"black": 12, "red": 12}
    assert record["data"]["labels"]["train"] == {"black": 36, "red": 36}
    files = ("config.json", "merges.txt", "model.safetensors", "vocab.json")
    assert record["model"]["compared_with"] == dict.fromkeys(files, "digests.json")
    models = ("task", *NETWORKS[:3])
    of_models = {f"{what} ({name})" for what in ("weights", "activations") for name in models}
    assert set(record["digests"]) == {"dataset", "tokenizer", "config", *of_models}
    assert "Is the second word readable" in result.report.read_text()
    again = load_experiment(result.folder / "config.yaml")
    assert again == planted.load()


def test_parallel_probing_gives_the_same_numbers(own, monkeypatch):
    monkeypatch.setattr(workers, "START_UP", -1.0)
    monkeypatch.setattr(workers, "cpu_count", lambda: 2)
    found = []
    for n_workers in (1, 2):
        heard = Heard()
        folder = own.run(workers=n_workers, watcher=heard).folder
        done = [done for step, done, _ in heard.steps if step == "probe"]
        assert done == sorted(done)  # although sites start in any order
        paths = [folder / "results.csv", *folder.rglob("sites/*"), *folder.rglob("probes/*.json")]
        found.append({str(path): path.read_bytes() for path in paths})
        shutil.rmtree(folder)
    assert len(found[0]) > 5
    assert found[0] == found[1]


def test_run_and_report_break_ties_identically(planted):
    tied = {"blocks.3.hook_resid_post": (1.0, 1.0), "blocks.0.hook_attn_out": (1.0, 1.0)}
    assert chosen_row(rows_of_sites(tied))["site"] == "blocks.0.hook_attn_out"
    found = planted.run(f"capture.sites={list(tied)}", *FAST, page=False)
    order = [site for site in found.table["site"].unique() if site]
    assert order == ["blocks.0.hook_attn_out", "blocks.3.hook_resid_post"]
    assert found.best.site == chosen_row(found.table)["site"]


def test_many_examples_without_a_row_cause_a_warning(own):
    rows = own.folder / "rows.csv"
    rows.write_text(rows.read_text().replace(" was,", " was there,"))
    assert {len(tokens.ids) for tokens in prepare(own.load()).tokens} == {4, 5}

    def levels(index):
        experiment = own.load(f"tokens.position={{at: index, index: {index}}}", *FAST)
        rows = prepare(experiment)
        return {one.code: one.level for one in findings(rows, make_probers(experiment, rows))}

    assert "lost" not in levels(3)
    assert levels(4)["lost"] == "warning"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_run_completes(planted, dtype):
    result = planted.run(f"model.dtype={dtype}", *FAST)
    assert result.report.is_file()
    assert result.record["verdict"]["best"]["site"] != "blocks.0.hook_resid_pre"


def test_neurons_have_separate_results(planted):
    names = [f"blocks.2.mlp.hook_post[neuron={n}]" for n in (3, 700)]
    result = planted.run(f"capture.sites={names}", *FAST)
    assert set(only(result.table, target="task", split="test")["site"]) == set(names)
    assert result.record["verdict"]["best"]["site"] in names


def test_random_weights_control_can_be_disabled(planted):
    result = planted.run(*FAST, page=False)
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
    tmp_path, override, error, message
):
    own = Planted(tmp_path)
    with pytest.raises(error, match=message):
        own.run(override)
    assert not (tmp_path / "runs").exists()
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(("policy", "n_rows"), [("truncate", 97), ("skip", 96)])
def test_long_texts_follow_the_policy_and_are_counted(own, policy, n_rows):
    with (own.folder / "rows.csv").open("a") as file:
        file.write(f"{'The red house was ' * 80},red,long\n")
    with pytest.raises(
        DataError, match=r"rows\.csv:\d+: the text has .*, but the context has 256 .1 text too"
    ):
        prepare(own.load())
    prepared = prepare(own.load(f"tokens.too_long={policy}"))
    assert len(prepared.labels) == n_rows
    notes = prepared.dataset.notes
    assert any("longer than the context" in note for note in notes) == (policy == "skip")
    cut = [one.message for one in prepared.findings if one.code == "truncated"]
    data = own.run(*FAST, f"tokens.too_long={policy}", page=False).record["data"]
    assert data["n_rows"] == n_rows
    assert cut == [one["message"] for one in data["findings"] if one["code"] == "truncated"]
    if policy == "skip":
        assert not cut
        return
    assert cut[0].startswith("1 of 97 examples was truncated to the context of 256 tokens (")
    # Baselines and the checks of repeated texts read what the model read.
    assert prepared.texts[-1] == prepared.tokenizer.decode(prepared.ids[-1])
    assert len(prepared.ids[-1]) == 256
    assert prepared.texts[0] == "The red house was"


def test_norms_are_reported_per_site(planted, monkeypatch):
    norms = planted.run().record["norms"]
    assert [entry["layer"] for entry in norms] == [0, 0, 3]
    monkeypatch.setattr(source, "SAMPLE", 1000)
    prepared, model = prepare(planted.load()), GPT2.from_pretrained("mini")
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


def test_confusions_directions_and_errors_belong_to_the_selected_probe(planted):
    result = planted.run()
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
