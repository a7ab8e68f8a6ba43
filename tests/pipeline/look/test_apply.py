"""Saved probes applied to texts give the scores of their stored rows."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from probekit.activations.store import ActivationStore
from probekit.errors import CheckpointError, ConfigError, DataError
from probekit.model.families.gpt2 import GPT2, Block
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.sources import MINI
from probekit.pipeline.experiment.prepare import prepare
from probekit.pipeline.look.apply import apply_probe, caution, choose_per
from probekit.probes.kinds.logistic import LinearProbe
from probekit.probes.saved_probe import SavedProbe
from tests.pipeline.planted import QUICK, QUICK_SITES
from tests.pipeline.scale import Heard

SITE, HEAD = QUICK_SITES[1], "blocks.1.attn.hook_z[head=3]"
TEXTS = ("The keys to the old cabinet", "A dog", "The", "The key near the doors of the long house")


def scores(readings):
    return np.concatenate([[answer.score for answer in reading.answers] for reading in readings])


def changed(probe, **facts):
    return SavedProbe(probe.layers, probe.classes, probe.facts.model_copy(update=facts))


def stored(planted, *overrides):
    """The saved probe of a run, the texts, and scores and labels of a second probe fitted here."""
    result = planted.run(*QUICK, *overrides, page=False)
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
    rows = prepare(planted.load(*QUICK, *overrides))
    train = rows.splits[0].train
    estimator = LinearProbe(C=0.01).fit(X[train], rows.labels[train])
    texts = planted.rows["text"].tolist()
    return probe, texts, estimator.decision_function(X), estimator.predict(X)


@pytest.mark.parametrize(
    ("site", "settings"),
    [
        (SITE, ()),
        (SITE, ("capture.view=normalized",)),
        (HEAD, ()),
        (SITE, (f"capture.concatenate=[[blocks.2.mlp.hook_post, '{HEAD}']]",)),
    ],
)
def test_training_texts_get_the_predictions_of_their_stored_rows(planted, site, settings):
    probe, texts, expected, labels = stored(planted, f"capture.sites=['{site}']", *settings)
    readings = apply_probe(probe, texts)
    assert [reading.text for reading in readings] == texts
    found = np.array([reading.answer.score for reading in readings])
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert [reading.answer.label for reading in readings] == labels.tolist()
    assert np.abs(found).max() > 1


@pytest.mark.parametrize(
    "overrides",
    [
        ["tokens.position.at=mean"],
        ["tokens.position.at=mean", "tokens.position.skip_first=false"],
        ["tokens.position={at: index, index: 1}"],
        ["tokens.position.at=first", "tokens.bos=true"],
        ["capture.dtype=float16"],
        ["model.dtype=float64"],
    ],
    ids=str,
)
def test_texts_are_read_at_the_training_position(own, overrides):
    own.rows["text"] = own.rows["text"].str.removeprefix("The ")  # first words differ
    own.rows.to_csv(own.folder / "rows.csv", index=False)
    probe, texts, expected, _ = stored(own, f"capture.sites=[{SITE}]", *overrides)
    found = [reading.answer.score for reading in apply_probe(probe, texts[:20])]
    np.testing.assert_allclose(found, expected[:20], atol=1e-4)


@pytest.mark.parametrize("bos", [False, True])
def test_scores_do_not_depend_on_batch_or_order(probe, bos):
    probe = changed(probe, bos=bos)
    together = apply_probe(probe, TEXTS)
    alone = [apply_probe(probe, [text])[0] for text in TEXTS]
    turned = apply_probe(probe, TEXTS[::-1])[::-1]
    for other in (alone, turned):
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


def test_multiclass_and_regression_probes_are_applied(probe):
    generator = np.random.default_rng(0)
    layer = generator.normal(size=(3, 256)), np.zeros(3)
    many = SavedProbe((layer,), ("a", "b", "c"), probe.facts)
    answer = apply_probe(many, TEXTS)[0].answer
    assert answer.score == max(answer.scores)
    assert answer.label == "abc"[np.argmax(answer.scores)]
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


@pytest.mark.parametrize(
    "facts",
    [
        {"tokenizer": "other"},
        {"sites": (HEAD,)},
        {"sites": ("blocks.9.hook_resid_post",)},
        {"model": "./gone"},
    ],
    ids=str,
)
def test_a_probe_of_another_network_is_refused(probe, facts, refused):
    allow = facts == {"sites": (HEAD,)}  # another width is always refused
    refused(apply_probe, changed(probe, **facts), TEXTS, allow_other_model=allow)


def test_damaged_model_and_unknown_device_are_refused(probe, other_model):
    with pytest.raises(ConfigError, match="--device warp"):
        apply_probe(probe, TEXTS, device="warp")
    Path(other_model, "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(CheckpointError):
        apply_probe(probe, TEXTS, model=other_model)


def test_nan_activations_are_reported_and_not_scored(probe, other_model):
    weights = Path(other_model, "model.safetensors")
    tensors = safetensors.torch.load_file(weights)
    # The weights are finite, as loading requires, but their squares are not.
    shape = tensors["transformer.wte.weight"].shape
    tensors["transformer.wte.weight"] = torch.full(shape, 3e38)
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
