"""The verdict of a run: computed once from its tables, kept in run.json, and read everywhere else.

Pages, terminal, notebooks, the index of runs and comparisons read the attributes of a `Verdict`;
none of them derives a fact from the tables a second time.
"""

import math
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, PlainSerializer

from probekit.amounts import LEVEL
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import BASELINES

Case = Literal["yes", "not better", "no evidence", "too few groups", "worse", "untested"]

SIGNIFICANT = "significant"
SIGNIFICANTLY_WORSE = "significantly worse"
NOT_SIGNIFICANT = "not significant"
NOT_BETTER = "associated, not better"  # than the majority class

# Scores that the reported one is compared with, in the order of the table of comparisons.
COMPARED = (*BASELINES, "random_weights", "embedding", "control", "concatenated")
# Of these, the ones that can explain away the result: the probe must be better than each of them,
# and than each column of the data that predicts the label.
RIVALS = (*BASELINES, "random_weights", "embedding")


NAN = math.nan
# A number that may be unknown: NaN in Python, null in JSON, which also stands for infinity.
Number = Annotated[
    float,
    BeforeValidator(lambda value: NAN if value is None else value),
    PlainSerializer(lambda value: value if math.isfinite(value) else None),
]
Estimated = tuple[Number, Number, Number]  # a value with its interval


class Choice(BaseModel, frozen=True):
    """A site, position and kind of probe that cross-validated scores selected.

    Attributes:
        site: the site, without its head.
        layer: the block of the site; None outside of the blocks.
        head: the head, if a single one is probed.
        position: the probed position.
        probe: the kind of probe.
        view: `raw` activations, or `normalized` by a layer norm.
        C: the selected penalty.
        score: the cross-validated score.
        place: the site in words, with its kind of probe if kinds differ.
    """

    site: str
    layer: int | None
    head: int | None
    position: str
    probe: str
    view: str
    C: Number
    score: Number
    place: str

    @property
    def name(self) -> str:
        """The name of the site, with its head."""
        return self.site if self.head is None else f"{self.site}[head={self.head}]"


class HeadlineScore(BaseModel, frozen=True):
    """The reported score of a run, on test rows.

    Attributes:
        site: the chosen site; with outer folds, the site that most of them chose.
        metric: the main metric.
        value: the score; with outer folds, that of the pooled predictions of each fold's choice.
        ci_low: lower end of the 95 % interval.
        ci_high: upper end of the 95 % interval.
        chance: the score at chance level.
        p: p-value of the association of predictions and labels, adjusted for the maximum over all
            sites unless it is that of outer folds; None without a test.
        n: number of test rows.
        n_groups: number of groups of these rows.
        sites: number of outer folds that chose each site.
        position: the probed position; "" if the folds of a sweep choose positions.
        probe: the kind of probe; `chosen` with outer folds.
        view: `raw` activations, or `normalized` by a layer norm; "" with outer folds.
    """

    site: str
    metric: str
    value: Number
    ci_low: Number
    ci_high: Number
    chance: Number
    p: float | None
    n: int
    n_groups: int
    sites: dict[str, int]
    position: str
    probe: str
    view: str

    @property
    def is_below_chance(self) -> bool:
        """Whether the whole interval is on the wrong side of the chance level.

        Without a signal this happens in at most 6 % of simulated runs, also with outer folds; for
        the interval of the paired difference from the majority class it would be 8 %.
        """
        sign = METRICS[self.metric].sign
        return sign * ((self.ci_high if sign > 0 else self.ci_low) - self.chance) < 0


