"""The interventions of an experiment file: tables, resuming, rows that are left out, errors."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from probekit import GPT2, Tokenizer, open_run, run
from probekit.errors import MissingError
from probekit.experiment.loader import load_experiment
from probekit.interventions.edits import replace, run_edited
from probekit.pipeline.engines import network
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.experiment.validate import validate
from probekit.pipeline.intervene import steps
from probekit.pipeline.intervene.inputs import cause_inputs
from probekit.pipeline.intervene.run import intervene, predicted_work, steps_of
from probekit.report.causes.cause_words import cause_caveats
from probekit.report.pages.run_page import run_figures, write_report
from probekit.report.sentences.caveats import merged
from probekit.results.causes import CauseTables
from probekit.results.record import check_finished
from probekit.results.table import only
from tests.pipeline.intervene.cause_experiment import YAML, write_experiment
from tests.pipeline.texts import text_of
from tests.stored import portable

RESID, FIRST = "blocks.3.hook_resid_post", "blocks.1.hook_resid_post"
ANSWERS = "{answer: nearest_verb, wrong: nearest_other}"
MEASURE = f"{{logit_difference: {ANSWERS}}}"
PATCH = "do: patch, from: counterfactual"
STEER = "do: steer, along: mean_difference"
HEAD = "blocks.2.attn.hook_z[head=1]"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The experiment and the tables of `intervene`."""
    folder = tmp_path_factory.mktemp("causes")
    experiment = load_experiment(write_experiment(folder))
    return experiment, intervene(experiment, out=folder / "runs", progress=False)


@pytest.fixture
def go(tmp_path):
    """A function that writes the experiment with another text and returns its tables."""
    out = tmp_path / "runs"
    return lambda text: intervene(write_experiment(tmp_path, text), out=out, progress=False)


def with_steps(*steps, measure=MEASURE):
    """The experiment with other edits, and one measure."""
    lines = [*(f"  - {{{step}}}" for step in steps), f"measure: [{measure}]"]
    return YAML[: YAML.index("  - {do: patch")] + "\n".join(lines) + "\n"


def test_a_patch_has_the_effect_of_a_whole_pass_with_the_counterfactual(done):
    experiment, tables = done
    patched = only(tables.effects, do="patch", site=RESID, at="probed")
    (row,) = only(patched, measure="logit_difference").iloc
    frame = pd.read_csv(f"{experiment.data.root}/nouns.csv")
    design = prepare(experiment).design
    assert len(design.splits[0].test) == tables.record.n
    tested = frame[frame["group"].isin(design.dataset.groups[design.examples[0].test])]
    model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    effects = []
    for _, example in tested.iterrows():
        base, source = (
            tokenizer.batch([example[name]], bos=False) for name in ("text", "nearest_flipped")
        )
        last = torch.tensor([base.ids.shape[1] - 1])
        _, cache = model.run_with_cache(source, [RESID])
        logits = run_edited(model, base, [(RESID, replace(cache[RESID], last))])[0, -1]
        right, wrong = (
            int(tokenizer.encode(example[name], bos=False).ids[0])
            for name in ("nearest_verb", "nearest_other")
        )
        before = model(base)[0, -1]
        effects.append(float((logits[right] - logits[wrong]) - (before[right] - before[wrong])))
    assert (row["n"], row["effect"]) == (len(effects), pytest.approx(np.mean(effects), rel=1e-4))
    assert row["edited"] - row["base"] == pytest.approx(row["effect"])
    assert row["recovery"] == pytest.approx(row["effect"] / (row["source"] - row["base"]))


