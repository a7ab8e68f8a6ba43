"""GPT-2: parity, padding, stopping, taps, initialisation, dropout, refusals."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from scipy import stats

from probekit.model.families.gpt2 import GPT2, GPT2Config
from tests.activations.captures import run
from tests.model.reference import SMALL, TINY, differences, pad
from tests.stored import each_line

TOKENS = torch.tensor([[3, 14, 15, 92, 6], [5, 35, 8, 9, 79]])


@pytest.fixture(scope="module")
def model():
    """A float64 model, so that only real differences show."""
    return GPT2(TINY, seed=1).double().requires_grad_(False)


def test_no_value_is_nan_under_left_padding(model):
    mask = torch.tensor([[False, False, False, True, True], [True] * 5])
    _, cache = model.run_with_cache(TOKENS, mask=mask)
    for site, value in cache.items():
        if not site.endswith("attn_scores"):
            assert value.isfinite().all(), site
    pattern = cache["pattern", 2]
    assert (pattern[0, :, 3:, :3] == 0).all()


def test_positions_are_counted_from_the_mask(model):
    mask = torch.tensor([[False, True, True, True, True], [True, True, False, True, True]])
    _, cache = model.run_with_cache(TOKENS, sites=["hook_pos_embed"], mask=mask, logits=False)
    wpe = model.wpe.weight
    assert torch.equal(cache["hook_pos_embed"][0, 1:], wpe[:4])
    assert torch.equal(cache["hook_pos_embed"][1, 3:], wpe[2:4])


def test_only_requested_sites_are_cached_and_keep_no_larger_storage(model):
    _, cache = model.run_with_cache(TOKENS, sites=[("q", 0), ("resid_post", 3)])
    assert list(cache) == ["blocks.0.attn.hook_q", "blocks.3.hook_resid_post"]
    for value in cache.values():
        assert value.untyped_storage().nbytes() == value.nbytes


def test_the_forward_stops_after_the_deepest_site(model):
    ran = []
    handle = model.h[2].register_forward_pre_hook(lambda *_: ran.append(1))
    logits, _ = model.run_with_cache(TOKENS, sites=[("attn_out", 1)], logits=False)
    handle.remove()
    assert logits is None
    assert not ran


def ids(*shape):
    return torch.zeros(shape, dtype=torch.int64)


def as_given(site, value):
    return value


@each_line("call")
def test_impossible_inputs_taps_and_sizes_are_refused_by_name(model, refused, call):
    refused(eval, call, globals() | {"model": model})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_zeroed_head_results_leave_exactly_the_bias(dtype):
    model = GPT2(TINY, seed=1).to(dtype)
    with torch.no_grad():
        model.h[1].attn.c_proj.bias.normal_()
    seen = {}

    def ablate(site, value):
        seen[site] = value
        return value * 0 if "result" in site else value

    model(TOKENS, tap=ablate, sites=["blocks.1.attn.hook_result", "blocks.1.hook_attn_out"])
    bias = model.h[1].attn.c_proj.bias
    assert torch.equal(seen["blocks.1.hook_attn_out"], bias.expand(2, 5, -1))


@pytest.mark.parametrize(("switch", "ending"), [("bias", ".bias"), ("qkv_bias", "c_attn.bias")])
def test_no_bias_is_the_same_as_a_bias_of_zero(switch, ending):
    without = GPT2(replace(TINY, **{switch: False}), seed=1).double()
    model = GPT2(TINY, seed=1).double()
    full, less = model.state_dict(), without.state_dict()
    assert full.keys() - less.keys() == {name for name in full if name.endswith(ending)}
    assert all(torch.equal(full[name], less[name]) for name in less)  # the same draws
    torch.testing.assert_close(without(TOKENS), model(TOKENS))

    def ablate(site, value):
        return value * 0.5

    results = [m(TOKENS, tap=ablate, sites=["blocks.*.attn.hook_result"]) for m in (model, without)]
    torch.testing.assert_close(*results)


def test_a_model_starts_without_importing_the_compiler():
    code = "import sys, probekit; probekit.GPT2(probekit.GPT2Config(), seed=None);"
    code += "print('torch._dynamo' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_padding_is_neither_predicted_nor_predicts(model):
    alone = model.loss(TOKENS[:1, :3])
    for side in ("left", "right"):
        ids, mask = pad([TOKENS[0, :3], TOKENS[1]], side, filler=7)
        losses = [model.loss(ids[row, None], mask[row, None]) for row in range(2)]
        torch.testing.assert_close(losses[0], alone, rtol=1e-5, atol=1e-5)
        together = (2 * losses[0] + 4 * losses[1]) / 6
        torch.testing.assert_close(model.loss(ids, mask), together, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float16, 0.01), (torch.bfloat16, 0.08)], ids=str
)
def test_half_precision_is_close_at_positions_of_large_norm(dtype, tolerance):
    model = GPT2(TINY, seed=1)
    with torch.no_grad():
        model.wpe.weight[0, 5] = 3000.0  # GPT-2's position 0, whose squares no float16 holds
    expected, cache = model.run_with_cache(TOKENS)
    logits, halved = model.to(dtype).run_with_cache(TOKENS)
    spread = expected.std()
    assert (logits.float() - expected).abs().max() < 5 * tolerance * spread
    for site in ("blocks.0.ln1.hook_normalized", "ln_final.hook_normalized"):
        assert (halved[site].float() - cache[site]).abs().max() < 5 * tolerance * cache[site].std()


CASES = [pytest.param(TINY, [5, 1, 8, 3], id="tiny"), pytest.param(SMALL, [7, 2], id="gpt2-shape")]


@pytest.mark.parametrize(
    ("dtype", "logit_bound", "site_bound"),
    [(torch.float32, 5e-5, 1e-5), (torch.float64, 1e-10, 1e-10)],
    ids=["float32", "float64"],
)
@pytest.mark.parametrize(("config", "lengths"), CASES)
def test_every_site_equals_the_reference(config, lengths, dtype, logit_bound, site_bound):
    for side, worst in differences(config, dtype, lengths).items():
        assert len(worst) == 2 + 4 + 18 * config.n_layer
        for site, (absolute, relative) in worst.items():
            is_logits = site.startswith("logits")
            assert absolute < logit_bound if is_logits else relative < site_bound, (side, site)


SIZES = GPT2Config(n_layer=3, n_embd=192, n_head=3, vocab_size=500, tie_word_embeddings=False)


@pytest.mark.parametrize("std", [0.02, 0.1])
def test_every_matrix_is_drawn_from_its_normal_distribution(std):
    names = []
    config = replace(SIZES, initializer_range=std)
    for name, parameter in GPT2(config, seed=0).named_parameters():
        if parameter.ndim == 2:
            expected = std / (6**0.5) if name.endswith("c_proj.weight") else std
            drawn = parameter.detach().flatten().double()
            assert abs(drawn.std().item() / expected - 1) < 0.02, name
            assert abs(drawn.mean().item()) < 5 * expected / len(drawn) ** 0.5, name
            assert stats.kstest((drawn / expected).numpy(), "norm").pvalue > 1e-4, name
            names.append(name)
    assert len(names) == 3 * 4 + 3
    assert "lm_head.weight" in names


DROPPED = torch.randint(TINY.vocab_size, (7, 19), generator=torch.Generator().manual_seed(4))
NONE = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
RATES = tuple(NONE)
EXPLICIT = "blocks.*.attn.hook_pattern"


def training_model(**rates):
    model = GPT2(replace(TINY, **(NONE | rates), initializer_range=0.3), seed=1).double()
    return model.train().requires_grad_(False)


@pytest.mark.parametrize("rate", RATES)
def test_each_rate_acts_in_training_and_nowhere_else(rate):
    plain, model = training_model(), training_model(**{rate: 0.5})
    assert not torch.equal(model(DROPPED), plain(DROPPED))
    assert torch.equal(model.eval()(DROPPED), plain(DROPPED))


@pytest.mark.parametrize("sites", [None, [EXPLICIT]], ids=["fused", "explicit"])
def test_attention_is_dropped_on_both_paths_by_the_same_share(sites):
    """With v all ones, z is the sum of the remaining pattern: mean 1, spread set by p."""
    model, p = training_model(attn_pdrop=0.4), 0.4
    seen = {}

    def ones(site, value):
        seen[site] = value
        return torch.ones_like(value) if site.endswith("hook_v") else value

    asked = ["blocks.0.attn.hook_v", "blocks.0.attn.hook_z", *(sites or [])]
    torch.manual_seed(0)
    model(DROPPED.repeat(60, 1), tap=ones, sites=asked)
    z = seen["blocks.0.attn.hook_z"][..., 0]  # [batch pos n_heads]
    first = z[:, 0]  # a single key with weight 1: scaled by 1 / (1 - p) or dropped
    values = {round(value, 6) for value in first.unique().tolist()}
    assert values == {0.0, round(1 / (1 - p), 6)}
    assert abs((first == 0).double().mean().item() - p) < 0.05
    assert abs(z[:, 10:].mean().item() - 1) < 0.02


@pytest.mark.parametrize(
    ("rate", "site", "also"),
    [
        ("resid_pdrop", "blocks.1.hook_attn_out", "blocks.1.hook_resid_mid"),
        ("resid_pdrop", "blocks.1.hook_mlp_out", "blocks.1.hook_resid_post"),
        ("embd_pdrop", "blocks.0.hook_resid_pre", "blocks.0.ln1.hook_normalized"),
    ],
)
def test_the_share_of_zeros_is_the_rate_and_the_rest_is_scaled(rate, site, also):
    torch.manual_seed(0)
    _, cache = training_model(**{rate: 0.25}).run_with_cache(DROPPED.repeat(20, 1), [site, also])
    _, plain = training_model().run_with_cache(DROPPED.repeat(20, 1), [site])
    kept = cache[site] != 0
    assert abs(kept.double().mean().item() - 0.75) < 0.01
    if rate == "embd_pdrop":  # no dropout before it
        torch.testing.assert_close(cache[site][kept], plain[site][kept] / 0.75)


def test_the_value_at_a_site_is_the_one_that_is_added():
    """Dropout is applied before the site: the residual stream is the sum of the site values."""
    _, cache = training_model(resid_pdrop=0.3).run_with_cache(DROPPED)
    added = cache["resid_pre", 2] + cache["attn_out", 2]
    assert torch.equal(cache["resid_mid", 2], added)


def test_reading_a_site_does_not_change_the_dropout_masks():
    model = training_model(resid_pdrop=0.3, embd_pdrop=0.1)
    torch.manual_seed(5)
    plain = model(DROPPED)
    torch.manual_seed(5)
    read = model(DROPPED, tap=lambda _, value: value, sites=["*"])
    assert torch.allclose(read, plain, atol=1e-12)


def test_capture_from_a_model_in_training_is_refused(tmp_path):
    with pytest.raises(AssertionError, match=r"model\.eval\(\)"):
        run(tmp_path, training_model())
