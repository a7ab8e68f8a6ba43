import numpy as np
import pytest

from probekit.errors import DataError
from probekit.results.network import AttentionPrompt


@pytest.fixture
def patterns(make_patterns):
    return make_patterns(5)


def prompt(patterns, **others):
    tokens = tuple(f" t{i}" for i in range(5))
    return AttentionPrompt("text", tokens, patterns, **others)


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        ((1, 2, 3, 0), np.nan, "is not finite"),
        ((1, 2, 3, 0), np.inf, "is not finite"),
        ((1, 2, 3, 0), -0.2, "is negative"),
        ((1, 2, 3, 4), 1e-6, "is on a later token"),
        ((1, 2, 3, 0), 0.999, "does not sum to 1"),
    ],
)
def test_what_is_no_attention_pattern_is_refused_with_its_place(patterns, place, value, problem):
    patterns[place] = value
    with pytest.raises(DataError, match=rf"Layer 1, head 2, destination 3, source \d: .*{problem}"):
        prompt(patterns)
