"""Tables of the selected probe for the report: its errors, its features and its directions.

For a nested cross-validation, errors are those of the nested choice, whose probes were not fitted
on the rows that they predict. Directions, and predictions at tokens, are those of the final probe,
which was fitted on all rows.

confusion.csv   confusion matrix on the test rows
scatter.csv     test rows projected on PCA and LDA axes, both fitted on training rows
cosines.csv     cosine similarity between the probe directions at two sites, for all pairs of sites
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.preprocessing import StandardScaler

from probekit.files import csv_text
from probekit.model.sites.catalogue import describe
from probekit.model.sites.sites import SiteSelection
from probekit.pipeline.experiment.features import Probed
from probekit.pipeline.experiment.prepared import PreparedRows
from probekit.pipeline.experiment.source import RowsReader
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.pipeline.measure.saving import probe_path
from probekit.probes.prober import Prober
from probekit.probes.saved_probe import SavedProbe, probe_files
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Predictor, SiteResult
from probekit.probes.solve.design import Floats
from probekit.probes.solve.layers import bound_of_null, null_cosines, unit_rows
from probekit.probes.targets import HEADLINE, NESTED_PROBE
from probekit.results.record import MOST_CLASSES
from probekit.results.selection import chosen_row, site_with_head
from probekit.results.table import only, placed
from probekit.terminal import SILENT, Watcher

MOST_POINTS = 500
MOST_FITTED = 5000  # maximum number of rows that PCA and LDA are fitted on
_ROUNDING = 1e-6  # smaller differences are rounding errors, in features of standard deviation 1
COMPONENTS = 50  # PCA components for LDA: with more features than rows LDA separates any labels
NULL_DRAWS = 50  # permutations of the labels for the null distribution of cosines


@dataclass(frozen=True, eq=False)
class SelectedProbe:
    """The selected probe of a run with its predictions and features.

    Attributes:
        row: its row in the results table.
        predictions: its predictions on the test rows; for a nested cross-validation, those of the
            nested choice.
        prober: prober of its position.
        site: site that it was fitted at.
        X: features at the site, shape (n_rows, n_features).
        reader: reads the features of its position.
        run_dir: folder of the run.
        offset: offset of its position in a sweep.
    """

    row: pd.Series
    predictions: ClassPredictions
    prober: Prober
    site: Probed
    X: NDArray[np.float32]
    reader: RowsReader
    run_dir: Path
    offset: int

    @property
    def classes(self) -> NDArray[np.str_]:
        """The labels, in the order of their codes."""
        return np.array(self.prober.data.classes, dtype=str)

    def saved(self, site: str) -> SavedProbe | None:
        """Return the saved probe of the same kind at a site; None if there is none."""
        path = probe_path(self.run_dir, self.offset, site, str(self.row["probe"]))
        return SavedProbe.load(path) if probe_files(path)[0].exists() else None


def find_selected_probe(
    prepared: PreparedRows,
    probers: Sequence[Prober],
    results: Sequence[SiteResult],
    table: pd.DataFrame,
    readers: Mapping[str, RowsReader],
    folder: Path,
) -> SelectedProbe | None:
    """Return the selected probe, with its predictions and features.

    None if no probe was selected, if it does not predict classes, if it predicts whole texts
    instead of rows, or if there are more than `MOST_CLASSES` classes.
    """
    row = chosen_row(table)
    if row is None:
        return None
    number, site = find_site(prepared, row)
    prober, position = probers[number], prepared.positions[number].position
    predictions = (
        _nested_predictions(results)
        if prober.is_nested
        else _predictions(results, site.text, position.text, Predictor(str(row["probe"]), "task"))
    )
    if predictions is None or len(predictions.guess) != len(prober.test_rows):
        return None
    if not 2 <= len(prober.data.classes) <= MOST_CLASSES:
        return None
    reader = readers[position.text]
    return SelectedProbe(
        row, predictions, prober, site, reader.features(site), reader, folder, position.offset
    )


def find_site(prepared: PreparedRows, row: pd.Series) -> tuple[int, Probed]:
    """Return the position (as an index) and the site of a row of the table."""
    texts = [at.position.text for at in prepared.positions]
    name = site_with_head(row["site"], row["head"])
    return texts.index(row["position"]), next(s for s in prepared.selections if s.text == name)


def _nested_predictions(results: Sequence[SiteResult]) -> ClassPredictions | None:
    headline = Predictor(NESTED_PROBE, HEADLINE)
    found = (one.predictions[headline] for one in results if headline in one.predictions)
    predictions = next(found, None)
    return predictions if isinstance(predictions, ClassPredictions) else None


def _predictions(
    results: Sequence[SiteResult], site: str, position: str, predictor: Predictor
) -> ClassPredictions | None:
    for result in (result for result in results if result.rows):
        row = result.rows[0]
        is_match = row["position"] == position and row["site"] is not None
        is_match = is_match and site_with_head(row["site"], row["head"]) == site
        if is_match and predictor in result.predictions:
            predictions = result.predictions[predictor]
            return predictions if isinstance(predictions, ClassPredictions) else None
    return None


def write_selected_probe(
    folder: RunFolder, chosen: SelectedProbe, prepared: PreparedRows, watcher: Watcher = SILENT
) -> None:
    """Write the tables of the selected probe; skip those without rows."""
    tables = {
        "confusion.csv": confusion_rows(chosen),
        "scatter.csv": scatter_rows(chosen),
        "cosines.csv": cosine_rows(chosen, prepared.selections, watcher),
    }
    for name, table in tables.items():
        if not table.empty:
            folder.write(name, csv_text(table))


def confusion_rows(chosen: SelectedProbe) -> pd.DataFrame:
    """Return the confusion matrix as rows: count `n` for each true and predicted label."""
    classes, predictions = chosen.classes, chosen.predictions
    counts = np.zeros((len(classes),) * 2, dtype=int)
    np.add.at(counts, (predictions.truth, predictions.guess), 1)
    pairs = product(range(len(classes)), repeat=2)
    return pd.DataFrame(
        [{"truth": classes[a], "guess": classes[b], "n": counts[a, b]} for a, b in pairs]
    )


def scatter_rows(chosen: SelectedProbe) -> pd.DataFrame:
    """Return the coordinates of test rows in a PCA plane and in an LDA plane.

    PCA and LDA are fitted on training rows only. With two classes LDA has one axis; the second axis
    is the first principal component. There is no LDA plane if LDA has no axis. For a nested
    cross-validation only the first split is used, because the test rows of the other splits are
    training rows of this one.
    """
    data = chosen.prober.data
    generator = np.random.default_rng(0)
    fitted = _sample(data.train, MOST_FITTED, generator)
    held_out = np.setdiff1d(chosen.prober.test_rows, data.train)
    shown = _sample(held_out, MOST_POINTS, generator)
    scaler = StandardScaler().fit(chosen.X[fitted])
    train, test = (scaler.transform(chosen.X[rows]) for rows in (fitted, shown))
    n_components = min(COMPONENTS, *train.shape)
    if n_components < 2 or np.abs(train).max() < _ROUNDING:
        return pd.DataFrame()
    pca = PCA(n_components, svd_solver="full").fit(train)
    train, test = pca.transform(train), pca.transform(test)
    projected = _discriminants(train, data.y[fitted], test)
    components = [
        f"component {number} ({share:.0%} of variance)"
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


def _discriminants(
    train: NDArray[np.floating], y: NDArray[np.str_], test: NDArray[np.floating]
) -> NDArray[np.floating]:
    """Return test rows projected on the LDA axes of the training rows, shape (n, n_axes).

    n_axes is 0 if the variance between or within classes is zero, because LDA divides one by the
    other. At the embedding of a word that is itself the label, all rows of a class are equal.
    """
    means = pd.DataFrame(train).groupby(y).transform("mean").to_numpy()
    between, within = np.ptp(means, axis=0).max(), np.abs(train - means).max()
    if min(between, within) < _ROUNDING * np.abs(train).max():
        return test[:, :0]
    projected: NDArray[np.floating] = LinearDiscriminantAnalysis().fit(train, y).transform(test)
    return projected


def _sample(rows: NDArray[Any], most: int, generator: np.random.Generator) -> NDArray[Any]:
    return np.sort(generator.choice(rows, most, replace=False)) if len(rows) > most else rows


def cosine_rows(
    chosen: SelectedProbe, selections: Sequence[Probed], watcher: Watcher = SILENT
) -> pd.DataFrame:
    """Return the cosine similarity between probe directions at each two sites of one curve line.

    With one direction per class, the cosine is the mean over classes. Only sites along d_model have
    rows, because others do not share a basis.

    The null distribution compares the probe at one site with probes fitted on permuted labels at
    the other site, with the same penalty. `null_high` is the 95 % quantile of its `n_null` absolute
    cosines. Random directions would be a wrong null: features are correlated, so probes of
    unrelated labels are more similar than random directions.
    """
    if not isinstance(chosen.site, SiteSelection) or not _is_whole_stream(chosen.site):
        return pd.DataFrame()
    streams = [s for s in selections if isinstance(s, SiteSelection) and _is_whole_stream(s)]
    places = placed(pd.DataFrame({"site": [s.text for s in streams], "head": np.nan}))
    saved = {site: chosen.saved(site) for site in only(places, line=chosen.row["line"])["site"]}
    probes = {
        site: probe
        for site, probe in saved.items()
        if probe is not None and len(probe.layers) == 1 and probe.directions.any(axis=1).all()
    }
    if len(probes) < 2:
        return pd.DataFrame()
    unit = {site: probe.unit_directions for site, probe in probes.items()}
    null = {}
    fitted = [stream for stream in streams if stream.text in probes]
    for done, stream in enumerate(fitted, start=1):
        null[stream.text] = _null_directions(chosen, stream, probes[stream.text])
        watcher.progress("probes of permuted labels", done, len(fitted))
    return pd.DataFrame(
        [
            {
                "site_a": a,
                "site_b": b,
                "cosine": round(float((u * v).sum(axis=1).mean()), 6),
                "n_directions": len(u),
                "n_features": u.shape[1],
                **_null_of([(unit[a], null[b]), (unit[b], null[a])][: 1 if a == b else 2]),
            }
            for (a, u), (b, v) in product(unit.items(), repeat=2)
        ]
    )


def _null_directions(chosen: SelectedProbe, selection: SiteSelection, probe: SavedProbe) -> Floats:
    """Return unit directions of probes fitted on permuted labels.

    The shape is (n_draws, n_directions, n_features). It is empty, (0, 0, 0), if one of the probes
    has a direction of length 0.
    """
    kind = str(chosen.row["probe"])
    spec = next(spec for spec in chosen.prober.settings.kinds if spec.text == kind)
    penalty = probe.facts.hyperparameters.get(spec.grid_name or "C")
    assert penalty is None or isinstance(penalty, float)
    X = chosen.X if selection == chosen.site else chosen.reader.features(selection)
    fits = chosen.prober.saved_rows.permuted_fits(spec, X, penalty, NULL_DRAWS)
    rows = [unit_rows(fit.layers[0].weight.astype(np.float64)) for fit in fits]
    found = [directions for directions in rows if directions is not None]
    return np.stack(found) if len(found) == NULL_DRAWS else np.empty((0, 0, 0))


def _null_of(pairs: Sequence[tuple[Floats, Floats]]) -> dict[str, Any]:
    """Return `null_high` and `n_null`, given pairs of a probe's directions and permuted ones."""
    if not all(len(draws) for _, draws in pairs):
        return {"null_high": None, "n_null": 0}
    null = np.concatenate([null_cosines(own, draws) for own, draws in pairs])
    return {"null_high": round(bound_of_null(null), 6), "n_null": len(null)}


def _is_whole_stream(site: SiteSelection) -> bool:
    return site.index is None and describe(site.site).axes[-1] == "d_model"
