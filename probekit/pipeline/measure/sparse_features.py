"""Features selected by the k-sparse probes of a run: the rows of features.csv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from probekit.activations.given.sites import GivenSite
from probekit.model.sites.catalogue import describe
from probekit.model.sites.sites import SiteConcatenation, SiteSelection
from probekit.pipeline.experiment.prepared import PreparedRows
from probekit.pipeline.experiment.source import RowsReader
from probekit.pipeline.measure.selected_probe import find_site
from probekit.probes.prober import Prober
from probekit.results.selection import ranked_rows

COLUMNS = ("site", "position", "rank", "feature", "k", "share", "label")
SIZE = r"k_sparse:(\d+)"
MOST_FEATURES = 64


def feature_rows(
    prepared: PreparedRows,
    probers: Sequence[Prober],
    table: pd.DataFrame,
    readers: Mapping[str, RowsReader],
) -> pd.DataFrame:
    """Return the features that the k-sparse probes select at their best site, best feature first.

    A probe with k features uses the first k of them. The columns of a feature are:

        k      the smallest k whose probe uses the feature
        share  the fraction of its variance, over the fitted rows, that the labels explain
        label  the label with the highest mean of the feature

    For a nested cross-validation, each split selects its own features; these are the features of
    the saved probes, fitted on all rows. There are no rows without k-sparse probes.
    """
    ranked = ranked_rows(table)
    ranked = ranked[ranked["probe"].str.fullmatch(SIZE)]
    if ranked.empty:
        return pd.DataFrame(columns=list(COLUMNS))
    number, site = find_site(prepared, ranked.iloc[0])
    prober = probers[number]
    if isinstance(site, SiteConcatenation):
        return pd.DataFrame(columns=list(COLUMNS))
    sizes = np.sort(ranked["probe"].str.extract(SIZE)[0].astype(int).unique())
    X = readers[prepared.positions[number].position.text].features(site)
    fitted = prober.saved_rows
    shares, rows = fitted.explained(X), fitted.rows
    best = np.argsort(-shares, kind="stable")[: min(sizes[-1], MOST_FEATURES)]
    y = prober.data.y[rows]
    labels = np.unique(y)
    means = np.stack([X[rows][y == label][:, best].mean(axis=0) for label in labels])
    return pd.DataFrame(
        {
            "site": site.text,
            "position": prepared.positions[number].position.text,
            "rank": np.arange(len(best)) + 1,
            "feature": [feature_name(site, int(feature), prepared.axis_sizes) for feature in best],
            "k": sizes[np.searchsorted(sizes, np.arange(len(best)) + 1)],
            "share": shares[best].round(6),
            "label": labels[means.argmax(axis=0)],
        }
    )


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
