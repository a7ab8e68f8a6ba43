"""Identity of a store, and its files other than rows: layout, shard records, spec and manifest.

Array files have the safetensors format. Their headers are compared and never parsed: the expected
header is known before a file is opened, so any deviation is an error. JSON files are sealed with a
digest of their content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from probekit.data.positions import IntArray, RowPlan
from probekit.errors import DamagedError, StoreMismatchError
from probekit.model.weights.files import ArrayHeader, header
from probekit.provenance import PART_VERSIONS, digest, digest_json, seal, unseal

if TYPE_CHECKING:  # torch takes seconds to import, and managing caches does not need it
    from probekit.model.network import Network

Location = Path | str  # a folder, or the URL of a folder in an object store
FloatArray = npt.NDArray[np.floating[Any]]

# By safetensors code. NumPy has no bfloat16, which is the upper half of a float32.
DTYPES: dict[str, type[np.generic]] = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "I64": np.int64,
}
FORMAT = 3  # of all files of a store

# Batching changes the last bits of a row, so these constants are part of the identity.
SHARD_ROWS = 4096
ROWS_COMPARED = 64  # rows of the first batch that are also computed in float32, to measure errors
# Dtypes on disk, and their safetensors codes.
CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}  # sized for CPU caches, and for GPU throughput
SPEC, ROWS, MANIFEST = "spec.json", "rows.safetensors", "manifest.json"
REPLIES = "replies.json"  # of a part of generated replies, in the folder of its store
FORMAT_OF_REPLIES = 1  # of this file
ERRORS = "errors.json"  # of rows whose forward pass is in half precision
OUTPUT = "output."  # begins the name of the only column of a store that is no site; see `outputs`
NO_DIGEST = "0" * 64  # in place of a digest in the plan of a store


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
        origin: "" if the network computed the rows in passes over whole texts; `replies KEY` if it
            did token by token, while it generated these replies; `requests DIGEST` if they were
            read from these files of a serving engine. Left out of the JSON if empty, so that other
            keys do not depend on it.
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
    origin: str = ""

    @property
    def key(self) -> str:
        """Name of the cache folder: the first 24 digits of the digest of all fields."""
        return digest_json(self.to_json())[:24]

    @property
    def is_compared(self) -> bool:
        """Whether some rows are compared with a forward pass in float32, to measure their errors.

        They are if the forward pass computes in half precision, or was that of another engine; not
        if it generated replies.
        """
        is_half = self.compute.startswith(("bfloat16", "float16"))
        return self.origin.startswith("requests") or (is_half and not self.origin)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary, without an empty `origin`."""
        content = asdict(self)
        return content if self.origin else {k: v for k, v in content.items() if k != "origin"}


def identity_of(
    model: Network,
    tokenizer: str,
    tokens: Sequence[IntArray],
    plan: RowPlan,
    dtype: str,
    device: str | None = None,
    origin: str = "",
) -> Identity:
    """Return the identity of a capture: of the rows in `plan` when `model` reads `tokens`.

    Args:
        model: the network. On the meta device, without weights, NO_DIGEST replaces their digest.
        tokenizer: digest of the tokenizer that made the tokens.
        tokens: the ids of every example, each of shape (n_tokens,).
        plan: the example and positions of each row.
        dtype: dtype on disk, a key of `CODES`.
        device: type of the devices that will compute; None for the model's.
        origin: where the rows come from; see `Identity`.
    """
    import torch

    from probekit.model.weights.state_dict import digest_weights

    device = device or model.device.type
    backend = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    precision = backend.matmul.fp32_precision  # tf32 or bf16 if the user enabled it
    reduced = "" if precision in ("none", "ieee") else f", products in {precision}"
    return Identity(
        weights=NO_DIGEST if model.device.type == "meta" else digest_weights(model),
        config=model.config.to_json(),
        tokenizer=tokenizer,
        **digests_of_rows(tokens, plan),
        dtype=dtype,
        compute=str(model.dtype).removeprefix("torch.") + reduced,
        device=device,
        torch=".".join(version("torch").split(".")[:2]),
        network=model.VERSION,
        capture=PART_VERSIONS["capture"],
        shard_rows=SHARD_ROWS,
        batch_tokens=batch_tokens(device),
        pooling="mean without massive tokens" if plan.skip_massive else "mean",
        origin=origin,
    )


