"""Patched and ablated passes equal whole passes with the same edit; estimates are derivatives."""

from functools import cache

import numpy as np
import pytest
import torch

from probekit.errors import ConfigError
from probekit.interventions import edits, patching
from probekit.interventions.edits import replace, run_edited
from probekit.interventions.measures import AnswerMeasure, single_tokens
from probekit.interventions.names import MEASURES
from probekit.interventions.patching import ablated_values, estimated_effects, patch
from probekit.model.families.from_transformers import from_transformers
from probekit.model.families.gpt2 import GPT2
from probekit.model.passes.taps import head_or_neuron
from probekit.model.sites.sites import SiteSelection
from probekit.model.text.tokenizer import Tokenizer
from tests.interventions.tiny import as_batch, differences, measure_of, pairs
from tests.model.families.configurations import TYPICAL, rows
from tests.model.reference import TINY

LENGTHS = torch.tensor([5, 3, 8])
_OF_GPT2 = """
hook_embed hook_pos_embed blocks.*.hook_resid_* blocks.*.hook_*_out blocks.1.attn.hook_z
blocks.*.attn.hook_z[head=*] blocks.2.attn.hook_result[head=1] blocks.0.mlp.hook_post[neuron=4]
blocks.3.mlp.hook_post blocks.*.mlp.hook_pre blocks.3.attn.hook_q blocks.1.attn.hook_q[head=2]
blocks.2.attn.hook_v blocks.2.attn.hook_pattern blocks.2.attn.hook_pattern[head=0]
blocks.1.ln2.hook_normalized
"""
_OF_FAMILIES = """
hook_embed blocks.*.hook_resid_* blocks.*.hook_attn_out blocks.2.hook_mlp_out
blocks.*.attn.hook_z[head=1] blocks.1.attn.hook_result[head=0] blocks.0.mlp.hook_post
blocks.1.mlp.hook_post[neuron=4] blocks.1.attn.hook_v blocks.1.attn.hook_rot_q blocks.2.mlp.hook_pre
"""
GPT2_SITES, FAMILY_SITES = _OF_GPT2.split(), _OF_FAMILIES.split()
# Sites that a family does not have.
LACKING = dict.fromkeys(("olmoe", "mixtral"), ("hook_pre", "hook_post", "[neuron=4]"))
LACKING |= {"opt": ("hook_rot_q",), "qwen3_moe with dense blocks": ("[neuron=4]",)}


@cache
def network(name):
    """A tiny network of a family, in float64."""
    if name == "gpt2":
        return GPT2(TINY, seed=3).requires_grad_(False).double()
    (row,) = rows([name])
    return from_transformers(row.reference(torch.float64))


@pytest.fixture(scope="module")
def model():
    return network("gpt2")


def expected(model, clean, corrupt, where, at, measure):
    """The measure of a whole pass with the counterfactual's activations at the positions `at`."""
    (selection,) = model.sites.select([where])
    _, source = model.run_with_cache(corrupt, [selection.site])
    values = head_or_neuron(model.sites, source[selection.site], selection)
    return differences(run_edited(model, clean, [(where, replace(values, at))]), clean, measure)


@pytest.mark.parametrize(
    ("name", "side", "sites"),
    [
        *(("gpt2", side, [where]) for side in ("left", "right") for where in GPT2_SITES),
        *((name, "left", FAMILY_SITES) for name in TYPICAL),
    ],
)
def test_a_patch_of_all_positions_or_of_one_equals_a_whole_pass(name, side, sites):
    model, measure, (clean, corrupt) = network(name), measure_of(), pairs(side)
    first = clean.mask.int().argmax(1)
    for where in sites:
        if where.endswith(LACKING.get(name, ())):
            continue
        for row in patch(model, clean, corrupt, measure, where):
            own = expected(model, clean, corrupt, row.site, None, measure)
            assert row.patched == pytest.approx(own.mean(), rel=1e-8, abs=1e-9), row.site
        rows = patch(model, clean, corrupt, measure, where, at="each")
        assert {row.position for row in rows} == set(range(8))
        for row in rows:
            if row.position in (0, 1, 4):
                have = row.position < LENGTHS
                mask = torch.zeros_like(clean.mask)
                mask[have, (first + row.position)[have]] = True
                own = expected(model, clean, corrupt, row.site, mask, measure)[have.numpy()]
                assert row.patched == pytest.approx(own.mean(), rel=1e-8, abs=1e-9), row.site
                assert row.n == int(have.sum())