class Rival(BaseModel, frozen=True):
    """Another score, and the reported score minus this one.

    Attributes:
        name: the display name of the other probe or baseline.
        metric: the metric of the scores.
        value: the other score.
        difference: the reported score minus the other one.
        ci_low: the lower limit of the 95 % confidence interval of the difference.
        ci_high: the upper limit.
        p: the p-value of the difference, which excludes 0 from its interval if it is below 0.05;
            NaN without a test, or with too few groups for one. For the majority class, and
            baselines that score the same, the p-value of the reported score.
        p_adjusted: `p` adjusted for all comparisons together; NaN if it is not adjusted, as that
            of the majority class.
        adjusted_low: the lower limit of the interval that excludes 0 exactly if `p_adjusted` is
            below 0.05, which is not a simultaneous interval; NaN if there is none.
        adjusted_high: the upper limit of the adjusted interval.
        is_named: whether it was named before the test rows were used, so that its difference
            decides about the verdict.
        is_constant: whether it guesses the same for all rows: the majority class and its equals.
        is_association: whether `p` is that of a one-sided test of association between predictions
            and labels, not of the difference; only for constant guesses.
        n: number of its test rows if they may be fewer; 0 for those of the reported score.
        is_opposite: whether, without an association, the reported score is below chance; only for
            the majority class.
    """

    name: str
    metric: str
    value: Number
    difference: Number = NAN
    ci_low: Number = NAN
    ci_high: Number = NAN
    p: Number = NAN
    p_adjusted: Number = NAN
    adjusted_low: Number = NAN
    adjusted_high: Number = NAN
    is_named: bool = False
    is_constant: bool = False
    is_association: bool = False
    is_opposite: bool = False
    n: int = 0

    @property
    def decisive_p(self) -> float:
        """The p-value that decides whether the difference is significant."""
        return self.p if math.isnan(self.p_adjusted) else self.p_adjusted

    @property
    def leads(self) -> tuple[float, float]:
        """Smallest and largest lead of the reported score within the interval.

        A lead is negative if the reported score is behind.
        """
        low, high = self.ci_low, self.ci_high
        return (-high, -low) if METRICS[self.metric].lower_is_better else (low, high)

    @property
    def verdict(self) -> str:
        """Whether the reported score is better or worse, by the adjusted p-value.

        If `is_association`, the p-value tests an association of predictions and labels. With an
        association, the interval of the difference decides whether the probe is better or worse.
        Without one, the probe is worse if its score is below chance (`is_opposite`).
        """
        smallest, largest = self.leads
        if math.isnan(self.p) or (self.is_association and math.isnan(self.ci_low)):
            return "too few groups" if math.isnan(self.p) else "no interval"
        if self.is_opposite:
            return SIGNIFICANTLY_WORSE
        if self.decisive_p >= LEVEL:
            return NOT_SIGNIFICANT
        # The p-value is significant, but the interval of leads contains 0.
        if self.is_constant and not (smallest > 0 or largest < 0):
            return NOT_BETTER
        if self.difference == 0:
            return NOT_SIGNIFICANT
        is_better = METRICS[self.metric].sign * self.difference > 0
        return SIGNIFICANT if is_better else SIGNIFICANTLY_WORSE

    @property
    def is_doubtful(self) -> bool:
        """Whether the difference does not show that the reported score is better.

        Without a p-value, the interval decides; an unknown interval (NaN) shows nothing.
        """
        if math.isnan(self.p):
            smallest, _ = self.leads
            return not smallest > 0
        if self.is_association and math.isnan(self.ci_low):  # only the test of association is left
            return self.p >= LEVEL
        return self.verdict != SIGNIFICANT


class UnselectedScores(BaseModel, frozen=True):
    """Scores of a kind of probe at all sites, if no site is selected, as for structural probes.

    Attributes:
        probe: the kind of probe.
        position: the probed position.
        metric: the metric.
        chance: the score at chance level.
        low: the lowest score.
        high: the highest score.
        n_sites: number of sites.
        n: number of test rows.
        n_groups: number of groups of these rows.
        n_compared: number of sites at which random networks have a score, too; 0 for none.
        n_better: number of these at which the task is significantly better than random weights.
        closest: site with the largest lead over random networks; "" if none is compared.
        task: score at this site with its interval.
        random: score of random networks there with its interval.
    """

    probe: str
    position: str
    metric: str
    chance: Number
    low: Number
    high: Number
    n_sites: int
    n: int
    n_groups: int
    n_compared: int = 0
    n_better: int = 0
    closest: str = ""
    task: tuple[Number, Number, Number] = (NAN, NAN, NAN)
    random: tuple[Number, Number, Number] = (NAN, NAN, NAN)


