"""Tables of the selected probe for the report: its errors, its directions and its features.

For a nested cross-validation, errors are those of the nested choice, whose probes were not fitted
on the rows that they predict. Directions, and predictions at tokens, are those of the final probe,
which was fitted on all rows.

confusion.csv   confusion matrix on the test rows
scatter.csv     test rows projected on PCA and LDA axes, both fitted on training rows
cosines.csv     cosine similarity between the probe directions at two sites, for all pairs of sites
wrong.json      worst errors on the test rows: `examples` are those of the selected probe, with its
                prediction at each token; `probes` are those of the probes at single sites, whose
                rows are in `rows`
features.csv    features that the k-sparse probes select at their best site
probes/final    the final probe of a nested cross-validation
monitor.csv     thresholds of a monitor, with their bounds and rates
probes/monitor  the selected probe with these thresholds
leakage.csv     scores on test texts without cues, and without as many random other words
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import cpu_count
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.preprocessing import StandardScaler

from probekit.activations.given.given import GivenSite
from probekit.activations.records import Location
from probekit.amounts import LEVEL, percent
from probekit.data.examples import Example
from probekit.files import as_store_error, csv_text
from probekit.lazy_rows import LazyRows
from probekit.model.sites.catalogue import describe
from probekit.model.sites.sites import SiteConcatenation, SiteSelection
from probekit.pipeline.capture.captures import capture_further
from probekit.pipeline.experiment.rows import Probed, Rows
from probekit.pipeline.experiment.source import ModelSource, Source
from probekit.pipeline.measure.run_folder import RunFolder, probe_path
from probekit.pipeline.measure.text_rules import detections, rule_tables
from probekit.probes.arrays import Floats
from probekit.probes.data import GroupedTokens
from probekit.probes.fitters import FittedRows, RowPredictions
from probekit.probes.kinds.registry import kind_of
from probekit.probes.prober import Prober
from probekit.probes.saved_probe import AlarmThreshold, SavedProbe, probe_files
from probekit.probes.score.differences import Difference
from probekit.probes.score.exchange import ROUNDING
from probekit.probes.score.metric_table import METRICS, MetricFunction
from probekit.probes.score.metrics import ClassPredictions, Resamples, take
from probekit.probes.score.monitor import monitor_rows
from probekit.probes.score.scored import Predictor, SiteResult, joined, metrics_of
from probekit.probes.settings import ProbeSpec
from probekit.probes.solve.layers import (
    FittedLayers,
    bound_of_null,
    certainty,
    null_cosines,
    unit_rows,
)
from probekit.probes.targets import HEADLINE, NESTED_PROBE
from probekit.probes.training_rows import class_means
from probekit.products import threads
from probekit.provenance import digest, pretty_json
from probekit.results.network import TextReading
from probekit.results.record import FINAL, MONITOR, MOST_CLASSES
from probekit.results.selection import (
    answers_name,
    chosen_row,
    is_nested,
    ranked_rows,
    site_with_head,
)
from probekit.results.table import PAGE_TABLES, only, placed
from probekit.terminal import SILENT, Watcher
from probekit.workers import parallel_map

EXCHANGES = 1000  # of the variants of a text, for the p-value of the cues
MOST_WRONG = 10  # errors of the selected probe
MOST_OF_A_PROBE = 5  # errors of each other probe
MOST_PROBES = 200  # whose errors are written
MOST_CHARACTERS = 300  # of the text of an error of another probe
MOST_POINTS = 500  # test rows in the scatter plot
MOST_FITTED = 5000  # maximum number of rows that PCA and LDA are fitted on
_ROUNDING = 1e-6  # smaller differences are rounding errors, in features of standard deviation 1
MOST_COVARIANCE = 1024  # maximum number of features for which PCA computes their covariance
COMPONENTS = 50  # PCA components for LDA: with more features than rows LDA separates any labels
MOST_FEATURES = 64  # listed for k-sparse probes
_SPARSE = r"k_sparse:(\d+)"
NULL_DRAWS = 50  # permutations of the labels for the null distribution of cosines
HALVINGS = 10  # random divisions of the groups into halves, to which directions are fitted


@dataclass(frozen=True, eq=False)
class SelectedProbe:
    """The selected probe of a run with its predictions and features.

    Attributes:
        row: its row in the results table.
        predictions: its predictions on the test rows; for a nested cross-validation, those of the
            nested choice.
        source: rows and activations.
        position: index of its position.
        prober: prober of its position.
        site: site that it was fitted at.
        X: features at the site, shape (n_rows, n_features).
        run_dir: folder of the run.
    """

    row: pd.Series
    predictions: ClassPredictions
    source: Source
    position: int
    prober: Prober
    site: Probed
    X: LazyRows
    run_dir: Path

    @property
    def classes(self) -> NDArray[np.str_]:
        """The labels, in the order of their codes."""
        return np.array(self.prober.data.classes, dtype=str)

    @property
    def reads_texts(self) -> bool:
        """Whether the probe predicts whole texts instead of rows."""
        kind = kind_of(str(self.row["probe"]))
        return kind is not None and kind.scores_texts

    def saved(self, site: str) -> SavedProbe | None:
        """Return the saved probe of the same kind at a site; None if there is none."""
        offset = self.source.rows.positions[self.position].offset
        path = probe_path(self.run_dir, offset, site, str(self.row["probe"]))
        return SavedProbe.load(path) if probe_files(path)[0].exists() else None


def write_selected_probe(
    folder: RunFolder,
    source: Source,
    probers: Sequence[Prober],
    results: Sequence[SiteResult],
    table: pd.DataFrame,
    watcher: Watcher = SILENT,
    workers: int | None = 1,
    seconds: float | None = None,
) -> None:
    """Write the features of k-sparse probes, the final probe, and tables of the selected probe.

    The final probe of a nested cross-validation is copied to `probes/final`. Its site, kind and
    position have the best validation score over all folds. It is fitted on all rows, so no row is
    left to test it. There is none for a single split, or for a kind of probe that is not saved.

    The tables, and the errors of all probes, are left out if they are empty, if no probe was
    selected, if it does not predict classes, if it predicts whole texts instead of rows, or if
    there are more than `MOST_CLASSES` classes. `workers` and `seconds` are those of `probe_sites`,
    whose processes also fit the probes of permuted labels.

    Raises:
        DataError: A file of the probe is damaged.
        StoreError: A file cannot be written.
    """
    features, row = feature_rows(source, probers, table), chosen_row(table)
    if not features.empty:
        folder.write("features.csv", csv_text(features))
    if row is None:
        return
    position, site, path = _place(folder, source, row)
    prober, predictor = probers[position], Predictor(str(row["probe"]), "task")
    if is_nested(table) and probe_files(path)[0].exists():
        _save(SavedProbe.load(path), folder, FINAL)
    if prober.is_nested:
        predictor = Predictor(NESTED_PROBE, HEADLINE)
    # The predictions of a nested choice are in a result of their own, those of another probe in
    # the result of its site.
    place = row["position"], site.text
    of_place = (
        result.predictions.get(predictor)
        for result in results
        if prober.is_nested or place == (result.place["position"], _site_name(result.place))
    )
    predictions = next((one for one in of_place if one is not None), None)
    n_classes, n_rows = len(prober.data.classes), len(prober.test_rows)
    if not isinstance(predictions, ClassPredictions) or len(predictions.guess) != n_rows:
        return
    if not 2 <= n_classes <= MOST_CLASSES:
        return
    X = source.block(site, position)
    chosen = SelectedProbe(row, predictions, source, position, prober, site, X, folder.path)
    tables = {"confusion.csv": confusion_rows(chosen)}
    if chosen.reads_texts:
        tables |= rule_tables(prober, X, str(row["probe"]))
    else:
        with threads(1):  # last digits depend on their number, which can change under load
            tables["scatter.csv"] = scatter_rows(chosen)
        tested = only(table, metric="p_holm", target="task", probe=str(row["probe"]))
        better = only(tested, position=row["position"]).query("value < @LEVEL")["site"]
        tables["cosines.csv"] = cosine_rows(chosen, {*better}, watcher, workers, seconds)
    for name, content in tables.items():
        if not content.empty:
            folder.write(name, csv_text(content))
    examples = wrong_examples(chosen)
    probes, rows = wrong_of_probes(chosen, results)
    if examples or rows:
        classes = chosen.classes.tolist()
        errors = {"classes": classes, "examples": examples, "probes": probes, "rows": rows}
        folder.write("wrong.json", pretty_json(errors))


def write_monitor(
    folder: RunFolder,
    source: Source,
    probers: Sequence[Prober],
    table: pd.DataFrame,
    cache_root: Location | None,
    watcher: Watcher,
) -> None:
    """Write the thresholds of the selected probe, if the experiment has a monitor.

    The negatives are captured at the selected site only.

    Raises:
        StoreError: a file cannot be written.
    """
    row = chosen_row(table)
    if row is None or not isinstance(source, ModelSource) or source.experiment.monitor is None:
        return
    position, site, path = _place(folder, source, row)
    kind, prober, probe = str(row["probe"]), probers[position], SavedProbe.load(path)
    assert source.rows.negatives is not None
    negatives = capture_further(
        source, source.rows.negatives, (site,), cache_root=cache_root, watcher=watcher
    )
    positive, tested = prober.positive, prober.test_rows
    assert positive is not None  # of two labels it is the rarer one
    groups, X = negatives.rows.groups, source.block(site, position)
    if probe.facts.aggregation is None:
        of_negatives, of_test, X = None, None, X.select(tested)
    else:
        of_negatives = GroupedTokens.of(np.arange(len(groups)), negatives.rows.example)
        groups, (_, of_test) = groups[of_negatives.first], prober.text_sides[0]
    rows = list(
        monitor_rows(
            source.experiment.monitor.fpr,
            detections(probe, positive, negatives.block(site, position), of_negatives),
            groups,
            detections(probe, positive, X, of_test),
            prober.data.y[tested] == positive,
            prober.resamples_of(kind),
        )
    )
    folder.write("monitor.csv", csv_text(pd.DataFrame(rows)))
    thresholds = tuple(
        AlarmThreshold(**{name: row[name] for name in AlarmThreshold.model_fields}) for row in rows
    )
    facts = probe.facts.model_copy(update={"positive": positive, "thresholds": thresholds})
    _save(replace(probe, facts=facts), folder, MONITOR)


def write_leakage(
    folder: RunFolder,
    source: Source,
    probers: Sequence[Prober],
    table: pd.DataFrame,
    cache_root: Location | None,
    watcher: Watcher,
) -> None:
    """Write leakage.csv, if the experiment has cues and a probe was selected.

    The probe is not fitted again, and its scores of texts without cues do not change.

    Raises:
        StoreError: the file cannot be written.
    """
    row = chosen_row(table)
    if row is None or not isinstance(source, ModelSource) or source.rows.dropped is None:
        return
    dropped, kind = source.rows.dropped, str(row["probe"])
    position, site, path = _place(folder, source, row)
    prober, probe = probers[position], SavedProbe.load(path)
    further = capture_further(source, dropped, (site,), cache_root=cache_root, watcher=watcher)
    fit = FittedLayers(np.searchsorted(prober.data.classes, probe.classes), probe.layers)
    spec = prober.settings.spec(kind)
    n_classes, tested, fitted = len(prober.data.classes), prober.rows_of(kind), prober.saved_rows
    # The scores (n_test, n_classes) of the texts as they are, without cues, and in each draw.
    scores = [fit.outputs(source.block(site, position).select(tested), n_classes)]
    changed = fit.outputs(further.block(site, position), n_classes)
    for of_variant in changed.reshape(-1, len(dropped.changed), n_classes):
        scores.append(scores[0].copy())
        scores[-1][dropped.changed] = of_variant
    compared, truth = np.delete(np.arange(len(tested)), dropped.left_out), prober.truth_of(kind)
    whole, without, *random = (
        take(fitted.predictions(spec, truth, one, fitted.column), compared) for one in scores
    )
    groups, main = prober.data.groups[tested[compared]], prober.main_metric
    counts = len(random), len(dropped.changed), len(compared), len(dropped.left_out)
    rows = [(*one, *counts) for one in leakage_rows(whole, without, random, groups, main)]
    content = pd.DataFrame(rows, columns=list(PAGE_TABLES["leakage.csv"]))
    folder.write("leakage.csv", csv_text(content))


def leakage_rows(
    whole: RowPredictions,
    without: RowPredictions,
    random: Sequence[RowPredictions],
    groups: NDArray[np.generic],
    main_metric: str,
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of leakage.csv, without counts: main metric, accuracy and AUROC.

    The main metric is left out if it needs a threshold. Only its difference has a p-value. P-values
    and limits come from exchanges of the variants of a text, group by group.

    Args:
        whole: predictions of the compared texts as they are.
        without: those without cues.
        random: those of each draw, without as many other words.
        groups: groups of the texts, shape (n_compared,).
        main_metric: name of the main metric.
    """
    for metric in dict.fromkeys((main_metric, "accuracy", "auroc")):
        function = metrics_of(whole).get(metric)
        if function is None or np.isnan(value := function(whole, Resamples.whole(len(groups)))[0]):
            continue
        found = _exchanged(function, [without, *random], groups).within(METRICS[metric].range)
        scores = value, found.a, found.b, found.value, found.ci_low, found.ci_high
        yield (metric, *scores, found.p if metric == main_metric else None)