def test_a_position_of_each_text(model):
    (clean, corrupt), at = pairs(), torch.tensor([7, 6, 2])
    measure, site = measure_of(), "blocks.1.hook_resid_post"
    (row,) = patch(model, clean, corrupt, measure, site, at=at)
    own = expected(model, clean, corrupt, site, at, measure)
    assert (row.patched, row.position) == (pytest.approx(own.mean(), rel=1e-5), "chosen")
    ((key, values),) = estimated_effects(model, clean, corrupt, measure, site, at=at).items()
    each = estimated_effects(model, clean, corrupt, measure, site, at="each")
    by_position = {one.position: own for one, own in each.items()}
    assert key.position == "chosen"
    np.testing.assert_allclose(values, [by_position[4][0], by_position[1][1], by_position[2][2]])


def test_positions_after_the_measured_one_have_no_effect(model):
    (clean, corrupt), measured = pairs("right", [8, 8, 8]), torch.tensor([4, 4, 4])
    site = "blocks.1.hook_resid_post"
    rows = patch(model, clean, corrupt, measure_of(), site, at="each", measured=measured)
    effects = np.array([row.effect for row in rows])
    assert (np.abs(effects[:5]) > 1e-5).all()
    np.testing.assert_allclose(effects[5:], 0, atol=1e-6)


def test_more_pairs_than_a_batch(model):
    n = patching.PAIRS_AT_ONCE + 5
    clean, corrupt = pairs("left", [4 + i % 3 for i in range(n)])
    measure, site = measure_of(n=n), "blocks.2.hook_resid_mid"
    (row,) = patch(model, clean, corrupt, measure, site, groups=np.arange(n) // 3)
    own = expected(model, clean, corrupt, site, None, measure)
    assert (row.patched, row.n, row.groups) == (pytest.approx(own.mean(), rel=1e-5), n, n // 3 + 1)
    assert row.effect_low < row.effect < row.effect_high
    assert 0 < row.p <= row.p_best <= 1


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "neox"])  # gemma2 has a soft cap of logits
@pytest.mark.parametrize("measured", MEASURES)
def test_measures_are_those_of_the_logits(name, measured):
    model, (clean, _), measure = network(name), pairs(), measure_of(measured)
    logits, final = model(clean)[:, -1], edits.BasePass.keep(model, clean).final
    assert name != "gemma2" or logits.abs().max() < 3
    base, at = torch.tensor([2, 0, 1, 1]), torch.arange(4)
    other = torch.tensor([0, 2, 1, 0])  # rows whose logits are those of an edited pass
    found = measure.score(model, final[other], base, final)
    p, q = logits[base].softmax(-1), logits[other].softmax(-1)
    right, wrong = measure.answer[base], measure.wrong[base]
    lead = logits[other][at, right] - logits[other][at, wrong]
    wanted = {
        "logit_difference": lead,
        "accuracy": (lead > 0).double(),
        "probability": q[at, right] - q[at, wrong],
        "loss": -q[at, right].log(),
        "kl": (p * (p / q).log()).sum(-1),
    }
    torch.testing.assert_close(found, wanted[measured].double(), atol=1e-5, rtol=1e-4)
    if measured == "accuracy":  # without a wrong answer it is that of the largest logit
        measure = AnswerMeasure(logits.argmax(-1) - torch.tensor([0, 1, 0]), name="accuracy")
        assert measure.score(model, final, torch.arange(3), final).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    "call",
    [
        "patch(model, clean, short, measure_of(), 'hook_embed')",
        "patch(model, clean, same, measure_of(), 'hook_embed')",
        "patch(model, clean, pairs('right')[1], measure_of(), 'hook_embed')",
        "patch(model, clean, corrupt[:2], measure_of(), 'hook_embed')",
        "single_tokens(Tokenizer.from_pretrained('mini'), [' is', ' is are'])",
        "patch(model, clean, corrupt, measure_of(n=2), 'hook_embed')",
        "patch(model, clean, corrupt, measure_of(), 'hook_embed', at='eech')",
        "patch(model, clean, corrupt, measure_of(), 'hook_embed', at=torch.tensor([8, 0, 0]))",
        "patch(model, clean, corrupt, measure_of(), 'blocks.1.hook_resid_prr')",
        "patch(model, clean, corrupt, measure_of(), 'hook_embed', groups=['a'])",
        "measure_of('acuracy')",
        "estimated_effects(model, clean, corrupt, measure_of('accuracy'), 'hook_embed')",
        "estimated_effects(model, clean, corrupt, measure_of('kl'), 'hook_embed')",
        "AnswerMeasure(torch.tensor([3, 4]))",
        "AnswerMeasure(torch.tensor([3, 4]), torch.tensor([9, 4]))",
        "ablated_values(model, ragged, [measure_of(n=4)], [HEAD], 'resample')",
        "ablated_values(model, ragged, [measure_of(n=4)], [PATTERN], 'mean')",
    ],
)
def test_mistakes_are_refused(model, call, refused):
    clean, corrupt = pairs()
    own = [ids[mask] for ids, mask in zip(corrupt.ids, corrupt.mask, strict=True)]
    names = {
        "model": model,
        "Tokenizer": Tokenizer,
        "single_tokens": single_tokens,
        "clean": clean,
        "corrupt": corrupt,
        "same": as_batch([*own[:2], clean.ids[2]]),
        "short": as_batch([own[0], torch.tensor([5, 6]), torch.arange(8)]),
        "ragged": as_batch([one[n == 0 :] for n, one in enumerate(equal_lengths().ids)]),
    }
    refused(eval, call, globals() | names)


