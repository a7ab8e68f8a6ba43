"""What a small model has learnt: loss per character on held-out text, induction, head scores.

    python -m benchmarks.mini CORPUS MODEL [MODEL ...]

Every model reads the same ends of the same texts with its own vocabulary, in windows of its own
context. CORPUS is what the recipe names, cut as the recipe says. Scores are means over random
tokens that come twice: of the attention to the token before (previous token), and to the one
behind the token's first appearance (induction).
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from probekit.experiment.loader import load_recipe
from probekit.model.gpt2 import GPT2
from probekit.model.tokenizer import Tokenizer
from probekit.training.corpus import Text, read_corpus
from probekit.training.measurement import held_out_loss, repeat_losses

RECIPE = "experiments/pretrain_mini.yaml"
HALF, ROWS = 64, 32


def text_losses(source: str, model: GPT2, texts: tuple[Text, ...]) -> tuple[int, float, float]:
    """Return the number of held-out tokens, and the loss per token and per character."""
    tokenizer = Tokenizer.from_pretrained(source)
    ends = [tokenizer.encode(text.held_out, bos=True).ids for text in texts]
    tokens = np.concatenate(ends).astype(np.uint16)
    loss = held_out_loss(model, tokens)
    return len(tokens), loss, loss * len(tokens) / sum(len(text.held_out) for text in texts)


def head_scores(model: GPT2) -> tuple[np.ndarray, np.ndarray]:
    """Return the previous-token and the induction score of each head, [n_layers n_heads]."""
    half = np.random.default_rng(1).integers(model.config.vocab_size, size=(ROWS, HALF))
    ids = torch.from_numpy(half).repeat(1, 2)
    _, cache = model.run_with_cache(ids, sites=["blocks.*.attn.hook_pattern"], logits=True)
    patterns = [cache["pattern", layer] for layer in range(model.config.n_layer)]
    previous = [p.diagonal(-1, 2, 3).mean((0, 2)) for p in patterns]
    induction = [p.diagonal(1 - HALF, 2, 3)[:, :, 1:].mean((0, 2)) for p in patterns]
    return torch.stack(previous).numpy(), torch.stack(induction).numpy()


def main() -> None:
    """Print the numbers of each model."""
    corpus, *sources = sys.argv[1:]
    chosen = load_recipe(RECIPE).corpus.model_dump() | {"source": corpus}
    texts = read_corpus(**chosen)
    print(f"held out: {sum(len(text.held_out) for text in texts):,} characters")
    for source in sources:
        model = GPT2.from_pretrained(source)
        n_tokens, loss, per_character = text_losses(source, model, texts)
        first, second = repeat_losses(model)
        print(f"\n{source}: {sum(p.numel() for p in model.parameters()):,} parameters")
        print(f"held-out text: {n_tokens:,} tokens, {loss:.4f} nats per token")
        print(f"               {per_character:.4f} nats per character")
        print(f"random tokens twice: first half {first:.3f}, second {second:.3f} nats per token")
        for name, scores in zip(("previous token", "induction"), head_scores(model), strict=True):
            layer, head = np.unravel_index(scores.argmax(), scores.shape)
            print(f"{name} scores by layer and head, highest L{layer}H{head} {scores.max():.3f}")
            for row in scores:
                print("  " + " ".join(f"{score:.3f}" for score in row))


if __name__ == "__main__":
    main()
