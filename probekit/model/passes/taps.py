"""Taps: functions that read, and may replace, the named tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from probekit.errors import ConfigError
from probekit.products import is_derived

Tap = Callable[[str, Tensor], Tensor]  # site name, value -> value to continue with


class ForwardStoppedError(Exception):
    """Stops a forward pass after the last requested site; caught inside the model."""


@dataclass(frozen=True)
class Taps:
    """The tap of one forward pass, for a module whose site names begin with `prefix`.

    It is an argument of the forward pass, so the model holds no state that could outlive it.

    Attributes:
        tap: the function called at each requested site; None if no site is requested.
        pending: requested sites that the pass has not reached yet.
        stop_when_done: whether to stop the pass after the last requested site.
        prefix: beginning of the names of the module's sites.
    """

    tap: Tap | None
    pending: set[str] = field(default_factory=set)
    stop_when_done: bool = False
    prefix: str = ""

    def within(self, prefix: str) -> Taps:
        """Return the same taps for the submodule `prefix`."""
        return Taps(self.tap, self.pending, self.stop_when_done, f"{self.prefix}{prefix}.")

    def wants(self, *names: str) -> bool:
        """Return whether any of these sites of the module is requested."""
        return any(self.prefix + name in self.pending for name in names)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Return the value to continue with at a site of the module.

        Raises:
            ConfigError: the tap did not return a tensor of the same shape and dtype.
        """
        site = self.prefix + name
        if self.tap is None or site not in self.pending:
            return value
        # With gradients the tap gets a clone: autograd forbids in-place changes to views and to
        # tensors saved for the backward pass.
        returned = self.tap(site, value.clone() if is_derived(value) else value)
        check_returned(returned, value, site)
        self.pending.discard(site)
        if self.stop_when_done and not self.pending:
            raise ForwardStoppedError
        return returned


def check_returned(returned: object, value: Tensor, site: str) -> None:
    """Raise ConfigError if a tap did not return a tensor of the same shape and dtype.

    Raises:
        ConfigError: the shape or dtype differs from that of `value`, or it is no tensor.
    """
    if _describe(returned) != _describe(value):
        raise ConfigError(
            f"The tap returned {_describe(returned)} at {site}. Return the value to continue "
            f"with: {_describe(value)}."
        )


def _describe(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
