"""A network that transformers computes has the members of our own, with the same numbers."""

import json
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.tiny_networks import tiny_network
from probekit import from_transformers, load_model
from probekit.analysis.logits import logit_attribution
from probekit.errors import CheckpointError, ConfigError, UnknownNameError
from probekit.interventions.edits import BasePass, run_edited, stream_entry
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.patching import estimated_effects, patched_values
from probekit.model.config import count_parameters
from probekit.model.families.table import config_of, find_config, in_dtype, random_network
from probekit.model.generation import KeyValueCache, generate
from probekit.model.passes.inputs import TokenBatch
from probekit.model.proven.identity import proofs_folder
from probekit.model.proven.loading import proven_network
from probekit.model.proven.network import ProvenNetwork
from probekit.model.sites.sites import SiteSelection
from probekit.model.weights.state_dict import digest_weights

IDS = torch.randint(20, 98, (3, 9), generator=torch.Generator().manual_seed(1))
OTHER = IDS.clone()
OTHER[:, 2] = torch.tensor([30, 31, 32])
# Not ours: routed MLPs; attention in some layers; parallel, a final norm without gain 1; factors;
# norms after attention; no attention.
TYPES = ("granitemoe", "qwen3_5_text", "cohere", "granite", "mistral3", "mamba")


@pytest.fixture(scope="module", autouse=True)
def _proofs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROBEKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", params=TYPES)
def network(request):
    model = tiny_network(request.param)
    if request.param == "granite":
        factors = {"residual_multiplier": 0.3, "logits_scaling": 4.0, "attention_multiplier": 0.5}
        vars(model.config).update(factors)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(model.config, attn_implementation="eager")
    return from_transformers(model.eval())


@pytest.fixture(scope="module")
def both():
    """A Llama as transformers computes it, and as we do."""
    model = tiny_network("llama")
    return from_transformers(model, engine="transformers"), from_transformers(model)


def shared(proven, ours):
    return [site for site in proven.sites if site in ours.sites]


def alike(x, y):
    return torch.allclose(x, y, atol=1e-5, rtol=1e-4)


def test_hidden_states_and_attentions_of_transformers(network):
    """`hidden_states[l]` is the stream before block l, of Mamba the one after it."""
    options = {"output_hidden_states": True, "output_attentions": True, "use_cache": False}
    with torch.no_grad():
        out = network.model(IDS, **options)
    logits, cache = network.run_with_cache(IDS)
    assert torch.equal(logits, out.logits)
    last = network.config.n_layers - 1
    name = "resid_post" if network.config.TITLE == "MambaForCausalLM" else "resid_pre"
    for layer in range(last + (name == "resid_pre")):
        assert torch.equal(cache[name, layer], out.hidden_states[layer])
    assert torch.equal(network.unembed(network.final_norm(cache["resid_post", last])), logits)
    patterns = [site for site in network.sites if site.endswith("hook_pattern")]
    attentions = [one for one in (getattr(out, "attentions", None) or ()) if one is not None]
    assert len(patterns) == len(attentions)
    for name, one in zip(patterns, attentions, strict=True):
        assert torch.equal(cache[name], one)


@pytest.mark.parametrize("side", ["left", "right", "between", "one by one"])
def test_padding_changes_nothing(network, side):
    sides = dict(network.passes.pad_positions)
    mask = torch.ones_like(IDS, dtype=torch.bool)
    mask[0, {"left": slice(4), "between": slice(1, 4)}.get(side, slice(5, None))] = False
    if side == "one by one":
        network.passes.pad_positions.clear()
    try:
        logits, cache = network.run_with_cache(IDS, mask=mask)
    finally:
        network.passes.pad_positions |= sides
    for row, real in enumerate(mask):
        expected, single = network.run_with_cache(IDS[row, real][None])
        assert alike(logits[row, real], expected[0])
        for site, value in single.items():
            if site.endswith("hook_pattern"):
                assert alike(cache[site][row][:, real][:, :, real], value[0])
            else:
                assert alike(cache[site][row, real], value[0]), site


