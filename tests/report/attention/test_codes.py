import base64
import zlib

import numpy as np
import pytest

from probekit.errors import DataError
from probekit.report.attention.packing import (
    LEVELS,
    Reduction,
    choose_reduction,
    count_heads,
    packed,
    packed_heads,
)
from probekit.results.network import AttentionPrompt


def unpacked(text, levels, n):
    """Decode weights like the page's script: the lower triangle of each head, row by row."""
    codes = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u2" if levels > 255 else "u1")
    heads = codes.reshape(-1, n * (n + 1) // 2)
    weights = np.zeros((len(heads), n, n))
    weights[:, *np.tril_indices(n)] = (heads / levels) ** 2
    return weights


def prompt_of(patterns):
    return AttentionPrompt("text", tuple(f" t{i}" for i in range(patterns.shape[-1])), patterns)


@pytest.mark.parametrize("levels", LEVELS)
def test_quantisation_errors_are_within_the_stated_bound(make_patterns, levels):
    patterns = make_patterns(40)[2]
    decoded = unpacked(packed(patterns, levels), levels, 40)
    half_step = (np.sqrt(patterns) + 0.25 / levels) / levels
    assert (abs(decoded - patterns) <= half_step * (1 + 1e-4)).all()
    for weight in (1.0, 0.01):
        error = (np.sqrt(weight) + 0.25 / levels) / levels
        assert Reduction(levels, 1).error(weight) == pytest.approx(error, rel=0.4)


def test_a_weight_of_1_and_of_0_are_exact():
    weights = np.array([[1, 0], [0, 1]], np.float32)
    for levels in LEVELS:
        assert (unpacked(packed(weights, levels), levels, 2) == weights).all()


def test_heads_are_packed_in_their_order(make_patterns):
    patterns = make_patterns(9)[1]
    for head, text in zip(patterns, packed_heads(patterns, 65535), strict=True):
        np.testing.assert_allclose(unpacked(text, 65535, 9)[0], head, atol=2e-5)


def test_small_pages_use_16_bits(make_patterns):
    assert choose_reduction([prompt_of(make_patterns(150))]).levels == 65535


def test_the_finest_quantisation_within_the_limit_is_chosen(make_patterns, monkeypatch):
    prompt = prompt_of(make_patterns(150))

    def size(levels):
        with monkeypatch.context() as patch:
            patch.setattr("probekit.report.attention.packing.LEVELS", (levels,))
            return choose_reduction([prompt]).estimated_mb

    sizes = [size(levels) for levels in LEVELS]
    assert sizes == sorted(sizes, reverse=True)
    for levels, allowed in zip(LEVELS, sizes, strict=True):
        reduction = choose_reduction([prompt], allowed * 1.051)
        # The next finer quantisation may fit as well if it is hardly larger.
        assert reduction.levels >= levels
        assert reduction.estimated_mb * 1.05 <= allowed * 1.051
        finer = [other for other in sizes if other > reduction.estimated_mb]
        assert not finer or min(finer) * 1.05 > allowed * 1.051


def test_long_texts_use_8_bits(make_patterns, monkeypatch):
    monkeypatch.setattr("probekit.report.attention.packing.MOST_MB_OF_16_BITS", 0.2)
    assert choose_reduction([prompt_of(make_patterns(150))]).levels == 255


def test_a_page_over_the_limit_is_refused_or_quantised_most_coarsely(make_patterns):
    prompts = [prompt_of(make_patterns(n)) for n in (5, 30)]
    with pytest.raises(
        DataError, match=r"24 heads of 5 to 30 tokens .* the limit is 0.01 MB.*max-mb"
    ):
        choose_reduction(prompts, 0.01)
    assert choose_reduction(prompts, 0.01, strict=False).levels == LEVELS[-1]
    assert count_heads(prompts[1:]) == "12 heads of 30 tokens"
