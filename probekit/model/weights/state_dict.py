"""Reading the state dict of a network from a checkpoint, and writing it for the hub."""

import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from probekit.errors import CheckpointError, ConfigError, nearest
from probekit.files import write_atomic
from probekit.memory import is_out_of_memory, out_of_memory
from probekit.model.config import ModelConfig, WeightNames
from probekit.model.weights import files
from probekit.model.weights.checkpoint import CODES, DIGEST, open_checkpoint
from probekit.model.weights.files import ArrayHeader, StoredTensor
from probekit.provenance import digest, pretty_json

MAX_FAULTS = 200  # mismatches that an error lists

# Supported dtypes by name.
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float32", "float16", "bfloat16", "float64")
}

TensorShape = tuple[int, ...]


def weight_readers(
    folder: Path, config: ModelConfig, like: Mapping[str, Tensor], dtype: torch.dtype | None
) -> dict[str, Callable[[], Tensor]]:
    """Return functions that read the weights of the network in `folder`, by name, largest first.

    Linear maps are read as [out, in]. A tensor of a safetensors file that needs no change stays
    mapped; others are in memory twice while they are copied.

    Args:
        folder: folder with weights in a format of the hub or of OpenAI.
        config: the config of the network.
        like: state dict of the network to fill; only names and shapes are used.
        dtype: dtype of the weights; None means that of the stored token embedding, and
            float32 instead of float16.

    Raises:
        MissingError: the folder has no weight file.
        CheckpointError: the weights cannot be read, or names or shapes differ from those of `like`.
            The functions raise it for an unsupported dtype and for values that are not finite.
    """
    names, checkpoint = config.WEIGHTS, open_checkpoint(folder, config.WEIGHTS)
    path, tensors = checkpoint.path, checkpoint.tensors
    # Biases of 0 that the model lacks, and an unembedding equal to the embedding, are redundant.
    for name in tensors.keys() - like.keys():
        if _is_bias(name, like) and not tensors[name].read().any():
            del tensors[name]
    unembedding, embedding = tensors.get(names.unembedding), tensors.get(names.embedding)
    is_extra = names.unembedding not in like
    if is_extra and unembedding and embedding and torch.equal(unembedding.read(), embedding.read()):
        del tensors[names.unembedding]
    # Shapes as in the file, which has the maps of `names.transposed` as [in, out]; `like` does not.
    expected = {name: tuple(transposed(names, name, one).shape) for name, one in like.items()}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if faults := faults_of(shapes, expected, names):
        maps = [name for name in shapes if re.search(names.transposed, name) and name in expected]
        if maps and all(shapes[name] == expected[name][::-1] for name in maps):
            raise CheckpointError(
                f"{path} stores linear maps as [out, in], such as {maps[0]}. nanoGPT does, but its "
                f"exact GELU is another network than {config.TITLE}: transpose only with tanh GELU."
            )
        raise CheckpointError(
            f"{path} does not contain the {config.TITLE} that its config describes; its tensors "
            f"have {_described(shapes, names)}:\n  " + "\n  ".join(faults)
        )
    if dtype is None:
        stored = tensors[names.embedding].read().dtype
        dtype = stored if stored in (torch.bfloat16, torch.float64) else torch.float32
    largest_first = sorted(tensors, key=lambda name: -math.prod(tensors[name].shape))
    return {
        name: partial(_converted, path, names, dtype, name, tensors[name]) for name in largest_first
    }


def transposed(names: WeightNames, name: str, tensor: Tensor) -> Tensor:
    """Return a linear map transposed between [in, out] and [out, in] if it is stored as [in, out].

    >>> from probekit.model.families.gpt2 import WEIGHTS
    >>> transposed(WEIGHTS, "h.0.mlp.c_fc.weight", torch.zeros(4, 1)).shape
    torch.Size([1, 4])
    """
    return tensor.T if re.search(names.transposed, name) else tensor


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return the torch dtype of a name.

    >>> as_dtype("bfloat16")
    torch.bfloat16

    Raises:
        ConfigError: the dtype is not supported.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(f"Unsupported dtype {name!r}. {nearest(name, DTYPES)}")
    return DTYPES[name]


def _converted(
    path: Path, names: WeightNames, dtype: torch.dtype, name: str, tensor: StoredTensor
) -> Tensor:
    """Return a stored tensor as the network needs it: mapped if it needs no change, else a copy.

    Raises:
        CheckpointError: the stored dtype is not supported, or a value is not finite.
        OutOfMemoryError: there is not enough memory for the copy.
    """
    stored = tensor.read()
    if stored.dtype not in DTYPES.values():
        stored_dtype = str(stored.dtype).removeprefix("torch.")
        raise CheckpointError(
            f"{path}: {name} has the dtype {stored_dtype}. Allowed: {', '.join(DTYPES)}."
        )
    source = transposed(names, name, stored)
    # MKL rounds products of float32 and float64 differently if a tensor is not aligned as torch
    # aligns it, so such a tensor is copied. Windows cannot replace a file that is mapped.
    is_aligned = dtype.itemsize == 2 or source.data_ptr() % 64 == 0
    is_kept = tensor.is_mapped and source.dtype == dtype and source.is_contiguous() and is_aligned
    if is_kept and os.name != "nt":
        converted = source
    else:
        try:
            converted = torch.empty(source.shape, dtype=dtype).copy_(source)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise out_of_memory(f"{name} of {path}", source.numel() * dtype.itemsize) from error
    wider = "bfloat16 or float32" if dtype == torch.float16 else "float64"
    overflow = f"they exceed {str(dtype).removeprefix('torch.')}; load the model in {wider}"
    checks = [(stored, "the file is damaged")]
    checks += [] if converted is stored else [(converted, overflow)]
    for numbers, reason in checks:
        least, most = torch.aminmax(numbers)
        if not math.isfinite(least) or not math.isfinite(most):
            raise CheckpointError(f"{path}: {name} has values that are not finite: {reason}.")
    return converted


