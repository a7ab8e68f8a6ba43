"""Finished runs, read from their folders: settings, titles, scores, predictions, saved probes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from probekit.amounts import one_line
from probekit.errors import DataError
from probekit.files import inside
from probekit.model.weights.sources import name_in_memory
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Predictions, Predictor
from probekit.results.record import RunRecord, check_finished, open_record, reading_run_file
from probekit.results.site_results import (
    NESTED_SITE,
    SavedSiteResults,
    read_test_rows,
    site_stem,
)
from probekit.results.table import load_table
from probekit.results.verdict import Verdict

# These settings, such as names and paths, do not affect the results.
WITHOUT_EFFECT = (
    "name",
    "question",
    "data.root",
    "data.card",
    "data.memory",
    "data.memory.kind",
    "data.memory.n_rows",
    "data.memory.digest",
    "data.memory.is_split",
    "model.memory",
    "model.memory.kind",
    "model.memory.digest",
    "attention.texts",
)
ABSENT = "–"
MOST_SETTINGS = 3  # settings that the title of a run names
LONGEST_VALUE = 30  # characters of a value in a title


def load_config(path: Path) -> dict[str, Any]:
    """Return the contents of a run's config.yaml.

    Raises:
        MissingError: The file does not exist.
        DataError: The file cannot be read.
    """
    with reading_run_file(path):
        text = inside(path).read_text("utf-8")
    try:
        config = YAML(typ="safe").load(text)
    except YAMLError as error:
        raise DataError(f"{path} is not valid YAML: {error}. Run the experiment again.") from error
    if not isinstance(config, dict):
        raise DataError(f"{path} contains no settings. Run the experiment again to rewrite it.")
    return config


def settings_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that affect the results as text, by their dotted names.

    Args:
        config: the settings of a run, as nested mappings.
    """
    settings = {name: text for name, text in flat(config).items() if name not in WITHOUT_EFFECT}
    memory = config.get("model", {}).get("memory")
    if memory:
        settings["model.source"] = name_in_memory(**memory)
    return settings


def run_facts(config: Mapping[str, Any], record: RunRecord) -> dict[str, str]:
    """Return the settings that affect the results, digests and versions of a run, as text by name.

    Args:
        config: the settings of the run, as nested mappings.
        record: its run.json.
    """
    return {
        **settings_of(config),
        **({"activations": record.identity} if record.identity else {}),
        **{f"digest of {name}": text[:12] for name, text in record.digests.items()},
        **{f"version of {name}": text for name, text in record.versions.items()},
    }


def differing(facts: Sequence[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the names whose values differ between the mappings, with the value in each mapping.

    >>> differing([{"seed": "0", "bos": "no"}, {"seed": "1", "bos": "no", "k": "4"}])
    {'seed': ('0', '1'), 'k': ('–', '4')}
    """
    names = dict.fromkeys(name for one in facts for name in one)
    values = {name: tuple(one.get(name, ABSENT) for one in facts) for name in names}
    return {name: texts for name, texts in values.items() if len(set(texts)) > 1}


def run_titles(runs: Sequence[tuple[RunRecord, Mapping[str, str]]]) -> list[str]:
    """Return a unique title for each run: its name, and settings in which runs of a name differ.

    Only the first `MOST_SETTINGS` settings are listed. The name is left out if there are several
    runs and all have the same name. Equal titles get the number of the run; if no setting differs,
    the title is `run N` alone.

    Args:
        runs: the record of each run, and its settings as `settings_of` returns them.
    """
    has_names = len(runs) == 1 or len({record.run for record, _ in runs}) > 1
    titles = []
    for record, settings in runs:
        differ = differing([facts for other, facts in runs if other.run == record.run])
        parts = [f"{key} {_short(settings.get(key, ABSENT))}" for key in differ][:MOST_SETTINGS]
        titles.append(" · ".join([record.run, *parts] if has_names else parts))
    return [
        title if titles.count(title) == 1 else f"{title} · run {number}".removeprefix(" · ")
        for number, title in enumerate(titles, start=1)
    ]


def _short(text: str) -> str:
    """Return a value, or its end if it is long; an absolute path is reduced to its last part."""
    text = PurePosixPath(text).name if text.startswith("/") else text
    text = re.sub(r"\{kind: (\w+)\}", r"\1", text)  # a kind of probe without settings of its own
    # The ellipsis is one of the `LONGEST_VALUE` characters.
    return text if len(text) <= LONGEST_VALUE else f"…{text[1 - LONGEST_VALUE :]}"


def date_text(created: str, time: str = "") -> str:
    """Return the date of a time in ISO 8601; other text unchanged.

    Args:
        created: the time.
        time: format of the time that follows the date; "" for the date alone.

    >>> date_text("2026-11-02T01:39:33+00:00"), date_text("2026-11-02T01:39:33+00:00", " %H:%M")
    ('2 Nov 2026', '2 Nov 2026 01:39')
    """
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{moment.day} {moment:%b %Y}{moment.strftime(time)}"


def flat(value: Any) -> dict[str, str]:
    """Return the leaves of nested mappings as text, by their dotted keys.

    >>> flat({"probe": {"seed": 0, "kinds": [{"kind": "svm", "k": None}]}})
    {'probe.seed': '0', 'probe.kinds': '[{kind: svm}]'}
    """
    return {name: one_line(leaf) for name, leaf in leaves(value).items()}


def leaves(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by their dotted keys; lists are leaves.

    Args:
        value: nested mappings, or a leaf.
        prefix: the dotted key of `value`; "" for the outermost mapping.

    >>> leaves({"probe": {"seed": 0, "C": [0.1, 1]}})
    {'probe.seed': 0, 'probe.C': [0.1, 1]}
    """
    if not isinstance(value, dict):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    return found


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
    def verdict(self) -> Verdict:
        """The verdict of the run."""
        return self.record.verdict

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
        # The classes are sorted and contain every label, so this is the index of each label.
        return np.searchsorted(np.array(self.classes), labels)

    def predictions(self, site: str, position: str) -> Mapping[Predictor, Predictions]:
        """Return the predictions on the test rows at a site and position, by probe and target.

        Predictions for whole texts or trees are left out.

        Args:
            site: the name of the site, followed by a head or neuron, if any; or `baselines`.
            position: the name of the position in results.csv.

        Raises:
            DataError: The predictions are missing or were changed after the run.
            StoreError: The operating system denies access to their files.
        """
        # The nested choice has one file, whatever position its folds chose; for a sweep its
        # position is "", which is not among `offsets`.
        offset = 0 if site == NESTED_SITE else self.experiment.offsets[position]
        stem = site_stem(site, offset)
        origin = {"run": self.record.key, "position": position, "site": site}
        saved = SavedSiteResults(self.folder, lambda _: self.truth, len(self.classes))
        result = saved.read(stem, origin)
        if result is None:
            raise DataError(
                f"{self.folder / stem}.json and .safetensors are missing or were changed after the "
                f"run, so the predictions at {site} are lost. Run the experiment again with the "
                "same --out."
            )
        # Predictions for trees are not saved. Those for whole texts have one guess for each text,
        # but `truth` has a label for each test row.
        return {
            predictor: predictions
            for predictor, predictions in result.predictions.items()
            if not isinstance(predictions, ClassPredictions)
            or len(predictions.guess) == len(predictions.truth)
        }