def test_texts_that_are_run_one_by_one_are_only_read(both):
    network, _ = both
    sides = dict(network.passes.pad_positions)
    network.passes.pad_positions.clear()
    mask = torch.ones_like(IDS, dtype=torch.bool)
    mask[0, 5:] = False
    try:
        with pytest.raises(ConfigError, match=r"^Padding is not proven .* cannot be changed"):
            network(IDS, mask, lambda _, value: value + 1, ["blocks.1.hook_resid_post"])
    finally:
        network.passes.pad_positions |= sides


def test_every_number_is_that_of_our_own_network(both):
    proven, ours = both
    assert not isinstance(proven, type(ours))
    sites = shared(proven, ours)
    logits, cache = proven.run_with_cache(IDS, sites)
    expected, values = ours.run_with_cache(IDS, sites)
    assert alike(logits, expected)
    assert all(alike(cache[site], values[site]) for site in sites)
    resid = values["resid_post", -1]
    assert alike(proven.unembed(proven.final_norm(resid)), ours.unembed(ours.final_norm(resid)))
    assert alike(proven.unembedding, ours.unembedding)
    assert alike(proven.loss(IDS), ours.loss(IDS))
    assert alike(proven.last_norm.gain.float(), ours.last_norm.gain)
    assert proven.config.norm_epsilon == ours.config.norm_epsilon
    assert proven.config.norm_is_centred == ours.config.norm_is_centred
    for layer in range(proven.config.n_layers):
        assert torch.equal(proven.head_output(layer)[0], ours.head_output(layer)[0])
        assert torch.equal(proven.mlp_output(layer), ours.mlp_output(layer))
    sizes = ("n_layers", "n_heads", "n_kv_heads", "d_head", "d_model", "d_mlp", "d_vocab", "n_ctx")
    for size in sizes:
        assert getattr(proven.config, size) == getattr(ours.config, size), size
    one, other = (logit_attribution(each, IDS[0], 30, minus=40) for each in both)
    assert one.logit == pytest.approx(other.logit, abs=1e-5)
    assert one.rows["value"].to_numpy() == pytest.approx(other.rows["value"].to_numpy(), abs=1e-5)


def test_some_positions_of_the_last_block(both):
    at = torch.tensor([[1, 4], [0, 8], [2, 3]])
    seen = []
    for network in both:
        found = {}

        def double(site, value, found=found):
            found[site] = value
            return value * 2 if site.endswith("3.hook_attn_out") else value

        sites = [f"blocks.3.{one}" for one in ("attn.hook_v", "hook_attn_out", "hook_resid_post")]
        logits = network(IDS, tap=double, sites=sites, at=at)
        seen.append({**found, "logits": logits})
    assert seen[0]["logits"].shape[1] == 2
    for site, value in seen[0].items():
        assert value.shape == seen[1][site].shape, site
        assert alike(value, seen[1][site]), site


def test_effects_of_patches_are_those_of_passes_with_the_tap(network):
    """Sites in the stream are patched by their change of it, which is proven for each layer."""
    measure = AnswerMeasure(torch.full((3,), 30), torch.full((3,), 40))
    clean, corrupt = (
        TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros(*ids.shape, 2))
        for ids in (IDS, OTHER)
    )
    whole = [site for site in network.sites if "hook_rot" not in site]
    selected = network.sites.select(whole)
    [values] = patched_values(network, clean, corrupt, [measure], selected, at="all")
    _, cache = network.run_with_cache(OTHER)
    for patch, effect in values.patched.items():
        site = patch.selection.site
        logits = run_edited(network, IDS, [(site, lambda _, __, site=site: cache[site])])[:, -1]
        assert alike(torch.from_numpy(effect).float(), logits[:, 30] - logits[:, 40]), site
    assert len(estimated_effects(network, clean, corrupt, measure, "blocks.*.hook_resid_post")) == 4


