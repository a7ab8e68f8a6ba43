"""A finished run, read from its folder: scores, settings and predictions on the test rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probekit.errors import DataError
from probekit.files import inside
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Predictions, Predictor
from probekit.results.predictions import read_test_rows
from probekit.results.record import RunRecord, check_finished, open_record, reading_run_file
from probekit.results.site_results import SavedSiteResults, site_stem
from probekit.results.table import load_table


class RunSettings(Protocol):
    """The settings of a run that `FinishedRun` uses; its caller loads them from config.yaml."""

    @property
    def reads_numbers(self) -> bool:
        """Whether the labels are numbers."""

    @property
    def offsets(self) -> Mapping[str, int]:
        """The offset in tokens of each probed position, by the position's name in results.csv."""


Settings = TypeVar("Settings", bound=RunSettings)


@dataclass(frozen=True, eq=False)
class FinishedRun(Generic[Settings]):
    """A finished run whose files have not changed since it was written.

    Attributes:
        folder: the folder of the run.
        record: the contents of run.json.
        experiment: the contents of config.yaml.
        table: the rows of results.csv.
        test_rows: `example`, `group` and `label` of each test row, as text.
    """

    folder: Path
    record: RunRecord
    experiment: Settings
    table: pd.DataFrame
    test_rows: pd.DataFrame

    @classmethod
    def open(
        cls, folder: Path | str, load_settings: Callable[[Path], Settings]
    ) -> FinishedRun[Settings]:
        """Return the run in a folder.

        Args:
            folder: the folder of the run.
            load_settings: loads config.yaml, given its path.

        Raises:
            MissingError: The folder does not exist or contains no finished run.
            DataError: A file cannot be read, or was changed after the run.
        """
        folder = Path(folder)
        check_finished(folder)
        record = open_record(folder)
        with reading_run_file(folder / "test_rows.csv"):
            test_rows = read_test_rows(folder / "test_rows.csv")
        return cls(
            folder=folder,
            record=record,
            experiment=load_settings(inside(folder / "config.yaml")),
            table=load_table(folder / "results.csv"),
            test_rows=test_rows,
        )

    @property
    def reads_numbers(self) -> bool:
        """Whether the labels are numbers."""
        return self.experiment.reads_numbers

    @property
    def classes(self) -> tuple[str, ...]:
        """The sorted training labels; empty if the labels are numbers."""
        return () if self.reads_numbers else tuple(self.record.data.training_labels)

    @cached_property
    def truth(self) -> NDArray[np.generic]:
        """The true label of each test row, as a class code or a number; shape (n_test,).

        Raises:
            DataError: A test row has a label that is not a training label.
        """
        labels = self.test_rows["label"].to_numpy(dtype=str)
        if self.reads_numbers:
            return labels.astype(np.float64)
        unknown = sorted(set(labels) - set(self.classes))
        if unknown:
            raise DataError(
                f"{self.folder / 'test_rows.csv'} has the label {unknown[0]!r}, which is not among "
                f"the labels in run.json: {', '.join(self.classes)}. Run the experiment again."
            )
        return np.searchsorted(np.array(self.classes), labels)

    def predictions(self, site: str, position: str) -> Mapping[Predictor, Predictions]:
        """Return the predictions on the test rows at a site and position, by probe and target.

        Predictions for whole texts or trees are left out.

        Args:
            site: the name of the site, followed by a head or neuron, if any; or `baselines`.
            position: the name of the position in results.csv.

        Raises:
            DataError: The predictions are missing or were changed after the run.
        """
        stem = site_stem(site, self.experiment.offsets.get(position, 0))
        origin = {"run": self.record.key, "position": position, "site": site}
        saved = SavedSiteResults(self.folder, lambda _: self.truth, len(self.classes))
        result = saved.read(stem, origin)
        if result is None:
            raise DataError(
                f"{self.folder / stem}.json and .safetensors are missing or were changed after the "
                f"run, so the predictions at {site} are lost. Run the experiment again with the "
                "same --out."
            )
        return {
            predictor: predictions
            for predictor, predictions in result.predictions.items()
            if _is_by_row(predictions)
        }


def _is_by_row(predictions: Predictions) -> bool:
    if not isinstance(predictions, ClassPredictions):
        return True
    return len(predictions.guess) == len(predictions.truth)
