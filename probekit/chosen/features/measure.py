"""Features that the k-sparse probes select at their best site: features.csv."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from probekit.activations.given.given import GivenSite
from probekit.model.sites.catalogue import describe
from probekit.model.sites.sites import SiteConcatenation, SiteSelection
from probekit.pipeline.measure.selected_probe import SelectedProbe
from probekit.probes.training_rows import class_means

MOST_FEATURES = 64  # listed for k-sparse probes
_SPARSE = r"k_sparse:(\d+)"


def tables(_settings: None, chosen: SelectedProbe) -> dict[str, pd.DataFrame]:
    """Return the features that the k-sparse probes select at their best site, best feature first.

    A probe with k features uses the first k of them. The columns of a feature are:

        k      the smallest k whose probe uses the feature
        share  the fraction of its variance, over the fitted rows, that the labels explain
        label  the label with the highest mean of the feature

    For a nested cross-validation, each split selects its own features; these are the features of
    the saved probes, fitted on all rows. There are at most `MOST_FEATURES` rows, and none without
    k-sparse probes or if the best site is a concatenation.
    """
    source, ranked = chosen.source, chosen.scores.ranked
    ranked = ranked[ranked["probe"].str.fullmatch(_SPARSE)]
    if ranked.empty:
        return {}
    position, site = chosen.place_of(ranked.iloc[0])
    if isinstance(site, SiteConcatenation):
        return {}
    prober, sizes_of_axes = chosen.probers[position], source.axis_sizes
    sizes = np.sort(ranked["probe"].str.extract(_SPARSE)[0].astype(int).unique())
    X = source.activations.block(site, position)
    fitted = prober.saved_rows
    shares, y = fitted.explained(X), prober.data.y[fitted.rows]
    best = np.argsort(-shares, kind="stable")[: min(sizes[-1], MOST_FEATURES)]
    labels = np.unique(y)
    # The mean of each feature over the rows of each label, shape (n_labels, n_best).
    means = class_means(X.select(fitted.rows), np.searchsorted(labels, y))[:, best]
    rows = pd.DataFrame(
        {
            "site": site.text,
            "position": source.design.positions[position].text,
            "rank": np.arange(len(best)) + 1,
            "feature": [feature_name(site, int(feature), sizes_of_axes) for feature in best],
            # The smallest size that is at least the rank, which counts from 1.
            "k": sizes[np.searchsorted(sizes, np.arange(len(best)) + 1)],
            "share": shares[best].round(6),
            "label": labels[means.argmax(axis=0)],
        }
    )
    return {"features.csv": rows}


def feature_name(
    site: SiteSelection | GivenSite, feature: int, axis_sizes: Mapping[str, int]
) -> str:
    """Return the name of a feature of a site, in the format of `capture.sites` for MLP neurons.

    >>> sizes = {"n_heads": 3, "d_head": 4}
    >>> feature_name(SiteSelection("blocks.5.mlp.hook_post"), 17, sizes)
    'blocks.5.mlp.hook_post[neuron=17]'
    >>> feature_name(SiteSelection("blocks.5.attn.hook_z"), 6, sizes)
    'head 1, dimension 2'
    >>> feature_name(SiteSelection("blocks.5.hook_resid_post"), 6, sizes)
    'dimension 6'
    """
    if isinstance(site, GivenSite):
        return f"dimension {feature}"
    axes = describe(site.site).axes
    if axes[-1] == "d_mlp":
        return f"{site.site}[neuron={feature if site.neuron is None else site.neuron}]"
    if "n_heads" in axes and site.index is None and axes[-1] in axis_sizes:
        head, dimension = divmod(feature, axis_sizes[axes[-1]])
        return f"head {head}, dimension {dimension}"
    return f"dimension {feature}"
