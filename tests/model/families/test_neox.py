"""Checkpoints of Pythia and GPT-NeoX in their old formats."""

import torch
from safetensors.torch import load_file, save_file

from probekit.model.families.table import load_model
from tests.model.families.configurations import CONFIGURATIONS

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35, 89]])
ROWS = [row for row in CONFIGURATIONS if row.model_type == "gpt_neox"]


def test_both_names_of_the_unembedding_are_read(tmp_path):
    ROWS[0].reference().save_pretrained(tmp_path)
    [path] = tmp_path.glob("*.safetensors")
    tensors, expected = load_file(path), load_model(tmp_path)(TOKENS)
    tensors["lm_head.weight"] = tensors.pop("embed_out.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    assert torch.equal(load_model(tmp_path)(TOKENS), expected)


def test_masks_and_frequencies_of_old_checkpoints_are_ignored(tmp_path):
    ROWS[0].reference().save_pretrained(tmp_path)
    [path] = tmp_path.glob("*.safetensors")
    tensors = load_file(path)
    expected = load_model(tmp_path)(TOKENS)
    for layer in range(3):
        prefix = f"gpt_neox.layers.{layer}.attention."
        tensors[prefix + "bias"] = torch.ones(1, 1, 160, 160, dtype=torch.bool).tril()
        tensors[prefix + "masked_bias"] = torch.tensor(-1e9)
        tensors[prefix + "rotary_emb.inv_freq"] = torch.ones(1)
    save_file(tensors, path, metadata={"format": "pt"})
    assert torch.equal(load_model(tmp_path)(TOKENS), expected)
