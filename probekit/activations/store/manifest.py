"""Manifest of a store: one root digest of its identity, row layout and finished sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from probekit.activations.identity import Spec
from probekit.errors import DamagedError
from probekit.provenance import digest_json
from probekit.sealed import seal, unseal


@dataclass(frozen=True)
class Manifest:
    """The finished sites of a store.

    Attributes:
        sites: digests of the shards of each finished site, in order.
        root: digest of identity, layout and sites; pins the content of a cache from elsewhere.
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
        return seal(asdict(self))

    @classmethod
    def unpack(cls, data: bytes, path: str, spec: Spec) -> Manifest:
        """Parse a manifest and check that it belongs to a store; `path` is used in messages.

        Raises:
            DamagedError: the bytes are not a manifest, or the manifest of another store.
            StoreError: the file was written by a newer release.
        """
        content = unseal(data, path)
        sites = content.get("sites")
        if not isinstance(sites, dict) or not all(isinstance(d, list) for d in sites.values()):
            raise DamagedError(f"{path} does not list the sites of a store.")
        manifest = cls.of(spec, sites)
        if manifest.pack() != data:
            raise DamagedError(f"{path} is the manifest of another store.")
        return manifest
