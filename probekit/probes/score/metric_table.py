"""Table of metrics: one row holds everything that the package needs to know about a metric.

To add a metric, write the function that computes it and add a row here. Measurements, results,
figures, captions and page sections are derived from the row.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Literal

# What a metric is computed from: a class or a number per row, trees, or code lengths.
Family = Literal["class", "number", "tree", "code"]
# Scores are computed from predictions, differences from two scores, p-values from all sites.
MetricKind = Literal["score", "difference", "p_value"]
# Name of the reference level: the score of predictions that ignore the activations.
Reference = Literal["chance", "chain", "label_counts"]

# The lowest and the highest value of a metric.
Range = tuple[float, float]
UNBOUNDED: Range = (-inf, inf)
SHARE: Range = (0.0, 1.0)

MetricFunction = Callable[..., Any]


@dataclass(frozen=True)
class Metric:
    """One metric of the results.

    Attributes:
        name: the value in the column `metric` of results.csv.
        title: the name in sentences and on axes.
        families: the families of predictions that it is computed from, by the function of its name,
            of trees by `of_trees`. A function takes predictions and resamples and returns
            1 + n_units numbers: the value over all groups, then with each unit left out. Empty for
            metrics that are not computed from one set of predictions.
        kind: whether it is a score, a difference of scores or a p-value.
        needs: what the predictions must contain besides `guess`: "scores", "probabilities",
            "alarms", or the name of the hits of a tree; empty for nothing.
        lower_is_better: whether lower values are better.
        reference: the name of its reference level.
        interval: the import path of the function that returns the limits of the confidence interval
            if those of the jackknife do not always hold; "" for all others.
        range: its lowest and highest value, which determine its confidence interval; see
            `probekit.probes.score.intervals`.
        of_trees: the name of the function for trees.
        has_p: whether `of_NAME` in `probekit.probes.score.contributions` returns the score of each
            row under each label, from which p-values are computed; there are none of trees.
        has_parts: whether `parts_of_NAME` there returns the contributions of rows by class, as for
            metrics that weight classes.
        beats_the_mean: whether predictions are compared with the mean label, as chance level and
            baseline, instead of the majority label.
        is_linear: whether the row scores of its association add up to the metric plus a constant.
        is_rank: whether it compares scores of different rows with each other. Scores of different
            fits are not comparable, so it is computed for each fit and averaged, or from scores on
            the scale of the training rows; see `within_folds` in `probekit.probes.score.metrics`.
        is_main: whether it is a default main metric, by which C and sites are selected; the first
            that fits the labels is used.
        selects: whether C and sites can be selected by it.
        is_tested: whether its differences have intervals and p-values.
        is_drawn: whether it has figures.
        explanation: a sentence for captions of less common metrics.
        sentence: how a score is stated in a sentence, with {score} and {unit}, such as rows; empty
            for the default, which names the metric.
        in_percent: whether sentences state it in percent.
    """

    name: str
    title: str
    families: tuple[Family, ...] = ("class",)
    kind: MetricKind = "score"
    needs: str = ""
    lower_is_better: bool = False
    reference: Reference = "chance"
    interval: str = ""
    range: Range = SHARE
    of_trees: str = "hit_rate"
    has_p: bool = False
    has_parts: bool = False
    is_linear: bool = True
    is_rank: bool = False
    beats_the_mean: bool = False
    is_main: bool = False
    selects: bool = True
    is_tested: bool = True
    is_drawn: bool = True
    explanation: str = ""
    sentence: str = ""
    in_percent: bool = False

    @property
    def sign(self) -> int:
        """1 if higher values are better, else -1."""
        return -1 if self.lower_is_better else 1

    @property
    def is_hits(self) -> bool:
        """Whether it is a share of hits, or a mean of shares: 0 for rows that are all wrong."""
        return self.range == SHARE and not self.is_rank

    def fits(self, family: Family, offers: Collection[str]) -> bool:
        """Return whether the metric is defined for predictions of a family that have `offers`."""
        return family in self.families and (not self.needs or self.needs in offers)


_SCORE = "probekit.probes.score"
_MODULES = {"tree": "probekit.probes.kinds.trees", "code": f"{_SCORE}.description_length"}
# This is also the order of the rows of results.csv and of the figures of a page.
_ROWS = (
    Metric(
        "accuracy",
        "accuracy",
        has_p=True,
        is_main=True,
        sentence="{score} of held-out {unit} classified correctly",
        in_percent=True,
    ),
    Metric("balanced_accuracy", "balanced accuracy", has_p=True, has_parts=True, in_percent=True),
    Metric("macro_f1", "macro F1", has_p=True),
    Metric("auroc", "AUROC", has_p=True, has_parts=True, needs="scores", is_rank=True),
    Metric(
        "auprc",
        "AUPRC",
        has_p=True,
        has_parts=True,
        needs="scores",
        is_rank=True,
        is_linear=False,
        explanation=(
            "Average precision of the positive class, by default the rarer of two labels; "
            "uninformed scores reach its share of the rows. Data with other shares of positives "
            "are not comparable."
        ),
    ),
    *(
        Metric(
            f"tpr_at_fpr_{rate}",
            f"TPR at {rate} % FPR",
            has_p=True,
            has_parts=True,
            needs="alarms",
            explanation="Share of the rows of the positive class whose score exceeds the threshold "
            f"that {rate} % of the other training rows exceed, each scored without its own group.",
            sentence=f"held-out TPR {{score}} at a threshold for {rate} % FPR on training {{unit}}",
            in_percent=True,
        )
        for rate in (1, 5)
    ),
    *(
        Metric(
            f"achieved_fpr_{rate}",
            f"FPR at the threshold for {rate} %",
            has_parts=True,
            needs="alarms",
            selects=False,
            explanation="False positive rate on these rows, at a threshold fixed on training rows.",
        )
        for rate in (1, 5)
    ),
    Metric(
        "r2",
        "R²",
        families=("number",),
        beats_the_mean=True,
        is_main=True,
        range=(-inf, 1.0),
        interval=f"{_SCORE}.scored:r2_limits",
        has_p=True,
    ),
    Metric(
        "uuas",
        "UUAS",
        families=("tree",),
        needs="uuas",
        reference="chain",
        is_main=True,
        explanation=(
            "Fraction of the edges of each dependency tree that are also in the minimum spanning "
            "tree of the predicted distances (Hewitt and Manning 2019). Linear chain: the head of "
            "each word is the previous word."
        ),
    ),
    Metric(
        "root_accuracy",
        "root accuracy",
        families=("tree",),
        needs="root_accuracy",
        reference="chain",
        is_main=True,
        explanation=(
            "Fraction of sentences in which the word of smallest predicted depth is the root. "
            "Linear chain: the first word."
        ),
        in_percent=True,
    ),
    Metric(
        "spearman",
        "Spearman's ρ",
        families=("number", "tree"),
        of_trees="tree_spearman",
        beats_the_mean=True,
        is_rank=True,
        range=(-1.0, 1.0),
        has_p=True,
    ),
    Metric(
        "brier",
        "Brier score",
        needs="probabilities",
        lower_is_better=True,
        range=(0.0, 2.0),
        explanation=(
            "Lower is better: 0 for a certain correct prediction, 2 for a certain wrong one."
        ),
    ),
    Metric(
        "ece",
        "calibration error",
        needs="probabilities",
        lower_is_better=True,
        selects=False,
        is_tested=False,
        range=UNBOUNDED,
        interval=f"{_SCORE}.scored:ece_limits",
        explanation=(
            "Lower is better: mean absolute difference between confidence and accuracy over "
            "confidence bins (Guo et al. 2017), without the part due to chance; 0 = calibrated, "
            "and a value may be negative. Compare calibration by the Brier score."
        ),
    ),
    Metric("selectivity", "selectivity", families=(), kind="difference", range=UNBOUNDED),
    Metric(
        "codelength",
        "description length, bits",
        families=("code",),
        lower_is_better=True,
        is_drawn=False,
        range=(0.0, inf),
    ),
    Metric(
        "compression",
        "compression",
        families=("code",),
        reference="label_counts",
        explanation=(
            "Code length of the training labels under the label frequencies, divided by that of "
            "online coding (Voita and Titov 2020). Both code the same blocks: the first with the "
            "add-one label counts of the previous blocks, the second with a probe fitted on them; "
            "1 = no compression."
        ),
        range=(0.0, inf),
    ),
    Metric("p_value", "p", families=(), kind="p_value", is_drawn=False),
    Metric("p_holm", "p, adjusted for all sites", families=(), kind="p_value", is_drawn=False),
    Metric("p_best", "p, against the best site", families=(), kind="p_value", is_drawn=False),
)
METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ROWS})

# Names of the metrics by which C and sites can be selected: scores computed from predictions.
SELECTING = tuple(
    metric.name
    for metric in _ROWS
    if metric.selects and {"class", "number", "tree"} & {*metric.families}
)


@cache
def metric_functions(
    family: Family, offers: Collection[str] = frozenset()
) -> Mapping[str, MetricFunction]:
    """Return the metric functions for a family of predictions, by the name of the metric.

    Args:
        family: the family of the predictions.
        offers: what the predictions contain besides `guess`; see `Metric.needs`. Must be hashable.

    >>> list(metric_functions("number"))
    ['r2', 'spearman']
    >>> list(metric_functions("class", frozenset({"scores"})))
    ['accuracy', 'balanced_accuracy', 'macro_f1', 'auroc', 'auprc']
    """
    found: dict[str, MetricFunction] = {}
    for name, metric in METRICS.items():
        if metric.fits(family, offers):
            # Imported here, because this table is read before any numerics are imported.
            own = metric.of_trees if family == "tree" else name
            function = resolve_name(f"{_MODULES.get(family, f'{_SCORE}.metrics')}:{own}")
            within_folds = f"{_SCORE}.metrics:within_folds"
            found[name] = resolve_name(within_folds)(function) if metric.is_rank else function
    return MappingProxyType(found)


def association(metric: str, family: Family) -> MetricFunction | None:
    """Return the function for the row scores of a metric; None for metrics without p-values.

    >>> association("accuracy", "class").__name__
    'of_accuracy'
    """
    if not METRICS[metric].has_p or family == "tree" or family not in METRICS[metric].families:
        return None
    found: MetricFunction = resolve_name(f"{_SCORE}.contributions:of_{metric}")
    return found


def class_parts(metric: str) -> MetricFunction | None:
    """Return the function for the contributions of rows by class; None for metrics without.

    >>> class_parts("balanced_accuracy").__name__
    'parts_of_balanced_accuracy'
    """
    path = f"{_SCORE}.contributions:parts_of_{metric}"
    return resolve_name(path) if METRICS[metric].has_parts else None
