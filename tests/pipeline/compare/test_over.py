"""A saved probe on several networks: the same numbers where nothing changed, drift where it did."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from probekit import GPT2, SavedProbe, Tokenizer, apply_over, load_model
from probekit.chosen.monitor.measure import MONITOR
from probekit.pipeline.experiment.run import run
from probekit.pipeline.pretrain import pretrain
from probekit.report.pages.over_page import over_page
from probekit.results.table import only
from probekit.training.corpus import train_vocabulary
from tests.pipeline.measure.test_monitor import monitor, negatives
from tests.pipeline.planted import MIXED, QUICK, QUICK_SITES, YAML, write_rows
from tests.training.recipes import sentences, tiny_recipe, write_corpus

# Columns that an unchanged network repeats.
SAME = [
    "auroc",
    "auroc_low",
    "auroc_high",
    "mean",
    "sd",
    "fpr",
    "tpr",
    "cosine",
    "retrained",
    "weights",
]


# One site, and labels that follow no rule, so that the probe has errors.
ONE = (MIXED, f"capture.sites=[{QUICK_SITES[1]}]", "split={test: 0.5}")


def probe_of(result):
    """Return the path of the saved probe at the end of block 3."""
    return result.folder / "probes" / QUICK_SITES[1] / "logistic"


def of_stream(name):
    """Return the axis of a parameter of GPT-2 that has features of the residual stream."""
    if name.startswith(("wte", "wpe")) or name.endswith(("c_attn.weight", "c_fc.weight")):
        return 1
    return 0 if "ln_" in name or ".c_proj." in name else None


def turned(network):
    """Return the network with the axes of its residual stream in another order, a rotation."""
    order = torch.randperm(network.config.d_model, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if (axis := of_stream(name)) is not None:
                parameter.copy_(parameter.index_select(axis, order))
    return network


@pytest.fixture(scope="module")
def path(planted):
    """The saved probe of a run with one test set, at the end of block 3."""
    return probe_of(planted.run(*QUICK, *ONE))


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A folder with the weights of mini."""
    folder = tmp_path_factory.mktemp("copied")
    load_model("mini").save_pretrained(folder)
    Tokenizer.from_pretrained("mini").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def over(planted, path, copied):
    """The probe on mini, on the same weights elsewhere and in memory, and on a turned network."""
    networks = ["mini", copied, load_model("mini"), turned(load_model("mini"))]
    return apply_over(path, networks, cache_root=planted.cache)


def test_an_unchanged_network_has_the_same_numbers_and_those_of_the_run(over, path):
    first, *others, _ = over.rows.to_dict("records")
    for other in others:
        assert [other[name] for name in SAME] == [first[name] for name in SAME]
        assert (other["shift"], other["difference"], other["p_adjusted"]) == (0, 0, 1)
    assert first["cosine"] == pytest.approx(1, abs=1e-9)
    table = pd.read_csv(path.parents[2] / "results.csv")
    own = only(table, site=QUICK_SITES[1], target="task", split="test", metric="auroc")
    assert first["auroc"] == pytest.approx(own["value"].item(), abs=1e-12)
    tested = pd.read_csv(path.parents[2] / "predictions.csv")
    called = tested["guess"].eq(over.positive).groupby(tested["truth"]).mean()
    rates = {label: first["tpr" if label == over.positive else "fpr"] for label in called.index}
    assert rates == pytest.approx(called.to_dict(), abs=1e-12)
    assert 0 < first["fpr"] < 1
    assert over.notes == ()


def test_the_command_writes_figures_as_wide_as_a_column(path, planted, tmp_path, call, monkeypatch):
    monkeypatch.setenv("PROBEKIT_CACHE", str(planted.cache))
    out = tmp_path / "over.svg"
    named = ("--out", out, "--width", 3.25)
    done = call("apply", path, "--over", "mini", "mini", *named)
    assert done.code == 0
    assert 'width="234pt"' in out.read_text()  # 3.25 inches
    done = call("apply", path, "--text", "a", "--out", out)
    assert "requires --layers or --over" in done.stderr


def test_a_turned_network_loses_the_fixed_probe_and_not_a_retrained_one(planted, copied):
    path = probe_of(planted.run(*QUICK))
    found = apply_over(path, ["mini", turned(load_model("mini"))], cache_root=planted.cache).rows
    first, last = found.to_dict("records")
    assert first["auroc"] == first["retrained"] == last["retrained"] == 1.0
    assert last["auroc"] < 0.8
    assert abs(last["cosine"]) < 0.3
    assert abs(last["shift"]) > 0.2


def test_the_shift_is_in_standard_deviations_of_the_first_network(over, path):
    first, last = over.rows.iloc[0], over.rows.iloc[-1]
    assert last["shift"] == pytest.approx((last["mean"] - first["mean"]) / first["sd"], abs=1e-12)
    table = pd.read_csv(path.parents[2] / "predictions.csv")
    scores = table["score_red"] - table["score_black"]
    assert first["mean"] == pytest.approx(scores.mean(), abs=1e-4)
    assert first["sd"] == pytest.approx(scores.std(ddof=0), abs=1e-4)


