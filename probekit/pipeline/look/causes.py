"""Does the network use what a probe reads? Erase its directions, and random ones, and compare.

A probe says what can be decoded; only a change of the activations says what is used. Erasing any
direction disturbs the network a little, so that the effect is judged by that of random directions.
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

# Of the largest: what is below is the rounding of weights in float32, not a direction.
_LEAST_SIZE = 1e-5


@dataclass(frozen=True, eq=False)
class Effect:
    """How far erasing changes the next-token distribution at the last token, mean over the texts.

    Attributes:
        probe: the Kullback-Leibler divergence, in nats, after the directions of the probe.
        random: (n_draws,), the same after as many random directions.
    """

    probe: float
    random: NDArray[np.float64]

    @property
    def p(self) -> float:
        """The share of random draws with as large an effect, the probe counted as one more."""
        return float((1 + np.sum(self.random >= self.probe)) / (1 + len(self.random)))


def erase(directions: NDArray[np.floating], head: int | None = None) -> Tap:
    """Return a tap that projects the directions (n, n_features) out of what it sees.

    Directions that depend on others, as the scores of several classes do, which sum to zero, count
    once. With `head` it leaves the other heads of the site alone.

    Raises:
        DataError: all directions are zero, or they are no matrix of finite numbers; the tap raises
            it if the site has another width than the directions, or no such head.

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
    """Raise DataError if a site's value (batch, pos, ...) cannot have directions erased."""
    if head is not None and not (value.ndim == 4 and 0 <= head < value.shape[2]):
        heads = f"heads 0 to {value.shape[2] - 1}" if value.ndim == 4 else "no heads"
        raise DataError(f"{site} has {heads}, but head is {head}.")
    n_features = value[0, 0].numel() if head is None else value.shape[3]
    if n_features != width:
        of_head = "" if head is None else f"head {head} of "
        raise DataError(
            f"{of_head}{site} has {n_features} features, but the directions have {width}. Give "
            f"directions of shape (n, {n_features}), or erase them at the site that they are of."
        )


def _basis(directions: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return orthonormal columns (n_features, rank) that span the directions (n, n_features)."""
    matrix = np.asarray(directions, np.float64)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise DataError(
            f"directions have shape {matrix.shape}. Give finite numbers of shape (n, n_features)."
        )
    _, sizes, rows = np.linalg.svd(matrix, full_matrices=False)
    is_one = sizes > _LEAST_SIZE * sizes.max(initial=0.0)
    if not is_one.any():
        raise DataError("All directions are zero: there is nothing to erase.")
    basis: NDArray[np.float64] = rows[is_one].T
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
    """Return what erasing a probe's directions at its site does to what the model says next.

    Args:
        probe: a kept linear probe of one site.
        texts: at whose last tokens the effect is measured.
        draws: how many times as many random directions are erased instead.
        seed: draws them.
        device: where the model computes.
        watcher: hears how far the work has come.

    Raises:
        ConfigError: the probe reads several sites, or a view that is not the raw activations.
        MissingError: the model is not there.
    """
    if len(probe.facts.sites) != 1 or probe.facts.view != "raw":
        raise ConfigError(
            f"Only what one site holds can be erased, but this probe reads {probe.facts.site} in "
            f"the {probe.facts.view} view. Take a probe of a single site."
        )
    network = load_network(probe, probe.facts.model, device, False, watcher)
    (place,) = network.selections
    batch = network.tokenizer.batch(texts, bos=probe.facts.bos, side="left")
    generator = np.random.default_rng(seed)
    rank = _basis(probe.directions).shape[1]

    def said(directions: NDArray[np.floating] | None) -> Tensor:
        return _next_token(network.model, batch, place, directions)

    before = said(None)
    effects = [_divergence(before, said(probe.directions))]
    for done in range(draws):
        effects.append(
            _divergence(before, said(generator.normal(size=(rank, probe.directions.shape[1]))))
        )
        watcher.progress("erase", done + 1, draws)
    return Effect(effects[0], np.array(effects[1:]))


def _next_token(
    model: Network,
    batch: TokenBatch,
    place: SiteSelection,
    directions: NDArray[np.floating] | None,
) -> Tensor:
    """Return the log probabilities (n_texts, d_vocab) of the token after each text."""
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
