"""Rotary positions as config.json describes them: base, share of the head, and scaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from probekit.errors import ConfigError, nearest
from probekit.model.config import is_number

_SHARED = ("rope_theta", "partial_rotary_factor", "rope_type")
# Keys that each kind of scaling reads; it needs all of them.
_KINDS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}


@dataclass(frozen=True)
class RotaryPositions:
    """Base and scaling of rotary positions; the names are those of `rope_parameters` on the hub.

    Attributes:
        rope_theta: base of the wavelengths.
        rope_type: `default`, `linear` (positions are divided by `factor`), or `llama3` (only long
            wavelengths are multiplied by `factor`, with a smooth transition).
        partial_rotary_factor: share of the features of a head that is rotated.
        factor: how much longer the texts are than those of the first training.
        low_freq_factor: tokens of the first training per longest wavelength that is interpolated.
        high_freq_factor: tokens of the first training per shortest wavelength that is.
        original_max_position_embeddings: number of tokens of a text in the first training.

    Raises:
        ConfigError: the type is unknown, or a number is missing or not positive.
    """

    rope_theta: float = 10000.0
    rope_type: str = "default"
    partial_rotary_factor: float = 1.0
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None

    def __post_init__(self) -> None:
        if self.rope_type not in tuple(_KINDS):  # it may be of any type
            raise ConfigError(
                f"rope_type is {self.rope_type!r}. {nearest(str(self.rope_type), _KINDS)} probekit "
                "computes no other scaling of rotary positions."
            )
        for name in ("rope_theta", "partial_rotary_factor", *_KINDS[self.rope_type]):
            value = getattr(self, name)
            if not is_number(value) or not value > 0:
                raise ConfigError(
                    f"{name} of the rotary positions ({self.rope_type}) must be a positive number, "
                    f"not {value!r}."
                )

    def to_json(self) -> dict[str, Any]:
        """Return the entries of `rope_parameters`, without those that the type does not read."""
        read = (*_SHARED, *_KINDS[self.rope_type])
        return {key: value for key, value in asdict(self).items() if key in read}

    @classmethod
    def from_hub(
        cls, entries: Mapping[str, Any], theta: float = 10000.0, share: float = 1.0
    ) -> RotaryPositions:
        """Return the rotary positions that the entries of a config.json describe.

        Releases of transformers before 5 write `rope_theta` and `rope_scaling`, later ones
        `rope_parameters`.

        Args:
            entries: contents of the file, or of its section for one kind of layer.
            theta: base if none is given.
            share: share of the features of a head that is rotated if none is given.

        >>> RotaryPositions.from_hub({"rope_theta": 5e5, "rope_scaling": None}).rope_theta
        500000.0

        Raises:
            ConfigError: the type of scaling or one of its keys is unknown, or a number is invalid.
        """
        scaling = entries.get("rope_parameters") or entries.get("rope_scaling") or {}
        if not isinstance(scaling, Mapping):
            raise ConfigError(f"rope_parameters must be an object, not {scaling!r}.")
        given = {key: value for key, value in scaling.items() if value is not None}
        old_kind = given.pop("type", "default")
        kind = given.pop("rope_type", old_kind)
        kind = old_kind if kind == "default" else kind
        is_known = isinstance(kind, str) and kind in _KINDS
        known = (*_SHARED, *_KINDS[kind]) if is_known else ()
        if unknown := [key for key in given if key not in known and is_known]:
            raise ConfigError(
                f"Unknown key {unknown[0]!r} of the rotary positions ({kind}). "
                f"{nearest(unknown[0], known)}"
            )
        own = {"rope_theta": theta, "partial_rotary_factor": share}
        own |= {key: entries[key] for key in own if entries.get(key) is not None}
        if not is_known:
            given = {}
        return cls(**(own | given | {"rope_type": kind}))
