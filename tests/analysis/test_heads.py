"""Scores of heads and statistics of their weights equal their definitions."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from probekit.analysis import heads
from probekit.analysis.heads import head_scores, query_key_value, random_repeats, score_heads
from probekit.model.families.gpt2 import GPT2, GPT2Config
from tests.model.reference import TINY

N = 7
IDS = torch.tensor([5, 6, 7, 5, 6, 7, 8])


def looking(*sources):
    """Return the pattern of a head in which each destination attends to one source."""
    return torch.eye(len(sources))[list(sources)]


# Each head does one thing only; a token without a source attends to itself.
PREVIOUS = looking(0, 0, 1, 2, 3, 4, 5)
DUPLICATE = looking(0, 1, 2, 0, 1, 2, 6)
INDUCTION = looking(0, 1, 2, 1, 2, 3, 6)
FIRST = looking(*[0] * N)
EVEN = torch.ones(N, N).tril() / torch.arange(1, N + 1)[:, None]
HEADS = torch.stack([PREVIOUS, DUPLICATE, INDUCTION, FIRST, EVEN])


def test_each_score_is_one_only_for_the_matching_head():
    scores = head_scores(HEADS, IDS)
    assert list(scores) == list(heads.HEAD_SCORES)
    for head, name in enumerate(("previous_token", "duplicate_token", "induction", "first_token")):
        assert scores[name][head] == pytest.approx(1)
        assert max(scores[name][[i for i in range(len(HEADS)) if i != head]]) <= 0.5


def test_scores_of_a_uniform_head():
    scores = {name: score[-1].item() for name, score in head_scores(HEADS, IDS).items()}
    rows = range(2, N + 1)  # destinations 1 to 6 see so many tokens
    expected = {
        "previous_token": sum(1 / n for n in rows) / 6,
        "duplicate_token": (1 / 4 + 1 / 5 + 1 / 6) / 3,
        "induction": (1 / 4 + 1 / 5 + 1 / 6) / 3,
        "first_token": sum(1 / n for n in rows) / 6,
        "entropy": sum(math.log(n) for n in rows) / 6,
        "distance": sum((n - 1) / 2 for n in rows) / 6,
    }
    assert scores == pytest.approx(expected)


def test_weights_on_all_earlier_occurrences_are_summed():
    patterns = torch.eye(5)[None].clone()
    patterns[0, 4] = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15])
    scores = head_scores(patterns, torch.tensor([5, 5, 6, 7, 5]))
    # Destinations 1 and 4 repeat an earlier token; 1 attends to itself, which does not count.
    assert scores["duplicate_token"].item() == pytest.approx((0 + 0.1 + 0.2) / 2)
    # What followed token 5 before position 4: positions 1 and 2. Before position 1: itself.
    assert scores["induction"].item() == pytest.approx(0.2 + 0.3)


def test_leading_axes_and_any_precision_are_supported():
    scores = head_scores(torch.stack([HEADS, HEADS.flip(0), HEADS]).bfloat16(), IDS)
    for name, score in head_scores(HEADS, IDS).items():
        assert (scores[name].shape, scores[name].dtype) == ((3, 5), torch.float32)
        assert scores[name].is_contiguous()  # safetensors writes others wrongly
        assert torch.allclose(scores[name][1], score.flip(0), atol=0.02)
    assert head_scores(HEADS.double(), IDS)["entropy"].dtype == torch.float64


def test_a_score_defined_for_no_token_is_nan():
    scores = head_scores(HEADS, torch.arange(N))
    assert scores["duplicate_token"].isnan().all()
    assert scores["induction"].isnan().all()
    assert not scores["previous_token"].isnan().any()
    alone = head_scores(torch.ones(2, 3, 1, 1), torch.tensor([4]))
    assert all(score.isnan().all() and score.shape == (2, 3) for score in alone.values())


@pytest.mark.parametrize(
    "call",
    [
        "random_repeats(range(10), 0, 3)",
        "random_repeats(range(10), 1, 0)",
        "random_repeats(range(10), 1, 11)",
        "score_heads(GPT2(TINY, seed=2), [])",
        "score_heads(GPT2(TINY, seed=2), [PLAIN.repeat(6)])",
        "query_key_value(np.zeros((21, 62), np.float32), 3)",
        "query_key_value(np.zeros((21, 63), np.float32), 4)",
        "query_key_value(np.zeros((63, 21), np.float32), 3)",
    ],
)
def test_mistakes_are_refused(call, refused):
    refused(eval, call, globals())


REPEATING = torch.tensor([3, 14, 3, 14, 6])
PLAIN = torch.tensor([3, 14, 15, 92])


@pytest.fixture(scope="module")
def model():
    return GPT2(TINY, seed=2).requires_grad_(False)


def cell(rows, score, layer, head):
    """Value, standard deviation and number of texts of a score of a head."""
    own = rows.set_index(["score", "layer", "head"]).loc[(score, layer, head)]
    return own["value"], own["sd"], own["n"]


def test_a_row_is_the_mean_over_the_texts_that_define_the_score(model):
    rows = score_heads(model, [REPEATING, PLAIN])
    assert list(rows["score"].unique()) == list(heads.HEAD_SCORES)
    assert len(rows) == 6 * 4 * 3
    by_text, site = [], "blocks.*.attn.hook_pattern"
    for ids in (REPEATING, PLAIN):
        _, cache = model.run_with_cache(ids[None], [site])
        by_text.append(head_scores(cache.stack(site)[:, 0], ids))
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


def test_gpt2_small_is_known_by_its_weights_and_no_other_model_is(shared):
    real = load_file(shared / "weights/gpt2_small_part/part.safetensors")
    small = GPT2(GPT2Config(n_layer=1, vocab_size=5), seed=None)
    small.wpe.weight = torch.nn.Parameter(real["wpe.weight"])
    assert heads.known_heads(small) == heads.KNOWN_HEADS
    changed = real["wpe.weight"].clone()
    changed[5, 7] += 1e-3
    small.wpe.weight = torch.nn.Parameter(changed)
    assert heads.known_heads(small) == {}


D, N_HEADS = 21, 3
DRAWN = np.random.default_rng(0).normal(size=(D, 4 * D)).astype(np.float32)
C_ATTN, C_PROJ = np.split(DRAWN, [3 * D], axis=1)


def test_rows_equal_the_statistics_of_torch():
    tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) + 3
    row = heads.summarise([("a", tensor), ("b", tensor.half())]).iloc[0]
    assert (row["shape"], row["dtype"]) == ((5, 7), "float32")
    wide = tensor.double()
    expected = [wide.mean(), wide.std(correction=0), wide.norm(), wide.min(), wide.max()]
    found = row[["mean", "std", "norm", "least", "most"]].tolist()
    assert found == pytest.approx([value.item() for value in expected], rel=1e-9)


def test_parts_are_those_the_model_computes_with():
    model = GPT2.from_pretrained("mini")
    block = model.h[2].attn
    _, cache = model.run_with_cache(torch.tensor([[5, 6, 7]]))
    parts = query_key_value(block.c_attn.weight.T.numpy(), 4)
    x = cache["blocks.2.ln1.hook_normalized"] * model.h[2].ln_1.weight + model.h[2].ln_1.bias
    for part, site, b in zip(parts.values(), "qkv", block.c_attn.bias.view(3, 4, -1), strict=True):
        got = torch.einsum("bpd,hde->bphe", x, torch.tensor(part)) + b
        torch.testing.assert_close(got, cache[f"blocks.2.attn.hook_{site}"], rtol=1e-4, atol=1e-4)
    w_o = torch.tensor(heads.output(block.c_proj.weight.T.numpy(), 4))
    moved = torch.einsum("bphe,hed->bpd", cache["blocks.2.attn.hook_z"], w_o) + block.c_proj.bias
    torch.testing.assert_close(moved, cache["blocks.2.hook_attn_out"], rtol=1e-4, atol=1e-4)


def test_spectra_are_those_of_the_whole_products():
    found = heads.circuits(query_key_value(C_ATTN, N_HEADS), heads.output(C_PROJ, N_HEADS))
    d = D // N_HEADS
    for head in range(N_HEADS):
        columns = slice(head * d, head * d + d)
        q, k, v = (C_ATTN.astype(float)[:, part * D :][:, columns] for part in range(3))
        for name, product in {"QK": q @ k.T, "OV": v @ C_PROJ.astype(float)[columns]}.items():
            expected = np.linalg.svd(product, compute_uv=False)
            assert np.allclose(found[name][head], expected[:d], rtol=1e-10)
            assert np.allclose(expected[d:], 0, atol=1e-10)


def test_squares_of_norms_add_up():
    norms = heads.head_norms(query_key_value(C_ATTN, N_HEADS))
    assert norms.shape == (3, N_HEADS)
    assert np.sum(norms**2) == pytest.approx(np.sum(C_ATTN.astype(float) ** 2))
