"""Vectors that steer: a direction of a probe, of the length of a dose, at the output of a block."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from probekit.errors import ConfigError, DataError, UnknownNameError, nearest
from probekit.lazy_rows import Floats
from probekit.probes.saved_probe import SavedProbe

KIND = "steering vector"  # of the probe in an exported vector
_STREAM = re.compile(r"blocks\.(\d+)\.hook_resid_(pre|post)")


def steering_vector(probe: SavedProbe, towards: str | None = None) -> Floats:
    """Return one standard deviation of the projection along a direction of a probe, (n_features,).

    Args:
        probe: a linear probe of a single site.
        towards: label that the vector points to; None means the second of two labels, or higher
            numbers.

    Raises:
        ConfigError: the probe has no direction on the raw activations of one site, no standard
            deviation, more than two labels and `towards` is None, or no labels and `towards` is
            given.
        UnknownNameError: the probe has no such label.
    """
    facts, unit = probe.facts, probe.unit_directions
    if len(facts.sites) != 1 or facts.view != "raw":
        raise ConfigError(
            f"Steering requires a probe of a single site in the raw view, but this probe reads "
            f"{facts.site} in the {facts.view} view."
        )
    if len(facts.projection_sd) != len(unit):
        raise ConfigError(
            "This probe was saved without the standard deviation of its projection, which is the "
            "unit of the dose. Run its experiment again; cached activations are used again. For a "
            "probe of another tool, give `rows` to `SavedProbe.from_arrays`."
        )
    # Two labels share one direction, towards the second; more have a direction each.
    row, sign, classes = 0, 1, probe.classes
    if towards is None:
        if len(classes) > 2:
            raise ConfigError(
                f"This probe has a direction for each of {len(classes)} labels. Choose one with "
                f"--towards: {', '.join(classes)}."
            )
    elif not classes:
        raise ConfigError(
            "This probe predicts numbers and has no labels. Leave out --towards; a negative dose "
            "points to lower numbers."
        )
    elif towards not in classes:
        hint = nearest(towards, classes)
        raise UnknownNameError(f"This probe has no label {towards!r}. {hint}")
    elif len(classes) == 2:
        sign = 1 if towards == classes[1] else -1
    else:
        row = classes.index(towards)
    return cast(Floats, sign * facts.projection_sd[row] * unit[row])


def in_float32(numbers: Floats) -> NDArray[np.float32]:
    """Return numbers in float32.

    Raises:
        ConfigError: they are beyond its range, or all too small for it.
    """
    with np.errstate(over="ignore", under="ignore"):
        found = numbers.astype("<f4")
    if not np.isfinite(found).all() or (numbers.any() and not found.any()):
        raise ConfigError("Weights or vector are beyond the range of float32. Use plain or torch.")
    return found


def layer_read(site: str) -> int:
    """Return the number of the block whose output is a site of the residual stream.

    The input of block 0, the embedding, has the number -1.

    >>> layer_read("blocks.3.hook_resid_post"), layer_read("blocks.3.hook_resid_pre")
    (3, 2)

    Raises:
        ConfigError: the site is another one.
    """
    match = _STREAM.fullmatch(site)
    if match is None:
        raise ConfigError(
            f"{site} is not the output of a block, where other tools read and steer. Export a "
            "probe of hook_resid_post or hook_resid_pre."
        )
    return int(match[1]) - (match[2] == "pre")


@dataclass(frozen=True, eq=False)
class SteeringVector:
    """A vector that is added to the output of a block at every token.

    Attributes:
        values: the vector (n_features,).
        layer: number of the block.
        towards: what it points to: a label, or higher numbers.
        by: its length, in standard deviations of the projection on the direction.
        model: name of the network.
    """

    values: Floats
    layer: int
    towards: str
    by: float
    model: str

    @classmethod
    def of(cls, probe: SavedProbe, towards: str | None, by: float) -> SteeringVector:
        """Return the vector of a dose; see `steering_vector`.

        Raises:
            ConfigError: the probe has no such vector, or its site is not the output of a block.
            UnknownNameError: it has no such label.
        """
        values = by * steering_vector(probe, towards)
        if not np.isfinite(values).all() or not by:
            raise ConfigError(f"The dose is {by}. Give a number other than 0.")
        layer = layer_read(probe.facts.site)
        if layer < 0:
            raise ConfigError(
                "This probe reads the embedding, to which no other tool adds a vector. Export a "
                "probe of the output of a block."
            )
        label = towards or (probe.direction_names[0] if probe.classes else "higher numbers")
        if by < 0:
            others = [one for one in probe.classes if one != label]
            label = others[0] if len(others) == 1 else f"the opposite of {label}"
        return cls(values, layer, label, abs(by), probe.facts.model)

    def as_probe(self, model: str) -> SavedProbe:
        """Return a probe along the vector, whose unit of steering is the length of the vector.

        Raises:
            DataError: the vector is 0 or not finite.
        """
        length = float(np.linalg.norm(self.values))
        if not (np.isfinite(length) and length):
            raise DataError("The steering vector is 0 or not finite.")
        site = f"blocks.{self.layer}.hook_resid_post"
        probe = SavedProbe.from_arrays(
            self.values / length, site=site, model=model, classes=(), kind=KIND
        )
        facts = probe.facts.model_copy(update={"projection_sd": (length,)})
        return replace(probe, facts=facts)
