"""Thresholds of the selected probe from negatives of their own: monitor.csv and probes/monitor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from probekit.amounts import counted
from probekit.chosen.monitor.section import MonitorSection
from probekit.chosen.monitor.thresholds import check_groups, monitor_rows
from probekit.data.examples import Finding
from probekit.data.labels import appearance, check_names, folded
from probekit.errors import ConfigError, DataError
from probekit.experiment.data import read_negatives
from probekit.lazy_rows import Floats, LazyRows
from probekit.pipeline.engines.network import NetworkEngine
from probekit.pipeline.measure.selected_probe import SelectedProbe
from probekit.pipeline.setup.design import Probed
from probekit.pipeline.setup.texts import ReadTexts
from probekit.probes.aggregation import GroupedTokens, text_sides
from probekit.probes.probe_files import AlarmThreshold
from probekit.probes.prober import Prober
from probekit.probes.saved_probe import SavedProbe
from probekit.probes.score.metrics import ClassPredictions, class_scores
from probekit.probes.score.scored import SiteResult
from probekit.probes.settings import ProbeSpec
from probekit.probes.solve.layers import FittedLayers

if TYPE_CHECKING:
    from probekit.pipeline.compare.transfer import TransferSet

MONITOR = "probes/monitor"  # the chosen probe with the thresholds of a monitor


def texts(settings: MonitorSection, source: NetworkEngine) -> ReadTexts:
    """Return the negatives, without texts and groups that are in the data.

    Of texts that look the same the first one is used. The findings are about the negatives alone.

    Raises:
        MissingError: the file does not exist.
        ConfigError: a column does not exist, or no class is detected.
        DataError: the file cannot be read, tokenized or aligned, or has too few groups for a rate.
    """
    experiment, own, read = source.experiment, source.texts.dataset, source.reader.read
    with experiment.at("monitor"):
        if experiment.data.positive is None and len(set(own.labels)) != 2:
            raise ConfigError("a monitor detects one of two classes; name it in `data.positive`.")
        dataset = read_negatives(experiment.data, settings.negatives, settings.format)
        n_read, found = len(dataset), read(dataset)
        # A text that looks like an earlier one is not new, nor is a known group.
        known = {appearance(example.text) for example in own.examples}
        has_groups = experiment.data.columns.group is not None
        known_groups, new = set(map(folded, own.groups)) if has_groups else set(), []
        for index, one in enumerate(found.dataset.examples):
            text = appearance(one.text)
            if text not in known and folded(one.group) not in known_groups:
                new.append(index)
                known.add(text)
        if not new:
            raise DataError(f"all texts or groups of {settings.negatives} are among the data.")
        n_known = len(found.dataset) - len(new)
        if n_known:
            found = read(found.dataset.select(new))
        n_left, findings = len(found.dataset), [*found.findings]
        if n_left < n_read:
            message = (
                f"{n_read - n_left:,} of {counted(n_read, 'negative')} are not used: {n_known:,} "
                "because their text or group is among the data, or their text occurs before."
            )
            findings.append(Finding("info", "negatives", " ".join([message, *found.dataset.notes])))
        findings.extend(check_names("group", found.dataset))
        for fpr in settings.fpr:
            check_groups(found.groups, fpr)
    return replace(found, findings=tuple(findings))


def tables(settings: MonitorSection, chosen: SelectedProbe) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of monitor.csv, and save the selected probe with its thresholds."""
    negatives, of_negatives = chosen.further("negatives")
    prober, probe, tested = chosen.prober, chosen.saved, chosen.prober.test_rows
    positive = prober.positive
    assert probe is not None
    assert positive is not None  # of two labels it is the rarer one
    groups, X = negatives.groups, chosen.features
    if probe.facts.aggregation is None:
        texts_of_negatives, texts_of_test, X = None, None, X.select(tested)
    else:
        texts_of_negatives = GroupedTokens.of(np.arange(len(groups)), negatives.example)
        groups, (_, texts_of_test) = groups[texts_of_negatives.first], text_sides(prober)[0]
    rows = list(
        monitor_rows(
            settings.fpr,
            detections(probe, positive, of_negatives, texts_of_negatives),
            groups,
            detections(probe, positive, X, texts_of_test),
            prober.data.y[tested] == positive,
            prober.resamples_of(chosen.spec.text),
        )
    )
    thresholds = tuple(
        AlarmThreshold(**{name: row[name] for name in AlarmThreshold.model_fields}) for row in rows
    )
    facts = probe.facts.model_copy(update={"positive": positive, "thresholds": thresholds})
    chosen.save(replace(probe, facts=facts), MONITOR)
    return {"monitor.csv": rows}


def detections(probe: SavedProbe, label: str, X: LazyRows, texts: GroupedTokens | None) -> Floats:
    """Return the scores for a label of all rows X, or of some texts (n_texts,).

    Args:
        probe: the probe.
        label: one of its labels.
        X: rows (n_samples, n_features).
        texts: the rows of each text, for an aggregated probe; None for probes of rows.
    """
    if texts is None:
        parts = [probe.for_class(label, probe.scores(block)) for _, block in X.blocks()]
        return np.concatenate(parts)
    rows = texts.rows[np.argsort(texts.example_of_row, kind="stable")]
    of_texts = np.split(rows, np.cumsum(np.bincount(texts.example_of_row))[:-1])
    return np.array([probe.for_class(label, probe.scores(X[one]))[-1] for one in of_texts])


def transferred(
    sets: Sequence[TransferSet],
    X: Sequence[LazyRows],
    results: Sequence[SiteResult],
    spec: ProbeSpec,
    site: Probed,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each training set with a monitor, test set and rate.

    X are the rows of all sets at the site.
    """
    for train, result in zip(sets, results, strict=False):
        prober, fit = train.prober, result.fits[spec.text]
        settings = train.source.experiment.monitor
        if settings is None:
            continue
        negatives, X_negatives = train.source.further["negatives"], train.further["negatives"]
        positive = sets[0].prober.positive
        assert positive is not None  # of two labels it is the rarer one
        code = list(prober.data.classes).index(positive)

        def detected(
            X: LazyRows, prober: Prober = prober, fit: FittedLayers = fit, code: int = code
        ) -> Floats:
            """Return the scores (n_samples,) for the positive class of the first set."""
            scores = fit.outputs(X, len(prober.data.classes))
            unknown = np.zeros(len(scores), dtype=np.int64)
            return class_scores(ClassPredictions.of_scores(unknown, scores, spec.logits), code)

        of_negatives = detected(X_negatives.block(site))
        for test, x in zip(sets, X, strict=True):
            tested = test.prober
            rows = monitor_rows(
                settings.fpr,
                of_negatives,
                negatives.groups,
                detected(x.select(tested.test_rows)),
                tested.data.y[tested.test_rows] == positive,
                tested.resamples_of(spec.text),
            )
            yield from ({"train": train.name, "test": test.name} | row for row in rows)
