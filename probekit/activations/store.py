"""The activations of a data set on disk: written in shards, each whole or not there.

    <cache>/<key>/identity.json            what the rows were computed from; written first
    <cache>/<key>/rows.safetensors         which example and positions each row is
    <cache>/<key>/<site>/00000.safetensors the rows of one shard, shape (n_rows, ...)
    <cache>/<key>/<site>/00000.json        its record: size and digest; written last, commits it
    <cache>/<key>/manifest.json            the finished sites and one digest over all

A shard without its record does not exist. A site is finished when all its shards are committed;
sites can be added later. Reading is memory-mapped, one site at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from probekit.activations.identity import Identity
from probekit.data.positions import RowPlan
from probekit.errors import (
    ConfigError,
    MissingError,
    StoreError,
    StoreMismatchError,
    UnknownNameError,
    nearest,
)
from probekit.provenance import canonical_json, digest, digest_json, pretty_json, write_atomic

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.int64]

LOCK = ".lock"
_DTYPES: dict[str, type[np.floating[Any]]] = {"F32": np.float32, "F16": np.float16}


@dataclass(frozen=True)
class ShardRecord:
    """What commits one shard of one site of one store: its size and digest."""

    store: str
    site: str
    shard: int
    rows: int
    bytes: int
    digest: str


class ActivationStore:
    """The rows of one capture, by site.

    Use `ActivationStore.open(folder)` to read one; `capture` in capture.py makes them.

    Attributes:
        folder: where it lies.
        identity: what its rows were computed from.
        shards: the store's order of rows: for each shard the numbers of its rows.
    """

    def __init__(self, folder: Path, identity: Identity, shards: Sequence[IntArray]) -> None:
        self.folder = folder
        self.identity = identity
        self.shards = tuple(shards)

    @classmethod
    def create(
        cls, root: Path, identity: Identity, plan: RowPlan, shards: Sequence[IntArray]
    ) -> ActivationStore:
        """Return the store with this identity under `root`, new or as far as it has come.

        Raises:
            StoreMismatchError: what lies in its folder has another identity.
            StoreError: the folder cannot be written.
        """
        folder = root / identity.key
        layout = _layout(plan, shards)
        if not os.path.lexists(folder / "identity.json"):
            write_atomic(folder / "rows.safetensors", layout)
            write_atomic(folder / "identity.json", pretty_json(identity.to_json()))
        store = cls.open(folder, expect=identity)
        if _read_bytes(folder / "rows.safetensors") != layout:
            raise _damaged(folder, "rows.safetensors is not the layout of these rows")
        return store

    @classmethod
    def open(cls, folder: Path | str, expect: Identity | None = None) -> ActivationStore:
        """Return the store in `folder`.

        Raises:
            MissingError: there is no store.
            StoreMismatchError: it is not the one expected; the message lists what differs.
            StoreError: it is damaged.
        """
        folder = Path(folder)
        try:
            found = _read_json(folder / "identity.json")
        except StoreError as error:
            raise _damaged(folder, str(error)) from error
        if expect is not None and found != expect.to_json():
            raise StoreMismatchError(_differences(folder, found, expect.to_json()))
        try:
            rows = safetensors.numpy.load(_read_bytes(folder / "rows.safetensors"))
            shards = np.split(rows["order"], np.cumsum(rows["shard_sizes"])[:-1])
            return cls(folder, Identity(**found), shards)
        except (StoreError, safetensors.SafetensorError, KeyError, TypeError) as error:
            raise _damaged(folder, str(error)) from error

    @property
    def n_rows(self) -> int:
        """The number of rows of every site."""
        return sum(len(rows) for rows in self.shards)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites whose every shard is committed."""
        folders = sorted(path.name for path in self.folder.iterdir() if path.is_dir())
        return tuple(site for site in folders if not self.missing(site))

    def missing(self, site: str) -> tuple[int, ...]:
        """Return the shards of a site that are not committed, or whose file is not whole."""
        return tuple(n for n in range(len(self.shards)) if not self._is_committed(site, n))

    def _committed(self, site: str) -> list[int]:
        missing = set(self.missing(site))
        return [shard for shard in range(len(self.shards)) if shard not in missing]

    def _is_committed(self, site: str, shard: int) -> bool:
        path = self._path(site, shard)
        try:
            record = self._record(site, shard)
            mine = (self.identity.key, site, shard, len(self.shards[shard]))
            named = (record.store, record.site, record.shard, record.rows)
            return named == mine and path.stat().st_size == record.bytes
        except (MissingError, FileNotFoundError, StoreError):
            return False

    def commit(self, site: str, shard: int, values: FloatArray) -> None:
        """Write one shard of one site, values of shape (n_rows, ...), then the record.

        Raises:
            StoreError: a value is not finite, or the disk refuses.
        """
        self._refuse_non_finite(site, shard, values)
        # safetensors 0.8 writes wrong bytes for arrays that are not C-contiguous.
        content = safetensors.numpy.save({"rows": np.ascontiguousarray(values)})
        record = ShardRecord(
            self.identity.key, site, shard, len(values), len(content), digest([content])
        )
        write_atomic(self._path(site, shard), content)
        write_atomic(self._path(site, shard).with_suffix(".json"), canonical_json(asdict(record)))

    def _refuse_non_finite(self, site: str, shard: int, values: FloatArray) -> None:
        finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if finite.all():
            return
        advice = (
            "float16 ends at 65,504: store float32" if values.dtype == np.float16 else
            "look at the weights, or compute in float32"
        )  # fmt: skip
        row = int(self.shards[shard][int(np.argmin(finite))])
        raise StoreError(
            f"{int((~finite).sum())} rows of {site} are not finite, first row {row}; nothing of "
            f"this shard was stored. {advice}."
        )

    def seal(self) -> None:
        """Write the manifest of all finished sites."""
        if not self.is_sealed:
            write_atomic(self.folder / "manifest.json", pretty_json(self._manifest()))

    def digest_of(self, sites: Sequence[str]) -> str:
        """Return one digest over the identity and the rows of finished sites, in any order."""
        return digest_json(
            {
                "identity": self.identity.to_json(),
                "sites": {site: self._digests(site) for site in sites},
            }
        )

    def _digests(self, site: str) -> list[str]:
        return [self._record(site, shard).digest for shard in range(len(self.shards))]

    def _manifest(self) -> dict[str, Any]:
        finished = self.sites
        sites = {site: self._digests(site) for site in finished}
        return {"root": self.digest_of(finished), "sites": sites}

    def sweep(self) -> None:
        """Delete the shards that killed writers left half-written; for the lock's holder only."""
        for path in self.folder.glob("*/.*"):
            if path.is_file():
                path.unlink(missing_ok=True)

    def read(self, site: str, rows: IntArray | Sequence[int] | None = None) -> FloatArray:
        """Return the rows of a site in the order of the data set, shape (n_rows, ...).

        Args:
            site: the full name.
            rows: numbers of the rows wanted, None for all.

        Raises:
            UnknownNameError: the store does not hold that site.
            ConfigError: `rows` are no numbers of rows.
            StoreError: a file is damaged or lost.
        """
        if self.missing(site):
            raise UnknownNameError(
                f"The store {self.folder} does not hold all of {site}. {nearest(site, self.sites)}"
            )
        wanted = self._numbers(rows)
        place = np.empty(self.n_rows, dtype=np.int64)
        place[np.concatenate(self.shards)] = np.arange(self.n_rows)
        place = place[wanted]  # where each wanted row stands in the order of the store
        first = np.cumsum([0, *(len(rows) for rows in self.shards)])
        out: FloatArray | None = None
        for shard in range(len(self.shards)):
            here = np.flatnonzero((place >= first[shard]) & (place < first[shard + 1]))
            values = self._map(site, shard)
            if out is None:
                out = np.empty((len(wanted), *values.shape[1:]), dtype=values.dtype)
            out[here] = values[place[here] - first[shard]]
        assert out is not None
        return out

    def _numbers(self, rows: IntArray | Sequence[int] | None) -> IntArray:
        if rows is None:
            return np.arange(self.n_rows)
        wanted = np.asarray(rows)
        if not wanted.size:
            return np.empty(0, dtype=np.int64)
        in_range = wanted.dtype.kind in "iu" and 0 <= wanted.min() <= wanted.max() < self.n_rows
        if wanted.ndim != 1 or not in_range:
            raise ConfigError(
                f"rows must be numbers from 0 to {self.n_rows - 1}, shape (n,), not {wanted.dtype} "
                f"of shape {wanted.shape} from {wanted.min()} to {wanted.max()}."
            )
        return wanted.astype(np.int64)

    def _map(self, site: str, shard: int) -> FloatArray:
        """Return one shard as a memory-mapped array."""
        path = self._path(site, shard)
        try:
            with path.open("rb") as file:
                header_size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(header_size))["rows"]
            values: FloatArray = np.memmap(
                path,
                dtype=_DTYPES[header["dtype"]],
                mode="r",
                offset=8 + header_size,
                shape=tuple(header["shape"]),
            )
            return values
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{path} is damaged ({error}); delete it and run the same command again."
            ) from error

    @property
    def is_sealed(self) -> bool:
        """Whether the manifest tells of all finished sites."""
        try:
            return _read_json(self.folder / "manifest.json") == self._manifest()
        except (MissingError, StoreError):  # it is made anew from the records
            return False

    def verify(self, sites: Sequence[str] | None = None) -> None:
        """Digest every committed shard of the given sites, or of all.

        Raises:
            StoreError: the message names each file whose bytes are not those committed.
        """
        bad = [
            str(self._path(site, shard))
            for site in (self.sites if sites is None else sites)
            for shard in self._committed(site)
            if digest([_read_bytes(self._path(site, shard))]) != self._record(site, shard).digest
        ]
        if bad:
            raise StoreError(
                f"{len(bad)} files are not what was written: {', '.join(bad)}. Delete them and "
                "run the same command again."
            )

    @contextlib.contextmanager
    def locked(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Hold the store for one writer; a second one waits, and is told so through `tell`.

        Raises:
            StoreError: the folder cannot be written.
        """
        lock = FileLock(self.folder / LOCK)
        try:
            try:
                lock.acquire(timeout=0)
            except Timeout:
                tell(f"another run is writing {self.folder}; waiting for it, then using its rows")
                lock.acquire()
        except OSError as error:
            raise StoreError(f"Cannot write {self.folder}: {error.strerror or error}.") from error
        try:
            yield
        finally:
            lock.release()

    def _path(self, site: str, shard: int) -> Path:
        return self.folder / site / f"{shard:05d}.safetensors"

    def _record(self, site: str, shard: int) -> ShardRecord:
        path = self._path(site, shard).with_suffix(".json")
        try:
            return ShardRecord(**_read_json(path))
        except TypeError as error:
            raise StoreError(f"{path} is not the record of a shard: {error}.") from error


def _layout(plan: RowPlan, shards: Sequence[IntArray]) -> bytes:
    """Return the bytes of rows.safetensors."""
    arrays = {
        "example": plan.example,
        "positions": plan.positions,
        "offsets": plan.offsets,
        "order": np.concatenate(shards),
        "shard_sizes": np.array([len(rows) for rows in shards], dtype=np.int64),
    }
    content: bytes = safetensors.numpy.save(
        {name: np.ascontiguousarray(array, np.int64) for name, array in arrays.items()}
    )
    return content


def _damaged(folder: Path, why: str) -> StoreError:
    return StoreError(
        f"The activation store {folder} cannot be used: {why.rstrip('.')}. Where that is no matter "
        "of permissions, delete the folder to have it computed anew."
    )


def default_root() -> Path:
    """Return where caches lie unless told otherwise: PROBEKIT_CACHE, or the user's cache folder."""
    chosen = os.environ.get("PROBEKIT_CACHE")
    if chosen:
        return Path(chosen)
    try:
        return user_cache_path("probekit") / "activations"
    except RuntimeError as error:
        raise StoreError(
            "There is no home folder for the caches. Set PROBEKIT_CACHE, or give --cache."
        ) from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingError(f"There is no {path}.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise StoreError(f"{path} must hold a JSON object.")
    return content


def _differences(folder: Path, found: dict[str, Any], expected: dict[str, Any]) -> str:
    differing = [
        f"{name}: there {found.get(name)!r}, here {expected.get(name)!r}"
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]
    return f"{folder} holds the activations of something else:\n  " + "\n  ".join(differing)
