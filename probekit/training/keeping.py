"""Keeping a checkpoint: model and vocabulary, in the hub's format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from probekit.model.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.saving import write_checkpoint
from probekit.training.kept import checkpoint_folder


def keep_checkpoint(
    run: Path, model: GPT2, step: int, dtype: torch.dtype, tokenizer: Tokenizer
) -> Path:
    """Write the model after a step in the hub's format and return its folder.

    Args:
        run: folder of the run.
        model: the network.
        step: steps done.
        dtype: of the numbers on disk.
        tokenizer: of the run; its <|endoftext|> begins and ends texts for transformers.

    Raises:
        StoreError: the folder cannot be written.
    """
    folder = checkpoint_folder(run, step)
    tokenizer.save_pretrained(folder)
    tensors = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    end = tokenizer.bos_id
    write_checkpoint(folder, replace(model.config, bos_token_id=end, eos_token_id=end), tensors)
    return folder