def faults_of(
    shapes: Mapping[str, TensorShape], expected: Mapping[str, TensorShape], names: WeightNames
) -> list[str]:
    """Return a line for each tensor that is missing, extra or of another shape, and remedies.

    After `MAX_FAULTS` lines, the others are only counted.
    """
    faults = [f"missing: {name} {expected[name]}" for name in expected.keys() - shapes.keys()]
    extra = shapes.keys() - expected.keys()
    faults += [f"extra: {name} {shapes[name]}" for name in extra]
    faults += [
        f"wrong shape: {name} is {shapes[name]}, must be {expected[name]}"
        for name in expected.keys() & shapes.keys()
        if shapes[name] != expected[name]
    ]
    shown = sorted(faults)[:MAX_FAULTS]
    rest = [f"and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
    # An entry of the config helps only if nothing but extra tensors is wrong.
    remedies = _remedies(extra, expected, names) if extra and len(extra) == len(faults) else []
    return [*shown, *rest, *remedies]


def _remedies(extra: Collection[str], expected: Collection[str], names: WeightNames) -> list[str]:
    """Return a sentence with the config entry that would make all extra tensors part of the model.

    The list is empty if no entry does.

    >>> from probekit.model.families.gpt2 import WEIGHTS
    >>> _remedies({"lm_head.weight"}, {"wte.weight"}, WEIGHTS)
    ['To load the extra tensors, set in config.json: "tie_word_embeddings": false.']
    """
    if not all(name == names.unembedding or _is_bias(name, expected) for name in extra):
        return []
    entries = [entry for end, entry in names.switches if all(name.endswith(end) for name in extra)]
    # The first entry is the most specific.
    return [f"To load the extra tensors, set in config.json: {entry}." for entry in entries[:1]]


def _is_bias(name: str, expected: Collection[str]) -> bool:
    """Return whether a tensor is the bias of a module of the model to fill."""
    return name.endswith(".bias") and name.removesuffix("bias") + "weight" in expected


def _described(shapes: Mapping[str, TensorShape], names: WeightNames) -> str:
    """Return the sizes that the shapes of the tensors imply.

    >>> from probekit.model.families.gpt2 import WEIGHTS
    >>> shapes = {"wte.weight": (97, 21), "wpe.weight": (16, 21), "h.0.ln_1.bias": (21,)}
    >>> _described(shapes, WEIGHTS)
    'n_layer=1, vocab_size=97, n_embd=21, n_positions=16'
    """
    inner = (name.removeprefix(names.layers) for name in shapes if name.startswith(names.layers))
    sizes = {names.n_layers: len({name.partition(".")[0] for name in inner})}
    for name, keys in names.sizes:
        # The tensor may be absent, or have more axes than keys.
        sizes |= dict(zip(keys, shapes.get(name, ()), strict=False))
    return ", ".join(f"{key}={size}" for key, size in sizes.items())


_CODES = {dtype: code for code, dtype in CODES.items()}


def write_checkpoint(folder: Path, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write config.json, model.safetensors and digests.json, as transformers reads them.

    The digests are written last. If the folder already had digests of older files, the files of an
    interrupted call fail verification. The header of model.safetensors also contains a digest, for
    copies of that file alone.

    Raises:
        StoreError: a file cannot be written.
        CheckpointError: the existing digests.json is damaged.
    """
    files.read_digests(folder)  # fails before gigabytes are written
    names = config.WEIGHTS
    stored, headers = {}, {}
    for name, tensor in sorted(tensors.items()):
        hub_tensor, hub_name = transposed(names, name, tensor), names.in_checkpoint(name)
        stored[hub_name] = hub_tensor
        headers[hub_name] = ArrayHeader(_CODES[tensor.dtype], tuple(hub_tensor.shape))
    dtype = str(tensors[names.embedding].dtype).removeprefix("torch.")
    metadata = {"format": "pt", DIGEST: digest(map(_bytes_of, stored.values()))}
    entries = pretty_json({"dtype": dtype, **config.to_hub()}).encode()
    weights: Iterator[bytes | memoryview] = chain(
        [files.header(headers, metadata)], map(_bytes_of, stored.values())
    )
    digests = {"config.json": write_atomic(folder / "config.json", entries)}
    digests["model.safetensors"] = write_atomic(folder / "model.safetensors", weights)
    files.write_digests(folder, digests)


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def digest_weights(model: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> str:
    """Return the digest of name, dtype, shape and bytes of all parameters, sorted by name.

    `tensors` replaces the state dict of the model.
    """
    return digest(
        part
        for name, one in sorted((tensors or model.state_dict()).items())
        for tensor in (model.get_parameter(name) if one.is_meta else one,)
        for part in (f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode(), _bytes_of(tensor))
    )
