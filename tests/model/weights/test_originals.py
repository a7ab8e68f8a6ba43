"""Checkpoints of OpenAI's format, written and read by TensorFlow, whose import takes long."""

import json
import shutil

import pytest
import torch

from probekit.errors import CheckpointError
from probekit.model.families.gpt2 import GPT2
from probekit.model.families.table import find_config
from tests.model.originals import write_original
from tests.model.reference import TINY, our_model, reference_model

pytestmark = pytest.mark.nightly

# hparams.json has no MLP width: it is always four times that of the residual stream.
ORIGINAL = type(TINY)(vocab_size=97, n_positions=23, n_embd=21, n_layer=4, n_head=3)


@pytest.fixture(scope="module")
def reference():
    return reference_model(ORIGINAL, torch.float32)


@pytest.fixture(scope="module")
def written(reference, tmp_path_factory):
    original = tmp_path_factory.mktemp("124M")
    state = reference.transformer.state_dict()
    write_original(original, ORIGINAL, state)
    assert len(state) == 4 * 12 + 4
    return original


@pytest.fixture
def original(written, tmp_path):
    return shutil.copytree(written, tmp_path / "124M")


def test_it_loads_equal_to_the_hub_route(original, reference, tmp_path):
    reference.save_pretrained(tmp_path / "hub")
    expected = GPT2.from_pretrained(tmp_path / "hub").state_dict()
    loaded = GPT2.from_pretrained(original)
    assert loaded.config == ORIGINAL == find_config(original)
    assert loaded.state_dict().keys() == expected.keys()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    tokens = torch.tensor([[3, 14, 15, 92, 65]])
    logits = our_model(reference, ORIGINAL)(tokens)
    assert torch.equal(loaded(tokens), logits)
    assert GPT2.from_pretrained(original, dtype="bfloat16").wte.weight.dtype == torch.bfloat16


def test_the_newest_checkpoint_is_read_wherever_the_folder_is_now(original):
    (original / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/run1/model-20"\n')
    for path in original.glob("model.ckpt.*"):
        path.rename(path.with_name(path.name.replace("model.ckpt", "model-20")))
    assert GPT2.from_pretrained(original).config == ORIGINAL


@pytest.mark.parametrize("part", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_file_is_named(original, part, damage):
    path = original / f"model.ckpt.{part}"
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes({"cut": content[:-500], "flipped": content, "empty": b""}[damage])
    with pytest.raises(CheckpointError, match=r"model\.ckpt is damaged"):
        GPT2.from_pretrained(original)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layer": 5}, r"missing: h\.4\."),
        ({"n_vocab": 98}, r"vocab_size=97.*\n.*wrong shape: wte\.weight is \(97, 21\)"),
    ],
)
def test_sizes_that_disagree_are_refused(original, change, message):
    sizes = json.loads((original / "hparams.json").read_text()) | change
    (original / "hparams.json").write_text(json.dumps(sizes))
    with pytest.raises(CheckpointError, match=message):
        GPT2.from_pretrained(original)
