"""Scores on test texts without cues, and without as many random other words: leakage.csv."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import LEVEL, counted, first_names
from probekit.chosen.leakage.section import SPANS, LeakageSection
from probekit.chosen.selected_probe import SelectedProbe
from probekit.data.examples import Example, Finding
from probekit.data.positions import IntArray
from probekit.data.table import read_text
from probekit.errors import DataError
from probekit.pipeline.engines.network import NetworkEngine
from probekit.pipeline.setup.texts import ReadTexts
from probekit.probes.fitters import RowPredictions
from probekit.probes.score.differences import Difference
from probekit.probes.score.exchange import ROUNDING
from probekit.probes.score.metric_table import METRICS, MetricFunction
from probekit.probes.score.metrics import Resamples, take
from probekit.probes.score.scored import joined, metrics_of, with_interval
from probekit.probes.solve.layers import FittedLayers

Span: TypeAlias = tuple[int, int]
_LETTERS = re.compile(r"\w+")

EXCHANGES = 1000  # of the variants of a text, for the p-value of the cues


def _cues_in(settings: LeakageSection, root: str) -> Callable[[Example], list[Span]]:
    """Return a function that returns the characters of each cue of an example."""
    if settings.drop == SPANS:
        return lambda example: [] if example.span is None else [example.span]
    pattern = cue_pattern(Path(root) / settings.drop)
    return lambda example: [match.span() for match in pattern.finditer(example.text)]


def texts(settings: LeakageSection, source: NetworkEngine) -> ReadTexts:
    """Return the test texts without their cues, then without other words, draw by draw.

    These are the texts that can be compared; the finding has their number.

    Raises:
        MissingError: the file of cues does not exist.
        DataError: it has no words, or none of them is in a test text that can be compared.
    """
    experiment, own = source.experiment, source.texts
    with experiment.at("leakage", "drop"):
        cues_in = _cues_in(settings, experiment.data.root)
        at, random = experiment.tokens.position.at, np.random.default_rng(experiment.probe.seed)
        test = source.design.splits[0].test
        n_with_cues, variants_of = 0, dict[int, list[Example]]()  # all variants of each text
        for index, row in enumerate(test):
            number = own.example[row]
            example = own.dataset.examples[number]
            span = example.span if at in ("span", "word") else None
            cues = cues_in(example)
            if not cues:
                continue
            n_with_cues += 1
            characters = own.tokens[number].offsets[_tokens_read(own, row)]
            ends = [*characters.flatten().tolist(), *(span or ())]
            probed = None if at == "mean" else (min(ends), max(ends))
            variants = list[Example]()
            for ranges in dropped_ranges(example.text, cues, probed, settings.draws, random):
                text, moved = without(example.text, ranges, span)
                variants.append(replace(example, text=text, span=moved))
            if variants:
                variants_of[index] = variants

        def planned() -> ReadTexts:
            """Return all texts without cues, then all texts in each draw."""
            examples = tuple(chain.from_iterable(zip(*variants_of.values(), strict=True)))
            further = source.reader.read(replace(own.dataset, examples=examples))
            assert len(further.example) == len(examples), "a shorter text has a row, too"
            return further

        further, n_texts = planned() if variants_of else own, len(variants_of)
        for place, index in enumerate([*variants_of] if at != "mean" else []):
            of_variants = range(place, n_texts * (1 + settings.draws), n_texts)
            read_ids = [_ids_read(further, one) for one in of_variants]
            if any(ids != _ids_read(own, test[index]) for ids in read_ids):
                del variants_of[index]
        message = (
            f"{len(variants_of):,} of {counted(len(test), 'test text')} have cues that can be "
            f"dropped; {n_with_cues - len(variants_of):,} more are not compared, because a cue is "
            "at the probed token, the token would change, or there are too few other words."
        )
        if not variants_of:
            raise DataError(f"{message} Give other cues, or probe another position.")
        further = further if len(variants_of) == n_texts else planned()
        return replace(further, findings=(Finding("info", "leakage", message),))


def _tokens_read(texts: ReadTexts, row: int) -> IntArray:
    """Return the numbers of the tokens that a row reads, at all positions together."""
    # The row of each position reads a range of tokens; see `interleave`.
    n = (len(texts.plan.offsets) - 1) // len(texts.example)
    first, stop = texts.plan.offsets[[row * n, (row + 1) * n]]
    return texts.plan.positions[first:stop]


def _ids_read(texts: ReadTexts, row: int) -> list[int]:
    """Return the ids of the tokens that a row reads."""
    ids = texts.tokens[texts.example[row]].ids
    return [int(ids[place]) for place in _tokens_read(texts, row)]


def tables(settings: LeakageSection, chosen: SelectedProbe) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of leakage.csv.

    The probe is not fitted again, and its scores of texts without cues do not change.
    """
    dropped, X = chosen.further("dropped")
    prober, probe, spec = chosen.prober, chosen.saved, chosen.spec
    assert probe is not None
    fit = FittedLayers(np.searchsorted(prober.data.classes, probe.classes), probe.layers)
    n_classes, tested = len(prober.data.classes), prober.rows_of(spec.text)
    fitted, truth = prober.saved_rows, prober.truth_of(spec.text)
    # Indices among the test rows: of the texts that were changed, and of others with cues.
    design, cues_in = chosen.source.design, _cues_in(settings, chosen.source.experiment.data.root)
    examples = [design.dataset.examples[number] for number in design.example[tested]]
    names = {one.id for one in dropped.dataset.examples}
    changed = [n for n, one in enumerate(examples) if one.id in names]
    left_out = [n for n, one in enumerate(examples) if cues_in(one) and one.id not in names]
    # The scores (n_test, n_classes) of the texts as they are, without cues, and in each draw.
    scores = [fit.outputs(chosen.features.select(tested), n_classes)]
    for of_variant in fit.outputs(X, n_classes).reshape(-1, len(changed), n_classes):
        scores.append(scores[0].copy())
        scores[-1][changed] = of_variant
    compared = np.delete(np.arange(len(tested)), left_out)
    whole, without_cues, *random = (
        take(fitted.predictions(spec, truth, one, fitted.column), compared) for one in scores
    )
    words = Counter(
        shorten(one.text[slice(*cue)].lower(), 40, placeholder=" …")
        for n in changed
        for one in [examples[n]]
        for cue in cues_in(one)
    )
    counts: dict[str, Any] = {"cues": first_names([word for word, _ in words.most_common()])}
    counts |= {"n_draws": len(random), "n_changed": len(changed)}
    counts |= {"n_test": len(compared), "n_left_out": len(left_out)}
    groups = prober.data.groups[tested[compared]]
    found = leakage_rows(whole, without_cues, random, groups, prober.main_metric)
    return {"leakage.csv": [row | counts for row in found]}


