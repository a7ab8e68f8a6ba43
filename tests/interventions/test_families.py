"""Networks of other families: patches and edits equal whole passes with the same edit."""

import pytest
import torch

from probekit.errors import ConfigError
from probekit.interventions.base_pass import linear_entry, stream_entry
from probekit.interventions.edits import replace, run_edited, zero
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.patching import patch
from probekit.model.families.table import from_transformers
from probekit.model.passes.inputs import TokenBatch
from probekit.model.passes.taps import head_or_neuron
from probekit.model.sites.sites import SiteSelection
from tests.model.families.configurations import TYPICAL, rows

SITES = (
    "hook_embed",
    "blocks.*.hook_resid_*",
    "blocks.*.hook_attn_out",
    "blocks.2.hook_mlp_out",
    "blocks.*.attn.hook_z[head=1]",
    "blocks.1.attn.hook_result[head=0]",
    "blocks.0.mlp.hook_post",
    "blocks.1.mlp.hook_post[neuron=4]",
    "blocks.1.attn.hook_v",
    "blocks.1.attn.hook_rot_q",
    "blocks.2.mlp.hook_pre",
)


def network(name):
    (row,) = rows([name])
    return from_transformers(row.reference(torch.float64))


@pytest.fixture(scope="module", params=TYPICAL)
def model(request):
    return network(request.param)


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 97, (2, 8), generator=generator)
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[1, :3] = False
    return TokenBatch(ids, mask, torch.zeros(2, 8, 2, dtype=torch.int64))


def test_patches_equal_whole_passes(model):
    clean, corrupt = batch(1), batch(2)
    answer, wrong = torch.tensor([3, 5]), torch.tensor([40, 41])
    measure, two = AnswerMeasure(answer, wrong, "logit_difference"), torch.arange(2)
    for where in SITES:
        for row in patch(model, clean, corrupt, measure, where, at="each"):
            if row.position not in (0, 3):
                continue
            (selection,) = model.sites.select([row.site])
            _, source = model.run_with_cache(corrupt, [selection.site])
            values = head_or_neuron(model.sites, source[selection.site], selection)
            mask = torch.zeros_like(clean.mask)
            mask[two, clean.mask.int().argmax(1) + row.position] = True
            logits = run_edited(model, clean, [(row.site, replace(values, mask))])[:, -1]
            expected = (logits[two, answer] - logits[two, wrong]).mean().item()
            assert row.patched == pytest.approx(expected, rel=1e-8, abs=1e-9), row.site


@pytest.mark.parametrize(("name", "cap"), [("gemma2", 3.0), ("neox", None)])
def test_measures_respect_the_softcap_of_logits(name, cap):
    model, clean = network(name), batch(1)
    answer, two = torch.tensor([3, 5]), torch.arange(2)
    logits, cache = model.run_with_cache(clean, [("resid_post", -1)])
    assert cap is None or logits.abs().max() < cap
    final = cache["resid_post", -1][:, -1]
    expected = {
        "logit_difference": logits[two, -1, answer] - logits[two, -1, answer + 40],
        "loss": -logits[:, -1].log_softmax(-1)[two, answer],
    }
    for measured, value in expected.items():
        measure = AnswerMeasure(answer, answer + 40, measured)
        torch.testing.assert_close(measure.score(model, final, two, final), value)


def test_where_sites_enter_the_stream():
    def place(name, site, head=None):
        entry = stream_entry(network(name), SiteSelection(site, head=head))
        return entry and (entry.layer, entry.after_attention)

    site, heads = "blocks.1.hook_attn_out", "blocks.1.attn.hook_z"
    assert place("neox", site) == place("neox", heads, head=1) == (2, False)
    assert place("neox in sequence", site) == place("gemma2", site) == (1, True)
    assert place("gemma2", heads, head=1) is None  # a norm follows
    with pytest.raises(ConfigError, match="is not a part of the residual stream") as caught:
        linear_entry(network("gemma2"), SiteSelection("blocks.1.mlp.hook_post"))
    assert "mlp.hook_post" not in str(caught.value).partition("Allowed")[2]


def test_an_edit_changes_the_pass():
    llama, tokens = network("llama3"), torch.tensor([[3, 14, 15, 92]])
    site, other = "blocks.0.hook_resid_post", tokens.flip(1)
    _, cache = llama.run_with_cache(other, [site])
    patched = run_edited(llama, tokens, [(site, replace(cache[site]))])
    torch.testing.assert_close(patched, llama(other))
    edited = run_edited(llama, tokens, [("blocks.1.attn.hook_v[kv_head=1]", zero())])
    assert not torch.allclose(edited, llama(tokens))
