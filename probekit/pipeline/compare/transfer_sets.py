"""The data sets of a transfer: captured at the same sites of the same model, rows not shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from probekit.activations.files.local import Location
from probekit.errors import ConfigError, DataError
from probekit.experiment.schema import DataSection, Experiment
from probekit.model.gpt2 import GPT2
from probekit.model.network import Network
from probekit.pipeline.capture.captures import capture_rows
from probekit.pipeline.capture.devices import check_device
from probekit.pipeline.experiment.features import FeatureReader
from probekit.pipeline.experiment.prepare import Prepared, prepare
from probekit.pipeline.measure.probing import make_probers
from probekit.probes.curve import Prober
from probekit.results.settings import flat
from probekit.watcher import Watcher

# These change nothing of what is transferred, or are compared as what they mean.
_MAY_DIFFER = (
    "model.random_weights",
    "model.random_seed",
    "capture.sites",
    "capture.concatenate",
    "probe.baselines",
    "probe.description",
    "probe.learning_steps",
    "probe.permutations",
)


@dataclass(frozen=True, eq=False)
class TransferSet:
    """A data set to train on and to test on.

    Attributes:
        name: of its experiment.
        experiment: how it is read, split and probed.
        prepared: its rows.
        prober: fits and scores them.
        reader: gives their activations.
    """

    name: str
    experiment: Experiment
    prepared: Prepared
    prober: Prober
    reader: FeatureReader

    @property
    def train_texts(self) -> NDArray[np.object_]:
        """The text of each training row."""
        return self.prepared.texts[self.prober.data.train]

    @property
    def test_texts(self) -> NDArray[np.object_]:
        """The text of each test row."""
        return self.prepared.texts[self.prober.test_rows]


def make_sets(
    experiments: Sequence[Experiment],
    *,
    cache_root: Location | None,
    device: str,
    watcher: Watcher,
) -> list[TransferSet]:
    """Return the data sets of some experiments, captured; what is in the cache is not recomputed.

    Raises:
        ConfigError: There are fewer than two, two have one name, or they differ in model, tokens,
            sites or probes.
        DataError: Their labels differ, or rows cannot be read.
    """
    _check_names(experiments)
    _check_alike(experiments)
    for experiment in experiments:
        _check_transferable(experiment)
    check_device(device)
    plain = [_without_extras(experiment) for experiment in experiments]
    prepared = [prepare(experiment) for experiment in plain]
    _check_sites(plain, prepared)
    probers = [make_probers(e, rows, device)[0] for e, rows in zip(plain, prepared, strict=True)]
    _check_labels(plain, probers)
    model = GPT2.from_pretrained(
        plain[0].model.source, getattr(torch, plain[0].model.dtype), device
    )
    return [
        TransferSet(e.name, e, rows, prober, _reader(e, rows, model, cache_root, watcher))
        for e, rows, prober in zip(plain, prepared, probers, strict=True)
    ]


def _without_extras(experiment: Experiment) -> Experiment:
    """Return the experiment less what a transfer has no use for."""
    less = {"description": False, "learning_steps": 0}
    return experiment.model_copy(update={"probe": experiment.probe.model_copy(update=less)})


def _reader(
    experiment: Experiment,
    prepared: Prepared,
    model: Network,
    cache_root: Location | None,
    watcher: Watcher,
) -> FeatureReader:
    captured = capture_rows(
        experiment,
        prepared,
        model,
        cache_root=cache_root,
        step=f"capture {experiment.name}",
        watcher=watcher,
    )
    rows = prepared.positions[0].rows
    return FeatureReader.of(captured.store, rows, experiment, prepared.config)


def _check_names(experiments: Sequence[Experiment]) -> None:
    names = [experiment.name for experiment in experiments]
    if len(names) < 2:
        raise ConfigError(
            f"A transfer needs two experiments or more, but has {len(names)}: train on one, test "
            "on the others."
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"Two experiments have the name {twice[0]!r}. Give each file its own `name`, by which "
            "the tables tell them apart."
        )


def _check_alike(experiments: Sequence[Experiment]) -> None:
    first, *others = experiments
    sections = {"model", "tokens", "capture", "probe"}
    own = flat(first.model_dump(mode="json", include=sections))
    for other in others:
        found = flat(other.model_dump(mode="json", include=sections))
        differing = [
            f"{key}: {own[key]} in {first.name}, {found[key]} in {other.name}"
            for key in own
            if key not in _MAY_DIFFER and own[key] != found[key]
        ]
        if differing:
            raise ConfigError(
                "A probe transfers only between rows of one making, but the experiments differ:\n  "
                + "\n  ".join(differing)
                + "\nSet them alike, for instance with --set, which holds for all files."
            )


def _check_transferable(experiment: Experiment) -> None:
    """Refuse what gives more than one probe a site, or one that does not read rows."""
    with experiment.at("tokens", "sweep"):
        if experiment.tokens.sweep:
            raise ConfigError(
                f"A transfer reads one position, but {len(experiment.tokens.sweep)} offsets are "
                "listed. Give `--set tokens.sweep=[]`, and the position that is meant."
            )
    with experiment.at("split", "folds"):
        if experiment.split.folds is not None:
            raise ConfigError(
                "A transfer trains one probe a data set, but nested cross-validation trains "
                "several. Give `--set split.folds=null`."
            )
    for spec in experiment.probe.settings().kinds:
        if spec.task not in ("classification", "regression"):
            raise ConfigError(
                f"The kind {spec.text} reads whole texts or trees; only kinds that read rows are "
                "transferred. Name others with --kind, such as logistic."
            )


def _check_sites(experiments: Sequence[Experiment], prepared: Sequence[Prepared]) -> None:
    first, *others = [{selection.text for selection in rows.selections} for rows in prepared]
    for number, other in enumerate(others, start=1):
        only = [sorted(first - other), sorted(other - first)]
        told = [
            f"only {experiment.name} has {', '.join(sites[:5])}"
            + (f" and {len(sites) - 5} more" if len(sites) > 5 else "")
            for experiment, sites in zip((experiments[0], experiments[number]), only, strict=True)
            if sites
        ]
        if told:
            raise ConfigError(
                f"The experiments probe other sites: {'; '.join(told)}. Name sites for all of them "
                "with --site."
            )


def _check_labels(experiments: Sequence[Experiment], probers: Sequence[Prober]) -> None:
    if probers[0].settings.reads_numbers:
        return
    labels = [set(map(str, prober.data.classes)) for prober in probers]
    if any(own != labels[0] for own in labels):
        told = "\n  ".join(
            f"{experiment.name}: {', '.join(map(repr, sorted(own)[:20]))}"
            for experiment, own in zip(experiments, labels, strict=True)
        )
        raise DataError(
            "A probe can only say the labels it was trained on, but the data sets differ:\n  "
            f"{told}\nRename the labels in the data, or leave a data set out."
        )


@dataclass(frozen=True)
class SharedRows:
    """How many test rows of one set are known from the training rows of another.

    Attributes:
        texts: those whose text stands there, word by word.
        groups: those whose group stands there; None where groups of the two have no common names.
    """

    texts: int
    groups: int | None

    def told(self, train: str, test: str, n_test: int) -> list[str]:
        """Return a sentence for each way in which the sets share rows."""
        counts = (("the same text", self.texts), ("a group", self.groups or 0))
        return [
            f"{n:,} of {n_test:,} test rows of {test} have {what} that stands in the training rows "
            f"of {train}: there, {train} to {test} is no test of transfer."
            for what, n in counts
            if n
        ]


def find_leak(train: TransferSet, test: TransferSet) -> SharedRows:
    """Return how many test rows of one set are known from the training rows of another."""
    known_texts = set(train.train_texts)
    texts = sum(text in known_texts for text in test.test_texts)
    if not _name_groups_alike(train.experiment.data, test.experiment.data):
        return SharedRows(texts, None)
    own, known = (test.prober.data, train.prober.data)
    groups = np.isin(own.groups[test.prober.test_rows], known.groups[known.train])
    return SharedRows(texts, int(groups.sum()))


def _name_groups_alike(a: DataSection, b: DataSection) -> bool:
    """Return whether a group of one name is meant to be the same in both.

    Where no column names the groups they are numbers of rows, which are alike in one file alone.
    """
    files = ("root", "file", "train", "test")
    if all(getattr(a, key) == getattr(b, key) for key in files):
        return True
    return all(data.columns.group is not None and data.format != "conllu" for data in (a, b))
