"""Time of a proof, and of passes with its checks, next to passes of transformers.

    python -m benchmarks.proofs [--layers 4 12 24] [--width 256] [--model FOLDER] [--rounds 7]

Llamas with random weights in float32, or a model in a folder. Times are processor time on one
thread. Passes of transformers and of the proven network alternate; medians count. The number of
passes of a proof is the number of calls of blocks, also of blocks alone, divided by the number of
blocks.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from probekit import from_transformers, generate

# Function of the proof -> what it tests.
TESTS = {
    "_check_passes": "repeatable, causal",
    "_check_chain": "chain of blocks",
    "find_sublayers": "sums",
    "_find_sites": "heads, neurons",
    "measure_rounding": "rounding",
    "_not_written": "writes of heads, neurons",
    "_write_fault": "writes of streams, sums",
    "_check_writes": "writes: clean passes",
    "check_same_shape": "later tokens, other texts",
    "check_padding": "padding",
    "check_generation": "generation",
    "check_resume": "resume",
    "check_gradients": "gradients",
    "find_head": "unembedding",
    "sketch_of": "record of values",
    "_config_of": "record of values",
}
COLUMNS = "| layers | proof | passes | plain pass | + checks | + all streams | + all sites | step |"


def random_llama(layers: int, width: int) -> Any:
    """Return a Llama with random weights in evaluation mode."""
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    heads = {"num_attention_heads": width // 32, "num_key_value_heads": width // 64}
    config = LlamaConfig(**sizes, **heads, vocab_size=4000, eos_token_id=None)
    return LlamaForCausalLM._from_config(config, attn_implementation="eager").eval()


def proved(model: Any) -> tuple[Any, float, Counter[str]]:
    """Return the network of a model, the seconds of its proof, and the calls of blocks by test."""
    kinds = {type(one[0]) for one in model.modules() if isinstance(one, torch.nn.ModuleList)}
    calls: Counter[str] = Counter()

    def count(module: torch.nn.Module, _: Any) -> None:
        if type(module) in kinds:
            frame = sys._getframe()
            while frame.f_back and frame.f_code.co_name not in TESTS:
                frame = frame.f_back
            calls[TESTS.get(frame.f_code.co_name, "other")] += 1

    with tempfile.TemporaryDirectory() as folder:
        os.environ["PROBEKIT_CACHE"] = folder
        start = time.process_time()
        network = from_transformers(model, engine="transformers")
        seconds = time.process_time() - start
        os.environ["PROBEKIT_CACHE"] = str(Path(folder) / "again")
        handle = register_module_forward_pre_hook(count)
        from_transformers(model, engine="transformers")
        handle.remove()
    return network, seconds, calls


def alternating(functions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median processor seconds of each function; their calls alternate."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds + 1):
        for name, function in functions.items():
            start = time.process_time()
            function()
            times[name].append(time.process_time() - start)
    return {name: median(each[1:]) for name, each in times.items()}  # the first warms up


@torch.inference_mode()
def line(model: Any, rounds: int) -> tuple[str, Counter[str], int]:
    """Return the line of a model in the table, and the calls of blocks in its proof."""
    with torch.inference_mode(mode=False):
        network, seconds, calls = proved(model)
    n_layers = network.config.n_layers
    ids = torch.randint(20, network.config.d_vocab, (8, 64))
    options = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    mask = torch.ones_like(ids)
    times = alternating(
        {
            "plain": lambda: model(ids, use_cache=False),
            "checks": lambda: network(ids),
            "streams": lambda: network.run_with_cache(ids, "blocks.*.hook_resid_post"),
            "sites": lambda: network.run_with_cache(ids),
            "their step": lambda: model.generate(ids, attention_mask=mask, **options),
            "step": lambda: generate(network, ids, 16),
        },
        rounds,
    )
    plain, n_passes = times["plain"], sum(calls.values()) / n_layers
    ratios = [times[name] / plain for name in ("checks", "streams", "sites")]
    cells = [
        f"{n_layers}",
        f"{seconds:.1f} s",
        f"{n_passes:.0f}",
        f"{plain * 1000:.0f} ms",
        *(f"x {ratio:.2f}" for ratio in ratios),
        f"x {times['step'] / times['their step']:.2f}",
    ]
    return f"| {' | '.join(cells)} |", calls, n_layers


def main() -> None:
    """Print the table of times, and the passes of a proof by test."""
    parser = argparse.ArgumentParser(description="Time proofs and passes.")
    parser.add_argument("--layers", type=int, nargs="*", default=[4, 12, 24])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--model", type=Path, help="folder of a model, in place of random ones")
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.model:
        loaded = AutoModelForCausalLM.from_pretrained(chosen.model, attn_implementation="eager")
        models = [loaded.float().eval()]
    else:
        models = [random_llama(layers, chosen.width) for layers in chosen.layers]
    print(COLUMNS, "|---" * COLUMNS.count("| ") + "|", sep="\n")
    passes = {}
    for model in models:
        text, calls, n_layers = line(model, chosen.rounds)
        passes[n_layers] = {test: n / n_layers for test, n in calls.items()}
        print(text, flush=True)
    print("\n| passes of a proof |" + "".join(f" {n} layers |" for n in passes))
    print("|---" * (1 + len(passes)) + "|")
    for test in dict.fromkeys(TESTS.values()):
        print(f"| {test} |" + "".join(f" {of[test]:.1f} |" for of in passes.values() if test in of))


if __name__ == "__main__":
    main()
