"""Error and speed of bfloat16, where the residual stream stays in float32.

    python -m benchmarks.bfloat16 [--model FOLDER]

The error of a row is |x_bfloat16 - x_float32| / |x_float32| at the last token of a sentence. Times
are of the residual streams of 16 x 64 tokens with GPT-2's shape and random weights, which both
dtypes compute alternately.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
import torch

from benchmarks.capture import random_tokens, seconds
from probekit.data.positions import RowPlan
from probekit.model.families.gpt2 import GPT2, PUBLISHED
from probekit.model.families.table import load_model
from probekit.model.network import Network
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.look.apply import stream_rows
from probekit.products import processor

SENTENCES = "data/sentiment.csv"
ROUNDS = 7
Tokens = list[np.ndarray[tuple[int], np.dtype[np.int64]]]


def residual_streams(
    model: Network, tokens: Tokens
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return the residual stream after each block at the last token, shape [layer text d_model]."""
    n = len(tokens)
    plan = RowPlan(np.arange(n), np.array([len(ids) - 1 for ids in tokens]), np.arange(n + 1))
    sites = [f"blocks.{layer}.hook_resid_post" for layer in range(model.axis_sizes["n_layers"])]
    rows = np.empty((len(sites), n, model.axis_sizes["d_model"]), np.float32)
    for at, values in stream_rows(model, tokens, plan, sites):
        for layer, site in enumerate(sites):
            rows[layer, at] = values[site]
    return rows


def errors(source: str) -> pd.DataFrame:
    """Return the median, 99 % quantile and maximum of the error per layer."""
    tokenizer = Tokenizer.from_pretrained(source)
    tokens = [tokenizer.encode(text, bos=True).ids for text in pd.read_csv(SENTENCES)["text"]]
    exact, rounded = (
        residual_streams(load_model(source, dtype), tokens) for dtype in ("float32", "bfloat16")
    )
    error = np.linalg.norm(rounded - exact, axis=-1) / np.linalg.norm(exact, axis=-1)
    columns = {
        "median": np.median(error, 1),
        "99 %": np.quantile(error, 0.99, 1),
        "largest": error.max(1),
    }
    return pd.DataFrame(columns).rename_axis("layer")


def main() -> None:
    """Print the errors, then the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mini", help="a folder or a hub name")
    options = parser.parse_args()
    print(f"{options.model}, texts of {SENTENCES}")
    print(errors(options.model).to_string(float_format="{:.2%}".format))
    print(f"\ngpt2, {processor()}, {torch.get_num_threads()} threads, medians of {ROUNDS} rounds")
    tokens = random_tokens(16, 64)
    exact = GPT2(PUBLISHED["gpt2"], seed=0).requires_grad_(False)
    rounded = GPT2(PUBLISHED["gpt2"], seed=0).requires_grad_(False).to(torch.bfloat16)
    times = [
        [
            seconds(lambda model=model: residual_streams(model, tokens), "cpu")
            for model in (exact, rounded)
        ]
        for _ in range(ROUNDS + 1)
    ]
    single, half = np.median(times[1:], axis=0)
    print(f"float32 {single:.3f} s, bfloat16 {half:.3f} s, ratio {single / half:.2f}")


if __name__ == "__main__":
    main()
