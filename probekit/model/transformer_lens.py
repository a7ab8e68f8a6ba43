"""Names of TransformerLens that networks and caches lack, with ours, for their AttributeErrors."""

from types import MappingProxyType

GUIDE = "docs/howto/coming_from_transformer_lens.md"

_TEXTS = "with tokenizer = Tokenizer.from_pretrained(source)"
_TAPS = "model(batch, tap=tap, sites=[NAME]), in which tap(site, value) returns a value"
_WEIGHTS = "model.get_parameter(NAME); model.state_dict() lists the names, those of the hub"

# Names in TransformerLens -> what to write here, in which `model` is a network of ours.
_TABLE = {
    "tokenizer": "Tokenizer.from_pretrained(source)",
    "to_tokens": f"tokenizer.batch([text], bos=True), {_TEXTS}",
    "to_str_tokens": f"tokenizer.str_tokens(text, bos=True), {_TEXTS}",
    "to_string to_single_str_token": f"tokenizer.decode(ids), {_TEXTS}",
    "to_single_token": f"tokenizer.encode(text, bos=False).ids, {_TEXTS}",
    "get_token_position": f"tokenizer.position_of(text, part, bos=True), {_TEXTS}",
    "generate": "probekit.generate(model, batch, max_new_tokens=10)",
    "loss_fn": "model.loss(batch)",
    "cfg": "model.config and model.axis_sizes",
    "hook_dict mod_dict hook_points": "model.sites, the names of all sites",
    "run_with_hooks hooks add_hook add_perma_hook reset_hooks remove_all_hook_fns": _TAPS,
    "W_E embed": "model.token_embedding",
    "W_pos pos_embed": "model.position_embedding",
    "W_U": "model.unembedding.T",
    "W_O": "model.head_output(layer)",
    "W_out": "model.mlp_output(layer)",
    "W_Q W_K W_V W_in W_gate b_Q b_K b_V b_O b_in b_out b_U": _WEIGHTS,
    "QK OV": "circuits of probekit.analysis.heads",
    "ln_final": "model.final_norm(resid)",
    "fold_layer_norm center_writing_weights center_unembed": "the weights, which are not processed",
    "stack_activation": 'cache.stack("blocks.*.hook_resid_post")',
    "accumulated_resid": 'cache.stack("blocks.*.hook_resid_pre") and cache["resid_post", -1]',
    "decompose_resid": 'cache["resid_pre", 0] and cache.stack("blocks.*.hook_*_out")',
    "stack_head_results": 'cache.stack("blocks.*.attn.hook_result"), captured on request',
    "logit_attrs get_full_resid_decomposition": "logit_attribution of probekit.analysis.logits",
    "remove_batch_dim": "cache[NAME][0]",
    "cache_dict": "dict(cache)",
}
OURS = MappingProxyType({name: ours for names, ours in _TABLE.items() for name in names.split()})


def lacks(value: object, name: str) -> AttributeError:
    """Return the error for an attribute that an object lacks, with our name for that of a user.

    >>> print(lacks(1, "W_E"))
    'int' object has no attribute 'W_E', a name of TransformerLens. Use model.token_embedding; ...
    >>> print(lacks(1, "other"))
    'int' object has no attribute 'other'
    """
    text = f"{type(value).__name__!r} object has no attribute {name!r}"
    if name in OURS:
        text += f", a name of TransformerLens. Use {OURS[name]}; see {GUIDE}."
    return AttributeError(text, name=name, obj=value)
