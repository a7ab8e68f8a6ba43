"""Checkpoints of Pythia and GPT-NeoX in their old formats."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from probekit.model.families.table import load_model
from tests.model.families.configurations import CONFIGURATIONS

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35, 89]])
ROWS = [row for row in CONFIGURATIONS if row.model_type == "gpt_neox"]


@pytest.fixture
def rewrite(tmp_path):
    """A function that changes the tensors of a checkpoint; the network must be the same."""
    ROWS[0].reference().save_pretrained(tmp_path)
    [path] = tmp_path.glob("*.safetensors")

    def changed(change):
        tensors, expected = load_file(path), load_model(tmp_path)(TOKENS)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})
        assert torch.equal(load_model(tmp_path)(TOKENS), expected)

    return changed


def test_both_names_of_the_unembedding_are_read(rewrite):
    rewrite(lambda tensors: tensors.update({"lm_head.weight": tensors.pop("embed_out.weight")}))


def test_masks_and_frequencies_of_old_checkpoints_are_ignored(rewrite):
    def add(tensors):
        for layer in range(3):
            prefix = f"gpt_neox.layers.{layer}.attention."
            tensors[prefix + "bias"] = torch.ones(1, 1, 160, 160, dtype=torch.bool).tril()
            tensors[prefix + "masked_bias"] = torch.tensor(-1e9)
            tensors[prefix + "rotary_emb.inv_freq"] = torch.ones(1)

    rewrite(add)