@pytest.mark.parametrize("side", ["left", "right"])
def test_edits_of_the_last_token_continue_the_tokens_before_it(network, side, monkeypatch):
    """Where caches of transformers can be copied; the result is that of whole passes."""
    mask = torch.ones_like(IDS, dtype=torch.bool)
    mask[0, slice(3) if side == "left" else slice(6, None)] = False
    batch = TokenBatch(IDS.where(mask, -1), mask, torch.zeros(*IDS.shape, 2))
    entry = stream_entry(network, SiteSelection("blocks.1.hook_resid_post"))
    rows = torch.arange(3).repeat(5)
    changes = torch.randn(15, network.config.d_model, generator=torch.Generator().manual_seed(0))

    def final():
        kept = BasePass.keep(network, batch)
        moved = kept.shifted(entry, lambda some: changes[some], rows, kept.measured[rows])
        return moved, [one for one in kept._prefixes.values() if one is not None]

    continued, prefixes = final()
    has_states = network.config.TITLE in ("MambaForCausalLM", "Qwen3_5ForCausalLM")
    assert bool(prefixes) != has_states
    monkeypatch.setattr(BasePass, "_after_prefix", lambda *_: None)
    assert alike(continued, final()[0])


def test_generation_is_that_of_transformers(network):
    network.model.generation_config.eos_token_id = None  # ours ends at no token
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    mask = torch.ones_like(IDS)
    mask[0, :3] = 0
    for given in (torch.ones_like(IDS), mask):
        expected = network.model.generate(IDS, attention_mask=given, **options)[:, 9:]
        assert torch.equal(generate(network, IDS, 5, mask=given.bool()), expected)


def test_layers_that_lack_a_site_are_named():
    network = from_transformers(tiny_network("qwen3_5_text"))
    having = network.sites.expand("blocks.*.attn.hook_z")
    assert having == ("blocks.3.attn.hook_z",)
    assert "attn.z not in layers 0 to 2;" in network.config.computed_by(having, is_drawn=True)
    with pytest.raises(UnknownNameError, match=r"z' is not proven: .*Layers that have it: 3\.$"):
        network.sites.expand("blocks.1.attn.hook_z")
    with pytest.raises(UnknownNameError, match="the model has 4 blocks"):
        network.sites.expand("blocks.4.attn.hook_z")


def test_a_model_in_memory_stays_as_it_is():
    model = tiny_network("granitemoe").train()
    model.requires_grad_(True)
    network = from_transformers(model)
    _, cache = network.run_with_cache(IDS, ["blocks.1.hook_resid_post"])
    assert not cache["resid_post", 1].requires_grad
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(ConfigError, match="proven for its dtype and device"):
        network.to(torch.float64)
    half = in_dtype(network, torch.bfloat16)
    assert half.dtype == torch.bfloat16
    with pytest.raises(ConfigError, match=r"A gradient is not proven .* in half precision"):
        half.run_with_cache(IDS, [("resid_post", 1)], grad=True)
    assert half.passes.limits["logits"] > network.passes.limits["logits"]
    _, cache = network.run_with_cache(IDS, [("resid_post", 1)], grad=True)
    assert cache["resid_post", 1].requires_grad


def hooked(model):
    model.model.layers[1].register_forward_hook(lambda _, __, out: out * 1.001)


def with_another_norm(model):
    model.model.layers[0].input_layernorm = deepcopy(model.model.layers[0].input_layernorm)


def with_fused_attention(model):
    model.set_attn_implementation("sdpa")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (hooked, "layers.1 has a forward hook"),
        (with_another_norm, "input_layernorm was replaced after the proof"),
        (with_fused_attention, "implementation of attention was changed"),
    ],
)
def test_passes_over_a_model_that_was_changed_are_refused(change, reason):
    model = tiny_network("granitemoe")
    network = from_transformers(model)
    change(model)
    with pytest.raises(ConfigError, match=reason):
        network(IDS)


def test_what_does_not_hold_in_a_pass_is_refused(monkeypatch):
    model = tiny_network("granitemoe")
    network, kind = from_transformers(model), type(model.model.layers[1])
    plain = kind.forward
    monkeypatch.setattr(kind, "forward", lambda *a, **k: plain(*a, **k) * 1.001)
    with pytest.raises(ConfigError, match="block 0 does not hold in text 0"):
        network(IDS)