@pytest.mark.parametrize("colour", ["black", "red"])  # the positive is the second label, or first
def test_rates_of_a_monitor_are_those_of_its_run_at_the_stored_threshold(planted, colour):
    negatives(colour).to_csv(planted.folder / f"{colour}.csv", index=False)
    result = planted.run(*monitor(colour))
    for row in pd.read_csv(result.folder / "monitor.csv").to_dict("records"):
        how = {"threshold": row["fpr"], "cache_root": planted.cache}
        found = apply_over(result.folder / MONITOR, ["mini"], **how)
        names = {"tpr": "tpr", "tpr_low": "tpr_low", "fpr": "test_fpr", "fpr_high": "test_fpr_high"}
        own = {name: found.rows[name][0] for name in names}
        assert own == pytest.approx({name: row[of] for name, of in names.items()}, abs=1e-12)
        assert found.positive != colour
        assert f"rate of {row['fpr']:g}" in found.threshold


def test_steps_of_training_are_networks(tmp_path):
    trained = pretrain(tiny_recipe(write_corpus(tmp_path / "texts")), out=tmp_path, progress=False)
    write_rows(tmp_path / "rows.csv")
    yaml = YAML.replace("{source: mini}", "{path: tiny, random_weights: 0}").replace("[03]", "[01]")
    (tmp_path / "rows.yaml").write_text(yaml)
    result = run(tmp_path / "rows.yaml", out=tmp_path, cache_root=tmp_path / "cache", page=False)
    path = result.folder / "probes" / "blocks.1.hook_resid_post" / "logistic"
    steps = [trained.folder / "checkpoints" / f"step-{step:07}" for step in (12, 6, 0)]
    found = apply_over(path, steps, cache_root=tmp_path / "cache")
    assert found.rows["cosine"][0] == pytest.approx(1, abs=1e-6)
    assert found.rows["cosine"][1] > found.rows["cosine"][2]
    assert found.rows["weights"].nunique() == 3
    page = over_page(found.rows, found.positive, found.threshold, found.notes, found.facts).html()
    assert "step-0000006" in page
    assert "hide that the probe in use has drifted" in page


def test_a_probe_of_all_rows_needs_others_and_is_warned_of_its_own(planted, tmp_path, refused):
    folder = planted.run(*QUICK, "split={folds: 3}").folder
    final = folder / "probes" / "final"
    refused(apply_over, final, ["mini"])
    fresh = [
        {"text": f"The {colour} {noun} fell", "label": colour, "group": noun}
        for noun in ("cup", "lamp", "chair", "spoon")
        for colour in ("red", "black")
    ]
    rows = pd.DataFrame(fresh)
    rows.to_csv(tmp_path / "fresh.csv", index=False)
    found = apply_over(final, ["mini"], on=tmp_path / "fresh.csv", cache_root=planted.cache)
    assert found.facts["rows"] == "8 in 4 groups"
    assert found.notes == ()
    mixed = pd.concat([rows, planted.rows.head(2)])
    mixed.to_csv(tmp_path / "mixed.csv", index=False)
    found = apply_over(final, ["mini"], on=tmp_path / "mixed.csv", cache_root=planted.cache)
    assert "2 of 10 labelled texts are among the rows of the run" in found.notes[0]
    rows.assign(label="green").to_csv(tmp_path / "other.csv", index=False)
    refused(apply_over, final, ["mini"], on=tmp_path / "other.csv", cache_root=planted.cache)


def test_networks_that_a_probe_does_not_fit_are_refused(path, tmp_path, refused):
    tokenizer, config = Tokenizer.from_pretrained("mini"), load_model("mini").config
    for name, changes in {"narrow": {"n_embd": 8}, "shallow": {"n_layer": 2}}.items():
        GPT2(replace(config, **changes)).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        refused(apply_over, path, ["mini", tmp_path / name])
    refused(apply_over, path, [])
    refused(apply_over, path, "mini")
    refused(apply_over, path, ["mini"], threshold=0.01)
    SavedProbe.load(path).save(tmp_path / "alone")
    refused(apply_over, tmp_path / "alone", ["mini"])


def test_another_vocabulary_is_refused_with_a_text_that_it_reads_otherwise(own, tmp_path, refused):
    path = probe_of(own.run(*QUICK, *ONE, page=False))
    train_vocabulary([sentences(0, 400)], 300, tmp_path / "other")
    small = GPT2(replace(load_model("mini").config, vocab_size=300))
    small.save_pretrained(tmp_path / "other")
    refused(apply_over, path, ["mini", tmp_path / "other"])


def test_the_command_prints_the_table_and_writes_the_page(path, copied, call, snapshot):
    """Networks follow `--over` without repeating it."""
    arguments = ("apply", path, "--over", "mini", copied, "--device", "cpu")
    answer = call(*arguments, "--out", "over.html")
    assert answer.code == 0, answer.stderr
    assert answer.stdout == snapshot
    assert "Does the probe still work on other networks?" in Path("over.html").read_text()
    assert call(*arguments, "--out", "over.csv").code == 0
    assert len(pd.read_csv("over.csv")) == 2
    for wrong in (
        ("mini",),
        ("--on", "rows.csv"),
        ("--over", "mini", "--text", "A dog"),
        ("--over", "mini", "--per", "token"),
        ("--over", "mini", "--out", "rows.jsonl"),
    ):
        refused = call("apply", path, *wrong)
        assert refused.code == 2
        assert refused.stderr == snapshot
