"""Lens, attribution, head scores, attention and patching of texts, on the included model."""

import html
from dataclasses import replace

import numpy as np
import pytest
import torch

from probekit import attention_figure, explore_attention
from probekit.errors import ConfigError
from probekit.interventions import edits
from probekit.model.families.gpt2 import GPT2
from probekit.pipeline.look import lenses
from probekit.pipeline.look.attention import attention_prompt
from probekit.pipeline.look.lenses import attribute, one_token, patch_pair, read_lens
from probekit.report.attention.page import SCORE_NAMES
from probekit.results.network import MEAN
from tests.pipeline.texts import text_of

TEXT = "The keys to the old cabinet"
CLEAN, CORRUPT = "The key to the old door", "The keys to the old door"
SITE = "blocks.2.hook_resid_post"


@pytest.fixture(scope="module")
def mini():
    return lenses.ModelAndTokenizer.load("mini")


def test_texts_are_processed_independently(mini):
    both = read_lens(mini, [TEXT, "A door"], bos=False, top_k=2)
    for number, text in enumerate([TEXT, "A door"], start=1):
        alone = read_lens(mini, [text], bos=False, top_k=2)
        of_both = both[both["prompt"] == number]
        assert of_both["token_2"].tolist() == alone["token_2"].tolist()
        np.testing.assert_allclose(of_both["kl"], alone["kl"], atol=1e-6)


def test_lens_reads_bos_and_ends_with_the_output(mini):
    rows = read_lens(mini, [TEXT], bos=True, sites=["blocks.2.hook_attn_out"])
    assert rows["token"].iloc[0] == "<|endoftext|>"
    assert list(rows["site"].unique()) == ["blocks.2.hook_attn_out", "blocks.5.hook_resid_post"]
    assert rows["kl"].iloc[-1] == 0


def test_default_token_is_the_most_probable(mini):
    found = attribute(mini, TEXT, bos=False)
    logits = mini.model(mini.ids(TEXT, bos=False)[None])[0, -1]
    assert found.rank == 1
    assert mini.tokenizer.strings([int(logits.argmax())]) == [found.token]
    assert found.logit == pytest.approx(float(logits.max()))
    assert found.probability == pytest.approx(float(logits.softmax(-1).max()), rel=1e-5)
    assert found.minus == ""


def test_attribution_uses_the_given_position_and_subtracted_token(mini):
    found = attribute(mini, TEXT, " the", bos=True, minus=" his", position=2)
    logits = mini.model(mini.ids(TEXT, bos=True)[None])[0, 2]
    the, his = (one_token(mini.tokenizer, text) for text in (" the", " his"))
    assert found.logit == pytest.approx(float(logits[the] - logits[his]), abs=1e-5)
    assert (found.position, found.token, found.minus) == (2, " the", " his")
    assert found.rows["value"].sum() == pytest.approx(found.logit, abs=1e-4)
    assert one_token(mini.tokenizer, "<|endoftext|>") == mini.tokenizer.bos_id
    assert attribute(mini, TEXT, " the", bos=True, minus_mean=True).minus == MEAN
    before = attribute(mini, TEXT, " the", bos=True, position=-6)
    assert before.position == mini.ids(TEXT, bos=True).shape[0] - 6


@pytest.mark.parametrize("call", text_of("invalid_lenses.txt").splitlines())
def test_mistakes_are_explained(mini, call, refused):
    refused(eval, call, {**globals(), **vars(lenses), "mini": mini})


def test_random_repeats_contain_no_special_token_except_bos(mini, monkeypatch):
    seen = []
    monkeypatch.setattr(lenses, "score_heads", lambda _model, sequences, _: seen.extend(sequences))
    found = lenses.scored_heads(mini, n=3, length=120, seed=1, bos=True)
    assert found.read == "3 sequences of 120 random tokens, each repeated once, seed 1"
    bos = mini.tokenizer.bos_id
    assert [int((ids == bos).sum()) for ids in seen] == [1, 1, 1]
    assert torch.equal(seen[0][1:121], seen[0][121:])


def test_mini_has_previous_token_and_induction_heads_and_an_untrained_model_has_none(mini):
    scores = ("previous_token", "induction")
    untrained = replace(mini, model=GPT2(mini.model.config, seed=0))
    for network, is_learnt in ((mini, True), (untrained, False)):
        found = lenses.scored_heads(network, n=4, bos=False)
        assert set(found.rows["n"]) == {4}
        assert found.known == {}
        previous, induction = (found.strongest(score, 1).iloc[0] for score in scores)
        assert (previous["value"] > 0.5) == (induction["value"] > 0.4) == is_learnt
        # An induction head needs a previous-token head in an earlier block.
        assert previous["layer"] < induction["layer"] or not is_learnt


@pytest.fixture(scope="module")
def pair(mini):
    return patch_pair(mini, CLEAN, CORRUPT, " is", " are", bos=False, sites=[SITE], heads=True)


def difference(mini, logits):
    is_, are = (one_token(mini.tokenizer, text) for text in (" is", " are"))
    return float(logits[0, -1, is_] - logits[0, -1, are])


def test_numbers_are_those_of_passes_with_edits(mini, pair):
    clean, corrupt = (mini.ids(text, bos=False)[None] for text in (CLEAN, CORRUPT))
    with torch.inference_mode():
        base, source = (difference(mini, mini.model(ids)) for ids in (clean, corrupt))
        _, cache = mini.model.run_with_cache(corrupt, [SITE], logits=False)
        edit = edits.replace(cache[SITE], torch.tensor([1]))
        edited = difference(mini, edits.run_edited(mini.model, clean, [(SITE, edit)]))
    assert (pair.base, pair.source) == pytest.approx((base, source), abs=1e-4)
    row = pair.of_positions.set_index("position").loc[1]
    assert (row["site"], row["edited"]) == (SITE, pytest.approx(edited, abs=1e-4))
    assert row["effect"] == pytest.approx(edited - base, abs=1e-4)
    assert row["recovery"] == pytest.approx((edited - base) / (source - base), abs=1e-4)


