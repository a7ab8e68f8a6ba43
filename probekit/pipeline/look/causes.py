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

from probekit.errors import ConfigError
from probekit.interventions.compose import run_edited
from probekit.interventions.edits import project_out
from probekit.interventions.subspaces import orthonormal_basis
from probekit.model.inputs import TokenBatch
from probekit.model.network import Network
from probekit.model.sites.selection import SiteSelection
from probekit.pipeline.look.apply import load_network
from probekit.probes.saved.saved_probe import SavedProbe
from probekit.watcher import SILENT, Watcher


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
    rank = orthonormal_basis(probe.directions).shape[1]

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
            else run_edited(model, batch, [(place.text, project_out(directions))])
        )
    return log_softmax(logits[:, -1].double(), dim=-1)


def _divergence(before: Tensor, after: Tensor) -> float:
    return float((before.exp() * (before - after)).sum(dim=-1).mean())
