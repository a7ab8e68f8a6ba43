"""Activation patching of one pair of texts, on the included model."""

import pytest
import torch

from probekit.errors import ConfigError, DataError
from probekit.interventions.edits import replace, run_edited
from probekit.pipeline.look.lenses import ModelAndTokenizer, one_token, patch_pair

CLEAN, CORRUPT = "The key to the old door", "The keys to the old door"
SITE = "blocks.2.hook_resid_post"


@pytest.fixture(scope="module")
def mini():
    return ModelAndTokenizer.load("mini")


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
        edit = replace(cache[SITE], torch.tensor([1]))
        edited = difference(mini, run_edited(mini.model, clean, [(SITE, edit)]))
    assert (pair.base, pair.source) == pytest.approx((base, source), abs=1e-4)
    row = pair.of_positions.set_index("position").loc[1]
    assert row["site"] == SITE
    assert row["edited"] == pytest.approx(edited, abs=1e-4)
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
    found = patch_pair(
        mini, CLEAN, CORRUPT, " is", " are", bos=False, sites=[SITE], heads=True, verify=2
    )
    assert found.is_estimated
    assert found.rows["site"].tolist() == pair.rows["site"].tolist()
    for own, whole in ((found.of_positions, pair.of_positions), (found.of_heads, pair.of_heads)):
        verified = own.dropna(subset="effect")
        assert len(verified) == 2
        assert set(verified.index) == set(own["estimate"].abs().nlargest(2).index)
        expected = whole.loc[verified.index, "effect"].tolist()
        assert verified["effect"].tolist() == pytest.approx(expected, abs=1e-4)
    assert (found.base, found.source) == pytest.approx((pair.base, pair.source), abs=1e-5)


def test_a_beginning_of_text_is_a_position(mini):
    found = patch_pair(mini, "The key", "The keys", " is", " are", bos=True, sites=[SITE])
    assert found.clean == ("<|endoftext|>", "The", " key")
    assert found.of_positions["effect"].tolist()[:2] == pytest.approx([0, 0], abs=1e-5)


@pytest.mark.parametrize(
    ("texts", "answers", "error", "message"),
    [
        (("The key", "The key"), (" is", " are"), DataError, "have the same tokens"),
        (("The key", ""), (" is", " are"), DataError, "is empty"),
        (("The key", "The keys"), (" is", " is"), ConfigError, "both ' is'"),
        (("The key", "The keys"), (" isn't it", " is"), ConfigError, "tokens of this model"),
        (("The key", "The keys"), ("isn", " is"), ConfigError, "With a space before it"),
    ],
)
def test_bad_pairs_are_refused(mini, texts, answers, error, message):
    with pytest.raises(error, match=message):
        patch_pair(mini, *texts, *answers, bos=False, sites=[SITE])


def test_tokens_of_texts_of_unequal_length_are_listed(mini):
    with pytest.raises(DataError, match=r"2 tokens .* 3, so .*\n  'The' ' key'\n  'The' ' old' "):
        patch_pair(mini, "The key", "The old key", " is", " are", bos=False)


def test_answers_without_a_space_are_named(mini):
    found = patch_pair(mini, "The key", "The keys", "is", " are", bos=False, sites=[SITE])
    assert found.unspaced == ("is",)
    found = patch_pair(mini, "The key ", "The keys ", "is", " are", bos=False, sites=[SITE])
    assert found.unspaced == ()
