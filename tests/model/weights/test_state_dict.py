"""Checkpoints are read and written exactly, or an error lists the differences."""

import hashlib
import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel

from probekit.errors import CheckpointError, StoreError
from probekit.model.families.gpt2 import GPT2
from probekit.model.weights.hub import find_model
from probekit.model.weights.sources import MINI
from tests.model.reference import TINY, our_model, reference_model
from tests.stored import each_line


@pytest.fixture
def folder(tmp_path):
    """A folder that the reference implementation wrote."""
    reference = reference_model(TINY, torch.float32)
    reference.save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_a_pytorch_file_without_prefix_with_masks_and_tied_copy_loads_equal(folder):
    expected = GPT2.from_pretrained(folder).state_dict()
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 23, 23)
    bare["h.1.attn.masked_bias"] = torch.tensor(-1e4)
    bare["lm_head.weight"] = bare["wte.weight"].clone()
    (folder / "model.safetensors").unlink()
    torch.save(bare, folder / "pytorch_model.bin")
    loaded = GPT2.from_pretrained(folder).state_dict()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_every_fault_is_listed_at_once(folder, refused):
    def damage(tensors):
        del tensors["transformer.h.2.mlp.c_fc.bias"]
        tensors["transformer.h.9.ln_1.bias"] = torch.zeros(21)
        weight = tensors["transformer.h.0.attn.c_attn.weight"]
        tensors["transformer.h.0.attn.c_attn.weight"] = weight.T.contiguous()

    rewrite(folder, damage)
    refused(GPT2.from_pretrained, folder)


def test_an_unembedding_of_its_own_is_not_dropped(folder, refused):
    rewrite(folder, lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"] + 1}))
    refused(GPT2.from_pretrained, folder)


class Attack:
    """Would write a file when unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle_that_would_run_code_is_refused(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"wte.weight": Attack(folder / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="could run code"):
        GPT2.from_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Attack(folder / "ran"), protocol=2))
    with pytest.raises(CheckpointError):
        GPT2.from_pretrained(folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"{}"])
def test_a_damaged_file_is_named(folder, name, content):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        GPT2.from_pretrained(folder)


@each_line("call")
def test_what_is_no_model_is_answered_with_what_is(call, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "half").mkdir()
    shutil.copy(MINI / "config.json", tmp_path / "half")
    refused(eval, call, globals() | {"tmp_path": tmp_path})


def test_without_a_network_the_error_says_what_to_put_where(monkeypatch, tmp_path, refused):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    refused(find_model, "gpt2")


def test_mini_is_the_model_that_its_card_describes():
    card = (MINI / "README.md").read_text(encoding="utf-8")
    for name in ("config.json", "merges.txt", "model.safetensors", "vocab.json"):
        assert f"{hashlib.sha256((MINI / name).read_bytes()).hexdigest()}  {name}" in card
    assert f"{GPT2.from_pretrained('mini').config.n_head} heads" in card
    assert all(t.dtype == torch.float16 for t in load_file(MINI / "model.safetensors").values())


def test_mini_gives_the_reference_logits():
    tokens = torch.arange(1, 40)[None]
    expected = GPT2LMHeadModel.from_pretrained(MINI, dtype=torch.float32).eval()(tokens).logits
    ours = GPT2.from_pretrained("mini")(tokens)
    torch.testing.assert_close(ours, expected, rtol=0, atol=5e-5)


def test_mini_fits_the_package():
    assert sum(path.stat().st_size for path in MINI.iterdir()) < 16e6


@pytest.mark.parametrize("name", ["gpt2", "mini"])
def test_a_path_is_a_folder_even_if_it_has_the_name_of_a_model(tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_model(Path(name)) == Path(name)


TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35]])


# Each switch, and the suffixes of the biases that it removes: transformers saves them as 0.
SWITCHES = {"plain": ({}, ()), "untied": ({"tie_word_embeddings": False}, ())}
SWITCHES |= {"bias": ({"bias": False}, (".bias",))}
SWITCHES |= {"qkv_bias": ({"qkv_bias": False}, ("c_attn.bias",))}


@pytest.fixture
def model():
    return our_model(reference_model(TINY, torch.float32), TINY)


@pytest.fixture(params=SWITCHES)
def switched(request):
    """A model of random weights with one switch turned, and the endings of what it lacks."""
    options, gone = SWITCHES[request.param]
    model = GPT2(replace(TINY, **options)).requires_grad_(False)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model, gone


def test_transformers_and_we_open_what_either_has_saved(switched, tmp_path):
    """What transformers saves of a model without some biases has them again, as 0."""
    model, gone = switched
    model.save_pretrained(tmp_path / "ours")
    reference, report = GPT2LMHeadModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    logits = reference.eval()(TOKENS).logits
    torch.testing.assert_close(logits, model(TOKENS), rtol=0, atol=5e-5)
    reference.save_pretrained(tmp_path / "theirs")
    theirs, ours = (load_file(tmp_path / w / "model.safetensors") for w in ("theirs", "ours"))
    lacking = {name for name in theirs if gone and name.endswith(gone)}
    assert set(report.pop("missing_keys")) == lacking
    assert not any(report.values())
    assert ours.keys() == theirs.keys() - lacking
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    (tmp_path / "theirs/config.json").write_bytes((tmp_path / "ours/config.json").read_bytes())
    for folder in ("ours", "theirs"):
        back = GPT2.from_pretrained(tmp_path / folder)
        assert back.config == model.config
        assert back.state_dict().keys() == model.state_dict().keys()
        for name, tensor in model.state_dict().items():
            assert torch.equal(back.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    "switch", [{"tie_word_embeddings": False}, {"bias": True}, {"qkv_bias": True}], ids=str
)
def test_the_entry_that_asks_for_what_is_extra_is_named(tmp_path, refused, switch):
    without = replace(TINY, bias="tie_word_embeddings" in switch, qkv_bias=None)
    model = GPT2(replace(without, **switch)).requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.1)
    model.save_pretrained(tmp_path)
    (tmp_path / "digests.json").unlink()
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | without.to_json()))
    refused(GPT2.from_pretrained, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | switch))
    assert GPT2.from_pretrained(tmp_path).state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (replace(TINY, bos_token_id=1, eos_token_id=[2, 3]), (1, [2, 3])),
        (replace(TINY, n_embd=3, vocab_size=50257), (50256, 50256)),
        (TINY, (None, None)),
    ],
)
def test_the_ends_of_texts_are_kept_for_transformers(config, expected, tmp_path):
    GPT2(config).save_pretrained(tmp_path)
    GPT2.from_pretrained(tmp_path).save_pretrained(tmp_path)
    reference = GPT2LMHeadModel.from_pretrained(tmp_path).config
    assert (reference.bos_token_id, reference.eos_token_id) == expected


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_a_model_comes_back_as_it_was(model, tmp_path, dtype):
    given = model.to(getattr(torch, dtype))
    given.save_pretrained(tmp_path)
    back = GPT2.from_pretrained(tmp_path, dtype=dtype)
    assert back.config == TINY
    for name, tensor in given.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == dtype


def test_a_model_is_saved_over_the_one_it_was_read_from(model, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = GPT2.from_pretrained(tmp_path)
    loaded.wte.weight.add_(1)
    loaded.save_pretrained(tmp_path)
    assert torch.equal(GPT2.from_pretrained(tmp_path).wte.weight, model.wte.weight + 1)


def test_a_folder_that_cannot_be_written_is_named(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Cannot write"):
        model.save_pretrained(tmp_path / "file")
