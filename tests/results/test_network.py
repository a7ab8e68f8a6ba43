"""Attention patterns are checked; predictions for texts are rows of a table."""

import numpy as np
import pytest

from probekit.errors import DataError
from probekit.results.network import AttentionPrompt, RowPrediction, TextReading, tidy_rows
from tests.report.conftest import causal_patterns


@pytest.mark.parametrize(
    ("source", "value"), [(0, np.nan), (0, np.inf), (0, -0.2), (4, 1e-6), (0, 0.999)]
)
def test_what_is_no_attention_pattern_is_refused_with_its_place(refused, source, value):
    patterns = causal_patterns(5)
    patterns[1, 2, 3, source] = value
    refused(AttentionPrompt, "text", tuple(f" t{i}" for i in range(5)), patterns)


def test_rows_with_attention_sinks_sum_to_at_most_1():
    patterns, tokens = causal_patterns(5), tuple(f" t{i}" for i in range(5))
    AttentionPrompt("text", tokens, 0.4 * patterns, has_sinks=True)
    with pytest.raises(DataError, match="does not sum to 1"):
        AttentionPrompt("text", tokens, 0.4 * patterns)
    with pytest.raises(DataError, match="does not sum to 1"):
        AttentionPrompt("text", tokens, 1.01 * patterns, has_sinks=True)


X, Y = RowPrediction("x", -1.0), RowPrediction("y", 2.0)
OF_TOKENS = TextReading("A b", ("A", " b"), ((0, 1), (1, 3)), (X, Y))
OF_3_CLASSES = RowPrediction("y", 3.0, (1.0, 3.0, 2.0))


def answered(answer, tokens=()):
    return TextReading("A", ("A",), ((0, 1),), tokens, answer)


READINGS = {
    "tokens have their position": ([OF_TOKENS, OF_TOKENS], "xy", "token"),
    "more classes have a score each": ([answered(OF_3_CLASSES)], "xyz", "text"),
    "numbers have no label": ([answered(RowPrediction(None, 3.0))], (), "text"),
    "a text without an answer keeps its row": ([answered(None, (X,))], "xy", "text"),
}


@pytest.mark.parametrize("name", READINGS)
def test_predictions_are_rows_of_a_table(snapshot, name):
    assert "\n".join(map(str, tidy_rows(*READINGS[name]))) == snapshot
