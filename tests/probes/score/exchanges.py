"""Exchanges of labels and the p-values from them, as tests compute them."""

import numpy as np

from probekit.probes.score.contributions import of_accuracy
from probekit.probes.score.exchange import LabelExchange, p_values
from probekit.probes.score.metrics import ClassPredictions


def exchange_of(rows, groups, folds=None, draws=199, seed=0):
    folds = np.zeros(len(groups), dtype=int) if folds is None else folds
    return LabelExchange.of(rows.labels, groups, folds, draws, seed)


def judged(guesses, truth, groups, seed=0, folds=None, draws=199):
    """p-values of the accuracy of predictions (n_sites, n_samples)."""
    rows = [of_accuracy(ClassPredictions(truth, guess, 2)) for guess in guesses]
    exchange = exchange_of(rows[0], groups, folds, draws, seed)
    t = exchange.null(rows).t
    return p_values(t[:, 0], t[:, 1:])
