"""Weights in shards, of old PyTorch, of OpenAI, with flipped bits: each is equal or refused."""

import json
import shutil
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from probekit.errors import CheckpointError, MissingError
from probekit.model.families.gpt2 import GPT2
from probekit.model.families.table import config_of, load_model, random_network
from tests.model.reference import TINY, reference_model
from tests.test_golden import NETWORKS


@pytest.fixture
def folder(tmp_path):
    reference_model(TINY, torch.float32).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def tensors(folder):
    return load_file(folder / "model.safetensors")


@pytest.fixture
def expected(folder):
    return GPT2.from_pretrained(folder).state_dict()


def assert_equal(folder, expected):
    loaded = GPT2.from_pretrained(folder).state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


@pytest.fixture(params=["safetensors", "bin"])
def shards(request, folder, tensors, expected):
    """A folder with three shards and their index, of either format."""
    stem = {"safetensors": "model", "bin": "pytorch_model"}[request.param]
    names = sorted(tensors)
    parts = [f"{stem}-0000{part}-of-00003.{request.param}" for part in (1, 2, 3)]
    files = {name: parts[i % 3] for i, name in enumerate(names)}
    for file in set(files.values()):
        part = {name: tensors[name] for name in names if files[name] == file}
        (save_file if request.param == "safetensors" else torch.save)(part, folder / file)
    (folder / "model.safetensors").unlink()
    index = folder / f"{stem}.{request.param}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return index


def test_shards_load_equal(shards, expected):
    assert_equal(shards.parent, expected)


def test_a_missing_shard_is_named(shards, refused):
    sorted(shards.parent.glob("*-00002-of-*"))[0].unlink()
    refused(GPT2.from_pretrained, shards.parent)


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.popitem(),
        lambda files: files.update({"h.9.ln_1.bias": next(iter(files.values()))}),
        lambda files: files.update({"wte.weight": "../model.safetensors"}),
        lambda files: files.update({"wte.weight": "model.py"}),
        lambda files: files.clear(),
    ],
    ids=["too few", "unknown tensor", "another folder", "no shard", "no map"],
)
def test_an_index_that_is_wrong_is_refused(shards, refused, change):
    content = json.loads(shards.read_text())
    change(content["weight_map"])
    shards.write_text(json.dumps(content))
    refused(GPT2.from_pretrained, shards.parent)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_pytorch_file_new_or_old_loads_equal(folder, tensors, expected, is_old):
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not is_old)
    assert_equal(folder, expected)


def test_a_bit_flipped_in_a_pytorch_file_is_found(folder, tensors):
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save(tensors, path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is damaged.*checksum"):
        GPT2.from_pretrained(folder)


def test_mixed_dtypes_are_converted(folder, tensors):
    kinds = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    mixed = {name: tensors[name].to(kinds[i % 4]) for i, name in enumerate(sorted(tensors))}
    save_file(mixed, folder / "model.safetensors")
    for dtype in ("float32", "float16", "bfloat16", "float64", torch.float16):
        state = GPT2.from_pretrained(folder, dtype=dtype).state_dict()
        kind = getattr(torch, str(dtype).removeprefix("torch."))
        assert {tensor.dtype for tensor in state.values()} == {kind}
        for name in ("wte.weight", "h.1.ln_2.bias", "wpe.weight"):
            assert torch.equal(state[name], mixed[f"transformer.{name}"].to(kind)), name


@pytest.mark.parametrize("dtype", ["float8", "int8", "fp16", "", torch.int64], ids=str)
def test_an_unknown_dtype_raises_an_error_with_the_allowed_ones(dtype, refused):
    refused(GPT2.from_pretrained, "mini", dtype=dtype)


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        *((float("nan"), "float32"), (float("inf"), "float16")),
        *((1e6, "float16"), (1e300, "float32")),
        (1, "float32"),  # of dtype int32
    ],
)
def test_numbers_that_no_weight_has_are_refused(folder, tensors, refused, number, dtype):
    weight = tensors["transformer.wpe.weight"]
    tensors["transformer.wpe.weight"] = weight.int() if number == 1 else weight.double()
    tensors["transformer.wpe.weight"][3, 4] = number
    save_file(tensors, folder / "model.safetensors")
    refused(GPT2.from_pretrained, folder, dtype=dtype)


