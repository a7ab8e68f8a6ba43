"""Every site of a network as transformers computes it, recorded by hooks."""

import math

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

_BEFORE = ("input_layernorm", "post_attention_layernorm", "norm")
# Norms before attention, before the MLP and after the blocks, in families that name them otherwise.
NORMS = {
    "opt": ("self_attn_layer_norm", "final_layer_norm", "final_layer_norm"),
    "gpt2": ("ln_1", "ln_2", "ln_f"),
    "gpt_neox": (*_BEFORE[:2], "final_layer_norm"),
    **dict.fromkeys(("olmo2", "olmo3"), (None, None, "norm")),
    **dict.fromkeys(
        ("gemma2", "gemma3_text"), ("input_layernorm", "pre_feedforward_layernorm", "norm")
    ),
}
_POST_NORMS = ("olmo2", "olmo3", "gemma2", "gemma3_text")  # norms between a sublayer and the stream
_seen = {}  # of the attention of each block: q, k and v as attention gets them, scores, pattern, z


def _attention(module, q, k, v, mask, scaling=None, softcap=None, **_):
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    hidden = mask < 0 if mask.is_floating_point() else ~mask
    scores = q @ wide_k.mT * (scaling or q.shape[-1] ** -0.5)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(hidden, -math.inf)
    pattern = scores.softmax(-1)
    z = (pattern @ wide_v).transpose(1, 2)
    _seen[module.layer_idx] = q, k, v, scores, pattern, z
    return z, pattern


AttentionInterface.register("recorded", _attention)
AttentionMaskInterface.register("recorded", eager_mask)


def recorded(reference, tokens):
    """The logits and every site of texts without padding, shape [batch pos ...]."""
    body, seen = reference.get_decoder(), {}
    kind = body.config.model_type

    def keep(name):
        return lambda module, given, out: seen.update({name: (given[0] if given else None, out)})

    reference.set_attn_implementation("recorded")
    handles = [module.register_forward_hook(keep(name)) for name, module in body.named_modules()]
    logits = reference(tokens).logits
    for handle in handles:
        handle.remove()
    first, second, last = NORMS.get(kind, _BEFORE)
    is_parallel = getattr(body.config, "use_parallel_residual", False)
    embedding = {"gpt_neox": "embed_in", "gpt2": "wte"}.get(kind, "embed_tokens")
    values = {"logits": logits, "hook_embed": seen[embedding][1]}
    values |= _norm("ln_final", body.get_submodule(last), *seen[last])
    if positions := {"opt": "embed_positions", "gpt2": "wpe"}.get(kind):
        values["hook_pos_embed"] = seen[positions][1].expand(len(tokens), -1, -1)
    blocks = "h" if kind == "gpt2" else "layers"
    for layer, block in enumerate(body.get_submodule(blocks)):
        own = f"{blocks}.{layer}."
        inside = {n.removeprefix(own): pair for n, pair in seen.items() if n.startswith(own)}
        found = {"hook_resid_post": seen[f"{blocks}.{layer}"][1]}
        if first is None:
            found["hook_resid_pre"], found["hook_resid_mid"] = (
                inside[name][0] for name in ("self_attn.q_proj", "mlp")
            )
        else:
            # The MLP of OPT gets all tokens in one axis.
            inside[second] = tuple(x.view(*tokens.shape, -1) for x in inside[second])
            found["hook_resid_pre"] = inside[first][0]
            found |= {} if is_parallel else {"hook_resid_mid": inside[second][0]}
            found |= _norm("ln1", block.get_submodule(first), *inside[first])
            found |= _norm("ln2", block.get_submodule(second), *inside[second])
        for site, name in (("ln1_post", "attention"), ("ln2_post", "feedforward")):
            norm = f"post_{name}_layernorm"
            if kind in _POST_NORMS:
                found |= _norm(site, block.get_submodule(norm), *inside[norm])
        found |= _of_attention(kind, block, inside, _seen[layer])
        found |= _of_mlp(kind, inside, tokens.shape)
        values |= {f"blocks.{layer}.{name}": value for name, value in found.items()}
    return values


def _norm(site, module, before, after, shape=None):
    eps = getattr(module, "eps", getattr(module, "variance_epsilon", None))
    bias = getattr(module, "bias", None)
    centred = before if bias is None else before - before.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    gain = module.weight + getattr(module, "offset", "Gemma" in type(module).__name__)
    normalized = (after if bias is None else after - bias) / gain
    normalized = torch.where(gain == 0, centred / scale, normalized)  # nothing is left to divide
    normalized = normalized if shape is None else normalized.unflatten(-1, shape)
    return {f"{site}.hook_scale": scale, f"{site}.hook_normalized": normalized}


