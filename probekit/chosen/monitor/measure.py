"""Thresholds of the selected probe from negatives of their own: monitor.csv and probes/monitor.

negatives.csv   score and group of each negative, or of its text if the probe reads texts

The false positive rate of a threshold is the probability that a row of a new group has a higher
score, where each group counts once, whatever its number of rows. Its estimate is the mean over the
groups of negatives of the share of their rows, and its upper bound that of Clopper and Pearson for
as many draws as there are groups. All rows of a group may raise an alarm together, and a kind of
group may be absent from the negatives: whatever the number of rows, n groups cannot bound a rate
below 1 - 0.05^(1 / n).

The threshold is the lowest at which the bound is at most the requested rate. The bound falls as the
threshold rises, so that this choice keeps its level. For rows without groups the rate exceeds the
bound in exactly 5 % of draws, for groups in at most as many, simulated by
`python -m benchmarks.claims --part monitors`.

Source: Clopper and Pearson (1934), The use of confidence or fiducial limits illustrated in the case
of the binomial; Hoeffding (1956), On the distribution of the number of successes in independent
trials; Bates et al. (2021), Distribution-free, risk-controlling prediction sets (thresholds).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from probekit.amounts import LEVEL, counted
from probekit.chosen.monitor.section import MonitorSection
from probekit.chosen.selected_probe import SelectedProbe, rates_at
from probekit.data.examples import Finding
from probekit.data.labels import appearance, check_names, folded
from probekit.errors import ConfigError, DataError
from probekit.experiment.data import read_sources
from probekit.lazy_rows import Floats, LazyRows, Mask
from probekit.pipeline.engines.network import NetworkEngine
from probekit.pipeline.setup.design import Probed
from probekit.pipeline.setup.texts import ReadTexts
from probekit.probes.aggregation import GroupedTokens, text_sides
from probekit.probes.probe_files import AlarmThreshold
from probekit.probes.saved_probe import SavedProbe
from probekit.probes.score.metrics import ClassPredictions, Resamples, class_scores
from probekit.probes.score.scored import SiteResult
from probekit.probes.settings import ProbeSpec

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
        # Its labels have no meaning; it needs no columns of labels, ids and splits.
        data, file = experiment.data, Path(settings.negatives)
        columns = dict.fromkeys(("label", "id", "split"))
        changes = {
            "columns": data.columns.model_copy(update=columns),
            **{"name": file.stem, "format": settings.format, "pairs": None},
        }
        dataset = read_sources(data.model_copy(update=changes), {"": Path(data.root) / file}, ())
        dataset = experiment.tokens.asked_of(dataset)
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


def tables(settings: MonitorSection, chosen: SelectedProbe) -> dict[str, Any]:
    """Return thresholds and scores of negatives, and save the selected probe with thresholds."""
    negatives, X_negatives = chosen.further("negatives")
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
    of_negatives = detections(probe, positive, X_negatives, texts_of_negatives)
    of_test, is_positive = detections(probe, positive, X, texts_of_test), prober.data.y[tested]
    how = groups, of_test, is_positive == positive, prober.resamples_of(chosen.spec.text)
    rows = list(monitor_rows(settings.fpr, of_negatives, *how))
    fields = AlarmThreshold.model_fields
    thresholds = tuple(AlarmThreshold(**{name: row[name] for name in fields}) for row in rows)
    facts = probe.facts.model_copy(update={"positive": positive, "thresholds": thresholds})
    chosen.save(replace(probe, facts=facts), MONITOR)
    scored = pd.DataFrame({"score": of_negatives, "group": groups})
    return {"monitor.csv": rows, "negatives.csv": scored}


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
        classes = list(prober.data.classes)
        tested = [x.select(test.prober.test_rows) for x, test in zip(X, sets, strict=True)]
        # The scores of the negatives, then of the test rows of each set, for the positive class.
        detected = []
        for block in (X_negatives.block(site), *tested):
            scores = fit.outputs(block, len(classes))
            unknown = np.zeros(len(scores), dtype=np.int64)
            predictions = ClassPredictions.of_scores(unknown, scores, spec.logits)
            detected.append(class_scores(predictions, classes.index(positive)))
        for test, of_test in zip(sets, detected[1:], strict=True):
            is_positive = test.prober.data.y[test.prober.test_rows] == positive
            resamples = test.prober.resamples_of(spec.text)
            how = negatives.groups, of_test, is_positive, resamples
            rows = monitor_rows(settings.fpr, detected[0], *how)
            yield from ({"train": train.name, "test": test.name} | row for row in rows)


def upper_bound(share: Any, n_groups: int) -> Any:
    """Return the upper 95 % bound of a rate, given the mean share over groups.

    >>> round(float(upper_bound(0.0, 299)), 4), round(float(upper_bound(0.01, 1000)), 4)
    (0.01, 0.0169)
    """
    hits = n_groups * np.asarray(share)
    return scipy.stats.beta.isf(LEVEL, hits + 1, n_groups - hits)


def groups_needed(fpr: float) -> int:
    """Return the smallest number of groups that can bound a rate.

    >>> groups_needed(0.01), groups_needed(0.001)
    (299, 2995)
    """
    return math.ceil(math.log(LEVEL) / math.log1p(-fpr))


def check_groups(groups: NDArray[Any], fpr: float) -> None:
    """Raise DataError if the groups (n_negatives,) of negatives are too few to bound a rate."""
    n_groups = len(np.unique(groups))
    if n_groups < groups_needed(fpr):
        lowest = math.ceil(1e4 * float(upper_bound(0.0, n_groups))) / 1e4
        unit = "negatives" if n_groups == len(groups) else "groups of negatives"
        rows = "" if n_groups == len(groups) else f" with {counted(len(groups), 'row')}"
        raise DataError(
            f"a false positive rate of {fpr:g} needs at least {groups_needed(fpr):,} {unit}, but "
            f"there are {n_groups:,}{rows}. Add {unit}, or request a rate of at least {lowest:g}."
        )


def fixed_threshold(negatives: Floats, groups: NDArray[Any], fpr: float) -> tuple[float, float]:
    """Return the lowest threshold whose bound is at most `fpr`, and the bound.

    A row raises an alarm if its score exceeds the threshold. Of tied scores at the threshold none
    does, so that fewer negatives than the bound allows may raise one.

    Args:
        negatives: scores of the negatives for the positive class, shape (n_negatives,).
        groups: their groups, shape (n_negatives,).
        fpr: the false positive rate.

    Raises:
        DataError: there are too few groups.

    >>> threshold, bound = fixed_threshold(np.arange(1000.0), np.arange(1000), 0.01)
    >>> threshold, round(bound, 4)
    (995.0, 0.0091)
    """
    check_groups(groups, fpr)
    _, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(-negatives, kind="stable")
    # The mean over groups of the share of rows above each row, in descending order of scores.
    shares = np.cumsum(1 / (len(sizes) * sizes[codes[order]]))
    shares = np.concatenate([[0.0], shares[shares < fpr]])
    bounds = upper_bound(shares, len(sizes))
    n_above = int(np.flatnonzero(bounds <= fpr)[-1])
    return float(negatives[order[n_above]]), float(bounds[n_above])


def monitor_rows(
    rates: Sequence[float],
    negatives: Floats,
    groups: NDArray[Any],
    tested: Floats,
    is_positive: Mask,
    resamples: Resamples,
) -> Iterator[dict[str, Any]]:
    """Yield a row of monitor.csv for each rate: its threshold, and the rates on test rows.

    Args:
        rates: requested false positive rates.
        negatives: scores of the negatives for the positive class, shape (n_negatives,).
        groups: their groups, shape (n_negatives,).
        tested: scores of the test rows, shape (n_test,).
        is_positive: which test rows are of the positive class, shape (n_test,).
        resamples: resamples of the test rows.

    Raises:
        DataError: there are too few groups of negatives for a rate.
    """
    for fpr in rates:
        threshold, bound = fixed_threshold(negatives, groups, fpr)
        row = {"fpr": fpr, "threshold": threshold}
        row["false_positives"] = int((negatives > threshold).sum())
        row |= {"n_negatives": len(negatives), "n_groups": len(np.unique(groups))}
        row |= {"fpr_bound": bound, "n_positive": int(is_positive.sum())}
        row["n_test_negative"] = int((~is_positive).sum())
        yield row | rates_at(threshold, tested, is_positive, resamples)