def test_every_edit_and_measure_has_its_rows(done, snapshot):
    _, tables = done
    heads = only(tables.effects, do="ablate", measure="kl")
    assert (heads["edited"] >= 0).all()
    assert (heads["source"].isna() & heads["recovery"].isna()).all()
    for table, columns in (
        (tables.effects, ["do", "site", "head", "at", "measure"]),
        (tables.verdicts, ["question"]),
        (tables.doses, ["by"]),
        (tables.downstream, ["site"]),
    ):
        assert table[columns].to_csv(index=False) == snapshot
    assert (tables.record.classes, tables.record.answers) == snapshot
    # `mini` follows the nearest noun, so its direction moves the verb.
    found = tables.verdicts.set_index("question")
    assert found.loc["steers", "effect"] > 0.5
    assert found.loc["swap", "effect"] > 0.3
    assert found.loc["steers", "p"] == 1 / (1 + 59)


def test_a_second_call_computes_nothing_and_damaged_parts_are_computed_again(done, monkeypatch):
    experiment, tables = done
    before = (tables.run_dir / "causes" / "effects.csv").read_bytes()
    parts = sorted((tables.run_dir / "causes" / "parts").iterdir())
    out = tables.run_dir.parents[1]
    monkeypatch.setattr(steps, "causal_test", None)  # would fail
    times = [path.stat().st_mtime_ns for path in parts]
    intervene(experiment, out=out, progress=False)
    assert times == [path.stat().st_mtime_ns for path in parts]
    patched = next(path for path in parts if b'"patch"' in path.read_bytes())
    patched.write_bytes(patched.read_bytes()[:-20])
    intervene(experiment, out=out, progress=False)
    assert (tables.run_dir / "causes" / "effects.csv").read_bytes() == before
    assert [p for p, t in zip(parts, times, strict=True) if p.stat().st_mtime_ns != t] == [patched]


def test_a_run_writes_the_same_tables_and_the_chosen_site_is_in_the_stream(done, tmp_path):
    _, tables = done
    text = with_steps(
        "do: erase, along: mean_difference, draws: 59",
        "do: swap, along: mean_difference, rank: 1, draws: 59",
        f"{STEER}, by: [-2, 2], draws: 59",
        f"{PATCH}, sites: {RESID}",
    )
    path = write_experiment(tmp_path, text)
    result = run(path, out=tmp_path / "runs", progress=False, page=False)
    found = CauseTables.open(result.folder)
    assert set(found.verdicts["site"]) == {FIRST}
    pd.testing.assert_frame_equal(found.verdicts, tables.verdicts)
    pd.testing.assert_frame_equal(found.doses, tables.doses)
    assert "causes/effects.csv" in (result.folder / "run.json").read_text()


def test_doses_beyond_the_range_of_the_data_are_reported(tmp_path):
    steps = (f"{STEER}, by: {by}, sites: {FIRST}, draws: 59" for by in ("[9, -1]", "[1, -9]"))
    path = write_experiment(tmp_path, with_steps(*steps), n_rows=32)
    tables = intervene(path, out=tmp_path / "runs", progress=False)
    assert tables.doses["by"].tolist() == [-1, 1]
    (warning,) = tables.record.warnings
    assert "Doses -9 and 9 along mean_difference are left out at 1 site" in warning
    assert re.search(rf"range of the data.*: {re.escape(FIRST)} \(at most [1-8]\.\d\)", warning)
    assert "Doses -9 and 9" in (tables.run_dir / "causes.html").read_text()
    assert tables.record.preferred is None  # no pairs are compared


def test_pairs_that_the_network_answers_wrongly_are_a_warning(done, go):
    _, right = done
    assert right.record.preferred > 0.75
    assert right.record.warnings == ()
    assert (only(right.effects, measure="logit_difference")["base"] > 0).all()
    swapped = MEASURE.replace(ANSWERS, "{answer: nearest_other, wrong: nearest_verb}")
    tables = go(with_steps(f"{PATCH}, sites: {RESID}", measure=swapped))
    assert (tables.effects["base"] < 0).all()
    (warning,) = tables.record.warnings
    (first, *_) = merged(cause_caveats(tables))
    share = f"in {100 * tables.record.preferred:.0f} % of 32 test texts"
    assert (first.kind, first.message) == ("wrong-answers", warning)
    assert share in warning
    assert share in (tables.run_dir / "causes.html").read_text().replace("\xa0", " ")


