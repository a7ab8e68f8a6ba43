import html
import json
import re

import numpy as np
import pytest

from probekit.errors import DataError
from probekit.report.attention.page import (
    OPENING_SCORE,
    SCORE_NAMES,
    AttentionExplorer,
    scores_beyond_distance,
)
from probekit.results.network import AttentionPrompt
from tests.report.attention.test_packing import unpacked


def explorer_of(patterns, model="gpt2", **others):
    tokens = tuple(f" t{i}" for i in range(patterns.shape[-1]))
    return AttentionExplorer.of([AttentionPrompt("text", tokens, patterns, **others)], model)


def embedded(page):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', page)[1])


def test_every_weight_is_on_the_page_to_the_resolution_it_states(make_patterns):
    patterns = make_patterns(5)
    page = explorer_of(patterns).page()
    weights = embedded(page)["prompts"][0]["weights"]
    decoded = [[unpacked(head, 65535, 5)[0] for head in layer] for layer in weights]
    np.testing.assert_allclose(decoded, patterns, atol=1.6e-5)
    assert "quantised to 65,535 levels; the error is at most 0.00002 near 1" in page
    assert "Long texts use fewer" not in page


def test_the_page_states_a_coarser_quantisation(make_patterns):
    prompt = AttentionPrompt("text", tuple("abcde" * 30), make_patterns(150))
    page = AttentionExplorer.of([prompt], "gpt2", most_mb=0.3).page()
    levels = embedded(page)["levels"]
    assert levels < 255
    assert f"quantised to {levels} levels" in page
    assert "Long texts use fewer than the usual 255 levels" in page


@pytest.mark.parametrize("n", [4, 60, 260])
def test_the_size_is_as_estimated(make_patterns, n):
    explorer = explorer_of(make_patterns(n))
    size = len(explorer.page().encode()) / 1e6
    assert explorer.reduction.estimated_mb == pytest.approx(size, rel=0.1, abs=0.05)
    assert (
        explorer.estimate
        == f"About {explorer.reduction.estimated_mb:.1f} MB: 12 heads of {n} tokens."
    )


def test_a_selection_keeps_its_layer_and_head_numbers_and_scores(make_patterns):
    scores = {"entropy": np.array([[0.5, np.nan, 1 / 3], [0, 1, 2]], np.float32)}
    page = explorer_of(make_patterns(5)[1:3], layers=(5, 11), heads=(0, 2, 7), scores=scores).page()
    data = embedded(page)["prompts"][0]
    assert (data["layers"], data["heads"]) == ([5, 11], [0, 2, 7])
    opening = data["scores"].pop(OPENING_SCORE)
    np.testing.assert_allclose(opening, scores_beyond_distance(make_patterns(5)[1:3]), rtol=1e-5)
    assert data["scores"] == {"entropy": [[0.5, None, 0.333333], [0, 1, 2]]}
    assert [name for name, _ in embedded(page)["scores"]] == [*SCORE_NAMES, OPENING_SCORE]


def test_thumbnails_hold_heads_and_their_summaries_with_and_without_the_first_token(make_patterns):
    patterns = make_patterns(5)
    plain, rest = (
        unpacked(text, 255, 5).reshape(4, 5, 5, 5)
        for text in embedded(explorer_of(patterns).page())["prompts"][0]["thumbnails"]
    )
    np.testing.assert_allclose(plain[:, :3], patterns, atol=0.005)
    np.testing.assert_allclose(plain[:, 3], patterns.mean(1), atol=0.005)
    np.testing.assert_allclose(plain[:, 4], patterns.max(1), atol=0.005)
    np.testing.assert_allclose(rest[:, :3, 1:].sum(-1), 1, atol=0.02)


def test_the_same_patterns_give_the_same_bytes(make_patterns):
    assert explorer_of(make_patterns(7)).page() == explorer_of(make_patterns(7)).page()


def test_no_prompt_is_refused():
    with pytest.raises(DataError, match="No prompt"):
        AttentionExplorer.of([], "gpt2")


def test_hostile_text_cannot_leave_its_element(make_patterns, hostile):
    prompt = AttentionPrompt(hostile, (hostile,) * 5, make_patterns(5))
    page = AttentionExplorer.of([prompt], hostile).page()
    assert page.count("</script>") == 2
    assert "<b>%" not in page
    assert embedded(page)["prompts"][0]["text"] == hostile


def test_a_notebook_shows_a_sandboxed_frame(make_patterns, hostile):
    frame = explorer_of(make_patterns(5), model=hostile)._repr_html_()
    page = re.fullmatch(r'<iframe sandbox="allow-scripts[^>]*? srcdoc="([^"]*)"></iframe>', frame)[
        1
    ]
    assert html.unescape(page) == explorer_of(make_patterns(5), model=hostile).page()
    assert "allow-same-origin" not in frame.partition("srcdoc")[0]