def digests_of_rows(tokens: Sequence[IntArray], plan: RowPlan) -> dict[str, Any]:
    """Return the digests `tokens` and `rows` of an `Identity`; see `identity_of`."""
    lengths = np.array([len(ids) for ids in tokens], dtype=np.int64)
    token_bytes = (np.asarray(ids, np.int64).tobytes() for ids in tokens)
    plan_bytes = (
        part  # generated, so that no copies of large arrays are in memory together
        for array in (plan.example, plan.positions, plan.offsets)
        for part in (f"{len(array)};".encode(), np.asarray(array, np.int64).tobytes())
    )
    return {"tokens": digest([lengths.tobytes(), *token_bytes]), "rows": digest(plan_bytes)}


def dtype_of(column: str, identity: Identity) -> str:
    """Return the dtype on disk of a site, or of numbers of the output, which are not rounded."""
    return "float32" if column.startswith(OUTPUT) else identity.dtype


def batch_tokens(device: str) -> int:
    """Return the number of padded tokens per batch on a device, such as `cuda` or `cuda:1`."""
    return BATCH_TOKENS.get(device.partition(":")[0], BATCH_TOKENS["cpu"])


def stored_numbers(values: FloatArray, dtype: str) -> npt.NDArray[Any]:
    """Return rows as they are stored: those of bfloat16 as the upper halves of their float32.

    >>> stored_numbers(np.array([1.0, -2.5], np.float32), "bfloat16")
    array([16256, 49184], dtype=uint16)
    """
    if dtype != "bfloat16":
        return np.ascontiguousarray(values)
    bits = np.ascontiguousarray(values).view(np.uint32)
    assert not (bits & 0xFFFF).any(), "the rows are not rounded to bfloat16"
    return (bits >> 16).astype(np.uint16)


def read_numbers(stored: npt.NDArray[Any]) -> FloatArray:
    """Return stored rows as floats: those of bfloat16 as float32, which has all of its numbers.

    >>> read_numbers(np.array([16256, 49184], np.uint16))
    array([ 1. , -2.5], dtype=float32)
    """
    is_half = stored.dtype == np.uint16
    return (stored.astype(np.uint32) << 16).view(np.float32) if is_half else stored


def pack_errors(errors: Mapping[str, tuple[float, float]]) -> bytes:
    """Return the bytes of `errors.json`, whose length depends on the sites only."""
    texts = {site: f"{errors[site][0]:.3e} {errors[site][1]:.3e}" for site in sorted(errors)}
    return seal({"against": "float32", "relative_error": texts}, FORMAT)


# The arrays of a layout, in the order of its file.
_LAYOUT = ("example", "positions", "offsets", "order", "shard_sizes")


@dataclass(frozen=True)
class Sizes:
    """Number of rows, positions and shards of a layout, and the digest of its file.

    >>> Sizes(rows=2, positions=3, shards=1, digest="").headers["offsets"]
    ArrayHeader(dtype='I64', shape=(3,))
    """

    rows: int
    positions: int
    shards: int
    digest: str

    @property
    def headers(self) -> dict[str, ArrayHeader]:
        """Headers of the arrays in the file, in order."""
        lengths = (self.rows, self.positions, self.rows + 1, self.rows, self.shards)
        return {name: ArrayHeader("I64", (n,)) for name, n in zip(_LAYOUT, lengths, strict=True)}

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return len(header(self.headers)) + sum(array.size for array in self.headers.values())


