"""Saving a checkpoint: model and vocabulary in the format of the Hugging Face hub."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from probekit.model.families.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.state_dict import write_checkpoint
from probekit.training.saved import checkpoint_folder


def save_checkpoint(
    run: Path, model: GPT2, step: int, dtype: torch.dtype, tokenizer: Tokenizer
) -> Path:
    """Save the model after a step in the hub's format and return its folder.

    Args:
        run: run folder.
        model: the network.
        step: number of completed steps.
        dtype: dtype on disk.
        tokenizer: tokenizer of the run; its <|endoftext|> is saved as BOS and EOS token.

    Raises:
        StoreError: the folder cannot be written.
    """
    folder = checkpoint_folder(run, step)
    tokenizer.save_pretrained(folder)
    tensors = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    end = tokenizer.bos_id
    write_checkpoint(folder, replace(model.config, bos_token_id=end, eos_token_id=end), tensors)
    return folder
