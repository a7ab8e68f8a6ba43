"""Numerical differences between our GPT-2 and the reference implementation, by group of sites.

    python -m benchmarks.parity

Both have the same random weights (biases and norms included) and get ragged batches, padded left or
right. "absolute" is the largest absolute difference; "relative" is the largest difference divided
by the largest absolute value of the site in the sequence.
"""

from __future__ import annotations

from collections import defaultdict

import torch

from tests.model.reference import SMALL, TINY, differences

GROUPS = {
    "embeddings": ("hook_embed", "hook_pos_embed"),
    "residual stream": ("hook_resid_pre", "hook_resid_mid", "hook_resid_post"),
    "layer norms": ("hook_scale", "hook_normalized"),
    "queries, keys, values": ("hook_q", "hook_k", "hook_v"),
    "scores and patterns": ("hook_attn_scores", "hook_pattern"),
    "z, result, attn_out": ("hook_z", "hook_result", "hook_attn_out"),
    "MLP": ("hook_pre", "hook_post", "hook_mlp_out"),
    "logits": ("logits",),
    "logits, fused attention": ("logits, fused attention",),
}


def group_of(site: str) -> str:
    """Return the group that a site belongs to."""
    last = site.rpartition(".")[2]
    return next(group for group, names in GROUPS.items() if last in names)


def main() -> None:
    """Print one row per shape, dtype, padding side and group of sites."""
    print(f"{'shape':6} {'dtype':8} {'padding':8} {'sites':25} {'absolute':>10} {'relative':>10}")
    for shape, config, lengths in (("tiny", TINY, [5, 1, 8, 3]), ("gpt2", SMALL, [7, 2, 19])):
        for dtype in (torch.float32, torch.float64):
            for side, found in differences(config, dtype, lengths).items():
                worst: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
                for site, (absolute, relative) in found.items():
                    before = worst[group_of(site)]
                    worst[group_of(site)] = (max(before[0], absolute), max(before[1], relative))
                for group in GROUPS:
                    name = str(dtype).removeprefix("torch.")
                    absolute, relative = worst[group]
                    print(
                        f"{shape:6} {name:8} {side:8} {group:25} {absolute:10.1e} {relative:10.1e}"
                    )


if __name__ == "__main__":
    main()
