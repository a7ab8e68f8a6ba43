"""The reference implementation, read at every site: what our GPT-2 is compared with."""

from __future__ import annotations

import math

import torch
from einops import einsum, rearrange
from torch import Tensor
from transformers import GPT2Config as ReferenceConfig
from transformers import GPT2LMHeadModel

from probekit.model.families.gpt2 import GPT2, GPT2Config
from tests.model.gpt2_sites import SITES, expand, site_names

# All axis sizes distinct, so that swapped axes fail.
TINY = GPT2Config(vocab_size=97, n_positions=23, n_embd=21, n_layer=4, n_head=3, n_inner=11)
SMALL = GPT2Config()  # the gpt2 shape


def reference_model(config: GPT2Config, dtype: torch.dtype, seed: int = 0) -> GPT2LMHeadModel:
    """A reference model whose every parameter, biases and norms included, is random."""
    names = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner")
    sizes = {name: getattr(config, name) for name in names}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    reference = GPT2LMHeadModel(ReferenceConfig(**sizes, **ends, attn_implementation="eager"))
    generator = torch.Generator().manual_seed(seed)
    spread = 0.3 if config.n_embd < 100 else 0.03
    for name, parameter in reference.named_parameters():
        centre = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
        noise = torch.randn(parameter.shape, generator=generator) * spread
        parameter.data = (centre + noise).to(dtype)
    return reference.to(dtype).eval().requires_grad_(False)


def our_model(reference: GPT2LMHeadModel, config: GPT2Config) -> GPT2:
    """Our GPT-2 with the reference's weights."""
    ours = GPT2(config, seed=None)
    state = {
        name.removeprefix("transformer."): (
            tensor.T.contiguous()
            if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
            else tensor
        )
        for name, tensor in reference.state_dict().items()
        if name != "lm_head.weight"
    }
    ours.load_state_dict(state, assign=True)
    return ours.requires_grad_(False)


def reference_values(reference: GPT2LMHeadModel, tokens: Tensor) -> dict[str, Tensor]:
    """Logits and every site of one unpadded sequence, shape [pos], by forward hooks."""
    seen: dict[str, Tensor] = {}

    def keep_input(name: str):
        return lambda module, inputs: seen.__setitem__(name, inputs[0])

    def keep_output(name: str):
        def hook(module: object, inputs: object, output: object) -> None:
            first, *rest = output if isinstance(output, tuple) else (output,)
            seen[name] = first
            if rest and isinstance(rest[-1], Tensor):
                seen[name + ".weights"] = rest[-1]

        return hook

    body = reference.transformer
    handles = []
    for layer, block in enumerate(body.h):
        at = f"{layer}."
        handles += [
            block.register_forward_pre_hook(keep_input(at + "resid_pre")),
            block.register_forward_hook(keep_output(at + "resid_post")),
            block.ln_1.register_forward_hook(keep_output(at + "ln1")),
            block.ln_2.register_forward_pre_hook(keep_input(at + "resid_mid")),
            block.ln_2.register_forward_hook(keep_output(at + "ln2")),
            block.attn.register_forward_hook(keep_output(at + "attn")),
            block.attn.c_attn.register_forward_hook(keep_output(at + "qkv")),
            block.attn.c_proj.register_forward_pre_hook(keep_input(at + "z")),
            block.mlp.c_fc.register_forward_hook(keep_output(at + "pre")),
            block.mlp.c_proj.register_forward_pre_hook(keep_input(at + "post")),
            block.mlp.register_forward_hook(keep_output(at + "mlp_out")),
        ]
    handles += [
        body.wte.register_forward_hook(keep_output("embed")),
        body.wpe.register_forward_hook(keep_output("pos_embed")),
        body.ln_f.register_forward_hook(keep_output("ln_f")),
        body.ln_f.register_forward_pre_hook(keep_input("resid_final")),
    ]
    logits = reference(tokens[None], output_attentions=True).logits
    for handle in handles:
        handle.remove()

    n = len(tokens)
    values = {
        "logits": logits,
        "hook_embed": seen["embed"],
        "hook_pos_embed": seen["pos_embed"].expand(1, n, -1),
        **_norm_sites("ln_final", seen["resid_final"], seen["ln_f"], body.ln_f),
    }
    for layer, block in enumerate(body.h):
        values |= _block_values(layer, block, seen)
    return {name: value[0] for name, value in values.items()}


