"""The reference implementation, read at every site: what our GPT-2 is compared with."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import GPT2Config as ReferenceConfig
from transformers import GPT2LMHeadModel

from probekit.model.families.gpt2 import GPT2, GPT2Config
from tests.model.families.recorded import recorded
from tests.model.gpt2_sites import site_names

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
    maps = "c_attn.weight", "c_proj.weight", "c_fc.weight"
    state = {
        name.removeprefix("transformer."): tensor.T.contiguous() if name.endswith(maps) else tensor
        for name, tensor in reference.state_dict().items()
        if name != "lm_head.weight"
    }
    ours.load_state_dict(state, assign=True)
    return ours.requires_grad_(False)


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


Worst = dict[str, tuple[float, float]]  # absolute and relative difference, by site


def differences(config: GPT2Config, dtype: torch.dtype, lengths: list[int]) -> dict[str, Worst]:
    """Largest differences to the reference at each site and of the logits, by side of the padding.

    Relative means relative to the largest value of the site in that sequence.
    """
    reference = reference_model(config, dtype)
    model = our_model(reference, config)
    sequences = ragged(config, lengths)
    truths = [recorded(reference, sequence[None]) for sequence in sequences]
    names = site_names(config.n_layer, on_request=True)
    found: dict[str, Worst] = {"left": {}, "right": {}}
    for side, worst in found.items():
        tokens, mask = pad(sequences, side, filler=config.vocab_size - 1)
        logits, cache = model.run_with_cache(tokens, sites=names, mask=mask)
        fused = model(tokens, mask)  # no site requested: fused attention
        ours = {"logits": logits, "logits, fused attention": fused, **cache}
        for row, truth in enumerate(truths):
            assert set(truth) | {"logits, fused attention"} == set(ours)
            for site, values in ours.items():
                expected = truth[site.partition(",")[0]][0]
                got, keep = values[row], mask[row]  # the part of the real tokens
                over_keys = site.endswith(("attn_scores", "pattern"))
                got = got[:, keep][:, :, keep] if over_keys else got[keep]
                assert got.shape == expected.shape, site
                finite = expected.isfinite()
                assert torch.equal(got.isfinite(), finite), site
                absolute = (got - expected)[finite].abs().max().item()
                relative = absolute / expected[finite].abs().max().item()
                before = worst.get(site, (0.0, 0.0))
                worst[site] = (max(before[0], absolute), max(before[1], relative))
    return found
