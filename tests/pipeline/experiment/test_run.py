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
from probekit.experiment.loader import load_experiment
from probekit.model.families.gpt2 import GPT2
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.experiment import steps
from probekit.pipeline.look import lenses
from probekit.pipeline.look.lenses import residual_norms
from probekit.pipeline.measure import probing
from probekit.pipeline.measure.probing import make_probers
from probekit.pipeline.measure.record import findings
from probekit.probes.targets import NETWORKS
from probekit.results.table import RESULTS, only
from tests.pipeline.planted import FAST, Planted
from tests.pipeline.scale import Heard
from tests.pipeline.texts import text_of


def test_run_finds_the_planted_signal_and_writes_all_files(planted, snapshot):
    result = planted.run()
    table = pd.read_csv(result.results)
    assert list(table.columns) == [column.name for column in RESULTS]
    kept = load_file(result.folder / "attention.safetensors")
    expected = head_scores(torch.from_numpy(kept["0"]), torch.arange(len(kept["0"][0, 0])))
    for name in HEAD_SCORES:  # the text repeats no token
        np.testing.assert_allclose(kept[f"0.{name}"], expected[name], rtol=1e-5)
    assert kept["0.first_token"].std() > 0
    # The embedding of the last word does not encode the colour; the residual after block 3 does.
    tested = only(table, metric="accuracy", split="test")
    task = only(tested, target="task").set_index("site")["value"]
    assert task["blocks.0.hook_resid_pre"] < 0.7
    assert task["blocks.3.hook_resid_post"] > 0.9
    for baseline in ("majority", "word_identity"):
        assert only(tested, target=baseline)["value"].tolist() == [0.5]
    record = json.loads((result.folder / "run.json").read_text())
    assert record["versions"]["products on CPU"] in ("oneDNN", "MKL", "torch")
    chosen = only(table, split="validation", target="task")
    assert record["verdict"]["best"]["site"] == chosen.loc[chosen["value"].idxmax(), "site"]
    assert {
        "targets": sorted(set(table["target"])),
        "labels": record["data"]["labels"],
        "files of the model": record["model"]["compared_with"],
        "digests": sorted(record["digests"]),
    } == snapshot
    assert [entry["layer"] for entry in record["norms"]] == [0, 0, 3]
    assert not any(one["massive"] or one["read"]["last"] for one in record["norms"])
    assert "Is the second word readable" in result.report.read_text()
    assert load_experiment(result.folder / "config.yaml") == planted.load().on_device("cpu")


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


def test_many_examples_without_a_row_cause_a_warning(own):
    rows = own.folder / "rows.csv"
    rows.write_text(rows.read_text().replace(" was,", " was there,"))
    assert {len(tokens.ids) for tokens in prepare(own.load()).texts.tokens} == {4, 5}
    for index, level in {3: None, 4: "warning"}.items():
        experiment = own.load(f"tokens.position={{at: index, index: {index}}}", *FAST)
        rows = prepare(experiment).design
        found = {one.code: one.level for one in findings(rows, make_probers(experiment, rows))}
        assert found.get("lost") == level


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_run_completes_without_a_control_or_page(planted, dtype):
    result = planted.run(f"model.dtype={dtype}", *FAST, page=False)
    assert result.record["verdict"]["best"]["site"] != "blocks.0.hook_resid_pre"
    assert not set(result.table["target"]) & {"random_weights", "chosen_random_weights", *NETWORKS}
    assert result.report is None
    assert not (result.folder / "report.html").exists()


@pytest.mark.parametrize("override", text_of("invalid_overrides.txt").splitlines())
def test_invalid_experiments_are_refused_before_anything_is_written(tmp_path, override, refused):
    refused(Planted(tmp_path).run, override)
    assert not (tmp_path / "runs").exists()
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(("policy", "n_rows"), [("truncate", 97), ("skip", 96)])
def test_long_texts_follow_the_policy_and_are_counted(own, policy, n_rows, refused):
    with (own.folder / "rows.csv").open("a") as file:
        file.write(f"{'The red house was ' * 80},red,long\n")
    refused(lambda: prepare(own.load()))
    prepared = prepare(own.load(f"tokens.too_long={policy}"))
    assert len(prepared.design.labels) == n_rows
    notes = prepared.design.dataset.notes
    assert any("longer than the context" in note for note in notes) == (policy == "skip")
    cut = [one.message for one in prepared.design.findings if one.code == "truncated"]
    data = own.run(*FAST, f"tokens.too_long={policy}", page=False).record["data"]
    assert data["n_rows"] == n_rows
    assert cut == [one["message"] for one in data["findings"] if one["code"] == "truncated"]
    if policy == "skip":
        assert not cut
        return
    assert cut[0].startswith("1 of 97 examples was truncated to the context of 256 tokens (")
    # Baselines and the checks of repeated texts read what the model read.
    assert prepared.design.texts[-1] == prepared.texts.tokenizer.decode(prepared.texts.ids[-1])
    assert len(prepared.texts.ids[-1]) == 256
    assert prepared.design.texts[0] == "The red house was"


@pytest.mark.parametrize("at", ["last", "mean", "all"])
def test_massive_tokens_are_found_where_they_are(own, monkeypatch, at):
    monkeypatch.setattr(lenses, "SAMPLE", 1000)
    prepared, model = prepare(own.load(f"tokens.position.at={at}")), GPT2.from_pretrained("mini")
    is_red = own.rows["label"].eq("red").to_numpy()
    red = prepared.texts.ids[int(is_red.argmax())][1]
    assert prepared.texts.tokenizer.strings([red]) == [" red"]
    model.wte.weight.data[red] *= 60
    of_rows = {}
    for ids in {tuple(ids.tolist()) for ids in prepared.texts.ids}:
        _, cache = model.run_with_cache(torch.tensor([ids]), [("resid_pre", 0)], logits=False)
        of_rows[ids] = cache["resid_pre", 0][0].norm(dim=-1)
    found = residual_norms(model, prepared.texts, prepared.design)[0]
    assert found.site == "blocks.0.hook_resid_pre"
    first, others = ([n[part] for n in of_rows.values()] for part in (slice(1), slice(1, None)))
    assert found.first_position_norm == pytest.approx(np.median(torch.cat(first)), rel=1e-5)
    assert found.other_norm == pytest.approx(np.median(torch.cat(others)), rel=1e-5)
    assert (found.n_texts, found.massive) == (len(is_red), [(" red", is_red.sum(), 1, 1)])
    n_tokens = sum(len(ids) - 0 for ids in prepared.texts.ids)
    share = {"last": 0, "mean": is_red.mean(), "all": is_red.sum() / n_tokens}[at]
    assert found.read == {at: pytest.approx(share)}
    other = prepare(own.load("tokens.position={at: mean, skip_massive: true}"))
    assert residual_norms(model, other.texts, other.design)[0].read == {}


@pytest.mark.parametrize(("available", "expected"), [(0.5, 1), (2.5, 2), (100, 4)])
def test_as_many_sites_are_probed_at_once_as_memory_allows(own, monkeypatch, available, expected):
    monkeypatch.setattr(probing, "probing_bytes", lambda probers, widths: 10**9)
    monkeypatch.setattr(steps, "available_memory", lambda: available * 1e9)
    monkeypatch.setattr(steps, "cpu_count", lambda: 4)
    monkeypatch.setattr(probing, "probe_sites", lambda *given: pytest.fail(f"{given[5]} processes"))
    with pytest.raises(pytest.fail.Exception, match=f"{expected} processes"):
        own.run()
