"""Tiny models with a planted signal, saved to a folder with labelled texts and an experiment.

first_letter    the first letter of a text is moved to its last token in a known block
class_of_letter the class of a letter is one feature of its embedding; position 0 has a large norm

Every letter is a token, and every axis of the models has a size of its own.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from probekit.experiment.schema import Experiment
from probekit.files import csv_text, write_atomic
from probekit.model.families.gpt2 import GPT2Config
from probekit.model.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.training.vocabulary import train_vocabulary

SIGNAL_LAYER = 2  # of four, from 0: the only block whose attention writes to the residual stream
LABELS = ("X", "Y")  # the first letters
FIRST_NORM = 100.0  # size of the residual stream at position 0, elsewhere about 1
N_TOKENS = 5  # of a text of a single letter
N_IDS = 258  # <|endoftext|>, the bytes and the one merge that a vocabulary needs
_LETTERS = np.array(list(string.ascii_letters + string.digits))
_WORD_LETTERS = np.array(list(string.ascii_lowercase))


def random_model(seed: int, n_layer: int = 4, n_embd: int = 21) -> GPT2:
    """Return a GPT-2 with large random weights, so that all of its sites depend on the tokens.

    >>> random_model(seed=0).axis_sizes["d_mlp"]
    11
    """
    sizes: dict[str, Any] = {"vocab_size": N_IDS + 1, "n_positions": 16, "n_head": 3, "n_inner": 11}
    config = GPT2Config(n_layer=n_layer, n_embd=n_embd, initializer_range=0.5, **sizes)
    return GPT2(config, seed=seed).requires_grad_(False)


def tiny_tokenizer(folder: Path) -> Tokenizer:
    """Write a vocabulary of bytes to a folder and return its tokenizer."""
    train_vocabulary(["zz"] * 2, N_IDS, folder)
    return Tokenizer.from_pretrained(folder)


def random_words(n_words: int, seed: int) -> list[str]:
    """Return random strings of 3 to 11 letters.

    >>> len(random_words(3, seed=0))
    3
    """
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, 12, size=n_words)
    return ["".join(generator.choice(_WORD_LETTERS, size=length)) for length in lengths]


def first_letter(folder: Path, seed: int = 0) -> Experiment:
    """Return an experiment on texts whose label, the first letter, is probed at the last letter.

    Attention is the only way from one position to another, and only block `SIGNAL_LAYER` uses it:
    it averages feature 0, which the first letter sets, and writes the mean to feature 1. The two
    texts of a group differ only in their first letter, so that earlier sites of the last token have
    equal rows for both labels: any probe has an accuracy of 0.5 there, up to rounding.
    """
    model, tokenizer = random_model(seed), tiny_tokenizer(folder)
    weights = model.state_dict()  # the parameters themselves, not copies
    weights["wte.weight"][:, :2] = weights["wpe.weight"][:, :2] = 0
    for letter, value in zip(LABELS, (6.0, -6.0), strict=True):
        weights["wte.weight"][_id(tokenizer, letter), 0] = value
    for layer in range(model.config.n_layer):
        weights[f"h.{layer}.attn.c_proj.weight"].zero_()
        weights[f"h.{layer}.mlp.c_proj.weight"][:2] = 0
    qkv = weights[f"h.{SIGNAL_LAYER}.attn.c_attn.weight"]
    qkv.zero_()  # queries and keys of 0 give all keys the same weight
    qkv[2 * model.config.n_embd, 0] = 1  # the first feature of the values
    weights[f"h.{SIGNAL_LAYER}.attn.c_proj.weight"][1, 0] = 50
    rows = [
        {"text": letter + word, "label": letter, "group": word}
        for word in random_words(60, seed)
        for letter in LABELS
    ]
    sites = [f"blocks.*.hook_{name}" for name in ("resid_pre", "attn_out", "resid_post")]
    return _experiment(folder, model, rows, sites, at="last", C=1.0)


def class_of_letter(folder: Path, seed: int = 0) -> Experiment:
    """Return an experiment on every token of texts that repeat one letter, with a random label.

    One feature of a letter's embedding is 1 or -1, depending on the label. All features of position
    0 are about `FIRST_NORM`. If these rows were used for feature scaling, this feature would be
    shrunk far more than the random ones, and a probe would use the random ones instead, which
    identify only the letters of the training rows.
    """
    model, tokenizer = random_model(seed, n_layer=1, n_embd=63), tiny_tokenizer(folder)
    weights = dict(model.named_parameters())
    tokens, positions = weights["wte.weight"], weights["wpe.weight"]
    positions[:, 0] = 0
    positions[0] *= FIRST_NORM
    positions[0, 0] = FIRST_NORM
    rows = []
    for number, letter in enumerate(np.random.default_rng(seed).permutation(_LETTERS)):
        tokens[_id(tokenizer, letter), 0] = 2 * (number % 2) - 1
        rows.append({"text": letter * N_TOKENS, "label": LABELS[number % 2], "group": letter})
    return _experiment(folder, model, rows, ["blocks.0.hook_resid_pre"], at="all", C=0.1)


def _id(tokenizer: Tokenizer, letter: str) -> int:
    return int(tokenizer.encode(letter, bos=False).ids[0])


def _experiment(
    folder: Path,
    model: GPT2,
    rows: Sequence[Mapping[str, str]],
    sites: Sequence[str],
    *,
    at: str,
    C: float,
) -> Experiment:
    """Save model and rows to a folder and return the experiment that probes them."""
    model.save_pretrained(folder)
    write_atomic(folder / "rows.csv", csv_text(pd.DataFrame(rows)))
    probe = {"C": [C], "folds": 3, "control_draws": 0, "baselines": []}
    return Experiment.model_validate(
        {
            "name": "selftest",
            "model": {"source": str(folder), "random_weights": 0},
            "data": {
                "name": "planted",
                "format": "csv",
                "root": str(folder),
                "file": "rows.csv",
                "columns": {"group": "group"},
            },
            "tokens": {"bos": False, "position": {"at": at}},
            "capture": {"sites": sites},
            "probe": probe | {"description": False, "permutations": 0},
        }
    )