HEAD = SiteSelection("blocks.1.attn.hook_z", head=1)
PATTERN = SiteSelection("blocks.1.attn.hook_pattern")
AT = torch.tensor([2, 1, 3, 0])


def equal_lengths(n_tokens=5):
    generator = torch.Generator().manual_seed(1)
    return as_batch(list(torch.randint(0, TINY.vocab_size, (4, n_tokens), generator=generator)))


def ablated(model, replacement, at, **options):
    batch, measure = equal_lengths(), measure_of(n=4)
    where = "all" if at is None else at
    [found] = ablated_values(model, batch, [measure], [HEAD], replacement, at=where, **options)
    np.testing.assert_allclose(found.base, differences(model(batch), batch, measure), atol=1e-5)
    ((_, values),) = found.patched.items()
    return values


def edited(model, values, at):
    batch = equal_lengths()
    logits = run_edited(model, batch, [(HEAD, replace(values, at))])
    return differences(logits, batch, measure_of(n=4))


@pytest.mark.parametrize("at", [None, AT])
def test_zero_and_the_mean_of_other_texts_equal_a_whole_pass(model, at):
    others = equal_lengths(7)
    _, cache = model.run_with_cache(others, [HEAD.text])
    values = cache[HEAD.text]
    own = values if at is None else values[torch.arange(4), at]
    mean = own.reshape(-1, own.shape[-1]).mean(0)
    found = ablated(model, "mean", at, averaged=(others, at))
    np.testing.assert_allclose(found, edited(model, mean, at), atol=1e-5)
    found = ablated(model, "zero", at)
    np.testing.assert_allclose(found, edited(model, torch.zeros_like(mean), at), atol=1e-5)


@pytest.mark.parametrize("at", [None, AT])
def test_the_activations_of_another_text(model, at):
    """Each row has the value of a whole pass with the activations of some other row."""
    found = ablated(model, "resample", at, seed=5)
    _, cache = model.run_with_cache(equal_lengths(), [HEAD.text])
    options = []
    for shift in (1, 2, 3):
        donors = (torch.arange(4) + shift) % 4
        given = cache[HEAD.text][donors]
        if at is not None:
            moved = cache[HEAD.text].clone()
            moved[torch.arange(4), at] = given[torch.arange(4), at[donors]]
            given = moved
        options.append(edited(model, given, at))
    assert (np.abs(np.array(options) - found).min(0) < 1e-5).all()


