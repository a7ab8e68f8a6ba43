"""Speed and memory of every family of networks, compared with the body of transformers.

    python -m benchmarks.families [--rounds 7] [--only Gemma]

Shapes are those of published models of about 1B parameters, with two of their layers and random
weights; both networks have the same tensors. Ours and theirs alternate in each round; times are
medians over rounds. The last column is the largest difference between the two residual streams,
relative to the largest value.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.capture import HEADER, Row, medians
from probekit.model.families.from_transformers import from_transformers
from probekit.model.network import Network
from probekit.products import processor

N_SEQUENCES, N_TOKENS, N_VOCAB = 4, 128, 32000
_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
_SHAPES: dict[str, dict[str, Any]] = {
    "Llama 3.2 1B": {"model_type": "llama", "of": (2048, 8192, 32, 8), "head_dim": 64},
    "Mistral, 2048 wide": {"model_type": "mistral", "of": (2048, 7168, 16, 4)},
    "Qwen2 1.5B": {"model_type": "qwen2", "of": (1536, 8960, 12, 2)},
    "Qwen3 1.7B": {"model_type": "qwen3", "of": (2048, 6144, 16, 8), "head_dim": 128},
    "Gemma 2 2B": {"model_type": "gemma2", "of": (2304, 9216, 8, 4), "head_dim": 256},
    "Pythia 1B": {"model_type": "gpt_neox", "of": (2048, 8192, 8)},
    "OLMo 2 1B": {"model_type": "olmo2", "of": (2048, 8192, 16, 16)},
    "Gemma 3 1B": {"model_type": "gemma3_text", "of": (1152, 6912, 4, 1), "head_dim": 256},
    "Phi-3 mini": {"model_type": "phi3", "of": (3072, 8192, 32, 32), "sliding_window": 2047},
    "OLMoE 1B-7B": {"model_type": "olmoe", "of": (2048, 1024, 16, 16)},
    "OLMo 3 7B": {"model_type": "olmo3", "of": (4096, 11008, 32, 32)},
    "Mixtral, 2048 wide": {"model_type": "mixtral", "of": (2048, 7168, 16, 4)},
    "Qwen3 30B-A3B": {"model_type": "qwen3_moe", "of": (2048, 6144, 32, 4), "head_dim": 128},
    "OPT 1.3B": {"model_type": "opt", "of": (2048,), "ffn_dim": 8192, "num_attention_heads": 32},
}


def their_network(shape: dict[str, Any]) -> Any:
    """Return a network of transformers with two layers of this shape and random weights."""
    entries = {key: value for key, value in shape.items() if key != "of"}
    sizes = dict(zip(_SIZES, shape["of"], strict=False))
    config = AutoConfig.for_model(
        **entries, **sizes, num_hidden_layers=2, vocab_size=N_VOCAB, pad_token_id=0
    )
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config)  # its fastest attention
    return network.eval().requires_grad_(False)


def rows(title: str, theirs: Any, ours: Network, ids: Tensor) -> Iterator[Row]:
    """Yield the rows of the table for one network."""
    body = theirs.get_decoder()

    def their_body() -> None:
        body(ids, use_cache=False)

    def our_body() -> None:
        ours(ids, tap=lambda _, value: value, sites=["blocks.1.hook_resid_post"], logits=False)

    def capture() -> None:
        ours.run_with_cache(ids, "blocks.*.hook_resid_*", logits=False)

    baseline = f"transformers, {theirs.config._attn_implementation} attention"
    yield Row(f"{title}: forward", baseline, our_body, their_body, at_most=1.0)
    yield Row(f"{title}: residual streams", baseline, capture, their_body, at_most=1.05)


def difference(theirs: Any, ours: Network, ids: Tensor) -> float:
    """Return the largest relative difference of the residual streams after the first block."""
    expected = theirs.get_decoder()(ids, use_cache=False, output_hidden_states=True)
    resid = ours.run_with_cache(ids, ["blocks.0.hook_resid_post"], logits=False)[1]["resid_post", 0]
    expected = expected.hidden_states[1]
    return ((resid - expected).abs().max() / expected.abs().max()).item()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="run only shapes whose names contain this text")
    options = parser.parse_args()
    threads = torch.get_num_threads()
    print(f"{N_SEQUENCES} x {N_TOKENS} tokens, float32, {processor()}, {threads} threads")
    print(HEADER)
    ids = torch.randint(1, N_VOCAB, (N_SEQUENCES, N_TOKENS))
    with torch.inference_mode():
        for title, shape in _SHAPES.items():
            if options.only not in title:
                continue
            theirs = their_network(shape)
            ours = from_transformers(theirs)
            apart = f"{difference(theirs, ours, ids):9.1e}"
            for row in rows(title, theirs, ours, ids):
                print(row.line(*medians(row, options.rounds, "cpu")), apart, flush=True)


if __name__ == "__main__":
    main()
