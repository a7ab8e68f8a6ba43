"""Evaluation of small models: held-out loss per character, induction and head scores.

    python -m benchmarks.mini CORPUS MODEL [MODEL ...]

CORPUS is the folder of the texts in mini's recipe, split as in the recipe. Every model
is evaluated on the same held-out text with its own vocabulary and context length. Head scores are
means over sequences of random tokens that occur twice: attention to the previous token, and to the
token after the first occurrence of the current token (induction).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from probekit.analysis.heads import random_repeats, score_heads
from probekit.experiment.loader import load_recipe
from probekit.model.families.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.training.corpus import Text, read_corpus
from probekit.training.loop import held_out_loss, repeat_losses

RECIPE = "experiments/pretrain_mini.yaml"
HALF, ROWS = 64, 32
SCORES = ("previous_token", "induction")


@dataclass(frozen=True)
class Evaluation:
    """Losses of a model in nats, and the scores of its heads.

    Attributes:
        parameters: number of parameters.
        n_characters: number of characters of held-out text.
        n_tokens: number of tokens of the same text in the model's vocabulary.
        per_token: loss per token on held-out text.
        repeats: loss per token on random tokens, at their first and second occurrence.
        scores: table with one row per score, layer and head.
    """

    parameters: int
    n_characters: int
    n_tokens: int
    per_token: float
    repeats: tuple[float, float]
    scores: pd.DataFrame

    @property
    def per_character(self) -> float:
        """Loss per character on held-out text, which is comparable between vocabularies."""
        return self.per_token * self.n_tokens / self.n_characters

    def best(self, score: str) -> tuple[str, float]:
        """Return the name of the head with the highest score, such as L4H5, and its score."""
        rows = self.scores[self.scores["score"] == score]
        head = rows.loc[rows["value"].idxmax()]
        return f"L{head['layer']}H{head['head']}", float(head["value"])

    def table(self, score: str) -> list[list[float]]:
        """Return a score as a list of layers, each a list of heads."""
        rows = self.scores[self.scores["score"] == score].sort_values(["layer", "head"])
        values = rows["value"].to_numpy().reshape(rows["layer"].nunique(), -1)
        return values.tolist()


def held_out_texts(corpus: str | Path) -> tuple[Text, ...]:
    """Return the texts of mini's recipe, read from a folder."""
    return read_corpus(**load_recipe(RECIPE).corpus.model_dump() | {"source": str(corpus)})


def measure(source: str | Path, texts: tuple[Text, ...]) -> Evaluation:
    """Return the evaluation of a model on held-out texts."""
    model, tokenizer = GPT2.from_pretrained(source), Tokenizer.from_pretrained(source)
    ends = [tokenizer.encode(text.held_out, bos=True).ids for text in texts]
    tokens = np.concatenate(ends).astype(np.uint32)
    sequences = random_repeats(range(model.config.vocab_size), ROWS, HALF)
    return Evaluation(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        n_characters=sum(len(text.held_out) for text in texts),
        n_tokens=len(tokens),
        per_token=held_out_loss(model, tokens),
        repeats=repeat_losses(model),
        scores=score_heads(model, sequences),
    )


def main() -> None:
    """Print the evaluation of each model."""
    corpus, *sources = sys.argv[1:]
    texts = held_out_texts(corpus)
    for source in sources:
        result = measure(source, texts)
        print(f"{source}: {result.parameters:,} parameters")
        print(
            f"held-out text: {result.n_characters:,} characters, {result.n_tokens:,} tokens, "
            f"{result.per_token:.4f} nats per token, {result.per_character:.4f} per character"
        )
        print(
            "random tokens: {:.3f} nats per token, second occurrence {:.3f}".format(*result.repeats)
        )
        for score in SCORES:
            print("{}, highest {} {:.3f}; by layer and head:".format(score, *result.best(score)))
            for row in result.table(score):
                print("  " + " ".join(f"{value:.3f}" for value in row))


if __name__ == "__main__":
    main()
