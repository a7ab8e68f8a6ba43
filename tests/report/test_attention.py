import base64
import json
import re

import numpy as np
import pytest

from probekit.errors import DataError
from probekit.report.attention import AttentionPrompt, attention_page


@pytest.fixture
def patterns(make_patterns):
    return make_patterns(5)


def prompt(patterns, **others):
    tokens = tuple(f" t{i}" for i in range(5))
    return AttentionPrompt("text", tokens, patterns, **others)


def embedded(page):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', page)[1])


def unpacked(data, n, head_count):
    """The weights as the page's script sees them."""
    counts = np.frombuffer(base64.b64decode(data["weights"]), "<u2")
    weights = np.zeros((head_count, n, n))
    rows, columns = np.tril_indices(n)
    weights[:, rows, columns] = counts.reshape(head_count, -1) / 65535
    return weights


def test_every_weight_is_on_the_page_to_the_resolution_it_states(patterns):
    page = attention_page([prompt(patterns)], model="gpt2")
    weights = unpacked(embedded(page)["prompts"][0], 5, 12).reshape(patterns.shape)
    np.testing.assert_allclose(weights, patterns, atol=0.5 / 65535 + 1e-7, rtol=0)
    assert "steps of 1/65,535 (0.000015)" in page


def test_a_selection_keeps_its_true_numbers(patterns):
    page = attention_page([prompt(patterns[1:3], layers=(5, 11), heads=(0, 2, 7))], model="gpt2")
    data = embedded(page)["prompts"][0]
    assert (data["layers"], data["heads"]) == ([5, 11], [0, 2, 7])


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        ((1, 2, 3, 0), np.nan, "is not finite"),
        ((1, 2, 3, 0), np.inf, "is not finite"),
        ((1, 2, 3, 0), -0.2, "is negative"),
        ((1, 2, 3, 4), 1e-6, "looks ahead"),
        ((1, 2, 3, 0), 0.999, "does not sum to 1"),
    ],
)
def test_what_is_no_attention_pattern_is_refused_with_its_place(patterns, place, value, problem):
    patterns[place] = value
    with pytest.raises(DataError, match=rf"Layer 1, head 2, destination 3, source \d: .*{problem}"):
        prompt(patterns)


@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (4, 3, 4, 4), (3, 5, 5), (0, 3, 5, 5)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(DataError, match="do not fit 5 tokens"):
        prompt(np.zeros(shape, np.float32))


def test_numbers_of_layers_that_do_not_fit_are_refused(patterns):
    with pytest.raises(DataError, match="2 layers"):
        prompt(patterns, layers=(0, 1))


def test_no_prompt_is_refused():
    with pytest.raises(DataError, match="No prompt"):
        attention_page([], model="gpt2")


def test_hostile_text_cannot_leave_its_element(patterns, hostile):
    tokens = (hostile,) * 5
    page = attention_page(
        [AttentionPrompt(hostile, tokens, patterns)], model=hostile, title=hostile
    )
    assert page.count("</script>") == 2
    assert "<b>%" not in page
    assert embedded(page)["prompts"][0]["text"] == hostile
