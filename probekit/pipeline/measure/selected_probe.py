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
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, cast

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
from probekit.chosen.registry import asked
from probekit.data.examples import Example
from probekit.files import as_store_error, csv_text
from probekit.lazy_rows import LazyRows
from probekit.model.sites.catalogue import describe
from probekit.model.sites.sites import SiteConcatenation, SiteSelection
from probekit.pipeline.capture.captures import capture_further
from probekit.pipeline.engines.engine import Activations, Engine
from probekit.pipeline.engines.network import NetworkEngine
from probekit.pipeline.measure.run_folder import RunFolder, probe_path
from probekit.pipeline.measure.text_rules import rule_tables
from probekit.pipeline.setup.design import Probed
from probekit.pipeline.setup.texts import ReadTexts
from probekit.probes.arrays import Floats
from probekit.probes.fitters import FittedRows
from probekit.probes.prober import Prober
from probekit.probes.saved_probe import SavedProbe, probe_files
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Predictor, SiteResult
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
from probekit.results.record import FINAL, MOST_CLASSES
from probekit.results.selection import (
    answers_name,
    is_nested,
    ranked_rows,
    site_with_head,
)
from probekit.results.table import only, placed
from probekit.terminal import SILENT, Watcher
from probekit.workers import parallel_map

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
    """The selected probe of a run, as its analyses read it, and what it was selected from.

    Attributes:
        row: its row in the results table.
        table: the rows of results.csv.
        results: the results of all sites.
        source: rows and activations.
        probers: the prober of each position.
        folder: the folder of the run.
        cache_root: folder or URL of the caches of further texts; None for the user's default.
        watcher: receives progress.
        workers: number of processes, as for `probe_sites`.
        seconds: predicted time of the probes of all sites; None if it is unknown.
    """

    row: pd.Series
    table: pd.DataFrame
    results: Sequence[SiteResult]
    source: Engine
    probers: Sequence[Prober]
    folder: RunFolder
    cache_root: Location | None = None
    watcher: Watcher = SILENT
    workers: int | None = 1
    seconds: float | None = None

    @cached_property
    def site(self) -> Probed:
        """The site that it was fitted at."""
        return self.place_of(self.row)[1]

    @cached_property
    def position(self) -> int:
        """The index of its position."""
        return self.place_of(self.row)[0]

    @cached_property
    def prober(self) -> Prober:
        """The prober of its position."""
        return self.probers[self.position]

    @cached_property
    def features(self) -> LazyRows:
        """The features at its site, shape (n_rows, n_features)."""
        return self.source.activations.block(self.site, self.position)

    @property
    def spec(self) -> ProbeSpec:
        """Its kind, whose text is that of the table."""
        return next(one for one in self.prober.settings.kinds if one.text == self.row["probe"])

    @property
    def classes(self) -> NDArray[np.str_]:
        """The labels, in the order of their codes."""
        return np.array(self.prober.data.classes, dtype=str)

    @property
    def reads_texts(self) -> bool:
        """Whether the probe predicts whole texts instead of rows."""
        return self.spec.task == "text"

    @cached_property
    def predictions(self) -> ClassPredictions | None:
        """Its predictions of all test rows, if they are few classes; else None.

        For a nested cross-validation they are those of the nested choice, which have a result of
        their own; those of another probe are in the result of its site.
        """
        is_nested, place = self.prober.is_nested, (self.row["position"], self.site.text)
        name = Predictor(*(NESTED_PROBE, HEADLINE) if is_nested else (self.spec.text, "task"))
        found = (
            one.predictions[name]
            for one in self.results
            if name in one.predictions
            and (is_nested or place == (one.place["position"], _name_of_site(one.place)))
        )
        own, n_rows = next(found, None), len(self.prober.test_rows)
        is_drawn = 2 <= len(self.classes) <= MOST_CLASSES
        is_of_classes = isinstance(own, ClassPredictions) and len(own.guess) == n_rows
        return own if is_drawn and is_of_classes else None

    def place_of(self, row: pd.Series) -> tuple[int, Probed]:
        """Return the position (as an index) and the site of a row of the table."""
        positions = [position.text for position in self.source.design.positions]
        sites = {selection.text: selection for selection in self.source.selections}
        return positions.index(row["position"]), sites[str(_name_of_site(row))]

    def saved_at(self, site: str) -> SavedProbe | None:
        """Return the saved probe of the same kind at a site; None if there is none."""
        offset = self.source.design.positions[self.position].offset
        path = probe_path(self.folder.path, offset, site, self.spec.text)
        return SavedProbe.load(path) if probe_files(path)[0].exists() else None

    @property
    def saved(self) -> SavedProbe | None:
        """The probe as it was saved; None for kinds that are not."""
        return self.saved_at(self.site.text)

    def further(self, name: str) -> tuple[ReadTexts, LazyRows]:
        """Return further texts, and their rows at the site, captured if they are not cached."""
        network = cast(NetworkEngine, self.source)  # others have no further texts
        captured = capture_further(
            network, name, (self.site,), cache_root=self.cache_root, watcher=self.watcher
        )
        return network.further[name], captured.block(self.site, self.position)

    def save(self, probe: SavedProbe, name: str) -> None:
        """Write a probe into the folder of the run and record its digests.

        Raises:
            StoreError: a file cannot be written.
        """
        probe.save(self.folder.path / name)
        for file in probe_files(Path(name)):
            path = self.folder.path / file
            with as_store_error("read", path):
                self.folder.note({file.as_posix(): digest([path.read_bytes()])})


