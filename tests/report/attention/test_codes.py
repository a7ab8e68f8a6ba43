import base64
import zlib

import numpy as np
import pytest

from probekit.errors import DataError
from probekit.report.attention.codes import (
    LEVELS,
    Reduction,
    choose_reduction,
    count_heads,
    packed,
    packed_heads,
)
from probekit.results.attention import AttentionPrompt


def unpacked(text, levels, n):
    """Weights as the page's script reads them: the lower triangle of each head, row by row."""
    codes = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u2" if levels > 255 else "u1")
    heads = codes.reshape(-1, n * (n + 1) // 2)
    weights = np.zeros((len(heads), n, n))
    weights[:, *np.tril_indices(n)] = (heads / levels) ** 2
    return weights


def prompt_of(patterns):
    return AttentionPrompt("text", tuple(f" t{i}" for i in range(patterns.shape[-1])), patterns)


@pytest.mark.parametrize("levels", LEVELS)
def test_every_weight_is_kept_as_exactly_as_is_stated(make_patterns, levels):
    patterns = make_patterns(40)[2]
    found = unpacked(packed(patterns, levels), levels, 40)
    half_step = (np.sqrt(patterns) + 0.25 / levels) / levels
    assert (abs(found - patterns) <= half_step * (1 + 1e-4)).all()
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


def test_a_small_page_keeps_16_bits(make_patterns):
    assert choose_reduction([prompt_of(make_patterns(150))]).levels == 65535


def test_a_page_that_would_be_too_large_gives_up_as_little_as_it_must(make_patterns, monkeypatch):
    prompt = prompt_of(make_patterns(150))

    def size(levels):
        with monkeypatch.context() as patch:
            patch.setattr("probekit.report.attention.codes.LEVELS", (levels,))
            return choose_reduction([prompt]).estimated_mb

    sizes = [size(levels) for levels in LEVELS]
    assert sizes == sorted(sizes, reverse=True)
    for levels, allowed in zip(LEVELS, sizes, strict=True):
        found = choose_reduction([prompt], allowed * 1.051)
        # Where the next finer one is hardly larger, it fits as well.
        assert found.levels >= levels
        assert found.estimated_mb * 1.05 <= allowed * 1.051
        finer = [other for other in sizes if other > found.estimated_mb]
        assert not finer or min(finer) * 1.05 > allowed * 1.051


def test_long_texts_are_kept_in_8_bits(make_patterns, monkeypatch):
    monkeypatch.setattr("probekit.report.attention.codes.MOST_MB_OF_16_BITS", 0.2)
    assert choose_reduction([prompt_of(make_patterns(150))]).levels == 255


def test_what_does_not_fit_is_refused_or_kept_as_coarsely_as_can_be(make_patterns):
    prompts = [prompt_of(make_patterns(n)) for n in (5, 30)]
    with pytest.raises(DataError, match=r"24 heads of 5 to 30 tokens .* allowed are 0.01.*max-mb"):
        choose_reduction(prompts, 0.01)
    assert choose_reduction(prompts, 0.01, strict=False).levels == LEVELS[-1]
    assert count_heads(prompts[1:]) == "12 heads of 30 tokens"
