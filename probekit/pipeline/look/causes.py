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
from probekit.model.sites import SiteSelection
from probekit.model.taps import Tap
from probekit.model.text.tokenizer import TokenBatch
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
        DataError: all directions are zero.

    >>> tap = erase(np.array([[2.0, 0.0]]))
    >>> tap("hook_embed", torch.tensor([[[3.0, 4.0]]])).tolist()
    [[[0.0, 4.0]]]
    """
    basis = _basis(directions)

    def tap(_: str, value: Tensor) -> Tensor:
        span = torch.as_tensor(basis).to(value)
        if head is None:
            flat = value.flatten(2)
            return (flat - flat @ span @ span.T).view_as(value)
        changed = value.clone()
        changed[:, :, head] -= value[:, :, head] @ span @ span.T
        return changed

    return tap


def _basis(directions: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return orthonormal columns (n_features, rank) that span the directions (n, n_features)."""
    _, sizes, rows = np.linalg.svd(np.asarray(directions, np.float64), full_matrices=False)
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
    model: torch.nn.Module,
    batch: TokenBatch,
    place: SiteSelection,
    directions: NDArray[np.floating] | None,
) -> Tensor:
    """Return the log probabilities (n_texts, d_vocab) of the token after each text."""
    device = next(model.parameters()).device
    ids, mask = batch.ids.to(device), batch.mask.to(device)
    with torch.inference_mode():
        logits = (
            model(ids, mask)
            if directions is None
            else model(ids, mask, tap=erase(directions, place.head), sites=[place.site])
        )
    return log_softmax(logits[:, -1].double(), dim=-1)


def _divergence(before: Tensor, after: Tensor) -> float:
    return float((before.exp() * (before - after)).sum(dim=-1).mean())
