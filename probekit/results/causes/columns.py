"""Columns of the tables of interventions, declared once for writing and reading.

effects.csv      patches and ablations: a row for each site, head, position and measure
verdicts.csv     a row for each direction and question: does it detect, steer, silence?
doses.csv        dose-response curve of each direction
downstream.csv   probes fitted again at every later site, without and with erasure
"""

from __future__ import annotations

from probekit.results.columns import TableColumn

_SITE = (
    TableColumn("site", "edited site, with its head or neuron"),
    TableColumn("layer", "block of the site; empty outside of the blocks", "number"),
    TableColumn("head", "attention head, if a single one is edited", "number"),
)
_GROUPS = (
    TableColumn("n", "number of texts", "number"),
    TableColumn("groups", "number of groups of these texts", "number"),
)
_AT = TableColumn(
    "at", "edited tokens: `probed`, `all` or `each`", allowed=("probed", "all", "each")
)
_ALONG = TableColumn(
    "along", "method of the direction", allowed=("probe", "mean_difference", "leace")
)
_BANDS = (
    TableColumn("null_low", "2.5 % quantile of directions on permuted labels", "number"),
    TableColumn("null_high", "97.5 % quantile of directions on permuted labels", "number"),
    TableColumn("matched_low", "2.5 % quantile of random directions of equal covariance", "number"),
    TableColumn(
        "matched_high", "97.5 % quantile of random directions of equal covariance", "number"
    ),
)

EFFECTS = (
    TableColumn("do", "type of the edit", allowed=("patch", "ablate")),
    TableColumn(
        "replacement",
        "what replaces the activations",
        allowed=("counterfactual", "mean", "zero", "resample"),
    ),
    *_SITE,
    _AT,
    TableColumn("position", "for `each`: position of the edited token, from 0", "number"),
    TableColumn("measure", "name of the measure"),
    TableColumn("unit", "unit of the measure"),
    TableColumn("base", "mean measure without the edit", "number"),
    TableColumn("source", "mean measure of the counterfactuals, for the same answers", "number"),
    TableColumn("edited", "mean measure with the edit", "number"),
    TableColumn("effect", "`edited` minus `base`", "number"),
    TableColumn("effect_low", "lower end of the 95 % interval of the effect", "number"),
    TableColumn("effect_high", "upper end of the 95 % interval of the effect", "number"),
    TableColumn(
        "recovery",
        "share of the difference between counterfactual and base, a ratio of sums; empty if the "
        "interval of the difference contains 0",
        "number",
    ),
    TableColumn("recovery_low", "lower end of the 95 % interval of the recovery", "number"),
    TableColumn("recovery_high", "upper end of the 95 % interval of the recovery", "number"),
    TableColumn("interchange", "share of the texts that prefer the wrong answer", "number"),
    TableColumn("p", "p-value of no mean effect", "number"),
    TableColumn("p_best", "p-value adjusted for all rows of the same edit and measure", "number"),
    *_GROUPS,
    TableColumn("folds", "number of folds whose test rows are edited", "number"),
)

VERDICTS = (
    *_SITE,
    _AT,
    _ALONG,
    TableColumn(
        "question",
        "the question; `swap` is the exchange along the direction, which has no verdict of its own",
        allowed=("detects", "steers", "silences", "swap"),
    ),
    TableColumn("answer", "the verdict", allowed=("yes", "no", "undecided", "")),
    TableColumn("effect", "size of the effect, in `unit`", "number"),
    TableColumn("low", "lower end of its 95 % interval", "number"),
    TableColumn("high", "upper end of its 95 % interval", "number"),
    TableColumn("unit", "unit of the effect"),
    TableColumn("p", "p-value against directions on permuted labels", "number"),
    TableColumn(
        "p_holm", "p-value adjusted for the questions of a direction that have a test", "number"
    ),
    TableColumn("p_best", "p-value adjusted for all sites of the same method", "number"),
    TableColumn("whole", "effect of the whole vector, in `unit`", "number"),
    TableColumn(
        "exceeds_whole", "whether the direction moves more than its whole vector", "boolean"
    ),
    *_BANDS,
    TableColumn("wrong_way", "share of the texts that move against the direction", "number"),
    TableColumn("kernel_share", "share of the direction that cannot reach the stream", "number"),
    TableColumn("reason", "why the verdict is undecided, or the test undefined"),
    TableColumn("summary", "the verdicts of the direction in a sentence"),
    *_GROUPS,
    TableColumn("folds", "number of folds", "number"),
    TableColumn("draws", "number of permutations", "number"),
)

DOSES = (
    *_SITE,
    _AT,
    _ALONG,
    TableColumn("by", "dose, in standard deviations of the projection", "number"),
    TableColumn("effect", "mean change of the measure towards class 1", "number"),
    TableColumn("low", "lower end of its 95 % interval", "number"),
    TableColumn("high", "upper end of its 95 % interval", "number"),
    *_BANDS,
    TableColumn("other_loss", "change of the loss on other texts, in nats per token", "number"),
    TableColumn("other_low", "lower end of its 95 % interval", "number"),
    TableColumn("other_high", "upper end of its 95 % interval", "number"),
    TableColumn("unit", "unit of the measure"),
    *_GROUPS,
)

DOWNSTREAM = (
    TableColumn("erased", "site at which the direction is erased"),
    TableColumn("along", "method of erasure", allowed=("probe", "mean_difference", "leace")),
    TableColumn("at", "erased tokens", allowed=("probed", "all")),
    TableColumn("site", "site of the probe that is fitted again"),
    TableColumn("layer", "block of the site; empty outside of the blocks", "number"),
    TableColumn("before", "balanced accuracy without erasure", "number"),
    TableColumn("before_low", "lower end of its 95 % interval", "number"),
    TableColumn("before_high", "upper end of its 95 % interval", "number"),
    TableColumn("after", "balanced accuracy with erasure", "number"),
    TableColumn("after_low", "lower end of its 95 % interval", "number"),
    TableColumn("after_high", "upper end of its 95 % interval", "number"),
    TableColumn("chance", "1 / number of classes", "number"),
    *_GROUPS,
)
