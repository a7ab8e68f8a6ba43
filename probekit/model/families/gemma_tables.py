"""Gemma 2 and Gemma 3 (text): the tables of sites and of parameters."""

from __future__ import annotations

from probekit.model.parameters import Component
from probekit.model.sites.catalogue import GROUPED, table

_BEFORE_ROTATION = {  # in forward order
    "hook_embed": "sqrt(d_model) embed_tokens[tokens]",
    "blocks.{l}.hook_resid_pre": "embed, or resid_post of block l-1",
    "blocks.{l}.ln1.hook_scale": "sqrt(mean(resid_pre^2) + eps)",
    "blocks.{l}.ln1.hook_normalized": "resid_pre / scale",
    "blocks.{l}.attn.hook_q": "input_layernorm(resid_pre) W_Q",
    "blocks.{l}.attn.hook_k": "input_layernorm(resid_pre) W_K",
    "blocks.{l}.attn.hook_v": "input_layernorm(resid_pre) W_V",
}
_NORMS_OF_HEADS = {
    "blocks.{l}.attn.q_norm.hook_scale": "sqrt(mean(q^2) + eps) per head",
    "blocks.{l}.attn.q_norm.hook_normalized": "q / scale",
    "blocks.{l}.attn.k_norm.hook_scale": "sqrt(mean(k^2) + eps) per head",
    "blocks.{l}.attn.k_norm.hook_normalized": "k / scale",
}
_ROTATION_2 = {
    "blocks.{l}.attn.hook_rot_q": "q rotated by its position",
    "blocks.{l}.attn.hook_rot_k": "k rotated by its position",
    "blocks.{l}.attn.hook_attn_scores": (
        "c tanh(rot_q rot_k / (c sqrt(query_pre_attn_scalar))) with c = attn_logit_softcapping, "
        "-inf where masked"
    ),
}
_ROTATION_3 = {
    "blocks.{l}.attn.hook_rot_q": "q_norm(q) rotated by its position, with the base of the block",
    "blocks.{l}.attn.hook_rot_k": "k_norm(k) rotated by its position, with the base of the block",
    "blocks.{l}.attn.hook_attn_scores": (
        "rot_q rot_k / sqrt(query_pre_attn_scalar), -inf where masked"
    ),
}
_AFTER_SCORES = {
    "blocks.{l}.attn.hook_pattern": "softmax(attn_scores) over key_pos",
    "blocks.{l}.attn.hook_z": "pattern v",
    "blocks.{l}.attn.hook_result": "z W_O per head, before the norm that follows attention",
    "blocks.{l}.ln1_post.hook_scale": "sqrt(mean((z W_O)^2) + eps)",
    "blocks.{l}.ln1_post.hook_normalized": "z W_O / scale",
    "blocks.{l}.hook_attn_out": "post_attention_layernorm(z W_O)",
    "blocks.{l}.hook_resid_mid": "resid_pre + attn_out",
    "blocks.{l}.ln2.hook_scale": "sqrt(mean(resid_mid^2) + eps)",
    "blocks.{l}.ln2.hook_normalized": "resid_mid / scale",
    "blocks.{l}.mlp.hook_pre": "pre_feedforward_layernorm(resid_mid) W_gate",
    "blocks.{l}.mlp.hook_pre_linear": "pre_feedforward_layernorm(resid_mid) W_up",
    "blocks.{l}.mlp.hook_post": "gelu_tanh(pre) * pre_linear",
    "blocks.{l}.ln2_post.hook_scale": "sqrt(mean((post W_down)^2) + eps)",
    "blocks.{l}.ln2_post.hook_normalized": "post W_down / scale",
    "blocks.{l}.hook_mlp_out": "post_feedforward_layernorm(post W_down)",
    "blocks.{l}.hook_resid_post": "resid_mid + mlp_out",
    "ln_final.hook_scale": "sqrt(mean(resid_post of the last block^2) + eps)",
    "ln_final.hook_normalized": "resid_post / scale",
}
SITES_OF_GEMMA2 = table(_BEFORE_ROTATION | _ROTATION_2 | _AFTER_SCORES, GROUPED)
SITES_OF_GEMMA3 = table(_BEFORE_ROTATION | _NORMS_OF_HEADS | _ROTATION_3 | _AFTER_SCORES, GROUPED)

_ATTN, _MLP = "layers.{l}.self_attn", "layers.{l}.mlp"
_MAPS = {  # of attention; from d_model to the heads
    "q_proj": ("d_model", "n_heads d_head"),
    "k_proj": ("d_model", "n_kv_heads d_head"),
    "v_proj": ("d_model", "n_kv_heads d_head"),
}
NORM_COMPONENTS = tuple(
    Component(f"attn.{name}", f"{_ATTN}.{name}", ("d_head",), part="attention")
    for name in ("q_norm", "k_norm")
)


def _norm(name: str) -> Component:
    return Component(name, f"layers.{{l}}.{name}", ("d_model",))


UP_TO_MAPS = (  # in forward order
    Component("token embedding", "embed_tokens", ("d_vocab", "d_model")),
    _norm("input_layernorm"),
    *(
        Component(f"attn.{name}", f"{_ATTN}.{name}", axes, "attention_bias", "attention")
        for name, axes in _MAPS.items()
    ),
)
FROM_OUTPUT = (
    Component(
        "attn.o_proj",
        f"{_ATTN}.o_proj",
        ("n_heads d_head", "d_model"),
        "attention_bias",
        "attention",
    ),
    _norm("post_attention_layernorm"),
    _norm("pre_feedforward_layernorm"),
    Component("mlp.gate_proj", f"{_MLP}.gate_proj", ("d_model", "d_mlp"), part="MLP"),
    Component("mlp.up_proj", f"{_MLP}.up_proj", ("d_model", "d_mlp"), part="MLP"),
    Component("mlp.down_proj", f"{_MLP}.down_proj", ("d_mlp", "d_model"), part="MLP"),
    _norm("post_feedforward_layernorm"),
    Component("final norm", "norm", ("d_model",)),
    Component("unembedding", "lm_head", ("d_vocab", "d_model"), tied="tie_word_embeddings"),
)
