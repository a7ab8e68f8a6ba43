"""The table of metrics: one row holds all that the package knows about a metric.

To add a metric, write the function that computes it and add a row here. Probes measure it, the
results name it, and figures, captions and page sections follow from the row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal

# What a metric is computed from: one class or one number per row, the edges of a tree, or the
# code lengths of the labels.
Family = Literal["class", "number", "tree", "code"]
# A score is computed from predictions, a difference from two scores, a p-value from all sites.
Kind = Literal["score", "difference", "p_value"]
# The name of the score without any knowledge of the rows.
Reference = Literal["chance", "chain", "uniform"]

MetricFunction = Callable[..., Any]


@dataclass(frozen=True)
class Metric:
    """What is known about one metric.

    Attributes:
        name: in the column `metric` of results.csv.
        title: in sentences and on axes.
        functions: by the family of predictions, the import path `module:function` of the function
            that scores them. It takes predictions and resamples and returns (1 + n_draws,) numbers,
            the value first. Empty for numbers that are not computed from one set of predictions.
        kind: whether it is a score, a difference of scores or a p-value.
        needs: what the predictions must offer beyond a guess: "scores", "probabilities", or the
            hits of a tree; empty for nothing.
        lower_is_better: of all others, higher is better.
        reference: the score without any knowledge of the rows.
        is_row_mean: whether it is a mean over rows, so that p-values may be computed from it by
            exchanging the rows of whole groups.
        beats_the_mean: whether the best constant guess is the mean label, not the majority label.
        is_main: whether sites are chosen by it. Of several in one table the first counts.
        figure: whether its figures are unfolded on the page, folded, or not drawn.
        explanation: a sentence for captions, where not every reader knows the metric.
    """

    name: str
    title: str
    functions: Mapping[Family, str] = field(default_factory=dict)
    kind: Kind = "score"
    needs: str = ""
    lower_is_better: bool = False
    reference: Reference = "chance"
    is_row_mean: bool = False
    beats_the_mean: bool = False
    is_main: bool = False
    figure: Literal["open", "folded", "none"] = "folded"
    explanation: str = ""


_SCORE = "probekit.probes.score"
_TREE = "probekit.probes.text_and_tree"

# Rows of results.csv and figures of a page have this order.
_ROWS = (
    Metric(
        "accuracy",
        "accuracy",
        {"class": f"{_SCORE}.metrics:accuracy"},
        is_row_mean=True,
        is_main=True,
        figure="open",
    ),
    Metric(
        "balanced_accuracy",
        "balanced accuracy",
        {"class": f"{_SCORE}.metrics:balanced_accuracy"},
    ),
    Metric("macro_f1", "macro F1", {"class": f"{_SCORE}.metrics:macro_f1"}),
    Metric("auroc", "AUROC", {"class": f"{_SCORE}.metrics:auroc"}, needs="scores"),
    Metric(
        "r2",
        "R²",
        {"number": f"{_SCORE}.regression:r2"},
        is_row_mean=True,
        beats_the_mean=True,
        is_main=True,
        figure="open",
    ),
    Metric(
        "uuas",
        "UUAS",
        {"tree": f"{_TREE}:hit_rate"},
        needs="uuas",
        reference="chain",
        is_main=True,
        figure="open",
        explanation=(
            "The share of the edges of each dependency tree that the spanning tree of the probe's "
            "distances has too (Hewitt and Manning 2019). Linear chain: each word hangs on the one "
            "before it."
        ),
    ),
    Metric(
        "root_accuracy",
        "root accuracy",
        {"tree": f"{_TREE}:hit_rate"},
        needs="root_accuracy",
        reference="chain",
        is_main=True,
        figure="open",
        explanation=(
            "How often the word that the probe takes to be least deep is the root. Linear chain: "
            "the first word."
        ),
    ),
    Metric(
        "spearman",
        "Spearman's ρ",
        {"number": f"{_SCORE}.regression:spearman", "tree": f"{_TREE}:tree_spearman"},
        beats_the_mean=True,
        figure="open",
    ),
    Metric(
        "brier",
        "Brier score",
        {"class": f"{_SCORE}.calibration:brier"},
        needs="probabilities",
        lower_is_better=True,
        is_row_mean=True,
        explanation=("Lower is better: 0 for a sure and right guess, 2 for a sure and wrong one."),
    ),
    Metric(
        "ece",
        "calibration error",
        {"class": f"{_SCORE}.calibration:ece"},
        needs="probabilities",
        lower_is_better=True,
        explanation=(
            "Lower is better: how far, on average, the confidence of a guess is from how often "
            "such guesses are right (Guo et al. 2017)."
        ),
    ),
    Metric("selectivity", "selectivity", kind="difference", figure="open"),
    Metric(
        "codelength",
        "description length, bits",
        {"code": f"{_SCORE}.description_length:codelength"},
        lower_is_better=True,
        figure="none",
    ),
    Metric(
        "compression",
        "compression",
        {"code": f"{_SCORE}.description_length:compression"},
        reference="uniform",
        figure="open",
        explanation=(
            "How many times fewer bits the training labels take when they are sent block by "
            "block, each coded by a probe fitted on the blocks before, than by a uniform code "
            "(Voita and Titov 2020); 1 = no compression."
        ),
    ),
    Metric("p_value", "p", kind="p_value", figure="none"),
    Metric("p_holm", "p, adjusted for all sites", kind="p_value", figure="none"),
    Metric("p_best", "p, against the best site", kind="p_value", figure="none"),
)
METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ROWS})


@cache
def metric_functions(
    family: Family, offers: Collection[str] = frozenset()
) -> Mapping[str, MetricFunction]:
    """Return the functions that score predictions of a family, by the name of the metric.

    Args:
        family: of the predictions.
        offers: what the predictions hold beyond a guess; see `Metric.needs`. Hashable.

    >>> list(metric_functions("number"))
    ['r2', 'spearman']
    >>> list(metric_functions("class", frozenset({"scores"})))
    ['accuracy', 'balanced_accuracy', 'macro_f1', 'auroc']
    """
    return MappingProxyType(
        {
            metric.name: _load(metric.functions[family])
            for metric in METRICS.values()
            if family in metric.functions and (not metric.needs or metric.needs in offers)
        }
    )


def _load(path: str) -> MetricFunction:
    module, _, name = path.partition(":")
    function: MetricFunction = getattr(import_module(module), name)
    return function
