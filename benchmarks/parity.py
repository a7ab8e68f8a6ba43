"""Numerical differences between our networks and the reference implementation.

    python -m benchmarks.parity

First GPT-2, by group of sites. Both networks have the same random weights (biases and norms
included) and get ragged batches, padded left or right. "absolute" is the largest absolute
difference; "relative" is the largest difference divided by the largest absolute value of the site
in the sequence.

Then the other families, a row for each tiny network of the tests and each dtype: the largest
absolute difference of the logits, and the largest relative difference of any other site.
"""

from __future__ import annotations

from collections import defaultdict

import torch

from probekit.model.families.from_transformers import from_transformers
from tests.model.families.configurations import CONFIGURATIONS
from tests.model.families.recorded import site_differences
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
    print(f"\n{'network':30} {'dtype':8} {'logits':>8} {'sites':>8} {'of':>4}  largest at")
    tokens = torch.randint(1, 97, (2, 21), generator=torch.Generator().manual_seed(1))
    for row in CONFIGURATIONS:
        for dtype in (torch.float32, torch.float64):
            reference = row.reference(dtype)
            found = site_differences(reference, from_transformers(reference), tokens)
            logits, _ = found.pop("logits")
            site = max(found, key=lambda name: found[name][1])
            print(
                f"{row.name:30} {str(dtype).removeprefix('torch.'):8} {logits:8.1e} "
                f"{found[site][1]:8.1e} {len(found):4}  {site}"
            )


if __name__ == "__main__":
    main()