def write_selected_probe(chosen: SelectedProbe) -> None:
    """Write the final probe, and the tables of the analyses that the experiment asks for.

    The final probe of a nested cross-validation is copied to `probes/final`. Its site, kind and
    position have the best validation score over all folds. It is fitted on all rows, so no row is
    left to test it. There is none for a single split, or for a kind of probe that is not saved.

    Raises:
        DataError: A file of the probe is damaged.
        StoreError: A file cannot be written.
    """
    if is_nested(chosen.table) and chosen.saved is not None:
        chosen.save(chosen.saved, FINAL)
    features = feature_rows(chosen)
    if not features.empty:
        chosen.folder.write("features.csv", csv_text(features))
    _write_class_tables(chosen)
    for analysis, settings in asked(chosen.source.experiment):
        measure = analysis.door("measure", "tables")
        tables = {} if measure is None else measure(settings, chosen)
        for file, rows in tables.items():
            chosen.folder.write(file, csv_text(pd.DataFrame(rows)))


def _name_of_site(row: Mapping[str, Any] | pd.Series) -> str | None:
    """Return the name of a site with its head; None for baselines."""
    return None if row["site"] is None else site_with_head(row["site"], row["head"])


def _write_class_tables(chosen: SelectedProbe) -> None:
    table, row, folder = chosen.table, chosen.row, chosen.folder
    if chosen.predictions is None:
        return
    tables = {"confusion.csv": confusion_rows(chosen)}
    if chosen.reads_texts:
        tables |= rule_tables(chosen.prober, chosen.features, str(row["probe"]))
    else:
        with threads(1):  # last digits depend on their number, which can change under load
            tables["scatter.csv"] = scatter_rows(chosen)
        tested = only(table, metric="p_holm", target="task", probe=str(row["probe"]))
        better = only(tested[tested["value"] < LEVEL], position=row["position"])["site"]
        tables["cosines.csv"] = cosine_rows(chosen, {*better})
    for name, content in tables.items():
        if not content.empty:
            folder.write(name, csv_text(content))
    examples = wrong_examples(chosen)
    probes, rows = wrong_of_probes(chosen)
    if examples or rows:
        classes = chosen.classes.tolist()
        errors = {"classes": classes, "examples": examples, "probes": probes, "rows": rows}
        folder.write("wrong.json", pretty_json(errors))


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
    rows, scaler = chosen.features.select(fitted).loaded()[:], StandardScaler()
    scaled = scaler.fit_transform(rows)
    del rows
    n_components = min(COMPONENTS, len(scaled) - 1, scaled.shape[1])
    if n_components < 2 or np.abs(scaled).max() < _ROUNDING:
        return pd.DataFrame()
    # Both are exact and faster than all singular values. The covariance of many features is large.
    solver = "covariance_eigh" if scaled.shape[1] <= MOST_COVARIANCE else "arpack"
    pca = PCA(n_components, svd_solver=solver, random_state=0).fit(scaled)
    train, test = pca.transform(scaled), pca.transform(scaler.transform(chosen.features[shown]))
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
    if not isinstance(chosen.site, SiteSelection) or not _is_whole_stream(chosen.site):
        return pd.DataFrame()
    sites = chosen.source.selections
    streams = [s for s in sites if isinstance(s, SiteSelection) and _is_whole_stream(s)]
    places = placed(pd.DataFrame({"site": [s.text for s in streams], "head": np.nan}))
    saved = {site: chosen.saved_at(site) for site in only(places, line=chosen.row["line"])["site"]}
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
    spec = next(spec for spec in chosen.prober.settings.kinds if spec.text == kind)
    for stream in streams:
        if stream.text in probes:
            penalty = probes[stream.text].facts.hyperparameters.get(spec.grid_name or "C")
            assert penalty is None or isinstance(penalty, float)
            penalties[stream] = penalty
    job = partial(
        _refitted_directions,
        chosen.source.activations,
        chosen.position,
        chosen.prober.saved_rows,
        spec,
    )
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
    X = activations.block(site, position)
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
    chosen: SelectedProbe,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the worst errors of the probes at single sites, and the rows that they refer to.

    Of more than `MOST_PROBES` probes, those of the selected kind and position come first. Probes
    without scores, or that predict other rows than all test rows, are left out.
    """
    found: list[tuple[dict[str, Any], ClassPredictions]] = []
    for result in chosen.results:
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
        errors, names = [], [at.text for at in chosen.source.design.positions]
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
    rows, row = chosen.source.design, chosen.prober.test_rows[number]
    return rows.dataset.examples[int(rows.example[row])]


def _token_read(chosen: SelectedProbe, number: int, position: int) -> tuple[int, int] | None:
    """Return the characters of the one token that a test row reads; None if it reads several."""
    if chosen.reads_texts:
        return None
    return chosen.source.design.token_read(int(chosen.prober.test_rows[number]), position)


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
    probe = None if chosen.prober.is_nested else chosen.saved
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
    source, ranked = chosen.source, ranked_rows(chosen.table)
    ranked = ranked[ranked["probe"].str.fullmatch(_SPARSE)]
    if ranked.empty:
        return pd.DataFrame()
    position, site = chosen.place_of(ranked.iloc[0])
    if isinstance(site, SiteConcatenation):
        return pd.DataFrame()
    prober, sizes_of_axes = chosen.probers[position], source.axis_sizes
    sizes = np.sort(ranked["probe"].str.extract(_SPARSE)[0].astype(int).unique())
    X = source.activations.block(site, position)
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
            "position": source.design.positions[position].text,
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
