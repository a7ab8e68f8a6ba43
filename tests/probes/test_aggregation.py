"""Rules score texts as they are defined, and a running score is the score of the text so far."""

import numpy as np
import pytest
from scipy.special import softmax

from probekit.errors import ConfigError, UnknownNameError
from probekit.probes.aggregation import AggregatedFit, Aggregation
from probekit.probes.kinds.attention_pooled import TokensOfTexts
from probekit.probes.kinds.registry import parse_rule
from probekit.probes.solve.layers import AffineLayer

RULES = ("mean", "max", "rolling:3", "softmax:0.5", "multimax", "attention")


def columns(rule, n_out):
    """The number of outputs of the probe of tokens."""
    return {"multimax": 2 * n_out, "attention": n_out + 1}.get(rule, n_out)


def by_definition(rule, outputs, n_out, unit=2.0):
    name, number = parse_rule(rule)
    scores = outputs[:, :n_out]
    if name == "max":
        return scores.max(axis=0)
    if name == "multimax":
        return outputs[:, :n_out].max(axis=0) + outputs[:, n_out:].max(axis=0)
    if name == "rolling":
        width = min(int(number), len(scores))
        windows = [scores[at : at + width].mean(axis=0) for at in range(len(scores) - width + 1)]
        return np.max(windows, axis=0)
    if name == "softmax":
        return np.sum(softmax(scores / (number * unit), axis=0) * scores, axis=0)
    if name == "attention":
        return softmax(outputs[:, n_out]) @ scores
    return scores.mean(axis=0)


@pytest.mark.parametrize("n_out", [1, 3])
@pytest.mark.parametrize("rule", RULES)
def test_the_running_score_is_that_of_the_text_so_far(rule, n_out):
    outputs = 3 * np.random.default_rng(0).normal(size=(9, columns(rule, n_out)))
    running = Aggregation(rule, unit=2.0).running(outputs, n_out)
    expected = [by_definition(rule, outputs[:end], n_out) for end in range(1, 10)]
    np.testing.assert_allclose(running, expected)


@pytest.mark.parametrize("rule", RULES)
def test_the_first_of_two_labels_can_be_the_positive_one(rule):
    outputs = np.random.default_rng(0).normal(size=(9, columns(rule, 1)))
    mirrored = np.array(outputs)
    mirrored[:, : 2 if rule == "multimax" else 1] *= -1
    one, other = Aggregation(rule), Aggregation(rule, sign=-1)
    np.testing.assert_allclose(other.running(mirrored, 1), -one.running(outputs, 1))


@pytest.mark.parametrize("n_out", [1, 3])
@pytest.mark.parametrize("rule", RULES)
def test_slope_and_shifts_of_the_scores_are_folded_into_the_weights(rule, n_out):
    generator = np.random.default_rng(0)
    n = columns(rule, n_out)
    layer = AffineLayer(generator.normal(size=(n, 5)), generator.normal(size=n))
    layer.bias[n_out:] *= rule != "attention"  # a query has no bias
    classes = np.arange(max(2, n_out))
    fit = AggregatedFit(classes=classes, layers=(layer,), aggregation=Aggregation(rule, unit=0.7))
    texts = TokensOfTexts(generator.normal(size=(12, 5)), np.repeat([0, 1, 2], [2, 6, 4]))
    shift = generator.normal(size=n_out)
    found = fit.calibrated(2.5, shift).text_scores(texts)
    np.testing.assert_allclose(found, 2.5 * fit.text_scores(texts) + shift)


def test_huge_scores_have_no_overflow():
    scores = np.array([[-1e6], [2e6], [1e6]])
    for rule in ("softmax:1", "mean", "max"):
        assert np.isfinite(Aggregation(rule).running(scores, 1)).all()
    assert Aggregation("softmax:1").running(scores, 1)[-1] == 2e6


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        *(("maximum", UnknownNameError), ("max:3", ConfigError), ("rolling", ConfigError)),
        *(("rolling:0", ConfigError), ("rolling:2.5", ConfigError), ("softmax:x", ConfigError)),
        *(("softmax:0", ConfigError), ("softmax:inf", ConfigError)),
    ],
)
def test_mistakes_in_rules_are_refused(rule, error):
    with pytest.raises(error):
        parse_rule(rule)
