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

from probekit.analysis.heads import random_repeats, score_heads
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
    tokens = np.concatenate(ends).astype(np.uint32)
    loss = held_out_loss(model, tokens)
    return len(tokens), loss, loss * len(tokens) / sum(len(text.held_out) for text in texts)


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
        sequences = random_repeats(range(model.config.vocab_size), ROWS, HALF)
        scores = score_heads(model, sequences).set_index(["score", "layer", "head"])["value"]
        for name in ("previous_token", "induction"):
            table = scores[name].unstack("head")
            layer, head = scores[name].idxmax()
            print(f"{name} by layer and head, highest L{layer}H{head} {table.max().max():.3f}")
            print(
                "\n".join(f"  {' '.join(f'{value:.3f}' for value in row)}" for row in table.values)
            )


if __name__ == "__main__":
    main()