def pack_layout(plan: RowPlan, shards: Sequence[IntArray]) -> tuple[Sizes, list[bytes]]:
    """Return the sizes of a layout and the content of its file in chunks.

    Args:
        plan: the example and positions of each row.
        shards: row indices of each shard, in storage order.
    """
    order, shard_sizes = np.concatenate(shards), [len(rows) for rows in shards]
    arrays = (plan.example, plan.positions, plan.offsets, order, shard_sizes)
    numbers = [np.ascontiguousarray(array, np.int64).tobytes() for array in arrays]
    sizes = Sizes(len(plan.example), len(plan.positions), len(shards), digest="")
    pieces = [header(sizes.headers), *numbers]
    return replace(sizes, digest=digest(pieces)), pieces


class Layout:
    """Example, positions and storage order of the rows of a store.

    Args:
        arrays: the arrays of the file, by name.

    Attributes:
        plan: the example and positions of each row.
        order: row indices in storage order, shape (n_rows,).
        shards: row indices of each shard, in storage order.
        first: start of each shard in storage order, then the number of rows, shape (n_shards + 1,).
    """

    def __init__(self, arrays: Mapping[str, IntArray]) -> None:
        self.plan = RowPlan(arrays["example"], arrays["positions"], arrays["offsets"])
        self.order = arrays["order"]
        self.first = np.concatenate([[0], np.cumsum(arrays["shard_sizes"])])
        self.shards = tuple(np.split(self.order, self.first[1:-1]))

    @cached_property
    def place(self) -> IntArray:
        """Storage position of each row, shape (n_rows,)."""
        place = np.empty(len(self.order), dtype=np.int64)
        place[self.order] = np.arange(len(self.order))
        return place


@dataclass(frozen=True)
class Spec:
    """Content of `spec.json`: identity of a cache, and size and digest of its row layout."""

    identity: Identity
    sizes: Sizes

    def pack(self) -> bytes:
        """Return the bytes of `spec.json`."""
        return seal({"identity": self.identity.to_json(), "rows": asdict(self.sizes)}, FORMAT)

    @classmethod
    def unpack(cls, data: bytes, path: str) -> Spec:
        """Parse the bytes of `spec.json`; `path` is its name in error messages.

        Raises:
            DamagedError: the bytes are not a valid spec.
            StoreError: the file has another format version.
        """
        content = unseal(data, path, FORMAT)
        try:
            spec = cls(Identity(**content["identity"]), Sizes(**content["rows"]))
        except (TypeError, KeyError) as error:
            raise DamagedError(f"{path} is not a valid cache specification: {error}.") from error
        kinds = {"str": str, "int": int, "dict[str, Any]": dict}
        is_typed = all(
            type(getattr(part, each.name)) is kinds[str(each.type)]
            for part in (spec.identity, spec.sizes)  # which may come from elsewhere
            for each in fields(part)
        )
        if not is_typed or spec.identity.dtype not in CODES:
            raise DamagedError(f"{path} is not a valid cache specification: {content}.")
        return spec

    def require(self, expected: Spec, place: Location) -> None:
        """Raise if this spec, which is stored at `place`, differs from the expected one.

        Raises:
            StoreMismatchError: the specs differ; the message lists each difference.
        """
        stored = self.identity.to_json() | {"layout": self.sizes}
        wanted = expected.identity.to_json() | {"layout": expected.sizes}
        differing = [
            f"{name}: stored {stored.get(name)!r}, expected {wanted.get(name)!r}"
            for name in sorted(stored | wanted)  # not all have the field `origin`
            if stored.get(name) != wanted.get(name)
        ]
        if differing:
            raise StoreMismatchError(
                f"{place} contains activations of another capture:\n  " + "\n  ".join(differing)
            )