def test_loaded_weights_do_not_depend_on_the_file(folder):
    model = GPT2.from_pretrained(folder)
    before = model.wte.weight.clone()
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(10)
    assert torch.equal(model.wte.weight, before)
    assert all(parameter.is_contiguous() for parameter in model.parameters())


def test_a_weight_file_of_another_name_is_reported(folder, refused):
    shutil.move(folder / "model.safetensors", folder / "part.safetensors")
    refused(GPT2.from_pretrained, folder)


@pytest.fixture
def original(tmp_path):
    """A folder like OpenAI's, whose checkpoint is empty; test_originals.py reads real ones."""
    folder = tmp_path / "124M"
    folder.mkdir()
    sizes = {"n_vocab": 97, "n_ctx": 23, "n_embd": 21, "n_layer": 4, "n_head": 3}
    (folder / "hparams.json").write_text(json.dumps(sizes))
    (folder / "model.ckpt.index").touch()
    return folder


@pytest.mark.parametrize("change", [{"n_head": 4}, {"n_vocab": 0}, {"n_inner": 4}], ids=str)
def test_impossible_sizes_of_an_original_are_refused(original, refused, change):
    sizes = json.loads((original / "hparams.json").read_text()) | change
    (original / "hparams.json").write_text(json.dumps(sizes))
    refused(GPT2.from_pretrained, original)


def test_without_tensorflow_the_error_says_what_to_install(original, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(MissingError, match=r"pip install .*\[openai\]'"):
        GPT2.from_pretrained(original)
    (original / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/run1/model-20"\n')
    refused(GPT2.from_pretrained, original)


@pytest.fixture
def llama(tmp_path):
    """The weight file of a Llama in bfloat16, whose matrices are stored as they are used."""
    config = config_of({"model_type": "llama", **NETWORKS["llama"]})
    random_network(config, seed=1).to(torch.bfloat16).save_pretrained(tmp_path)
    return tmp_path / "model.safetensors"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_weights_in_the_dtype_of_their_file_are_mapped_and_others_copied(llama):
    def is_mapped():
        return str(llama) in Path("/proc/self/maps").read_text()

    tokens = torch.tensor([[3, 14, 15, 92]])
    kept = load_model(llama.parent)
    assert is_mapped()
    copied = deepcopy(kept)
    assert torch.equal(kept(tokens), copied(tokens))  # whatever the alignment in the file
    del kept
    assert not is_mapped()
    load_model(llama.parent, "float32")
    assert not is_mapped()


def test_a_change_of_mapped_weights_does_not_change_their_file(llama):
    content, model = llama.read_bytes(), load_model(llama.parent)
    model.last_norm.weight.add_(1)
    assert model.last_norm.weight[0] == load_model(llama.parent).last_norm.weight[0] + 1
    assert llama.read_bytes() == content
    model.save_pretrained(llama.parent)  # replaces the file that the weights are mapped from
    assert torch.equal(model.last_norm.weight, load_model(llama.parent).last_norm.weight)


def test_wide_weights_are_aligned_as_torch_aligns_them(llama):
    # MKL rounds products of float64 by the alignment of its arguments.
    wide = {name: tensor.double() for name, tensor in load_file(llama).items()}
    (llama.parent / "digests.json").unlink()
    for length in (1, 9, 17):  # the header, and so the place of the weights, differs
        save_file(wide, llama, metadata={"note": length * "n"})
        model = load_model(llama.parent)
        assert all(weight.data_ptr() % 64 == 0 for weight in model.parameters())
