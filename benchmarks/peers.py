"""Timing of TransformerLens, in a separate environment because it needs older dependencies.

    python -m benchmarks.peers SHAPE DEVICE DTYPE N_SEQUENCES N_TOKENS

For each line on standard input it runs once and prints the duration in seconds.
`benchmarks.capture` starts it with the Python of .bench-venv, where probekit is not installed.
"""

from __future__ import annotations

import sys
import time

import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig

SHAPES = {  # layers, heads, width
    "gpt2": (12, 12, 768),
    "gpt2-xl": (48, 25, 1600),
}


def main(shape: str, device: str, dtype: str, n_sequences: int, n_tokens: int) -> None:
    """Print the seconds of one `run_with_cache` for each line on standard input."""
    n_layers, n_heads, d_model = SHAPES[shape]
    torch.manual_seed(0)
    config = HookedTransformerConfig(
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=d_model,
        d_head=d_model // n_heads,
        d_mlp=4 * d_model,
        n_ctx=1024,
        d_vocab=50257,
        act_fn="gelu_new",
        normalization_type="LN",
        device=device,
        dtype=getattr(torch, dtype),
    )
    model = HookedTransformer(config)
    tokens = torch.randint(50257, (n_sequences, n_tokens), device=device)
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        with torch.inference_mode():
            _, cache = model.run_with_cache(
                tokens,
                return_type=None,
                names_filter=lambda name: name.endswith("hook_resid_post"),
                stop_at_layer=n_layers,
            )
            rows = {name: value[:, -1].clone().cpu() for name, value in cache.items()}
        seconds = time.perf_counter() - start
        assert len(rows) == n_layers
        del cache
        print(seconds, flush=True)


if __name__ == "__main__":
    shape, device, dtype, *sizes = sys.argv[1:]
    main(shape, device, dtype, *map(int, sizes))
