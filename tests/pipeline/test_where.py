"""Complete runs over heads, views, concatenations and positions give consistent scores."""

import numpy as np
import pandas as pd
import pytest

from probekit.activations.store import ActivationStore
from probekit.errors import ConfigError, DataError
from probekit.pipeline.compare.compare import compare
from probekit.pipeline.experiment.prepare import prepare
from probekit.pipeline.experiment.run import run
from probekit.pipeline.measure.probing import make_probers
from probekit.probes.prober import Prober
from probekit.results.selection import fold_choices, headline_row, site_with_head
from probekit.results.table import load_table, only
from tests.pipeline.planted import NOUNS, Planted

SITE = "capture.sites=[blocks.2.hook_resid_post]"
COLUMNS = "data.columns={group: group, start: start, end: end}"
FEW = ("probe={folds: 2, control_draws: 1, C: [0.1]}", "attention.texts=[]")


@pytest.fixture
def experiment(tmp_path):
    place = Planted(tmp_path)
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
    return lambda *overrides: place.load(*common, *overrides)


@pytest.fixture
def go(tmp_path):
    def go(experiment, page=False):
        return run(experiment, out=tmp_path / "runs", cache_root=tmp_path / "cache", page=page)

    return go


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
    chosen = {row["position"] for row in fold_choices(table)}
    assert chosen == {"word:last-1"}  # the word with the colour
    headline = headline_row(table)
    assert (headline["position"], headline["value"]) == ("", 1.0)
    assert result.record["verdict"]["best"]["position"] == "word:last-1"
    # Baselines are compared at the position that each fold chose.
    words = table[(table["target"] == "word_identity") & (table["metric"] == "accuracy")]
    by_position = words.set_index("position")["value"]
    assert by_position[""] == by_position["word:last-1"] > by_position["word:last"]
    differences = pd.read_csv(result.folder / "differences.csv").set_index("b")
    assert differences.loc["word_identity", "value_b"] == by_position[""]
    assert (result.folder / "probes" / "final.json").exists()
    assert "fold choice" in result.report.read_text()


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
    found = numbers(swept.table, position="word:last-1", target="word_identity", metric="accuracy")
    assert found["value"].item() == 1
    found = numbers(swept.table, position="word:last", target="word_identity", metric="accuracy")
    assert found["value"].item() == 0.5


def test_sweep_excludes_and_reports_examples_without_an_offset(experiment):
    prepared = prepare(experiment("tokens.sweep=[0, 2]"))
    assert [len(at.types) for at in prepared.positions] == [40, 40]
    assert len(prepared.plan.example) == 80
    (note,) = prepared.dataset.notes
    assert note.startswith(
        "1 example dropped, because a token is missing at one of the offsets 0, 2"
    )
    assert note.endswith("no token 2 after the span")
    assert len(prepare(experiment()).labels) == 41


def test_sweep_rows_are_at_their_offsets(experiment):
    prepared = prepare(experiment("tokens.sweep=[1, -1]", "tokens.bos=true"))
    for number, step in enumerate((1, -1)):
        at = prepared.positions[number]
        for row, word in zip(range(number, 80, 2), at.types, strict=True):
            example = prepared.plan.example[row]
            token = prepared.plan.positions[prepared.plan.offsets[row]]
            text = prepared.dataset.examples[example].text.split()
            assert token == 3 + step
            assert word.strip() == text[2 + step]
        assert at.typical.all()


def test_all_offsets_share_folds_and_resamples(experiment):
    swept = experiment("tokens.sweep=[0, 1]", "probe.control_draws=0")
    first, second = make_probers(swept, prepare(swept))
    X = np.random.default_rng(0).normal(size=(40, 3))
    assert first.site(X).measurements == second.site(X).measurements


def test_invalid_offset_is_named(experiment, tmp_path, monkeypatch):
    rows = tmp_path / "rows.csv"
    rows.write_text(rows.read_text().replace("was old", "was new"))
    swept = experiment("tokens.sweep=[0, 2]")

    def refuse(data, settings):
        if len(set(data[0].types)) == 1:  # all last words are "old" or "new"
            raise ConfigError("one word")
        return Prober(data, settings)

    monkeypatch.setattr("probekit.pipeline.measure.probing.Prober", refuse)
    with pytest.raises(ConfigError, match=r"^At word:last\+2: --set probe.*: one word"):
        make_probers(swept, prepare(swept))


def test_sweep_without_complete_examples_is_refused(experiment, tmp_path):
    rows = ["text,label,group,start,end", "The key,a,1,4,7", "key was,b,2,0,3"]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    with pytest.raises(DataError, match=r"2 examples dropped, .* -1, 1.*Use fewer offsets"):
        prepare(experiment("tokens.sweep=[-1, 1]"))


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
    assert [site for site in result.table["site"].unique() if site] == [
        "blocks.0.hook_resid_pre",
        joined,
    ]
    assert result.table.loc[result.table["site"] == joined, "layer"].isna().all()
    assert result.record["verdict"]["best"]["site"] == "blocks.0.hook_resid_pre"
    assert "Concatenated: one probe on the features of several sites" in result.report.read_text()
    assert max(len(path.name) for path in (result.folder / "sites").rglob("*")) < 120


@pytest.fixture
def pair(experiment, go):
    """Two runs over heads and positions, of other seeds."""
    sites = "capture.sites=['blocks.0.hook_resid_post', 'blocks.0.attn.hook_z[head=1,2]']"
    places = ("tokens.position={at: span}", "tokens.sweep=[0, 1]", "probe.permutations=0")
    return [go(experiment(sites, *places, f"probe.seed={seed}")) for seed in (0, 1)]


def test_scores_of_saved_predictions_are_those_of_the_tables(pair):
    found = compare(*(result.folder for result in pair))
    rows = only(found.rows, target="task")
    assert len(only(rows, what="site")) + len(only(rows, what="chosen")) >= 6
    for side, result in zip("ab", pair, strict=True):
        table = only(result.table, target="task", split="test", metric="accuracy")
        sites = map(site_with_head, table["site"], table["head"])
        keys = zip(sites, table["position"], strict=True)
        values = dict(zip(keys, table["value"], strict=True))
        for _, row in rows.iterrows():
            assert row[f"value_{side}"] == values[row[f"site_{side}"], row[f"position_{side}"]]
    assert {"span", "span+1"} == set(rows["position_a"])
    # Predictions are stored with the scores that other metrics need.
    other = compare(*(result.folder for result in pair), metric="auroc")
    table = only(pair[0].table, target="task", split="test", metric="auroc")
    site = only(other.rows, target="task").iloc[-1]
    assert np.isclose(table["value"], site["value_a"], atol=1e-6).any()
    assert any("without auroc" in note for note in other.notes)
