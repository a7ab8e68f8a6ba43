"""The checkpoints of a run on disk: each a folder that is a model by itself."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from probekit.errors import MissingError
from probekit.model.gpt2 import GPT2
from probekit.model.saving import hub_config, write_checkpoint
from probekit.provenance import pretty_json, write_atomic
from probekit.training.vocabulary import copy_vocabulary

FOLDER = "checkpoints"
_STEP = re.compile(r"step-(\d+)")


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
    folder = run / FOLDER / f"step-{step:07}"
    copy_vocabulary(run, folder)
    tensors = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    write_checkpoint(folder, model.config, tensors)
    ends = {"bos_token_id": bos_id, "eos_token_id": bos_id}
    write_atomic(folder / "config.json", pretty_json(hub_config(model.config, tensors) | ends))
    return folder


def find_checkpoints(run: Path) -> dict[int, Path]:
    """Return the folders of the checkpoints that a run has kept, by step.

    Raises:
        MissingError: there are none.
    """
    found = {
        int(match[1]): path
        for path in sorted((run / FOLDER).glob("step-*"))
        if (match := _STEP.fullmatch(path.name)) and (path / "model.safetensors").is_file()
    }
    if not found:
        raise MissingError(
            f"{run} has no checkpoints; they are made by `probekit pretrain` and lie in "
            f"{FOLDER}/step-NUMBER."
        )
    return found
