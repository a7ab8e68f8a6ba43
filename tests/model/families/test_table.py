"""Checkpoints of every family: shards, dtypes, memory, and what is refused."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import probekit
from probekit.errors import CheckpointError
from probekit.model.families.from_transformers import from_transformers
from probekit.model.families.table import FAMILIES, load_model
from tests.model.families.configurations import CONFIGURATIONS, by_day, rows

TOKENS = torch.tensor([[3, 14, 15, 92, 65]])
# Prints how much larger the peak of the process is after a load than before, in units of weights.
# Files that are read count as memory of the process while they are mapped.
MEMORY = """
import pathlib, re, resource, sys
import torch
from probekit.model.families.table import load_model, model_config, network_class
def peak():
    status = pathlib.Path("/proc/self/status")
    if status.exists():  # there, ru_maxrss begins with the peak of the process that started this
        return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", status.read_text())[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
network_class(model_config(pathlib.Path(sys.argv[1])))  # imports count before
torch.ones(2, 2) @ torch.ones(2, 2)
before = peak()
model = load_model(sys.argv[1])
assert model.dtype == torch.bfloat16, model.dtype
after = peak()
weights = sum(tensor.nbytes for tensor in model.state_dict().values())
print((after - before) / weights)
"""


@pytest.mark.parametrize("row", by_day(CONFIGURATIONS))
def test_sharded_bfloat16_folders_load_in_their_dtype(row, tmp_path):
    reference = row.reference(torch.bfloat16)
    reference.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded = load_model(tmp_path)
    assert loaded.dtype == torch.bfloat16
    shared = from_transformers(reference)
    assert type(loaded) is type(shared)
    for name, tensor in shared.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    how = {"dtype": torch.float32, "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(tmp_path, **how)
    theirs = model(TOKENS).logits
    torch.testing.assert_close(load_model(tmp_path, "float32")(TOKENS), theirs, atol=5e-5, rtol=0)


def test_tensors_of_a_loaded_model_are_shared():
    reference = CONFIGURATIONS[0].reference()
    theirs = reference.state_dict()
    for name, tensor in from_transformers(reference).state_dict().items():
        other = theirs.get(f"model.{name}", theirs.get(name))
        assert tensor.data_ptr() == other.data_ptr(), name


def test_the_networks_of_the_families_are_those_of_the_table():
    for family in FAMILIES:
        # A Gemma 3 that reads images is read as a gemma3_text.
        assert {*family.model_types} - {"gemma3"} == {*family.config.KINDS}
    types = [name for family in FAMILIES for name in family.model_types]
    assert len(set(types)) == len(types)
    assert probekit.load_model is load_model


@pytest.mark.parametrize("row", by_day(CONFIGURATIONS))
def test_what_we_save_transformers_and_we_open_again(row, tmp_path):
    reference = row.reference()
    ours = from_transformers(reference)
    ours.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert again.config == ours.config
    assert all(torch.equal(again.state_dict()[n], t) for n, t in ours.state_dict().items())
    how = {"attn_implementation": row.attention, "experts_implementation": "eager"}
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path, **how, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert torch.equal(theirs(TOKENS).logits, reference(TOKENS).logits)


@pytest.mark.skipif(sys.platform == "win32", reason="no resource module")
def test_loading_needs_little_more_memory_than_the_weights(tmp_path):
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12}
    config = LlamaConfig(vocab_size=8192, num_attention_heads=8, **sizes)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="50MB")
    command = [sys.executable, "-c", MEMORY, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert 0.5 < float(done.stdout) < 1.1


def rewrite(folder, row, change):
    """Change the tensors of a checkpoint, which must load the same."""
    rows([row])[0].reference().save_pretrained(folder)
    [path], expected = folder.glob("*.safetensors"), load_model(folder)(TOKENS)
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
    assert torch.equal(load_model(folder)(TOKENS), expected)


def test_both_names_of_the_unembedding_and_checkpoints_of_the_body_alone_are_read(tmp_path):
    for row, old, new in (("neox", "embed_out", "lm_head"), ("opt", "model.decoder", "decoder")):
        rewrite(tmp_path, row, lambda t, o=old, n=new: {k.replace(o, n): t[k] for k in t})


OLD_AND_NEW = (
    ("language_model.lm_head", "lm_head"),
    ("language_model.model", "model.language_model"),
    ("vision_tower", "model.vision_tower"),
    ("multi_modal_projector", "model.multi_modal_projector"),
)


@pytest.mark.parametrize("row", ["gemma3 with images", "gemma3 with images, untied"])
@pytest.mark.parametrize("is_old", [True, False])
def test_both_spellings_of_a_model_with_images_are_read(tmp_path, row, is_old):
    def renamed(tensors):
        found = {}
        for name, tensor in tensors.items():
            for pair in OLD_AND_NEW:
                old, new = pair if is_old else pair[::-1]
                if name.startswith((old, new)):
                    name = old + name.removeprefix(old).removeprefix(new)  # noqa: PLW2901
                    break
            found[name] = tensor
        assert any("vision" in name for name in found)
        return found

    rewrite(tmp_path, row, renamed)
    names = load_file(tmp_path / "model.safetensors")
    start = "language_model.model." if is_old else "model.language_model."
    assert start + "layers.2.mlp.up_proj.weight" in names
    theirs = rows([row])[0].reference()
    logits = load_model(tmp_path)(TOKENS)
    torch.testing.assert_close(logits, theirs(TOKENS).logits, atol=5e-5, rtol=0)


def test_tensors_that_are_neither_of_language_nor_of_images_are_refused(tmp_path):
    rows(["gemma3 with images"])[0].reference().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    for name in ("audio_tower.layers.0.weight", "vision_tower_of_another.weight"):
        extra = {name: torch.ones(1)}
        save_file(load_file(path) | extra, path, metadata={"format": "pt"})
        with pytest.raises(CheckpointError, match=f"extra: {name}"):
            load_model(tmp_path)


def test_masks_and_frequencies_of_old_checkpoints_are_ignored(tmp_path):
    def added(tensors):
        for layer in range(3):
            prefix = f"gpt_neox.layers.{layer}.attention."
            tensors[prefix + "bias"] = torch.ones(1, 1, 160, 160, dtype=torch.bool).tril()
            tensors[prefix + "masked_bias"] = torch.tensor(-1e9)
            tensors[prefix + "rotary_emb.inv_freq"] = torch.ones(1)
        return tensors

    rewrite(tmp_path, "neox", added)
