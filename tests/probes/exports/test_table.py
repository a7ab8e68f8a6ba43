"""Each export is read by the other tool's own reader, and scores the same rows equally."""

import base64
import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from blake3 import blake3
from transformers import GPT2LMHeadModel

from probekit.errors import ConfigError, DataError, MissingError
from probekit.experiment.ask import AskSection
from probekit.interventions import edits
from probekit.interventions.edits import compose
from probekit.model.families.table import load_model
from probekit.model.weights.sources import MINI
from probekit.probes.exports.table import FORMATS, export_probe, exported_probe
from probekit.probes.exports.vector import steering_vector
from probekit.probes.probe_files import AlarmThreshold
from probekit.probes.saved_probe import SavedProbe

SITE, WIDTH = "blocks.3.hook_resid_post", 12
ALARM = AlarmThreshold(
    fpr=0.01, threshold=1.25, fpr_bound=0.02, false_positives=3, n_negatives=400, n_groups=40
)
# The largest difference of scores, relative to the largest score: the precision of the format.
PRECISION = {"plain": 1e-14, "torch": 1e-14, "sklearn": 1e-14, "onnx": 1e-6, "vllm_hook": 1e-6}


@pytest.fixture
def rows():
    X = np.random.default_rng(0).normal(size=(50, WIDTH))
    X[:, 2] = 300 + 4 * X[:, 2]  # a massive feature
    return X


def probe_of(classes=("no", "yes"), hidden=0, site=SITE, **facts):
    random = np.random.default_rng(len(classes) + hidden)
    n_scores = len(classes) if len(classes) > 2 else 1
    shapes = [(hidden, WIDTH), (n_scores, hidden)] if hidden else [(n_scores, WIDTH)]
    arrays = [random.normal(size=shape) for shape in shapes]
    probe = SavedProbe.from_arrays(
        np.zeros((n_scores, WIDTH)), np.zeros(n_scores), site=site, model="mini", classes=classes
    )
    layers = tuple((weight, random.normal(size=len(weight))) for weight in arrays)
    sds = tuple(float(2 + k) for k in range(n_scores)) if not hidden else ()
    update = {"projection_sd": sds, "scores_are_logits": True, "kind": "logistic"} | facts
    return SavedProbe(layers, tuple(classes), probe.facts.model_copy(update=update))


def run_code(about, folder, monkeypatch, **names):
    """Run the code of a description as its reader would; return the names that it sets."""
    monkeypatch.chdir(folder)
    (code,) = re.findall(r"```python\n(.*?)```", about.read_text(), re.DOTALL)
    exec(compile(code, "README", "exec"), names)
    return names


def shaped(scores, probe):
    scores = np.asarray(scores.detach() if hasattr(scores, "detach") else scores, dtype=float)
    return scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores


@pytest.mark.parametrize("to", ["plain", "torch", "sklearn", "onnx"])
@pytest.mark.parametrize(
    "probe",
    [
        probe_of(),
        probe_of(("a", "b", "c")),
        probe_of(()),
        probe_of(scores_are_logits=False, kind="svm"),
        probe_of(hidden=5),
    ],
    ids=["two", "three", "number", "svm", "mlp"],
)
def test_the_code_of_each_description_gives_the_scores_of_the_probe(
    to, probe, rows, tmp_path, monkeypatch
):
    for package in {"sklearn": ["skops"], "onnx": ["onnx", "onnxruntime"]}.get(to, ()):
        pytest.importorskip(package)
    if len(probe.layers) > 1 and not FORMATS[to].has_layers:
        with pytest.raises(ConfigError, match=r"2 layers.*torch, onnx"):
            export_probe(probe, tmp_path / "p", to)
        return
    _, about = probe.export(tmp_path / "p.probe", to)
    found = run_code(about, tmp_path, monkeypatch, X=rows)
    expected = probe.scores(rows)
    for name in {"scores", "of_torch"} & found.keys():
        difference = np.abs(shaped(found[name], probe) - expected).max()
        assert difference <= PRECISION[to] * np.abs(expected).max(), name
    if "predicted" in found:
        if probe.classes:
            assert list(found["predicted"]) == list(probe.predict(rows))
        else:
            np.testing.assert_allclose(np.ravel(found["predicted"]), expected, rtol=1e-12)


@pytest.mark.parametrize("to", ["plain", "sklearn"])
def test_an_exported_probe_comes_back_as_it_was(to, rows, tmp_path):
    if to == "sklearn":
        pytest.importorskip("skops")
    probe = probe_of(positive="yes", thresholds=(ALARM,), chat=True)
    path, about = probe.export(tmp_path / "monitor", to)
    if to == "sklearn":
        back = SavedProbe.from_sklearn(path, site=SITE, model="mini")
    else:
        back = exported_probe(path, "mini")
        assert back.facts == probe.facts
        text = about.read_text()
        for part in ("1.25", "0.01", "chat template", "output of block 3", "3 of 400", "untested"):
            assert part in text
    assert back.classes == probe.classes
    np.testing.assert_array_equal(back.scores(rows), probe.scores(rows))