def _exchanged(
    metric: MetricFunction, variants: Sequence[RowPredictions], groups: NDArray[np.generic]
) -> Difference:
    """Return the score of the first variant of each text, minus the mean score of the others.

    If dropping cues changes a text as dropping other words does, any variant of the texts of a
    group may be the one without cues. Each arrangement exchanges them group by group and has such a
    difference. The interval is the observed difference plus and minus the 95 % quantile of the
    absolute differences over the arrangements.
    """
    n_rows, n = len(groups), len(variants)
    rows: Any = joined(variants)  # the rows of all variants, one after the other
    names, codes = np.unique(groups, return_inverse=True)
    # All variants are moved on by 1 to n - 1, too, so that the others of each one are scored.
    first = np.random.default_rng(0).integers(n, size=(EXCHANGES // n, len(names)))
    first[0] = 0  # the variants as they are
    chosen = (first[:, None] + np.arange(n)[:, None]) % n  # (n_draws, n, n_groups)

    def score(variant: NDArray[np.int64]) -> float:
        """Return the score of these variants (n_groups,) of the texts of each group."""
        drawn = take(rows, variant[codes] * n_rows + np.arange(n_rows))
        return float(metric(replace(drawn, folds=None), Resamples.whole(n_rows))[0])

    scores = np.apply_along_axis(score, 2, chosen)  # (n_draws, n)
    apart = np.abs(n * scores - scores.sum(axis=1, keepdims=True)).ravel() / (n - 1)
    a, b = float(scores[0, 0]), float(scores[0, 1:].mean())
    p = float((apart >= apart[0] - ROUNDING).mean())
    # Fewer than 5 % of the arrangements are further apart, so that p < 0.05 if 0 is excluded.
    margin = float(np.sort(apart)[-int(np.ceil(LEVEL * len(apart) - ROUNDING))])
    return Difference(a, b, a - b, a - b - margin, a - b + margin, p, p)


def _place(folder: RunFolder, source: Source, row: pd.Series) -> tuple[int, Probed, Path]:
    """Return the position, the site and the path of the saved probe of a row of results.csv."""
    position, site = find_site(source.rows, row)
    offset = source.rows.positions[position].offset
    return position, site, probe_path(folder.path, offset, site.text, str(row["probe"]))


def _save(probe: SavedProbe, folder: RunFolder, name: str) -> None:
    """Write a probe into the folder of a run and record its digests."""
    probe.save(folder.path / name)
    for file in probe_files(Path(name)):
        with as_store_error("read", folder.path / file):
            folder.note({file.as_posix(): digest([(folder.path / file).read_bytes()])})


def find_site(rows: Rows, row: pd.Series) -> tuple[int, Probed]:
    """Return the position (as an index) and the site of a row of the table."""
    positions = [position.text for position in rows.positions]
    sites = {selection.text: selection for selection in rows.selections}
    return positions.index(row["position"]), sites[str(_site_name(row))]


def _site_name(row: Mapping[str, Any] | pd.Series) -> str | None:
    """Return the name of a site with its head; None for baselines."""
    return None if row["site"] is None else site_with_head(row["site"], row["head"])


def confusion_rows(chosen: SelectedProbe) -> pd.DataFrame:
    """Return the confusion matrix as rows: count `n` for each true and predicted label."""
    classes, predictions = chosen.classes, chosen.predictions
    counts = np.zeros((len(classes), len(classes)), dtype=int)
    np.add.at(counts, (predictions.truth, predictions.guess), 1)
    truth, guess = np.repeat(classes, len(classes)), np.tile(classes, len(classes))
    return pd.DataFrame({"truth": truth, "guess": guess, "n": counts.ravel()})


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
    rows, scaler = chosen.X.select(fitted).loaded()[:], StandardScaler()
    scaled = scaler.fit_transform(rows)
    del rows
    n_components = min(COMPONENTS, len(scaled) - 1, scaled.shape[1])
    if n_components < 2 or np.abs(scaled).max() < _ROUNDING:
        return pd.DataFrame()
    # Both are exact and faster than all singular values. The covariance of many features is large.
    solver = "covariance_eigh" if scaled.shape[1] <= MOST_COVARIANCE else "arpack"
    pca = PCA(n_components, svd_solver=solver, random_state=0).fit(scaled)
    train, test = pca.transform(scaled), pca.transform(scaler.transform(chosen.X[shown]))
    projected, y = test[:, :0], data.y[fitted]  # no axes unless LDA is fitted
    means = pd.DataFrame(train).groupby(y).transform("mean").to_numpy()
    between, within = np.ptp(means, axis=0).max(), np.abs(train - means).max()
    # LDA divides the variance between classes by that within, and neither may be zero. At the
    # embedding of a word that is itself the label, all rows of a class are equal.
    if min(between, within) >= _ROUNDING * np.abs(train).max():
        projected = LinearDiscriminantAnalysis().fit(train, y).transform(test)
    components = [
        f"component {number} ({percent(share)} of variance)"
        for number, share in enumerate(pca.explained_variance_ratio_, start=1)
    ]
    discriminants = [f"discriminant {number + 1}" for number in range(projected.shape[1])]
    planes = {"PCA": (test, components)}
    if discriminants:
        axes = [*discriminants, "component 1 of PCA"]
        planes["LDA"] = np.column_stack([projected, test[:, 0]]), axes
    return pd.concat(
        pd.DataFrame(
            {
                "method": method,
                "x": plane[:, 0].round(4),
                "y": plane[:, 1].round(4),
                "axis_x": axes[0],
                "axis_y": axes[1],
                "label": data.y[shown],
            }
        )
        for method, (plane, axes) in planes.items()
    )


def _sample(rows: NDArray[Any], most: int, generator: np.random.Generator) -> NDArray[Any]:
    """Return the rows, or `most` of them drawn at random, in ascending order."""
    return np.sort(generator.choice(rows, most, replace=False)) if len(rows) > most else rows


def cosine_rows(
    chosen: SelectedProbe,
    better: Collection[str],
    watcher: Watcher = SILENT,
    workers: int | None = 1,
    seconds: float | None = None,
) -> pd.DataFrame:
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
    if not isinstance(chosen.site, SiteSelection) or not _is_whole_stream(chosen.site):
        return pd.DataFrame()
    sites = chosen.source.rows.selections
    streams = [s for s in sites if isinstance(s, SiteSelection) and _is_whole_stream(s)]
    places = placed(pd.DataFrame({"site": [s.text for s in streams], "head": np.nan}))
    saved = {site: chosen.saved(site) for site in only(places, line=chosen.row["line"])["site"]}
    # Probes of a single layer, all of whose directions have a length.
    probes = {
        site: probe
        for site, probe in saved.items()
        if probe is not None and len(probe.layers) == 1 and probe.directions.any(axis=1).all()
    }
    if len(probes) < 2:
        return pd.DataFrame()
    unit = {site: probe.unit_directions for site, probe in probes.items()}
    kind, penalties = str(chosen.row["probe"]), {}
    spec = chosen.prober.settings.spec(kind)
    for stream in streams:
        if stream.text in probes:
            penalty = probes[stream.text].facts.hyperparameters.get(spec.grid_name or "C")
            assert penalty is None or isinstance(penalty, float)
            penalties[stream] = penalty
    job = partial(
        _refitted_directions, chosen.source, chosen.position, chosen.prober.saved_rows, spec
    )
    n_threads = max(1, cpu_count() // len(penalties))  # as for `probe_sites`
    null, halves = {}, {}
    found = parallel_map(job, list(penalties.items()), workers, n_threads, seconds)
    for stream, directions in zip(penalties, found, strict=True):
        null[stream.text], halves[stream.text] = directions
        watcher.progress("probes of permuted labels", len(null), len(penalties))
    rows = []
    for (a, u), (b, v) in product(unit.items(), repeat=2):  # u, v: (n_directions, n_features)
        cosine = round(float((u * v).sum(axis=1).mean()), 6)
        row = {"site_a": a, "site_b": b, "cosine": cosine, "n_directions": len(u)}
        row |= {"n_features": u.shape[1], "null_high": None, "n_null": 0}
        # The directions at one site, and those of permuted labels at the other.
        pairs = [(u, null[b])] if a == b else [(u, null[b]), (v, null[a])]
        if all(len(draws) for _, draws in pairs):
            cosines = np.concatenate([null_cosines(own, draws) for own, draws in pairs])
            row |= {"null_high": round(bound_of_null(cosines), 6), "n_null": len(cosines)}
        row |= {"half_cosine": None, "certainty": None, "n_halvings": 0}
        if a == b and len(halves[a]):
            of_halves, of_all = certainty(halves[a])
            row |= {"half_cosine": round(of_halves, 6), "n_halvings": HALVINGS}
            row["certainty"] = round(of_all, 6) if a in better else None
        rows.append(row)
    return pd.DataFrame(rows)


def _refitted_directions(
    source: Source,
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
    X = source.block(site, position)
    permuted = fitted.permuted_fits(spec, X, penalty, NULL_DRAWS)
    return _unit_directions(permuted), _unit_directions(
        fitted.half_fits(spec, X, penalty, HALVINGS)
    )


def _unit_directions(fits: Sequence[FittedLayers]) -> Floats:
    """Return the directions (n_fits, n_directions, n_features); empty if one has length 0."""
    drawn = [unit_rows(fit.layers[0].weight.astype(np.float64)) for fit in fits]
    known = [directions for directions in drawn if directions is not None]
    return np.stack(known) if known and len(known) == len(drawn) else np.empty((0, 0, 0))


def _is_whole_stream(site: SiteSelection) -> bool:
    """Return whether a selection is a whole site whose features are those of d_model."""
    return site.index is None and describe(site.site).axes[-1] == "d_model"


def wrong_of_probes(
    chosen: SelectedProbe, results: Sequence[SiteResult]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the worst errors of the probes at single sites, and the rows that they refer to.

    Of more than `MOST_PROBES` probes, those of the selected kind and position come first. Probes
    without scores, or that predict other rows than all test rows, are left out.
    """
    found: list[tuple[dict[str, Any], ClassPredictions]] = []
    for result in results:
        # One row of each probe, for the place, which is the same in all of its rows.
        rows = {row["probe"]: row for row in result.rows if row["site"] is not None}
        for probe, row in rows.items():
            predictions = result.predictions.get(Predictor(probe, "task"))
            if isinstance(predictions, ClassPredictions):
                found.append((row, predictions))
    # Those of the selected kind and position come first.
    found.sort(key=lambda one: any(one[0][of] != chosen.row[of] for of in ("probe", "position")))
    number_of: dict[int, int] = {}  # number in the file of each test row with an error
    probes = []
    for row, predictions in found[:MOST_PROBES]:
        worst = worst_errors(chosen, predictions, MOST_OF_A_PROBE)
        if worst is None:
            continue
        wrong = predictions.guess != predictions.truth
        errors, names = [], [at.text for at in chosen.source.rows.positions]
        for number, ahead in worst.items():
            number_in_file = number_of.setdefault(number, len(number_of))
            guess = str(chosen.classes[predictions.guess[number]])
            probed = _moved(chosen, number, names.index(row["position"]))
            error = {"row": number_in_file, "guess": guess, "ahead": ahead, "probed": probed}
            errors.append(error)
        name = {"name": answers_name(row), "site": row["site"], "head": row["head"]}
        place = {"position": row["position"], "probe": row["probe"]}
        counts = {"n_wrong": int(wrong.sum()), "n_rows": len(wrong)}
        probes.append(name | place | counts | {"errors": errors})
    rows_of_errors = []
    for number in number_of:
        example = _example(chosen, number)
        text, span, _ = excerpt(example.text, example.span)
        row = {"text": text, "span": span, "group": example.group, "label": example.label}
        rows_of_errors.append(row)
    return probes, rows_of_errors


def worst_errors(
    chosen: SelectedProbe, predictions: ClassPredictions, most: int
) -> dict[int, float | None] | None:
    """Return the errors with the largest margin over the true label, at most one per group.

    The keys are indices of test rows, worst first. The values are margins, or None if the margin is
    infinite, because the probe was not fitted on the true label. Returns None if there are no
    scores, or if the predictions are not those of all test rows.
    """
    scores, guess, truth = predictions.scores, predictions.guess, predictions.truth
    test_rows = chosen.prober.test_rows
    if scores is None or not len(guess) == len(truth) == len(test_rows):
        return None
    rows = np.arange(len(guess))
    margin = scores[rows, guess] - scores[rows, truth]
    is_wrong = guess != truth
    # Errors by descending margin, then the rows without an error.
    order = np.argsort(-np.where(is_wrong, margin, -np.inf), kind="stable")
    worst: dict[Any, int] = {}  # row with the largest margin, by group
    for number in order[: is_wrong.sum()].tolist():
        worst.setdefault(chosen.prober.data.groups[test_rows[number]], number)
    return {
        number: round(float(margin[number]), 4) if np.isfinite(margin[number]) else None
        for number in list(worst.values())[:most]
    }


def _example(chosen: SelectedProbe, number: int) -> Example:
    """Return the example of a test row, given its index among the test rows."""
    rows, row = chosen.source.rows, chosen.prober.test_rows[number]
    return rows.dataset.examples[int(rows.example[row])]


def _token_read(chosen: SelectedProbe, number: int, position: int) -> tuple[int, int] | None:
    """Return the characters of the one token that a test row reads; None if it reads several."""
    if chosen.reads_texts:
        return None
    return chosen.source.rows.token_read(int(chosen.prober.test_rows[number]), position)


def _moved(chosen: SelectedProbe, number: int, position: int) -> tuple[int, int] | None:
    """Return the characters of the probed token in the excerpt of a test row, if it is there."""
    example, token = _example(chosen, number), _token_read(chosen, number, position)
    text, _, shift = excerpt(example.text, example.span)
    if token is None or not 0 <= token[0] + shift < token[1] + shift <= len(text):
        return None
    return token[0] + shift, token[1] + shift


def excerpt(text: str, span: tuple[int, int] | None) -> tuple[str, tuple[int, int] | None, int]:
    """Return at most `MOST_CHARACTERS` of a text around the start of a span, and the moved span.

    The last value is the number of characters by which it was moved.

    Without a span the end of the text is returned. Ellipses, in addition to these characters,
    replace the rest. A span that continues beyond the excerpt ends with it.

    >>> excerpt("short", None)
    ('short', None, 0)
    >>> text, span, _ = excerpt("x" * 1000 + "word", (1000, 1004))
    >>> len(text), text[slice(*span)]
    (301, 'word')
    """
    if len(text) <= MOST_CHARACTERS:
        return text, span, 0
    middle = len(text) if span is None else span[0]
    start = max(0, min(middle - MOST_CHARACTERS // 2, len(text) - MOST_CHARACTERS))
    end = start + MOST_CHARACTERS
    before, after = "…" if start > 0 else "", "…" if end < len(text) else ""
    cut = before + text[start:end] + after
    shift = len(before) - start
    if span is None:
        return cut, None, shift
    return cut, (span[0] + shift, min(span[1], end) + shift), shift


def wrong_examples(chosen: SelectedProbe) -> list[dict[str, Any]]:
    """Return the worst errors of the selected probe; none without scores.

    Each error has its tokens, with the probe's prediction at each. They are empty if several probes
    made the errors, if the probe was not saved, if there is no model, or if the text of one of
    these errors is empty.
    """
    worst = worst_errors(chosen, chosen.predictions, MOST_WRONG) or {}
    examples = [_example(chosen, number) for number in worst]
    texts = [example.text for example in examples]
    probe = None if chosen.prober.is_nested else chosen.saved(chosen.site.text)
    readings: Sequence[TextReading | None] = [None] * len(texts)
    if probe is not None and texts and all(texts):  # an empty text has no tokens to predict at
        readings = chosen.source.readings(probe, chosen.site, texts)
    errors = []
    for number, example, reading in zip(worst, examples, readings, strict=True):
        tokens = []
        if reading is not None:
            for token, span, answer in zip(
                reading.tokens, reading.spans, reading.answers, strict=True
            ):
                score = round(answer.score, 4)
                tokens.append({"token": token, "span": span, "label": answer.label, "score": score})
        error = {
            "text": example.text,
            "span": example.span,
            "group": example.group,
            "label": example.label,
            "guess": str(chosen.classes[chosen.predictions.guess[number]]),
            "ahead": worst[number],
            "probed": _token_read(chosen, number, chosen.position),
            "tokens": tokens,
        }
        errors.append(error)
    return errors


def feature_rows(source: Source, probers: Sequence[Prober], table: pd.DataFrame) -> pd.DataFrame:
    """Return the features that the k-sparse probes select at their best site, best feature first.

    A probe with k features uses the first k of them. The columns of a feature are:

        k      the smallest k whose probe uses the feature
        share  the fraction of its variance, over the fitted rows, that the labels explain
        label  the label with the highest mean of the feature

    For a nested cross-validation, each split selects its own features; these are the features of
    the saved probes, fitted on all rows. There are at most `MOST_FEATURES` rows, and none without
    k-sparse probes or if the best site is a concatenation.
    """
    ranked = ranked_rows(table)
    ranked = ranked[ranked["probe"].str.fullmatch(_SPARSE)]
    if ranked.empty:
        return pd.DataFrame()
    position, site = find_site(source.rows, ranked.iloc[0])
    if isinstance(site, SiteConcatenation):
        return pd.DataFrame()
    prober, sizes_of_axes = probers[position], source.rows.axis_sizes
    sizes = np.sort(ranked["probe"].str.extract(_SPARSE)[0].astype(int).unique())
    X = source.block(site, position)
    fitted = prober.saved_rows
    shares, rows = fitted.explained(X), fitted.rows
    best = np.argsort(-shares, kind="stable")[: min(sizes[-1], MOST_FEATURES)]
    y = prober.data.y[rows]
    labels = np.unique(y)
    # The mean of each feature over the rows of each label, shape (n_labels, n_best).
    means = class_means(X.select(rows), np.searchsorted(labels, y))[:, best]
    return pd.DataFrame(
        {
            "site": site.text,
            "position": source.rows.positions[position].text,
            "rank": np.arange(len(best)) + 1,
            "feature": [feature_name(site, int(feature), sizes_of_axes) for feature in best],
            # The smallest size that is at least the rank, which counts from 1.
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
