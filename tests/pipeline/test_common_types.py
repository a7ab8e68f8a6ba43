"""The most used model types of transformers: from YAML to page, patched and steered, at night."""

import csv
import json
from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from benchmarks.tiny_networks import tiny_network
from probekit import Tokenizer, generate, load_model, run
from probekit.interventions.edits import run_edited
from probekit.model.sites.catalogue import layer_of
from probekit.model.weights.sources import MINI
from tests.pipeline.intervene.cause_experiment import write_experiment
from tests.pipeline.texts import text_of
from tests.report.page_text import packed_texts

pytestmark = pytest.mark.nightly

# Model type -> what each of its four blocks mixes positions with, as proven: h for attention with
# heads and patterns, g for the same with a gate, a factor or a mixer between heads and stream, p
# for patterns of heads of another size, a for attention without such names, m for another mixer.
TYPES = {
    "bloom": "aaaa",
    "cohere2": "hhhh",
    "deepseek_v2": "hhhh",
    "deepseek_v3": "hhhh",
    "falcon": "aaaa",
    "falcon_h1": "gggg",
    "falcon_mamba": "mmmm",
    "gemma": "hhhh",
    "gemma2": "hhhh",
    "gemma3_text": "hhhh",
    "gemma4_text": "hhhp",
    "glm4_moe": "hhhh",
    "gpt2": "hhhh",
    "gpt_bigcode": "hhhh",
    "gpt_neo": "aaaa",
    "gpt_neox": "hhhh",
    "gpt_oss": "hhhh",
    "gptj": "aaaa",
    "granite": "hhhh",
    "granitemoehybrid": "mhmh",
    "jamba": "mhmh",
    "lfm2": "hhhh",
    "llama": "hhhh",
    "llama4_text": "hhhh",
    "mamba": "mmmm",
    "mamba2": "mmmm",
    "mistral": "hhhh",
    "mistral3": "hhhh",
    "mixtral": "hhhh",
    "olmo2": "hhhh",
    "opt": "hhhh",
    "phi3": "hhhh",
    "qwen2": "hhhh",
    "qwen3": "hhhh",
    "qwen3_5_text": "mmmg",
    "qwen3_moe": "hhhh",
    "qwen3_next": "mmmg",
    "smollm3": "hhhh",
    "stablelm": "hhhh",
    "starcoder2": "hhhh",
}
# Their `hidden_states[l]` is the stream after block l, of all others the one before it.
AFTER = ("falcon_mamba", "mamba", "mamba2")
SITE = {
    "h": "attn.hook_z",
    "g": "attn.hook_z",
    "p": "hook_attn_out",
    "a": "hook_attn_out",
    "m": "hook_mixer_out",
}
IDS = torch.randint(300, 8000, (2, 9), generator=torch.Generator().manual_seed(1))
OTHER = torch.randint(300, 8000, (2, 9), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module", params=TYPES)
def given(request, tmp_path_factory):
    """A tiny random model in a folder, with the vocabulary of the shipped one, and its network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROBEKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        folder = tmp_path_factory.mktemp("model")
        tiny_network(request.param, n_ids=8192).save_pretrained(folder)
        vocabulary = (str(MINI / name) for name in ("vocab.json", "merges.txt"))
        encoder = ByteLevelBPETokenizer(*vocabulary)._tokenizer
        PreTrainedTokenizerFast(tokenizer_object=encoder).save_pretrained(folder)
        if request.param == "qwen2":  # transformers reads its tokenizers in one way only
            AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
        network = load_model(folder, engine="transformers")
        layout = TYPES[request.param]
        yield SimpleNamespace(
            name=request.param,
            folder=folder,
            network=network,
            layout=layout,
            mixed=[f"blocks.{layer}.{SITE[kind]}" for layer, kind in enumerate(layout)],
        )


def test_an_experiment_has_its_page(given, tmp_path):
    sizes = yaml.safe_load(text_of("proven.yaml"))
    sizes["model"] |= {"source": str(given.folder), "engine": "transformers", "random_seed": 1}
    streams = [f"blocks.{layer}.hook_resid_post" for layer in range(4)]
    every = {site: f"{site}[head=*]" for site in given.mixed if site.endswith("_z")}
    sizes["capture"]["sites"] = [*streams, *(every.get(site, site) for site in given.mixed)]
    patch = sizes["interventions"][0]
    patch["sites"] = [streams[1], *given.mixed]
    if not {*given.layout} & {*"hg"}:
        del sizes["attention"]
    path = write_experiment(tmp_path, yaml.safe_dump(sizes), n_rows=32)
    result = run(path, out=tmp_path / "runs", progress=False)
    table = result.table
    n_heads = dict.fromkeys("hg", given.network.config.n_heads) | dict.fromkeys("pam", 1)
    expected = dict.fromkeys(streams, 1)
    expected |= {one: n_heads[kind] for one, kind in zip(given.mixed, given.layout, strict=True)}
    for target in ("task", "random_weights"):
        rows = table[table["target"] == target].drop_duplicates(["site", "head"])
        assert rows["site"].str.partition("[")[0].value_counts().to_dict() == expected, target
    record = json.loads((result.folder / "run.json").read_text(encoding="utf-8"))
    assert len({*record["caches"].values()}) == 2
    with (result.folder / "causes" / "effects.csv").open(encoding="utf-8") as file:
        effects = {row["site"]: float(row["effect"]) for row in csv.DictReader(file)}
    assert {*patch["sites"]} <= effects.keys()
    assert all(effects[site] for site in patch["sites"])
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert "Network computed by transformers" in page
    assert f"{len(given.network.sites)} sites proven" in page
    contents = "".join(packed_texts(page))
    having = [layer for layer, kind in enumerate(given.layout) if kind in "hgp"]
    assert (f'"layers": {having}' in contents) == bool(having)
    if having:  # with attention sinks, rows sum to less than 1
        kept = load_file(result.folder / "attention.safetensors")["0"]
        tokenizer = Tokenizer.from_pretrained(given.folder)
        ids = torch.from_numpy(tokenizer.encode(record["attention"][0]["text"], bos=False).ids)
        _, cache = given.network.run_with_cache(ids[None])
        torch.testing.assert_close(kept, torch.cat([cache["pattern", one] for one in having]))


def test_hidden_states_and_attentions_of_transformers(given):
    options = {"output_hidden_states": True, "output_attentions": True, "use_cache": False}
    with torch.no_grad():
        out = given.network.model(IDS, **options)
    logits, cache = given.network.run_with_cache(IDS)
    assert torch.equal(logits, out.logits)
    is_after = given.name in AFTER
    pairs = zip(range(3 + (not is_after)), out.hidden_states, strict=False)
    compared = [
        torch.equal(cache["resid_post" if is_after else "resid_pre", layer], theirs)
        for layer, theirs in pairs
    ]
    assert compared == [True] * (3 + (not is_after))
    attentions = [one for one in (getattr(out, "attentions", None) or ()) if one is not None]
    patterns = [site for site in given.network.sites if site.endswith("hook_pattern")]
    assert [layer_of(site) for site in patterns] == [
        layer for layer, kind in enumerate(given.layout) if kind in "hgp"
    ]
    if patterns:
        for site, theirs in zip(patterns, attentions, strict=True):
            assert torch.equal(cache[site], theirs), site


def replaced(out, new):
    return (new, *out[1:]) if isinstance(out, tuple) else new


def test_patches_have_the_effect_of_hooks_on_modules(given):
    """Of the stream after block 1, and of head 2 where the output map of heads is a module."""
    network, passes, ran = given.network, given.network.passes, []
    _, cache = network.run_with_cache(OTHER)
    edits = {"blocks.1.hook_resid_post": passes.block(1)}
    heads = [one for one, kind in zip(given.mixed, given.layout, strict=True) if kind == "h"][-1:]
    edits |= {f"{one}[head=2]": passes.linears[layer_of(one), "z"] for one in heads}
    for site, name in edits.items():
        module = passes.modules[name]
        if "head" in site:

            def hook(_, args, site=site):
                x = args[0].clone()
                rows = x.view(*OTHER.shape, network.config.n_heads, -1)
                rows[:, :, 2] = cache[site]
                return (x, *args[1:])

            handle = module.register_forward_pre_hook(hook)
        else:

            def hook(_, __, out, site=site):
                return replaced(out, cache[site])

            handle = module.register_forward_hook(hook)
        with torch.no_grad():
            expected = network.model(IDS, use_cache=False).logits
        handle.remove()
        patched = run_edited(network, IDS, [(site, lambda _, __, site=site: cache[site])])
        torch.testing.assert_close(patched, expected, atol=1e-5, rtol=1e-4)
        assert not torch.allclose(patched, network(IDS), atol=1e-4), site
        ran.append(site.partition("[")[2])
    assert ran == ["", "head=2]"][: 1 + ("h" in given.layout)]


def test_steered_generation_is_that_of_a_hook_on_the_block(given):
    network, model = given.network, given.network.model
    model.generation_config.eos_token_id = None  # ours ends at no token
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    direction = torch.randn(network.config.d_model, generator=torch.Generator().manual_seed(3))
    found = []
    for size in (0.0, 30.0):
        step = size * direction

        def add(_, __, out, step=step):
            return replaced(out, (out[0] if isinstance(out, tuple) else out) + step)

        handle = network.passes.modules[network.passes.block(2)].register_forward_hook(add)
        expected = model.generate(IDS, attention_mask=torch.ones_like(IDS), **options)[:, 9:]
        handle.remove()
        sites = [("resid_post", 2)]
        found.append(generate(network, IDS, 5, tap=lambda _, x, step=step: x + step, sites=sites))
        assert torch.equal(found[-1], expected)
    assert not torch.equal(*found)
