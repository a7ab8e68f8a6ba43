"""Generation speed in tokens per second, compared with `generate` of transformers.

    python -m benchmarks.generation [--threads 2] [--rounds 3] [--new 200]

Same weights, prompts and lengths: the gpt2 shape with random weights (biases and norms included) in
float32. Both use greedy decoding and a key-value cache. Runs alternate; the best time of each
counts. The generated tokens are compared; at the first difference, the gap between the two largest
logits is printed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import GPT2LMHeadModel

from probekit import GPT2, generate
from tests.model.reference import SMALL, our_model, reference_model

PROMPT = 64
BATCHES = (1, 8)


def theirs(model: GPT2LMHeadModel, prompts: Tensor, n_new: int) -> Tensor:
    """Return the tokens that transformers generates after the prompts, shape [batch new]."""
    out = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=n_new,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,
        eos_token_id=None,
    )
    return out[:, prompts.shape[1] :]


def seconds(run: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """Return the duration of a call in seconds, and its result."""
    start = time.perf_counter()
    out = run()
    return time.perf_counter() - start, out


def first_difference(ours: GPT2, prompts: Tensor, a: Tensor, b: Tensor) -> str:
    """Return whether the tokens are equal, or where they first differ, as a phrase."""
    if torch.equal(a, b):
        return f"equal over {a.shape[1]} steps"
    step = int((a != b).any(0).int().argmax())
    row = int((a[:, step] != b[:, step]).int().argmax())
    logits = ours(torch.cat([prompts[row], a[row, :step]])[None])[0, -1]
    best = logits.topk(2).values
    return f"differ from step {step}; gap between the two best logits {best[0] - best[1]:.1e}"


@torch.no_grad()
def main() -> None:
    """Print one row per batch size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    reference = reference_model(SMALL, torch.float32)
    reference.set_attn_implementation("sdpa")  # its fastest implementation
    ours = our_model(reference, SMALL)
    generator = torch.Generator().manual_seed(0)
    print(f"gpt2 shape, float32, {options.threads} threads, {PROMPT} + {options.new} tokens")
    print(f"{'batch':>5} {'probekit':>12} {'transformers':>12} {'ratio':>6}  greedy tokens")
    for batch in BATCHES:
        prompts = torch.randint(SMALL.vocab_size, (batch, PROMPT), generator=generator)
        runs = (
            lambda prompts=prompts: generate(ours, prompts, options.new),
            lambda prompts=prompts: theirs(reference, prompts, options.new),
        )
        for run in runs:  # warm up
            run()
        times = [[seconds(run)[0] for run in runs] for _ in range(options.rounds)]
        rates = [batch * options.new / min(column) for column in zip(*times, strict=True)]
        comparison = first_difference(ours, prompts, runs[0](), runs[1]())
        print(
            f"{batch:5} {rates[0]:8.1f} t/s {rates[1]:8.1f} t/s {rates[0] / rates[1]:6.2f}  "
            f"{comparison}"
        )


if __name__ == "__main__":
    main()