class GridEdge(BaseModel, frozen=True):
    """A selected penalty at an end of its grid.

    Attributes:
        parameter: name of the penalty, C or alpha.
        value: its value.
        end: "smallest" or "largest".
        baseline: the baseline; "" for the chosen probe.
        n_folds: number of outer folds that chose it; 1 for a single split or a baseline.
    """

    parameter: str
    value: float
    end: str
    baseline: str = ""
    n_folds: int = 1


class SourceScores(BaseModel, frozen=True):
    """Mean of the scores of sources that were left out whole.

    The intervals are over the sources that count in the mean (see `mean_interval`); NaN for fewer
    than 3.

    Attributes:
        column: the column of the data whose values are the sources.
        metric: the metric.
        n: number of sources that count in the mean.
        mean: the mean score with its interval.
        within: the mean score inside these sources with its interval.
        n_above: number of these sources that are above chance: with 6 groups or more, and a 95 %
            interval of the lead over the majority class that is better than 0; None in runs of
            older versions.
        worst: the source with the worst score; "" without any.
        worst_value: its score.
        worst_chance: the chance level of this score.
        left_out: why each other source does not count, by its name.
        other_scores: the scores of these sources; NaN where undefined.
    """

    column: str
    metric: str
    n: int
    mean: tuple[Number, Number, Number]
    within: tuple[Number, Number, Number]
    n_above: int | None = None
    worst: str
    worst_value: Number
    worst_chance: Number = math.nan
    left_out: dict[str, str]
    other_scores: dict[str, Number] = {}


class UnconvergedFits(BaseModel, frozen=True):
    """Scores of fits that did not converge.

    Attributes:
        n: their number.
        n_fits: number of all fits.
        probes: their number by kind of probe; empty if there is one kind only.
        splits: their number by split.
        sites: the first of their sites.
        n_sites: number of their sites.
    """

    n: int
    n_fits: int
    probes: dict[str, int]
    splits: dict[str, int]
    sites: tuple[str, ...]
    n_sites: int


