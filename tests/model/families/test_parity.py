"""Networks of every family equal transformers at every tensor, from any block on."""

from itertools import product

import pytest
import torch

from probekit.analysis.logits import logit_lens, logits_of
from probekit.errors import ConfigError
from probekit.model.families.from_transformers import from_transformers, unstacked
from probekit.model.generation import KeyValueCache, generate
from tests.model.families.configurations import CONFIGURATIONS, by_day, rows
from tests.model.families.recorded import site_differences

N_TOKENS = 21  # more than every window
TOKENS = torch.randint(1, 97, (2, N_TOKENS), generator=torch.Generator().manual_seed(1))
LENGTHS = (N_TOKENS, 9)


@pytest.fixture(scope="module", params=by_day(CONFIGURATIONS))
def configuration(request):
    return request.param


@pytest.fixture(scope="module")
def reference(configuration):
    return configuration.reference()


@pytest.fixture(scope="module")
def ours(reference):
    return from_transformers(reference)


@pytest.fixture(scope="module")
def exact(configuration):
    reference = configuration.reference(torch.float64)
    return reference, from_transformers(reference)


@pytest.fixture(scope="module")
def model(exact):
    return exact[1]


def padded(side):
    """The rows of TOKENS, the second one shorter and padded; and the mask."""
    mask = torch.zeros(2, N_TOKENS, dtype=torch.bool)
    ids = torch.zeros(2, N_TOKENS, dtype=torch.int64)
    for row, length in enumerate(LENGTHS):
        columns = slice(N_TOKENS - length, None) if side == "left" else slice(length)
        ids[row, columns], mask[row, columns] = TOKENS[row, :length], True
    return ids, mask


def test_logits_in_float32_and_float64(reference, ours, exact):
    for (theirs, own), bound in (((reference, ours), 5e-5), (exact, 1e-10)):
        torch.testing.assert_close(own(TOKENS), theirs(TOKENS).logits, atol=bound, rtol=0)


