"""Saved probes applied to texts give the scores of their stored rows, and steer their model."""

import contextlib
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

from probekit.activations.store import ActivationStore
from probekit.errors import ConfigError, DataError, StoreError
from probekit.files import read_csv
from probekit.model.families.gpt2 import GPT2, Block
from probekit.model.generation import Decoding, continue_texts
from probekit.model.sites.sites import SiteSelection
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.sources import MINI
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.look import apply
from probekit.pipeline.look.apply import apply_probe, caution, choose_per
from probekit.pipeline.look.exports import ANSWER_FILES, check_ending, write_answers
from probekit.pipeline.measure.probing import projection_sds
from probekit.probes.exports.vector import steering_vector
from probekit.probes.kinds.logistic import LinearProbe
from probekit.probes.probe_files import ProbeFacts
from probekit.probes.saved_probe import SavedProbe
from tests.pipeline.planted import QUICK, QUICK_SITES
from tests.pipeline.scale import Heard
from tests.pipeline.texts import text_of
from tests.report.conftest import seal_run

SITE, HEAD = QUICK_SITES[1], "blocks.1.attn.hook_z[head=3]"
BEYOND = "blocks.9.hook_resid_post"
TEXTS = ("The keys to the old cabinet", "A dog", "The", "The key near the doors of the long house")


def scores(readings):
    return np.concatenate([[answer.score for answer in reading.answers] for reading in readings])


def changed(probe, **facts):
    return SavedProbe(probe.layers, probe.classes, probe.facts.model_copy(update=facts))


def stored(own, *overrides):
    """The saved probe of a run, the texts, and scores and labels of a second probe fitted here."""
    result = own.run(*QUICK, *overrides, page=False)
    saved = map(SavedProbe.load, result.folder.glob("probes/*/logistic.json"))
    probe = max(saved, key=lambda one: len(one.facts.sites))  # that of the concatenation, if any
    store, parts = ActivationStore.open(result.record["caches"]["task"]), []
    for site in probe.facts.sites:
        name, _, head = site.partition("[head=")
        values = store.read(name)
        values = values[:, int(head[:-1])] if head else values
        parts.append(values.reshape(len(values), -1))
    X = np.concatenate(parts, axis=1)
    if probe.facts.view == "normalized":
        X = X - X.mean(axis=1, keepdims=True, dtype=np.float64)
        X /= np.sqrt((X**2).mean(axis=1, keepdims=True) + 1e-5)
    rows = prepare(own.load(*QUICK, *overrides)).design
    train = rows.splits[0].train
    estimator = LinearProbe(C=0.01).fit(X[train], rows.labels[train])
    return probe, own.rows["text"].tolist(), estimator.decision_function(X), estimator.predict(X)


@pytest.mark.parametrize("overrides", text_of("overrides_positions.txt").splitlines())
def test_training_texts_get_the_predictions_of_their_stored_rows(own, overrides):
    own.rows["text"] = own.rows["text"].str.removeprefix("The ")  # first words differ
    own.rows.to_csv(own.folder / "rows.csv", index=False)
    probe, texts, expected, labels = stored(own, f"capture.sites=[{SITE}]", *overrides.split(" & "))
    readings = apply_probe(probe, texts)
    assert [reading.text for reading in readings] == texts
    found = np.array([reading.answer.score for reading in readings])
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert [reading.answer.label for reading in readings] == labels.tolist()
    assert np.abs(found).max() > 1


@pytest.mark.parametrize("bos", [False, True])
def test_scores_do_not_depend_on_batch_or_order(probe, bos):
    probe = changed(probe, bos=bos)
    together = apply_probe(probe, TEXTS)
    alone = [apply_probe(probe, [text])[0] for text in TEXTS]
    for other in (alone, apply_probe(probe, TEXTS[::-1])[::-1]):
        assert [reading.tokens for reading in other] == [reading.tokens for reading in together]
        np.testing.assert_allclose(scores(other), scores(together), atol=1e-4)
    assert np.ptp(scores(together)) > 1
    first, second = apply_probe(probe, [TEXTS[0], TEXTS[0]])
    assert [first] == [second] == apply_probe(probe, TEXTS[0])


