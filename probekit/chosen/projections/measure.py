"""The direction of the selected probe: its tokens, and rows projected on it at other sites.

tokens_of_direction.csv   tokens with the highest and the lowest cosine with the direction
projections.csv           held-out rows projected on the direction, at each site of its line

Both have a direction for each of the most frequent labels; of two labels or numbers, a single one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from probekit.chosen.directions import measure as directions
from probekit.chosen.selected_probe import SelectedProbe
from probekit.errors import ConfigError
from probekit.lazy_rows import Floats
from probekit.model.network import Network
from probekit.model.sites.catalogue import describe
from probekit.pipeline.engines.engine import TASK
from probekit.pipeline.engines.network import NetworkEngine
from probekit.probes.kinds.ridge import ridge_path
from probekit.probes.saved_probe import SavedProbe
from probekit.probes.score.exchange import permuted_labels
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions
from probekit.probes.score.scored import Predictions, with_interval
from probekit.probes.solve.layers import AffineLayer, apply_layers, bound_of_null, unit_rows
from probekit.products import threads
from probekit.results.table import only

MOST_DIRECTIONS = 4
N_TOKENS = 10  # with the highest cosine, and as many with the lowest
_AT_ONCE = 8192  # tokens whose unembedding is in memory in float32
_ROUNDING = 1e-6  # a smaller spread, relative to the values, is a rounding error


def tables(_settings: None, chosen: SelectedProbe) -> dict[str, list[dict[str, Any]]]:
    """Return both tables, if the selected probe predicts rows and is linear."""
    probe = None if chosen.reads_texts else chosen.saved
    if probe is None or len(probe.layers) > 1 or not probe.directions.any(axis=1).all():
        return {}
    names = [*probe.direction_names]
    if len(names) > 1:
        labels, counts = np.unique(chosen.prober.data.y, return_counts=True)
        frequent = labels[np.argsort(-counts, kind="stable")].tolist()
        names = [name for name in frequent if name in names][:MOST_DIRECTIONS]
    shown = {name: probe.direction_names.index(name) for name in names}
    with threads(1):  # last digits depend on their number, which can change under load
        return {
            "tokens_of_direction.csv": [*token_rows(chosen, probe, shown)],
            "projections.csv": [*projection_rows(chosen, probe, shown)],
        }


def token_rows(
    chosen: SelectedProbe, probe: SavedProbe, shown: dict[str, int]
) -> Iterator[dict[str, Any]]:
    """Yield the tokens at both ends of each direction, from the highest cosine to the lowest.

    `null_high` is the highest absolute cosine of a token that 95 % of probes of permuted labels do
    not exceed; None if one of these has a direction of length 0. There are no rows unless the site
    is in the residual stream or added to it, and the unembedding of the network can be read.

    Args:
        chosen: the selected probe.
        probe: the same, as it was saved.
        shown: the number of each direction of the table, by name.
    """
    source, site = chosen.source, chosen.site
    if not isinstance(source, NetworkEngine) or not directions.streams([site]):
        return
    model, tokenizer = source.models(TASK), source.texts.tokenizer
    is_final = site.text.startswith("ln_final.")
    if not model.has_lens or not (is_final or describe(site.text).in_stream):
        return
    own, ids = probe.unit_directions[[*shown.values()]], np.array(tokenizer.ordinary_ids)
    drawn = _permuted(chosen, probe)[:, [*shown.values()]]  # (n_draws, n_shown, d_model)
    try:
        cosines, most = token_cosines(model, ids, own, drawn.reshape(-1, own.shape[1]))
    except ConfigError:  # the final norm is of another kind
        return
    most = most.reshape(drawn.shape[:2])
    for number, name in enumerate(shown):
        bound = round(bound_of_null(most[:, number]), 4) if len(most) else None
        order = np.argsort(-cosines[:, number], kind="stable")
        ends = np.r_[order[:N_TOKENS], order[-N_TOKENS:]]
        for token, at in zip(tokenizer.strings(ids[ends]), ends, strict=True):
            row = {"direction": name, "token": token, "token_id": ids[at]}
            row |= {"cosine": round(float(cosines[at, number]), 4)}
            yield row | {"null_high": bound, "n_null": len(most)}


@torch.inference_mode()
def token_cosines(model: Network, ids: Any, own: Floats, drawn: Floats) -> tuple[Floats, Floats]:
    """Return the cosine of directions of the stream with the unembedding of tokens.

    The direction is multiplied by the gain of the final norm and centred if the norm is. The mean
    over the tokens is subtracted from the unembedding, because it changes no probability.

    Args:
        model: the network.
        ids: the tokens (n_tokens,).
        own: directions (n_own, d_model) whose cosines are returned, (n_tokens, n_own).
        drawn: directions (n_drawn, d_model) whose highest absolute cosine is returned, (n_drawn,).
    """
    with model.weights_of("ln_final"):
        gain = model.last_norm.gain.float()
    weights = model.unembedding
    along = torch.from_numpy(np.concatenate([own, drawn])).to(weights.device, torch.float32)
    if model.config.norm_is_centred:
        along -= along.mean(1, keepdim=True)
    along = F.normalize(along * gain.to(weights.device))
    parts = torch.split(torch.from_numpy(ids).to(weights.device), _AT_ONCE)
    mean = torch.stack([weights[part].float().sum(0) for part in parts]).sum(0) / len(ids)
    found, most = [], along.new_zeros(len(drawn))
    for part in parts:
        cosines = F.normalize(weights[part].float() - mean) @ along.T  # [n_tokens (n_own n_drawn)]
        found.append(cosines[:, : len(own)])
        most = most.maximum(cosines[:, len(own) :].abs().amax(0))
    return torch.cat(found).cpu().numpy(), most.cpu().numpy()


def _permuted(chosen: SelectedProbe, probe: SavedProbe) -> Floats:
    """Return directions of probes of permuted labels, (n_draws, n_directions, n_features).

    They have length 1 and the penalty of the probe. Empty if one of them has length 0.
    """
    prober, spec, draws = chosen.prober, chosen.spec, directions.NULL_DRAWS
    fitted, X = prober.saved_rows, chosen.features.select(prober.saved_rows.rows)
    found = probe.facts.hyperparameters.get(spec.grid_name or "C")
    penalty = None if found is None else float(found)
    if not prober.settings.reads_numbers:
        fits = directions.permuted_fits(fitted, spec, X, penalty, draws)
        return directions.unit_directions_of(fits).reshape(-1, *probe.directions.shape)
    numbers, codes = np.unique(fitted.column, return_inverse=True)
    permuted = permuted_labels(codes, fitted.groups, draws, fitted.settings.seed)
    # One fit, whose targets are the draws.
    (layer,) = ridge_path(X, numbers[permuted].T, np.array([penalty]), fitted.typical)
    unit = unit_rows(layer.weight)
    return np.empty((0, 1, X.shape[1])) if unit is None else unit[:, None]


def projection_rows(
    chosen: SelectedProbe, probe: SavedProbe, shown: dict[str, int]
) -> Iterator[dict[str, Any]]:
    """Yield mean and quantiles of projections of the test rows, by site, direction and label.

    Projections are in standard deviations from their mean, both over the training rows at the same
    site. `value` is the AUROC of the direction there (of more than two labels against all others)
    or, of numbers, its rank correlation. In a nested cross-validation, the direction of a test row
    is that of its fold at the same site. With fewer than two sites there are no rows.

    The arguments are those of `token_rows`.
    """
    sites, prober, kind = directions.sites_of_line(chosen), chosen.prober, chosen.spec.text
    units = _fold_directions(chosen, probe)
    if len(sites) < 2 or units is None:
        return
    layer = AffineLayer(np.concatenate(units), np.zeros(len(units) * len(units[0])))
    rows, fold_of_row = prober.rows_of(kind), prober.fold_of(kind)
    folds, resamples = fold_of_row if prober.is_nested else None, prober.resamples_of(kind)
    metric = "spearman" if prober.settings.reads_numbers else "auroc"
    labels, names = _labels(chosen)
    for site in sites:
        block = chosen.source.activations.block(site, chosen.position)
        values = apply_layers((layer,), block).reshape(len(block), *units.shape[:2])
        projected = np.empty((len(rows), units.shape[1]))
        for fold, split in enumerate(prober.splits):
            fitted, tested = values[split.fitted.rows, fold], fold_of_row == fold
            mean, sd = fitted.mean(axis=0), fitted.std(axis=0)
            sd[sd <= _ROUNDING * np.abs(fitted).max(axis=0)] = np.inf
            projected[tested] = (values[rows[tested], fold] - mean) / sd
        for name, number in shown.items():
            along, is_label = projected[:, number], (labels == name).astype(np.int64)
            predictions: Predictions = NumberPredictions(prober.truth_of(kind), along, folds)
            if metric == "auroc":
                scores = np.stack([0 * along, along], axis=1)
                predictions = ClassPredictions(is_label, is_label, 2, scores, folds=folds)
            found = with_interval(metric, [predictions], resamples)
            for label in [name] if len(probe.classes) > 2 else names:
                if not (inside := labels == label).any():
                    continue
                low, high = np.quantile(along[inside], (0.1, 0.9))
                numbers = {"mean": along[inside].mean(), "low": low, "high": high}
                numbers |= {"value": found.value, "ci_low": found.low, "ci_high": found.high}
                row: dict[str, Any] = {"direction": name, "label": label, "site": site.text}
                row |= {"is_selected": site == chosen.site, "n": int(inside.sum())}
                yield row | {"metric": metric} | {n: round(v, 6) for n, v in numbers.items()}


def _fold_directions(chosen: SelectedProbe, probe: SavedProbe) -> Floats | None:
    """Return the directions of each split's probe, (n_splits, n_directions, n_features).

    The saved probe of a nested cross-validation has no held-out rows, so that each fold is fitted
    again with its own penalty. None if a direction has length 0.
    """
    prober, spec, row = chosen.prober, chosen.spec, chosen.row
    if not prober.is_nested:
        return probe.unit_directions[None]
    found, place = [], {name: row[name] for name in ("site", "position", "probe")}
    for fold, split in enumerate(prober.splits):
        penalty, fitted = only(chosen.scores.ranks(fold=fold), **place)["C"].iloc[0], split.fitted
        task = fitted.column, None if pd.isna(penalty) else float(penalty)
        X = chosen.features.select(fitted.rows)
        found += fitted.fitter(spec).refit(X, [task], [np.ones(len(X), dtype=bool)])[0]
    units = directions.unit_directions_of(found)
    return units if len(units) else None


def _labels(chosen: SelectedProbe) -> tuple[NDArray[Any], list[str]]:
    """Return the label (n_test,) of each test row, and all labels; of numbers, they are thirds."""
    truth, classes = chosen.prober.truth_of(chosen.spec.text), [*map(str, chosen.classes)]
    if chosen.prober.settings.reads_numbers:
        cuts = np.quantile(truth, (1 / 3, 2 / 3))
        truth, (low, high) = np.searchsorted(cuts, truth), (f"{cut:.3g}" for cut in cuts)
        classes = [f"up to {low}", f"{low} to {high}", f"above {high}"]
    return np.array(classes)[truth], classes