def test_half_precision_keeps_the_stream_in_float32(configuration):
    """Every map receives its own dtype, and errors are those of rounding."""
    reference = configuration.reference(torch.bfloat16)
    half = from_transformers(reference)
    wide = from_transformers(reference.float())
    _, outputs = half.run_with_cache(TOKENS, ["blocks.*.hook_attn_out", "blocks.*.hook_mlp_out"])
    assert all(value.dtype == torch.bfloat16 for value in outputs.values())
    logits, cache = half.run_with_cache(TOKENS, ["blocks.*.hook_resid_post"])
    exact, expected = wide.run_with_cache(TOKENS, ["blocks.*.hook_resid_post"])
    assert all(value.dtype == torch.float32 for value in cache.values())
    assert (cache["resid_post", -1] - expected["resid_post", -1]).norm() < 0.1 * (
        expected["resid_post", -1].norm()
    )
    assert (logits - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("row", by_day(CONFIGURATIONS))
def test_every_site_equals_the_recorded_one(row, dtype, bound):
    reference = row.reference(dtype)
    found = site_differences(reference, from_transformers(reference), TOKENS)
    assert all(relative < bound for _, relative in found.values()), found


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_number(model, side):
    ids, mask = padded(side)
    together = model(ids, mask)
    for row, length in enumerate(LENGTHS):
        alone = model(TOKENS[row : row + 1, :length])[0]
        torch.testing.assert_close(together[row, mask[row]], alone, atol=1e-11, rtol=0)


def test_gradients_of_all_parameters(configuration):
    reference = configuration.reference(torch.float64)
    ours = from_transformers(reference).requires_grad_(True)
    found = torch.autograd.grad(ours.loss(TOKENS), list(ours.parameters()))
    grads = dict(zip((name for name, _ in ours.named_parameters()), found, strict=True))
    reference.requires_grad_(True)
    reference(TOKENS, labels=TOKENS).loss.backward()
    parameters = dict(reference.named_parameters())  # those that read images get no gradient
    theirs = {name: one.grad for name, one in parameters.items() if one.grad is not None}
    for name, expected in unstacked(theirs, ours.config.WEIGHTS):
        own = grads.pop(ours.config.WEIGHTS.in_network(name))
        if name not in theirs:  # a map of an expert
            torch.testing.assert_close(own, expected, atol=1e-7, rtol=1e-6)
            continue
        is_transposed = type(reference.get_submodule(name.rpartition(".")[0])).__name__ == "Conv1D"
        own = own.T if is_transposed and own.ndim == 2 else own
        torch.testing.assert_close(own, expected, atol=1e-7, rtol=1e-6)
    assert not grads


def test_a_hundred_greedy_tokens(exact):
    reference, ours = exact
    ids, mask = padded("left")
    theirs = reference.generate(
        ids, attention_mask=mask.long(), max_new_tokens=100, do_sample=False, use_cache=True
    )
    own = generate(ours, ids, 100, mask=mask)
    assert own.tolist() == theirs[:, N_TOKENS:].tolist()


def test_passes_with_a_cache_equal_one_pass(model):
    ids, mask = padded("left")
    past, parts = KeyValueCache(), []
    for start, end in ((0, 14), (14, 15), (15, 18), (18, N_TOKENS)):
        parts.append(model(ids[:, start:end], mask[:, :end][:, start:end], past=past))
    together = model(ids, mask)
    torch.testing.assert_close(torch.cat(parts, 1)[mask], together[mask], atol=1e-11, rtol=0)


IDS = torch.randint(1, 97, (2, 9), generator=torch.Generator().manual_seed(1))
MASK = torch.ones(2, 9, dtype=torch.bool)
MASK[1, :3] = False  # padded left


@pytest.fixture(scope="module")
def change():
    return torch.randn(2, 9, 24, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def edited(model, site, change):
    """The streams, keys and values of a whole pass in which a change is added at a site."""
    values = {}

    def tap(name, value):
        value = value + change if name == site else value
        values[name] = value
        return value

    model(IDS, MASK, tap)
    return values


@pytest.mark.parametrize("start", [0, 4])
def test_a_resumed_pass_equals_the_whole_with_an_edit_at_every_layer(model, change, start):
    """Later positions use the keys of earlier ones; some of them are selected."""
    n_layers = model.config.n_layers
    change = change * (torch.arange(9) >= start)[:, None]
    plain = edited(model, None, change)
    options, selected = {}, MASK.nonzero(as_tuple=True)
    if start:
        keys = "rot_k" if "blocks.0.attn.hook_rot_k" in plain else "k"
        options["before"] = [
            tuple(plain[f"blocks.{layer}.attn.hook_{name}"][:, :start] for name in (keys, "v"))
            for layer in range(n_layers)
        ]
        options["at"] = torch.tensor([[4, 1], [0, 3]])
        selected = torch.arange(2)[:, None], start + options["at"]
    streams = [name for name in ("resid_pre", "resid_mid") if f"blocks.0.hook_{name}" in plain]
    for layer, stream in product(range(n_layers), streams):
        site, after = f"blocks.{layer}.hook_{stream}", stream == "resid_mid"
        whole = edited(model, site, change)[f"blocks.{n_layers - 1}.hook_resid_post"]
        resid = (plain[site] + change)[:, start:]
        found = model.resume(resid, layer, after_attention=after, mask=MASK, **options)
        found = found if start else found[selected]
        torch.testing.assert_close(found, whole[selected], atol=1e-10, rtol=1e-10)


def test_the_output_matrix_of_the_mlp(model):
    if "blocks.1.mlp.hook_post" not in model.sites:
        with pytest.raises(ConfigError, match="experts, and no single output matrix"):
            model.mlp_output(1)
        return
    seen = {}
    output = model.blocks[1].get_submodule(model.config.WEIGHTS.neurons)
    output.register_forward_hook(lambda *given: seen.update(out=given[-1]))
    _, cache = model.run_with_cache(IDS, [("post", 1)])
    product = cache["post", 1] @ model.mlp_output(1).T
    bias = seen["out"] - product
    torch.testing.assert_close(bias, bias[:1, :1].expand_as(bias), atol=1e-10, rtol=1e-10)


def test_parallel_blocks_have_no_start_after_attention(model):
    if "blocks.0.hook_resid_mid" not in model.sites:
        with pytest.raises(ConfigError, match="parallel: they have no residual stream after"):
            model.resume(torch.zeros(1, 2, 24), 0, after_attention=True)


@pytest.mark.parametrize("name", ["gemma2 with biases", "gemma3", "gemma3 with a cap of logits"])
def test_the_lens_respects_the_cap(name):
    model = from_transformers(rows([name])[0].reference(torch.float64))
    _, cache = model.run_with_cache(TOKENS, [("resid_post", -1)])
    torch.testing.assert_close(logits_of(model, cache["resid_post", -1]), model(TOKENS))
    probability = logit_lens(model, TOKENS[0], top_k=1)["top_probability"][-1, :, 0]
    expected = model(TOKENS)[0].softmax(-1).amax(-1).float()
    torch.testing.assert_close(probability.float(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_scale_of_embeddings_is_rounded_to_the_dtype(dtype):
    reference = rows(["gemma3"])[0].reference(dtype)
    _, cache = from_transformers(reference).run_with_cache(TOKENS, ["hook_embed"])
    assert torch.equal(cache["hook_embed"], reference.model.embed_tokens(TOKENS))


@pytest.mark.parametrize("name", ["olmoe", "olmoe with normalized weights"])
def test_without_a_chosen_expert_the_mlp_returns_zeros(name):
    model = from_transformers(rows([name])[0].reference())
    outputs = []

    def tap(site, value):
        if site.endswith("hook_mlp_out"):
            outputs.append(value)
        return value * 0 if site.endswith("hook_chosen") else value

    assert model(TOKENS, tap=tap).isfinite().all()
    assert not any(output.any() for output in outputs)


def test_the_first_two_rows_of_positions_of_opt_are_not_read():
    theirs = rows(["opt"])[0].reference()
    model = from_transformers(theirs)
    logits = model(TOKENS)
    model.get_parameter("decoder.embed_positions.weight")[:2] = torch.nan
    assert torch.equal(model(TOKENS), logits)
    assert model.position_embedding.shape == (160, 24)
    last = torch.ones(1, 160, dtype=torch.int64)  # the last position is read too
    torch.testing.assert_close(model(last), theirs(last).logits, atol=5e-5, rtol=0)
