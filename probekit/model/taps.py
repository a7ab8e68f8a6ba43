"""Taps: functions that see, and may change, the named tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from probekit.errors import ConfigError
from probekit.products import is_derived

Tap = Callable[[str, Tensor], Tensor]  # a site's name and its value -> the value to go on with


class ForwardStoppedError(Exception):
    """Ends a forward pass of which nothing more is wanted; never leaves the model."""


@dataclass(frozen=True)
class Taps:
    """The tap of one forward pass as seen from one module, whose sites begin with `prefix`.

    A tap is an argument of the forward pass and lives as long as it does, so nothing can stay
    behind in the model.
    """

    tap: Tap | None
    pending: set[str] = field(default_factory=set)  # asked for and not yet reached
    stop_when_done: bool = False
    prefix: str = ""

    def within(self, prefix: str) -> Taps:
        """Return the same taps as seen from the module `prefix` of this one."""
        return Taps(self.tap, self.pending, self.stop_when_done, f"{self.prefix}{prefix}.")

    def wants(self, *names: str) -> bool:
        """Return whether any of these sites of this module is asked for."""
        return any(self.prefix + name in self.pending for name in names)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Return the value to go on with at a site of this module.

        Raises:
            ConfigError: the tap returned something else than a tensor of the same shape and dtype.
        """
        site = self.prefix + name
        if self.tap is None or site not in self.pending:
            return value
        # Under grad a tap gets a tensor of its own: a view cannot be changed in place, nor can what
        # an operation keeps for its gradient.
        changed = self.tap(site, value.clone() if is_derived(value) else value)
        if _kind(changed) != _kind(value):
            raise ConfigError(
                f"The tap returned {_kind(changed)} at {site}; it must return the value to go on "
                f"with, {_kind(value)}."
            )
        self.pending.discard(site)
        if self.stop_when_done and not self.pending:
            raise ForwardStoppedError
        return changed


def _kind(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
