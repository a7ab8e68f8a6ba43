"""Sites of the networks with rotary positions follow their formulas, written out here."""

import math

import pytest
import torch
import torch.nn.functional as F

from probekit.model.families.rotary import frequencies
from probekit.model.families.table import from_transformers
from tests.model.families.configurations import CONFIGURATIONS, by_day, rows

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35, 89]])
GATES = {"llama": F.silu, "olmo2": F.silu, "gemma": lambda x: F.gelu(x, approximate="tanh")}
# The module of each norm in a block.
BEFORE = {"ln1": "input_layernorm", "ln2": "post_attention_layernorm"}
NORMS = {
    "llama": BEFORE,
    "neox": BEFORE,
    "olmo2": {"ln1_post": "post_attention_layernorm", "ln2_post": "post_feedforward_layernorm"},
    "gemma": {
        "ln1": "input_layernorm",
        "ln1_post": "post_attention_layernorm",
        "ln2": "pre_feedforward_layernorm",
        "ln2_post": "post_feedforward_layernorm",
    },
}


# The others are compared with what transformers computes there, in test_parity.py.
WRITTEN = [row for row in CONFIGURATIONS if row.model_type not in ("gpt2", "opt", "phi3", "olmoe")]


@pytest.fixture(scope="module", params=by_day(WRITTEN))
def model(request):
    return from_transformers(request.param.reference(torch.float64))


def rotated(x, frequency):
    """The features as complex numbers, multiplied by exp(i position frequency)."""
    n = len(frequency)
    angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * frequency
    turn = torch.polar(torch.ones_like(angles), angles)[None, :, None]
    pairs = torch.complex(x[..., :n], x[..., n : 2 * n]) * turn
    return torch.cat([pairs.real, pairs.imag, x[..., 2 * n :]], -1)


class Formulas:
    """Values of a block, computed from the sites before them and compared with the sites."""

    def __init__(self, model, cache, layer):
        self.config, self.block = model.config, model.layers[layer]
        self.family = type(model).__module__.rpartition(".")[2]
        self.cache, self.layer = cache, layer

    def at(self, name):
        return self.cache[f"blocks.{self.layer}.{name}"]

    def same(self, name, expected):
        torch.testing.assert_close(self.at(name), expected, atol=1e-6, rtol=1e-6)

    def norm(self, site, x, module):
        """Over the features of a head, or over all of a token in OLMo 2."""
        flat = x.flatten(2) if self.family == "olmo2" else x
        is_centred = self.family == "neox"
        centred = flat - flat.mean(-1, keepdim=True) if is_centred else flat
        scale = (centred.square().mean(-1, keepdim=True) + self.config.norm_epsilon).sqrt()
        self.same(f"{site}.hook_scale", scale)
        self.same(f"{site}.hook_normalized", (centred / scale).view(x.shape))
        out = centred / scale * (module.weight + (self.family == "gemma"))
        return (out + module.bias if is_centred else out).view(x.shape)

    def normed(self, site, x):
        """`x` itself where the family has no such norm."""
        module = NORMS[self.family].get(site)
        return x if module is None else self.norm(site, x, getattr(self.block, module))

    def heads(self, name, x):
        if self.family != "neox":
            module = getattr(self.block.self_attn, f"{name}_proj")
            return F.linear(x, module.weight, module.bias).unflatten(-1, (-1, self.config.d_head))
        # The checkpoint lists query, key and value of one head before those of the next.
        module, shape = self.block.attention.query_key_value, (-1, 3, self.config.d_head)
        flat = F.linear(x, module.weight, module.bias).unflatten(-1, shape)
        return flat[..., "qkv".index(name), :]

    def attention(self, x):
        config = self.config
        for name in "qkv":
            self.same(f"attn.hook_{name}", self.heads(name, x))
        window = config.windows[self.layer]
        rotary = config.rotary
        if window is not None and self.family == "gemma":
            rotary = config.rotary_in_windows
        frequency = frequencies(rotary, config.d_head)
        for name in "qk":
            one = self.at(f"attn.hook_{name}")
            if f"blocks.0.attn.{name}_norm.hook_scale" in self.cache:
                module = getattr(self.block.self_attn, f"{name}_norm")
                one = self.norm(f"attn.{name}_norm", one, module)
            self.same(f"attn.hook_rot_{name}", rotated(one, frequency))
        q, k, v = (self.at(f"attn.hook_{name}").transpose(1, 2) for name in ("rot_q", "rot_k", "v"))
        group = config.n_heads // config.n_kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = q @ k.mT / getattr(config, "query_pre_attn_scalar", config.d_head) ** 0.5
        cap = getattr(config, "attn_logit_softcapping", None)
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        distance = torch.arange(7)[:, None] - torch.arange(7)
        hidden = (distance < 0) | (distance >= (window or 7))
        self.same("attn.hook_attn_scores", scores.masked_fill(hidden, -torch.inf))
        self.same("attn.hook_pattern", self.at("attn.hook_attn_scores").softmax(-1))
        self.same("attn.hook_z", (self.at("attn.hook_pattern") @ v).transpose(1, 2))
        is_neox = self.family == "neox"
        out = self.block.attention.dense if is_neox else self.block.self_attn.o_proj
        return F.linear(self.at("attn.hook_z").flatten(2), out.weight, out.bias)

    def mlp(self, x):
        mlp = self.block.mlp
        if self.family == "neox":
            self.same("mlp.hook_pre", F.linear(x, mlp.dense_h_to_4h.weight, mlp.dense_h_to_4h.bias))
            approximation = "none" if self.config.hidden_act == "gelu" else "tanh"
            post = F.gelu(self.at("mlp.hook_pre"), approximate=approximation)
            down = mlp.dense_4h_to_h
        else:
            for name, gate in (("pre", mlp.gate_proj), ("pre_linear", mlp.up_proj)):
                self.same(f"mlp.hook_{name}", F.linear(x, gate.weight, gate.bias))
            post = GATES[self.family](self.at("mlp.hook_pre")) * self.at("mlp.hook_pre_linear")
            down = mlp.down_proj
        self.same("mlp.hook_post", post)
        return F.linear(self.at("mlp.hook_post"), down.weight, down.bias)

    def check(self):
        pre = self.at("hook_resid_pre")
        attn_out = self.attention(self.normed("ln1", pre))
        self.same("hook_attn_out", self.normed("ln1_post", attn_out))
        mid = pre + self.at("hook_attn_out")
        is_parallel = getattr(self.config, "use_parallel_residual", False)
        assert (f"blocks.{self.layer}.hook_resid_mid" in self.cache) != is_parallel
        if not is_parallel:
            self.same("hook_resid_mid", mid)
        mlp_out = self.mlp(self.normed("ln2", pre if is_parallel else mid))
        self.same("hook_mlp_out", self.normed("ln2_post", mlp_out))
        self.same("hook_resid_post", mid + self.at("hook_mlp_out"))


def test_sites_of_every_block_follow_their_formulas(model):
    _, cache = model.run_with_cache(TOKENS)
    for layer in range(model.config.n_layers):
        Formulas(model, cache, layer).check()
    weights = model.state_dict()
    embed = next(weights[name] for name in weights if "embed" in name)[TOKENS]
    if type(model).__name__ == "Gemma":
        embed = embed * math.sqrt(model.config.d_model)
    torch.testing.assert_close(cache["hook_embed"], embed)


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
