"""Identity of a cache of activations: everything that its numbers depend on (`spec.json`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from probekit.activations.store.layout import CODES, Sizes
from probekit.code_digest import digest_code
from probekit.data.positions import RowPlan
from probekit.errors import DamagedError, StoreMismatchError
from probekit.provenance import FORMAT, digest, digest_json, seal, unseal

if TYPE_CHECKING:  # torch takes seconds to import, and managing caches does not need it
    import torch

    from probekit.model.network import Network

# Batching changes the last bits of a row, so these constants are part of the identity.
SHARD_ROWS = 4096
DTYPES = ("float32", "float16")  # on disk
BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}  # sized for CPU caches, and for GPU throughput

# Modules that compute a row, in addition to the network's own.
COMPUTATION = ("probekit.activations.forward", "probekit.activations.pooling")

IntArray = npt.NDArray[np.int64]


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
        code: digest of the code that computes the rows: the network, the forward pass, pooling and
            everything they import; see `probekit.code_digest`.
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
    code: str
    attention: str = "fused"
    pooling: str = "mean"
    format: int = FORMAT
    shard_rows: int = SHARD_ROWS
    batch_tokens: int = BATCH_TOKENS["cpu"]

    @property
    def key(self) -> str:
        """Name of the cache folder: the first 24 digits of the digest of all fields."""
        return digest_json(self.to_json())[:24]

    @property
    def code_of_dtype(self) -> str:
        """Dtype on disk as a safetensors code, such as F32."""
        return CODES[np.dtype(self.dtype)]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary."""
        return asdict(self)


@dataclass(frozen=True)
class Spec:
    """Content of `spec.json`: identity of a cache, and size and digest of its row layout."""

    identity: Identity
    sizes: Sizes

    def pack(self) -> bytes:
        """Return the bytes of `spec.json`."""
        return seal({"identity": self.identity.to_json(), "rows": asdict(self.sizes)})

    @classmethod
    def unpack(cls, data: bytes, path: str) -> Spec:
        """Parse the bytes of `spec.json`; `path` is its name in error messages.

        Raises:
            DamagedError: the bytes are not a valid spec.
            StoreError: the file was written by a newer release.
        """
        content = unseal(data, path)
        try:
            spec = cls(Identity(**content["identity"]), Sizes(**content["rows"]))
        except (TypeError, KeyError) as error:
            raise DamagedError(f"{path} is not a valid cache specification: {error}.") from error
        if not (_is_typed(spec.identity) and _is_typed(spec.sizes)) or (
            spec.identity.dtype not in DTYPES
        ):
            raise DamagedError(f"{path} is not a valid cache specification: {content}.")
        return spec

    def require(self, expected: Spec | Identity, place: Path | str) -> None:
        """Raise if this spec differs from the expected one.

        Raises:
            StoreMismatchError: the specs differ; the message lists each difference.
        """
        stored, wanted = (
            self.identity.to_json(),
            (expected.identity if isinstance(expected, Spec) else expected).to_json(),
        )
        if isinstance(expected, Spec):
            stored, wanted = stored | {"layout": self.sizes}, wanted | {"layout": expected.sizes}
        differing = [
            f"{name}: stored {stored.get(name)!r}, expected {wanted.get(name)!r}"
            for name in sorted(stored.keys() | wanted.keys())
            if stored.get(name) != wanted.get(name)
        ]
        if differing:
            raise StoreMismatchError(
                f"{place} contains activations of another capture:\n  " + "\n  ".join(differing)
            )


def _is_typed(value: Identity | Sizes) -> bool:
    """Return whether all fields have their declared types; a file may come from elsewhere."""
    kinds = {"str": str, "int": int, "dict[str, Any]": dict}
    return all(type(getattr(value, each.name)) is kinds[str(each.type)] for each in fields(value))


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
    lengths = np.array([len(ids) for ids in tokens], dtype=np.int64)
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
        compute=_compute(model.dtype, model.device),
        device=model.device.type,
        torch=".".join(version("torch").split(".")[:2]),
        code=digest_code(*model.code_modules, *COMPUTATION),
        shard_rows=SHARD_ROWS,
        batch_tokens=batch_tokens(model.device),
    )


def _compute(dtype: torch.dtype, device: torch.device) -> str:
    import torch

    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    precision = backend.matmul.fp32_precision  # tf32 or bf16 if the user enabled it
    name = str(dtype).removeprefix("torch.")
    return name if precision in ("none", "ieee") else f"{name}, products in {precision}"


def batch_tokens(device: torch.device) -> int:
    """Return the number of padded tokens per batch on a device."""
    return BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"])


def digest_weights(model: Network) -> str:
    """Return the digest of name, dtype, shape and bytes of all parameters, sorted by name."""
    import torch

    def parts() -> Any:
        for name, tensor in sorted(model.state_dict().items()):
            yield f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode()
            yield tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data

    return digest(parts())
