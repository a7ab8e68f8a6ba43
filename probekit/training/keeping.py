"""Keeping a checkpoint: model and vocabulary, in the hub's format."""

from __future__ import annotations

from pathlib import Path

import torch

from probekit.model.gpt2 import GPT2
from probekit.model.weights.saving import hub_config, write_checkpoint
from probekit.provenance import pretty_json, write_atomic
from probekit.training.kept import checkpoint_folder
from probekit.training.vocabulary import copy_vocabulary


def keep_checkpoint(run: Path, model: GPT2, step: int, dtype: torch.dtype, bos_id: int) -> Path:
    """Return the folder that now holds the model after a step, in the hub's format.

    Args:
        run: folder of the run, where the vocabulary lies.
        model: the network.
        step: steps done.
        dtype: of the numbers on disk.
        bos_id: id of <|endoftext|>, which transformers takes for GPT-2's where it is not told.

    Raises:
        StoreError: the folder cannot be written.
    """
    folder = checkpoint_folder(run, step)
    copy_vocabulary(run, folder)
    tensors = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    write_checkpoint(folder, model.config, tensors)
    ends = {"bos_token_id": bos_id, "eos_token_id": bos_id}
    write_atomic(folder / "config.json", pretty_json(hub_config(model.config, tensors) | ends))
    return folder