@pytest.mark.parametrize("bos", [False, True])
def test_each_token_has_its_characters_and_score(probe, bos):
    probe = changed(probe, bos=bos)
    text = "The keys, größer ✓"
    (reading,) = apply_probe(probe, [text])
    tokenizer, model = Tokenizer.from_pretrained("mini"), GPT2.from_pretrained("mini")
    ids = tokenizer.encode(text, bos=bos).ids
    assert reading.tokens == tuple(tokenizer.strings(ids[int(bos) :]))
    assert "".join(text[slice(*span)] for span in reading.spans[:3]) == "The keys,"
    _, cache = model.run_with_cache(torch.from_numpy(ids)[None], sites=[("resid_post", 3)])
    rows = cache["resid_post", 3][0, int(bos) :].numpy()
    np.testing.assert_allclose(scores([reading]), probe.scores(rows), atol=1e-4)
    assert [a.label for a in reading.answers] == probe.predict(rows).tolist()


def test_a_probe_of_another_tool_is_applied_and_steers_like_ours(probe, tmp_path):
    (weight, bias), rows = probe.layers[0], np.random.default_rng(0).normal(size=(20, 256))
    where = {"site": probe.facts.site, "model": "mini", "classes": probe.classes}
    other = SavedProbe.from_arrays(weight, bias, **where, rows=rows)
    other = SavedProbe.load(other.save(tmp_path / "other"))
    assert apply_probe(other, TEXTS) == apply_probe(probe, TEXTS)
    assert "another tool" in caution(other, "text")[0]
    (unit,) = probe.unit_directions
    np.testing.assert_allclose(steering_vector(other), (rows @ unit).std() * unit)
    with pytest.raises(ConfigError, match="rows"):
        steering_vector(SavedProbe.from_arrays(weight, bias, **where))
    with pytest.raises(ConfigError, match="width: 7 for the probe, 256 for the rows"):
        apply_probe(SavedProbe.from_arrays(weight[:, :7], bias, **where), TEXTS)


def test_multiclass_and_regression_probes_are_applied(probe):
    generator = np.random.default_rng(0)
    layer = generator.normal(size=(3, 256)), np.zeros(3)
    answer = apply_probe(SavedProbe((layer,), ("a", "b", "c"), probe.facts), TEXTS)[0].answer
    assert (answer.score, answer.label) == (max(answer.scores), "abc"[np.argmax(answer.scores)])
    number = SavedProbe((tuple(part[:1] for part in layer),), (), probe.facts)
    assert apply_probe(number, TEXTS)[0].answer.label is None
    hidden = (generator.normal(size=(5, 256)), np.zeros(5)), (np.ones((1, 5)), np.zeros(1))
    assert np.isfinite(apply_probe(SavedProbe(hidden, (), number.facts), TEXTS)[0].answer.score)


@pytest.mark.parametrize("at", ["all", "word", "span"])
def test_probe_of_marked_words_scores_tokens_only(probe, at):
    marked = changed(probe, position={"at": at, "pieces": "last", "skip_first": True})
    assert all(reading.answer is None for reading in apply_probe(marked, TEXTS))
    assert choose_per(marked, None) == "token"
    with pytest.raises(ConfigError, match=f"trained at: {at}"):
        choose_per(marked, "text")
    assert choose_per(probe, None) == "text"
    assert bool(caution(marked, "token")) == (at != "all")
    text = "".join(caution(marked, "token"))
    assert ("is not marked in new texts: each row is one token" in text) == (at in ("span", "word"))
    assert caution(probe, "token")
    assert caution(probe, "text") == []


def test_texts_without_a_prediction_are_marked_or_refused(probe, refused):
    third = changed(probe, position={"at": "index", "index": 2})
    readings = apply_probe(third, TEXTS)
    assert [reading.answer is None for reading in readings] == [False, True, True, False]
    refused(apply_probe, third, TEXTS[2:3])
    for bos in (False, True):
        refused(apply_probe, changed(probe, bos=bos), [])
        refused(apply_probe, changed(probe, bos=bos), ["a", ""])