def _block_values(layer: int, block: torch.nn.Module, seen: dict[str, Tensor]) -> dict[str, Tensor]:
    at, heads = f"{layer}.", block.attn.num_heads
    q, k, v = (
        rearrange(part, "b pos (head d) -> b pos head d", head=heads)
        for part in seen[at + "qkv"].chunk(3, -1)
    )
    scores = einsum(q, k, "b query h d, b key h d -> b h query key") / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    z = rearrange(seen[at + "z"], "b pos (head d) -> b pos head d", head=heads)
    w_o = rearrange(block.attn.c_proj.weight, "(head d) model -> head d model", head=heads)
    prefix = f"blocks.{layer}."
    return {
        prefix + "hook_resid_pre": seen[at + "resid_pre"],
        prefix + "hook_resid_mid": seen[at + "resid_mid"],
        prefix + "hook_resid_post": seen[at + "resid_post"],
        prefix + "hook_attn_out": seen[at + "attn"],
        prefix + "hook_mlp_out": seen[at + "mlp_out"],
        prefix + "attn.hook_q": q,
        prefix + "attn.hook_k": k,
        prefix + "attn.hook_v": v,
        prefix + "attn.hook_attn_scores": scores.masked_fill(hidden, -math.inf),
        prefix + "attn.hook_pattern": seen[at + "attn.weights"],
        prefix + "attn.hook_z": z,
        prefix + "attn.hook_result": einsum(z, w_o, "b p head d, head d model -> b p head model"),
        prefix + "mlp.hook_pre": seen[at + "pre"],
        prefix + "mlp.hook_post": seen[at + "post"],
        **_norm_sites(prefix + "ln1", seen[at + "resid_pre"], seen[at + "ln1"], block.ln_1),
        **_norm_sites(prefix + "ln2", seen[at + "resid_mid"], seen[at + "ln2"], block.ln_2),
    }


def _norm_sites(
    name: str, before: Tensor, after: Tensor, norm: torch.nn.LayerNorm
) -> dict[str, Tensor]:
    scale = (before.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
    return {
        f"{name}.hook_scale": scale,
        f"{name}.hook_normalized": (after - norm.bias) / norm.weight,
    }


def ragged(config: GPT2Config, lengths: list[int], seed: int = 1) -> list[Tensor]:
    """Random token sequences of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(config.vocab_size, (n,), generator=generator) for n in lengths]


def pad(sequences: list[Tensor], side: str, filler: int) -> tuple[Tensor, Tensor]:
    """Tokens and mask [batch pos], written apart from the product's own padding."""
    width = max(map(len, sequences))
    gaps = [torch.full((width - len(s),), filler) for s in sequences]
    ones = [torch.ones(len(s), dtype=torch.bool) for s in sequences]
    order = slice(None, None, -1) if side == "left" else slice(None)
    tokens = [torch.cat([s, g][order]) for s, g in zip(sequences, gaps, strict=True)]
    mask = [torch.cat([m, g.bool() & False][order]) for m, g in zip(ones, gaps, strict=True)]
    return torch.stack(tokens), torch.stack(mask)


def unpadded(value: Tensor, site: str, keep: Tensor) -> Tensor:
    """The part of one row [...] of a padded batch that belongs to real tokens."""
    axes = next((s.axes for s in SITES if s.name == _table_name(site)), ("batch", "pos", "d_vocab"))
    if "key_pos" in axes:
        return value[:, keep][:, :, keep]
    return value[keep]


def _table_name(site: str) -> str:
    parts = site.split(".")
    return ".".join(["blocks", "{l}", *parts[2:]]) if parts[0] == "blocks" else site


def all_sites(config: GPT2Config) -> tuple[str, ...]:
    """Every site, those on request included."""
    return site_names(config.n_layer, on_request=True)


Worst = dict[str, tuple[float, float]]  # absolute and relative difference, by site


def differences(config: GPT2Config, dtype: torch.dtype, lengths: list[int]) -> dict[str, Worst]:
    """Largest differences to the reference at each site and of the logits, by side of the padding.

    Relative means relative to the largest value of the site in that sequence.
    """
    reference = reference_model(config, dtype)
    model = our_model(reference, config)
    sequences = ragged(config, lengths)
    truths = [reference_values(reference, sequence) for sequence in sequences]
    names = expand(all_sites(config), config.n_layer)
    found: dict[str, Worst] = {"left": {}, "right": {}}
    for side, worst in found.items():
        tokens, mask = pad(sequences, side, filler=config.vocab_size - 1)
        logits, cache = model.run_with_cache(tokens, sites=names, mask=mask)
        fused = model(tokens, mask)  # no site requested: fused attention
        ours = {"logits": logits, "logits, fused attention": fused, **cache}
        for row, truth in enumerate(truths):
            assert set(truth) | {"logits, fused attention"} == set(ours)
            for site, values in ours.items():
                expected = truth[site.partition(",")[0]]
                got = unpadded(values[row], site, mask[row])
                assert got.shape == expected.shape, site
                finite = expected.isfinite()
                assert torch.equal(got.isfinite(), finite), site
                absolute = (got - expected)[finite].abs().max().item()
                relative = absolute / expected[finite].abs().max().item()
                before = worst.get(site, (0.0, 0.0))
                worst[site] = (max(before[0], absolute), max(before[1], relative))
    return found