@pytest.mark.parametrize(
    ("is_centred", "name"), [(True, "layer norm"), (False, "RMS norm"), (None, "norm")]
)
def test_the_norm_of_normalized_rows_is_named(is_centred, name, tmp_path):
    probe = probe_of(view="normalized", norm_is_centred=is_centred, layer_norm_epsilon=1e-6)
    _, about = probe.export(tmp_path / "p", "plain")
    assert f"as by its {name} without the affine part (epsilon 1e-06)" in about.read_text()


@pytest.mark.parametrize("towards", ["yes", "no"])
def test_a_steering_vector_of_vllm_lens_is_that_of_the_dose(towards, tmp_path):
    probe = probe_of(site="blocks.4.hook_resid_pre")
    path, _ = probe.export(tmp_path / "v", "vllm_vector", towards=towards, by=-3.0)
    record = json.loads(path.read_text())
    stored = record["activations"]
    # What vLLM-Lens reads: the bytes of the array, and the block whose output it is added to.
    values = np.frombuffer(base64.b64decode(stored["data"]), stored["dtype"])
    values = values.reshape(stored["shape"])
    assert record["layer_indices"] == [3]
    assert (record["scale"], record["norm_match"]) == (1.0, False)
    expected = -3.0 * steering_vector(probe, towards)
    np.testing.assert_allclose(values, [expected], rtol=1e-6)
    back = exported_probe(path, "mini")
    assert back.facts.site == SITE
    np.testing.assert_allclose(steering_vector(back), expected, rtol=1e-6)


def test_a_control_vector_is_read_by_the_readers_of_gguf_and_repeng(tmp_path):
    pytest.importorskip("gguf")
    probe = probe_of()
    path, about = probe.export(tmp_path / "v", "gguf", by=2.0)
    assert "block 3" in about.read_text()
    from gguf import GGUFReader

    reader = GGUFReader(path)
    (tensor,) = reader.tensors
    assert tensor.name == "direction.3"
    np.testing.assert_allclose(tensor.data, 2.0 * steering_vector(probe), rtol=1e-6)
    assert reader.get_field("general.architecture").contents() == "controlvector"
    np.testing.assert_allclose(
        steering_vector(exported_probe(path, "mini")), 2.0 * steering_vector(probe), rtol=1e-6
    )
    with pytest.raises(ConfigError, match="block 0"):
        probe_of(site="blocks.1.hook_resid_pre").export(tmp_path / "w", "gguf")


@pytest.mark.parametrize(
    ("site", "layer", "pre"), [(SITE, 3, False), ("blocks.0.hook_resid_pre", 0, True)]
)
def test_a_hook_of_vllm_lens_saves_the_scores(site, layer, pre, rows, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm_lens", SimpleNamespace(Hook=SimpleNamespace))
    probe = probe_of(site=site)
    path, _ = probe.export(tmp_path / "hook", "vllm_hook")
    names = {}
    exec(compile(path.read_text(), "hook", "exec"), names)
    hook, context = names["hook"], SimpleNamespace(saved={})
    assert (hook.layer_indices, hook.pre) == ([layer], pre)
    hidden = torch.tensor(rows, dtype=torch.float32)
    assert hook.fn(context, hidden[:20]) is None
    hook.fn(context, hidden[20:])
    scores = torch.cat(context.saved["scores"])[:, 0].numpy()
    expected = probe.scores(rows)
    assert np.abs(scores - expected).max() <= PRECISION["vllm_hook"] * np.abs(expected).max()


@pytest.mark.parametrize(
    ("probe", "to", "how"),
    [
        (probe_of(), "pickle", {}),
        (probe_of(), "plain", {"by": 2.0}),
        (probe_of(), "vllm_vector", {"by": 0.0}),
        (probe_of(), "vllm_vector", {"by": float("nan")}),
        (probe_of(("a", "b", "c")), "vllm_vector", {}),
        (probe_of(), "vllm_vector", {"towards": "maybe"}),
        (probe_of(site="blocks.3.hook_mlp_out"), "vllm_vector", {}),
        (probe_of(site="blocks.3.hook_mlp_out"), "vllm_hook", {}),
        (probe_of(site="blocks.0.hook_resid_pre"), "vllm_vector", {}),
        (probe_of(view="normalized"), "torch", {}),
        (probe_of(projection_sd=()), "vllm_vector", {}),
        (probe_of(), "vllm_vector", {"by": 1e40}),
        (probe_of(), "vllm_vector", {"by": 1e-60}),
    ],
)
def test_what_a_format_cannot_hold_is_refused(probe, to, how, refused, tmp_path):
    refused(export_probe, probe, tmp_path / "p", to, **how)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("to", ["vllm_vector", "plain", "gguf"])
def test_damaged_files_are_refused(to, tmp_path):
    if to == "gguf":
        pytest.importorskip("gguf")
    path, _ = probe_of().export(tmp_path / "p", to)
    whole = path.read_bytes()
    for damaged in (
        whole[: len(whole) // 2],
        b"",
        b"{}",
        whole.replace(b"direction.3", b"direction.x"),
    ):
        if damaged != whole:
            path.write_bytes(damaged)
            with pytest.raises(DataError, match=path.name):
                exported_probe(path, "mini")
    path.unlink()
    with pytest.raises(MissingError, match="no file"):
        exported_probe(path, "mini")


@pytest.mark.parametrize("balance", [True, False])
def test_the_description_says_when_the_answers_of_a_question_change_places(tmp_path, balance):
    asked = AskSection(ask="{a} or {b}?", answers=("yes", "no"), balance=balance)
    _, about = probe_of(position={"at": "last"} | asked.asking).export(tmp_path / "p", "plain")
    assert ("first byte of the BLAKE3 digest of the text" in about.read_text()) == balance
    for text in ("one", "two", "four"):
        is_odd = balance and blake3(text.encode()).digest()[0] % 2 == 1
        assert asked.asked(text).endswith("no or yes?" if is_odd else "yes or no?")


@pytest.mark.parametrize("to", FORMATS)
def test_the_reader_of_each_format_refuses_a_truncated_file(to, rows, tmp_path, monkeypatch):
    for package in {"sklearn": ["skops"], "onnx": ["onnx", "onnxruntime"], "gguf": ["gguf"]}.get(
        to, ()
    ):
        pytest.importorskip(package)
    monkeypatch.setitem(sys.modules, "vllm_lens", SimpleNamespace(Hook=SimpleNamespace))
    path, about = probe_of().export(tmp_path / "p", to)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])

    def read():
        if to == "vllm_hook":
            exec(compile(path.read_text(), "hook", "exec"), names := {})
            return names.pop("hook")
        if FORMATS[to].steers:
            return exported_probe(path, "mini")
        return run_code(about, tmp_path, monkeypatch, X=rows)

    with pytest.raises(Exception) as caught:  # noqa: PT011  # of the other tool
        read()
    assert to == "vllm_hook" or not isinstance(caught.value, NameError | AssertionError)


