"""Activation patching by TransformerLens, in a separate environment; see benchmarks/patching.py.

    python -m benchmarks.patching_peer FOLDER

FOLDER has weights.safetensors, in our names, and work.npz with the texts and the sizes. For each
line on standard input it runs the patches once and prints the seconds. The effects are written to
FOLDER/theirs.npz.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformer_lens import HookedTransformer, HookedTransformerConfig, patching


def main(folder: Path) -> None:
    """Answer each line on standard input with the seconds of one run."""
    work = np.load(folder / "work.npz")
    torch.set_num_threads(int(work["threads"]))
    model = load(folder / "weights.safetensors", work)
    clean, corrupt = (torch.from_numpy(work[name]) for name in ("clean", "corrupt"))
    answer, wrong = (torch.from_numpy(work[name]) for name in ("answer", "wrong"))
    rows = torch.arange(len(clean))

    def metric(logits: Any) -> Any:
        return (logits[rows, -1, answer] - logits[rows, -1, wrong]).mean()

    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        with torch.inference_mode():
            _, cache = model.run_with_cache(corrupt)
            grids = {
                # The patched run is that of the clean text, the cache that of its counterfactual.
                "resid_pre": patching.get_act_patch_resid_pre(model, clean, cache, metric),
                "heads": patching.get_act_patch_attn_head_out_all_pos(model, clean, cache, metric),
            }
        print(time.perf_counter() - start, flush=True)
        np.savez(folder / "theirs.npz", **{k: v.numpy() for k, v in grids.items()},
                 **extras(model, clean, metric))  # fmt: skip


def extras(model: Any, clean: torch.Tensor, metric: Any) -> dict[str, Any]:
    """Return zero ablations of every head, and the gradients at the residual stream."""
    ablated = []
    with torch.inference_mode():
        for layer in range(model.cfg.n_layers):
            for head in range(model.cfg.n_heads):

                def zero(z: Any, hook: Any, head: int = head) -> Any:  # noqa: ARG001
                    z[:, :, head] = 0
                    return z

                name = f"blocks.{layer}.attn.hook_z"
                ablated.append(float(metric(model.run_with_hooks(clean, fwd_hooks=[(name, zero)]))))
    gradients: dict[str, torch.Tensor] = {}

    def keep(gradient: Any, hook: Any) -> None:
        gradients[hook.name] = gradient.clone()

    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(model.cfg.n_layers)]
    with model.hooks(bwd_hooks=[(name, keep) for name in names]):
        (metric(model(clean)) * len(clean)).backward()
    stacked = torch.stack([gradients[name] for name in names]).detach().numpy()
    return {"ablated": np.array(ablated), "gradients": stacked}


def load(path: Path, work: Any) -> HookedTransformer:
    """Return their model with our weights."""
    weights = load_file(path)
    n_layers, n_heads, d_model = (int(work[name]) for name in ("n_layers", "n_heads", "d_model"))
    d_head, dtype = d_model // n_heads, weights["wte.weight"].dtype
    model = HookedTransformer(
        HookedTransformerConfig(
            n_layers=n_layers, n_heads=n_heads, d_model=d_model, d_head=d_head,
            d_mlp=int(work["d_mlp"]), n_ctx=len(weights["wpe.weight"]),
            d_vocab=len(weights["wte.weight"]), act_fn="gelu_new", normalization_type="LN",
            device="cpu", dtype=dtype,
        )
    )  # fmt: skip
    state = {
        "embed.W_E": weights["wte.weight"],
        "pos_embed.W_pos": weights["wpe.weight"],
        "ln_final.w": weights["ln_f.weight"],
        "ln_final.b": weights["ln_f.bias"],
        "unembed.W_U": weights["wte.weight"].T,
        "unembed.b_U": torch.zeros(len(weights["wte.weight"]), dtype=dtype),
    }
    for layer in range(n_layers):
        ours, theirs = f"h.{layer}.", f"blocks.{layer}."
        qkv = weights[ours + "attn.c_attn.weight"].view(3, n_heads, d_head, d_model)
        bias = weights[ours + "attn.c_attn.bias"].view(3, n_heads, d_head)
        for number, name in enumerate("QKV"):
            state[f"{theirs}attn.W_{name}"] = qkv[number].transpose(1, 2)
            state[f"{theirs}attn.b_{name}"] = bias[number]
        out = weights[ours + "attn.c_proj.weight"].view(d_model, n_heads, d_head)
        state[f"{theirs}attn.W_O"] = out.permute(1, 2, 0)
        state[f"{theirs}attn.b_O"] = weights[ours + "attn.c_proj.bias"]
        state[f"{theirs}mlp.W_in"] = weights[ours + "mlp.c_fc.weight"].T
        state[f"{theirs}mlp.b_in"] = weights[ours + "mlp.c_fc.bias"]
        state[f"{theirs}mlp.W_out"] = weights[ours + "mlp.c_proj.weight"].T
        state[f"{theirs}mlp.b_out"] = weights[ours + "mlp.c_proj.bias"]
        for own, other in (("ln_1", "ln1"), ("ln_2", "ln2")):
            state[f"{theirs}{other}.w"] = weights[f"{ours}{own}.weight"]
            state[f"{theirs}{other}.b"] = weights[f"{ours}{own}.bias"]
    model.load_state_dict(state, strict=False)
    return model


if __name__ == "__main__":
    main(Path(sys.argv[1]))