class Verdict(BaseModel, frozen=True):
    """Verdict of a run: chosen site, reported score, comparisons and reasons for doubt.

    Attributes:
        metric: the main metric.
        main_metrics: the main metrics; several only for trees.
        is_nested: whether each outer fold chose a site of its own.
        score: the reported score; None if no site was chosen, or it has no test row.
        best: the choice by the scores of all folds; for a nested cross-validation that of the final
            probe, which is fitted on all rows. None without cross-validated scores.
        choices: the choice of each outer fold; a single split counts as one fold.
        curve: the test score of the task by depth, for the kind of site and of probe of `best`.
        n_candidates: number of combinations that were compared for the choice.
        varied: "kind" and "position" if candidates differ in them.
        close: cross-validated score and place of candidates that score about as the best one,
            which is the first.
        several: "kind of probe" and "position" if the probed sites differ in them.
        rivals: the scores that the reported one is compared with, by target, ordered as `COMPARED`;
            then columns of the data with a warning, by "column NAME".
        neighbours: neighbouring sites and other kinds of probe, which do not affect the verdict.
        named: names in differences.csv of all rivals named before the test rows were used.
        n_networks: number of networks with random weights.
        unselected: the scores of probes without a selected site.
        null: null distribution of the p-values: how labels are exchanged; "" without p-values.
        has_p: whether there are p-values of association.
        has_compression: whether compression was measured.
        edges: selected penalties at an end of their grid.
        unconverged: fits that did not converge; None if all did.
        false_positives: false positive rate on the test rows with its interval, if the metric is
            measured at a threshold that allows a lower one.
        length_leads: whether the length of the text alone is better than a bag of words.
        learns_control: whether the control task is learnt, and selectivity is not above 0.
        sources: scores of sources that were left out whole; None without `split.leave_out`.
        unasked: a sentence for each column of the data that is not used and predicts the label.
        length_of_rule: the selected rule of an aggregated probe, and, with intervals, the AUROC of
            texts, that at equal length, and the correlation within labels of score and length; None
            if the interval of that contains 0.
    """

    metric: str
    main_metrics: tuple[str, ...]
    is_nested: bool = False
    score: HeadlineScore | None = None
    best: Choice | None = None
    choices: tuple[Choice, ...] = ()
    curve: tuple[Number, ...] = ()
    n_candidates: int = 0
    varied: tuple[str, ...] = ()
    close: tuple[tuple[float, str], ...] = ()
    several: tuple[str, ...] = ()
    rivals: dict[str, Rival] = {}
    neighbours: tuple[Rival, ...] = ()
    named: tuple[str, ...] = ()
    n_networks: int = 0
    unselected: tuple[UnselectedScores, ...] = ()
    null: str = ""
    has_p: bool = False
    has_compression: bool = False
    edges: tuple[GridEdge, ...] = ()
    unconverged: UnconvergedFits | None = None
    false_positives: tuple[Number, Number, Number] | None = None
    length_leads: bool = False
    learns_control: bool = False
    sources: SourceScores | None = None
    unasked: tuple[str, ...] = ()
    length_of_rule: tuple[str, Estimated, Estimated, Estimated] | None = None

    @property
    def is_chosen(self) -> bool:
        """Whether a site was chosen, by one split or by each outer fold."""
        return self.score is not None if self.is_nested else self.best is not None

    @property
    def p(self) -> float | None:
        """p-value of the reported score; NaN with too few groups, None without a test.

        Runs without exchanges of labels have that of the difference from the majority class.
        """
        majority = self.rivals.get("majority")
        if self.score is not None and self.score.p is not None:
            return self.score.p
        return majority.p if majority is not None and majority.is_named else None

    @property
    def doubts(self) -> dict[str, Rival]:
        """The rivals that the probe is not clearly better than.

        A rival that was not named before the test rows were used is one of them if its score
        reaches the interval of the reported score.
        """
        found = {name: one for name, one in self.rivals.items() if self._is_doubt(one)}
        return {name: one for name, one in found.items() if name in RIVALS or name not in COMPARED}

    def _is_doubt(self, rival: Rival) -> bool:
        """Whether the probe is not clearly better than a rival; see `doubts`.

        An unknown interval of the reported score may contain any score.
        """
        if rival.is_named:
            return rival.is_doubtful
        assert self.score is not None  # rivals exist only with a reported score
        if METRICS[self.score.metric].lower_is_better:
            return not rival.value > self.score.ci_high
        return not rival.value < self.score.ci_low

    @property
    def case(self) -> Case:
        """The verdict in one word or phrase."""
        if self.p is not None and math.isnan(self.p):
            return "too few groups"
        # Without exchanges of labels, `p` is that of a difference and shows no association.
        is_tested = self.score is not None and self.score.p is not None
        is_associated = is_tested and self.p is not None and self.p < LEVEL
        if not is_associated and (self.is_below_chance or self.is_below_majority):
            return "worse"
        if self.p is None:
            return "untested"
        if self.p >= LEVEL:
            return "no evidence"
        return "not better" if self.doubts else "yes"

    @property
    def is_below_chance(self) -> bool:
        """Whether the whole interval of the reported score is on the wrong side of chance."""
        return self.score is not None and self.score.is_below_chance

    @property
    def is_below_majority(self) -> bool:
        """Whether the reported score is significantly worse than the majority class."""
        majority = self.rivals.get("majority")
        return bool(majority and majority.is_named and majority.verdict == SIGNIFICANTLY_WORSE)
