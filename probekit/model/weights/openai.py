"""OpenAI's original checkpoints: TensorFlow variables, renamed as in files of the hub.

    hparams.json                                n_vocab, n_ctx, n_embd, n_head, n_layer
    checkpoint                                  name of the newest model.ckpt
    model.ckpt.index  .data-00000-of-00001      model/wte, model/h0/attn/c_attn/w [1, in, out], ...

Source: model.py, published with GPT-2.
"""

from __future__ import annotations

import importlib
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probekit.errors import MissingError
from probekit.model.weights.names import HPARAMS
from probekit.model.weights.stored import StoredTensor, reading_tensor
from probekit.provenance import install_command

# Last part of a variable's name (weight, gain, bias) -> the hub's; embeddings have none.
_ENDINGS = {"w": "weight", "g": "weight", "b": "bias"}


def hub_name(variable: str) -> str:
    """Return the hub's name of a variable.

    >>> hub_name("model/h11/attn/c_attn/w"), hub_name("model/ln_f/g"), hub_name("model/wpe")
    ('h.11.attn.c_attn.weight', 'ln_f.weight', 'wpe.weight')
    """
    *parts, last = re.sub(r"^model/(h(?=\d))?", r"\1/", variable).strip("/").split("/")
    return ".".join([*parts, _ENDINGS[last]] if last in _ENDINGS else [*parts, last, "weight"])


def open_openai(hparams: Path) -> dict[str, StoredTensor]:
    """Return the variables of the checkpoint in the folder of hparams.json, by the hub's names.

    TensorFlow verifies the checksum of each variable.

    Raises:
        MissingError: the checkpoint is missing, or TensorFlow is not installed.
        CheckpointError: the checkpoint is damaged.
    """
    path, tensorflow = _newest(hparams.parent), _tensorflow()
    failure = tensorflow.errors.OpError
    with reading_tensor(path, failure):
        reader = tensorflow.train.load_checkpoint(str(path))
        shapes = reader.get_variable_to_shape_map()

    def read(variable: str) -> Tensor:
        with reading_tensor(path, failure):
            array = reader.get_tensor(variable)
        return torch.from_numpy(array).view(_linear_shape(shapes[variable]))

    return {
        hub_name(variable): StoredTensor(_linear_shape(shape), partial(read, variable))
        for variable, shape in shapes.items()
    }


def _linear_shape(shape: list[int]) -> tuple[int, ...]:
    """Return the shape of a linear map, stored as a convolution of width 1, as [in, out]."""
    return tuple(shape[1:] if len(shape) == 3 and shape[0] == 1 else shape)


def _newest(folder: Path) -> Path:
    """Return the path named in the file `checkpoint`; model.ckpt if there is no such file."""
    name, state = "model.ckpt", folder / "checkpoint"
    if state.is_file():
        with reading_tensor(state):
            named = re.search(r'^model_checkpoint_path: "(.+)"', state.read_text("utf-8"), re.M)
        # Only the file name, because the folder may have been moved.
        name = Path(named[1]).name if named else name
    path = folder / name
    if not path.with_name(f"{name}.index").is_file():
        raise MissingError(
            f"{folder} has {HPARAMS} but no {name}.index. A folder with an original GPT-2 contains "
            f"{HPARAMS}, checkpoint, model.ckpt.index, model.ckpt.data-00000-of-00001, "
            "encoder.json and vocab.bpe."
        )
    return path


def _tensorflow() -> Any:
    # Suppresses log output of TensorFlow; its errors are exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        return importlib.import_module("tensorflow")
    except ImportError as error:
        raise MissingError(
            "Reading an original GPT-2 checkpoint needs TensorFlow, which is not installed. "
            f"Install it with: {install_command('openai')}."
        ) from error
