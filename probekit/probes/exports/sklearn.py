"""A fitted linear model of scikit-learn in a file of skops, which holds no code."""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.svm import LinearSVC

from probekit.probes.saved_probe import SavedProbe


def sklearn_file(probe: SavedProbe, name: str) -> tuple[bytes, str]:
    """Return the file of a probe and code that uses it.

    It is a LogisticRegression if the scores are logits, else a LinearSVC; without labels, a
    LinearRegression.
    """
    from skops import io

    (layer,) = probe.layers
    if probe.classes:
        model = LogisticRegression() if probe.facts.scores_are_logits else LinearSVC()
        model.classes_ = np.array(probe.classes)
        model.coef_, model.intercept_ = np.array(layer.weight), np.array(layer.bias)
    else:
        model = LinearRegression()
        model.coef_, model.intercept_ = np.array(layer.weight[0]), float(layer.bias[0])
    model.n_features_in_ = probe.n_features
    scores = "decision_function" if probe.classes else "predict"
    code = f"""
from skops import io
model = io.load("{name}")
scores, predicted = model.{scores}(X), model.predict(X)
"""
    return io.dumps(model), code
