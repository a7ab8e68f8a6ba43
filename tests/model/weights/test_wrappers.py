"""Weights that something else was put around: trainers, compilers, adapters, Git LFS."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from probekit.errors import CheckpointError, MissingError
from probekit.model.families.from_transformers import from_transformers
from probekit.model.families.table import find_config, load_model
from tests.model.families.configurations import rows
from tests.stored import each_row

TOKENS = torch.tensor([[3, 14, 15, 92, 65]])
GPT2, QWEN3, GEMMA2, NEOX, LLAMA = rows(["gpt2", "qwen3 tied", "gemma2", "neox", "llama3"])


@pytest.fixture(params=[GPT2, QWEN3, NEOX], ids=lambda row: row.name)
def saved(request, tmp_path):
    """A folder, its tensors, and the logits of the network."""
    request.param.reference().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    return tmp_path, tensors, load_model(tmp_path)(TOKENS)


def write(folder, tensors, name):
    (folder / "model.safetensors").unlink()
    if name.endswith(".safetensors"):
        save_file(tensors, folder / name)
    else:
        torch.save(tensors, folder / name)


@pytest.mark.parametrize(
    "prefix", ["_orig_mod.", "module.", "model.", "module._orig_mod.", "_fsdp_wrapped_module."]
)
def test_prefixes_of_wrappers_are_left_out_with_a_warning(saved, prefix):
    folder, tensors, logits = saved
    name = "pytorch_model.bin" if prefix == "module." else "model.safetensors"
    if prefix == "model." and "model.embed_tokens.weight" in tensors:
        tensors = {f"model.{tensor}": one for tensor, one in tensors.items()}
    write(folder, {f"{prefix}{tensor}": one for tensor, one in tensors.items()}, name)
    with pytest.warns(UserWarning, match=rf"{name}: .*{prefix}.* is read as "):
        network = load_model(folder)
    assert torch.equal(network(TOKENS), logits)


def test_blocks_that_were_compiled_one_by_one_are_read(saved):
    folder, tensors, logits = saved
    renamed = {name.replace(".0.", ".0._orig_mod."): one for name, one in tensors.items()}
    write(folder, renamed, "model.safetensors")
    with pytest.warns(UserWarning, match="_orig_mod"):
        assert torch.equal(load_model(folder)(TOKENS), logits)


@pytest.mark.parametrize("key", ["model", "state_dict", "model_state_dict"])
@pytest.mark.parametrize("name", ["ckpt.pt", "pytorch_model.bin"])
def test_the_network_in_the_checkpoint_of_a_trainer_is_read(saved, key, name):
    folder, tensors, logits = saved
    others = {"optimizer": {"state": {}}, "iter_num": 5, "config": {"lr": 0.1}}
    write(folder, {key: tensors, **others}, name)
    assert torch.equal(load_model(folder)(TOKENS), logits)


def test_maps_as_nanogpt_stores_them_are_refused_with_the_cause(tmp_path, refused):
    reference = GPT2.reference()
    reference.save_pretrained(tmp_path)
    maps, saved = (
        (".c_attn.weight", ".c_proj.weight", ".c_fc.weight"),
        tmp_path / "model.safetensors",
    )
    turned = {n: t.T.contiguous() if n.endswith(maps) else t for n, t in load_file(saved).items()}
    tensors = {f"_orig_mod.{name}": one for name, one in turned.items()}
    write(tmp_path, {"model": tensors, "model_args": {"n_layer": 3}}, "ckpt.pt")
    with pytest.warns(UserWarning, match="_orig_mod"):
        refused(load_model, tmp_path)


@pytest.mark.parametrize("row", [QWEN3, GEMMA2], ids=lambda row: row.name)
def test_an_index_may_list_the_tied_unembedding(row, tmp_path):
    row.reference().save_pretrained(tmp_path, max_shard_size="8KB")
    logits, path = load_model(tmp_path)(TOKENS), tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["lm_head.weight"] = next(iter(index["weight_map"].values()))
    path.write_text(json.dumps(index))
    assert torch.equal(load_model(tmp_path)(TOKENS), logits)


def test_an_index_without_the_untied_unembedding_is_refused(tmp_path):
    NEOX.reference().save_pretrained(tmp_path, max_shard_size="8KB")
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    for name, shard in index["weight_map"].items():
        if name.endswith(("lm_head.weight", "embed_out.weight")):
            tensors = load_file(tmp_path / shard)
            del tensors[name]
            save_file(tensors or {"empty": torch.zeros(1)}, tmp_path / shard)
    with pytest.raises(CheckpointError):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "pytorch_model.bin"])
def test_a_pointer_of_git_lfs_is_named(tmp_path, name):
    GPT2.reference().save_pretrained(tmp_path)
    if name == "pytorch_model.bin":
        (tmp_path / "model.safetensors").unlink()
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (tmp_path / name).write_text(pointer)
    with pytest.raises(CheckpointError, match=rf"{name} is a pointer of Git LFS.*git lfs pull"):
        load_model(tmp_path)


@each_row("names")
def test_files_that_change_the_network_are_refused_by_name(tmp_path, names):
    GPT2.reference().save_pretrained(tmp_path)
    for name in names:
        (tmp_path / name).write_text("{}")
    for call in (find_config, load_model):
        with pytest.raises(CheckpointError, match=", ".join(names)):
            call(tmp_path)
    (tmp_path / "config.json").unlink()  # as peft saves an adapter alone
    with pytest.raises(CheckpointError, match="merge_and_unload"):
        load_model(tmp_path)


def test_files_that_change_nothing_are_read_over(tmp_path):
    GPT2.reference().save_pretrained(tmp_path)
    for name in ("adapter.md", "README_lora.md", "trainer_state.json", "floral.json", "quant.json"):
        (tmp_path / name).write_text("{}")
    load_model(tmp_path)


def test_a_training_checkpoint_alone_is_named(tmp_path):
    torch.save({"model": {}}, tmp_path / "last.ckpt")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(MissingError, match=r"It has last.ckpt"):
        load_model(tmp_path)


class Lora(nn.Module):
    """A map with an adapter, as peft names its parts."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.ModuleDict({"default": nn.Linear(2, 3)})


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch.compile
@pytest.mark.parametrize("row", [GPT2, QWEN3], ids=lambda row: row.name)
def test_a_model_in_a_wrapper_is_unwrapped(row):
    reference = row.reference()
    expected = from_transformers(reference)(TOKENS)
    compiled = torch.compile(reference)
    for wrapped in (nn.DataParallel(reference), compiled, nn.DataParallel(compiled)):
        assert torch.equal(from_transformers(wrapped)(TOKENS), expected)
    blocks = reference.transformer.h if row is GPT2 else reference.model.layers
    blocks[0] = torch.compile(blocks[0])
    assert torch.equal(from_transformers(reference)(TOKENS), expected)


