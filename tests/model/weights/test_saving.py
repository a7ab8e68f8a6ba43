"""What we save, transformers opens, and we open again; a change in it is found."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel

from probekit.errors import CheckpointError, StoreError
from probekit.model.families.gpt2 import GPT2, GPT2Config
from tests.model.reference import TINY, our_model, reference_model

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35]])


# Each switch, and the suffixes of the biases that it removes: transformers saves them as 0.
SWITCHES = {
    "plain": ({}, ()),
    "untied": ({"tie_word_embeddings": False}, ()),
    "bias": ({"bias": False}, (".bias",)),
    "qkv_bias": ({"qkv_bias": False}, ("c_attn.bias",)),
}


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


def is_lacking(name, gone):
    return bool(gone) and name.endswith(gone)


def test_transformers_opens_what_we_save_with_the_same_logits(switched, tmp_path):
    model, gone = switched
    model.save_pretrained(tmp_path)
    reference, report = GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    missing = set(report.pop("missing_keys"))
    assert not any(report.values())
    assert missing == {name for name in reference.state_dict() if is_lacking(name, gone)}
    logits = reference.eval()(TOKENS).logits
    torch.testing.assert_close(logits, model(TOKENS), rtol=0, atol=5e-5)


def test_names_and_layout_are_those_of_transformers(switched, tmp_path):
    model, gone = switched
    model.save_pretrained(tmp_path / "ours")
    GPT2LMHeadModel.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    theirs, ours = (load_file(tmp_path / w / "model.safetensors") for w in ("theirs", "ours"))
    assert ours.keys() == {name for name in theirs if not is_lacking(name, gone)}
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_model_with_a_switch_comes_back_as_it_was(switched, tmp_path):
    model, _ = switched
    model.save_pretrained(tmp_path / "ours")
    # What transformers saves of it has the missing biases again, as 0.
    GPT2LMHeadModel.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs/config.json").write_bytes((tmp_path / "ours/config.json").read_bytes())
    for folder in ("ours", "theirs"):
        back = GPT2.from_pretrained(tmp_path / folder)
        assert back.config == model.config
        assert back.state_dict().keys() == model.state_dict().keys()
        for name, tensor in model.state_dict().items():
            assert torch.equal(back.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("switch", "entry"),
    [
        ({"tie_word_embeddings": False}, '"tie_word_embeddings": false'),
        ({"bias": True}, '"bias": true'),
        ({"qkv_bias": True}, '"qkv_bias": true'),
    ],
)
def test_the_entry_that_asks_for_what_is_extra_is_named(tmp_path, switch, entry):
    without = replace(TINY, bias="tie_word_embeddings" in switch, qkv_bias=None)
    model = GPT2(replace(without, **switch)).requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.1)
    model.save_pretrained(tmp_path)
    (tmp_path / "digests.json").unlink()
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | without.to_json()))
    with pytest.raises(CheckpointError, match=f"set in config.json: {entry}"):
        GPT2.from_pretrained(tmp_path)
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


def test_one_flipped_bit_anywhere_is_found(model, tmp_path):
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    positions = torch.randint(len(content), (60,), generator=torch.Generator().manual_seed(0))
    for position in [0, 9, len(content) - 1, *positions.tolist()]:
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            GPT2.from_pretrained(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Cannot write"):
        model.save_pretrained(tmp_path / "file")


LOAD = """
import re, sys
from pathlib import Path
import torch
from probekit.model.families.gpt2 import GPT2
GPT2.from_pretrained("mini")
memory = lambda f: int(re.search(f + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
model = GPT2.from_pretrained(sys.argv[1])
print((memory("VmHWM") - before) * 1024 / sum(p.nbytes for p in model.parameters()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_loading_never_holds_two_copies(tmp_path):
    # The proportions of gpt2, an eighth of the size.
    config = GPT2Config(n_embd=320, n_layer=8, n_head=8, vocab_size=20000)
    GPT2(config).save_pretrained(tmp_path)
    command = [sys.executable, "-c", LOAD, str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert 0.7 < float(out) < 1.3
