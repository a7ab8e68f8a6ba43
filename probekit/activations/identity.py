"""Identity of a cache of activations: everything that its numbers depend on (`spec.json`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from probekit.data.positions import IntArray, RowPlan
from probekit.provenance import PART_VERSIONS, digest, digest_json

if TYPE_CHECKING:  # torch takes seconds to import, and managing caches does not need it
    from probekit.model.network import Network

FORMAT = 3  # of all files of a store

# Batching changes the last bits of a row, so these constants are part of the identity.
SHARD_ROWS = 4096
CODES = {"float32": "F32", "float16": "F16"}  # dtypes on disk, and their safetensors codes
BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}  # sized for CPU caches, and for GPU throughput


@dataclass(frozen=True)
class Identity:
    """Digests and settings that determine the numbers in a cache; no names, paths or labels.

    Attributes:
        format: version of the format on disk.
        weights: digest of the names, dtypes, shapes and bytes of all parameters.
        config: network configuration; the parameters alone do not show head count and norm epsilon.
        tokenizer: digest of the vocabulary.
        tokens: digest of the token ids of every example, in order, and of their lengths, which
            determine the padding mask.
        rows: digest of the example and positions of each row.
        dtype: dtype on disk.
        compute: dtype of the forward pass, and reduced precision of its products if torch uses one.
        device: device type of the forward pass, such as `cuda`.
        torch: version of torch without its patch number.
        network: version of the network's computation, `Network.VERSION`.
        capture: version of the capture, see `PART_VERSIONS`.
        attention: attention implementation. It computes no attention patterns, so that a cache
            cannot contain them.
        pooling: how the positions of a row are combined.
        shard_rows: maximum number of rows per shard.
        batch_tokens: padded tokens per batch.
    """

    weights: str
    config: dict[str, Any]
    tokenizer: str
    tokens: str
    rows: str
    dtype: str
    compute: str
    device: str
    torch: str
    network: int
    capture: int
    attention: str = "fused"
    pooling: str = "mean"
    format: int = FORMAT
    shard_rows: int = SHARD_ROWS
    batch_tokens: int = BATCH_TOKENS["cpu"]

    @property
    def key(self) -> str:
        """Name of the cache folder: the first 24 digits of the digest of all fields."""
        return digest_json(self.to_json())[:24]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary."""
        return asdict(self)


def identify(
    model: Network, tokenizer: str, tokens: Sequence[IntArray], plan: RowPlan, dtype: str
) -> Identity:
    """Return the identity of a capture: of the rows in `plan` when `model` reads `tokens`.

    Args:
        model: the GPT-2.
        tokenizer: digest of the tokenizer that made the tokens.
        tokens: the ids of every example, each of shape (n_tokens,).
        plan: the example and positions of each row.
        dtype: dtype on disk, `float32` or `float16`.
    """
    import torch

    lengths = np.array([len(ids) for ids in tokens], dtype=np.int64)
    backend = torch.backends.cuda if model.device.type == "cuda" else torch.backends.mkldnn
    precision = backend.matmul.fp32_precision  # tf32 or bf16 if the user enabled it
    reduced = "" if precision in ("none", "ieee") else f", products in {precision}"
    return Identity(
        weights=digest_weights(model),
        config=model.config.to_json(),
        tokenizer=tokenizer,
        tokens=digest(
            [lengths.tobytes(), *(np.asarray(ids, np.int64).tobytes() for ids in tokens)]
        ),
        rows=digest(
            part
            for array in (plan.example, plan.positions, plan.offsets)
            for part in (str(len(array)).encode() + b";", np.asarray(array, np.int64).tobytes())
        ),
        dtype=dtype,
        compute=str(model.dtype).removeprefix("torch.") + reduced,
        device=model.device.type,
        torch=".".join(version("torch").split(".")[:2]),
        network=model.VERSION,
        capture=PART_VERSIONS["capture"],
        shard_rows=SHARD_ROWS,
        batch_tokens=batch_tokens(model.device.type),
    )


def batch_tokens(device: str) -> int:
    """Return the number of padded tokens per batch on a type of device, such as `cuda`."""
    return BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"])


def digest_weights(model: Network) -> str:
    """Return the digest of name, dtype, shape and bytes of all parameters, sorted by name."""
    import torch

    def parts() -> Any:
        for name, tensor in sorted(model.state_dict().items()):
            yield f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode()
            yield tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data

    return digest(parts())