def leakage_rows(
    whole: RowPredictions,
    without_cues: RowPredictions,
    random: Sequence[RowPredictions],
    groups: NDArray[np.generic],
    main_metric: str,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of leakage.csv, without counts: main metric, accuracy and AUROC.

    The main metric is left out if it needs a threshold. Only its difference has a p-value. P-values
    and limits come from exchanges of the variants of a text, group by group.

    Args:
        whole: predictions of the compared texts as they are.
        without_cues: those without cues.
        random: those of each draw, without as many other words.
        groups: groups of the texts, shape (n_compared,).
        main_metric: name of the main metric.
    """
    texts = {"value": [whole], "without_cues": [without_cues], "without_others": random}
    resamples = Resamples.leave_one_out(groups)
    for metric in dict.fromkeys((main_metric, "accuracy", "auroc")):
        row: dict[str, Any] = {"metric": metric}
        function = metrics_of(whole).get(metric)
        for name, several in texts.items() if function else ():
            score = with_interval(metric, several, resamples)
            row |= {name: score.value, f"{name}_low": score.low, f"{name}_high": score.high}
        if function is None or np.isnan(row["value"]):
            continue
        found = _exchanged(function, [without_cues, *random], groups).within(METRICS[metric].range)
        row |= {"difference": found.value, "difference_low": found.ci_low}
        row |= {"difference_high": found.ci_high, "p": found.p if metric == main_metric else None}
        yield row


def _exchanged(
    metric: MetricFunction, variants: Sequence[RowPredictions], groups: NDArray[np.generic]
) -> Difference:
    """Return the score of the first variant of each text, minus the mean score of the others.

    If dropping cues changes a text as dropping other words does, any variant of the texts of a
    group may be the one without cues. Each arrangement exchanges them group by group and has such a
    difference. The interval is the observed difference plus and minus the 95 % quantile of the
    absolute differences over the arrangements.
    """
    n_rows, n = len(groups), len(variants)
    rows: Any = joined(variants)  # the rows of all variants, one after the other
    names, codes = np.unique(groups, return_inverse=True)
    # All variants are moved on by 1 to n - 1, too, so that the others of each one are scored.
    first = np.random.default_rng(0).integers(n, size=(EXCHANGES // n, len(names)))
    first[0] = 0  # the variants as they are
    chosen = (first[:, None] + np.arange(n)[:, None]) % n  # (n_draws, n, n_groups)

    def score(variant: NDArray[np.int64]) -> float:
        """Return the score of these variants (n_groups,) of the texts of each group."""
        drawn = take(rows, variant[codes] * n_rows + np.arange(n_rows))
        return float(metric(replace(drawn, folds=None), Resamples.whole(n_rows))[0])

    scores = np.apply_along_axis(score, 2, chosen)  # (n_draws, n)
    apart = np.abs(n * scores - scores.sum(axis=1, keepdims=True)).ravel() / (n - 1)
    a, b = float(scores[0, 0]), float(scores[0, 1:].mean())
    p = float((apart >= apart[0] - ROUNDING).mean())
    # Fewer than 5 % of the arrangements are further apart, so that p < 0.05 if 0 is excluded.
    margin = float(np.sort(apart)[-int(np.ceil(LEVEL * len(apart) - ROUNDING))])
    return Difference(a, b, a - b, a - b - margin, a - b + margin, p, p)


def cue_pattern(path: Path) -> re.Pattern[str]:
    """Return the pattern of the words and phrases of a file, one in each line, in any case.

    Blank lines and lines that begin with # are ignored.

    Raises:
        MissingError: the file does not exist.
        DataError: the file has no words, or is not UTF-8.
    """
    lines = [line.split() for line in read_text(path).splitlines()]
    phrases = [line for line in lines if line and not line[0].startswith("#")]
    if not phrases:
        raise DataError(f"{path} has no words. Write one word or phrase in each line.")
    patterns = []
    for words in phrases:  # words match as a whole, but punctuation also next to letters
        before = r"(?<!\w)" if re.match(r"\w", words[0]) else ""
        after = r"(?!\w)" if re.search(r"\w$", words[-1]) else ""
        patterns.append(before + r"\s+".join(map(re.escape, words)) + after)
    # Where one phrase begins with another, the longer one is dropped.
    return re.compile("|".join(sorted(patterns, key=len, reverse=True)), re.IGNORECASE)


def without(text: str, dropped: Sequence[Span], span: Span | None) -> tuple[str, Span | None]:
    """Return a text without some ranges, and its span, at the same characters as before.

    One space is dropped with each range: the one before it, or without one, the one after it.

    Args:
        text: the text.
        dropped: the ranges, which do not overlap each other or the span.
        span: the span; None without one.

    >>> without("It is not a key, never.", [(6, 9), (17, 22)], (12, 15))
    ('It is a key,.', (8, 11))
    """
    for start, end in sorted(dropped, reverse=True):  # so that the earlier ranges stay in place
        has_space = text.endswith(" ", 0, start)
        first, last = start - has_space, end + (not has_space and text.startswith(" ", end))
        text = text[:first] + text[last:]
        if span is not None:
            begin, stop = (one - min(max(one - first, 0), last - first) for one in span)
            span = begin, stop
    return text, span


def dropped_ranges(
    text: str, cues: Sequence[Span], read: Span | None, draws: int, random: np.random.Generator
) -> list[list[Span]]:
    """Return the ranges to drop from a text: its cues, then in each draw as many other words.

    Empty if a cue is in the characters that the probe reads, or if there are too few other words.

    Args:
        text: the text.
        cues: the ranges of its cues, at least one.
        read: characters that the probe reads, which stay in the text; None if it reads all of it.
        draws: number of draws.
        random: generator of the draws.
    """
    kept = [*cues] if read is None else [*cues, read]
    words = [match.span() for match in _LETTERS.finditer(text)]
    others = [word for word in words if not any(_overlap(word, one) for one in kept)]
    # A cue of several words counts as so many; one without letters and digits counts as a word.
    n_words = sum(max(1, len(_LETTERS.findall(text[start:end]))) for start, end in cues)
    if len(others) < n_words or (read is not None and any(_overlap(one, read) for one in cues)):
        return []
    picked = [random.choice(len(others), n_words, replace=False) for _ in range(draws)]
    return [[*cues], *([others[number] for number in draw] for draw in picked)]


def _overlap(a: Span, b: Span) -> bool:
    return a[0] < b[1] and b[0] < a[1]
