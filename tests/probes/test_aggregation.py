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
    running = Aggregation(
        rule=rule, bias=[0.5] * n_out, weight=(-2 * np.eye(n_out)).tolist(), unit=2.0
    ).running(outputs)
    expected = [0.5 - 2 * by_definition(rule, outputs[:end], n_out) for end in range(1, 10)]
    np.testing.assert_allclose(running, expected)


@pytest.mark.parametrize("rule", RULES)
def test_each_text_of_a_fit_is_scored_by_itself(rule):
    generator = np.random.default_rng(0)
    n = columns(rule, 1)
    layer = AffineLayer(generator.normal(size=(n, 5)), generator.normal(size=n))
    fit = AggregatedFit(classes=np.arange(2), layers=(layer,), aggregation=Aggregation(rule=rule))
    tokens = generator.normal(size=(12, 5))
    found = fit.text_scores(TokensOfTexts(tokens, np.repeat([0, 1, 2], [2, 6, 4])))
    outputs = np.split(tokens @ layer.weight.T + layer.bias, [2, 8])
    np.testing.assert_allclose(found, [by_definition(rule, one, 1, unit=1.0) for one in outputs])


def test_scores_of_any_size_are_exact():
    scores = np.array([[-1e6], [3.0], [2e6], [1e6]])
    for rule, of_two in (("softmax:1", 3.0), ("mean", -499998.5), ("max", 3.0)):
        running = Aggregation(rule=rule).running(scores)[:, 0]
        assert np.isfinite(running).all()
        assert running[1] == pytest.approx(of_two)
    assert Aggregation(rule="softmax:0.001").running(scores)[-1] == pytest.approx(2e6)
    assert (Aggregation(rule="softmax:1").running(np.full((3, 1), 7.0)) == 7.0).all()


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