def with_an_epsilon(model):
    model.config.rms_norm_eps = 0.1


def with_another_activation(model):
    model.model.layers[0].block_sparse_moe.experts.act_fn = torch.nn.Tanh()


@pytest.mark.parametrize("change", [with_an_epsilon, with_another_activation])
def test_caches_of_a_model_that_computes_something_else_are_refused(change):
    model = tiny_network("granitemoe")
    network = from_transformers(model)
    first, head = digest_weights(network), model.lm_head.weight.data
    model.lm_head.weight.data = head + 1
    assert digest_weights(network) != first  # weights may change
    model.lm_head.weight.data = head
    change(model)
    with pytest.raises(ConfigError, match="is not the one that was proven"):
        digest_weights(network)


def test_a_tap_that_runs_its_own_network_is_refused():
    network = from_transformers(tiny_network("granitemoe"))
    with pytest.raises(ConfigError, match="a tap runs the network"):
        network(IDS, tap=lambda _, value: network(IDS) and value, sites=[("resid_post", 0)])
    assert network(IDS) is not None


def test_networks_in_two_threads_do_not_share_their_taps():
    networks = [from_transformers(tiny_network(kind)) for kind in ("granitemoe", "cohere")]

    def zero(_name, value):
        return torch.zeros_like(value)

    def ablated(network):
        return [network(IDS, tap=zero, sites=[("z", 1)]) for _ in range(10)]

    expected = [ablated(network)[0] for network in networks]
    with ThreadPoolExecutor(2) as pool:
        for first, found in zip(expected, pool.map(ablated, networks), strict=True):
            assert all(torch.equal(one, first) for one in found)


def test_a_folder_that_was_written_again_is_read_again(tmp_path):
    model = tiny_network("granitemoe")
    model.save_pretrained(tmp_path)
    find_config(tmp_path)
    model.lm_head.weight.data *= 2
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(load_model(tmp_path)(IDS), model(IDS).logits)


def test_matrices_and_the_final_norm_are_those_of_the_present_weights():
    model = tiny_network("granite")
    for one in (model.config, *model.model.layers):
        one.residual_multiplier = 0.3
    network = from_transformers(model)
    gain, matrix = network.last_norm.gain, network.mlp_output(1).clone()
    model.model.norm.weight.data *= 3
    model.model.layers[1].mlp.down_proj.weight.data *= 2
    torch.testing.assert_close(network.last_norm.gain, 3 * gain)
    torch.testing.assert_close(network.mlp_output(1), 2 * matrix)
    torch.testing.assert_close(2 * matrix, 0.3 * model.model.layers[1].mlp.down_proj.weight)


