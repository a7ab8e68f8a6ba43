"""Weights of networks that are compiled from programs, as a file for `benchmarks.compiled`.

    pip install tracr-pypi==1.0.0 jax==0.10.2 dm-haiku==0.0.17      # in an environment of its own
    python benchmarks/compiled_weights.py benchmarks/compiled.npz

Of each program the file has the embeddings, the maps of all blocks under tracr's names, the names
of the tokens and of the dimensions of the residual stream, and, for some inputs, the residual
stream after each sublayer as tracr computes it.

Source: Lindner et al. (2023), Tracr: Compiled Transformers as a Laboratory for Interpretability.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

BOS, CHECKED = "BOS", 4  # inputs of each program with their residual streams
MAPS = ("attn/query", "attn/key", "attn/value", "attn/linear", "mlp/linear_1", "mlp/linear_2")


def programs() -> dict[str, tuple[Any, list[Any], int, bool]]:
    """Return the programs: expression, vocabulary, largest length, whether they are causal."""
    from tracr.compiler import lib
    from tracr.rasp import rasp

    is_x = (rasp.tokens == "x").named("is_x")
    return {
        "reverse": (lib.make_reverse(rasp.tokens), list("abcdef"), 5, False),
        "sort": (lib.make_sort_unique(rasp.tokens, rasp.tokens), list(range(1, 9)), 6, False),
        "frac_prevs": (lib.make_frac_prevs(is_x), list("xyz"), 6, True),
    }


def main() -> None:
    """Compile the programs and write the file."""
    from tracr.compiler import compiling

    rng, arrays = np.random.default_rng(0), dict[str, Any]()
    for name, (program, vocabulary, length, is_causal) in programs().items():
        model = compiling.compile_rasp_to_model(
            program, set(vocabulary), length, causal=is_causal, compiler_bos=BOS
        )
        assert model.model_config.num_heads == 1, "the network of the benchmark has one head"
        parameters, n_layers = model.params, model.model_config.num_layers
        assert not any(np.any(one["b"]) for one in parameters.values() if "b" in one), "no biases"
        labels = [re.sub(r"_\d+(?=:|_selector|$)", "", one) for one in model.residual_labels]
        known: dict[str, Any] = {"labels": np.array(labels), "is_causal": np.array(is_causal)}
        for key in ("token_embed", "pos_embed"):
            known[key] = np.array(parameters[key]["embeddings"])
        for key in MAPS:
            layers = [f"transformer/layer_{layer}/{key}" for layer in range(n_layers)]
            known[key] = np.array([parameters[one]["w"] for one in layers])
        numbers = model.input_encoder.encoding_map
        known["tokens"] = np.array([str(one) for one in sorted(numbers, key=numbers.get)])
        inputs = np.array([rng.permutation(vocabulary * 2)[:length] for _ in range(CHECKED)])
        if name == "sort":  # its tokens are distinct
            inputs = np.array([rng.permutation(vocabulary)[:length] for _ in range(CHECKED)])
        found = [model.apply([BOS, *row.tolist()]).residuals for row in inputs]
        known["inputs"] = inputs.astype(str)
        known["streams"] = np.array([[np.array(x[0]) for x in streams] for streams in found])
        arrays |= {f"{name}:{key}": one for key, one in known.items()}
    np.savez_compressed(Path(sys.argv[1]), **arrays)


if __name__ == "__main__":
    main()
