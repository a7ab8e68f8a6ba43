"""Tiny random networks of every model type of transformers: 4 blocks, width 32, 99 ids."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

# Model type -> class. Where there are two, the one for texts alone.
CLASSES: dict[str, Any] = {
    **MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    **MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
}
# Names of the fields of configs, as regular expressions, and their tiny values.
_SIZES = {
    "(.*_)?vocab_size(_.*)?": 99,
    "num_experts_per_tok(en)?|moe_top_?k|moe_k|experts_per_token|top_k_experts": 2,
    "(n_|num_|moe_num_)?(routed_|local_)?experts|zero_expert_num": 4,
    "n_group|num_expert_groups?": 2,
    "topk_group|first_k_dense_replace|n(um)?_dense_layers": 1,
    "(num_hidden|num|n|encoder|decoder|num_encoder|num_decoder)_layers?|layers|depth|num_blocks": 4,
    "(num_|n_|swa_num_)?(attention_|linear_)?heads?": 4,
    "(num_)?(encoder|decoder)_attention_heads|linear_num_(heads|value_heads)": 4,
    "(swa_)?num_key_value_heads|num_kv_heads|linear_num_key_heads|index_n_heads": 2,
    "(.*_)?head_dim|dim_head|kv_channels|attention_head_size|d_kv|rotary_dim": 8,
    "index_head_dim": 16,
    # More than the tokens of a text, as in published models: ties of scores choose other keys.
    "index_topk(_blocks)?": 64,
    "centroid_intermediate_top_k": 4,
    ".*_lora_rank|laurel_rank|adapter_rank|hc_lowrank|gated_norm_rank": 16,
    "(.*_)?hidden_size(_global)?|d_model|n_embd|(mm_)?(emb|embed)_dim|(.*_)?embedding_size": 32,
    ".*_proj_dims|projection_dim|vision_output_dim|projector_.*_dim|adapter_out_dim": 32,
    "(pronunciation|shape|image_token)_embed_dim|output_dim|projection_hidden_dim": 32,
    "dim_model_base|input_size": 32,
    "hidden_size_per_layer_input|rel_extent|num_(query|image)_tokens": 16,
    "(num_)?position_embedding(s|_size)": 16,
    ".*moe_.*intermediate_size|shared_(experts?_)?intermediate_size|share_expert_dim": 24,
    "expert_ffn_hidden_size|moe_hidden_size": 24,
    "(.*_)?intermediate_size(_mlp)?|.*ffn_dim|ffn_hidden_size|dff|dim_ff|d_ff|d_inner|mlp_dim": 48,
    "feed_forward_size|prompt_mid_dim": 48,
    "(original_)?max_position_embeddings|n_positions|n_ctx|max_seq_len|max_.*_positions": 128,
    "context_length|max_2d_position_embeddings|position_bias_max_distance": 128,
    "sliding_window(_size)?|attention_(window_size|chunk_size)|local_attention(_window_len)?": 8,
    "keep_window_size|mem_len|(mamba_)?chunk_size|block_size|query_pre_attn_scalar|d_rel": 8,
    "mamba_d_state|(ssm_)?state_size|mamba_n_heads|mamba_num_heads|mamba_d_head|num_centroids": 8,
    "mamba_d_ssm": 64,
    "image_size|crop_size": 28,
    "patch_size": 14,
    "prompt_length|resampler_n_latents|latent_query_num|prompt_types|segment_types": 4,
    "split_ngram_parts": 4,
    "ngram_vocab_size_base": 101,
    "make_ngram_vocab_size_divisible_by": 1,
    "num_kv_shared_layers": 0,
    "max_window_layers": 2,
}
_PATTERNS = [(re.compile(pattern), value) for pattern, value in _SIZES.items()]
_IDS = re.compile(".*(_token_ids?|_token_index|_start_id|_end_id|im_newline_id|image_patch_id)")
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_ALTERNATING = ["linear_attention", "full_attention"] * 2
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MROPE = {**_ROPE, "mrope_section": [2, 1, 1]}
_COMPASS = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": {"sliding_attention": _MROPE, "full_attention": _MROPE},
}
_INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16}
_INDEXER |= {"indexer_budget": 64, "indexer_compress_ratio": 2}
# Fields by model type that the table above cannot contain; those of a part of the config under
# its name.
_OTHERS: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_types": _ALTERNATING},
    "bamba": {"attn_layer_indices": [1, 3]},
    "chameleon": {"vocabulary_map": {"<image>": 3, "IMGIMGBS00Z": 4}},
    "cohere_compass": {"text_config": _COMPASS},
    "cohere_compass_text": _COMPASS,
    "cosmos3_edge": {"text_config": {"rope_parameters": _MROPE}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8}},
    "deepseek_ocr2": {
        "text_config": {"mlp_layer_types": ["dense", *["sparse"] * 3], "num_experts_per_tok": 2}
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "diffusion_gemma": {
        "text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24}
    },
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "ernie4_5_vl_moe": {
        "text_config": {
            "moe_intermediate_size": [24, 24],
            "rope_parameters": {**_ROPE, "mrope_section": [1, 1, 2]},
        }
    },
    "glm46v": {"text_config": {"rope_parameters": _MROPE}},
    "glm4v": {"text_config": {"rope_parameters": _MROPE}},
    "glm4v_moe": {
        "text_config": {
            "rope_parameters": {**_MROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}
        }
    },
    "glm5_next": {"text_config": {"index_kpool": 2, "qk_rope_head_dim": 0}},
    "glm_ocr": {"text_config": {"rope_parameters": _MROPE}},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": _ALTERNATING},
    "hunyuan_vl": {"text_config": {"rope_parameters": _MROPE}},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": _ALTERNATING},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8},
    "molmo2": {"adapter_config": {"vision_feature_layer": [3, 2]}},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "paddleocr_vl": {"text_config": {"rope_parameters": _MROPE}},
    "qwen2_5_omni_thinker": {
        "text_config": {"rope_parameters": _MROPE},
        "vision_start_token_id": 18,
    },
    "qwen2_5_vl": {"text_config": {"rope_parameters": _MROPE}},
    "qwen2_vl": {"text_config": {"rope_parameters": _MROPE}},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 18},
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": _INDEXER,
    "reformer": {"axial_pos_embds": False},
    "step3p7": {"text_config": {"sliding_window": 8}},
    "unlimited_ocr": {"text_config": {"num_key_value_heads": 4}},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}


def tiny_config(kind: Any, others: Mapping[str, Any], ids: dict[str, int] | None = None) -> Any:
    """Return a tiny config of a class.

    Args:
        kind: the class of the config.
        others: values of fields; those of a part of the config as a mapping under its name.
        ids: special ids by the names of their fields, shared by all parts.
    """
    ids = {} if ids is None else ids
    fields = {field.name: field for field in dataclasses.fields(kind)}
    given: dict[str, Any] = {}
    for name, field in fields.items():
        value = field.default
        is_int = isinstance(value, int) and not isinstance(value, bool)
        if _IDS.fullmatch(name):
            if name in _ENDS:
                given[name] = _ENDS[name]
            elif is_int:
                given[name] = ids.setdefault(name, 3 + len(ids))
        elif is_int or (value is None and name in ("num_key_value_heads", "head_dim")):
            found = (new for pattern, new in _PATTERNS if pattern.fullmatch(name))
            if (new := next(found, None)) is not None:
                given[name] = new
    if "kv_lora_rank" in fields and "num_key_value_heads" in given:
        given["num_key_value_heads"] = given["num_attention_heads"]
    parts = getattr(kind, "sub_configs", {})
    for name, part in parts.items():
        # AutoConfig: of the type that is the default
        inner = part if dataclasses.is_dataclass(part) else type(getattr(kind(), name, None))
        if dataclasses.is_dataclass(inner):
            given[name] = tiny_config(inner, others.get(name, {}), ids)
    return kind(**(given | {k: value for k, value in others.items() if k not in parts}))


def tiny_network(
    model_type: str, implementation: str = "eager", layers: int = 4, n_ids: int = 99
) -> Any:
    """Return a tiny network of a model type, with random weights from a fixed seed."""
    config = tiny_config(CONFIG_MAPPING[model_type], _OTHERS.get(model_type, {}))
    text_config = config.get_text_config(decoder=True)
    if n_ids != 99:
        sizes = {name: n_ids for name in vars(text_config) if "vocab_size" in name}
        text_config.update(sizes)
    if layers != 4:
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[-layers:]
    name = CLASSES[model_type]
    network = getattr(transformers, name if isinstance(name, str) else name[0])
    is_part = any(text_config is getattr(config, name) for name in config.sub_configs)
    if is_part and isinstance(text_config, network.config_class):
        config = text_config
    if "is_decoder" in {field.name for field in dataclasses.fields(config)}:
        config.is_decoder = True
    torch.manual_seed(0)
    return network._from_config(config, attn_implementation=implementation).eval()
