"""Scores over texts and over repeated random tokens."""

import math

import pytest
import torch
from safetensors.torch import load_file

from probekit.analysis.heads import (
    HEAD_SCORES,
    KNOWN_HEADS,
    head_scores,
    known_heads,
    random_repeats,
    score_heads,
)
from probekit.errors import ConfigError, DataError
from probekit.model.families.gpt2 import GPT2Config
from probekit.model.gpt2 import GPT2
from tests.model.reference import TINY

REPEATING = torch.tensor([3, 14, 3, 14, 6])
PLAIN = torch.tensor([3, 14, 15, 92])


@pytest.fixture(scope="module")
def model():
    return GPT2(TINY, seed=2).requires_grad_(False)


def cell(rows, score, layer, head):
    ((value, sd, n),) = rows.loc[
        (rows["score"] == score) & (rows["layer"] == layer) & (rows["head"] == head),
        ["value", "sd", "n"],
    ].to_numpy()
    return value, sd, n


def test_a_row_is_the_mean_over_the_texts_that_define_the_score(model):
    rows = score_heads(model, [REPEATING, PLAIN])
    assert list(rows["score"].unique()) == list(HEAD_SCORES)
    assert len(rows) == 6 * 4 * 3
    by_text = []
    for ids in (REPEATING, PLAIN):
        _, cache = model.run_with_cache(ids[None], ["blocks.*.attn.hook_pattern"])
        by_text.append(head_scores(cache.stack("blocks.*.attn.hook_pattern")[:, 0], ids))
    for layer in range(4):
        for head in range(3):
            both = [float(scores["previous_token"][layer, head]) for scores in by_text]
            expected = (sum(both) / 2, abs(both[0] - both[1]) / math.sqrt(2), 2)
            assert cell(rows, "previous_token", layer, head) == pytest.approx(expected, rel=1e-5)
            value, sd, n = cell(rows, "induction", layer, head)
            assert value == pytest.approx(float(by_text[0]["induction"][layer, head]))
            assert math.isnan(sd)
            assert n == 1


def test_a_score_defined_for_no_text_is_nan(model):
    value, _, n = cell(score_heads(model, [PLAIN]), "duplicate_token", 1, 2)
    assert math.isnan(value)
    assert n == 0


def test_random_tokens_occur_exactly_twice():
    sequences = random_repeats(range(10, 90), 5, 30, seed=7, bos=3)
    assert len({tuple(ids.tolist()) for ids in sequences}) == 5
    for ids in sequences:
        assert ids[0] == 3
        assert torch.equal(ids[1:31], ids[31:])
        assert len(set(ids[1:31].tolist())) == 30
        assert 10 <= int(ids[1:].min()) <= int(ids[1:].max()) < 90
    again, other = (random_repeats(range(10, 90), 5, 30, seed=s, bos=3) for s in (7, 8))
    assert all(map(torch.equal, sequences, again))
    assert not any(map(torch.equal, sequences, other))


def test_an_induction_head_is_detected():
    """Position embeddings alone can make an induction head when the repeat has one length."""
    built = GPT2(GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=40, n_positions=24), seed=0)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.zero_()
        built.h[0].ln_1.weight.fill_(1.0)
        built.wpe.weight[:, :24] = torch.eye(24) * 50
        # Head 0 looks 9 back: a repeat of 10 tokens, and one on.
        query, key = built.h[0].attn.c_attn.weight[:16], built.h[0].attn.c_attn.weight[32:48]
        for position in range(16):
            key[position, position + 1] = 10
            query[position, position + 10] = 10
    rows = score_heads(built, random_repeats(range(40), 3, 10, seed=0))
    assert cell(rows, "induction", 0, 0)[0] > 0.9
    assert cell(rows, "induction", 0, 1)[0] < 0.2
    assert cell(rows, "previous_token", 0, 0)[0] < 0.2


@pytest.mark.parametrize(("n", "length"), [(0, 3), (1, 0), (1, 11)])
def test_impossible_repeats_are_refused(n, length):
    with pytest.raises(ConfigError, match=r"at least 1|1 to 10"):
        random_repeats(range(10), n, length)


def test_no_text_and_texts_that_are_too_long_are_refused(model):
    with pytest.raises(DataError, match="Give at least one"):
        score_heads(model, [])
    with pytest.raises(DataError, match="context of 23"):
        score_heads(model, [PLAIN.repeat(6)])


def test_gpt2_small_is_known_by_its_weights_and_no_other_model_is(shared):
    part = load_file(shared / "weights" / "gpt2_small_part" / "part.safetensors")
    small = GPT2(GPT2Config(n_layer=1, vocab_size=5), seed=None)
    small.wpe.weight = torch.nn.Parameter(part["wpe.weight"])
    assert known_heads(small) == KNOWN_HEADS
    changed = part["wpe.weight"].clone()
    changed[5, 7] += 1e-3
    small.wpe.weight = torch.nn.Parameter(changed)
    assert known_heads(small) == {}


def test_another_model_of_the_same_sizes_has_no_known_heads():
    assert known_heads(GPT2(GPT2Config(n_layer=1, vocab_size=5), seed=0)) == {}
