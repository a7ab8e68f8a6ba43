"""Directions and features of the selected probe, and of the same probes at other sites.

Directions of a nested cross-validation are those of the final probe, which was fitted on all rows.

scatter.csv     test rows projected on PCA and LDA axes, both fitted on training rows
cosines.csv     cosine similarity between the probe directions at two sites, for all pairs of sites
features.csv    features that the k-sparse probes select at their best site
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from joblib import cpu_count
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.preprocessing import StandardScaler

from probekit.activations.given.given import GivenSite
from probekit.amounts import LEVEL, percent
from probekit.chosen.selected_probe import SelectedProbe
from probekit.lazy_rows import Features, Floats, LazyRows
from probekit.memory import release_memory
from probekit.model.sites.catalogue import describe
from probekit.model.sites.sites import SiteConcatenation, SiteSelection
from probekit.pipeline.engines.engine import Activations
from probekit.probes.fitters import FittedRows
from probekit.probes.kinds.class_means import class_means
from probekit.probes.kinds.k_sparse import explained_shares
from probekit.probes.score.description_length import subsets
from probekit.probes.score.exchange import permuted_labels
from probekit.probes.settings import ProbeSpec
from probekit.probes.solve import layers
from probekit.probes.solve.layers import FittedLayers
from probekit.products import threads
from probekit.results.table import by_depth, only
from probekit.workers import parallel_map

MOST_POINTS = 500  # test rows in the scatter plot
MOST_FITTED = 5000  # maximum number of rows that PCA and LDA are fitted on
_ROUNDING = 1e-6  # smaller differences are rounding errors, in features of standard deviation 1
MOST_COVARIANCE = 1024  # maximum number of features for which PCA computes their covariance
COMPONENTS = 50  # PCA components for LDA: with more features than rows LDA separates any labels
NULL_DRAWS = 50  # permutations of the labels for the null distribution of cosines
HALVINGS = 10  # random divisions of the groups into halves, to which directions are fitted
_TIMED = 5  # parts of these fits; one is timed to predict the time of all
MOST_FEATURES = 64  # listed for k-sparse probes
_SPARSE = r"k_sparse:(\d+)"


def tables(_settings: None, chosen: SelectedProbe) -> dict[str, pd.DataFrame]:
    """Return features, and plane and cosines if the probe predicts the classes of rows."""
    found = {"features.csv": feature_rows(chosen)}
    if chosen.predictions is not None and not chosen.reads_texts:
        with threads(1):  # last digits depend on their number, which can change under load
            found["scatter.csv"] = scatter_rows(chosen)
        tested = only(chosen.scores.rows, metric="p_holm", target="task", probe=chosen.spec.text)
        better = only(tested[tested["value"] < LEVEL], position=chosen.row["position"])["site"]
        found["cosines.csv"] = cosine_rows(chosen, {*better})
    return found


def scatter_rows(chosen: SelectedProbe) -> pd.DataFrame:
    """Return the coordinates of test rows in a PCA plane and in an LDA plane.

    PCA and LDA are fitted on training rows only. With two classes LDA has one axis; the second axis
    is the first principal component. There is no LDA plane if LDA has no axis, and no row if there
    are fewer than two components, or all features are constant on the fitted rows. For a nested
    cross-validation only the first split is used, because the test rows of the other splits are
    training rows of this one.
    """
    data = chosen.prober.data
    generator = np.random.default_rng(0)
    fitted = _sample(data.train, MOST_FITTED, generator)
    held_out = np.setdiff1d(chosen.prober.test_rows, data.train)
    shown = _sample(held_out, MOST_POINTS, generator)
    release_memory()  # of the fits, for copies of the rows
    rows, scaler = chosen.features.select(fitted).loaded()[:], StandardScaler()
    scaled = scaler.fit_transform(rows)
    del rows
    n_components = min(COMPONENTS, len(scaled) - 1, scaled.shape[1])
    if n_components < 2 or np.abs(scaled).max() < _ROUNDING:
        return pd.DataFrame()
    # Both are exact and faster than all singular values. The covariance of many features is large.
    solver = "covariance_eigh" if scaled.shape[1] <= MOST_COVARIANCE else "arpack"
    pca = PCA(n_components, svd_solver=solver, random_state=0, copy=False).fit(scaled)
    train, test = pca.transform(scaled), pca.transform(scaler.transform(chosen.features[shown]))
    projected, y = test[:, :0], data.y[fitted]  # no axes unless LDA is fitted
    means = pd.DataFrame(train).groupby(y).transform("mean").to_numpy()
    between, within = np.ptp(means, axis=0).max(), np.abs(train - means).max()
    # LDA divides the variance between classes by that within, and neither may be zero. At the
    # embedding of a word that is itself the label, all rows of a class are equal.
    if min(between, within) >= _ROUNDING * np.abs(train).max():
        projected = LinearDiscriminantAnalysis().fit(train, y).transform(test)
    axes = [
        f"component {number} ({percent(share)} of variance)"
        for number, share in enumerate(pca.explained_variance_ratio_, start=1)
    ]
    discriminants = [f"discriminant {number + 1}" for number in range(projected.shape[1])]
    planes = [("PCA", test, axes)]
    if discriminants:
        of_lda = np.column_stack([projected, test[:, 0]])
        planes.append(("LDA", of_lda, [*discriminants, "component 1 of PCA"]))
    parts = []
    for method, plane, axes in planes:
        x, y = plane[:, :2].round(4).T
        columns = {"method": method, "x": x, "y": y, "axis_x": axes[0], "axis_y": axes[1]}
        parts.append(pd.DataFrame(columns | {"label": data.y[shown]}))
    return pd.concat(parts)


def _sample(rows: NDArray[Any], most: int, generator: np.random.Generator) -> NDArray[Any]:
    """Return the rows, or `most` of them drawn at random, in ascending order."""
    return np.sort(generator.choice(rows, most, replace=False)) if len(rows) > most else rows


def cosine_rows(chosen: SelectedProbe, better: Collection[str]) -> pd.DataFrame:
    """Return the cosine similarity between probe directions at all pairs of sites.

    The sites are those on the line of the selected probe in the figure of the scores. With one
    direction per class, the cosine is the mean over classes. Only sites along d_model have rows,
    because others do not share a basis.

    The null distribution compares the probe at one site with probes fitted on permuted labels at
    the other site, with the same penalty. `null_high` is the 95 % quantile of its `n_null` absolute
    cosines; None if one of these probes has a direction of length 0. Random directions would be a
    wrong null: features are correlated, so probes of unrelated labels are more similar than random
    directions.

    Rows of a site with itself have the mean cosine `half_cosine` of probes fitted on one half of
    the groups and on the other, over `n_halvings` random divisions, and `certainty`, the expected
    cosine of the probe with that of unlimited groups. None if a half lacks a label; without a
    signal certainty would be 0.15 to 0.35, so that it is None at sites that are not `better` than
    chance.

    Sites whose probe is not saved, has several layers or a direction of length 0 have no rows; with
    fewer than two sites, or if the selected site is not along d_model, there are no rows at all.
    """
    sites = sites_of_line(chosen)
    saved = {site.text: chosen.saved_at(site.text) for site in sites}
    # Probes of a single layer, all of whose directions have a length.
    probes = {
        site: probe
        for site, probe in saved.items()
        if probe is not None and len(probe.layers) == 1 and probe.directions.any(axis=1).all()
    }
    if len(probes) < 2:
        return pd.DataFrame()
    unit = {site: probe.unit_directions for site, probe in probes.items()}
    spec = chosen.spec
    name, with_probe = spec.grid_name or "C", [one for one in sites if one.text in probes]
    penalties = {one: probes[one.text].facts.hyperparameters.get(name) for one in with_probe}
    how = chosen.source.activations, chosen.position, chosen.prober.saved_rows, spec
    job = partial(_refitted_directions, *how)
    n_threads = max(1, cpu_count() // len(penalties))  # as for `probe_sites`
    null, halves = {}, {}
    found = parallel_map(job, list(penalties.items()), chosen.workers, n_threads, chosen.seconds)
    for stream, directions in zip(penalties, found, strict=True):
        null[stream.text], halves[stream.text] = directions
        chosen.watcher.progress("probes of permuted labels", len(null), len(penalties))
    rows = []
    for (a, u), (b, v) in product(unit.items(), repeat=2):  # u, v: (n_directions, n_features)
        cosine = round(float((u * v).sum(axis=1).mean()), 6)
        row = {"site_a": a, "site_b": b, "cosine": cosine, "n_directions": len(u)}
        row |= {"n_features": u.shape[1], "null_high": None, "n_null": 0}
        # The directions at one site, and those of permuted labels at the other.
        pairs = [(u, null[b])] if a == b else [(u, null[b]), (v, null[a])]
        if all(len(draws) for _, draws in pairs):
            cosines = np.concatenate([layers.null_cosines(own, draws) for own, draws in pairs])
            row |= {"null_high": round(layers.bound_of_null(cosines), 6), "n_null": len(cosines)}
        row |= {"half_cosine": None, "certainty": None, "n_halvings": 0}
        if a == b and len(halves[a]):
            of_halves, of_all = layers.certainty(halves[a])
            row |= {"half_cosine": round(of_halves, 6), "n_halvings": HALVINGS}
            row["certainty"] = round(of_all, 6) if a in better else None
        rows.append(row)
    return pd.DataFrame(rows)


def sites_of_line(chosen: SelectedProbe) -> list[SiteSelection]:
    """Return the sites along d_model on the line of the selected one, in order of depth.

    These are the sites of its line in the figure of the scores. There are none if the selected site
    is not along d_model.
    """
    if chosen.site not in (found := streams(chosen.source.selections)):
        return []
    # Given activations may have sites of several widths.
    width_of = dict(zip(chosen.source.selections, chosen.source.widths, strict=True))
    by_name = {one.text: one for one in found if width_of[one] == width_of[chosen.site]}
    places = by_depth(pd.DataFrame({"site": [*by_name], "head": np.nan}))
    return [by_name[name] for name in only(places, line=chosen.row["line"])["site"]]


def work(
    sites: Sequence[Any], fitted: FittedRows, spec: ProbeSpec, X: Features, penalty: Any
) -> int:
    """Fit a part of the further probes of a site; return the number of such parts at all sites.

    It is 0 if `cosine_rows` fits no probes. For other arguments see `permuted_fits`.

    Args:
        sites: the probed sites of this width.
        fitted: the rows and their labels.
        spec: the kind.
        X: the features of all rows.
        penalty: the penalty of all fits.
    """
    n_sites = len(streams(sites))
    if n_sites < 2 or spec.task != "classification":
        return 0
    how = fitted, spec, LazyRows.of(X).select(fitted.rows), penalty
    permuted_fits(*how, NULL_DRAWS // _TIMED)
    half_fits(*how, HALVINGS // _TIMED)
    return n_sites * _TIMED


def _refitted_directions(
    activations: Activations,
    position: int,
    fitted: FittedRows,
    spec: ProbeSpec,
    item: tuple[SiteSelection, float | None],
) -> tuple[Floats, Floats]:
    """Return the directions of probes of permuted labels, and of probes of halves of the groups.

    They have length 1 and shape (n_draws, n_directions, n_features); an array is empty if one of
    its probes has a direction of length 0 or, of the halves, lacks a label. The item is a site and
    the penalty of its probes.
    """
    site, penalty = item
    X = activations.block(site, position).select(fitted.rows)
    permuted = permuted_fits(fitted, spec, X, penalty, NULL_DRAWS)
    halves = half_fits(fitted, spec, X, penalty, HALVINGS)
    return unit_directions_of(permuted), unit_directions_of(halves)


def permuted_fits(
    fitted: FittedRows, spec: ProbeSpec, X: LazyRows, penalty: float | None, draws: int
) -> list[FittedLayers]:
    """Return fits on permuted labels of rows X (n_rows, n_features); see `permuted_labels`.

    The permutations are the same for all sites. All fits of the logistic probe are columns of one
    batch.

    Args:
        fitted: the rows and their labels.
        spec: the kind, for classification.
        X: the features of these rows.
        penalty: the penalty of all fits; None for a kind without one.
        draws: the number of permutations.
    """
    labels = permuted_labels(fitted.column, fitted.groups, draws, fitted.settings.seed)
    tasks, all_rows = [(codes, penalty) for codes in labels], np.ones(len(X), dtype=bool)
    return [fit for (fit,) in fitted.fitter(spec).refit(X, tasks, [all_rows])]


def half_fits(
    fitted: FittedRows, spec: ProbeSpec, X: LazyRows, penalty: float | None, draws: int
) -> list[FittedLayers]:
    """Return fits on random halves of the groups, each followed by that on the other half.

    There are two fits for each draw; none if a half lacks a label. The other arguments are those of
    `permuted_fits`.
    """
    sizes, seed = (len(X) // 2,), fitted.settings.seed
    halves = [subsets(fitted.groups, sizes, seed + draw)[0] for draw in range(draws)]
    masks = [mask for half in halves for mask in (half, ~half)]
    if any(len(np.unique(fitted.column[mask])) < fitted.n_classes for mask in masks):
        return []
    (fits,) = fitted.fitter(spec).refit(X, [(fitted.column, penalty)], masks)
    return fits


def unit_directions_of(fits: Sequence[FittedLayers]) -> Floats:
    """Return the directions (n_fits, n_directions, n_features); empty if one has length 0."""
    drawn = [layers.unit_rows(fit.layers[0].weight.astype(np.float64)) for fit in fits]
    known = [directions for directions in drawn if directions is not None]
    return np.stack(known) if known and len(known) == len(drawn) else np.empty((0, 0, 0))


def streams(sites: Sequence[Any]) -> list[SiteSelection]:
    """Return the sites that are whole and whose features are those of d_model."""
    whole = [one for one in sites if isinstance(one, SiteSelection) and one.index is None]
    return [one for one in whole if describe(one.site).axes[-1] == "d_model"]


def feature_rows(chosen: SelectedProbe) -> pd.DataFrame:
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
        return pd.DataFrame()
    position, site = chosen.place_of(ranked.iloc[0])
    if isinstance(site, SiteConcatenation):
        return pd.DataFrame()
    prober, sizes_of_axes = chosen.probers[position], source.axis_sizes
    sizes = np.sort(ranked["probe"].str.extract(_SPARSE)[0].astype(int).unique())
    fitted = prober.saved_rows
    X, y = source.activations.block(site, position).select(fitted.rows), prober.data.y[fitted.rows]
    shares = explained_shares(X, fitted.column, fitted.typical)
    best = np.argsort(-shares, kind="stable")[: min(sizes[-1], MOST_FEATURES)]
    labels = np.unique(y)
    # The mean of each feature over the rows of each label, shape (n_labels, n_best).
    means = class_means(X, np.searchsorted(labels, y))[:, best]
    ranks, names = np.arange(len(best)) + 1, [int(feature) for feature in best]
    at = source.design.positions[position].text
    columns: dict[str, Any] = {"site": site.text, "position": at}
    columns |= {"rank": ranks, "feature": [feature_name(site, n, sizes_of_axes) for n in names]}
    # The smallest size that is at least the rank, which counts from 1.
    columns |= {"k": sizes[np.searchsorted(sizes, ranks)], "share": shares[best].round(6)}
    return pd.DataFrame(columns | {"label": labels[means.argmax(axis=0)]})


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