def test_interventions_alone_are_opened_and_have_a_page(done):
    _, tables = done
    pd.testing.assert_frame_equal(open_run(tables.run_dir).effects, tables.effects)
    page = tables.run_dir / "causes.html"
    before = page.read_bytes()
    page.unlink()
    assert write_report(tables.run_dir) == page
    assert page.read_bytes() == before
    assert len(run_figures(tables.run_dir)) >= 3
    with pytest.raises(
        MissingError, match=r"`probekit run` writes runs .* `probekit intervene` runs no"
    ):
        check_finished(tables.run_dir)


def test_rows_that_cannot_be_compared_are_left_out_with_the_reason(tmp_path, snapshot):
    path = write_experiment(tmp_path)
    rows = pd.read_csv(tmp_path / "nouns.csv")
    rows.loc[0, "nearest_flipped"] = "The farmer"
    rows.loc[1, "nearest_flipped"] = rows.loc[1, "text"]
    rows.loc[2, "nearest_verb"] = " is not"
    rows.loc[3, "nearest_other"] = rows.loc[3, "nearest_verb"]
    rows.loc[4, "nearest_flipped"] = ""
    rows.loc[[6, 9], "nearest_verb"] = rows.loc[[6, 9], "nearest_verb"].str.strip()
    rows.to_csv(tmp_path / "nouns.csv", index=False)
    reported = ("interventions", "unspaced-answers")
    *messages, cost = [one.message for one in validate(path).findings if one.code in reported]
    assert "MB for the activations" in cost
    assert portable("\n".join(messages), tmp_path) == snapshot


@pytest.mark.parametrize("mistake", text_of("invalid_causes.txt").splitlines())
def test_mistakes(go, refused, mistake):
    """A line has a text of the file and its replacement."""
    old, new = mistake.split(" => ")
    assert old in YAML
    refused(go, YAML.replace(old, new))


def test_an_experiment_without_interventions_is_refused(go, refused):
    refused(go, YAML[: YAML.index("interventions:")])


def test_each_fold_edits_its_own_test_rows_at_the_site_that_it_chose(tmp_path):
    text = with_steps(
        f"{PATCH}, sites: [chosen, blocks.5.hook_resid_post]",
        f"{STEER}, by: [-2, 2], sites: chosen, draws: 59",
        f'do: ablate, with: mean, sites: "{HEAD}"',
    )
    text = text.replace("split: {test: 0.5}", "split: {folds: 2}")
    two = "sites: [blocks.0.hook_resid_post, blocks.2.hook_resid_post, ln_"
    text = text.replace(f"sites: [{FIRST}, ln_", two)
    experiment = load_experiment(write_experiment(tmp_path, text, n_rows=32))
    result = run(experiment, out=tmp_path / "runs", progress=False)
    assert result.report.is_file()
    table, inputs = result.table.copy(), cause_inputs(prepare(experiment))
    validated = (table["split"] == "validation") & (table["target"] == "task")
    for fold, best in enumerate(("blocks.0.hook_resid_post", "blocks.2.hook_resid_post")):
        at = validated & (table["fold"] == sorted(table["fold"].dropna().unique())[fold])
        table.loc[at, "value"] = (table["site"][at] == best).astype(float)
    found = steps_of(experiment, inputs, GPT2.from_pretrained("mini"), table)
    found = [(step.folds, [one.site for one in step.selected]) for step in found]
    chosen = [((0,), ["blocks.0.hook_resid_post"]), ((1,), ["blocks.2.hook_resid_post"])]
    named = [((0, 1), [site]) for site in ("blocks.5.hook_resid_post", "blocks.2.attn.hook_z")]
    assert sorted(found) == sorted([*chosen, *named, *chosen])
    tables = CauseTables.open(result.folder)
    n = [len(split.test) for split in inputs.splits]
    patches = tables.effects[tables.effects["do"] == "patch"]
    assert patches[patches["site"] != "blocks.5.hook_resid_post"]["n"].sum() == sum(n)
    assert tables.verdicts[tables.verdicts["question"] == "steers"]["n"].sum() == sum(n)
    (ablation,) = tables.effects[tables.effects["do"] == "ablate"].iloc
    assert ablation["edited"] == pytest.approx(ablated_by_hand(inputs), rel=1e-4)


