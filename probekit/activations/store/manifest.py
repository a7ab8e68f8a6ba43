"""What seals a whole store: one root digest over its identity, its rows and all finished sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from probekit.activations.identity import Spec
from probekit.activations.store.sealed_json import seal, unseal
from probekit.errors import DamagedError
from probekit.provenance import digest_json


@dataclass(frozen=True)
class Manifest:
    """The finished sites of a store.

    Attributes:
        sites: for each finished site the digests of its shards, in order.
        root: the digest of everything, which a stranger's cache can be told by.
    """

    sites: dict[str, list[str]]
    root: str

    @classmethod
    def of(cls, spec: Spec, sites: Mapping[str, Sequence[str]]) -> Manifest:
        """Return the manifest of a store with these finished sites, in any order."""
        told = {site: list(sites[site]) for site in sorted(sites)}
        whole = {"identity": spec.identity.to_json(), "rows": spec.sizes.digest, "sites": told}
        return cls(told, digest_json(whole))

    def pack(self) -> bytes:
        """Return the bytes of `manifest.json`."""
        return seal(asdict(self))

    @classmethod
    def unpack(cls, data: bytes, path: str, spec: Spec) -> Manifest:
        """Return the manifest that a file holds; `path` is what a message calls it.

        Raises:
            DamagedError: it is none, or that of another store.
            StoreError: a newer release wrote it.
        """
        content = unseal(data, path)
        sites = content.get("sites")
        if not isinstance(sites, dict) or not all(isinstance(d, list) for d in sites.values()):
            raise DamagedError(f"{path} does not list the sites of a store.")
        manifest = cls.of(spec, sites)
        if manifest.pack() != data:
            raise DamagedError(f"{path} is the manifest of another store.")
        return manifest