def test_too_long_texts_are_refused_truncated_or_skipped(probe, refused):
    long = "the key " * 200
    n_tokens = len(Tokenizer.from_pretrained("mini").encode(long, bos=False).ids)
    watcher, three = Heard(), [TEXTS[0], long, TEXTS[1]]
    refused(apply_probe, probe, three)
    refused(apply_probe, probe, [long], too_long="skip")
    cut = apply_probe(probe, three, too_long="truncate", watcher=watcher)
    assert [reading.n_cut for reading in cut] == [0, n_tokens - 256, 0]
    assert [len(reading.answers) for reading in cut[1:]] == [256, 2]
    assert "1 of 3 texts" in watcher.messages[0]
    short = apply_probe(probe, [long, TEXTS[1]], too_long="skip", watcher=watcher)
    assert [reading.text for reading in short] == [TEXTS[1]]
    assert "skipped" in watcher.messages[1]


@pytest.fixture
def other_model(tmp_path):
    """A folder with a model of the same sizes as mini and other weights."""
    folder = tmp_path / "other"
    shutil.copytree(MINI, folder)
    tensors = safetensors.torch.load_file(MINI / "model.safetensors")
    tensors["transformer.ln_f.bias"] = tensors["transformer.ln_f.bias"] + 1
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    (folder / "digests.json").unlink()
    return str(folder)


