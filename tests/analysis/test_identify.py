"""No planted error passes and no right tensor is refused, in any family and precision."""

from functools import partial

import numpy as np
import pytest
import torch

from benchmarks.identify import DTYPES, Texts, networks, outcome
from probekit.analysis.identify import _is_rounding, identify
from probekit.errors import ConfigError, DataError, ProbekitError
from probekit.model.families.gpt2 import GPT2, GPT2Config
from probekit.model.families.opt import OPT, OPTConfig
from probekit.model.families.table import in_dtype, load_model
from probekit.model.sites.catalogue import DIFFERS, UNVERIFIED, VERIFIED
from probekit.model.text.tokenizer import Tokenizer

# The first network of each class.
FAMILIES = {
    type(network).__name__: (network, reference)
    for _, network, reference in reversed([*networks(every=False)])
}
SITE = "blocks.1.hook_resid_post"
TEXTS = ["The keys to the cabinet", "A letter from the editors", "Two dogs", "It rained a lot"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_right_tensors_are_verified_and_planted_errors_are_named(name, dtype):
    network, reference = FAMILIES[name]
    found = outcome(network, DTYPES[dtype], reference.to(torch.float32))
    assert [(kind, site, one.sentence) for kind, site, one, ok in found.right if not ok] == []
    for error, one in found.wrong:
        assert one.label == DIFFERS, (error.error, one.sentence)
        # In half precision a token may have another expert than in the pass that is compared.
        is_mixture = name in ("OLMoE", "Mixtral", "Qwen3Moe") and dtype != "float32"
        assert is_mixture or error.words in one.sentence, (error.error, one.sentence)
    # What it takes for a right tensor is not far above what the two precisions differ by.
    assert max(one.error / one.expected for _, _, one, _ in found.right) < 2


@pytest.fixture(scope="module")
def network():
    return load_model("mini")


@pytest.fixture(scope="module")
def texts(network):
    return Texts.drawn(network)


@pytest.fixture(scope="module")
def rows(network, texts):
    return texts.rows(network)


def found(arrays, texts, network, **options):
    at = texts.at.tolist()
    return identify(arrays, texts.ids.tolist(), network, **{"positions": at} | options)


def test_a_name_of_no_site_is_verified_as_what_it_is(network, texts, rows):
    heads = rows["blocks.3.attn.hook_v"].unflatten(1, (4, 64))
    arrays = {
        "mine": rows[SITE].numpy().astype(np.float64),
        "v": heads,
        "head": heads[:, 2].half(),
        "normed": network.final_norm(rows["blocks.5.hook_resid_post"]),
    }
    assert {name: one.label for name, one in found(arrays, texts, network).items()} == {
        "mine": f"{VERIFIED} {SITE}",
        "v": f"{VERIFIED} blocks.3.attn.hook_v",
        "head": f"{VERIFIED} blocks.3.attn.hook_v[head=2]",
        "normed": f"{VERIFIED} after the final norm",
    }


def test_numbers_count_streams_before_or_after_blocks_but_not_both(network, texts, rows):
    after = {f"layer_{n}": rows[f"blocks.{n}.hook_resid_post"] for n in range(6)}
    before = {f"layer_{n + 1}": stream for n, stream in enumerate(after.values())}
    for right in (after, before):
        labels = {one.label for one in found(right, texts, network).values()}
        assert labels == {f"{VERIFIED} blocks.{n}.hook_resid_post" for n in range(6)}
    mixed = found(before | {"layer_4": after["layer_4"]}, texts, network)
    assert [name for name, one in mixed.items() if one.label == DIFFERS] == ["layer_4"]
    assert "layer_4 counts the streams after blocks, unlike layer_1" in mixed["layer_4"].sentence
    two = found({"layer_1": after["layer_1"], "layer_3": before["layer_3"]}, texts, network)
    assert {one.label for one in two.values()} == {DIFFERS}


def test_a_number_of_a_layer_must_be_the_residual_stream_of_that_layer(network, texts, rows):
    arrays = {
        "layer_3": rows[SITE],
        "layer_4": rows["blocks.4.hook_mlp_out"],
        "layer_6": network.final_norm(rows["blocks.5.hook_resid_post"]),
    }
    earlier, part, last = found(arrays, texts, network).values()
    assert {earlier.label, part.label, last.label} == {DIFFERS}
    assert "not layer_3: one layer earlier than its name" in earlier.sentence
    assert "blocks.4.hook_mlp_out, not layer_4: one residual connection is missing" in part.sentence
    assert last.sentence.startswith("after the final norm, not layer_6")


@pytest.mark.parametrize(
    "name",
    ["blocks.9.hook_resid_post", "blocks.0.hook_resid_pst", "layers.2", "h.2", "block 2", "2", 2],
)
def test_a_name_that_claims_another_tensor_differs(network, texts, rows, name):
    ((_, one),) = found({name: rows["blocks.0.hook_resid_post"]}, texts, network).items()
    assert one.label == DIFFERS
    assert "blocks.0.hook_resid_post" in one.names


def test_the_sentence_has_error_precision_and_runner_up(network, texts, rows):
    (one,) = found({SITE: rows[SITE].bfloat16()}, texts, network).values()
    assert 0.001 < one.error < one.expected < 0.02
    assert one.runner_up not in ("", one.site)
    assert one.runner_up_error > 10 * one.error
    assert f"bfloat16: relative error {100 * one.error:.2g} %, as expected of its" in one.sentence
    assert f"runner-up {one.runner_up} with" in one.sentence


def test_sums_in_float32_of_parts_in_half_precision_are_recognised(network, texts, rows):
    half = {site: value.bfloat16().float() for site, value in rows.items()}
    summed = half["blocks.1.hook_resid_mid"] + half["blocks.1.hook_mlp_out"]
    steered = rows[SITE].clone()
    steered[::2] += 0.01 * rows[SITE].std(0)
    arrays = {SITE: summed, "blocks.1.hook_resid_pre": rows["blocks.1.hook_resid_pre"]}
    both = found(arrays, texts, network)
    assert both[SITE].label == f"{VERIFIED} {SITE}"
    assert "bfloat16: relative error" in both[SITE].sentence
    noise = torch.randn(16, 256, generator=torch.Generator().manual_seed(0))
    noisy = rows[SITE].clone()
    noisy[::2] += 0.01 * rows[SITE].std(0) * noise
    other = texts.without_bos.rows(in_dtype(network, torch.bfloat16))
    summed = other["blocks.1.hook_resid_mid"] + other["blocks.1.hook_mlp_out"]
    assert "BOS missing" in found({SITE: summed}, texts, network)[SITE].sentence
    for edited in (steered, noisy, rows[SITE] + 0.01 * rows[SITE].std(0), 1.01 * rows[SITE]):
        assert found({SITE: edited}, texts, network)[SITE].label == DIFFERS


@pytest.mark.parametrize("lower", [torch.float16, torch.bfloat16])
def test_numbers_of_a_higher_precision_may_be_computed_in_a_lower_one(network, texts, rows, lower):
    """As with autocast, or with the products of TF32."""
    with torch.autocast("cpu", lower):
        computed = texts.rows(network)
    for kept in {torch.float32, torch.float16} - {lower}:
        one = found({SITE: computed[SITE].to(kept)}, texts, network)[SITE]
        assert one.label == f"{VERIFIED} {SITE}"
        assert f"numbers with errors like those of {str(lower)[6:]}" in one.sentence


def test_a_cause_leaves_less_of_the_error_than_none(network, texts, rows):
    mixed = 0.99 * rows[SITE] + 0.01 * rows["blocks.2.hook_resid_post"]
    one = found({SITE: mixed}, texts, network)[SITE]
    assert one.label == DIFFERS
    assert one.sentence.startswith("matches no tensor")


def test_centred_streams_and_outputs_of_norms_are_named(network, texts, rows):
    centred = rows[SITE] - rows[SITE].mean(1, keepdim=True)
    norm = network.blocks[2].ln_1
    after = rows["blocks.2.ln1.hook_normalized"] * norm.gain + norm.bias
    two = found({SITE: centred, "blocks.2.ln1.hook_normalized": after}, texts, network)
    assert "TransformerLens" in two[SITE].sentence
    assert two["blocks.2.ln1.hook_normalized"].site == "blocks.2.ln1 after gain and bias"
    assert {one.label for one in two.values()} == {DIFFERS}


def test_named_heads_of_sites_on_request_are_compared_and_neurons_are_unverified(
    network, texts, rows
):
    site, neurons = "blocks.1.attn.hook_result", "blocks.1.mlp.hook_post"
    _, cache = network.run_with_cache(texts.ids, [site])
    heads = cache[site][torch.arange(32), texts.at]
    arrays = {f"{site}[head=2]": heads[:, 2], f"{site}[head=1]": heads[:, 3]}
    arrays[f"{neurons}[neuron=17]"] = rows[neurons][:, 17:18]
    right, wrong, neuron = found(arrays, texts, network).values()
    assert right.label == f"{VERIFIED} {site}[head=2]"
    assert (wrong.label, wrong.site) == (DIFFERS, f"{site}[head=3]")
    assert neuron.label == UNVERIFIED
    assert f"give all features of {neurons}" in neuron.sentence


def test_rows_of_another_model_are_no_tensor(network, texts, rows):
    (one,) = found({SITE: texts.rows(GPT2(network.config, seed=1))[SITE]}, texts, network).values()
    assert (one.label, one.site) == (DIFFERS, "")
    assert one.sentence.startswith("matches no tensor; nearest: ")
    assert one.error > 0.5


def test_few_texts_and_equal_rows_are_unverified(network, texts, rows):
    few = found({SITE: rows[SITE][:3]}, Texts(texts.ids[:3], texts.at[:3]), network)[SITE]
    equal = found({SITE: rows[SITE][:1].expand(32, -1)}, texts, network)[SITE]
    start = Texts(texts.ids, torch.zeros_like(texts.at))  # at BOS all texts are the same
    same = found({SITE: start.rows(network)[SITE] + 1e-6 * rows[SITE]}, start, network)[SITE]
    for one, words in (
        (few, "3 different texts up to the position"),
        (same, "1 different text up to the position"),
        (equal, "all compared rows are equal"),
    ):
        assert one.label == UNVERIFIED
        assert words in one.sentence


@pytest.mark.parametrize(("n_rows", "n_features"), [(4, 16), (4, 64), (32, 256)])
def test_independent_errors_are_rounding_and_those_of_one_vector_are_not(n_rows, n_features):
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    for _ in range(100):
        tensors = draw(5, n_rows, n_features)
        errors, usual = 1e-3 * draw(2, n_rows, n_features)
        assert _is_rounding(errors, usual, tensors)
    edited = errors + 0.01 * draw(n_features)
    assert _is_rounding(edited, usual, tensors) == (n_rows == 4)  # few rows do not decide
    assert not _is_rounding(errors + 0.01 * tensors[2], usual, tensors)
    assert _is_rounding(errors, torch.zeros_like(errors), tensors)


def test_small_factors_of_half_precision_are_named(network, texts):
    name = "blocks.2.hook_mlp_out"
    rows = texts.rows(in_dtype(network, torch.bfloat16))[name]
    one = found({name: (rows / 16).bfloat16()}, texts, network)[name]
    assert f"{name}; times 0.06" in one.sentence


def test_a_tensor_that_is_constant_over_the_rows_has_no_rounding(network, texts, rows):
    start = Texts(texts.ids, torch.full_like(texts.at, 3))
    name = "hook_pos_embed"
    value = start.rows(network)[name]
    noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(0))
    one = found({name: value.bfloat16().float() + 1e-7 * noise}, start, network)[name]
    assert one.label == DIFFERS


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_edits_of_half_precision_are_told_from_rounding(network, texts, dtype):
    """Each is within the error that is expected of the precision, or little above it."""
    rows = texts.rows(in_dtype(network, DTYPES[dtype]))
    right, other = rows[SITE], rows["blocks.4.hook_resid_post"]
    size = found({SITE: right.to(DTYPES[dtype])}, texts, network)[SITE].expected
    vector = torch.randn(256, generator=torch.Generator().manual_seed(0)).sign() * right.std(0)
    one_of_two = torch.stack([vector, vector.roll(9)])[torch.arange(32) % 2]
    edits = {
        "plus the same vector in every row, as by steering": right + 2 * size * vector,
        "but its difference is no rounding": right + 2.5 * size * one_of_two,
        "times 1.00" if dtype == "float16" else "times 1.0": (1 + 3 * size) * right,
        SITE: right + 2 * size * (other - right),
    }
    for words, edited in edits.items():
        one = found({SITE: edited.to(DTYPES[dtype])}, texts, network)[SITE]
        assert one.label == DIFFERS, words
        assert words in one.sentence