def test_what_is_no_model_of_transformers_in_memory_is_refused_with_the_cause(refused):
    on_meta, with_adapter = QWEN3.reference().to("meta"), QWEN3.reference()
    attention = with_adapter.model.layers[0].self_attn
    attention.q_proj = Lora(attention.q_proj)
    inside = nn.ModuleDict({"vision": nn.Linear(2, 3), "text": QWEN3.reference()})
    for given in (nn.Linear(2, 3), np.zeros(3), "mini", on_meta, with_adapter, inside):
        refused(from_transformers, given)


@pytest.mark.parametrize(
    "row", rows(["gpt2", "qwen3 tied", "gemma2", "opt"]), ids=lambda row: row.name
)
def test_an_unembedding_of_its_own_is_not_dropped_in_memory(row):
    model = row.reference()
    expected = from_transformers(model)(TOKENS)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())  # equal
    assert torch.equal(from_transformers(model)(TOKENS), expected)
    model.lm_head = nn.Linear(*reversed(model.lm_head.weight.shape), bias=False)
    with pytest.raises(CheckpointError, match=r"extra: lm_head\.weight"):
        from_transformers(model)


def test_a_model_that_has_returned_its_hidden_states_is_read():
    model = LLAMA.reference()
    expected = model(TOKENS, output_hidden_states=True).logits
    assert (from_transformers(model)(TOKENS) - expected).abs().max() < 5e-5


def test_what_in_memory_computes_otherwise_is_refused(refused):
    tied, mixed, hooked, before = (LLAMA.reference() for _ in range(4))
    hooked.model.layers[1].mlp.register_forward_hook(lambda *of: of[2] * 2)
    before.model.norm.register_forward_pre_hook(lambda *_: None)
    tied.config.tie_word_embeddings = True
    mixed.model.layers[0].mlp.down_proj.bfloat16()
    for given in (tied, mixed, hooked, before):
        refused(from_transformers, given)
