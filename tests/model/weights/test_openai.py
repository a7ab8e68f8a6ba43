"""OpenAI's original checkpoints, written by TensorFlow and read equal to the hub's."""

import json
import shutil

import pytest
import torch

from probekit.errors import CheckpointError, MissingError
from probekit.model.families.gpt2 import GPT2
from probekit.model.families.table import find_config
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.checkpoint import hub_name
from probekit.model.weights.sources import MINI
from tests.model.originals import variable_name, write_original
from tests.model.reference import TINY, our_model, reference_model

# hparams.json has no MLP width: it is always four times that of the residual stream.
ORIGINAL = type(TINY)(vocab_size=97, n_positions=23, n_embd=21, n_layer=4, n_head=3)


@pytest.fixture(scope="module")
def reference():
    return reference_model(ORIGINAL, torch.float32)


@pytest.fixture(scope="module")
def written(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("124M")
    state = reference.transformer.state_dict()
    write_original(folder, ORIGINAL, state)
    assert len(state) == 4 * 12 + 4
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "124M")


def test_it_loads_equal_to_the_hub_route(folder, reference, tmp_path):
    reference.save_pretrained(tmp_path / "hub")
    expected = GPT2.from_pretrained(tmp_path / "hub").state_dict()
    loaded = GPT2.from_pretrained(folder)
    assert loaded.config == ORIGINAL == find_config(folder)
    assert loaded.state_dict().keys() == expected.keys()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    tokens = torch.tensor([[3, 14, 15, 92, 65]])
    logits = our_model(reference, ORIGINAL)(tokens)
    assert torch.equal(loaded(tokens), logits)
    assert GPT2.from_pretrained(folder, dtype="bfloat16").wte.weight.dtype == torch.bfloat16


def test_names_are_turned_there_and_back(reference):
    for name in reference.transformer.state_dict():
        assert hub_name(variable_name(name)) == name


def test_its_tokenizer_is_read_from_beside_it(folder):
    shutil.copy(MINI / "vocab.json", folder / "encoder.json")
    shutil.copy(MINI / "merges.txt", folder / "vocab.bpe")
    ours, mini = (Tokenizer.from_pretrained(source) for source in (folder, "mini"))
    assert ours.digest == mini.digest


def test_the_newest_checkpoint_is_read_wherever_the_folder_is_now(folder):
    (folder / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/run1/model-20"\n')
    with pytest.raises(MissingError, match=r"no model-20\.index"):
        GPT2.from_pretrained(folder)
    for path in folder.glob("model.ckpt.*"):
        path.rename(path.with_name(path.name.replace("model.ckpt", "model-20")))
    assert GPT2.from_pretrained(folder).config == ORIGINAL


@pytest.mark.parametrize("part", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_file_is_named(folder, part, damage):
    path = folder / f"model.ckpt.{part}"
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes({"cut": content[:-500], "flipped": content, "empty": b""}[damage])
    with pytest.raises(CheckpointError, match=r"model\.ckpt is damaged"):
        GPT2.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layer": 5}, r"missing: h\.4\."),
        ({"n_vocab": 98}, r"vocab_size=97.*\n.*wrong shape: wte\.weight is \(97, 21\)"),
        ({"n_head": 4}, "n_head=4 does not divide"),
        ({"n_vocab": 0}, "vocab_size"),
        ({"n_inner": 4}, "exactly the keys .*; it has .*n_inner"),
    ],
)
def test_sizes_that_disagree_are_refused(folder, change, message):
    sizes = json.loads((folder / "hparams.json").read_text()) | change
    (folder / "hparams.json").write_text(json.dumps(sizes))
    with pytest.raises(CheckpointError, match=message):
        GPT2.from_pretrained(folder)


def test_without_tensorflow_the_error_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorflow", None)
    with pytest.raises(MissingError, match=r"pip install .*\[openai\]'"):
        GPT2.from_pretrained(folder)