def _of_attention(kind, block, inside, of_attention):
    q, k, v, scores, pattern, z = of_attention
    n_heads, n_kv_heads, d_head = q.shape[1], k.shape[1], q.shape[-1]
    found = {"attn.hook_v": v.transpose(1, 2), "attn.hook_attn_scores": scores}
    found |= {"attn.hook_pattern": pattern, "attn.hook_z": z}
    if kind not in ("opt", "gpt2"):
        found |= {"attn.hook_rot_q": q.transpose(1, 2), "attn.hook_rot_k": k.transpose(1, 2)}
    if kind == "phi3":
        heads = inside["self_attn.qkv_proj"][1].unflatten(-1, (-1, d_head))
        own = heads.split((n_heads, n_kv_heads, n_kv_heads), 2)
    elif kind == "gpt_neox":  # query, key and value of one head come before those of the next
        own = inside["attention.query_key_value"][1].unflatten(-1, (-1, 3, d_head)).unbind(-2)
    elif kind == "gpt2":
        flat = inside["attn.c_attn"][1].chunk(3, -1)
        own = [one.unflatten(-1, (-1, d_head)) for one in flat]
    else:
        flat = (inside[f"self_attn.{name}_proj"][1] for name in "qkv")
        own = [one.unflatten(-1, (-1, d_head)) for one in flat]
    found |= {"attn.hook_q": own[0], "attn.hook_k": own[1]}
    for norm in ("q_norm", "k_norm"):
        if (pair := inside.get(f"self_attn.{norm}")) is not None:
            shape = (-1, d_head) if pair[0].ndim == 3 else None  # of all heads together
            if kind == "gemma3_text":  # it gets the heads apart, before the positions
                pair = tuple(x.transpose(1, 2) for x in pair)
            module = block.self_attn.get_submodule(norm)
            found |= _norm(f"attn.{norm}", module, *pair, shape)
    names = {"opt": "self_attn.out_proj", "gpt_neox": "attention.dense", "gpt2": "attn.c_proj"}
    output = names.get(kind, "self_attn.o_proj")
    weight = block.get_submodule(output).weight
    weight = (weight.T if kind == "gpt2" else weight).unflatten(1, (n_heads, d_head))
    found["attn.hook_result"] = torch.einsum("bphd, mhd -> bphm", z, weight)
    last = "post_attention_layernorm" if kind in _POST_NORMS else output
    return found | {"hook_attn_out": inside[last][1]}


def _of_mlp(kind, inside, shape):
    if kind == "opt":
        given = {"pre": inside["fc1"][1], "post": inside["fc2"][0]}
        found = {f"mlp.hook_{name}": value.unflatten(0, shape) for name, value in given.items()}
        return found | {"hook_mlp_out": inside["fc2"][1].unflatten(0, shape)}
    last = "post_feedforward_layernorm" if kind in _POST_NORMS else "mlp"
    if "mlp.gate" in inside:
        router, weights, experts = inside["mlp.gate"][1]
        dense = torch.zeros_like(router).scatter(-1, experts, weights)
        given = {"router": router, "chosen_weights": dense, "chosen": (dense > 0).to(router)}
        found = {f"mlp.hook_{name}": value.unflatten(0, shape) for name, value in given.items()}
    elif kind == "phi3":
        pre, pre_linear = inside["mlp.gate_up_proj"][1].chunk(2, -1)
        found = {"mlp.hook_pre": pre, "mlp.hook_pre_linear": pre_linear}
        found["mlp.hook_post"] = inside["mlp.down_proj"][0]
    elif kind in ("gpt_neox", "gpt2"):
        first, second = ("c_fc", "c_proj") if kind == "gpt2" else ("dense_h_to_4h", "dense_4h_to_h")
        found = {"mlp.hook_pre": inside[f"mlp.{first}"][1]}
        found["mlp.hook_post"] = inside[f"mlp.{second}"][0]
    else:
        found = {"mlp.hook_pre": inside["mlp.gate_proj"][1]}
        found["mlp.hook_pre_linear"] = inside["mlp.up_proj"][1]
        found["mlp.hook_post"] = inside["mlp.down_proj"][0]
    return found | {"hook_mlp_out": inside[last][1]}


def site_differences(reference, ours, tokens):
    """Largest absolute and relative difference at each site, in the order of the forward pass.

    Relative means relative to the largest value of the site in that text.
    """
    theirs = recorded(reference, tokens)
    logits, cache = ours.run_with_cache(tokens, ["*", "blocks.*.attn.hook_result"])
    found = {}
    assert theirs.keys() == {*cache, "logits"}
    for site, own in {**cache, "logits": logits}.items():
        expected = theirs[site]
        assert own.shape == expected.shape, (site, own.shape, expected.shape)
        finite = expected.isfinite()
        assert torch.equal(own.isfinite(), finite), site
        apart, size = ((own - expected), expected)
        apart, size = (x.masked_fill(~finite, 0).abs().flatten(1).amax(1) for x in (apart, size))
        found[site] = apart.max().item(), (apart / size).max().item()
    return found
