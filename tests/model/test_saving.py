"""What we save, transformers opens, and we open again; a change in it is found."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel

from probekit.errors import CheckpointError, StoreError
from probekit.model.config import GPT2Config
from probekit.model.gpt2 import GPT2
from tests.model.reference import TINY, our_model, reference_model

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35]])


@pytest.fixture
def model():
    return our_model(reference_model(TINY, torch.float32), TINY)


def test_transformers_opens_what_we_save_with_the_same_logits(model, tmp_path):
    model.save_pretrained(tmp_path)
    reference, report = GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    logits = reference.eval()(TOKENS).logits
    torch.testing.assert_close(logits, model(TOKENS), rtol=0, atol=5e-5)


def test_names_and_layout_are_those_of_transformers(model, tmp_path):
    reference_model(TINY, torch.float32).save_pretrained(tmp_path / "theirs")
    model.save_pretrained(tmp_path / "ours")
    theirs, ours = (load_file(tmp_path / w / "model.safetensors") for w in ("theirs", "ours"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


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
from probekit.model.gpt2 import GPT2
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
