"""Selection among the rules that score a text from its tokens, and the numbers on lengths.

`python -m benchmarks.claims.aggregation` prints, for each kind of signal, the mean AUROC and
accuracy of the selected probe on new texts with their standard errors, how often each rule is
selected, and the AUROC of each rule alone. Without a signal, all are 0.50. Then it prints, for
scores that do not depend on length, how often the 95 % interval of their correlation with length
does not contain 0, and the coverage of the 95 % interval of the AUROC at equal length; and, for
maxima of noise over texts of different length, the AUROC of all texts, which is above 0.50, that at
equal length, and how often a warning appears.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from probekit.chosen.aggregation.measure import equal_lengths, length_correlation, over_groups
from probekit.probes.kinds.aggregated import AggregatedProbe
from probekit.probes.score.metrics import ClassPredictions

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Row = tuple[float, float, float]

RULES = ("mean", "max", "rolling:5", "softmax:1")
OWN = ("multimax", "attention")
N_TRAIN, N_NEW, FEATURES = 200, 400, 16
# Mean of one feature, in standard deviations, at the tokens of positive texts that have a signal.
SIGNALS = {"none": 0.0, "one": 4.0, "run": 1.5, "all": 0.25}
RUN = 5  # tokens of a run
GROUPS = ((20, 1), (12, 10), (60, 1), (30, 4))  # groups, and texts of each


def texts(signal: str, n: int, rng: np.random.Generator) -> tuple[Array, Labels, Labels]:
    """Return tokens of texts of 10 to 29 tokens, the label of each, and its text."""
    lengths = rng.integers(10, 30, n)
    text, labels = np.repeat(np.arange(n), lengths), np.arange(n) % 2
    X = rng.normal(size=(len(text), FEATURES))
    start = np.append(0, np.cumsum(lengths))
    for number in np.flatnonzero(labels):
        at = start[number] + rng.integers(lengths[number] - RUN)
        places = {"one": slice(at, at + 1), "run": slice(at, at + RUN)}
        X[places.get(signal, slice(start[number], start[number + 1])), 0] += SIGNALS[signal]
    return X, labels[text], text


def scores(probe: AggregatedProbe, new: tuple[Array, Labels, Labels]) -> tuple[float, float]:
    """Return AUROC and accuracy of a probe on new texts."""
    X, y, text = new
    first = np.unique(text, return_index=True)[1]
    found = probe.decision_function(X, text)[first]
    return float(roc_auc_score(y[first], found)), float(np.mean((found > 0) == y[first]))


def selection(signal: str, draws: int, rng: np.random.Generator, own: bool) -> None:
    """Print the scores of the selected probe and of each rule, and how often it is selected."""
    rules = RULES + OWN if own else RULES
    chosen, selected, alone = Counter[str](), [], []
    for _ in range(draws):
        X, y, text = texts(signal, N_TRAIN, rng)
        new = texts(signal, N_NEW, rng)
        probe = AggregatedProbe(aggregate=rules).fit(X, y, text)
        chosen[probe.rule_] += 1
        selected.append(scores(probe, new))
        alone.append(
            [scores(AggregatedProbe(aggregate=(rule,)).fit(X, y, text), new)[0] for rule in rules]
        )
    means, errors = np.mean(selected, axis=0), np.std(selected, axis=0) / np.sqrt(draws)
    parts = [f"{mean:.3f} ({error:.3f})" for mean, error in zip(means, errors, strict=True)]
    print(f"{signal:5s} | AUROC {parts[0]}, accuracy {parts[1]}", end="")
    for rule, mean in zip(rules, np.mean(alone, axis=0), strict=True):
        print(f" | {rule} {chosen[rule] / draws:.2f}, {mean:.3f}", end="")
    print(flush=True)


def auroc_at_equal_length(scores: Array, lengths: Labels, labels: Labels, groups: Labels) -> Row:
    """Return the AUROC at equal length with its interval, as a run computes it."""
    chosen = equal_lengths(lengths, labels == 1)
    outputs = np.stack([np.zeros(chosen.sum()), scores[chosen]], axis=1)
    predictions = ClassPredictions.of_scores(labels[chosen], outputs, are_logits=True, positive=1)
    found = over_groups("auroc", predictions, groups[chosen])
    return found.value, found.low, found.high


def lengths(n_groups: int, per_group: int, draws: int, rng: np.random.Generator) -> None:
    """Print size of the correlation, coverage at equal length, and maxima of noise."""
    n = n_groups * per_group
    groups, noise = np.repeat(np.arange(n_groups), per_group), 0.5
    truth = norm.cdf(1 / np.sqrt(2 * (1 + noise)))
    significant, covered, of_maxima = [], [], []
    for _ in range(draws):
        own = rng.integers(5, 40, n_groups)[groups] + rng.integers(0, 8, n)
        labels = rng.permutation(np.arange(n) % 2)
        score = np.sqrt(noise) * rng.normal(size=n_groups)[groups] + rng.normal(size=n) + labels
        found = length_correlation(score, own, labels, groups)
        significant.append(found.low > 0 or found.high < 0)
        _, low, high = auroc_at_equal_length(score, own, labels, groups)
        covered.append(np.nan if np.isnan(low) else low <= truth <= high)
        # Longer texts of the positive label, and the maximum of as many scores without a signal.
        longer = own + 12 * labels
        maxima = norm.ppf(rng.uniform(size=n) ** (1 / longer))
        at_equal, *_ = auroc_at_equal_length(maxima, longer, labels, groups)
        warned = length_correlation(maxima, longer, labels, groups).low > 0
        of_maxima.append([roc_auc_score(labels, maxima), at_equal, warned])
    auroc, matched, power = np.nanmean(of_maxima, axis=0)
    print(
        f"{n_groups} groups of {per_group} | size {np.mean(significant):.3f} | coverage "
        f"{np.nanmean(covered):.3f}, undefined {np.mean(np.isnan(covered)):.2f} | maxima of noise: "
        f"AUROC {auroc:.3f}, at equal length {matched:.3f}, warned {power:.2f}",
        flush=True,
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--own", action="store_true", help="also multimax and attention (slow)")
    chosen = parser.parse_args()
    rng = np.random.default_rng(chosen.seed)
    for signal in SIGNALS:
        selection(signal, chosen.draws, rng, chosen.own)
    for n_groups, per_group in GROUPS:
        lengths(n_groups, per_group, 10 * chosen.draws, rng)


if __name__ == "__main__":
    main()