def test_the_rows_are_drawn_by_the_seed(network, texts, rows):
    changed = rows[SITE].clone()
    changed[7] += 1
    one_half = partial(found, {SITE: changed}, texts, network, n_rows=16)
    assert {one_half(seed=seed)[SITE].label for seed in range(4)} == {DIFFERS, f"{VERIFIED} {SITE}"}


def test_texts_are_read_with_and_without_bos(network):
    tokenizer = Tokenizer.from_pretrained("mini")
    for bos in (False, True):
        with torch.inference_mode():
            last = [
                network.run_with_cache(torch.from_numpy(tokenizer.encode(text, bos=bos).ids)[None])
                for text in TEXTS
            ]
        arrays = {"mine": torch.stack([cache[SITE][0, -1] for _, cache in last])}
        one = identify(arrays, TEXTS, "mini")["mine"]
        assert one.label == f"{VERIFIED} {SITE}"
        assert ("with BOS" in one.sentence) == bos


def test_faults_are_explained(network, texts, rows):
    with pytest.raises(ConfigError, match="arrays is of type list"):
        found([rows[SITE]], texts, network)
    with pytest.raises(ConfigError, match="Texts need the tokenizer of a model"):
        identify({SITE: rows[SITE][:4]}, TEXTS, network)
    at = [*texts.at.tolist()[:-1], 8]
    for values, options, message in (
        (rows[SITE][:5], {}, "has 5 rows, but there are tokens of 32"),
        (rows[SITE][:, 1:], {}, "255 features, but no tensor of this GPT-2 has: d_model is"),
        (rows[SITE] / 0, {}, "NaN or infinite"),
        (rows[SITE].double() * 1e60, {}, r"infinite, first in row 0 \(32 such rows\)"),
        (rows[SITE], {"positions": 8}, "has no token at position 8: it has 8 tokens"),
        (rows[SITE], {"positions": at, "n_rows": 31, "seed": 2}, "Row 31 has no token"),
    ):
        with pytest.raises(DataError, match=message):
            found({SITE: values}, texts, network, **options)
    with pytest.raises(DataError, match="no rows to compare"):
        identify({SITE: rows[SITE][:0]}, [], network)
    for options in ({"n_rows": -1}, {"positions": [1, 2]}, {"positions": 0.5}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            found({SITE: rows[SITE]}, texts, network, **options)
    for values in (rows[SITE][:, 0], rows[SITE] * 1j, np.full((32, 256), None), [["a"] * 256] * 32):
        with pytest.raises(DataError, match="Give floating-point numbers, shape"):
            found({SITE: values}, texts, network)
    for wrong in (set(TEXTS), dict.fromkeys(TEXTS), TEXTS[0]):
        with pytest.raises(ConfigError, match="tokens is of type"):
            identify({SITE: rows[SITE]}, wrong, "mini")
    for ids in ([1.5, 2], [None], [[1], [2, 3]], torch.ones(1, 3).long(), "1 2", [True]):
        message = r"row 31: .* are not integers|token ids of each row"
        tokens = [*texts.ids.tolist()[:-1], ids]
        with pytest.raises(ProbekitError, match=message):
            identify({SITE: rows[SITE]}, tokens, network if ids != "1 2" else "mini")
    with pytest.raises(DataError, match=r"row 0: .* are not integers"):
        identify({SITE: rows[SITE]}, [[]] * 32, network)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "kind", [np.asarray, torch.as_tensor, lambda x: torch.tensor(x).bfloat16()]
)
def test_rows_that_were_not_drawn_must_be_finite_too(network, texts, rows, kind, value):
    values = rows["blocks.3.attn.hook_v"].unflatten(1, (4, 64)).numpy().copy()
    for row in range(32):
        wrong = values.copy()
        wrong[row, 1, 5] = value
        with pytest.raises(DataError, match=rf"infinite, first in row {row} \(1 such row\)"):
            found({"v": kind(wrong)}, texts, network, n_rows=4)


