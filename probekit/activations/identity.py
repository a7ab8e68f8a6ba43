"""What identifies a cache of activations: everything that their numbers depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from probekit.data.positions import RowPlan
from probekit.model.gpt2 import GPT2
from probekit.provenance import digest, digest_code, digest_json

FORMAT = 1

# How sequences are put together for the forward pass changes the last bits of a row, and thereby
# belongs to the identity.
SHARD_ROWS = 4096
BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}  # a GPU wants more at once, a CPU what its caches hold

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Identity:
    """The contents that a cache was computed from; no names, no paths, no counts, no labels.

    Attributes:
        format: version of the layout on disk.
        weights: digest of names, dtypes, shapes and bytes of all parameters.
        config: all sizes; heads and the epsilon of the norms show in no parameter.
        tokenizer: digest of the vocabulary.
        tokens: digest of the token ids of every example, in order.
        rows: digest of which positions make each row.
        dtype: the numbers on disk.
        compute: dtype of the forward pass.
        device: class of device of the forward pass.
        torch: release of torch, without its patch number.
        code: digest of the code that computes the rows, comments apart.
        shard_rows: rows after which a shard ends.
        batch_tokens: padded tokens in one batch.
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
    code: str
    shard_rows: int
    batch_tokens: int
    format: int = FORMAT

    @property
    def key(self) -> str:
        """The name of the cache's folder: the head of the digest of all fields."""
        return digest_json(self.to_json())[:24]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary."""
        return asdict(self)


def identify(
    model: GPT2, tokenizer: str, tokens: Sequence[IntArray], plan: RowPlan, dtype: str
) -> Identity:
    """Return the identity of the rows that `plan` takes from `tokens` run through `model`.

    Args:
        model: the GPT-2.
        tokenizer: digest of the tokenizer that made the tokens.
        tokens: the ids of every example, each of shape (n_tokens,).
        plan: which positions of which example make a row.
        dtype: `float32` or `float16`, the numbers on disk.
    """
    lengths = np.array([len(ids) for ids in tokens], dtype=np.int64)
    parameter = model.wte.weight
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
        compute=str(parameter.dtype).removeprefix("torch."),
        device=parameter.device.type,
        torch=".".join(torch.__version__.split(".")[:2]),
        code=digest_code(
            "probekit.model.gpt2",
            "probekit.products",
            "probekit.model.taps",
            "probekit.model.tokenizer",
            "probekit.model.visibility",
            "probekit.activations.batches",
            "probekit.activations.forward",
        ),
        shard_rows=SHARD_ROWS,
        batch_tokens=batch_tokens(parameter.device),
    )


def batch_tokens(device: torch.device) -> int:
    """Return how many padded tokens go through a model at once on a device."""
    return BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"])


def digest_weights(model: GPT2) -> str:
    """Return the digest over name, dtype, shape and bytes of all parameters, sorted by name."""

    def parts() -> Any:
        for name, tensor in sorted(model.state_dict().items()):
            yield f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode()
            yield tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data

    return digest(parts())