def test_where_sites_of_families_enter_the_stream_and_heads_of_keys_and_values_are_edited():
    def place(name, site, head=None):
        entry = edits.stream_entry(network(name), SiteSelection(site, head=head))
        return entry and (entry.layer, entry.after_attention)

    site, heads = "blocks.1.hook_attn_out", "blocks.1.attn.hook_z"
    assert place("neox", site) == place("neox", heads, head=1) == (2, False)
    assert place("neox in sequence", site) == place("gemma2", site) == (1, True)
    assert place("gemma2", heads, head=1) is None  # a norm follows
    with pytest.raises(ConfigError, match="is not a part of the residual stream") as caught:
        edits.linear_entry(network("gemma2"), SiteSelection("blocks.1.mlp.hook_post"))
    assert "mlp.hook_post" not in str(caught.value).partition("Allowed")[2]
    llama, tokens = network("llama3"), torch.tensor([[3, 14, 15, 92]])
    one_head = run_edited(llama, tokens, [("blocks.1.attn.hook_v[kv_head=1]", edits.zero())])
    assert not torch.allclose(one_head, llama(tokens))


SITES = ["blocks.1.hook_resid_post", "blocks.2.attn.hook_z[head=1]", "blocks.2.attn.hook_pattern",
         "blocks.0.mlp.hook_post[neuron=4]", "blocks.1.ln2.hook_scale"]  # fmt: skip


def test_an_estimate_is_the_derivative_of_the_patch(model):
    (clean, corrupt), measure = pairs(), measure_of()
    site = "blocks.1.hook_resid_post"
    found = estimated_effects(model, clean, corrupt, measure, site, at="each")
    base, source = (model.run_with_cache(batch, [site])[1][site] for batch in (clean, corrupt))
    rows, step = torch.arange(3), 1e-4
    for patch_, values in found.items():
        have = torch.tensor([5, 3, 8]) > patch_.position
        at = (clean.mask.int().argmax(1) + patch_.position).clamp(max=7)
        change = (source - base)[rows, at] * have[:, None]
        scores = []
        for sign in (-1, 1):
            logits = run_edited(model, clean, [(site, edits.add(sign * step * change, at))])[:, -1]
            scores.append(logits[rows, measure.answer] - logits[rows, measure.wrong])
        slope = ((scores[1] - scores[0]) / (2 * step)).numpy()
        np.testing.assert_allclose(values[have], slope[have], rtol=1e-4, atol=1e-8)
        assert np.isnan(values[~have.numpy()]).all()


@pytest.mark.parametrize("site", SITES)
def test_small_patches_equal_their_estimates(model, site):
    """With sources that differ little, the estimate is exact to first order."""
    (clean, corrupt), measure = pairs(), measure_of()
    weights = model.wte.weight.clone()
    model.wte.weight.copy_(weights.mean(0) + 1e-4 * (weights - weights.mean(0)))
    try:
        estimates = estimated_effects(model, clean, corrupt, measure, site)
        (row,) = patch(model, clean, corrupt, measure, site)
    finally:
        model.wte.weight.copy_(weights)
    ((_, values),) = estimates.items()
    assert row.effect == pytest.approx(values.mean(), rel=0.02)
    assert row.effect != 0


def test_averaged_gradients_are_nearer_to_the_patch(model):
    (clean, corrupt), measure = pairs(lengths=[6] * 12), measure_of(n=12)
    sites = ["hook_embed"]
    exact = np.array([r.patched - r.base for r in patch(model, clean, corrupt, measure, sites)])
    errors = []
    for steps in (1, 8):
        found = estimated_effects(model, clean, corrupt, measure, sites, steps=steps)
        errors.append(abs(next(iter(found.values())).mean() - exact[0]))
    assert errors[1] < 0.2 * errors[0]


def test_the_largest_estimates_are_verified(model):
    (clean, corrupt), measure = pairs(lengths=[6] * 8), measure_of(n=8)
    sites = "blocks.*.attn.hook_z[head=*]"
    estimates = estimated_effects(model, clean, corrupt, measure, sites, at="each")
    found = patching.patch_top(model, clean, corrupt, measure, estimates, top=5, at="each")
    rows = patch(model, clean, corrupt, measure, sites, at="each")
    exact = {(row.site, row.position): row for row in rows}
    assert len(found) == len(exact) == 4 * 3 * 6
    verified = [one for one in found if one.verified]
    assert len(verified) == 5
    least = min(abs(one.estimate) for one in verified)
    assert all(abs(one.estimate) <= least for one in found if not one.verified)
    for one in verified:
        other = exact[one.patch.selection.text, one.patch.position]
        assert one.verified.effect == pytest.approx(other.effect, rel=1e-6)
        assert one.verified.p_best == pytest.approx(min(1, 72 * other.p))
    assert max(found, key=lambda one: abs(one.estimate)).verified