def ablated_by_hand(inputs):
    """The mean logit difference if each fold's test rows get the mean of its training rows."""
    model, rows = GPT2.from_pretrained("mini"), torch.arange(len(inputs.batch))
    _, cache = model.run_with_cache(inputs.batch, [HEAD])
    at_position, found = cache[HEAD][rows, inputs.position], []
    for split in inputs.splits:
        own = torch.from_numpy(split.test)
        mean = at_position[torch.from_numpy(split.train)].mean(0)

        def ablate(_, value, own=own, mean=mean):
            value[torch.arange(len(own)), inputs.position[own]] = mean
            return value

        logits = model(inputs.batch[own], tap=ablate, sites=[HEAD])
        last = logits[torch.arange(len(own)), inputs.batch.mask[own].sum(1) - 1]
        chosen, numbers = inputs.measures[0][own], torch.arange(len(own))
        found.append(last[numbers, chosen.answer] - last[numbers, chosen.wrong])
    return torch.cat(found).mean().item()


def test_a_mean_at_each_token_has_the_positions_of_the_longest_text_of_all_folds(tmp_path):
    text = with_steps(f'do: ablate, with: mean, at: each, sites: "{HEAD}"')
    path = write_experiment(tmp_path, text.replace("{test: 0.5}", "{folds: 2}"), n_rows=32)
    rows = pd.read_csv(tmp_path / "nouns.csv")
    is_longer = rows["group"] == rows["group"][0]  # of one fold
    columns = ["text", "nearest_flipped"]
    rows.loc[is_longer, columns] = "Today " + rows.loc[is_longer, columns]
    rows.to_csv(tmp_path / "nouns.csv", index=False)
    effects = intervene(path, out=tmp_path / "runs", progress=False).effects
    assert effects["position"].tolist() == [*range(len(effects))]
    assert (effects["n"].iloc[0], effects["n"].iloc[-1]) == (32, 4)


def test_interventions_alone_build_no_random_network(tmp_path, monkeypatch):
    monkeypatch.setattr(network, "random_network", lambda *_: pytest.fail("built"))
    one = with_steps(f"{PATCH}, sites: {RESID}").replace("weights: 0", "weights: 1")
    path = write_experiment(tmp_path, one, n_rows=16)
    assert len(intervene(path, out=tmp_path / "runs", progress=False).effects) == 1


def test_progress_counts_edits_by_their_work(tmp_path):
    """One direction with many permutations takes longer than a patch, and counts for more."""
    patch, steer = f"{PATCH}, sites: {FIRST}", f"{STEER}, sites: {RESID}, draws: 99"
    path = write_experiment(tmp_path, with_steps(patch, steer))
    seen = []
    watcher = SimpleNamespace(progress=lambda *step: seen.append(step), tell=lambda _: None)
    intervene(path, out=tmp_path / "runs", watcher=watcher)
    counts = [done for step, done, _ in seen if step == "interventions"]
    assert counts == sorted(counts)
    assert (counts[-1], seen[-1][2]) == (3, 3)  # with the answers without edits
    assert counts[-2] < 0.5
    source = prepare(load_experiment(path))
    work, n_bytes = predicted_work(source, source.models("task"))
    few = prepare(load_experiment(write_experiment(tmp_path, with_steps(patch))))
    assert work > 10 * predicted_work(few, source.models("task"))[0]
    assert n_bytes > 2**29