@dataclass(frozen=True)
class ShardRecord:
    """A committed shard of one site.

    Attributes:
        store: key of the store.
        site: full name.
        shard: index of the shard.
        dtype: safetensors dtype code.
        shape: shape of the array, (n_rows, ...).
        digest: BLAKE3 digest of the row file.

    >>> record = ShardRecord("k", "hook_embed", 3, "F32", (2, 5), "ab" * 32)
    >>> record.file, record.size
    ('hook_embed/00003.abababababababab.safetensors', 112)
    >>> ShardRecord.unpack(record.pack(), record.name) == record
    True
    """

    store: str
    site: str
    shard: int
    dtype: str
    shape: tuple[int, ...]
    digest: str

    @property
    def name(self) -> str:
        """Path of the record in the store."""
        return record_name(self.site, self.shard)

    @property
    def file(self) -> str:
        """Path of the row file in the store.

        The name contains the digest, so that writers whose results differ in the last bits never
        overwrite each other: the record committed first names its own file.
        """
        return f"{stem(self.site, self.shard)}.{self.digest[:16]}.safetensors"

    @property
    def kind(self) -> ArrayHeader:
        """Dtype and shape of the array."""
        return ArrayHeader(self.dtype, self.shape)

    @property
    def header(self) -> bytes:
        """Header that the row file must begin with."""
        return header({"rows": self.kind})

    @property
    def size(self) -> int:
        """Size of the row file in bytes."""
        return len(self.header) + self.kind.size

    def pack(self) -> bytes:
        """Return the bytes of the record's file."""
        return seal(asdict(self), FORMAT)

    @classmethod
    def unpack(cls, data: bytes, path: str) -> ShardRecord:
        """Parse and validate a record; `path` is its name in error messages.

        Raises:
            DamagedError: the bytes are not a valid record.
            StoreError: the file has another format version.
        """
        content = unseal(data, path, FORMAT)
        try:
            record = cls(**{**content, "shape": tuple(content["shape"])})
        except (TypeError, KeyError) as error:
            raise DamagedError(f"{path} is not the record of a shard: {error}.") from error
        # An untrusted digest becomes part of a path.
        is_shape = bool(record.shape) and all(type(n) is int and n > 0 for n in record.shape)
        is_digest = isinstance(record.digest, str) and re.fullmatch("[0-9a-f]{64}", record.digest)
        if not (is_shape and is_digest and record.dtype in CODES.values()):
            raise DamagedError(
                f"{path} has invalid values: dtype {record.dtype!r}, shape {record.shape!r}, "
                f"digest {record.digest!r}."
            )
        return record


def stem(site: str, shard: int) -> str:
    """Return the common prefix of the paths of a shard's files."""
    return f"{site}/{shard:05d}"


def record_name(site: str, shard: int) -> str:
    """Return the path of a shard's record in the store.

    >>> record_name("hook_embed", 3)
    'hook_embed/00003.json'
    """
    return f"{stem(site, shard)}.json"


@dataclass(frozen=True)
class Manifest:
    """The finished sites of a store.

    Attributes:
        sites: digests of the shards of each finished site, in order.
        root: one digest of identity, layout and sites. Users can require it when they open a copy
            of the cache from elsewhere.
    """

    sites: dict[str, list[str]]
    root: str

    @classmethod
    def of(cls, spec: Spec, sites: Mapping[str, Sequence[str]]) -> Manifest:
        """Return the manifest of a store with the given finished sites, in any order."""
        listed = {site: list(sites[site]) for site in sorted(sites)}
        content = {"identity": spec.identity.to_json(), "rows": spec.sizes.digest, "sites": listed}
        return cls(listed, digest_json(content))

    def pack(self) -> bytes:
        """Return the bytes of `manifest.json`."""
        return seal(asdict(self), FORMAT)

    @classmethod
    def unpack(cls, data: bytes, path: str, spec: Spec) -> Manifest:
        """Parse a manifest and check that it belongs to a store; `path` is used in messages.

        Raises:
            DamagedError: the bytes are not a manifest, or the manifest of another store.
            StoreError: the file has another format version.
        """
        sites = unseal(data, path, FORMAT).get("sites")
        if not isinstance(sites, dict) or not all(isinstance(one, list) for one in sites.values()):
            raise DamagedError(f"{path} does not list the sites of a store.")
        manifest = cls.of(spec, sites)
        # The root follows from the spec and the sites, so that equal bytes have the right one.
        if manifest.pack() != data:
            raise DamagedError(f"{path} is the manifest of another store.")
        return manifest