def test_a_saved_probe_is_no_export(tmp_path):
    for ending in (".json", ".safetensors"):
        assert exported_probe(probe_of().save(tmp_path / "p").with_suffix(ending), "mini") is None


def test_an_exported_vector_moves_the_logits_of_transformers_as_ours(tmp_path):
    theirs = GPT2LMHeadModel.from_pretrained(MINI, dtype=torch.float32).eval()
    ours, ids = load_model("mini"), torch.tensor([[464, 825, 284, 262, 1468]])
    draw, width = np.random.default_rng(0), ours.config.d_model
    arrays = draw.normal(size=width), draw.normal(size=(100, width))
    probe = SavedProbe.from_arrays(
        arrays[0], 0.0, site=SITE, model="mini", classes=("no", "yes"), rows=arrays[1]
    )
    path, _ = probe.export(tmp_path / "v", "vllm_vector", by=5.0)
    vector = steering_vector(exported_probe(path, "mini"))
    tap = compose(ours, [(SITE, edits.add(torch.from_numpy(vector)))])
    record = json.loads(path.read_text())
    stored = np.frombuffer(base64.b64decode(record["activations"]["data"]), "<f4")

    def add(_module, _given, output):
        return (
            (output[0] + torch.tensor(stored), *output[1:])
            if isinstance(output, tuple)
            else (output + torch.tensor(stored))
        )

    with torch.no_grad():
        plain, moved = ours(ids), ours(ids, tap=tap, sites=tap.sites)
        (layer,) = record["layer_indices"]
        theirs.transformer.h[layer].register_forward_hook(add)
        expected = theirs(ids).logits
    assert (moved - plain).abs().max() > 0.1
    torch.testing.assert_close(moved, expected, atol=1e-5, rtol=1e-5)


def test_an_export_replaces_no_saved_probe(tmp_path):
    probe = probe_of()
    probe.save(tmp_path / "p")
    for to in ("plain", "vllm_vector"):
        with pytest.raises(ConfigError, match="part of a saved probe"):
            probe.export(tmp_path / "p", to)
    assert SavedProbe.load(tmp_path / "p").classes == probe.classes
    with pytest.raises(ConfigError, match="is a folder"):
        probe.export("", "plain")
    with pytest.raises(ConfigError, match="is imported"):
        probe.export(tmp_path / "my-hook", "vllm_hook")


def test_a_negative_dose_points_to_the_other_label(tmp_path):
    probe = probe_of()
    _, about = probe.export(tmp_path / "v", "vllm_vector", by=-2.0)
    assert "Points to no; its length is 2 standard deviations" in about.read_text()
    record = json.loads((tmp_path / "v.json").read_text())
    for change in ({"position_indices": [0]}, {"layer_indices": [-1]}, {"norm_match": True}):
        (tmp_path / "v.json").write_text(json.dumps(record | change))
        with pytest.raises(DataError, match=r"v\.json is no steering vector"):
            exported_probe(tmp_path / "v.json", "mini")
