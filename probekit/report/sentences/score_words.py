"""Scores in sentences: percentages, or values with the name of their metric."""

from __future__ import annotations

import math

import pandas as pd

from probekit.probes.score.metric_table import METRICS
from probekit.report.figures.levels import chance_name
from probekit.report.figures.style import LEVELS, fixed, format_p
from probekit.report.sentences.words import unit_of

MOST_PLACES = 6


def score_words(row: pd.Series) -> tuple[str, str]:
    """Return a score with its interval, and its chance level, as parts of a sentence.

    Args:
        row: a row of results.csv. An unknown chance level gives "".

    >>> row = {"metric": "accuracy", "probe": "logistic", "value": 0.9352, "chance": 0.5}
    >>> score_words(pd.Series(row | {"ci_low": 0.9, "ci_high": 0.966}))
    ('94 % [90, 97] of held-out rows', 'chance 50 %')
    >>> score_words(pd.Series(row | {"metric": "auroc", "ci_low": math.nan, "ci_high": math.nan}))
    ('AUROC 0.94 on held-out rows', 'chance 0.50')
    """
    metric, chance = METRICS[row["metric"]], float(row["chance"])
    scale, unit = (100, " %") if metric.in_percent else (1, "")
    numbers = [scale * float(row[name]) for name in ("value", "ci_low", "ci_high", "chance")]
    value, low, high, level = _texts(numbers, 0 if metric.in_percent else 2)
    interval = "" if math.isnan(row["ci_low"]) else f" [{low}, {high}]"
    direction = " (lower is better)" * metric.lower_is_better
    template = metric.sentence or f"{metric.title} {{score}} on held-out {{unit}}"
    rows = row.to_frame().T
    words = template.format(score=f"{value}{unit}{interval}", unit=unit_of(rows)) + direction
    name = "mean label" if metric.beats_the_mean else LEVELS[chance_name(rows)].label
    return words, "" if math.isnan(chance) else f"{name} {level}{unit}"


def range_words(rows: pd.DataFrame) -> tuple[str, str]:
    """Return the range of the scores of one metric over several sites, and the chance level.

    >>> rows = pd.DataFrame({"metric": "uuas", "value": [0.4, 0.62], "chance": 0.48})
    >>> range_words(rows.assign(probe="structural_distance:64"))
    ('UUAS 0.40 to 0.62', 'linear chain 0.48')
    """
    metric, chance = METRICS[rows["metric"].iloc[0]], rows["chance"].iloc[0]
    scale, unit = (100, " %") if metric.in_percent else (1, "")
    numbers = [scale * number for number in (rows["value"].min(), rows["value"].max(), chance)]
    low, high, level = _texts(numbers, 0 if metric.in_percent else 2)
    ends = f"{low}{unit}" + ("" if low == high else f" to {high}{unit}")
    name = LEVELS[chance_name(rows)].label
    return f"{metric.title} {ends}", "" if math.isnan(chance) else f"{name} {level}{unit}"


def p_words(p: float) -> str:
    """Return a p-value with its name.

    >>> p_words(0.0002), p_words(0.0419)
    ('p < 0.001', 'p = 0.042')
    """
    text = format_p(p)
    return f"p {text.replace('<', '< ')}" if text.startswith("<") else f"p = {text}"


def _texts(numbers: list[float], places: int) -> list[str]:
    """Return numbers rounded to the same number of places: the fewest that keep them apart.

    The first number is the score, the last is the chance level. No other number may be written like
    the chance level, and only a score of exactly 0, 1 or 100 % like one.
    """
    while True:
        texts = [fixed(number, places) for number in numbers]
        if places >= MOST_PLACES or not _is_ambiguous(numbers, texts):
            return texts
        places += 1


def _is_ambiguous(numbers: list[float], texts: list[str]) -> bool:
    pairs = [
        (number, text, numbers[-1], texts[-1]) for number, text in zip(numbers, texts, strict=True)
    ]
    score = str(float(texts[0].replace("−", "-")))
    pairs += [(numbers[0], score, end, str(end)) for end in (0.0, 1.0, 100.0)]
    return any(
        text == written and not math.isclose(number, end, abs_tol=1e-9)
        for number, text, end, written in pairs
        if not math.isnan(number)
    )
