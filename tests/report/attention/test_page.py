"""Data and page of the attention explorer: quantised weights, thumbnails, and the opening score."""

import base64
import html
import json
import re
import zlib

import numpy as np
import pytest

from probekit.errors import DataError
from probekit.report.attention import page as explorer
from probekit.report.elements.page import unbroken
from probekit.report.elements.tokens import strongest_cell
from probekit.results.network import AttentionPrompt
from tests.report.conftest import causal_patterns
from tests.report.page_text import packed_texts


def unpacked(text, levels, n):
    """Decode weights like the page's script: the lower triangle of each head, row by row."""
    codes = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u2" if levels > 255 else "u1")
    heads = codes.reshape(-1, n * (n + 1) // 2)
    weights = np.zeros((len(heads), n, n))
    weights[:, *np.tril_indices(n)] = (heads / levels) ** 2
    return weights


def prompt_of(patterns, **others):
    tokens = tuple(f" t{i}" for i in range(patterns.shape[-1]))
    return AttentionPrompt("text", tokens, patterns, **others)


def explorer_of(patterns, model="gpt2", **others):
    return explorer.AttentionExplorer.of([prompt_of(patterns, **others)], model)


def embedded(page):
    (data,) = (text for text in packed_texts(page) if text.startswith('{"colours"'))
    return json.loads(data)


@pytest.mark.parametrize("levels", explorer.LEVELS)
def test_quantisation_errors_are_within_the_stated_bound_and_0_and_1_are_exact(levels):
    patterns = causal_patterns(40)[2]
    decoded = unpacked(explorer.packed(patterns, levels), levels, 40)
    half_step = (np.sqrt(patterns) + 0.25 / levels) / levels
    assert (abs(decoded - patterns) <= half_step * (1 + 1e-4)).all()
    for weight in (1.0, 0.01):
        error = (np.sqrt(weight) + 0.25 / levels) / levels
        assert explorer.Reduction(levels, 1).error(weight) == pytest.approx(error, rel=0.4)
    ends = np.eye(2, dtype=np.float32)[None]
    assert (unpacked(explorer.packed(ends, levels), levels, 2) == ends).all()


@pytest.mark.parametrize(("most", "levels"), [(None, 65535), (0.2, 255)], ids=["small", "large"])
def test_small_pages_use_16_bits_and_larger_ones_8(monkeypatch, most, levels):
    if most is not None:
        monkeypatch.setattr("probekit.report.attention.page.MOST_MB_OF_16_BITS", most)
    assert explorer.choose_reduction([prompt_of(causal_patterns(150))]).levels == levels


def test_the_finest_quantisation_within_the_limit_is_chosen(monkeypatch):
    prompt = prompt_of(causal_patterns(150))

    def size(levels):
        with monkeypatch.context() as patch:
            patch.setattr("probekit.report.attention.page.LEVELS", (levels,))
            return explorer.choose_reduction([prompt]).estimated_mb

    sizes = [size(levels) for levels in explorer.LEVELS]
    assert sizes == sorted(sizes, reverse=True)
    for levels, allowed in zip(explorer.LEVELS, sizes, strict=True):
        reduction = explorer.choose_reduction([prompt], allowed * 1.051)
        # The next finer quantisation may fit as well if it is hardly larger.
        assert reduction.levels >= levels
        assert reduction.estimated_mb * 1.05 <= allowed * 1.051
        finer = [other for other in sizes if other > reduction.estimated_mb]
        assert not finer or min(finer) * 1.05 > allowed * 1.051


def test_a_page_over_the_limit_is_refused_or_quantised_most_coarsely():
    prompts = [prompt_of(causal_patterns(n)) for n in (5, 30)]
    message = r"12 heads × 2 texts of 5 to 30 tokens .* the limit is 0.01 MB.*max-mb"
    with pytest.raises(DataError, match=message):
        explorer.choose_reduction(prompts, 0.01)
    assert explorer.choose_reduction(prompts, 0.01, strict=False).levels == explorer.LEVELS[-1]
    assert explorer.count_heads(prompts[1:]) == "12 heads of 30 tokens"


@pytest.mark.parametrize("n", [3, 48, 49, 100, 131])
def test_a_pixel_is_the_largest_weight_of_its_patch(n):
    patterns = causal_patterns(n)[0]
    small = explorer.thumbnails(patterns)
    side = min(n, 48)
    assert small.shape == (3, side, side)
    edges = [i * n // side for i in range(side)] + [n]
    for row, column in ((0, 0), (side - 1, 0), (side - 1, side - 1), (side // 2, side // 3)):
        patch = patterns[:, edges[row] : edges[row + 1], edges[column] : edges[column + 1]]
        assert (small[:, row, column] == patch.max((1, 2))).all()


def test_the_static_image_is_a_grid_of_layers_and_heads(browser, tmp_path):
    layers = np.zeros((2, 3, 2, 2), np.float32)
    layers[1, 2, 1, 0] = 1
    page = tmp_path / "still.html"
    page.write_text(f'<img src="data:image/png;base64,{explorer.still_picture(layers)}">')
    browser.open(page)
    pixels = browser.evaluate(
        "(() => { const image = document.images[0], canvas = document.createElement('canvas');"
        "Object.assign(canvas, { width: image.width, height: image.height });"
        "const context = canvas.getContext('2d'); context.drawImage(image, 0, 0);"
        "return { width: image.width, height: image.height, "
        "data: [...context.getImageData(0, 0, image.width, image.height).data] }; })()"
    )
    assert (pixels["width"], pixels["height"]) == (9, 6)  # tiles of 2 and a gap of 1
    image = np.array(pixels["data"]).reshape(6, 9, 4)[..., :3]
    stops = explorer.attention_colours()["weights"]["light"]
    assert image[3 + 1, 6].tolist() == stops[-1]  # layer 1, head 2, destination 1, source 0
    assert image[1, 0].tolist() == stops[0]
    assert image[0, 1].tolist() == [217, 221, 226]  # masked
    assert image[2, 2].tolist() == [255, 255, 255]
    assert (image == stops[-1]).all(-1).sum() == 1


def softmax(scores):
    weights = np.tril(np.exp(scores - scores.max()))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def at_distance(n, distance):
    """A pattern with all weight on the token at a distance, or on the first token."""
    return np.eye(n, dtype=np.float32)[np.maximum(np.arange(n) - distance, 0)]


def slowly(pattern):
    """The score of one head, query by query."""
    n = len(pattern)
    found = []
    for query in range(2, n):
        excess = [0.0]
        for key in range(1, query + 1):
            pairs = [(q, q - query + key) for q in range(n) if q != query and q - query + key >= 1]
            of_key = [(q, key) for q in range(key, n) if q != query]
            means = [np.mean([pattern[pair] for pair in some]) for some in (pairs, of_key) if some]
            excess.append(pattern[query, key] - max(means, default=0))
        found.append(max(excess))
    return np.mean(found)


@pytest.mark.parametrize("n", [3, 5, 17])
def test_it_is_the_mean_over_queries_of_the_largest_excess(n):
    patterns = causal_patterns(n)
    before = patterns.copy()
    expected = [[slowly(head) for head in layer] for layer in patterns]
    np.testing.assert_allclose(explorer.scores_beyond_average(patterns), expected, atol=1e-6)
    np.testing.assert_array_equal(patterns, before)


def test_heads_without_content_score_below_a_head_that_selects_tokens():
    n = 40
    query, key = np.indices((n, n))
    heads = {
        "self": at_distance(n, 0),
        "previous": at_distance(n, 1),
        "three before": at_distance(n, 3),
        "first": at_distance(n, n),
        "uniform": softmax(np.zeros((n, n))),
        "decaying": softmax(-0.3 * (query - key)),
        "first and previous": (at_distance(n, n) + at_distance(n, 1)) / 2,
        "full stop": np.tril(np.eye(n, dtype=np.float32)[np.full(n, 7)])
        + np.eye(n)[:, :1] * (query < 7),
    }
    content = softmax(6 * np.random.default_rng(0).normal(size=(n, n)))
    patterns = np.stack([*heads.values(), content])[None]
    *others, selecting = explorer.scores_beyond_average(patterns)[0]
    assert selecting > 0.5
    assert max(others) < 0.1, dict(zip(heads, others, strict=True))


@pytest.mark.parametrize("n", [1, 2])
def test_a_text_without_a_choice_has_no_score(n):
    assert np.isnan(explorer.scores_beyond_average(causal_patterns(n))).all()


def test_a_page_opens_on_an_induction_head_only_if_the_text_repeats_two_tokens_in_a_row():
    scores = {"induction": np.array([[0.1, 0.9, 0.2]] * 4, np.float32)}
    names = {}
    for text in ("a b c d a b", "a b c d a d", "a a a b c d"):
        prompt = AttentionPrompt(text, tuple(text.split()), causal_patterns(6), scores=scores)
        name, found = explorer.opening_score(prompt)
        shown = embedded(explorer.AttentionExplorer.of([prompt], "gpt2").page())["opening"]
        names[text] = name
        assert shown == name
        expected = explorer.scores_beyond_average(prompt.patterns)
        np.testing.assert_array_equal(found, scores.get(name, expected))
    assert list(names.values()) == ["induction", "beyond_average", "induction"]


def test_the_answer_names_the_strongest_weight_of_the_opening_head_apart_from_three_tokens():
    patterns = causal_patterns(6)
    prompts = [prompt_of(patterns), prompt_of(causal_patterns(6)), prompt_of(causal_patterns(7))]
    page = explorer.AttentionExplorer.of(prompts, "gpt2")
    scores = explorer.scores_beyond_average(patterns)
    layer, head = map(int, np.argwhere(scores == scores.max())[0])
    cells = {(q, k): patterns[layer, head, q, k] for q in range(6) for k in range(1, q - 1)}
    query, key = max(cells, key=cells.get)
    weight, first = cells[query, key], 100 * patterns[:, :, 1:, 0].mean()
    assert page.opening == (
        f"In prompt 1, over all heads, {first:.0f} % of the attention of later tokens goes to the "
        f"first one. In L{layer}H{head}, “␣t{query}” gives “␣t{key}” {weight:.2f}, the head's "
        "largest weight on a token other than the first, the previous and itself. In prompt 2, the "
        f"weight at this place is {weight:.2f}."
    )
    assert unbroken(page.opening) in html.unescape(page.page())
    assert embedded(page.page())["named"] == [layer, head, query, key]


@pytest.mark.parametrize(("n", "heads"), [(3, ()), (6, (0,))])
def test_short_texts_and_single_heads_have_no_answer(n, heads):
    patterns = causal_patterns(n)[:1, :1] if heads else causal_patterns(n)
    page = explorer_of(patterns)
    assert page.opening == ""
    assert embedded(page.page())["named"] == []


def test_every_weight_is_on_the_page_to_the_resolution_it_states():
    patterns = causal_patterns(5)
    page = explorer_of(patterns).page()
    weights = embedded(page)["prompts"][0]["weights"]
    decoded = [[unpacked(head, 65535, 5)[0] for head in layer] for layer in weights]
    np.testing.assert_allclose(decoded, patterns, atol=1.6e-5)
    assert "quantised to 65,535 levels; the error is at most 0.00002 near 1" in page
    assert "Long texts use fewer" not in page


def test_the_page_states_a_coarser_quantisation():
    prompts = [prompt_of(causal_patterns(150))]
    page = explorer.AttentionExplorer.of(prompts, "gpt2", most_mb=0.3).page()
    levels = embedded(page)["levels"]
    assert levels < 255
    assert f"quantised to {levels} levels" in page
    assert "Long texts use fewer than the usual 255 levels" in page


@pytest.mark.parametrize("n", [4, 60, 260])
def test_the_size_is_as_estimated(n):
    explorer = explorer_of(causal_patterns(n))
    size = len(explorer.page().encode()) / 1e6
    assert explorer.reduction.estimated_mb == pytest.approx(size, rel=0.1, abs=0.05)
    assert (
        explorer.estimate
        == f"About {explorer.reduction.estimated_mb:.1f} MB: 12 heads of {n} tokens."
    )


def test_a_selection_keeps_its_layer_and_head_numbers_and_scores():
    scores = {"entropy": np.array([[0.5, np.nan, 1 / 3], [0, 1, 2]], np.float32)}
    patterns = causal_patterns(5)[1:3]
    page = explorer_of(patterns, layers=(5, 11), heads=(0, 2, 7), scores=scores).page()
    data = embedded(page)["prompts"][0]
    assert (data["layers"], data["heads"]) == ([5, 11], [0, 2, 7])
    opening = data["scores"].pop(explorer.OPENING_SCORE)
    np.testing.assert_allclose(opening, explorer.scores_beyond_average(patterns), rtol=1e-5)
    assert data["scores"] == {"entropy": [[0.5, None, 0.333333], [0, 1, 2]]}
    names = [name for name, _ in embedded(page)["scores"]]
    assert names == [*explorer.SCORE_NAMES, explorer.OPENING_SCORE]


def test_thumbnails_hold_heads_and_their_summaries_with_and_without_the_first_token():
    patterns = causal_patterns(5)
    plain, rest = (
        unpacked(text, 255, 5).reshape(4, 5, 5, 5)
        for text in embedded(explorer_of(patterns).page())["prompts"][0]["thumbnails"]
    )
    np.testing.assert_allclose(plain[:, :3], patterns, atol=0.005)
    np.testing.assert_allclose(plain[:, 3], patterns.mean(1), atol=0.005)
    np.testing.assert_allclose(plain[:, 4], patterns.max(1), atol=0.005)
    np.testing.assert_allclose(rest[:, :3, 1:].sum(-1), 1, atol=0.02)


def test_no_prompt_is_refused(refused):
    refused(explorer.AttentionExplorer.of, [], "gpt2")


def test_a_notebook_shows_a_sandboxed_frame(hostile):
    shown = explorer_of(causal_patterns(5), model=hostile)
    frame = shown._repr_html_()
    (page,) = re.findall('^<iframe sandbox="allow-scripts[^>]* srcdoc="([^"]*)"></iframe>$', frame)
    assert html.unescape(page) == shown.page()
    assert "allow-same-origin" not in frame.partition("srcdoc")[0]


def test_no_cell_is_named_if_all_attention_is_near_or_on_the_first_token():
    patterns = np.zeros((1, 2, 5, 5), np.float32)
    patterns[..., 0] = 1
    assert strongest_cell(prompt_of(patterns), np.ones((1, 2), np.float32)) == ()
    patterns[0, 1, 4, [0, 2]] = 0.9, 0.1
    scores = np.array([[0, 1]], np.float32)
    assert strongest_cell(prompt_of(patterns), scores) == (0, 1, 4, 2)
