"""The selected probe of a run: what its analyses read, and the files that they write.

probes/final    the final probe of a nested cross-validation
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probekit.activations.records import Location
from probekit.chosen.registry import asked
from probekit.files import as_store_error, csv_text
from probekit.lazy_rows import Floats, LazyRows, Mask
from probekit.pipeline.capture.captures import capture_further
from probekit.pipeline.engines.engine import Engine
from probekit.pipeline.engines.network import NetworkEngine
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.pipeline.setup.design import Probed
from probekit.pipeline.setup.texts import ReadTexts
from probekit.probes.probe_files import probe_files
from probekit.probes.prober import Prober
from probekit.probes.saved_probe import SavedProbe
from probekit.probes.score import metrics
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Predictions, Predictor, SiteResult, with_interval
from probekit.probes.settings import ProbeSpec
from probekit.probes.targets import HEADLINE, NESTED_PROBE
from probekit.provenance import digest, pretty_json
from probekit.results.record import FINAL, MOST_CLASSES
from probekit.results.scores import Scores, site_with_head
from probekit.results.site_results import site_stem
from probekit.terminal import SILENT, Watcher


@dataclass(frozen=True, eq=False)
class SelectedProbe:
    """The selected probe of a run, as its analyses read it, and what it was selected from.

    Attributes:
        scores: the scores of the run.
        results: the results of all sites.
        source: rows and activations.
        probers: the prober of each position.
        folder: the folder of the run.
        cache_root: folder or URL of the caches of further texts; None for the user's default.
        watcher: receives progress.
        workers: number of processes, as for `probe_sites`.
        seconds: predicted time of the probes of all sites; None if it is unknown.
    """

    scores: Scores
    results: Sequence[SiteResult]
    source: Engine
    probers: Sequence[Prober]
    folder: RunFolder
    cache_root: Location | None = None
    watcher: Watcher = SILENT
    workers: int | None = 1
    seconds: float | None = None

    @cached_property
    def row(self) -> pd.Series:
        """Its row in the results table."""
        assert self.scores.chosen is not None, "analyses of any run check it"
        return self.scores.chosen

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
        return self.prober.settings.spec(str(self.row["probe"]))

    @property
    def classes(self) -> NDArray[np.str_]:
        """The labels, in the order of their codes."""
        return np.array(self.prober.data.classes, dtype=str)

    @property
    def reads_texts(self) -> bool:
        """Whether the probe predicts whole texts instead of rows."""
        return self.spec.traits.scores_texts

    @cached_property
    def scored(self) -> Predictions | None:
        """Its predictions of test rows; None if they are not known row by row.

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
        return next(found, None)

    @property
    def predictions(self) -> ClassPredictions | None:
        """Its predictions of all test rows, if they are few classes; else None."""
        own, n_rows = self.scored, len(self.prober.test_rows)
        if not isinstance(own, ClassPredictions) or len(own.guess) != n_rows:
            return None
        return own if 2 <= len(self.classes) <= MOST_CLASSES else None

    def place_of(self, row: pd.Series) -> tuple[int, Probed]:
        """Return the position (as an index) and the site of a row of the table."""
        positions = [position.text for position in self.source.design.positions]
        sites = {selection.text: selection for selection in self.source.selections}
        return positions.index(row["position"]), sites[str(_name_of_site(row))]

    def saved_at(self, site: str) -> SavedProbe | None:
        """Return the saved probe of the same kind at a site; None if there is none."""
        offset, kind = self.source.design.positions[self.position].offset, self.spec.text
        of_site = site_stem(site, offset).relative_to("sites")
        path = self.folder.path / "probes" / of_site / kind.replace(":", "-")
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
    """Write the final probe, and the tables of the analyses that the experiment requests.

    The final probe of a nested cross-validation is copied to `probes/final`. Its site, kind and
    position have the best validation score over all folds. It is fitted on all rows, so no row is
    left to test it. There is none for a single split, or for a kind of probe that is not saved.

    Raises:
        DataError: A file of the probe is damaged.
        StoreError: A file cannot be written.
    """
    is_chosen = chosen.scores.chosen is not None
    if is_chosen and chosen.scores.is_nested and chosen.saved is not None:
        chosen.save(chosen.saved, FINAL)
    for analysis, settings in asked(chosen.source.experiment):
        measure = analysis.door("measure", "tables")
        if measure is None or not (is_chosen or analysis.is_of_any_run):
            continue
        for file, content in measure(settings, chosen).items():
            if len(content):
                is_json = file.endswith(".json")
                text = pretty_json(content) if is_json else csv_text(pd.DataFrame(content))
                chosen.folder.write(file, text)


def _name_of_site(row: Mapping[str, Any] | pd.Series) -> str | None:
    """Return the name of a site with its head; None for baselines."""
    return None if row["site"] is None else site_with_head(row["site"], row["head"])


def rates_at(
    threshold: float, scores: Floats, is_positive: Mask, resamples: metrics.Resamples
) -> dict[str, float]:
    """Return `tpr` and `test_fpr` of rows at a threshold, each with its limits `_low` and `_high`.

    Intervals are those of the metrics at a fixed false positive rate.

    Args:
        threshold: rows with a higher score raise an alarm.
        scores: scores of the rows for the positive class, shape (n_test,).
        is_positive: which rows are of the positive class, shape (n_test,).
        resamples: resamples of the rows.
    """
    truth, of_classes = is_positive.astype(np.int64), np.stack([0 * scores, scores], axis=1)
    predictions = ClassPredictions(truth, truth, 2, of_classes, positive=1)
    # The metrics read these alarms; the rate in their names has no meaning here.
    alarmed = metrics.with_alarms(predictions, np.full(len(metrics.RATES), threshold))
    rates: dict[str, float] = {}
    for name, metric in (("tpr", "tpr_at_fpr_1"), ("test_fpr", "achieved_fpr_1")):
        found = with_interval(metric, [alarmed], resamples)
        rates |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
    return rates
