"""The data sets of a transfer experiment: checks, capture, and detection of shared rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from probekit.activations.capture import fill
from probekit.activations.local import default_root
from probekit.activations.records import Location
from probekit.errors import ConfigError, DataError
from probekit.experiment.data import DataSection
from probekit.experiment.schema import Experiment
from probekit.model.families.table import load_model
from probekit.model.network import Network
from probekit.pipeline.capture.jobs import begin_work
from probekit.pipeline.experiment.prepare import TextRows, prepare
from probekit.pipeline.experiment.source import TASK, Models, ModelSource
from probekit.pipeline.measure.probing import make_probers
from probekit.probes.prober import Prober
from probekit.probes.score.metric_table import METRICS, Family, metric_functions
from probekit.products import check_device
from probekit.results.finished_run import flat
from probekit.terminal import Watcher

# Settings that do not affect the transfer, or whose effect is compared instead of their spelling.
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

# What predictions for another data set contain besides the predicted classes; see `Metric.needs`.
TRANSFERRED = frozenset({"scores"})


@dataclass(frozen=True, eq=False)
class TransferSet:
    """A data set for training and testing.

    Attributes:
        name: name of its experiment.
        experiment: settings for reading, splitting and probing.
        source: its rows and their activations.
        prober: fits and scores probes on the rows.
    """

    name: str
    experiment: Experiment
    source: ModelSource
    prober: Prober


def make_sets(
    experiments: Sequence[Experiment],
    *,
    cache_root: Location | None,
    device: str,
    watcher: Watcher,
) -> list[TransferSet]:
    """Return the data sets of experiments with their activations, captured if not cached.

    Raises:
        ConfigError: There are fewer than two experiments, two have the same name, or they differ in
            model, tokens, sites or probes.
        DataError: Their labels differ, or the data cannot be read.
    """
    _check_names(experiments)
    _check_alike(experiments)
    for experiment in experiments:
        _check_transferable(experiment)
    check_device(device)
    # A transfer does not use these measurements.
    unused = {"description": False, "learning_steps": 0}
    plain = [
        one.model_copy(update={"probe": one.probe.model_copy(update=unused)}) for one in experiments
    ]
    prepared = [prepare(experiment) for experiment in plain]
    _check_sites(plain, prepared)
    probers = [make_probers(e, rows, device)[0] for e, rows in zip(plain, prepared, strict=True)]
    _check_labels(plain, probers)
    model = load_model(plain[0].model.source, getattr(torch, plain[0].model.dtype), device)
    return [
        TransferSet(e.name, e, _source(e, rows, model, cache_root, watcher), prober)
        for e, rows, prober in zip(plain, prepared, probers, strict=True)
    ]


def _source(
    experiment: Experiment,
    prepared: TextRows,
    model: Network,
    cache_root: Location | None,
    watcher: Watcher,
) -> ModelSource:
    root = default_root() if cache_root is None else cache_root
    work = begin_work(experiment, prepared, model, root)
    captured = fill(work, root, step=f"capture {experiment.name}", watcher=watcher)
    models = Models(experiment, str(model.device), {TASK: model})
    return ModelSource(
        experiment=experiment, rows=prepared, models=models, captured={TASK: captured}
    )


def _check_names(experiments: Sequence[Experiment]) -> None:
    names = [experiment.name for experiment in experiments]
    if len(names) < 2:
        raise ConfigError(
            f"A transfer needs at least two experiments, but {len(names)} was given: it trains on "
            "one and tests on the others."
        )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(
            f"Two experiments have the name {repeated[0]!r}. Give each file its own `name`, which "
            "identifies it in the tables."
        )


def _check_alike(experiments: Sequence[Experiment]) -> None:
    first, *others = experiments
    sections = {"model", "tokens", "capture", "probe"}
    own = flat(first.model_dump(mode="json", include=sections))
    for other in others:
        others_own = flat(other.model_dump(mode="json", include=sections))
        differing = [
            f"{key}: {own[key]} in {first.name}, {others_own[key]} in {other.name}"
            for key in own
            if key not in _MAY_DIFFER and own[key] != others_own[key]
        ]
        if differing:
            raise ConfigError(
                "A transfer requires experiments that differ only in their data, but these differ "
                "in:\n  "
                + "\n  ".join(differing)
                + "\nGive them the same values, for instance with --set for all files."
            )


def _check_transferable(experiment: Experiment) -> None:
    """Raise ConfigError for settings that a transfer does not support."""
    with experiment.at("tokens", "sweep"):
        if experiment.tokens.sweep:
            raise ConfigError(
                f"A transfer requires a single position, but the sweep has "
                f"{len(experiment.tokens.sweep)} offsets. Use `--set tokens.sweep=[]` and set the "
                "position."
            )
    with experiment.at("split", "folds"):
        if experiment.split.folds is not None:
            raise ConfigError(
                "A transfer trains one probe per data set, but nested cross-validation trains "
                "several. Use `--set split.folds=null`."
            )
    for spec in experiment.probe.settings().kinds:
        if spec.task not in ("classification", "regression"):
            raise ConfigError(
                f"The kind {spec.text} reads whole texts or trees; a transfer supports only kinds "
                "that read rows. Choose others with --kind, such as logistic."
            )
    _check_metric(experiment)


def _check_metric(experiment: Experiment) -> None:
    """Raise ConfigError unless probes of another data set have the main metric."""
    settings = experiment.probe.settings()
    family: Family = "number" if settings.reads_numbers else "class"
    metric = METRICS[settings.main_metric]
    if not metric.fits(family, TRANSFERRED):
        fitted = "thresholds" if metric.needs == "alarms" else metric.needs
        allowed = [name for name in metric_functions(family, TRANSFERRED) if METRICS[name].selects]
        with experiment.at("probe", "metric"):
            raise ConfigError(
                f"A transfer has no {metric.title}: its {fitted} are fitted on one data set and do "
                "not apply to another. Use `--set probe.metric=null`, or one of these metrics: "
                f"{', '.join(allowed)}."
            )


def _check_sites(experiments: Sequence[Experiment], prepared: Sequence[TextRows]) -> None:
    first, *others = [{selection.text for selection in rows.selections} for rows in prepared]
    for number, other in enumerate(others, start=1):
        only = [sorted(first - other), sorted(other - first)]
        lists = [
            f"only {experiment.name} has {', '.join(sites[:5])}"
            + (f" and {len(sites) - 5} more" if len(sites) > 5 else "")
            for experiment, sites in zip((experiments[0], experiments[number]), only, strict=True)
            if sites
        ]
        if lists:
            raise ConfigError(
                f"The experiments probe different sites: {'; '.join(lists)}. Set the sites of all "
                "experiments with --site."
            )


def _check_labels(experiments: Sequence[Experiment], probers: Sequence[Prober]) -> None:
    if probers[0].settings.reads_numbers:
        return
    labels = [set(map(str, prober.data.classes)) for prober in probers]
    if any(own != labels[0] for own in labels):
        lists = "\n  ".join(
            f"{experiment.name}: {', '.join(map(repr, sorted(own)[:20]))}"
            for experiment, own in zip(experiments, labels, strict=True)
        )
        raise DataError(
            "A probe can only predict the labels it was trained on, but the labels differ:\n  "
            f"{lists}\nRename the labels in the data, or remove a data set."
        )


@dataclass(frozen=True)
class SharedRows:
    """Number of test rows of one set that also occur in the training rows of another.

    Attributes:
        texts: rows with an identical text.
        groups: rows with the same group; None if group names of the two sets are not comparable.
        n_test: number of test rows.
    """

    texts: int
    groups: int | None
    n_test: int

    def warnings(self, train: str, test: str) -> list[str]:
        """Return a sentence for each kind of overlap between the sets."""
        counts = (("repeat a text", self.texts), ("are in a group", self.groups or 0))
        return [
            f"Test rows of {test} that {what} of the training rows of {train}: {n:,} of "
            f"{self.n_test:,}. On these rows, {train} to {test} does not test transfer."
            for what, n in counts
            if n
        ]


def find_leak(train: TransferSet, test: TransferSet) -> SharedRows:
    """Return the number of test rows of one set that also occur in the training rows of another."""
    known_texts = set(train.source.rows.texts[train.prober.data.train])
    tested = test.prober.test_rows
    texts = sum(text in known_texts for text in test.source.rows.texts[tested])
    groups = None
    if _name_groups_alike(train.experiment.data, test.experiment.data):
        own, known = test.prober.data, train.prober.data
        groups = int(np.isin(own.groups[tested], known.groups[known.train]).sum())
    return SharedRows(texts, groups, len(tested))


def _name_groups_alike(a: DataSection, b: DataSection) -> bool:
    """Return whether equal group names mean the same group in both data sets.

    Without a group column, the groups are row numbers, which are comparable only within a table.
    """
    sources = ("root", "file", "train", "test", "hub", "memory")
    if all(getattr(a, key) == getattr(b, key) for key in sources):
        return True
    return all(data.columns.group is not None and not data.has_words for data in (a, b))
