"""What identifies a cache of activations: everything that their numbers depend on (`spec.json`)."""

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
from probekit.provenance import digest, digest_json
from probekit.sealed import FORMAT, seal, unseal

if TYPE_CHECKING:  # torch takes seconds to import, and looking after caches needs none of it
    import torch

    from probekit.model.network import Network

# How sequences are put together for the forward pass changes the last bits of a row, and thereby
# belongs to the identity.
SHARD_ROWS = 4096
DTYPES = ("float32", "float16")  # of the numbers on disk
BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}  # a GPU wants more at once, a CPU what its caches hold

# Where the computation of a row begins, after the network's own module.
COMPUTATION = ("probekit.activations.forward", "probekit.activations.pooling")

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Identity:
    """The contents that a cache was computed from; no names, no paths, no counts, no labels.

    Attributes:
        format: version of the layout on disk.
        weights: digest of names, dtypes, shapes and bytes of all parameters.
        config: all sizes; heads and the epsilon of the norms show in no parameter.
        tokenizer: digest of the vocabulary.
        tokens: digest of the token ids of every example, in order. They are ragged: the lengths,
            which are in the digest, are the mask.
        rows: digest of which positions make each row.
        dtype: the numbers on disk.
        compute: dtype of the forward pass, and how its products are rounded if torch was told to.
        device: class of device of the forward pass.
        torch: release of torch, without its patch number.
        code: digest of the code that computes the rows: the network, the forward pass, pooling, and
            all that they import; see `probekit.code_digest`.
        attention: the path that it takes; patterns, which want another, are not stored.
        pooling: what becomes of a row's positions.
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
    attention: str = "fused"
    pooling: str = "mean"
    format: int = FORMAT
    shard_rows: int = SHARD_ROWS
    batch_tokens: int = BATCH_TOKENS["cpu"]

    @property
    def key(self) -> str:
        """The name of the cache's folder: the head of the digest of all fields."""
        return digest_json(self.to_json())[:24]

    @property
    def code_of_dtype(self) -> str:
        """The dtype of the numbers on disk, in the words of safetensors."""
        return CODES[np.dtype(self.dtype)]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary."""
        return asdict(self)


@dataclass(frozen=True)
class Spec:
    """What stands in `spec.json`: the identity, and how many rows there are and in what order."""

    identity: Identity
    sizes: Sizes

    def pack(self) -> bytes:
        """Return the bytes of the file."""
        return seal({"identity": self.identity.to_json(), "rows": asdict(self.sizes)})

    @classmethod
    def unpack(cls, data: bytes, path: str) -> Spec:
        """Return what the bytes of a file say; `path` is what a message calls it.

        Raises:
            DamagedError: it is no spec, or a byte is another.
            StoreError: a newer release wrote it.
        """
        content = unseal(data, path)
        try:
            spec = cls(Identity(**content["identity"]), Sizes(**content["rows"]))
        except (TypeError, KeyError) as error:
            raise DamagedError(f"{path} does not say what a cache holds: {error}.") from error
        if not (_is_typed(spec.identity) and _is_typed(spec.sizes)) or (
            spec.identity.dtype not in DTYPES
        ):
            raise DamagedError(f"{path} does not say what a cache holds: {content}.")
        return spec

    def require(self, expected: Spec | Identity, place: Path | str) -> None:
        """Refuse to be what lies at a place where something else is expected.

        Raises:
            StoreMismatchError: the message lists what differs.
        """
        there, here = (
            self.identity.to_json(),
            (expected.identity if isinstance(expected, Spec) else expected).to_json(),
        )
        if isinstance(expected, Spec):
            there, here = there | {"layout": self.sizes}, here | {"layout": expected.sizes}
        differing = [
            f"{name}: there {there.get(name)!r}, here {here.get(name)!r}"
            for name in sorted(there.keys() | here.keys())
            if there.get(name) != here.get(name)
        ]
        if differing:
            raise StoreMismatchError(
                f"{place} holds the activations of something else:\n  " + "\n  ".join(differing)
            )


def _is_typed(value: Identity | Sizes) -> bool:
    """Whether the fields are what they should be: a stranger may have sealed anything."""
    kinds = {"str": str, "int": int, "dict[str, Any]": dict}
    return all(type(getattr(value, each.name)) is kinds[str(each.type)] for each in fields(value))


def identify(
    model: Network, tokenizer: str, tokens: Sequence[IntArray], plan: RowPlan, dtype: str
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
    precision = backend.matmul.fp32_precision  # tf32 or bf16, where that was allowed
    name = str(dtype).removeprefix("torch.")
    return name if precision in ("none", "ieee") else f"{name}, products in {precision}"


def batch_tokens(device: torch.device) -> int:
    """Return how many padded tokens go through a model at once on a device."""
    return BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"])


def digest_weights(model: Network) -> str:
    """Return the digest over name, dtype, shape and bytes of all parameters, sorted by name."""
    import torch

    def parts() -> Any:
        for name, tensor in sorted(model.state_dict().items()):
            yield f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode()
            yield tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data

    return digest(parts())