@pytest.mark.parametrize(("key", "value"), [("n_head", 2), ("layer_norm_epsilon", 1e-3)])
def test_config_is_part_of_the_model_identity(probe, other_model, key, value):
    shutil.copy(MINI / "model.safetensors", other_model)
    same = apply_probe(changed(probe, model="gone/away"), TEXTS, model=other_model)
    np.testing.assert_array_equal(scores(same), scores(apply_probe(probe, TEXTS)))
    config = json.loads((MINI / "config.json").read_text()) | {key: value}
    Path(other_model, "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=rf"{key}s?: \S+ for the probe, {value} for the rows"):
        apply_probe(probe, TEXTS, model=other_model)
    older = changed(probe, n_heads=None, layer_norm_epsilon=None)
    assert apply_probe(older, TEXTS, model=other_model)


def test_different_model_requires_the_option(probe, other_model):
    with pytest.raises(ConfigError, match=r"(?s)weights: .* for the probe.*--allow-other-model"):
        apply_probe(probe, TEXTS, model=other_model)
    heard, allowed = Heard(), {"model": other_model, "allow_other_model": True}
    assert len(apply_probe(probe, TEXTS, watcher=heard, **allowed)) == len(TEXTS)
    assert "is not the model that the probe was fitted on" in heard.messages[0]


def test_a_probe_of_another_network_is_refused(probe, refused):
    for name, value in {"tokenizer": "other", "model": "./gone", "sites": (BEYOND,)}.items():
        refused(apply_probe, changed(probe, **{name: value}), TEXTS)
    # Another width is always refused.
    refused(apply_probe, changed(probe, sites=(HEAD,)), TEXTS, allow_other_model=True)


def test_nan_activations_are_reported_and_not_scored(probe, other_model):
    weights = Path(other_model, "model.safetensors")
    tensors = safetensors.torch.load_file(weights)
    # The weights are finite, as loading requires, but their squares are not.
    tensors["transformer.wte.weight"] = torch.full(tensors["transformer.wte.weight"].shape, 3e38)
    safetensors.torch.save_file(tensors, weights)
    with pytest.raises(DataError, match="NaN or infinity"):
        apply_probe(probe, TEXTS, model=other_model, allow_other_model=True)


def test_forward_pass_stops_at_the_site_of_the_probe_and_progress_includes_all_rows(
    probe, monkeypatch
):
    reached, heard, original = [], Heard(), Block.forward

    def counting(self, *arguments):
        reached.append(self)
        return original(self, *arguments)

    monkeypatch.setattr(Block, "forward", counting)
    (reading,) = apply_probe(probe, TEXTS[:1], watcher=heard)
    assert len(reached) == 4
    n_rows = len(reading.answers) + 1
    assert heard.steps[-1] == ("apply", n_rows, n_rows)


def test_the_probes_of_all_layers_score_each_token_as_alone_in_one_pass(planted, monkeypatch):
    run, reached, original = planted.run(*QUICK).folder, [], Block.forward
    monkeypatch.setattr(Block, "forward", lambda *given: reached.append(1) or original(*given))
    selected, probes = apply.layer_probes(run)
    layers = list(zip(probes, apply.apply_probes(probes, TEXTS), strict=True))
    assert len(reached) == 4  # those of one batch, up to the deepest site
    assert tuple(probe.facts.site for probe, _ in layers) == QUICK_SITES
    assert selected.facts.site == SITE
    for probe, readings in layers:
        alone = apply_probe(probe, TEXTS)
        np.testing.assert_allclose(scores(readings), scores(alone), atol=1e-4)
        assert [one.place for one in readings] == [len(one.tokens) - 1 for one in readings]
        for one, other in zip(readings, alone, strict=True):
            assert one.answer.score == pytest.approx(other.answer.score, abs=1e-4)
            assert [x.label for x in one.answers] == [x.label for x in other.answers]


def test_layers_need_the_folder_of_a_run_with_several_saved_probes(planted, tmp_path, refused):
    shutil.copytree(planted.run(*QUICK).folder, tmp_path / "run")
    place = Path("run")
    with contextlib.chdir(tmp_path):
        for path in (place / "probes" / SITE / "logistic", Path("none")):
            refused(apply.layer_probes, path)
        refused(apply.apply_probes, apply.layer_probes(place)[1], ["a", ""])
        # A layer is not left out of the map because its file is missing.
        shutil.rmtree(place / "probes" / QUICK_SITES[0])
        refused(apply.layer_probes, place)
        seal_run(place)  # as a run without saved probes
        refused(apply.layer_probes, place)
        (place / "results.csv").write_bytes(b"")
        refused(apply.layer_probes, place)


STEERED = "blocks.2.hook_resid_post"
PROMPTS = ["The old man", "She said that the"]
DECODING = Decoding(6)


@pytest.fixture(scope="module")
def network():
    model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    return apply.ProbedModel(model, tokenizer, (SiteSelection(STEERED),))


def probe_of(classes=("no", "yes"), **facts):
    n = len(classes) if len(classes) > 2 else 1
    weights = np.random.default_rng(0).normal(size=(n, 256))
    given = dict.fromkeys(("weights", "tokenizer", "cache", "created"), "")
    given |= {"kind": "logistic", "scores_are_logits": True, "sites": (STEERED,), "model": "mini"}
    given |= {"position": {"at": "last"}, "bos": False, "seed": 0, "versions": {}}
    given |= {"compute": "float32", "dtype": "float32"}
    given |= {"projection_sd": tuple(np.arange(2.0, 2.0 + n).tolist())}
    return SavedProbe(((weights, np.zeros(n)),), classes, ProbeFacts(**(given | facts)))


def test_the_vector_is_one_standard_deviation_long_towards_a_label_or_higher_numbers(refused):
    probe, many, number = probe_of(), probe_of(("a", "b", "c")), probe_of(())
    for vector, expected in (
        (steering_vector(probe), 2.0 * probe.unit_directions[0]),
        (steering_vector(probe, "yes"), 2.0 * probe.unit_directions[0]),
        (steering_vector(probe, "no"), -2.0 * probe.unit_directions[0]),
        (steering_vector(many, "c"), 4.0 * many.unit_directions[2]),
        (steering_vector(number), 2.0 * number.unit_directions[0]),
    ):
        np.testing.assert_allclose(vector, expected)
    refused(steering_vector, many)
    refused(steering_vector, many, "d")
    refused(steering_vector, number, "high")


def test_probes_that_cannot_steer_are_refused(refused):
    refused(steering_vector, probe_of(sites=(STEERED, "hook_embed")))
    refused(steering_vector, probe_of(view="normalized"))
    refused(steering_vector, probe_of(projection_sd=()))


def test_a_dose_of_0_changes_nothing(network):
    vector = steering_vector(probe_of())
    found = apply.steered_texts(network, PROMPTS, DECODING, vector, 0.0, bos=False)
    assert found == continue_texts(network.model, network.tokenizer, PROMPTS, DECODING, bos=False)


def test_every_token_is_steered_with_the_cache_as_without(network):
    vector = steering_vector(probe_of())
    found = apply.steered_texts(network, PROMPTS, DECODING, vector, 40.0, bos=False)
    shift = torch.from_numpy(40.0 * vector).float()
    for prompt, [continuation] in zip(PROMPTS, found, strict=True):
        ids = torch.from_numpy(network.tokenizer.encode(prompt, bos=False).ids)[None]
        for expected in continuation.ids:
            with torch.no_grad():
                logits = network.model(ids, tap=lambda _, x: x + shift, sites=[STEERED])
            assert int(logits[0, -1].argmax()) == expected
            ids = torch.cat([ids, torch.tensor([[expected]])], dim=1)
    assert found != apply.steered_texts(network, PROMPTS, DECODING, vector, 0.0, bos=False)


def test_another_site_of_the_width_can_be_steered(network, refused):
    vector = steering_vector(probe_of())
    other = "blocks.4.hook_resid_post"
    found = apply.steered_texts(network, PROMPTS, DECODING, vector, 40.0, bos=False, site=other)
    assert found != apply.steered_texts(network, PROMPTS, DECODING, vector, 40.0, bos=False)
    given = {"bos": False, "site": "blocks.4.mlp.hook_post"}
    refused(apply.steered_texts, network, PROMPTS, DECODING, vector, 1.0, **given)


def test_standard_deviations_are_those_of_the_fitted_rows():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(30, 5)).astype(np.float32)
    weights, rows = generator.normal(size=(3, 5)), np.arange(4, 25)
    unit = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    found = projection_sds(((weights, np.zeros(3)),), X, rows)
    assert found == pytest.approx((X[rows].astype(float) @ unit.T).std(axis=0).tolist())
    assert projection_sds(((weights, np.zeros(3)), (np.ones((1, 3)), np.zeros(1))), X, rows) == ()
    assert projection_sds(((np.zeros((1, 5)), np.zeros(1)),), X, rows) == ()


