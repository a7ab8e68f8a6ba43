"""Probe features: a site, one head or neuron of it, or a concatenation of several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probekit.activations.given.sites import GivenSite
from probekit.activations.identity import Identity
from probekit.activations.records import FloatArray
from probekit.activations.store import ActivationStore
from probekit.activations.work import check_storable
from probekit.data.positions import IntArray
from probekit.errors import ConfigError
from probekit.experiment.activations import AnyExperiment
from probekit.experiment.schema import Experiment
from probekit.model.config import ModelConfig
from probekit.model.sites.sites import SiteConcatenation, SiteSelection

Probed = SiteSelection | SiteConcatenation | GivenSite


def find_features(
    experiment: Experiment, config: ModelConfig
) -> tuple[SiteSelection | SiteConcatenation, ...]:
    """Return the selections that an experiment probes: sites in forward order, then concatenations.

    Raises:
        UnknownNameError: a pattern matches no site.
        ConfigError: a site cannot be stored row by row, or does not support the requested view.
    """
    settings = experiment.capture
    with experiment.at("capture", "sites"):
        single = config.sites.select(settings.sites)
        check_storable(selection.site for selection in single)
    concatenations: list[SiteConcatenation] = []
    for number, patterns in enumerate(settings.concatenate):
        with experiment.at("capture", "concatenate", number):
            concatenations.append(_concatenation(patterns, config))
    joined = tuple(dict.fromkeys(concatenations))
    selections: tuple[SiteSelection | SiteConcatenation, ...] = (*single, *joined)
    if settings.view == "normalized":
        with experiment.at("capture", "view"):
            _check_normalizable(selections, config)
    check_sparse(experiment, {one.text: _width(one, config) for one in selections})
    return selections


def check_sparse(experiment: AnyExperiment, widths: Mapping[str, int]) -> None:
    """Raise ConfigError if a k-sparse probe selects more features than a site has.

    Args:
        experiment: gives the kinds of probe.
        widths: number of features of each site.
    """
    narrowest = min(widths, key=lambda site: widths[site])
    width = widths[narrowest]
    for number, kind in enumerate(experiment.probe.kinds):
        wide = [spec for spec in kind.specs if dict(spec.options).get("k", 0) > width]
        if wide:
            with experiment.at("probe", "kinds", number):
                raise ConfigError(
                    f"{wide[0].text} selects more features than {narrowest} has ({width}). "
                    f"Set k to {width} or less, or remove that site."
                )


def _width(selection: SiteSelection | SiteConcatenation, config: ModelConfig) -> int:
    """Return the number of features of a selection."""
    return sum(part_width(part, config) for part in selection.parts)


def part_width(part: SiteSelection, config: ModelConfig) -> int:
    """Return the number of features of a site, or of one head or neuron of it."""
    axes = [axis for axis in config.sites.axes_of(part.text) if axis not in ("batch", "pos")]
    return math.prod(config.axis_sizes[axis] for axis in axes)


def _concatenation(patterns: tuple[str, ...], config: ModelConfig) -> SiteConcatenation:
    parts = config.sites.select(patterns)
    check_storable(part.site for part in parts)
    if len(parts) < 2:
        raise ConfigError(
            f"a concatenation needs at least two sites, but lists only {parts[0].text}. Add a "
            "site, or use a glob such as blocks.*.hook_resid_post."
        )
    return SiteConcatenation(parts)


def _check_normalizable(
    selections: Sequence[SiteSelection | SiteConcatenation], config: ModelConfig
) -> None:
    for part in (part for selection in selections for part in selection.parts):
        axes = config.sites.describe(part.site).axes
        if axes[-1] != "d_model":
            rows = config.sites.rows
            allowed = ", ".join(site.name for site in rows if site.axes[-1] == "d_model")
            raise ConfigError(
                f"`view: normalized` requires sites whose last axis is d_model, but {part.site} "
                f"has the axes {' '.join(axes)}. Allowed: {allowed}. Set `view: raw` for other "
                "sites."
            )


class FeatureReader:
    """Reads the features of one position from an activation store.

    The last site that was read is kept in memory, so that several heads of it need one read.

    Args:
        store: the captured rows.
        rows: indices of the rows at the position.
        eps: added to the variance by the `normalized` view; None for the raw view.
        is_centred: whether the `normalized` view subtracts the mean, as the norms of the model do.
    """

    def __init__(
        self,
        store: ActivationStore,
        rows: IntArray,
        eps: float | None = None,
        *,
        is_centred: bool = True,
    ) -> None:
        self._store = store
        self._rows = rows
        self._eps = eps
        self._is_centred = is_centred
        self._last: tuple[str, FloatArray] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Not pickled: a worker process reads the site itself.
        return self.__dict__ | {"_last": None}

    @classmethod
    def of(
        cls, store: ActivationStore, rows: IntArray, experiment: Experiment, config: ModelConfig
    ) -> FeatureReader:
        """Return the reader of some rows, in the view that the experiment sets."""
        is_normalized = experiment.capture.view == "normalized"
        eps = config.norm_epsilon if is_normalized else None
        return cls(store, rows, eps, is_centred=config.norm_is_centred)

    @property
    def identity(self) -> Identity:
        """The inputs that the stored rows were computed from."""
        return self._store.identity

    def features(self, selection: Probed) -> FloatArray:
        """Return the features of a selection, shape (n_rows, n_features)."""
        assert not isinstance(selection, GivenSite), "captures have no given sites"
        parts = [self._part(part) for part in selection.parts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _part(self, part: SiteSelection) -> FloatArray:
        return part_of(self._site(part.site), part)

    def _site(self, site: str) -> FloatArray:
        if self._last is None or self._last[0] != site:
            self._last = None  # so that two sites are never in memory at once
            values = self._store.read(site, self._rows)
            if self._eps is not None:
                values = normalized(values, self._eps, is_centred=self._is_centred)
            self._last = site, values
        return self._last[1]


def part_of(values: FloatArray, part: SiteSelection) -> FloatArray:
    """Return the features of a site, or of one of its heads or neurons, shape (n_rows, n_features).

    Args:
        values: activations of the site, shape (n_rows, ...).
        part: the site, with the head or neuron if any.

    >>> part_of(np.zeros((5, 3, 7)), SiteSelection("blocks.0.attn.hook_z", head=2)).shape
    (5, 7)
    """
    if part.index is not None:  # the first axis of every site after the rows
        values = values[:, part.index]
    return np.ascontiguousarray(values.reshape(len(values), -1), dtype=np.float32)


def normalized(values: FloatArray, eps: float, *, is_centred: bool = True) -> FloatArray:
    """Return values centred and scaled by sqrt(var + eps) over the last axis, in float32.

    This is a layer norm without its affine part; without centring, it is an RMS norm.

    Source: Ba, Kiros, Hinton 2016, "Layer Normalization"; Zhang and Sennrich 2019, "Root Mean
    Square Layer Normalization".

    >>> normalized(np.array([[1.0, 3.0]]), eps=0.0)
    array([[-1.,  1.]], dtype=float32)
    """
    wide = values.astype(np.float32, copy=False)
    centred = wide - wide.mean(axis=-1, keepdims=True) if is_centred else wide
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    scaled: FloatArray = centred / np.sqrt(variance + np.float32(eps))
    return scaled
