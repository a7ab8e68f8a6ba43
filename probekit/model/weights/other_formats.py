"""Weights in files of PyTorch, and in OpenAI's original checkpoints of GPT-2.

The latter are TensorFlow variables that are renamed as in files of the hub:

    hparams.json                                n_vocab, n_ctx, n_embd, n_head, n_layer
    checkpoint                                  name of the newest model.ckpt
    model.ckpt.index  .data-00000-of-00001      model/wte, model/h0/attn/c_attn/w [1, in, out], ...

Source: model.py, published with GPT-2.
"""

import importlib
import os
import re
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probekit.errors import CheckpointError, MissingError
from probekit.model.weights.files import StoredTensor, reading_tensor, verify
from probekit.model.weights.sources import HPARAMS
from probekit.provenance import install_command

_OF_TRAINERS = ("model", "state_dict", "model_state_dict", "module")
# OpenAI's names of the sizes of GPT-2, with those of the hub.
_SIZES = {"n_vocab": "vocab_size", "n_ctx": "n_positions"}
_SIZES |= {name: name for name in ("n_embd", "n_head", "n_layer")}
# Last part of a variable's name (weight, gain, bias) -> the hub's; embeddings have none.
_ENDINGS = {"w": "weight", "g": "weight", "b": "bias"}


def open_pytorch(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a PyTorch file by name; each read maps the file again.

    Files written before PyTorch 1.6 cannot be mapped and are read completely.

    Raises:
        CheckpointError: the file is damaged or contains other objects than tensors.
    """
    with reading_tensor(path):
        verify(path)
    is_mapped = zipfile.is_zipfile(path)
    if is_mapped:
        with reading_tensor(path), zipfile.ZipFile(path) as archive:
            # torch.load does not verify the checksums.
            if (bad := archive.testzip()) is not None:
                raise CheckpointError(f"{path} is damaged: its member {bad} has a wrong checksum.")

    def load() -> dict[str, Tensor]:
        """Return all tensors of the file."""
        with reading_tensor(path):
            # weights_only rejects pickles that would run code.
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)
        for key in _OF_TRAINERS if isinstance(found, Mapping) else ():
            found = found[key] if isinstance(found.get(key), Mapping) else found
        if not isinstance(found, Mapping) or not all(
            isinstance(name, str)
            and isinstance(tensor, Tensor)
            and tensor.device.type == "cpu"
            and tensor.layout == torch.strided
            for name, tensor in found.items()
        ):
            raise CheckpointError(f"{path} must contain a dictionary of named tensors.")
        return dict(found)

    def read(name: str) -> Tensor:
        return load()[name].detach()  # the file may contain an nn.Parameter

    # Tensors that cannot be mapped stay in memory.
    return {
        name: StoredTensor(tuple(tensor.shape), partial(read, name) if is_mapped else tensor.detach)
        for name, tensor in load().items()
    }


def hub_name(variable: str) -> str:
    """Return the hub's name of a variable.

    >>> hub_name("model/h11/attn/c_attn/w"), hub_name("model/ln_f/g"), hub_name("model/wpe")
    ('h.11.attn.c_attn.weight', 'ln_f.weight', 'wpe.weight')
    """
    # model/h11/... becomes h/11/..., and model/wpe becomes wpe.
    *parts, last = re.sub(r"^model/(h(?=\d))?", r"\1/", variable).strip("/").split("/")
    return ".".join([*parts, _ENDINGS[last]] if last in _ENDINGS else [*parts, last, "weight"])


def open_openai(hparams: Path) -> dict[str, StoredTensor]:
    """Return the variables of the checkpoint in the folder of hparams.json, by the hub's names.

    TensorFlow verifies the checksum of each variable.

    Raises:
        MissingError: the checkpoint is missing, or TensorFlow is not installed.
        CheckpointError: the checkpoint is damaged.
    """
    # The path named in the file `checkpoint`; model.ckpt if there is no such file or path.
    name, state = "model.ckpt", hparams.parent / "checkpoint"
    if state.is_file():
        with reading_tensor(state):
            line = re.search(r'^model_checkpoint_path: "(.+)"', state.read_text("utf-8"), re.M)
        if line:
            name = Path(line[1]).name  # only the file name: the folder may have been moved
    path = hparams.parent / name
    if not path.with_name(f"{name}.index").is_file():
        raise MissingError(
            f"{hparams.parent} has {HPARAMS} but no {name}.index. A folder with an original GPT-2 "
            f"contains {HPARAMS}, checkpoint, model.ckpt.index, model.ckpt.data-00000-of-00001, "
            "encoder.json and vocab.bpe."
        )
    # Suppresses log output of TensorFlow; its errors are exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        tensorflow: Any = importlib.import_module("tensorflow")
    except ImportError as error:
        raise MissingError(
            "Reading an original GPT-2 checkpoint needs TensorFlow, which is not installed. "
            f"Install it with: {install_command('openai')}."
        ) from error
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
    """Return [in, out] for a linear map stored as [1, in, out]; other shapes unchanged."""
    return tuple(shape[1:] if len(shape) == 3 and shape[0] == 1 else shape)


def hub_sizes(path: Path, hparams: Mapping[str, int]) -> dict[str, int]:
    """Return the entries of hparams.json, at `path`, by the names of the hub.

    Raises:
        CheckpointError: it has other keys.
    """
    if hparams.keys() != _SIZES.keys():
        raise CheckpointError(
            f"{path} must have exactly the keys {', '.join(_SIZES)}; it has {', '.join(hparams)}."
        )
    return {_SIZES[key]: size for key, size in hparams.items()}
