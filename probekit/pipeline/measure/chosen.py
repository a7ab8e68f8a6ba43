"""What is kept of the chosen probe to look at: where it errs, and how its site and layers lie.

confusion.csv   how often each label was taken for each other, on the test rows
scatter.csv     test rows in the plane of PCA and of LDA, both fitted on training rows
cosines.csv     of the probes' directions at the sites of one line
wrong.json      the test rows that it got most wrong, with what it reads at each token
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

from probekit.csv_files import csv_text
from probekit.model.network import Network
from probekit.model.sites import SiteSelection, describe
from probekit.pipeline.experiment.features import FeatureReader, Probed
from probekit.pipeline.experiment.prepare import Prepared
from probekit.pipeline.look.apply import ProbedModel, predict_texts
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.probes.curve import Prober
from probekit.probes.saved.saved_probe import SavedProbe
from probekit.probes.score.metrics import ClassPredictions
from probekit.provenance import pretty_json
from probekit.results.predictions import Predictor
from probekit.results.selection import chosen_row, selection
from probekit.results.site_results import SiteResult, file_name
from probekit.results.table import only, placed
from probekit.results.text_readings import TextReading

MOST_CLASSES = 40  # of a confusion matrix and a scatter that can be read
MOST_POINTS = 500
MOST_FITTED = 5000  # rows that a plane is fitted on
_NOTHING = 1e-6  # what rounding leaves of a difference, in features of spread 1
COMPONENTS = 50  # of PCA, that LDA is fitted on: with more features than rows it parts any labels
MOST_WRONG = 10


@dataclass(frozen=True, eq=False)
class Chosen:
    """The chosen probe of a run, and what it was measured on.

    Attributes:
        row: of the table.
        said: its answers on the test rows.
        prober: of its position.
        site: what it reads.
        X: the features (n_rows, n_features) there.
        probes: folder of the probes that were kept at its position.
    """

    row: pd.Series
    said: ClassPredictions
    prober: Prober
    site: Probed
    X: NDArray[np.float32]
    probes: Path

    @property
    def classes(self) -> NDArray[np.str_]:
        """The labels, in the order of their codes."""
        return np.array(self.prober.data.classes, dtype=str)

    def saved(self, site: str) -> SavedProbe | None:
        """Return the probe of the chosen kind that was kept at a site; None if none was."""
        path = self.probes / file_name(site) / str(self.row["probe"]).replace(":", "-")
        return SavedProbe.load(path) if path.with_name(f"{path.name}.json").exists() else None


def find_chosen(
    prepared: Prepared,
    probers: Sequence[Prober],
    found: Sequence[SiteResult],
    table: pd.DataFrame,
    readers: Mapping[str, FeatureReader],
    folder: Path,
) -> Chosen | None:
    """Return the chosen probe; None without one, or where it does not put rows into classes."""
    row = chosen_row(table)
    if row is None:
        return None
    number, site = find_site(prepared, row)
    prober, position = probers[number], prepared.positions[number].position
    said = _said(found, site.text, position.text, Predictor(str(row["probe"]), "task"))
    if said is None or len(said.guess) != len(prober.test_rows):
        return None
    if not 2 <= len(prober.data.classes) <= MOST_CLASSES:
        return None
    probes = folder / "probes" / (f"{position.offset:+d}" if position.offset else "")
    return Chosen(row, said, prober, site, readers[position.text].features(site), probes)


def find_site(prepared: Prepared, row: pd.Series) -> tuple[int, Probed]:
    """Return the number of the position and the site that a row of the table is about."""
    texts = [at.position.text for at in prepared.positions]
    name = selection(row["site"], row["head"])
    return texts.index(row["position"]), next(s for s in prepared.selections if s.text == name)


def _said(
    found: Sequence[SiteResult], site: str, position: str, who: Predictor
) -> ClassPredictions | None:
    for one in (site for site in found if site.rows):
        here = one.rows[0]
        is_here = here["position"] == position and here["site"] is not None
        if is_here and selection(here["site"], here["head"]) == site and who in one.said:
            said = one.said[who]
            return said if isinstance(said, ClassPredictions) else None
    return None


def write_chosen(folder: RunFolder, chosen: Chosen, prepared: Prepared, model: Network) -> None:
    """Write the files of the chosen probe; one that has no rows is left out."""
    tables = {
        "confusion.csv": confusion_rows(chosen),
        "scatter.csv": scatter_rows(chosen),
        "cosines.csv": cosine_rows(chosen, prepared.selections),
    }
    for name, table in tables.items():
        if not table.empty:
            folder.write(name, csv_text(table))
    wrong = wrong_examples(chosen, prepared, model)
    if wrong:
        content = {"classes": chosen.classes.tolist(), "examples": wrong}
        folder.write("wrong.json", pretty_json(content))


def confusion_rows(chosen: Chosen) -> pd.DataFrame:
    """Return how many test rows of each label (`truth`) were given each label (`guess`)."""
    classes, said = chosen.classes, chosen.said
    counts = np.zeros((len(classes),) * 2, dtype=int)
    np.add.at(counts, (said.truth, said.guess), 1)
    pairs = product(range(len(classes)), repeat=2)
    return pd.DataFrame(
        [{"truth": classes[a], "guess": classes[b], "n": counts[a, b]} for a, b in pairs]
    )


def scatter_rows(chosen: Chosen) -> pd.DataFrame:
    """Return test rows in planes of PCA and, if it has an axis, LDA, fitted on training rows alone.

    Of two classes LDA has one axis; the first principal component is the other. Of a nested
    cross-validation it is the first split: test rows of another train this one.
    """
    data = chosen.prober.data
    generator = np.random.default_rng(0)
    fitted = _some(data.train, MOST_FITTED, generator)
    held_out = np.setdiff1d(chosen.prober.test_rows, data.train)
    shown = _some(held_out, MOST_POINTS, generator)
    scaler = StandardScaler().fit(chosen.X[fitted])
    train, test = (scaler.transform(chosen.X[rows]) for rows in (fitted, shown))
    n_components = min(COMPONENTS, *train.shape)
    if n_components < 2 or np.abs(train).max() < _NOTHING:
        return pd.DataFrame()
    pca = PCA(n_components, svd_solver="full").fit(train)
    train, test = pca.transform(train), pca.transform(test)
    apart = _discriminants(train, data.y[fitted], test)
    components = [
        f"component {number} ({share:.0%} of variance)"
        for number, share in enumerate(pca.explained_variance_ratio_, start=1)
    ]
    discriminants = [f"discriminant {number + 1}" for number in range(apart.shape[1])]
    planes = {"PCA": (test, components)}
    if discriminants:
        axes = [*discriminants, "component 1 of PCA"]
        planes["LDA"] = np.column_stack([apart, test[:, 0]]), axes
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
    """Return test rows (n, n_axes) along what parts the labels y of the training rows.

    LDA sets what lies between labels against what lies inside them: where either is nothing, as at
    the embedding of a word that is the label, or is the same under all of them, there is no axis.
    """
    middles = pd.DataFrame(train).groupby(y).transform("mean").to_numpy()
    between, inside = np.ptp(middles, axis=0).max(), np.abs(train - middles).max()
    if min(between, inside) < _NOTHING * np.abs(train).max():
        return test[:, :0]
    apart: NDArray[np.floating] = LinearDiscriminantAnalysis().fit(train, y).transform(test)
    return apart


def _some(rows: NDArray[Any], most: int, generator: np.random.Generator) -> NDArray[Any]:
    return np.sort(generator.choice(rows, most, replace=False)) if len(rows) > most else rows


def cosine_rows(chosen: Chosen, selections: Sequence[Probed]) -> pd.DataFrame:
    """Return the cosine of the probes' directions at each two sites of the chosen line.

    Of several directions, one a class, it is the mean over them. Only sites along d_model have a
    basis in common; others give no rows.
    """
    if not isinstance(chosen.site, SiteSelection) or not _is_whole_stream(chosen.site):
        return pd.DataFrame()
    whole = [s for s in selections if isinstance(s, SiteSelection) and _is_whole_stream(s)]
    places = placed(pd.DataFrame({"site": [s.text for s in whole], "head": np.nan}))
    saved = {site: chosen.saved(site) for site in only(places, line=chosen.row["line"])["site"]}
    unit = {
        site: probe.unit_directions
        for site, probe in saved.items()
        if probe is not None and len(probe.layers) == 1 and probe.directions.any(axis=1).all()
    }
    if len(unit) < 2:
        return pd.DataFrame()
    return pd.DataFrame(
        [
            {
                "site_a": a,
                "site_b": b,
                "cosine": round(float((u * v).sum(axis=1).mean()), 6),
                "n_directions": len(u),
                "n_features": u.shape[1],
            }
            for (a, u), (b, v) in product(unit.items(), repeat=2)
        ]
    )


def _is_whole_stream(site: SiteSelection) -> bool:
    is_whole = site.head is None and site.neuron is None
    return is_whole and describe(site.site).axes[-1] == "d_model"


def wrong_examples(chosen: Chosen, prepared: Prepared, model: Network) -> list[dict[str, Any]]:
    """Return the test rows whose wrong guess lies farthest above the truth, one a group.

    Each has the tokens of its text with what the probe reads there, if the probe was kept.
    """
    said = chosen.said
    if said.scores is None:
        return []
    rows = np.arange(len(said.guess))
    ahead = said.scores[rows, said.guess] - said.scores[rows, said.truth]
    order = np.argsort(-np.where(said.guess == said.truth, -np.inf, ahead), kind="stable")
    worst: dict[str, int] = {}
    for number in order[: int((said.guess != said.truth).sum())].tolist():
        worst.setdefault(str(chosen.prober.data.groups[chosen.prober.test_rows[number]]), number)
    numbers = list(worst.values())[:MOST_WRONG]
    examples = [
        prepared.dataset.examples[prepared.example[chosen.prober.test_rows[number]]]
        for number in numbers
    ]
    readings = _readings(chosen, prepared, model, [example.text for example in examples])
    return [
        {
            "text": example.text,
            "span": example.span,
            "group": group,
            "label": str(chosen.classes[said.truth[number]]),
            "guess": str(chosen.classes[said.guess[number]]),
            "ahead": round(float(ahead[number]), 4),
            "tokens": _tokens(reading),
        }
        for number, group, example, reading in zip(numbers, worst, examples, readings, strict=False)
    ]


def _tokens(reading: TextReading | None) -> list[dict[str, Any]]:
    """Return each token with its characters in the text, and what the probe reads there."""
    if reading is None:
        return []
    return [
        {"token": token, "span": span, "label": answer.label, "score": round(answer.score, 4)}
        for token, span, answer in zip(reading.tokens, reading.spans, reading.answers, strict=True)
    ]


def _readings(
    chosen: Chosen, prepared: Prepared, model: Network, texts: Sequence[str]
) -> Sequence[TextReading | None]:
    probe = chosen.saved(chosen.site.text)
    if probe is None or not texts or not all(texts):
        return [None] * len(texts)
    network = ProbedModel(model, prepared.tokenizer, tuple(chosen.site.parts))
    return predict_texts(probe, network, texts, too_long="truncate")