def test_a_checkpoint_that_lacks_a_weight_is_refused(tmp_path):
    model = tiny_network("cohere")
    weights = model.state_dict()
    del weights["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(CheckpointError, match=r"lacks weights of its .*layers.1.mlp.up_proj"):
        load_model(tmp_path)


def test_a_cache_is_not_continued_after_a_pass_that_failed():
    network, past = from_transformers(tiny_network("granitemoe")), KeyValueCache()

    def fail(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        network(IDS[:, :3], past=past, tap=fail, sites=[("resid_post", 1)])
    expected = network(IDS[:, :3], past=KeyValueCache())
    torch.testing.assert_close(network(IDS[:, :3], past=past), expected)


def test_generation_is_refused_only_as_long_as_there_is_a_hook():
    model = tiny_network("granitemoe")
    network = from_transformers(model)
    handle = model.lm_head.register_forward_hook(lambda *_: None)
    assert not network.continues(KeyValueCache)
    handle.remove()
    assert network.continues(KeyValueCache)


def test_steps_that_are_not_proven_are_refused():
    mask = torch.tensor([[True, True, False]]).expand(len(IDS), 3)
    network = from_transformers(tiny_network("granitemoe"))
    with pytest.raises(ConfigError, match="pad on the left"):
        network(IDS[:, :3], mask, past=KeyValueCache())
    network, past = from_transformers(tiny_network("mamba")), KeyValueCache()
    network(IDS[:, :3], past=past)
    with pytest.raises(ConfigError, match="one token at a time"):
        network(IDS[:, 3:6], past=past)


@pytest.mark.parametrize(("kind", "is_padded"), [("git", True), ("glm4v", False)])
def test_steps_with_and_without_padding_are_proven_apart(kind, is_padded):
    """GIT computes no positions from the mask in a step, and GLM-4V none without a mask."""
    network = from_transformers(tiny_network(kind))
    mask = torch.tensor([False, True, True, True]).expand(3, 4)
    assert network.continues(KeyValueCache, is_padded=not is_padded)
    network(IDS[:, :4], None if is_padded else mask, past=KeyValueCache())
    with pytest.raises(ConfigError, match=r"^Generation .*its steps fail, or differ from one pass"):
        network(IDS[:, :4], mask if is_padded else None, past=KeyValueCache())


def test_several_tokens_after_the_first_pass_are_proven(both):
    network, past = both[0], KeyValueCache()
    steps = [network(part, past=past) for part in IDS.split([4, 1, 4], 1)]
    assert alike(torch.cat(steps, 1), network(IDS))
    assert network.continues(KeyValueCache)


def test_values_that_are_not_finite_are_named():
    model = tiny_network("granitemoe")
    network = from_transformers(model)
    model.model.layers[1].input_layernorm.weight.data[0] = torch.nan
    with pytest.raises(ConfigError, match="values are not finite after block 1"):
        network(IDS)


@pytest.mark.parametrize("kind", ["jamba", "gemma3", "granitemoe"])
def test_parameters_are_counted_by_transformers(kind):
    """Also in networks whose blocks differ."""
    network = from_transformers(tiny_network(kind), engine="transformers")
    assert count_parameters(network.config) == network.model.num_parameters()


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_a_device_that_is_not_there_is_named(engine):
    with pytest.raises(ConfigError, match="cuda:99"):
        load_model("mini", device="cuda:99", engine=engine)


def test_a_proof_is_kept_until_the_model_gives_other_values(monkeypatch, tmp_path):
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path))
    model = tiny_network("granitemoe")
    first = proven_network(model)
    [path] = proofs_folder().iterdir()
    proof = "probekit.model.proven.identity.prove"
    monkeypatch.setattr(proof, lambda *_, **__: pytest.fail("proven again"))
    again = proven_network(model)
    assert again.sites.names == first.sites.names
    assert again.config.to_json() == first.config.to_json()
    assert torch.equal(again(IDS), first(IDS))
    monkeypatch.undo()
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"sites", b"sitez", 1))  # damaged: proven again
    assert proven_network(model).config.to_json() == first.config.to_json()
    assert path.read_bytes() == content
    norm = model.model.norm
    norm.forward = norm.forward  # a forward of its own
    with pytest.raises(CheckpointError, match="has a forward of its own"):
        proven_network(model)
    del norm.forward
    # A function that was replaced leaves weights and files as they are.
    act = type(model.model.layers[0].block_sparse_moe.experts.act_fn)
    plain = act.forward
    monkeypatch.setattr(act, "forward", lambda self, x: plain(self, x) * 1.1)
    other = proven_network(model)
    assert other.config.identity["proof"] != first.config.identity["proof"]
    assert len(list(proofs_folder().iterdir())) == 2


def test_identities_of_caches_differ():
    """Of weights, buffers, settings, dtypes and source files, each changes a cache's key."""
    model = tiny_network("granitemoe")

    def identity():
        network = proven_network(model)
        return network.config.to_json(), digest_weights(network)

    plain = identity()
    assert json.loads(json.dumps(plain[0])) == plain[0] == config_of(plain[0]).to_json()
    model.model.layers[0].block_sparse_moe.router.weight.data[0, 0] += 1
    weights = identity()
    assert weights[1] != plain[1]
    model.model.rotary_emb.inv_freq[0] *= 1.01
    buffers = identity()
    assert buffers[1] != weights[1]
    model.config.rms_norm_eps = 1e-3  # a setting that a module has already read
    assert identity()[0]["settings"] != buffers[0]["settings"]
    with torch.no_grad():
        model.bfloat16()
    assert identity()[0]["dtypes"] == ["torch.bfloat16"]