CELLS = ("The keys to the old, old cabinet", 'A "dog"', "=cmd|' /C calc'!A0", "-1")


@pytest.fixture(scope="module")
def readings(probe):
    return apply_probe(probe, CELLS)


def test_tables_contain_the_predictions(probe, readings, tmp_path):
    path = write_answers(tmp_path / "a.csv", readings, probe, "text")
    table = read_csv(path)
    lines = write_answers(tmp_path / "a.jsonl", readings, probe, "text").read_text()
    rows = [json.loads(line) for line in lines.splitlines()]
    assert pd.read_csv(path)["text"].tolist() == [*CELLS[:2], *(f"'{text}" for text in CELLS[2:])]
    for found in (table.to_dict("records"), rows):
        assert [row["text"] for row in found] == list(CELLS)
        assert [row["label"] for row in found] == [r.answer.label for r in readings]
        expected = [reading.answer.score for reading in readings]
        np.testing.assert_allclose([row["score"] for row in found], expected, rtol=1e-9)


def test_drafts_of_killed_processes_are_removed(probe, readings, tmp_path):
    own, other = (tmp_path / f".{name}.csv.{'0' * 16}" for name in ("a", "b"))
    own.touch()
    other.touch()
    write_answers(tmp_path / "a.csv", readings, probe, "text")
    assert not own.exists()
    assert other.exists()


def test_tokens_of_the_table_concatenate_to_the_text(probe, readings, tmp_path):
    table = read_csv(write_answers(tmp_path / "a.csv", readings, probe, "token"))
    for number, text in enumerate(CELLS, start=1):
        rows = table[table["number"] == number]
        assert ("".join(rows["token"]), rows["end"].iloc[-1]) == (text, len(text))


def test_unwritable_output_is_reported(probe, readings, tmp_path):
    with pytest.raises(ConfigError, match=r"\.html, \.csv, \.jsonl"):
        check_ending(tmp_path / "a.xlsx", ANSWER_FILES)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Cannot write"):
        write_answers(tmp_path / "file" / "a.csv", readings, probe, "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
