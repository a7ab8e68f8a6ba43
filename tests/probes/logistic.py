"""The objective of a logistic probe from its definition, and a tightly converged reference."""

import numpy as np
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression


def problem(n_classes, n_samples=300, n_features=7, seed=0):
    """Correlated features on very different scales and far from 0, like activations."""
    generator = np.random.default_rng(seed)
    mixing = generator.normal(size=(n_features, n_features))
    rows = generator.normal(size=(n_samples, n_features)) @ mixing
    scores = rows / rows.std(axis=0) @ generator.normal(size=(n_features, n_classes))
    codes = (scores + generator.gumbel(size=scores.shape)).argmax(axis=1)
    scales = 10.0 ** np.linspace(-3, 3, n_features)
    return (rows + 10) * scales, codes


def scaling(X, counts):
    """Mean and standard deviation (n_features,) of the rows with weight, in float64."""
    mean = np.average(X, axis=0, weights=counts)
    spread = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=counts))
    return mean, np.where(spread > 1e-6 * np.abs(mean), spread, 0.0)


def standardised(X, counts):
    """X (n_samples, n_features) in float64 with mean 0 and deviation 1; a constant becomes 0."""
    mean, spread = scaling(X, counts)
    return (X - mean) / np.where(spread > 0, spread, np.inf)


def objective(Z, codes, counts, C, coef, intercept):
    """Return sum(count * cross-entropy) + |coef|^2 / (2 C) on standardised rows Z."""
    scores = Z @ coef.T + intercept
    if scores.shape[1] == 1:
        scores = np.hstack([np.zeros_like(scores), scores])
    loss = logsumexp(scores, axis=1) - scores[np.arange(len(Z)), codes]
    return counts @ loss + np.sum(coef**2) / (2 * C)


def excess(fit, X, codes, counts=None, typical=None):
    """Relative excess of the objective of a fit over a tightly converged reference."""
    counts = np.ones(len(X)) if counts is None else np.asarray(counts, dtype=np.float64)
    X, inside = X.astype(np.float64), counts > 0
    scaled_by = counts if typical is None else counts * typical
    (mean, spread), Z = scaling(X, scaled_by), standardised(X, scaled_by)[inside]
    counts, codes = counts[inside], np.searchsorted(fit.classes, codes[inside])
    reference = LogisticRegression(C=fit.C, tol=1e-10, max_iter=100_000)
    reference.fit(Z, codes, sample_weight=counts)
    best = objective(Z, codes, counts, fit.C, reference.coef_, reference.intercept_)
    coef, intercept = fit.coef * spread, fit.intercept + fit.coef @ mean
    return objective(Z, codes, counts, fit.C, coef, intercept) / best - 1