def test_positions_and_heads_have_a_row_each(mini, pair):
    assert pair.of_positions["position"].tolist() == list(range(len(pair.clean)))
    assert len(pair.of_heads) == 24
    assert pair.of_heads["head"].tolist() == [0, 1, 2, 3] * 6
    assert (pair.clean[1], pair.corrupt[1], pair.answer) == (" key", " keys", " is")
    assert not pair.is_estimated
    assert pair.unspaced == ()


def test_estimates_are_verified_where_they_are_largest(mini, pair):
    options = {"bos": False, "sites": [SITE], "heads": True, "verify": 2}
    found = patch_pair(mini, CLEAN, CORRUPT, " is", " are", **options)
    assert found.is_estimated
    assert found.rows["site"].tolist() == pair.rows["site"].tolist()
    for own, whole in ((found.of_positions, pair.of_positions), (found.of_heads, pair.of_heads)):
        verified = own.dropna(subset="effect")
        assert len(verified) == 2
        assert set(verified.index) == set(own["estimate"].abs().nlargest(2).index)
        expected = whole.loc[verified.index, "effect"].tolist()
        assert verified["effect"].tolist() == pytest.approx(expected, abs=1e-4)
    assert (found.base, found.source) == pytest.approx((pair.base, pair.source), abs=1e-5)
    with pytest.raises(ConfigError, match="Allowed: at least 1"):
        patch_pair(mini, CLEAN, CORRUPT, " is", " are", **options | {"verify": 0})


def test_a_beginning_of_text_is_a_position_and_answers_without_a_space_are_named(mini):
    found = patch_pair(mini, "The key", "The keys", "is", " are", bos=True, sites=[SITE])
    assert found.clean == ("<|endoftext|>", "The", " key")
    assert found.of_positions["effect"].tolist()[:2] == pytest.approx([0, 0], abs=1e-5)
    assert found.unspaced == ("is",)
    found = patch_pair(mini, "The key ", "The keys ", "is", " are", bos=False, sites=[SITE])
    assert found.unspaced == ()


REPEATED = "The keys to the old cabinet, the keys to the old cabinet"


def test_patterns_and_scores_equal_those_of_the_model(mini):
    ids = torch.tensor(mini.tokenizer.encode(REPEATED, bos=True).ids)
    _, cache = mini.model.run_with_cache(ids[None], sites=[("pattern", 3)], logits=False)
    prompt = attention_prompt(mini.model, mini.tokenizer, REPEATED, bos=True, layer=3)
    np.testing.assert_allclose(prompt.patterns[0], cache["pattern", 3][0], atol=1e-6)
    assert prompt.tokens[:2] == ("<|endoftext|>", "The")
    assert set(prompt.scores) == set(SCORE_NAMES)
    previous = np.diagonal(prompt.patterns[0], -1, 1, 2).mean(-1)
    np.testing.assert_allclose(prompt.scores["previous_token"][0], previous, rtol=1e-5)
    one = attention_prompt(mini.model, mini.tokenizer, REPEATED, bos=True, layer=3, head=3)
    assert (one.layers, one.heads, one.patterns.shape[:2]) == ((3,), (3,), (1, 1))
    for name, score in one.scores.items():
        assert score[0, 0] == pytest.approx(prompt.scores[name][0, 3], rel=1e-5)


def test_single_text_is_not_split_into_letters(mini):
    explorer = explore_attention(mini.model, mini.tokenizer, REPEATED, bos=False, name="mini")
    assert [prompt.text for prompt in explorer.prompts] == [REPEATED]
    assert html.escape(explorer.page()) in explorer._repr_html_()


def test_errors_of_a_page_or_figure_are_explained(mini, refused):
    given = (mini.model, mini.tokenizer)
    for options in ({"layer": 6}, {"head": "5.4"}, {"head": ["5.2", "4.1"]}, {"most_mb": 0.01}):
        refused(explore_attention, *given, REPEATED, bos=False, **options)
    for texts in ([], [""], ["word " * 300]):
        refused(explore_attention, *given, texts, bos=False)
    for head in (None, 5.2, "L5H2", "6.0"):
        refused(attention_figure, *given, REPEATED, bos=False, head=head)
    refused(attention_figure, *given, REPEATED, bos=False, head="5.2", layer=5)
    refused(attention_figure, *given, "word " * 101, bos=False, layer=5)


def test_a_figure_has_the_patterns_of_the_given_heads(mini):
    given = (mini.model, mini.tokenizer, REPEATED)
    prompt = attention_prompt(*given, bos=False)
    figure = attention_figure(*given, bos=False, head=["5.2", "4.1"])
    assert [title.text for title in figure.layout.annotations[:2]] == ["L5H2", "L4H1"]
    for cells, (layer, head) in zip(figure.data, [(5, 2), (4, 1)], strict=True):
        # Queries are rows; the colour is the square root of the weight.
        pattern = np.nan_to_num(np.square(np.array(cells.z, float)))
        np.testing.assert_allclose(pattern, prompt.patterns[layer, head], rtol=1e-6)
    of_layer = attention_figure(*given, bos=False, layer=5)
    assert [title.text for title in of_layer.layout.annotations[:4]] == [
        f"L5H{n}" for n in range(4)
    ]