@pytest.mark.parametrize("name", ["ln_final", "ln_final_out", "ln_finals.0"])
def test_a_name_that_begins_like_the_final_norm_is_none_of_its_sites(network, texts, rows, name):
    (one,) = found({name: rows[SITE]}, texts, network).values()
    assert one.label == f"{VERIFIED} {SITE}"


@pytest.mark.parametrize("name", ["ln_final.hook_normalized", "ln_final.hook_scale"])
def test_another_tensor_than_a_site_of_the_final_norm_is_named(network, texts, rows, name):
    normed = network.final_norm(rows["blocks.5.hook_resid_post"])
    (one,) = found({name: normed}, texts, network).values()
    assert one.label == DIFFERS
    assert one.sentence.partition(";")[0] == f"after the final norm, not {name}"


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("n_together", [4, 8, 32])
def test_padding_that_was_read_is_named(network, side, n_together):
    generator = np.random.default_rng(0)
    ids = [generator.integers(1, network.config.d_vocab, size=n) for n in range(3, 35)]
    order = generator.permutation(32)
    rows = np.empty((32, network.config.d_model), np.float32)
    for numbers in np.split(order, 32 // n_together):
        width = max(len(ids[n]) for n in numbers)
        for n in numbers:
            more = np.full(width - len(ids[n]), 7)
            parts = [ids[n], more] if side == "right" else [more, ids[n]]
            tokens = torch.tensor(np.concatenate(parts)[None])
            _, cache = network.run_with_cache(tokens, [("resid_post", 1)], logits=False)
            rows[n] = cache["resid_post", 1][0, -1]
    (one,) = identify({SITE: rows}, [one.tolist() for one in ids], network).values()
    assert one.label == DIFFERS
    assert f"only {32 // n_together} of 32 rows, the longest, are those of {SITE}" in one.sentence
    assert "with padding on the right, index -1 is padding; on the left, a model" in one.sentence


def test_half_of_the_rows_of_another_tensor_are_no_padding(network, texts, rows):
    mixed = torch.cat([rows[SITE][:16], rows["blocks.4.hook_resid_post"][16:]])
    (one,) = found({SITE: mixed}, texts, network).values()
    assert one.sentence.startswith("only 16 of 32 rows are those of")


def test_tensors_that_the_precision_does_not_distinguish_are_unverified():
    config = GPT2Config(n_layer=2, n_head=3, n_embd=48, vocab_size=97, n_positions=16)
    network = GPT2(config, seed=0).requires_grad_(False)
    for block in network.blocks:
        block.attn.c_proj.weight *= 0.01
    texts, name = Texts.drawn(network), "blocks.1.hook_resid_pre"
    mid = texts.rows(network)["blocks.1.hook_resid_mid"]
    dtypes = (torch.float32, torch.bfloat16)
    exact, half = (found({name: mid.to(one)}, texts, network)[name] for one in dtypes)
    assert "the output of attention is added already" in exact.sentence
    assert half.label == UNVERIFIED
    assert "blocks.1.hook_resid_mid or" in half.sentence
    assert "too similar to distinguish" in half.sentence


def test_massive_features_do_not_hide_the_layer():
    """Two features are much larger than the others, as in deep networks."""
    sizes = {"n_layer": 4, "n_head": 3, "n_embd": 48, "vocab_size": 97, "n_positions": 16}
    network = GPT2(GPT2Config(**sizes, bos_token_id=1), seed=0).requires_grad_(False)
    network.wte.weight[:, :2] += 100
    for block in network.blocks:
        block.ln_1.weight[2:] *= 20
        block.ln_2.weight[2:] *= 20
    texts = Texts.drawn(network)
    rows = texts.rows(network)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found_ = found({SITE: rows["blocks.2.hook_resid_post"].to(dtype)}, texts, network)[SITE]
        assert "one layer later than its name" in found_.sentence


@pytest.fixture(scope="module")
def sparse():
    """A network most of whose neurons are 0 in all rows, some of them only just."""
    network = OPT(OPTConfig("opt", 97, 48, 112, 3, 3, 16), seed=0).requires_grad_(False)
    texts = Texts.drawn(network)
    highest = texts.rows(network)["blocks.1.mlp.hook_pre"].amax(0)
    dict(network.named_parameters())["decoder.layers.1.fc1.bias"][:80] -= highest[:80] + 1e-5
    return network, texts, texts.rows(network)


@pytest.mark.parametrize("dtype", DTYPES)
def test_neurons_that_never_fire_decide_nothing(sparse, dtype):
    network, texts, rows = sparse
    name, dtype = "blocks.1.mlp.hook_post", DTYPES[dtype]
    right = rows[name]
    assert float((right == 0).all(0).float().mean()) > 0.5
    noise = torch.randn(right.shape, generator=torch.Generator().manual_seed(0))
    noisy = right + 0.25 * right.std(0) * noise
    computed = texts.rows(in_dtype(network, dtype))[name]
    for given, is_right in ((right, True), (computed, True), (noisy, False)):
        one = found({name: given.to(dtype)}, texts, network)[name]
        assert one.label == (f"{VERIFIED} {name}" if is_right else DIFFERS), one.sentence
        assert one.expected < 0.1


def test_sparse_sums_in_float32_of_parts_in_half_precision_are_recognised(sparse):
    network, texts, rows = sparse
    name = "blocks.1.mlp.hook_post"
    given = texts.rows(in_dtype(network, torch.bfloat16))[name]
    given = (given + 1e-5 * given.sign()) * (rows[name] > 0)  # not in bfloat16
    assert found({name: given}, texts, network)[name].label == f"{VERIFIED} {name}"


def test_a_tensor_beyond_the_range_of_a_precision_is_not_what_has_it():
    """Features of Gemma 3 exceed the largest number of float16: nothing is expected of them."""
    config = GPT2Config(n_layer=2, n_head=3, n_embd=48, vocab_size=97, n_positions=16)
    network = GPT2(config, seed=0).requires_grad_(False)
    network.wte.weight[:, 0] = 1e5
    texts, name = Texts.drawn(network), "blocks.1.hook_resid_pre"
    right = texts.rows(network)[name]
    noise = torch.randn(right.shape, generator=torch.Generator().manual_seed(0))
    for given in (right, right + right.std(0) * noise):
        one = found({name: given.clamp(max=65504).half()}, texts, network)[name]
        assert (one.label, one.site) == (DIFFERS, ""), one.sentence
        assert one.expected < 0.01
    part = "blocks.1.hook_mlp_out"
    whole = found({part: texts.rows(network)[part].half()}, texts, network)[part]
    assert whole.label == f"{VERIFIED} {part}"
