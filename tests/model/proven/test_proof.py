"""What is proven of tiny networks of transformers, and equal to our own networks at every site."""

import pytest
import torch

from benchmarks.tiny_networks import tiny_network
from probekit.model.families.from_transformers import from_transformers
from probekit.model.proven.doors import apart_rows
from probekit.model.proven.proof import prove
from probekit.model.proven.taps import HEAD_SITES

OURS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt_neox")
OURS += ("olmo2", "olmoe", "phi3", "opt")
STREAM = ("hook_resid_pre", "hook_resid_post")
HEADS = tuple(f"attn.{site}" for site in HEAD_SITES)
OUT = ("hook_attn_out", "hook_mlp_out")
# Networks that are not ours: the proven sites of all blocks, those of some blocks, and the refused
# features.
OTHERS = {
    "bloom": ((*STREAM, *OUT, "hook_resid_mid", "mlp.hook_post"), (), {"patterns"}),
    "cohere": ((*STREAM, *OUT, *HEADS, "mlp.hook_post"), (), set()),  # parallel
    "deepseek_v3": ((*STREAM, *OUT, *HEADS, "hook_resid_mid"), ("mlp.hook_post",), set()),
    "falcon": ((*STREAM, *OUT, "mlp.hook_post"), (), {"patterns"}),  # adds in place
    "jetmoe": ((*STREAM, *OUT, *HEADS, "hook_resid_mid"), (), set()),  # views of z
    "mamba": ((*STREAM, "hook_mixer_out"), (), {"patterns"}),
    "minicpm3": ((*STREAM, *OUT, *HEADS, "hook_resid_mid", "mlp.hook_post"), (), set()),  # factors
    "qwen3_5_text": (
        (*STREAM, "hook_mlp_out", "hook_resid_mid", "mlp.hook_post"),
        ("hook_mixer_out", "hook_attn_out", *HEADS),
        set(),
    ),
}


def ids_of(shape, seed=0):
    return torch.randint(20, 98, shape, generator=torch.Generator().manual_seed(seed))


def kinds_of(proven):
    """Return the kinds of sites that all blocks have, and those that some have."""
    counts = dict.fromkeys(proven.sites.values(), 0)
    for kind in proven.sites.values():
        counts[kind] += 1
    full = {kind for kind, n in counts.items() if n == proven.n_layers}
    return full, set(counts) - full


@pytest.mark.parametrize("model_type", OURS)
def test_every_shared_site_equals_our_own_network(model_type):
    model = tiny_network(model_type)
    proven, ours = prove(model), from_transformers(model)
    assert not [name for name in proven.refused if not name.startswith("blocks.")]
    ids = ids_of((3, 17))
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    logits, theirs = proven.run(ids, mask, sites=proven.sites, check=True)
    named = {site: site if site in ours.sites else site.replace("rot_", "") for site in theirs}
    our_logits, cache = ours.run_with_cache(ids, list(named.values()), mask.bool())
    assert {kind for kind in proven.sites.values() if "attn." in kind} == set(HEADS)
    for text, real in enumerate(mask.bool()):
        assert apart_rows(our_logits[text][real], logits[text][real]) < 1e-5
        for site, value in theirs.items():
            a, b = cache[named[site]][text], value[text]
            if model_type == "opt" and site.endswith("rot_q"):  # scaled before attention
                b = b * b.shape[-1] ** 0.5
            if site.endswith("pattern"):
                a, b = a[:, real][..., real], b[:, real][..., real]
            else:
                a, b = a[real], b.reshape(len(real), *b.shape[1:])[real]
            assert apart_rows(a, b) < 1e-5, site


@pytest.mark.parametrize("model_type", OTHERS)
def test_sites_of_networks_that_are_not_ours(model_type):
    in_all, in_some, refused = OTHERS[model_type]
    proven = prove(tiny_network(model_type))
    assert kinds_of(proven) == (set(in_all), set(in_some))
    assert {name for name in proven.refused if not name.startswith("blocks.")} == refused
