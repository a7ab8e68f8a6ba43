"""Causal test of a probe: erase its directions and compare the effect with random directions.

A probe shows what can be decoded; only an intervention on the activations shows what the network
uses. Erasing any direction has a small effect, so random directions serve as the null distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import log_softmax

from probekit.errors import ConfigError, DataError
from probekit.model.inputs import TokenBatch
from probekit.model.network import Network
from probekit.model.sites import SiteSelection
from probekit.model.taps import Tap
from probekit.pipeline.look.apply import load_network
from probekit.probes.saved.saved_probe import SavedProbe
from probekit.watcher import SILENT, Watcher

# Relative to the largest singular value: smaller ones are float32 rounding errors.
_LEAST_SIZE = 1e-5


@dataclass(frozen=True, eq=False)
class Effect:
    """Effect of erasing directions on the next-token distribution, averaged over the texts.

    Attributes:
        probe: Kullback-Leibler divergence, in nats, caused by erasing the probe's directions.
        random: the same for random directions, shape (n_draws,). Each draw has as many directions
            as the probe.
    """

    probe: float
    random: NDArray[np.float64]

    @property
    def p(self) -> float:
        """Share of draws with at least the effect of the probe, which counts as a draw itself."""
        return float((1 + np.sum(self.random >= self.probe)) / (1 + len(self.random)))


def erase(directions: NDArray[np.floating], head: int | None = None) -> Tap:
    """Return a tap that projects directions out of the activations of a site.

    Args:
        directions: directions, shape (n, n_features). They may be linearly dependent, like those
            of several classes.
        head: the only head of the site to change; None for all features of the site.

    Raises:
        DataError: all directions are zero, or they are not a matrix of finite numbers. The tap
            raises it too, for a site with another number of features or without this head.

    >>> tap = erase(np.array([[2.0, 0.0]]))
    >>> tap("hook_embed", torch.tensor([[[3.0, 4.0]]])).tolist()
    [[[0.0, 4.0]]]
    """
    basis = _basis(directions)

    def tap(site: str, value: Tensor) -> Tensor:
        _check_width(site, value, head, len(basis))
        span = torch.as_tensor(basis).to(value)
        if head is None:
            flat = value.flatten(2)
            return (flat - flat @ span @ span.T).view_as(value)
        changed = value.clone()
        changed[:, :, head] -= value[:, :, head] @ span @ span.T
        return changed

    return tap


def _check_width(site: str, value: Tensor, head: int | None, width: int) -> None:
    """Raise DataError if directions of this width do not fit a site's value [batch, pos, ...]."""
    if head is not None and not (value.ndim == 4 and 0 <= head < value.shape[2]):
        heads = f"heads 0 to {value.shape[2] - 1}" if value.ndim == 4 else "no heads"
        raise DataError(f"{site} has {heads}, but head is {head}.")
    n_features = value[0, 0].numel() if head is None else value.shape[3]
    if n_features != width:
        of_head = "" if head is None else f"head {head} of "
        raise DataError(
            f"{of_head}{site} has {n_features} features, but the directions have {width}. Give "
            f"directions of shape (n, {n_features}), or erase them at the site of the probe."
        )


def _basis(directions: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return an orthonormal basis of the span of the directions, shape (n_features, rank)."""
    matrix = np.asarray(directions, np.float64)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise DataError(
            f"directions have shape {matrix.shape}. Give finite numbers of shape (n, n_features)."
        )
    _, sizes, rows = np.linalg.svd(matrix, full_matrices=False)
    is_direction = sizes > _LEAST_SIZE * sizes.max(initial=0.0)
    if not is_direction.any():
        raise DataError("All directions are zero: there is nothing to erase.")
    basis: NDArray[np.float64] = rows[is_direction].T
    return basis


def erasure_effect(
    probe: SavedProbe,
    texts: Sequence[str],
    *,
    draws: int = 100,
    seed: int = 0,
    device: str = "cpu",
    watcher: Watcher = SILENT,
) -> Effect:
    """Return how much next-token predictions change if a probe's directions are erased at its site.

    Args:
        probe: a saved linear probe of a single site.
        texts: texts; the effect is measured at their last tokens.
        draws: number of draws of random directions.
        seed: random seed for the directions.
        device: compute device of the model.
        watcher: receives progress.

    Raises:
        ConfigError: the probe reads several sites, or a view other than the raw activations.
        MissingError: the model does not exist.
    """
    if len(probe.facts.sites) != 1 or probe.facts.view != "raw":
        raise ConfigError(
            f"Erasing requires a probe of a single site in the raw view, but this probe reads "
            f"{probe.facts.site} in the {probe.facts.view} view."
        )
    network = load_network(probe, probe.facts.model, device, False, watcher)
    (place,) = network.selections
    batch = network.tokenizer.batch(texts, bos=probe.facts.bos, side="left")
    generator = np.random.default_rng(seed)
    rank = _basis(probe.directions).shape[1]

    def predict(directions: NDArray[np.floating] | None) -> Tensor:
        return _next_token(network.model, batch, place, directions)

    before = predict(None)
    effects = [_divergence(before, predict(probe.directions))]
    for done in range(draws):
        effects.append(
            _divergence(before, predict(generator.normal(size=(rank, probe.directions.shape[1]))))
        )
        watcher.progress("erase", done + 1, draws)
    return Effect(effects[0], np.array(effects[1:]))


def _next_token(
    model: Network,
    batch: TokenBatch,
    place: SiteSelection,
    directions: NDArray[np.floating] | None,
) -> Tensor:
    """Return the log probabilities of the token after each text, shape (n_texts, d_vocab)."""
    batch = batch.to(model.device)
    with torch.inference_mode():
        logits = (
            model(batch)
            if directions is None
            else model(batch, tap=erase(directions, place.head), sites=[place.site])
        )
    return log_softmax(logits[:, -1].double(), dim=-1)


def _divergence(before: Tensor, after: Tensor) -> float:
    return float((before.exp() * (before - after)).sum(dim=-1).mean())