def test_models_in_folders(tmp_path):
    model = tiny_network("granitemoe")
    model.save_pretrained(tmp_path / "granitemoe")
    config = find_config(tmp_path / "granitemoe")
    network = load_model(tmp_path / "granitemoe")
    assert isinstance(network, ProvenNetwork)
    assert config.sites.names == network.sites.names
    with torch.no_grad():
        assert torch.equal(network(IDS), model(IDS).logits)
    assert not any(parameter.requires_grad for parameter in network.parameters())
    drawn = random_network(network.config, seed=4)
    assert not torch.equal(drawn(IDS), network(IDS))
    assert torch.equal(drawn(IDS), random_network(network.config, seed=4)(IDS))
    assert load_model(tmp_path / "granitemoe", "bfloat16").dtype == torch.bfloat16
    ours = tiny_network("llama")
    ours.save_pretrained(tmp_path / "llama")
    assert not isinstance(load_model(tmp_path / "llama"), ProvenNetwork)
    assert isinstance(load_model(tmp_path / "llama", engine="transformers"), ProvenNetwork)
    assert isinstance(load_model(f"{tmp_path / 'llama'}?engine=transformers"), ProvenNetwork)
    with pytest.raises(CheckpointError, match="model_type is 'granitemoe'"):
        load_model(f"{tmp_path / 'granitemoe'}?engine=native")
    with pytest.raises(ConfigError, match="the engine is 'other'"):
        load_model(f"{tmp_path / 'granitemoe'}?engine=other")


def test_models_that_are_refused(tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match=r"GraniteMoeModel cannot be named: .* no logits"):
        from_transformers(tiny_network("granitemoe").model)
    (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}')
    with pytest.raises(CheckpointError, match=r"transformers cannot load .*unheard_of"):
        load_model(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="pip install peft"):
        load_model(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("probekit.model.proven.loading.find_spec", lambda _: None)
    with pytest.raises(CheckpointError, match=r"is a GGUF file.*probekit-lens\[gguf\]"):
        load_model(tmp_path / "model.gguf")


def test_an_adapter_is_part_of_the_model():
    """As peft leaves it in memory: a module around a linear one."""
    model = AutoModelForCausalLM.from_config(tiny_network("llama").config)
    inner = model.model.layers[1].self_attn.o_proj

    class Adapted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base_layer, self.in_features = inner, inner.in_features
            self.lora_A = torch.nn.Linear(inner.in_features, 2, bias=False)
            self.lora_B = torch.nn.Linear(2, inner.out_features, bias=False)

        def forward(self, x):
            return self.base_layer(x) + self.lora_B(self.lora_A(x))

    plain = proven_network(model)
    expected, digest = plain.head_output(1)[0], digest_weights(plain)
    adapted = Adapted()
    model.model.layers[1].self_attn.o_proj = adapted
    network = proven_network(model.eval())
    assert digest_weights(network) != digest
    matrix = network.head_output(1)[0]
    change = adapted.lora_B.weight @ adapted.lora_A.weight
    assert alike(matrix, (expected + change).detach())


def test_weights_have_the_names_of_the_model():
    """They are read again, as one may be replaced; a module around the network has none of them."""
    model = tiny_network("granitemoe")
    network = from_transformers(model)
    names = [name for name, _ in network.named_parameters()]
    assert names == [name for name, _ in model.named_parameters()]
    assert set(names) < network.state_dict().keys()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() + 1)
    assert network.get_parameter("lm_head.weight") is model.lm_head.weight
    with pytest.raises(AttributeError, match=r"has no tensor 'model\.lm_head\.weight'"):
        network.get_parameter("model.lm_head.weight")
    with pytest.raises(TypeError, match="destination"):
        torch.nn.ModuleList([network]).state_dict()
