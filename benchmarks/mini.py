"""What a small model has learnt: loss per character on held-out text, induction, head scores.

    python -m benchmarks.mini CORPUS MODEL [MODEL ...]

Every model reads the same ends of the same texts with its own vocabulary, in windows of its own
context. CORPUS is what the recipe of mini names, cut as that recipe says. Scores are means over
random tokens that come twice: of the attention to the token before (previous token), and to the
one behind the token's first appearance (induction).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from probekit.analysis.heads import random_repeats, score_heads
from probekit.experiment.loader import load_recipe
from probekit.model.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.training.corpus import Text, read_corpus
from probekit.training.measurement import held_out_loss, repeat_losses

RECIPE = "experiments/pretrain_mini.yaml"
HALF, ROWS = 64, 32
SCORES = ("previous_token", "induction")


@dataclass(frozen=True)
class Learnt:
    """What was measured of a model: losses in nats, and the scores of its heads.

    Attributes:
        parameters: how many.
        n_characters: of held-out text.
        n_tokens: that the model's vocabulary cuts it into.
        per_token: loss on held-out text.
        repeats: loss on random tokens, and when they come again.
        scores: one row a score, layer and head.
    """

    parameters: int
    n_characters: int
    n_tokens: int
    per_token: float
    repeats: tuple[float, float]
    scores: pd.DataFrame

    @property
    def per_character(self) -> float:
        """The loss on held-out text, whatever the vocabulary."""
        return self.per_token * self.n_tokens / self.n_characters

    def best(self, score: str) -> tuple[str, float]:
        """Return the head of the highest score, as L4H5, and the score."""
        rows = self.scores[self.scores["score"] == score]
        head = rows.loc[rows["value"].idxmax()]
        return f"L{head['layer']}H{head['head']}", float(head["value"])

    def table(self, score: str) -> list[list[float]]:
        """Return a score by layer and head."""
        rows = self.scores[self.scores["score"] == score].sort_values(["layer", "head"])
        values = rows["value"].to_numpy().reshape(rows["layer"].nunique(), -1)
        return values.tolist()


def held_out_texts(corpus: str | Path) -> tuple[Text, ...]:
    """Return the texts that the recipe of mini names, read from a folder or archive."""
    return read_corpus(**load_recipe(RECIPE).corpus.model_dump() | {"source": str(corpus)})


def measure(source: str | Path, texts: tuple[Text, ...]) -> Learnt:
    """Return what a model has learnt."""
    model, tokenizer = GPT2.from_pretrained(source), Tokenizer.from_pretrained(source)
    ends = [tokenizer.encode(text.held_out, bos=True).ids for text in texts]
    tokens = np.concatenate(ends).astype(np.uint32)
    sequences = random_repeats(range(model.config.vocab_size), ROWS, HALF)
    return Learnt(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        n_characters=sum(len(text.held_out) for text in texts),
        n_tokens=len(tokens),
        per_token=held_out_loss(model, tokens),
        repeats=repeat_losses(model),
        scores=score_heads(model, sequences),
    )


def main() -> None:
    """Print the numbers of each model."""
    corpus, *sources = sys.argv[1:]
    texts = held_out_texts(corpus)
    for source in sources:
        learnt = measure(source, texts)
        print(f"{source}: {learnt.parameters:,} parameters")
        print(
            f"held-out text: {learnt.n_characters:,} characters, {learnt.n_tokens:,} tokens, "
            f"{learnt.per_token:.4f} nats per token, {learnt.per_character:.4f} per character"
        )
        print(
            "random tokens: {:.3f} nats per token, the second time {:.3f}".format(*learnt.repeats)
        )
        for score in SCORES:
            print("{}, highest {} {:.3f}; by layer and head:".format(score, *learnt.best(score)))
            for row in learnt.table(score):
                print("  " + " ".join(f"{value:.3f}" for value in row))


if __name__ == "__main__":
    main()
