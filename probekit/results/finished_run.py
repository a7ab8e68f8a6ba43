"""A finished run, read from its folder: its numbers, settings, and answers on the test rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probekit.disk import inside
from probekit.errors import ConfigError, DataError, MissingError
from probekit.probes.score.measurement import Predictions
from probekit.probes.score.metrics import ClassPredictions
from probekit.results.predictions import Predictor, read_test_rows
from probekit.results.record import STARTED, RunRecord, open_record, reading_run_file
from probekit.results.site_results import SavedSiteResults, site_stem
from probekit.results.table import load_table

MOST_NAMED = 10  # runs of a folder that is not one


class RunSettings(Protocol):
    """What reading a run needs to know of its settings, which a floor above this one loads."""

    @property
    def reads_numbers(self) -> bool:
        """Whether the labels are numbers."""

    @property
    def offsets(self) -> Mapping[str, int]:
        """The offset of each probed position, by its name in results.csv."""


Settings = TypeVar("Settings", bound=RunSettings)


@dataclass(frozen=True, eq=False)
class FinishedRun(Generic[Settings]):
    """A finished run whose files have not changed since.

    Attributes:
        folder: of the run.
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
            folder: of the run.
            load_settings: returns the contents of its config.yaml.

        Raises:
            MissingError: The folder is not there, or holds no finished run.
            DataError: A file cannot be read, or was changed after the run.
        """
        folder = Path(folder)
        _check_folder(folder)
        record = open_record(folder)
        _check_has_answers(folder, record)
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
    def name(self) -> str:
        """Experiment and key, as the last two parts of the folder say them."""
        return f"{self.record.run}/{self.record.key}"

    @property
    def reads_numbers(self) -> bool:
        """Whether the labels are numbers."""
        return self.experiment.reads_numbers

    @property
    def classes(self) -> tuple[str, ...]:
        """The training labels, sorted; none where they are numbers."""
        return () if self.reads_numbers else tuple(sorted(self.record.data.labels["train"]))

    @cached_property
    def truth(self) -> NDArray[np.generic]:
        """The label codes (n_test,), or the numbers, of the test rows.

        Raises:
            DataError: A test row has a label that no training row has.
        """
        labels = self.test_rows["label"].to_numpy(dtype=str)
        if self.reads_numbers:
            return labels.astype(np.float64)
        unknown = sorted(set(labels) - set(self.classes))
        if unknown:
            raise DataError(
                f"{self.folder / 'test_rows.csv'} has the label {unknown[0]!r}, which is not among "
                f"those of run.json: {', '.join(self.classes)}. Run the experiment again."
            )
        return np.searchsorted(np.array(self.classes), labels)

    def said(self, site: str, position: str) -> Mapping[Predictor, Predictions]:
        """Return what was said of the test rows at a site and position, a row an answer.

        Answers on whole texts or trees are not among them.

        Args:
            site: its name, a head or neuron behind it, or `baselines`.
            position: as results.csv names it.

        Raises:
            DataError: The answers are not there, or not those that the run wrote.
        """
        stem = site_stem(site, self.experiment.offsets.get(position, 0))
        origin = {"run": self.record.key, "position": position, "site": site}
        saved = SavedSiteResults(self.folder, lambda _: self.truth, len(self.classes))
        found = saved.read(stem, origin)
        if found is None:
            raise DataError(
                f"{self.folder / stem}.json and .safetensors are not there, or not as the run "
                f"wrote them: the answers at {site} are lost. Run the experiment again with the "
                "same --out."
            )
        return {who: said for who, said in found.said.items() if _is_by_row(said)}


def _is_by_row(said: Predictions) -> bool:
    return not isinstance(said, ClassPredictions) or len(said.guess) == len(said.truth)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise MissingError(
            f"There is no folder {folder}. Give that of a run: `probekit run` prints the path of "
            "its report, and the run is the folder around it."
        )
    if (folder / STARTED).exists():
        raise MissingError(
            f"{folder} holds a run that was not finished. Run the experiment again with the same "
            "--out: it goes on from there."
        )
    if not (folder / "run.json").exists():
        records = (*folder.glob("*/run.json"), *folder.glob("*/*/run.json"))
        runs = sorted(str(path.parent.relative_to(folder)) for path in records)[:MOST_NAMED]
        raise MissingError(
            f"{folder} is not the folder of a run: it has no run.json. "
            + (f"It holds runs; give one of them: {', '.join(runs)}." if runs else _WHERE)
        )


_WHERE = "`probekit run` leaves runs in OUT/NAME/KEY."


def _check_has_answers(folder: Path, record: RunRecord) -> None:
    if "test_rows.csv" not in record.files:
        raise ConfigError(
            f"{folder} was written by an older probekit, which kept no answers. Run the experiment "
            "again."
        )
